"""The tasks of ``benchmarks/memory_tasks.py`` keep Gymnasium's rules, and remembering is worth what they say."""

import memory_tasks
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env


@pytest.mark.parametrize("name", ["RepeatPrevious", "TMaze"])
def test_they_keep_gymnasiums_rules(name):
    check_env(getattr(memory_tasks, name)(), skip_render_check=True)


@pytest.mark.parametrize("k", [1, 16, 32])
def test_saying_what_was_seen_k_steps_ago_is_always_right(k):
    env = memory_tasks.RepeatPrevious(k)
    obs, _ = env.reset(seed=1)
    seen, rewards, done = [], [], False
    while not done:
        seen.append(int(np.argmax(obs)))
        obs, reward, done, _, _ = env.step(seen[-1 - k] if len(seen) > k else 0)
        rewards.append(reward)
    assert len(seen) == env.N_CARDS and set(seen) == set(range(4))
    assert sum(rewards) == pytest.approx(1.0) and not any(rewards[:k])


@pytest.mark.parametrize("seed", range(4))
def test_the_sign_at_the_entrance_says_where_to_turn(seed):
    env = memory_tasks.TMaze(5)
    sign, _ = env.reset(seed=seed)
    side = env.ENTRANCE.index(tuple(int(number) for number in sign))
    walked = [env.step(env.AHEAD) for _ in range(5)]
    assert [tuple(obs) for obs, *_ in walked] == [env.CORRIDOR] * 4 + [env.JUNCTION]
    assert not any(reward or done for _, reward, done, _, _ in walked)
    for turn, worth in ((side, 4.0), (1 - side, -0.1)):
        env.position = 5
        assert env.step(turn)[1:3] == (worth, True)
    # Steps that lead nowhere cost something, and so does walking back.
    env.reset(seed=seed)
    assert [env.step(action)[1] for action in (env.NORTH, env.AHEAD, env.BACK)] == [-0.1, 0.0, -0.1]
