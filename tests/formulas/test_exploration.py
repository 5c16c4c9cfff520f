"""Noise processes: their marginals, their memory, and gSDE against SB3's.

Statistical tests use fixed seeds. With a fresh seed, and were the code right, each would fail once in a million times.
"""

import math

import numpy as np
import pytest
import torch as th
from scipy import stats
from stable_baselines3.common.distributions import StateDependentNoiseDistribution

from ppo_plus.formulas.exploration import ColoredNoise, NoiseProcess, StateDependentNoise, WhiteNoise

FALSE_ALARM = 1e-6
N, F, D = 20_000, 6, 3


@pytest.fixture(autouse=True)
def _seed():
    th.manual_seed(0)


def assert_standard_normal(samples):
    """Shape by Kolmogorov-Smirnov, spread by chi-square, for each column of independent samples ``(N, D)``."""
    assert samples.ndim == 2
    rate = FALSE_ALARM / (2 * samples.shape[1])
    for column in samples.double().numpy().T:
        assert stats.kstest(column, "norm").pvalue > rate
        spread = stats.chi2.cdf((column**2).sum(), len(column))
        assert 2 * min(spread, 1 - spread) > rate


def assert_uncorrelated(a, b):
    """Fisher's z-transform of the correlation of two series of independent samples."""
    z = math.atanh(np.corrcoef(a, b)[0, 1]) * math.sqrt(len(a) - 3)
    assert abs(z) < stats.norm.isf(FALSE_ALARM / 2)


def features_of(kind, n):
    """One state's features, the same for ``n`` environments."""
    x = th.randn(F, generator=th.Generator().manual_seed(3))
    return {"tanh": x.tanh(), "relu": x.relu(), "zero": th.zeros(F), "tiny": 1e-4 * x, "huge": 1e3 * x}[kind].expand(
        n, F
    )


def log_std_of(process, scale=1.0):
    shape = process.log_std_shape(F, D)
    return scale * th.randn(shape, generator=th.Generator().manual_seed(4))


# --- state-dependent noise --------------------------------------------------------------------------------------------

GSDE = [StateDependentNoise(full_std, use_expln) for full_std in (True, False) for use_expln in (False, True)]


@pytest.mark.parametrize("kind", ["tanh", "zero", "tiny", "huge"])
@pytest.mark.parametrize("process", [GSDE[0], GSDE[3], None], ids=str)
def test_gsde_noise_is_standard_normal_at_every_state(process, kind):
    # None: discrete actions, which have no log_std.
    log_std = None if process is None else log_std_of(process)
    process = process or StateDependentNoise()
    z, _ = process.sample(process.init(N, F, D), features_of(kind, N), log_std)
    assert_standard_normal(z)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert_uncorrelated(z[:, i].numpy(), z[:, j].numpy())


@pytest.mark.parametrize("with_log_std", [True, False])
def test_gsde_noise_is_a_function_of_the_state_while_held(with_log_std):
    process = StateDependentNoise()
    log_std = log_std_of(process) if with_log_std else None
    carry, a, b = process.init(4, F, D), th.randn(4, F), th.randn(4, F)
    first, after = process.sample(carry, a, log_std)
    other, after = process.sample(after, b, log_std)
    again, _ = process.sample(after, a, log_std)
    assert th.equal(first, again)
    assert (first != other).all()


