"""Environments resume within their episodes, also in another process, and the wrapper changes nothing else."""

import copy
import pickle
from dataclasses import dataclass
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from envs import Edited
from gymnasium import spaces, wrappers
from resumable_envs import FORKED, Fading, Pictures, actions_of, bits, carried, check_goes_on, gone, made, vectorized
from stable_baselines3.common.atari_wrappers import MaxAndSkipEnv, StickyActionEnv
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

import ppo_plus
from ppo_plus import PPO_Plus, Resumable
from ppo_plus.envs.lean_vec_env import LeanVecEnv
from ppo_plus.envs.resumable import state as state_module
from ppo_plus.envs.resumable.state import NotResumableError, get_state, set_state

pytestmark = pytest.mark.usefixtures("no_process_stays")


def test_in_processes_and_back():
    def make(kind=DummyVecEnv):
        return vectorized(lambda: gym.make("LunarLander-v3"), kind=kind)

    check_goes_on(make, 201, 120, points=1, make_other=lambda: make(FORKED))
    check_goes_on(lambda: make(FORKED), 201, 120, points=1, make_other=make)


def test_at_any_step_of_an_episode():
    """Before the first reset, right behind a reset, and right behind the end of an episode."""
    env = vectorized(lambda: gym.make("CartPole-v1"))
    env.seed(4)
    env.set_options({"low": -0.01, "high": 0.01})
    states = [get_state(env)]
    first = bits(env.reset())
    actions = actions_of(env, 200)
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
def test_vector_wrappers_resume(name):
    env, wrap = VECTORS[name]
    make = (lambda: made(Pictures)) if env is Pictures else (lambda: gym.make(env))
    check_goes_on(lambda: wrap(vectorized(make)), 100, 100)


class Telling(Edited):
    """One that speaks for all that it wraps."""

    def get_state(self):
        return {"inside": get_state(self.venv)}

    def set_state(self, state):
        assert set_state(self.venv, state["inside"]) is None


def test_a_vector_wrapper_with_state_covers_what_it_wraps():
    check_goes_on(lambda: VecMonitor(Telling(vectorized(lambda: gym.make("CartPole-v1")))), 50, 50)


def test_an_unknown_vector_wrapper_is_the_reason():
    env, other = (VecNormalize(Edited(vectorized(lambda: gym.make("Pendulum-v1")))) for _ in range(2))
    env.reset()
    gone(env, actions_of(env, 30))
    state = carried(get_state(env))
    assert state["reason"] == "Edited has no get_state and set_state"
    assert set_state(other, state) == state["reason"]
    # What lasts is there all the same.
    assert bits(vars(other.obs_rms)) == bits(vars(env.obs_rms))
    assert bits(vars(other.ret_rms)) == bits(vars(env.ret_rms))


def test_gymnasiums_vector_environments_are_the_reason():
    env = ppo_plus.as_vec_env(gym.make_vec("CartPole-v1", 2))
    env.reset()
    assert get_state(env)["reason"] == "GymVectorEnv has no get_state and set_state"


def test_other_wrappers_or_numbers_raise_an_error():
    env = VecMonitor(vectorized(lambda: gym.make("Pendulum-v1"), resumable=lambda env: Resumable(env.env)))
    env.reset()
    state = get_state(env)
    with pytest.raises(ValueError, match="2 environments in DummyVecEnv .*, but .* 2 in VecMonitor of DummyVecEnv"):
        set_state(env.venv, state)
    with pytest.raises(ValueError, match="3 environments in VecMonitor of DummyVecEnv"):
        set_state(VecMonitor(vectorized(lambda: gym.make("Pendulum-v1").unwrapped, n=3)), state)


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


# --- layers of an environment return their own state, are known, or are the reason why it does not resume -------------


class Silent(Fading):
    """The same without a word."""

    get_state = set_state = None


class Forgetful(gym.Wrapper):
    """A wrapper that nobody knows."""


class Careful(Forgetful):
    """A wrapper that speaks for all that it wraps."""

    def get_state(self):
        return self.unwrapped.get_state()

    def set_state(self, state):
        self.unwrapped.set_state(state)


@pytest.mark.parametrize("kind", [DummyVecEnv, FORKED], ids=["dummy", "subproc"])
def test_two_methods_are_enough(kind):
    check_goes_on(lambda: vectorized(lambda: made(Fading)), 100, 60, make_other=lambda: vectorized(
        lambda: made(Fading), kind=kind
    ))  # fmt: skip


def test_known_wrappers_around_it_resume():
    def make():
        env = wrappers.RecordEpisodeStatistics(wrappers.NormalizeObservation(made(Fading)))
        env = wrappers.NormalizeReward(wrappers.StickyAction(wrappers.TimeAwareObservation(env), 0.3, (2, 4)))
        env = StickyActionEnv(wrappers.FrameStackObservation(wrappers.DelayObservation(env, 2), 3), 0.2)
        return MaxAndSkipEnv(env, 2)

    check_goes_on(lambda: vectorized(make), 100, 60)


def test_the_outermost_with_state_is_used():
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
def test_layers_without_state_are_the_reason(make, reason, kind):
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


def test_classes_say_whether_they_can_be_replayed():
    class Windy(type(gym.make("CartPole-v1").unwrapped)):
        pass

    class Known(Pictures):
        replayable = True

    class Unknown(Pictures):
        replayable = False

    class Old(Known):
        def reset(self, *, seed=None, options=None):
            self.np_random, self.vector = np.random.RandomState(0), np.zeros(3, np.float32)
            return self.seen(), {}

        def seen(self):
            return {"image": self.np_random.randint(0, 255, (8, 8, 3), np.uint8), "vector": self.vector}

    old = Resumable(Old())
    old.reset()
    generator = old.np_random
    old.set_episode_state(old.get_episode_state())
    assert old._base._np_random is generator
    assert Resumable(Windy()).get_episode_state()["reason"] == "Windy has no get_state and set_state"
    assert Resumable(Known()).get_episode_state()["reason"] is None
    assert Resumable(Unknown()).get_episode_state()["reason"] == "Unknown has no get_state and set_state"


