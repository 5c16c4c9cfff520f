"""Generalized advantage estimation against its definition."""

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ppo_plus.formulas.advantages import bootstrap_timeouts, gae, normalize

GOES_ON, TERMINATED, TRUNCATED = 0, 1, 2


@st.composite
def rollouts(draw):
    """Rewards, values, last values, how each step ended, values of final observations; all of random shape."""
    shape = draw(st.integers(1, 40)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ending = draw(st.sampled_from([0.0, 0.05, 0.3, 1.0]))
    ends = rng.choice([GOES_ON, TERMINATED, TRUNCATED], shape, p=[1 - ending, ending / 2, ending / 2])
    return rng.normal(size=shape), rng.normal(size=shape), rng.normal(size=shape[1]), ends, rng.normal(size=shape)


def run_gae(rollout, gamma, gae_lambda):
    """What the algorithm does: bootstrap at truncations, then GAE."""
    rewards, values, last_values, ends, final_values = map(th.from_numpy, rollout)
    steps, envs = th.nonzero(ends == TRUNCATED, as_tuple=True)
    rewards = bootstrap_timeouts(rewards, steps, envs, final_values[steps, envs], gamma)
    done = ends != GOES_ON
    # The very first flag plays no part: whatever came before the rollout is not in it.
    episode_starts = th.cat([th.ones(1, done.shape[1]), done[:-1]]).float()
    return gae(rewards, values, last_values, episode_starts, done[-1], gamma, gae_lambda).numpy()


def td_errors(rollout, gamma):
    rewards, values, last_values, ends, final_values = rollout
    next_values = np.where(ends == GOES_ON, np.vstack([values[1:], last_values]), final_values)
    return rewards + gamma * np.where(ends == TERMINATED, 0.0, next_values) - values


def discounted_sums(terms, ends, discount):
    """For each step, by definition: the sum over ``k`` of ``discount**k * terms[t + k]`` until its episode ends."""
    sums = np.zeros_like(terms)
    for t, n in np.ndindex(*terms.shape):
        for k in range(len(terms) - t):
            sums[t, n] += discount**k * terms[t + k, n]
            if ends[t + k, n] != GOES_ON:
                break
    return sums


# Float64 sums of at most 40 terms of magnitude below 20.
EXACT = {"rtol": 1e-11, "atol": 1e-11}


@given(rollouts(), st.floats(0, 1), st.floats(0, 1))
@settings(deadline=None, max_examples=60)
def test_gae_is_the_discounted_sum_of_td_errors(rollout, gamma, gae_lambda):
    expected = discounted_sums(td_errors(rollout, gamma), rollout[3], gamma * gae_lambda)
    np.testing.assert_allclose(run_gae(rollout, gamma, gae_lambda), expected, **EXACT)


@given(rollouts(), st.floats(0, 1))
@settings(deadline=None, max_examples=30)
def test_lambda_0_gives_td_errors(rollout, gamma):
    np.testing.assert_allclose(run_gae(rollout, gamma, 0.0), td_errors(rollout, gamma), rtol=1e-14, atol=1e-14)


@given(rollouts(), st.floats(0, 1))
@settings(deadline=None, max_examples=30)
def test_lambda_1_gives_monte_carlo_returns_minus_values(rollout, gamma):
    rewards, values, last_values, ends, final_values = rollout
    # Where the episode is cut off, by a time limit or by the end of the rollout, a value stands for the rest.
    rest = np.where(ends == TRUNCATED, final_values, 0.0)
    rest[-1] = np.where(ends[-1] == GOES_ON, last_values, rest[-1])
    returns = discounted_sums(rewards + gamma * rest, ends, gamma)
    np.testing.assert_allclose(run_gae(rollout, gamma, 1.0), returns - values, **EXACT)


@given(rollouts())
@settings(deadline=None, max_examples=20)
def test_nothing_after_an_episodes_end_reaches_it(rollout):
    rewards, values, last_values, ends, final_values = rollout
    middle = len(rewards) // 2
    ends[middle] = TERMINATED
    before = run_gae(rollout, 0.99, 0.95)[: middle + 1]
    rewards[middle + 1 :] += 1e6
    values[middle + 1 :] += 1e6
    np.testing.assert_array_equal(run_gae(rollout, 0.99, 0.95)[: middle + 1], before)


def test_gae_changes_no_argument():
    tensors = [th.rand(5, 2), th.rand(5, 2), th.rand(2), th.zeros(5, 2), th.tensor([True, False])]
    copies = [tensor.clone() for tensor in tensors]
    gae(*tensors, 0.99, 0.95)
    assert all(map(th.equal, tensors, copies))


def test_gae_keeps_the_dtype_of_the_values():
    for dtype in (th.float32, th.float64):
        zeros = th.zeros(3, 1, dtype=dtype)
        assert gae(zeros, zeros, zeros[0], th.zeros(3, 1), th.tensor([False]), 0.9, 0.9).dtype == dtype


def test_bootstrap_adds_the_discounted_value_only_at_truncation():
    rewards = th.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    result = bootstrap_timeouts(rewards, th.tensor([0, 2]), th.tensor([1, 0]), th.tensor([10.0, -20.0]), 0.5)
    assert result.tolist() == [[1, 7], [3, 4], [-5, 6]]
    assert rewards.tolist() == [[1, 2], [3, 4], [5, 6]]


@given(arrays(np.float64, st.integers(2, 50), elements=st.floats(-100, 100)))
@settings(deadline=None, max_examples=40)
def test_normalize_is_its_formula(advantages):
    expected = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)
    # Nearly equal advantages lose the digits that they share: their spread is divided by as little as 1e-8.
    atol = 1e-13 * (1 + np.abs(advantages).max() / (advantages.std(ddof=1) + 1e-8))
    np.testing.assert_allclose(normalize(th.from_numpy(advantages)), expected, rtol=1e-9, atol=atol)


def test_normalize_gives_mean_0_and_standard_deviation_1():
    advantages = 5 + 3 * th.randn(8, 16, dtype=th.float64, generator=th.Generator().manual_seed(0))
    normalized = normalize(advantages)
    assert normalized.mean().item() == pytest.approx(0, abs=1e-14)
    assert normalized.std().item() == pytest.approx(1, abs=1e-8)  # the 1e-8 in the formula


def test_normalize_leaves_a_single_advantage_alone():
    assert normalize(th.tensor([3.5])).tolist() == [3.5]


def test_normalize_makes_equal_advantages_zero():
    assert normalize(th.full((4,), 2.5)).tolist() == [0, 0, 0, 0]
