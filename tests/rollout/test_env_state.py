"""Environments in another process go on as those would have whose state they were given, bit by bit."""

import copy
import importlib
import multiprocessing
import pickle
import sys
from collections import deque
from functools import partial

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.envs.registration import EnvSpec
from sb3_contrib.common.wrappers import ActionMasker, TimeFeatureWrapper
from stable_baselines3.common.atari_wrappers import ClipRewardEnv, MaxAndSkipEnv, StickyActionEnv, WarpFrame
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecEnvWrapper,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

import ppo_plus
from ppo_plus import PPO_Plus, Resumable
from ppo_plus.rollout import env_state
from ppo_plus.rollout.env_state import MADE, VEC_WRAPPERS, WRAPPERS, NotResumableError, get_state, set_state

PLAIN = (bool, int, float, str, bytes, type(None), np.number, np.bool_)


# --- environments ----------------------------------------------------------------------------------------------------


class Fading(gym.Env):
    """Its episodes depend on how many there were, so that none can be replayed: it tells its state itself."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    action_space = spaces.Discrete(3)
    light = 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.light *= 0.99
        self.place = self.np_random.normal(size=2)
        return self.seen(), {}

    def step(self, action):
        self.place = self.place + self.light * self.np_random.normal(size=2) + 0.1 * action
        return self.seen(), float(self.place.sum()), bool(self.place[0] > 2.0), False, {"light": self.light}

    def get_action_meanings(self):
        return ["NOOP", "LEFT", "RIGHT"]

    def seen(self):
        return (self.light * self.place).astype(np.float32)

    def get_state(self):
        return {"light": self.light, "place": self.place}

    def set_state(self, state):
        self.light, self.place = state["light"], state["place"]


class Silent(Fading):
    """The same without a word."""

    get_state = set_state = None


class Pictures(gym.Env):
    """Dict observations with an image; an episode depends on nothing before it, and the class says so."""

    replayable = True

    def __init__(self):
        image, vector = spaces.Box(0, 255, (8, 8, 3), np.uint8), spaces.Box(-np.inf, np.inf, (3,))
        self.observation_space = spaces.Dict(image=image, vector=vector)
        self.action_space = spaces.Dict(arm=spaces.Box(-1.0, 1.0, (2,)), grip=spaces.Tuple([spaces.Discrete(3)]))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.vector = np.full(3, (options or {}).get("start", 0.0), np.float32)
        return self.seen(), {}

    def step(self, action):
        self.vector = self.vector + np.float32(action["arm"].sum() + action["grip"][0])
        return self.seen(), float(self.vector[0]), bool(self.np_random.random() < 0.1), False, {}

    def seen(self):
        return {"image": self.np_random.integers(0, 255, (8, 8, 3), np.uint8), "vector": self.vector}


class Forgetful(gym.Wrapper):
    """A wrapper that nobody knows."""


class Careful(Forgetful):
    """A wrapper that speaks for all that it wraps."""

    def get_state(self):
        return self.unwrapped.get_state()

    def set_state(self, state):
        self.unwrapped.set_state(state)


def made(env_class, max_episode_steps=9):
    """As ``gym.make`` makes it, in its wrappers."""
    return gym.make(EnvSpec("Own-v0", entry_point=env_class, max_episode_steps=max_episode_steps))


#: Processes that have all that this one has; those of `test_in_new_processes` have not.
FORKED = partial(SubprocVecEnv, start_method="fork")


@pytest.fixture(autouse=True)
def no_process_stays():
    """Also where a test fails: forked processes wait for each other."""
    yield
    for process in multiprocessing.active_children():
        process.kill()


def vectorized(make, n=2, kind=DummyVecEnv, resumable=Resumable, **kwargs):
    return kind([lambda: resumable(Monitor(make()))] * n, **kwargs)


# --- going on --------------------------------------------------------------------------------------------------------


def actions_of(env, n_steps, seed=0, hold=3):
    """Random actions, each taken a few times so that bodies move."""
    space = copy.deepcopy(env.action_space)
    space.seed(seed)
    rows = [[space.sample() for _ in range(env.num_envs)] for _ in range(1 + n_steps // hold)]
    structured = isinstance(space, (spaces.Dict, spaces.Tuple))
    return [rows[t // hold] if structured else np.array(rows[t // hold]) for t in range(n_steps)]


def bits(value):
    """Equal for what is equal bit by bit; the time that an episode took is left out."""
    if isinstance(value, dict):
        return {key: bits(each) for key, each in value.items() if key != "t"}
    if isinstance(value, (list, tuple)):
        return [bits(each) for each in value]
    if value is None:
        return None
    array = np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes()


def gone(env, actions):
    """What environments give on their way, and how many of their episodes end on it."""
    steps = [env.step(each) for each in actions]
    # Of the two kinds of SB3's vectorized environments one rounds rewards.
    found = [bits((obs, rewards.astype(np.float32), dones, infos)) for obs, rewards, dones, infos in steps]
    return found, sum(int(dones.sum()) for _, _, dones, _ in steps)


def carried(state):
    """The state as another process would get it: nothing in it but plain values."""

    def check(value):
        if isinstance(value, np.ndarray):
            assert not value.dtype.hasobject
        elif isinstance(value, dict):
            assert type(value) is dict
            check([*value, *value.values()])
        elif isinstance(value, (list, tuple, set, deque)):
            for each in value:
                check(each)
        else:
            assert isinstance(value, PLAIN), value

    check(state)
    return pickle.loads(pickle.dumps(state))


def check_goes_on(make, before, after, points=2, make_other=None, min_ends=1):
    """At several points, others go on as the environments themselves do.

    :param make: makes the environments
    :param before: steps before each point
    :param after: steps that are compared behind it
    :param make_other: makes those that are given the state; ``None``: as ``make``
    :param min_ends: episodes that must end while they are compared
    """
    env = make()
    env.seed(11)
    env.reset()
    for point in range(points):
        gone(env, actions_of(env, before, seed=point))
        state = carried(get_state(env))
        assert state["reason"] is None
        actions = actions_of(env, after, seed=100 + point)
        other = (make_other or make)()
        try:
            assert set_state(other, state) is None
            assert bits(get_state(other)["envs"]) != [] and _steps(other) == _steps(env)
            theirs, _ = gone(other, actions)
        finally:
            other.close()
        ours, ends = gone(env, actions)
        assert ends >= min_ends
        for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert a == b, f"step {step} behind point {point}"
    env.close()


def _steps(env):
    """How far each environment is in its episode, and how many steps were taken."""
    return [len(rewards) for rewards in env.get_attr("rewards")], env.get_attr("total_steps")


ENVS = {
    "CartPole-v1": {},
    "Acrobot-v1": {"max_episode_steps": 60},
    "MountainCar-v0": {"max_episode_steps": 60},
    "MountainCarContinuous-v0": {"max_episode_steps": 60},
    "Pendulum-v1": {"max_episode_steps": 60},
    "FrozenLake-v1": {},
    "CliffWalking-v1": {"max_episode_steps": 60, "is_slippery": True},
    "Taxi-v4": {"max_episode_steps": 60, "fickle_passenger": True, "is_rainy": True},
    "LunarLander-v3": {"enable_wind": True},
    "LunarLanderContinuous-v3": {},
    "BipedalWalker-v3": {},
    "BipedalWalkerHardcore-v3": {"max_episode_steps": 130},
    "Ant-v5": {"max_episode_steps": 100},
    "HalfCheetah-v5": {"max_episode_steps": 100},
    "Hopper-v5": {},
    "Humanoid-v5": {},
    "HumanoidStandup-v5": {"max_episode_steps": 30},
    "InvertedDoublePendulum-v5": {},
    "InvertedPendulum-v5": {},
    "Pusher-v5": {},
    "Reacher-v5": {},
    "Swimmer-v5": {"max_episode_steps": 100},
    "Walker2d-v5": {},
}


@pytest.mark.parametrize("env_id", ENVS)
def test_every_kind_of_environment_goes_on(env_id):
    # After many episodes, so that what they leave behind would show.
    check_goes_on(lambda: vectorized(lambda: gym.make(env_id, **ENVS[env_id])), before=503, after=300)


@pytest.mark.parametrize("kwargs", [{}, {"domain_randomize": True, "continuous": False}])
def test_car_racing_goes_on(kwargs):
    def make():
        return vectorized(lambda: gym.make("CarRacing-v3", max_episode_steps=25, **kwargs), n=1)

    check_goes_on(make, before=60, after=60)


def test_in_processes_and_back():
    def make(kind=DummyVecEnv):
        return vectorized(lambda: gym.make("LunarLander-v3"), kind=kind)

    check_goes_on(make, 301, 200, points=1, make_other=lambda: make(FORKED))
    check_goes_on(lambda: make(FORKED), 301, 200, points=1, make_other=make)


def test_in_new_processes():
    env_ids = ["CartPole-v1", "LunarLander-v3", "BipedalWalker-v3", "CarRacing-v3", "Hopper-v5"]
    made, actions = [], []
    for env_id in env_ids:
        env = vectorized(lambda env_id=env_id: gym.make(env_id, max_episode_steps=40), n=1)
        env.seed(11)
        env.reset()
        gone(env, actions_of(env, 95))
        made.append(env)
        actions.append([action[0] for action in actions_of(env, 90, seed=1)])
    states = [carried(env.envs[0].get_episode_state()) for env in made]

    class Player(gym.Env):
        """Takes a whole way as one action, since the environments differ."""

        observation_space = action_space = spaces.Discrete(1)

        def play(self, env_id, state, way):
            env = Resumable(Monitor(gym.make(env_id, max_episode_steps=40)))
            return env.set_episode_state(state), played(env, way)

    def played(env, way):
        found = []
        for action in way:
            step = env.step(action)
            found.append([step, env.reset() if step[2] or step[3] else None])
        return bits(found)

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        players = SubprocVecEnv([Player], start_method="spawn")
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    for env_id, env, state, way in zip(env_ids, made, states, actions, strict=True):
        ((reason, theirs),) = players.env_method("play", env_id, state, way)
        assert reason is None
        assert theirs == played(env.envs[0], way), env_id
    players.close()


def test_blackjack_whose_observations_are_tuples():
    first, second = (Resumable(Monitor(gym.make("Blackjack-v1"))) for _ in range(2))
    first.reset(seed=3)
    for _ in range(40):
        first.reset()
        first.step(1)
    assert second.set_episode_state(carried(first.get_episode_state())) is None
    theirs, ours = ([[env.step(0), env.reset()] for _ in range(30)] for env in (second, first))
    assert bits(theirs) == bits(ours)


def test_at_any_step_of_an_episode():
    """Before the first reset, right behind a reset, and right behind the end of an episode."""
    env = vectorized(lambda: gym.make("CartPole-v1"))
    env.seed(4)
    env.set_options({"low": -0.01, "high": 0.01})
    states = [get_state(env)]
    first = bits(env.reset())
    actions = actions_of(env, 400)
    found, ends = [], []
    for action in actions:
        states.append(get_state(env))
        (step,), ended = gone(env, [action])
        found.append(step)
        if ended:
            ends.append(len(found) - 1)
    for t in {0, 1, 2, ends[0], ends[0] + 1, ends[1] + 1, ends[-1], ends[-1] + 1}:
        other = vectorized(lambda: gym.make("CartPole-v1"))
        assert set_state(other, carried(states[t + 1])) is None
        assert gone(other, actions[t:])[0] == found[t:]
    other = vectorized(lambda: gym.make("CartPole-v1"))
    assert set_state(other, carried(states[0])) is None
    assert bits(other.reset()) == first
    assert gone(other, actions)[0] == found


def test_seeds_and_options_of_a_reset_in_between():
    env = vectorized(lambda: gym.make("CarRacing-v3", max_episode_steps=12, domain_randomize=True), n=1)
    env.seed(1)
    env.reset()
    gone(env, actions_of(env, 15))
    # These colors are of an earlier episode, and the generator is another one from here on.
    env.seed(2)
    env.set_options({"randomize": False})
    env.reset()
    actions = actions_of(env, 5)
    gone(env, actions)
    other = vectorized(lambda: gym.make("CarRacing-v3", max_episode_steps=12, domain_randomize=True), n=1)
    assert set_state(other, carried(get_state(env))) is None
    actions = actions_of(env, 30, seed=5)
    assert gone(other, actions)[0] == gone(env, actions)[0]


def test_without_any_seed():
    env = vectorized(lambda: gym.make("CartPole-v1"))
    env.reset()
    gone(env, actions_of(env, 50))
    other = vectorized(lambda: gym.make("CartPole-v1"))
    assert set_state(other, carried(get_state(env))) is None
    actions = actions_of(env, 100, seed=1)
    assert gone(other, actions)[0] == gone(env, actions)[0]


def test_a_state_does_not_change_when_the_environments_go_on():
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


def test_actions_are_kept_though_the_caller_uses_their_array_again():
    env, other = (vectorized(lambda: gym.make("Pendulum-v1")) for _ in range(2))
    env.seed(0)
    env.reset()
    action = np.zeros((2, 1), np.float32)
    for t in range(20):
        action[:] = np.sin(t)
        env.step(action)
    assert set_state(other, get_state(env)) is None


def test_the_generator_of_the_action_space_goes_on():
    env, other = (vectorized(Pictures) for _ in range(2))
    env.action_space.seed(3)
    env.reset()
    set_state(other, carried(get_state(env)))
    assert bits(other.action_space.sample()) == bits(env.action_space.sample())


def test_small_states():
    """The actions of an episode are one array."""
    env = vectorized(lambda: gym.make("HalfCheetah-v5"), n=1)
    env.reset()
    sizes = []
    for _ in range(2):
        gone(env, actions_of(env, 450))
        sizes.append(len(pickle.dumps(get_state(env))))
    assert sizes[1] - sizes[0] < 450 * 6 * 4 + 500


# --- wrappers --------------------------------------------------------------------------------------------------------

ACT = spaces.Box(-2.0, 2.0, (1,), np.float32)

#: What is wrapped, and how; each wrapper that is known.
WRAPPED = {
    "AddRenderObservation": ("CartPole-v1", lambda env: wrappers.AddRenderObservation(env)),
    "ClipAction": ("Pendulum-v1", wrappers.ClipAction),
    "ClipReward": ("Pendulum-v1", lambda env: wrappers.ClipReward(env, -1.0, 1.0)),
    "DelayObservation": ("Pendulum-v1", lambda env: wrappers.DelayObservation(env, 3)),
    "DiscretizeAction": ("Pendulum-v1", lambda env: wrappers.DiscretizeAction(env, 5)),
    "DiscretizeObservation": ("Pendulum-v1", lambda env: wrappers.DiscretizeObservation(env, 5)),
    "DtypeObservation": ("Pendulum-v1", lambda env: wrappers.DtypeObservation(env, np.float64)),
    "FilterObservation": (Pictures, lambda env: wrappers.FilterObservation(env, ["vector"])),
    "FlattenObservation": (Pictures, wrappers.FlattenObservation),
    "FrameStackObservation": ("Pendulum-v1", lambda env: wrappers.FrameStackObservation(env, 3, padding_type="zero")),
    "GrayscaleObservation": (
        Pictures,
        lambda env: wrappers.GrayscaleObservation(
            wrappers.TransformObservation(env, lambda obs: obs["image"], env.observation_space["image"])
        ),
    ),
    "MaxAndSkipObservation": ("Acrobot-v1", lambda env: wrappers.MaxAndSkipObservation(env, 4)),
    "Monitor": ("Pendulum-v1", lambda env: Monitor(env)),
    "NormalizeObservation": ("Pendulum-v1", wrappers.NormalizeObservation),
    "NormalizeReward": ("Pendulum-v1", wrappers.NormalizeReward),
    "OrderEnforcing": ("Pendulum-v1", wrappers.common.OrderEnforcing),
    "PassiveEnvChecker": ("Pendulum-v1", wrappers.common.PassiveEnvChecker),
    "RecordEpisodeStatistics": ("Pendulum-v1", wrappers.RecordEpisodeStatistics),
    "RepeatAction": ("Pendulum-v1", lambda env: wrappers.RepeatAction(env, 2)),
    "RescaleAction": ("Pendulum-v1", lambda env: wrappers.RescaleAction(env, -1.0, 1.0)),
    "RescaleObservation": (
        "Pendulum-v1",
        lambda env: wrappers.RescaleObservation(env, np.float32(-1.0), np.float32(1.0)),
    ),
    "ReshapeObservation": ("Pendulum-v1", lambda env: wrappers.ReshapeObservation(env, (3, 1))),
    "ResizeObservation": (
        Pictures,
        lambda env: wrappers.ResizeObservation(
            wrappers.TransformObservation(env, lambda obs: obs["image"], env.observation_space["image"]), (4, 4)
        ),
    ),
    "Resumable": ("Pendulum-v1", Resumable),
    "StickyAction": ("Pendulum-v1", lambda env: wrappers.StickyAction(env, 0.4, (2, 5))),
    "TimeAwareObservation": ("Pendulum-v1", wrappers.TimeAwareObservation),
    "TimeLimit": ("Pendulum-v1", lambda env: wrappers.TimeLimit(env, 7)),
    "TransformAction": ("Pendulum-v1", lambda env: wrappers.TransformAction(env, lambda action: -action, ACT)),
    "TransformObservation": (
        "Pendulum-v1",
        lambda env: wrappers.TransformObservation(env, lambda obs: -obs, env.observation_space),
    ),
    "TransformReward": ("Pendulum-v1", lambda env: wrappers.TransformReward(env, lambda reward: -reward)),
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
    assert {name.rpartition(".")[2] for name in WRAPPERS} == set(WRAPPED)


@pytest.mark.parametrize("name", WRAPPED)
def test_every_known_wrapper_goes_on(name):
    n_steps = 30 if name == "AddRenderObservation" else 101
    # Behind it, one whose state is what came before.
    check_goes_on(lambda: vectorized(lambda: wrappers.StickyAction(in_wrapper(name), 0.2)), n_steps, n_steps)


@pytest.mark.parametrize("name", WRAPPED)
def test_known_wrappers_change_nothing_that_is_not_kept(name):
    """What a step or a reset changes is among the attributes that are listed."""
    env = in_wrapper(name)
    kept = WRAPPERS[f"{type(env).__module__}.{type(env).__qualname__}"]
    listed = {*kept.lasting, *kept.record, *kept.episode, *kept.clocks}
    # What a reset sets for good; and Resumable, which is what this is about, and starts anew.
    known = {"env", "checked_reset", "checked_step", "checked_data_reuse", "_previous_data", "_has_reset", "_episode"}
    # What is only written to before it is read.
    known |= {"_cached_spec", "results_writer", "stacked_obs"}
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


def test_many_wrappers_around_each_other():
    def make():
        env = wrappers.RecordEpisodeStatistics(wrappers.NormalizeObservation(gym.make("Hopper-v5")))
        env = wrappers.NormalizeReward(wrappers.FrameStackObservation(wrappers.StickyAction(env, 0.2), 3))
        return wrappers.FlattenObservation(wrappers.ClipAction(env))

    check_goes_on(lambda: vectorized(make), 250, 150)


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


def test_a_replay_writes_nothing(tmp_path):
    def make(name):
        return Resumable(Monitor(gym.make("CartPole-v1", max_episode_steps=5), str(tmp_path / name)))

    first, second = make("a"), make("b")
    first.reset(seed=0)
    for _ in range(5):
        first.step(0)
    written = (tmp_path / "b.monitor.csv").read_text()
    # The episode has ended: its last step would write.
    assert second.set_episode_state(carried(first.get_episode_state())) is None
    assert (tmp_path / "b.monitor.csv").read_text() == written
    assert second.env.episode_lengths == [5]
    second.reset()
    for _ in range(5):
        second.step(0)
    assert len((tmp_path / "b.monitor.csv").read_text().splitlines()) == len(written.splitlines()) + 1


# --- vector wrappers -------------------------------------------------------------------------------------------------

VECTORS = {
    "VecNormalize": ("Hopper-v5", VecNormalize),
    "VecNormalize, rewards only": ("Hopper-v5", lambda env: VecNormalize(env, norm_obs=False)),
    "VecNormalize of dicts": (Pictures, lambda env: VecNormalize(env, norm_obs_keys=["vector"])),
    "VecFrameStack": ("CartPole-v1", lambda env: VecFrameStack(env, 3)),
    "VecFrameStack of dicts": (Pictures, lambda env: VecFrameStack(env, 3)),
    "VecMonitor": ("CartPole-v1", VecMonitor),
    "VecCheckNan": ("CartPole-v1", VecCheckNan),
    "VecTransposeImage": (Pictures, VecTransposeImage),
    "VecExtractDictObs": (Pictures, lambda env: VecExtractDictObs(env, "vector")),
    "many": (
        Pictures,
        lambda env: VecFrameStack(VecNormalize(VecMonitor(VecExtractDictObs(VecTransposeImage(env), "vector"))), 2),
    ),
}


@pytest.mark.filterwarnings("ignore:The environment is already wrapped with a `Monitor`")
@pytest.mark.parametrize("name", VECTORS)
def test_vector_wrappers_go_on(name):
    env, wrap = VECTORS[name]
    make = (lambda: made(Pictures)) if env is Pictures else (lambda: gym.make(env))
    check_goes_on(lambda: wrap(vectorized(make)), 100, 100)


def test_a_stopped_normalization_stays_stopped():
    env, other = (VecNormalize(vectorized(lambda: gym.make("Pendulum-v1"))) for _ in range(2))
    env.reset()
    gone(env, actions_of(env, 10))
    env.training = False
    set_state(other, carried(get_state(env)))
    assert not other.training
    actions = actions_of(env, 10)
    assert gone(other, actions)[0] == gone(env, actions)[0]


class Noisy(VecEnvWrapper):
    """A vector wrapper that nobody knows."""

    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        return self.venv.step_wait()


class Telling(Noisy):
    """One that speaks for all that it wraps."""

    def get_state(self):
        return {"inside": get_state(self.venv)}

    def set_state(self, state):
        assert set_state(self.venv, state["inside"]) is None


def test_a_vector_wrapper_speaks_for_what_it_wraps():
    check_goes_on(lambda: VecMonitor(Telling(vectorized(lambda: gym.make("CartPole-v1")))), 50, 50)


def test_an_unknown_vector_wrapper_is_the_reason():
    env, other = (VecNormalize(Noisy(vectorized(lambda: gym.make("Pendulum-v1")))) for _ in range(2))
    env.reset()
    gone(env, actions_of(env, 30))
    state = carried(get_state(env))
    assert state["reason"] == "Noisy has no get_state and set_state"
    assert set_state(other, state) == state["reason"]
    # What lasts is there all the same.
    assert bits(vars(other.obs_rms)) == bits(vars(env.obs_rms))
    assert bits(vars(other.ret_rms)) == bits(vars(env.ret_rms))


def test_gymnasiums_vector_environments_are_the_reason():
    env = ppo_plus.as_vec_env(gym.make_vec("CartPole-v1", 2))
    env.reset()
    assert get_state(env)["reason"] == "GymVectorEnv has no get_state and set_state"


def test_other_wrappers_or_numbers_are_refused():
    env = VecMonitor(vectorized(lambda: gym.make("Pendulum-v1"), resumable=lambda env: Resumable(env.env)))
    env.reset()
    state = get_state(env)
    with pytest.raises(ValueError, match="2 environments in DummyVecEnv .*, but .* 2 in VecMonitor of DummyVecEnv"):
        set_state(env.venv, state)
    with pytest.raises(ValueError, match="3 environments in VecMonitor of DummyVecEnv"):
        set_state(VecMonitor(vectorized(lambda: gym.make("Pendulum-v1").unwrapped, n=3)), state)


# --- environments that speak for themselves --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DummyVecEnv, FORKED], ids=["dummy", "subproc"])
def test_two_methods_are_enough(kind):
    check_goes_on(lambda: vectorized(lambda: made(Fading)), 100, 60, make_other=lambda: vectorized(
        lambda: made(Fading), kind=kind
    ))  # fmt: skip


def test_known_wrappers_around_it_go_on():
    def make():
        env = wrappers.RecordEpisodeStatistics(wrappers.NormalizeObservation(made(Fading)))
        env = wrappers.NormalizeReward(wrappers.StickyAction(wrappers.TimeAwareObservation(env), 0.3, (2, 4)))
        env = StickyActionEnv(wrappers.FrameStackObservation(wrappers.DelayObservation(env, 2), 3), 0.2)
        return MaxAndSkipEnv(env, 2)

    check_goes_on(lambda: vectorized(make), 100, 60)


def test_the_outermost_that_speaks_is_asked():
    check_goes_on(lambda: vectorized(lambda: Careful(Forgetful(Fading()))), 50, 50)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: made(Silent), "Silent has no get_state and set_state"),
        (lambda: Forgetful(made(Fading)), "Forgetful has no get_state and set_state"),
        (lambda: Forgetful(made(Silent)), "Forgetful and Silent have no get_state and set_state"),
        (lambda: Forgetful(gym.make("CartPole-v1")), "Forgetful has no get_state and set_state"),
        (lambda: wrappers.Autoreset(gym.make("CartPole-v1")), "Autoreset has no get_state and set_state"),
    ],
)
@pytest.mark.parametrize("kind", [DummyVecEnv, FORKED], ids=["dummy", "subproc"])
def test_those_that_do_not_are_the_reason(make, reason, kind):
    env = vectorized(make, kind=kind)
    env.seed(0)
    env.reset()
    gone(env, actions_of(env, 30))
    state = carried(get_state(env))
    assert state["reason"] == reason
    # Episodes begin anew, but not the same ones again, and the monitors go on counting.
    other = vectorized(make)
    other.seed(0)
    assert set_state(other, state) == reason
    assert other.get_attr("total_steps") == [30, 30]
    generators = [[each["generator"] for each in get_state(each)["envs"]] for each in (env, other)]
    assert generators[0] == generators[1] and None not in generators[0]
    first = bits(other.reset())
    other.seed(0)
    assert bits(other.reset()) != first
    env.close()


def test_a_subclass_may_keep_more_than_what_it_is_made_of():
    class Windy(type(gym.make("CartPole-v1").unwrapped)):
        pass

    class Known(Pictures):
        replayable = True

    class Unknown(Pictures):
        pass

    assert Resumable(Windy()).get_episode_state()["reason"] == "Windy has no get_state and set_state"
    assert Resumable(Known()).get_episode_state()["reason"] is None
    assert Resumable(Unknown()).get_episode_state()["reason"] == "Unknown has no get_state and set_state"


@pytest.mark.parametrize("kind", [DummyVecEnv, FORKED], ids=["dummy", "subproc"])
@pytest.mark.parametrize(
    ("returned", "reason"),
    [(object(), "get_state() returned <object object"), (KeyError("place"), "get_state() raised KeyError('place')")],
)
def test_what_cannot_be_told_ends_no_process(kind, returned, reason, monkeypatch):
    class Odd(Fading):
        def get_state(self):
            if isinstance(returned, Exception):
                raise returned
            return [returned]

    env = vectorized(Odd, kind=kind)
    env.reset()
    assert reason in get_state(env)["reason"]
    env.step(np.zeros(2, int))
    env.close()


# --- what cannot be kept, and what comes out differently -------------------------------------------------------------


def test_without_resumable():
    for resumable in (lambda env: env, lambda env: Monitor(Resumable(env))):
        env = vectorized(lambda: gym.make("CartPole-v1"), resumable=resumable)
        env.reset()
        state = get_state(env)
        assert "wrapper_class=ppo_plus.Resumable" in state["reason"]
        assert set_state(env, state) == state["reason"]
        wrapped = vectorized(lambda: gym.make("CartPole-v1"))
        wrapped.reset()
        with pytest.raises(NotResumableError, match="wrapper_class=ppo_plus.Resumable"):
            set_state(env, get_state(wrapped))


@pytest.mark.parametrize("change", ["set_attr", "set_wrapper_attr"])
def test_an_attribute_that_was_set(change):
    env = vectorized(lambda: gym.make("CartPole-v1"))
    env.reset()
    if change == "set_attr":
        env.set_attr("gravity", 1.0)
    else:
        env.env_method("set_wrapper_attr", "gravity", 1.0)
    assert "attribute 'gravity' of <Monitor<" in get_state(env)["reason"]


def test_options_that_no_file_can_hold():
    env = Resumable(Pictures())
    env.reset(options={"start": 1.0, "how": object()})
    assert "was reset with <object object" in env.get_episode_state()["reason"]
    env.reset(options={"start": 1.0})
    assert env.get_episode_state()["reason"] is None


def test_episodes_without_end(monkeypatch):
    monkeypatch.setattr(env_state, "MAX_STEPS", 10)
    env = vectorized(lambda: gym.make("Pendulum-v1"), n=1)
    env.reset()
    gone(env, actions_of(env, 10))
    assert get_state(env)["reason"] is None
    gone(env, actions_of(env, 100))
    assert "more than 10 steps" in get_state(env)["reason"]
    assert len(env.envs[0]._episode.actions) == 11
    gone(env, actions_of(env, 91))
    assert get_state(env)["reason"] is None


def test_an_environment_that_was_reset_from_within():
    inner = Monitor(gym.make("CartPole-v1"))
    inner.reset()
    env = Resumable(inner)
    env.step(0)
    assert "before its Resumable was reset" in env.get_episode_state()["reason"]


@pytest.mark.parametrize("kind", [DummyVecEnv, FORKED], ids=["dummy", "subproc"])
def test_environments_made_otherwise(kind):
    env = vectorized(lambda: gym.make("Pendulum-v1"))
    env.seed(0)
    env.reset()
    gone(env, actions_of(env, 30))
    other = vectorized(lambda: gym.make("Pendulum-v1", g=9.0), kind=kind)
    assert "the same actions led <Monitor<" in set_state(other, get_state(env))
    # They begin anew where the others would.
    assert bits(other.reset()) == bits(env.reset())
    other.close()
    other = vectorized(lambda: wrappers.ClipAction(gym.make("Pendulum-v1")), kind=kind)
    assert "Monitor of ClipAction of TimeLimit" in set_state(other, get_state(env))
    other.close()


def test_what_differs_only_in_what_is_drawn():
    """Observations are the same, but the generator is not where it was."""

    class Drawing(Pictures):
        replayable = True
        drawn = 0

        def step(self, action):
            self.np_random.random(self.drawn)
            return {"image": np.zeros((8, 8, 3), np.uint8), "vector": self.vector}, 0.0, False, False, {}

    env, other = Resumable(Drawing()), Resumable(Drawing())
    env.reset(seed=0)
    env.step(env.action_space.sample())
    assert other.set_episode_state(env.get_episode_state()) is None
    other.unwrapped.drawn = 1
    assert "led <Drawing" in other.set_episode_state(env.get_episode_state())


def test_a_frozen_lake_with_a_map_of_its_own():
    assert set(MADE) == {"gymnasium.envs.toy_text.frozen_lake.FrozenLakeEnv"}
    env, other = (Resumable(gym.make("FrozenLake-v1", desc=None, map_name=None)) for _ in range(2))
    env.reset(seed=0)
    assert "made with another map" in other.set_episode_state(env.get_episode_state())


def test_an_unknown_generator_is_not_called():
    env = vectorized(lambda: gym.make("CartPole-v1"), n=1)
    env.reset()
    state = get_state(env)
    state["envs"][0]["generator"]["state"]["bit_generator"] = "seed"
    assert "none of NumPy's" in set_state(env, state)


def test_a_generator_of_another_kind_goes_on():
    env, other = (Resumable(gym.make("CartPole-v1")) for _ in range(2))
    env.np_random = np.random.Generator(np.random.MT19937(3))
    env.reset()
    assert other.set_episode_state(carried(env.get_episode_state())) is None
    assert bits(other.reset()[0]) == bits(env.reset()[0])
    assert other.np_random_seed == env.np_random_seed == -1


# --- the wrapper is not noticed --------------------------------------------------------------------------------------


class Masked(Fading):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 3}
    render_mode = "rgb_array"
    level = 1

    def action_masks(self):
        return [True, False, True]

    def render(self):
        return np.full((2, 2, 3), self.level, np.uint8)


def test_everything_else_is_the_environments():
    env = vectorized(lambda: made(Masked))
    assert env.env_is_wrapped(Monitor) == env.env_is_wrapped(Resumable) == [True, True]
    assert is_wrapped(env.envs[0], wrappers.TimeLimit)
    assert env.env_method("action_masks") == [[True, False, True]] * 2
    assert env.get_attr("light") == [1.0, 1.0]
    env.reset()
    assert set(env.env_method("get_state")[0]) == {"light", "place"}
    assert env.metadata == Masked.metadata and env.render_mode == "rgb_array"
    assert env.envs[0].spec == env.envs[0].env.spec
    assert isinstance(env.envs[0].unwrapped, Masked)
    assert env.envs[0].render().max() == 1
    env.seed(5)
    env.reset()
    assert env.get_attr("np_random_seed") == [5, 6]


def test_attributes_are_set_where_they_were_set_before():
    env = vectorized(lambda: gym.make("CartPole-v1"), resumable=lambda env: Resumable(Forgetful(env)))
    env.set_attr("level", 3)
    assert [vars(each.env)["level"] for each in env.envs] == [3, 3]
    env.env_method("set_wrapper_attr", "gravity", 1.0)
    assert [each.unwrapped.gravity for each in env.envs] == [1.0, 1.0]


def test_copies_are_independent():
    env = Resumable(gym.make("CartPole-v1"))
    env.reset(seed=0)
    other = pickle.loads(pickle.dumps(copy.deepcopy(env)))
    other.step(1)
    assert len(env._episode.actions) == 0
    assert other._layers.base is other.unwrapped


def test_the_world_is_new_without_a_change_to_the_first_episode():
    """BipedalWalker's later ones alone differ, by rounding; see WORLDS."""
    plain, resumable = (gym.make(env_id) for env_id in ("BipedalWalker-v3",) * 2)
    resumable = Resumable(resumable)
    plain.action_space.seed(0)
    assert bits(plain.reset(seed=0)[0]) == bits(resumable.reset(seed=0)[0])
    for _ in range(60):
        action = plain.action_space.sample()
        assert bits(plain.step(action)[0]) == bits(resumable.step(action)[0])


def test_names_in_the_tables_are_those_of_classes():
    for name in [*WRAPPERS, *VEC_WRAPPERS, *env_state.LASTING, *env_state.WORLDS, *MADE]:
        module, _, attribute = name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), attribute), type), name


# --- where it comes from ---------------------------------------------------------------------------------------------


def test_ppo_plus_wraps_what_it_makes():
    model = PPO_Plus("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16, n_epochs=1)
    assert model.env.env_method("class_name") == ["Resumable"]
    assert model.env.env_is_wrapped(Monitor) == [True]
    model.learn(16)
    assert get_state(model.env)["reason"] is None


def test_ppo_plus_wraps_a_single_environment_once():
    env = Resumable(Monitor(gym.make("CartPole-v1")))
    assert PPO_Plus("MlpPolicy", env).env.envs == [env]
    (wrapped,) = PPO_Plus("MlpPolicy", gym.make("CartPole-v1")).env.envs
    assert [type(layer).__name__ for layer in (wrapped, wrapped.env)] == ["Resumable", "Monitor"]
