"""States consist of plain values, and attributes get their types back."""

import pickle

import gymnasium as gym
from gymnasium import wrappers
from resumable_envs import Pictures, actions_of, carried, gone, vectorized
from stable_baselines3.common.vec_env import VecNormalize

from ppo_plus import Resumable
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