@pytest.mark.parametrize("kind", [DummyVecEnv, FORKED], ids=["dummy", "subproc"])
@pytest.mark.parametrize(
    ("returned", "reason"), [(object(), "<object object"), (KeyError("place"), "raised KeyError('place')")]
)
def test_errors_of_get_state_do_not_end_a_process(kind, returned, reason, monkeypatch):
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


# --- an episode is replayed, also in another process, and the wrapper changes nothing else ----------------------------


def test_actions_are_copied_since_callers_reuse_arrays():
    env, other = (vectorized(lambda: gym.make("Pendulum-v1")) for _ in range(2))
    env.seed(0)
    env.reset()
    action = np.zeros((2, 1), np.float32)
    for t in range(20):
        action[:] = np.sin(t)
        env.step(action)
    assert set_state(other, get_state(env)) is None


def test_small_states():
    """The actions of an episode are one array, and so are the rewards in a Monitor."""
    env = vectorized(lambda: gym.make("HalfCheetah-v5"), n=1)
    env.reset()
    sizes = []
    for _ in range(2):
        gone(env, actions_of(env, 450))
        sizes.append(len(pickle.dumps(get_state(env))))
    assert sizes[1] - sizes[0] < 450 * (6 * 4 + 8) + 500


#: What callbacks change, and where what they have changed is.
CHANGES = {
    "set_attr": (lambda env: env.set_attr("gravity", 1.0), "gravity"),
    "env_method": (lambda env: env.env_method("set_wrapper_attr", "gravity", 1.0), "gravity"),
    "an attribute": (lambda env: setattr(env.envs[0].unwrapped, "gravity", 1.0), "gravity"),
    "an array": (lambda env: env.envs[0].unwrapped.place.fill(1.0), "place"),
    "a list": (lambda env: env.envs[0].unwrapped.goals.append(3), "goals"),
    "a dataclass": (lambda env: setattr(env.envs[0].unwrapped.config, "level", 3), "config"),
    "a limit": (lambda env: setattr(env.envs[0].env, "_max_episode_steps", 20), "_max_episode_steps"),
    "a reset": (lambda env: env.envs[0].unwrapped.reset(), None),
    "a step": (lambda env: env.envs[0].unwrapped.step(1), None),
}


class Configured(gym.Env):
    """Attributes of many kinds; each episode is the same whatever came before, and counts itself."""

    replayable = True
    observation_space, action_space = spaces.Box(-np.inf, np.inf, (1,)), spaces.Discrete(2)

    @dataclass
    class Config:
        level: int = 1

    def __init__(self):
        self.gravity, self.goals, self.place, self.config = 9.0, [1, 2], np.zeros(2), self.Config()
        self.n_episodes = self.n_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n_episodes += 1
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.n_steps += 1
        self.t += 1
        return np.float32([self.t % 5]), 0.0, False, False, {}


@pytest.mark.parametrize("change", CHANGES)
def test_what_callbacks_change_lasts_or_is_the_reason(change):
    act, name = CHANGES[change]
    make = partial(LeanVecEnv, [lambda: Monitor(made(Configured, 10))] * 2)
    env, other = make(), make()
    env.seed(0)
    env.reset()
    gone(env, actions_of(env, 23))
    assert set_state(make(), get_state(env)) is None
    act(env)
    gone(env, actions_of(env, 3))
    assert (f"attribute {name!r}" if name else "<Monitor<") in set_state(make(), carried(get_state(env)))
    # The next episode.
    gone(env, actions_of(env, 17))
    reason = set_state(other, carried(get_state(env)))
    if name in ("place", "goals", "config"):
        assert f"attribute {name!r}" in reason
        act(other)
        reason = set_state(other, carried(get_state(env)))
    assert reason is None
    states = [[bits(single["episode"]["attributes"]) for single in get_state(each)["envs"]] for each in (env, other)]
    assert states[0] == states[1]


def test_episodes_without_end(monkeypatch):
    monkeypatch.setattr(state_module, "MAX_STEPS", 10)
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
    assert isinstance(env.envs[0].unwrapped, Masked)
    resumable = Resumable(gym.make("CartPole-v1"))
    assert [len(resumable.spec.additional_wrappers) for _ in range(3)] == [1, 1, 1]
    assert env.envs[0].render().max() == 1
    env.seed(5)
    env.reset()
    assert env.get_attr("np_random_seed") == [5, 6]


def test_copies_are_independent():
    env = Resumable(gym.make("CartPole-v1"))
    env.reset(seed=0)
    other = pickle.loads(pickle.dumps(copy.deepcopy(env)))
    other.step(1)
    assert len(env._episode.actions) == 0
    assert other._base is other.unwrapped


def test_what_ppo_plus_makes_resumes():
    model = PPO_Plus("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16, n_epochs=1)
    assert [type(each) for each in model.env.envs] == [Monitor]
    model.learn(16)
    assert get_state(model.env)["reason"] is None


def test_a_resumable_environment_is_not_recorded_twice():
    env = Resumable(Monitor(gym.make("CartPole-v1")))
    vec_env = PPO_Plus("MlpPolicy", env).env
    assert vec_env.envs == vec_env.recorded() == [env]