@pytest.mark.parametrize("process", GSDE, ids=str)
def test_gsde_noise_times_std_is_features_times_a_matrix(process):
    # Raffin et al. 2021, eq. 7, except for the small noise that keeps the marginal exact.
    log_std, features, carry = log_std_of(process), th.randn(5, F), process.init(5, F, D)
    z, _ = process.sample(carry, features, log_std)
    sb3 = StateDependentNoiseDistribution(D, process.full_std, process.use_expln)
    sb3.latent_sde_dim = F
    matrices = sb3.get_std(log_std) * carry["theta"]
    expected = th.bmm(features.unsqueeze(1), matrices).squeeze(1) + 1e-3 * carry["eta"]
    # Float32 sums of six products of order one.
    th.testing.assert_close(z * process.std(log_std, features), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("scale", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("process", GSDE, ids=str)
def test_gsde_std_and_its_gradient_are_sb3s(process, scale):
    features = th.cat([th.randn(7, F), th.zeros(1, F), th.randn(7, F).relu()])
    log_std = log_std_of(process, scale).requires_grad_()
    sb3 = StateDependentNoiseDistribution(D, process.full_std, process.use_expln)
    sb3.proba_distribution_net(F)
    expected = sb3.proba_distribution(th.zeros(15, D), log_std, features).distribution.stddev
    std = process.std(log_std, features).expand(15, D)
    # Without full_std one column is multiplied where SB3 multiplies D equal ones: sums may round differently.
    tolerance = {"rtol": 0, "atol": 0} if process.full_std else {"rtol": 2e-7, "atol": 0}
    th.testing.assert_close(std, expected, **tolerance)
    (gradient,) = th.autograd.grad(std.log().sum(), log_std)
    (expected_gradient,) = th.autograd.grad(expected.log().sum(), log_std)
    th.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-6)  # float32 sums of 15 x 3 terms


@pytest.mark.parametrize("process", GSDE, ids=str)
def test_no_gradient_flows_into_the_features(process):
    features = th.randn(4, F, requires_grad=True)
    log_std = log_std_of(process).requires_grad_()
    z, _ = process.sample(process.init(4, F, D), features, log_std)
    (z.sum() + process.std(log_std, features).sum()).backward()
    assert features.grad is None
    assert log_std.grad.abs().sum() > 0


def test_expln_has_a_finite_gradient_where_exp_overflows():
    log_std = th.full((F, D), 100.0, requires_grad=True)
    StateDependentNoise(use_expln=True).std(log_std, th.ones(1, F)).sum().backward()
    assert log_std.grad.isfinite().all() and (log_std.grad > 0).all()


@pytest.mark.parametrize(
    ("log_std", "slope"),
    [
        (-1.0, math.exp(-1.0)),
        # The start of training is exactly at the bend, where the slope is that of the left side.
        (0.0, 1.0),
        (1.0, 1 / (2 + 1e-6)),
    ],
)
def test_expln_learns_on_both_sides_and_at_its_bend(log_std, slope):
    x = th.tensor([[log_std]], dtype=th.float64, requires_grad=True)
    StateDependentNoise(use_expln=True)._sigma(x).backward()
    assert x.grad.item() == pytest.approx(slope, rel=1e-15)


@pytest.mark.parametrize(("full_std", "shape"), [(True, (F, D)), (False, (F, 1))])
def test_gsde_log_std_has_sb3s_shape(full_std, shape):
    _, log_std = StateDependentNoiseDistribution(D, full_std).proba_distribution_net(F)
    assert StateDependentNoise(full_std).log_std_shape(F, D) == shape == log_std.shape


# --- colored noise ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("beta", "horizon"), [(0.0, 4), (0.5, 16), (2.0, 4)])
def test_colored_noise_is_standard_normal_at_every_step(beta, horizon):
    process = ColoredNoise(beta, horizon)
    carry = process.init(N, F, 2)
    for _ in range(3):
        z, carry = process.sample(carry, th.zeros(N, F), None)
        assert_standard_normal(z)
        assert_uncorrelated(z[:, 0].numpy(), z[:, 1].numpy())


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 2.0])
def test_colored_noises_power_falls_as_the_exponent_says(beta):
    series = ColoredNoise(beta, 256).init(512, F, 1)["series"].squeeze(1).double().numpy()
    power = (np.abs(np.fft.rfft(series)) ** 2).mean(axis=0)[1:-1]
    fit = stats.linregress(np.log(np.arange(1, len(power) + 1)), np.log(power))
    assert abs(fit.slope + beta) < stats.norm.isf(FALSE_ALARM / 2) * fit.stderr
    assert fit.stderr < 0.01  # so that 0.5, 1 and 2 are told apart


