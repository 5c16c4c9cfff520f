"""Attributes and generators as plain values, and known environments and wrappers, which resume bit by bit."""

import importlib
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from parametrization import part, sample
from resumable_envs import Fading, Pictures, actions_of, bits, carried, check_goes_on, gone, made, vectorized
from sb3_contrib.common.wrappers import ActionMasker, TimeFeatureWrapper
from stable_baselines3.common.atari_wrappers import ClipRewardEnv, MaxAndSkipEnv, StickyActionEnv, WarpFrame
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecNormalize

from ppo_plus import Resumable
from ppo_plus.envs.resumable.attributes import VEC_WRAPPERS, WORLDS, WRAPPERS, changing
from ppo_plus.envs.resumable.state import get_state, set_state


def test_a_state_does_not_change_with_later_steps():
    env = VecNormalize(vectorized(lambda: gym.make("Pendulum-v1", max_episode_steps=30)))
    env.seed(0)
    env.reset()
    gone(env, actions_of(env, 40))
    state = get_state(env)
    before = pickle.dumps(state)
    gone(env, actions_of(env, 40))
    assert pickle.dumps(state) == before
    # Nor when others do that were given it.
    other = VecNormalize(vectorized(lambda: gym.make("Pendulum-v1", max_episode_steps=30)))
    set_state(other, state)
    gone(other, actions_of(env, 40))
    assert pickle.dumps(state) == before


