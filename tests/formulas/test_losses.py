"""Every formula of the objective against float64 numpy, its gradient against finite differences."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ppo_plus import Coefficients, Losses, PPOLoss
from ppo_plus.formulas.losses import approx_kl, clip_fraction, gae, normalize, policy_loss, value_loss
from ppo_plus.policy.distributions import make_distribution
from ppo_plus.update.minibatch import Batch

# Float64 sums of at most 8 terms below 200 in magnitude: a few units in the last place.
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def columns(count):
    """``count`` equally long vectors."""
    return st.integers(1, 8).flatmap(lambda n: st.tuples(*[arrays(np.float64, n, elements=st.floats(-3, 3))] * count))


def f64(values, requires_grad=False):
    return th.tensor(values, dtype=th.float64, requires_grad=requires_grad)


# --- policy loss ------------------------------------------------------------------------------------------------------


@given(columns(2), st.floats(0.01, 2.0))
@settings(deadline=None, max_examples=50)
def test_policy_loss_is_the_clipped_surrogate(data, clip_range):
    log_ratio, advantages = data
    ratio = np.exp(log_ratio)
    expected = -np.mean(np.minimum(ratio * advantages, np.clip(ratio, 1 - clip_range, 1 + clip_range) * advantages))
    for epsilon in (clip_range, f64(clip_range)):
        np.testing.assert_allclose(policy_loss(f64(log_ratio), f64(advantages), epsilon), expected, **EXACT)


@pytest.mark.parametrize("clip_range", [0.2, None])
def test_policy_loss_gradient_by_finite_differences(clip_range):
    # No ratio lies on a kink of the clip.
    log_ratio = f64([-0.5, -0.1, 0.1, 0.5] * 2, requires_grad=True)
    advantages = f64([1.0, 0.5, 2.0, 1.5, -1.0, -0.5, -2.0, -1.5])
    assert th.autograd.gradcheck(lambda x: policy_loss(x, advantages, clip_range), log_ratio)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "learns"),
    [
        (0.5, 1.0, False),  # already more likely than allowed
        (0.5, -1.0, True),  # went up although it is bad: must come back
        (-0.5, -1.0, False),  # already less likely than allowed
        (-0.5, 1.0, True),  # went down although it is good: must come back
        (0.1, 1.0, True),
        (-0.1, -1.0, True),
    ],
)
def test_policy_loss_has_no_gradient_beyond_the_clip(log_ratio, advantage, learns):
    x = f64([log_ratio], requires_grad=True)
    policy_loss(x, f64([advantage]), 0.2).backward()
    assert x.grad.item() == (pytest.approx(-advantage * np.exp(log_ratio), rel=1e-12) if learns else 0.0)


@pytest.mark.parametrize("direction", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [0.0, 0.25, 0.5])
def test_policy_loss_still_learns_exactly_at_the_bound(log_ratio, direction):
    x = f64([direction * log_ratio], requires_grad=True)
    # Exact differences, so that the surrogate is the bound to the last bit; the first of them is a clip range of 0.
    clip_range = (x.detach().exp() - 1).abs().squeeze()
    policy_loss(x, f64([direction]), clip_range).backward()
    th.testing.assert_close(x.grad, -direction * x.detach().exp(), rtol=0, atol=0)
    nudged = (x.detach() + direction * 1e-9).requires_grad_()
    policy_loss(nudged, f64([direction]), clip_range).backward()
    assert nudged.grad == 0


@pytest.mark.parametrize("clip_range", [0.0, 0.2])
def test_policy_loss_learns_nothing_where_the_advantage_is_zero(clip_range):
    # The surrogate is its bound there, whatever the ratio.
    x = f64([-0.5, 0.0, 0.5], requires_grad=True)
    policy_loss(x, f64([0.0, 0.0, 0.0]), f64(clip_range)).backward()
    assert th.equal(x.grad, th.zeros_like(x))


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_clipping_hides_no_number_that_is_not_finite(poison):
    assert not policy_loss(f64([poison]), f64([-1.0]), 0.2).isfinite()
    assert policy_loss(f64([0.0]), f64([np.nan]), 0.2).isnan()
    for value_clip in ("plain", "max"):
        assert value_loss(f64([np.nan]), f64([0.0]), f64([1.0]), 0.2, value_clip).isnan()
        assert value_loss(f64([0.0]), f64([np.nan]), f64([1.0]), 0.2, value_clip).isnan()
        assert not value_loss(f64([0.0]), f64([0.0]), f64([poison]), 0.2, value_clip).isfinite()


# --- value loss -------------------------------------------------------------------------------------------------------


@given(columns(3), st.floats(0.01, 2.0))
@settings(deadline=None, max_examples=50)
def test_value_loss_is_its_formula(data, clip_range):
    values, old_values, returns = data
    clipped = old_values + np.clip(values - old_values, -clip_range, clip_range)
    error, clipped_error = (returns - values) ** 2, (returns - clipped) ** 2
    tensors = f64(values), f64(old_values), f64(returns)
    np.testing.assert_allclose(value_loss(*tensors), np.mean(error), **EXACT)
    for epsilon in (clip_range, f64(clip_range)):
        np.testing.assert_allclose(value_loss(*tensors, epsilon, "plain"), np.mean(clipped_error), **EXACT)
        np.testing.assert_allclose(value_loss(*tensors, epsilon), np.mean(np.maximum(error, clipped_error)), **EXACT)


@pytest.mark.parametrize("clip_range_vf", [None, 0.2])
@pytest.mark.parametrize("value_clip", ["max", "plain"])
def test_value_loss_gradient_by_finite_differences(clip_range_vf, value_clip):
    # No value lies on a kink: neither at the clip nor where the two errors are equal.
    values = f64([-0.5, -0.1, 0.1, 0.5, 1.3, 3.0], requires_grad=True)
    old_values, returns = th.zeros(6, dtype=th.float64), th.ones(6, dtype=th.float64)
    assert th.autograd.gradcheck(lambda x: value_loss(x, old_values, returns, clip_range_vf, value_clip), values)


# The critic said 0, the target is 1, the clip is 0.2.
@pytest.mark.parametrize(
    ("value", "plain_learns", "max_learns"),
    [
        (0.1, True, True),  # within the clip
        (0.5, False, False),  # towards the target, beyond the clip
        (-0.5, False, True),  # away from the target
        (5.0, False, True),  # past the target
    ],
)
def test_max_clip_learns_from_a_value_that_moved_away(value, plain_learns, max_learns):
    for value_clip, learns in (("plain", plain_learns), ("max", max_learns)):
        x = f64([value], requires_grad=True)
        value_loss(x, f64([0.0]), f64([1.0]), 0.2, value_clip).backward()
        assert x.grad.item() == (pytest.approx(-2 * (1 - value), rel=1e-12) if learns else 0.0), value_clip


@pytest.mark.parametrize("value_clip", ["max", "plain"])
@pytest.mark.parametrize(("value", "clip_range_vf"), [(0.25, 0.25), (-0.25, 0.25), (0.0, 0.0)])
def test_value_loss_still_learns_exactly_at_the_bound(value, clip_range_vf, value_clip):
    # The critic said 0, the target is 1.
    x = f64([value], requires_grad=True)
    value_loss(x, f64([0.0]), f64([1.0]), f64(clip_range_vf), value_clip).backward()
    assert x.grad.item() == -2 * (1 - value)


def test_max_clip_takes_half_of_the_gradient_at_a_tie():
    # Clipped to 0.25, and 1.75, are 0.75 from the target 1: one side learns, the other not.
    x = f64([1.75], requires_grad=True)
    value_loss(x, f64([0.0]), f64([1.0]), f64(0.25)).backward()
    assert x.grad.item() == 0.75


# --- KL and clip fraction ---------------------------------------------------------------------------------------------


@given(columns(1))
@settings(deadline=None, max_examples=25)
def test_approx_kl_is_k3(data):
    (log_ratio,) = data
    expected = np.mean(np.exp(log_ratio) - 1 - log_ratio)
    np.testing.assert_allclose(approx_kl(f64(log_ratio)), expected, **EXACT)


@given(arrays(np.float64, st.integers(2, 8), elements=st.floats(-4, 4)))
@settings(deadline=None, max_examples=25)
def test_approx_kl_is_unbiased(logits):
    # The old policy is uniform, so the mean over its choices is the estimator's expectation.
    old, new = f64(np.zeros_like(logits)).log_softmax(0), f64(logits).log_softmax(0)
    np.testing.assert_allclose(approx_kl(new - old), (old.exp() * (old - new)).sum(), **EXACT)


@pytest.mark.parametrize(("clip_range", "expected"), [(0.1, 0.75), (0.2, 0.5), (0.5, 0.25), (2.0, 0.0)])
def test_clip_fraction_counts_ratios_outside_on_both_sides(clip_range, expected):
    # Ratios 1, 1.16, 0.74 and 1.65.
    log_ratio = th.tensor([0.0, 0.15, -0.3, 0.5])
    assert clip_fraction(log_ratio, clip_range) == expected
    assert clip_fraction(log_ratio, th.tensor(clip_range)) == expected


# --- the objective ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entropy_bonus", [True, False])
@pytest.mark.parametrize("beta", [2.0, None])
def test_the_objective_weighs_its_terms(entropy_bonus, beta):
    th.manual_seed(0)
    family = make_distribution(spaces.Discrete(3))
    old, params = (th.randn(4, 3).log_softmax(1) for _ in range(2))
    actions, values = th.tensor([[0.0], [1.0], [2.0], [0.0]]), th.randn(4)
    old_log_prob = family.log_prob(old, actions)
    batch = Batch(th.zeros(4, 1), actions, th.randn(4), old_log_prob, th.randn(4), th.randn(4), old)
    weights = Coefficients(
        th.tensor(0.2), None, th.tensor(0.1), th.tensor(0.5), None if beta is None else th.tensor(beta)
    )
    total, parts = PPOLoss(entropy_bonus=entropy_bonus)(family, values, params, batch, weights)

    log_ratio, advantages = family.log_prob(params, actions) - old_log_prob, batch.advantages
    advantages = (advantages - advantages.mean()) / advantages.std()
    assert parts["policy_gradient_loss"] == pytest.approx(policy_loss(log_ratio, advantages, th.tensor(0.2)).item())
    assert parts["value_loss"] == pytest.approx((values - batch.returns).square().mean().item())
    # Entropy is wanted, divergence is not.
    assert parts["entropy_loss"] == pytest.approx(-family.entropy(params).mean().item())
    assert parts["kl"] == pytest.approx(family.kl(old, params).mean().item())
    expected = parts["policy_gradient_loss"] + 0.5 * parts["value_loss"]
    expected += 0.1 * parts["entropy_loss"] * entropy_bonus + (beta or 0) * parts["kl"]
    assert total.item() == pytest.approx(expected.item())


# --- containers -------------------------------------------------------------------------------------------------------


def test_losses_plus_adds_a_term_and_logs_it_detached():
    x = th.tensor(3.0, requires_grad=True)
    losses = Losses(total=2 * x, diagnostics={"policy_loss": th.tensor(1.0)})
    more = losses.plus("weight_decay", x**2)
    assert more.total == 15
    assert more.diagnostics == {"policy_loss": 1, "weight_decay": 9}
    assert not more.diagnostics["weight_decay"].requires_grad
    more.total.backward()
    assert x.grad == 8
    assert losses.total == 6 and losses.diagnostics == {"policy_loss": 1}


@pytest.mark.parametrize("name", ["approx_kl", "loss", "grad_norm"])
def test_a_term_replaces_no_diagnostic(name):
    with pytest.raises(ValueError, match=f"the loss has '{name}' already: give the term another name"):
        Losses(th.zeros(()), {"approx_kl": th.zeros(())}).plus(name, th.ones(()))


# --- advantages: GAE against its definition ---------------------------------------------------------------------------

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
    rewards = rewards.index_put((steps, envs), gamma * final_values[steps, envs], accumulate=True)
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
UP_TO_ROUNDING = {"rtol": 1e-11, "atol": 1e-11}


@given(rollouts(), st.floats(0, 1), st.floats(0, 1))
@settings(deadline=None, max_examples=60)
def test_gae_is_the_discounted_sum_of_td_errors(rollout, gamma, gae_lambda):
    expected = discounted_sums(td_errors(rollout, gamma), rollout[3], gamma * gae_lambda)
    np.testing.assert_allclose(run_gae(rollout, gamma, gae_lambda), expected, **UP_TO_ROUNDING)


def test_gae_changes_no_argument():
    tensors = [th.rand(5, 2), th.rand(5, 2), th.rand(2), th.zeros(5, 2), th.tensor([True, False])]
    copies = [tensor.clone() for tensor in tensors]
    gae(*tensors, 0.99, 0.95)
    assert all(map(th.equal, tensors, copies))


@given(arrays(np.float64, st.integers(2, 50), elements=st.floats(-100, 100)))
@settings(deadline=None, max_examples=40)
def test_normalize_is_its_formula(advantages):
    expected = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)
    # Nearly equal advantages lose the digits that they share: their spread is divided by as little as 1e-8.
    atol = 1e-13 * (1 + np.abs(advantages).max() / (advantages.std(ddof=1) + 1e-8))
    np.testing.assert_allclose(normalize(th.from_numpy(advantages)), expected, rtol=1e-9, atol=atol)


def test_normalize_leaves_a_single_advantage_alone():
    assert normalize(th.tensor([3.5])).tolist() == [3.5]
