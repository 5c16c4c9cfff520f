"""Vectorized environments resume from the state of others, bit by bit."""

import gymnasium as gym
import pytest
from resumable_envs import FORKED, Pictures, actions_of, bits, carried, check_goes_on, gone, made, vectorized
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecEnvWrapper,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

import ppo_plus
from ppo_plus import Resumable, VecNormalizeTransitions
from ppo_plus.envs.resumable.state import NotResumableError, get_state, set_state

pytestmark = pytest.mark.usefixtures("no_process_stays")


def test_in_processes_and_back():
    def make(kind=DummyVecEnv):
        return vectorized(lambda: gym.make("LunarLander-v3"), kind=kind)

    check_goes_on(make, 301, 200, points=1, make_other=lambda: make(FORKED))
    check_goes_on(lambda: make(FORKED), 301, 200, points=1, make_other=make)


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


VECTORS = {
    "VecNormalize": ("Hopper-v5", VecNormalize),
    "VecNormalizeTransitions": ("Hopper-v5", VecNormalizeTransitions),
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


def test_a_vector_wrapper_with_state_covers_what_it_wraps():
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
