"""Layers of an environment return their own state, are known, or are the reason why it does not resume."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from resumable_envs import (
    FORKED,
    Fading,
    Forgetful,
    Pictures,
    actions_of,
    bits,
    carried,
    check_goes_on,
    gone,
    made,
    vectorized,
)
from stable_baselines3.common.atari_wrappers import MaxAndSkipEnv, StickyActionEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from ppo_plus import Resumable
from ppo_plus.envs.resumable.state import get_state, set_state

pytestmark = pytest.mark.usefixtures("no_process_stays")


class Silent(Fading):
    """The same without a word."""

    get_state = set_state = None


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