def test_what_monitors_and_statistics_remember():
    def make():
        return vectorized(lambda: wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"), buffer_length=3))

    env, other = make(), make()
    env.seed(0)
    env.reset()
    gone(env, actions_of(env, 200))
    assert set_state(other, carried(get_state(env))) is None
    names = ("episode_returns", "episode_lengths", "episode_times", "total_steps", "rewards", "needs_reset")
    names += ("episode_count", "time_queue", "return_queue", "length_queue")
    for name in names:
        assert other.get_attr(name) == env.get_attr(name), name
        assert [type(each) for each in other.get_attr(name)] == [type(each) for each in env.get_attr(name)], name
    assert all(queue.maxlen == 3 for queue in other.get_attr("time_queue"))
    # The time since the start goes on; only what passed between the two calls is not counted.
    started, restarted = env.get_attr("t_start")[0], other.get_attr("t_start")[0]
    assert restarted >= started


def test_options_that_cannot_be_saved():
    env = Resumable(Pictures())
    env.reset(options={"start": 1.0, "how": object()})
    assert "was reset with <object object" in env.get_episode_state()["reason"]
    env.reset(options={"start": 1.0})
    assert env.get_episode_state()["reason"] is None


# --- known environments and wrappers resume in the middle of their episodes, bit by bit -------------------------------


ENVS = {
    "CartPole-v1": {},
    "Acrobot-v1": {"max_episode_steps": 60},
    "Pendulum-v1": {"max_episode_steps": 60},
    "FrozenLake-v1": {},
    "CliffWalking-v1": {"max_episode_steps": 60, "is_slippery": True},
    "Taxi-v4": {"max_episode_steps": 60, "fickle_passenger": True, "is_rainy": True},
    "LunarLander-v3": {"enable_wind": True},
    "BipedalWalker-v3": {},
    "Ant-v5": {"max_episode_steps": 100},
    "HalfCheetah-v5": {"max_episode_steps": 100},
    "Hopper-v5": {},
    "Humanoid-v5": {},
    "InvertedDoublePendulum-v5": {},
    "Reacher-v5": {},
    "Walker2d-v5": {},
}


@pytest.mark.parametrize("env_id", part(ENVS, ("CartPole-v1", "BipedalWalker-v3", "Reacher-v5")))
def test_every_known_environment_resumes(env_id):
    # After many episodes, so that what they leave behind would show.
    check_goes_on(lambda: vectorized(lambda: gym.make(env_id, **ENVS[env_id])), before=503, after=300, points=1)


@pytest.mark.slow
def test_car_racing_resumes():
    def make():
        return vectorized(lambda: gym.make("CarRacing-v3", max_episode_steps=25, domain_randomize=True), n=1)

    check_goes_on(make, before=30, after=30, points=1)


def test_blackjack_whose_observations_are_tuples():
    first, second = (Resumable(Monitor(gym.make("Blackjack-v1"))) for _ in range(2))
    first.reset(seed=3)
    for _ in range(40):
        first.reset()
        first.step(1)
    assert second.set_episode_state(carried(first.get_episode_state())) is None
    theirs, ours = ([[env.step(0), env.reset()] for _ in range(30)] for env in (second, first))
    assert bits(theirs) == bits(ours)


def test_the_world_is_new_without_a_change_to_the_first_episode():
    """BipedalWalker's later ones alone differ, by rounding; see WORLDS."""
    plain, resumable = (gym.make(env_id) for env_id in ("BipedalWalker-v3",) * 2)
    resumable = Resumable(resumable)
    plain.action_space.seed(0)
    assert bits(plain.reset(seed=0)[0]) == bits(resumable.reset(seed=0)[0])
    for _ in range(60):
        action = plain.action_space.sample()
        assert bits(plain.step(action)[0]) == bits(resumable.step(action)[0])


#: What is wrapped, and how; each wrapper that is known by its name, and some of those that transform only.
WRAPPED = {
    "DelayObservation": ("Pendulum-v1", lambda env: wrappers.DelayObservation(env, 3)),
    "FlattenObservation": (Pictures, wrappers.FlattenObservation),
    "FrameStackObservation": ("Pendulum-v1", lambda env: wrappers.FrameStackObservation(env, 3, padding_type="zero")),
    "MaxAndSkipObservation": ("Acrobot-v1", lambda env: wrappers.MaxAndSkipObservation(env, 4)),
    "Monitor": ("Pendulum-v1", lambda env: Monitor(env)),
    "NormalizeObservation": ("Pendulum-v1", wrappers.NormalizeObservation),
    "NormalizeReward": ("Pendulum-v1", wrappers.NormalizeReward),
    "OrderEnforcing": ("Pendulum-v1", wrappers.common.OrderEnforcing),
    "PassiveEnvChecker": ("Pendulum-v1", wrappers.common.PassiveEnvChecker),
    "RecordEpisodeStatistics": ("Pendulum-v1", wrappers.RecordEpisodeStatistics),
    "RepeatAction": ("Pendulum-v1", lambda env: wrappers.RepeatAction(env, 2)),
    "StickyAction": ("Pendulum-v1", lambda env: wrappers.StickyAction(env, 0.4, (2, 5))),
    "TimeAwareObservation": ("Pendulum-v1", wrappers.TimeAwareObservation),
    "TimeLimit": ("Pendulum-v1", lambda env: wrappers.TimeLimit(env, 7)),
    "TransformObservation": (
        "Pendulum-v1",
        lambda env: wrappers.TransformObservation(env, lambda obs: -obs, env.observation_space),
    ),
    "ActionMasker": ("CartPole-v1", lambda env: ActionMasker(env, lambda env: np.ones(2, bool))),
    "ClipRewardEnv": ("Pendulum-v1", ClipRewardEnv),
    "MaxAndSkipEnv": ("CartPole-v1", lambda env: MaxAndSkipEnv(env, 4)),
    "StickyActionEnv": (Fading, lambda env: StickyActionEnv(env, 0.4)),
    "TimeFeatureWrapper": ("Pendulum-v1", TimeFeatureWrapper),
    "WarpFrame": (
        Pictures,
        lambda env: WarpFrame(
            wrappers.TransformObservation(env, lambda obs: obs["image"], env.observation_space["image"]), 4, 4
        ),
    ),
}


def in_wrapper(name):
    env, wrap = WRAPPED[name]
    inner = made(env) if isinstance(env, type) else gym.make(env, max_episode_steps=23, render_mode="rgb_array")
    return wrap(inner)


def test_all_known_wrappers_are_tested():
    # tests/zoo/test_rl_zoo3.py tests rl_zoo3's in a separate process.
    here = {name.rpartition(".")[2] for name in WRAPPERS if not name.startswith("rl_zoo3.")}
    assert {*WRAPPED} - here == {"FlattenObservation", "TransformObservation"} and here < {*WRAPPED}


@pytest.mark.parametrize("name", sample(WRAPPED, 3))
def test_every_known_wrapper_resumes(name):
    # Behind it, one whose state is what came before.
    check_goes_on(lambda: vectorized(lambda: wrappers.StickyAction(in_wrapper(name), 0.2)), 52, 52)


@pytest.mark.parametrize("name", WRAPPED)
def test_known_wrappers_change_listed_attributes_only(name):
    """What a step or a reset changes is among the attributes that are listed."""
    env = in_wrapper(name)
    listed = set(changing(env))
    # What a reset sets for good.
    known = {"env", "checked_reset", "checked_step", "checked_data_reuse", "_previous_data", "_has_reset"}
    # What is only written to before it is read, and a point in time.
    known |= {"_cached_spec", "results_writer", "stacked_obs", "episode_start_time"}
    snapshots = []
    env.reset(seed=0)
    assert listed <= set(vars(env))
    env.action_space.seed(0)
    for _ in range(60):
        step = env.step(env.action_space.sample())
        if step[2] or step[3]:
            env.reset()
        held = {key: value for key, value in vars(env).items() if key not in known | listed}
        snapshots.append(
            {key: repr(vars(value) if hasattr(value, "__dict__") else value) for key, value in held.items()}
        )
    assert all(snapshot == snapshots[0] for snapshot in snapshots)


def test_names_in_the_tables_are_those_of_classes():
    for name in [*WRAPPERS, *VEC_WRAPPERS, *WORLDS]:
        module, _, attribute = name.rpartition(".")
        if module.startswith("rl_zoo3."):
            continue  # importing it changes Gymnasium; tests/zoo/test_rl_zoo3.py has environments of these
        assert isinstance(getattr(importlib.import_module(module), attribute), type), name


# --- the generators of environments and spaces resume -----------------------------------------------------------------


def test_without_any_seed():
    env = vectorized(lambda: gym.make("CartPole-v1"))
    env.reset()
    gone(env, actions_of(env, 50))
    other = vectorized(lambda: gym.make("CartPole-v1"))
    assert set_state(other, carried(get_state(env))) is None
    actions = actions_of(env, 100, seed=1)
    assert gone(other, actions)[0] == gone(env, actions)[0]


def test_a_generator_of_another_kind_resumes():
    env, other = (Resumable(gym.make("CartPole-v1")) for _ in range(2))
    env.np_random = np.random.Generator(np.random.MT19937(3))
    env.reset()
    assert other.set_episode_state(carried(env.get_episode_state())) is None
    assert bits(other.reset()[0]) == bits(env.reset()[0])
    assert other.np_random_seed == env.np_random_seed == -1


def test_an_unknown_generator_is_not_called():
    env = vectorized(lambda: gym.make("CartPole-v1"), n=1)
    env.reset()
    state = get_state(env)
    state["envs"][0]["generator"]["state"]["bit_generator"] = "seed"
    assert "bit_generator='seed' must be one of MT19937, PCG64" in set_state(env, state)


def test_the_generator_stays_the_same_object():
    env, other = (vectorized(lambda: gym.make("CartPole-v1"), n=1) for _ in range(2))
    env.reset()
    held = other.envs[0].np_random
    assert set_state(other, carried(get_state(env))) is None
    assert other.envs[0].np_random is held
    assert held.random() == env.envs[0].np_random.random()