def test_colored_noise_repeats_without_a_seam():
    process = ColoredNoise(2.0, 64)
    carry = process.init(4000, F, 1)
    steps = []
    for _ in range(2 * 64):
        z, carry = process.sample(carry, th.zeros(4000, F), None)
        steps.append(z.squeeze(1).double().numpy())
    assert all(np.array_equal(a, b) for a, b in zip(steps[:64], steps[64:], strict=True))
    # The step across the seam is as large as any other.
    ratio = (steps[64] - steps[63]).var() / (steps[32] - steps[31]).var()
    low, high = stats.f.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], 3999, 3999)
    assert low < ratio < high


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beta": -0.1}, r"beta=-0\.1 must be a number in \[0"),
        ({"beta": math.inf}, "beta=inf must be a number"),
        ({"horizon": 2}, "horizon=2 must be at least 4"),
        ({"horizon": 7}, "horizon=7 must be even, and at most 100,000"),
        ({"horizon": 400_000_000}, "horizon=400000000 must be even, and at most 100,000"),
    ],
)
def test_colored_noise_raises_for_impossible_arguments(arguments, message):
    with pytest.raises(ValueError, match=f"ColoredNoise: {message}"):
        ColoredNoise(**arguments)


# --- every process ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("process", [StateDependentNoise(), ColoredNoise(horizon=8)], ids=str)
def test_renew_draws_again_for_the_named_environments_only(process):
    carry = process.init(5, F, D)
    _, carry = process.sample(carry, th.randn(5, F), None)
    copies = {name: part.clone() for name, part in carry.items()}
    renewed = process.renew(carry, th.tensor([3, 1]), F, D)
    assert renewed.keys() == carry.keys()
    for name, part in renewed.items():
        changed = (part != carry[name]).flatten(1).all(dim=1) if part.ndim > 1 else part != carry[name]
        assert changed.tolist() == [False, True, False, True, False], name
        assert th.equal(part[~changed], carry[name][~changed])
        assert th.equal(carry[name], copies[name])


@pytest.mark.parametrize("process", [StateDependentNoise(), ColoredNoise(horizon=8)], ids=str)
def test_sample_changes_no_argument(process):
    carry, features = process.init(5, F, D), th.randn(5, F)
    copies = {name: part.clone() for name, part in carry.items()} | {"features": features.clone()}
    process.sample(carry, features, None)
    assert all(th.equal(part, copies[name]) for name, part in {**carry, "features": features}.items())


@pytest.mark.parametrize("process", [NoiseProcess(), WhiteNoise()], ids=str)
def test_white_noise_is_drawn_by_the_distribution(process):
    carry = process.init(4, F, D)
    assert carry == {} == process.renew(carry, th.tensor([0]), F, D)
    assert process.sample(carry, th.zeros(4, F), th.zeros(D)) == (None, {})


@pytest.mark.parametrize("process", [WhiteNoise(), ColoredNoise()], ids=str)
def test_std_without_gsde_is_one_number_per_component(process):
    assert process.log_std_shape(F, D) == (D,)
    log_std = th.tensor([0.0, 1.0, -2.0])
    assert th.equal(process.std(log_std, th.randn(4, F)), log_std.exp())


@pytest.mark.parametrize("process", [StateDependentNoise(), ColoredNoise(horizon=8)], ids=str)
def test_the_same_seed_gives_the_same_noise(process):
    draws = []
    for _ in range(2):
        th.manual_seed(7)
        draws.append(process.init(3, F, D))
    assert all(th.equal(part, draws[1][name]) for name, part in draws[0].items())
    assert all(len(part) == 3 for part in draws[0].values())


def test_numbers_of_numpy_are_numbers():
    assert ColoredNoise(np.float32(0.5), np.int64(64)) == ColoredNoise(0.5, 64)
