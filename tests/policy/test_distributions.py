"""Action distributions against ``torch.distributions``, SB3's, numerical integration and their own definitions.

Statistical tests use fixed seeds. With a fresh seed, and were the code right, each would fail once in a million times.
"""

import itertools

import numpy as np
import pytest
import torch as th
from envs import ACTIONS as ENV_ACTIONS
from envs import choices, subspaces
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sb3_contrib.common.maskable.distributions import make_masked_proba_distribution
from scipy import integrate, stats
from stable_baselines3.common.distributions import make_proba_distribution
from torch import distributions as td

from ppo_plus.policy.distributions import (
    Bernoulli,
    BoundDistribution,
    Categorical,
    DiagGaussian,
    Product,
    SquashedDiagGaussian,
    make_distribution,
)

FALSE_ALARM = 1e-6

BOX, BOX_0D = spaces.Box(-1.0, 1.0, (3,)), spaces.Box(-1.0, 1.0, ())
BOX_2D = spaces.Box(-2.0, 3.0, (2, 2), np.float64)
CHOICES = {
    "discrete": spaces.Discrete(4, start=-2),
    "multi_discrete": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, -1], [0, 7]]),
    "multi_binary": spaces.MultiBinary([2, 2]),
}
FAMILIES = {name: make_distribution(space) for name, space in {"box": BOX, **CHOICES}.items()} | {
    "squashed_box": make_distribution(BOX, squash_output=True)
}
SQUASHED_0D = make_distribution(BOX_0D, squash_output=True)
MIXED = spaces.Dict(
    kind=spaces.Discrete(3, start=1),
    where=spaces.Tuple(
        [spaces.Box(-1.0, 2.0, (2,)), spaces.Dict(bits=spaces.MultiBinary(2), far=spaces.Box(-1, 1, ()))]
    ),
    many=spaces.MultiDiscrete([2, 4]),
)
PRODUCTS = {
    "mixed": make_distribution(MIXED),
    "squashed_mixed": make_distribution(MIXED, squash_output=True),
    "boxes": make_distribution(spaces.Tuple([BOX, BOX_2D])),
    "choices": make_distribution(spaces.Tuple([CHOICES["discrete"], CHOICES["multi_binary"]])),
}
every_product = pytest.mark.parametrize("family", PRODUCTS.values(), ids=PRODUCTS)
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
choice_families = pytest.mark.parametrize("family", [FAMILIES[name] for name in CHOICES], ids=CHOICES)


@pytest.fixture(autouse=True)
def _seed():
    th.manual_seed(0)


def random_net(family, seed, scale=1.5, batch=5, dtype=th.float64):
    """Output of an actor, and a standard deviation where the family needs one."""
    generator = th.Generator().manual_seed(seed)
    net = scale * th.randn(batch, family.net_dim, generator=generator, dtype=dtype)
    std = (0.5 * th.randn(batch, family.gaussian_dim, generator=generator, dtype=dtype)).exp()
    return net, std if family.gaussian_dim else None


def random_params(family, seed, **kwargs):
    return family.params(*random_net(family, seed, **kwargs))


def random_actions(family, seed, batch=5):
    """Internal actions, drawn without the code under test."""
    rng = np.random.default_rng(seed)
    if isinstance(family, Product):
        return th.cat([random_actions(part, seed + i, batch) for i, part in enumerate(family.parts)], dim=1)
    if isinstance(family, DiagGaussian):
        return th.from_numpy(rng.normal(size=(batch, family.action_dim)))
    sizes = choices(family.action_space)
    return th.from_numpy(rng.integers(0, sizes, (batch, len(sizes)))).double()


def all_actions(family):
    """Every internal action of a discrete space."""
    return th.tensor(list(itertools.product(*map(range, choices(family.action_space)))), dtype=th.float64)


def reference(family, net, std):
    """Torch's distributions of the components, and a function from internal actions to what they score."""
    if isinstance(family, SquashedDiagGaussian):
        return [td.Independent(td.TransformedDistribution(td.Normal(net, std), td.TanhTransform()), 1)], th.tanh
    if isinstance(family, DiagGaussian):
        return [td.Independent(td.Normal(net, std), 1)], lambda actions: actions
    if isinstance(family, Bernoulli):
        return [td.Independent(td.Bernoulli(logits=net), 1)], lambda actions: actions
    return [td.Categorical(logits=part) for part in net.split(choices(family.action_space), dim=1)], None


# --- log-probability, entropy, KL -------------------------------------------------------------------------------------

random_cases = given(st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1.0, 4.0]))


@every_family
@random_cases
@settings(deadline=None, max_examples=8)
def test_log_prob_entropy_and_kl_are_torchs(family, seed, scale):
    net, std = random_net(family, seed, scale)
    params, actions = family.params(net, std), random_actions(family, seed)
    parts, transform = reference(family, net, std)
    scored = actions.unbind(dim=1) if transform is None else [transform(actions)]
    expected = sum(part.log_prob(value) for part, value in zip(parts, scored, strict=True))
    # Torch's reference inverts the tanh, which costs it digits where the slope is small.
    rtol = 1e-9 if isinstance(family, SquashedDiagGaussian) else 1e-12
    th.testing.assert_close(family.log_prob(params, actions), expected, rtol=rtol, atol=1e-12)
    if not isinstance(family, SquashedDiagGaussian):
        expected = sum(part.entropy() for part in parts)
        th.testing.assert_close(family.entropy(params), expected, rtol=1e-12, atol=1e-12)
    new = random_net(family, seed + 1, scale)
    expected = sum(td.kl_divergence(p, q) for p, q in zip(parts, reference(family, *new)[0], strict=True))
    th.testing.assert_close(family.kl(params, family.params(*new)), expected, rtol=1e-11, atol=1e-12)


@every_family
def test_kl_of_a_distribution_from_itself_is_exactly_zero(family):
    params = random_params(family, seed=1, scale=4.0, dtype=th.float32)
    assert th.equal(family.kl(params, params.clone()), th.zeros(5))


# At scale 0 all means are 0 and all choices equally likely, where some of torch's formulas change sides.
@pytest.mark.parametrize("scale", [1.5, 0.0])
@pytest.mark.parametrize("name", ["box", "squashed_box", "discrete", "multi_binary", "mixed"])
@pytest.mark.parametrize("is_masked", [False, True])
def test_gradients_by_finite_differences(scale, name, is_masked):
    family = (FAMILIES | PRODUCTS)[name]
    net, std = random_net(family, seed=2, scale=scale, batch=2)
    masks = random_masks(family, seed=2, batch=2) if is_masked and family.choices else None
    other = family.params(*random_net(family, seed=3, batch=2), masks)
    actions = random_actions(family, seed=2, batch=2) if masks is None else family.mode(other)
    inputs = [x.requires_grad_() for x in (net, std) if x is not None]

    def params(net, std=None):
        return family.params(net, std, masks)

    assert th.autograd.gradcheck(lambda *x: family.log_prob(params(*x), actions), inputs)
    assert th.autograd.gradcheck(lambda *x: family.entropy(params(*x)), inputs)
    assert th.autograd.gradcheck(lambda *x: family.kl(params(*x), other), inputs)
    assert th.autograd.gradcheck(lambda *x: family.kl(other, params(*x)), inputs)


@choice_families
@pytest.mark.parametrize("scale", [30.0, 1000.0])
def test_nearly_deterministic_choices_have_finite_gradients(family, scale):
    net = random_net(family, seed=4, scale=scale, dtype=th.float32)[0].requires_grad_()
    params = family.params(net, None)
    actions = random_actions(family, seed=4).float()
    numbers = family.log_prob(params, actions) + family.entropy(params) + family.kl(params.detach().flip(0), params)
    numbers.sum().backward()
    assert numbers.isfinite().all() and net.grad.isfinite().all()


# --- entropy of the squashed Gaussian ---------------------------------------------------------------------------------


def expectation(function, mean, std):
    """Of a function of ``u``, normal, whose bends are about 0, by adaptive integration."""
    bends = [float(np.clip((bend - mean) / std, -11, 11)) for bend in (-20, -3, 0, 3, 20)]
    edges = [-12, *bends, 12]
    pieces = [
        integrate.quad(lambda z: stats.norm.pdf(z) * function(mean + std * z), a, b, limit=200, epsabs=1e-13)[0]
        for a, b in itertools.pairwise(edges)
    ]
    return sum(pieces)


def squashed_entropy(mean, std):
    """That of the Gaussian, and the expectation of ``log(1 - tanh(u)^2)``; with the derivatives by mean and standard
    deviation (for the latter by Stein's lemma)."""
    log_slope = expectation(lambda u: 2 * (np.log(2) - np.logaddexp(u, -u)), mean, std)
    by_mean = expectation(lambda u: -2 * np.tanh(u), mean, std)
    by_std = 1 / std - 2 * std * expectation(lambda u: np.cosh(min(abs(u), 300)) ** -2, mean, std)
    return stats.norm.entropy(mean, std) + log_slope, [by_mean, by_std]


@settings(deadline=None, max_examples=15)
@given(st.floats(-20, 20), st.floats(-3, 2), st.sampled_from([th.float32, th.float64]))
def test_squashed_entropy_and_its_gradient_are_the_integrals(mean, log10_std, dtype):
    params = th.tensor([[mean, 10**log10_std]], dtype=dtype, requires_grad=True)
    entropy = SQUASHED_0D.entropy(params)
    (gradient,) = th.autograd.grad(entropy.sum(), params)
    expected, slopes = squashed_entropy(*params[0].tolist())
    value, slope = (1e-7, 1e-6) if dtype is th.float64 else (1e-4, 1e-3)
    assert entropy.item() == pytest.approx(expected, abs=value)
    assert gradient[0].tolist() == pytest.approx(slopes, rel=slope, abs=slope)


@pytest.mark.parametrize("u", [-100.0, -20.0, 20.0, 100.0])
def test_squashed_density_is_finite_far_out(u):
    params = th.tensor([[u, 1.0]], requires_grad=True)
    family = SQUASHED_0D
    total = family.log_prob(params, th.tensor([[u]])) + family.entropy(params)
    total.sum().backward()
    assert total.isfinite().all() and params.grad.isfinite().all()


# --- draws ------------------------------------------------------------------------------------------------------------


#: Those that SB3 has.
FLAT = {
    "box": BOX,
    "discrete": spaces.Discrete(5),
    "multi_discrete": spaces.MultiDiscrete([3, 2, 5]),
    "multi_binary": spaces.MultiBinary(3),
}


@pytest.mark.parametrize("name", FLAT)
def test_draws_and_log_probs_equal_sb3s_bit_for_bit(name):
    family = make_distribution(FLAT[name])
    net = random_net(family, seed=7, batch=64, dtype=th.float32)[0]
    log_std = [th.linspace(-1, 0.5, 3)] if name == "box" else []
    sb3 = make_proba_distribution(family.action_space)
    sb3.proba_distribution(net, *log_std)
    with th.no_grad():  # as in a rollout
        params = family.params(net, *[x.exp() for x in log_std] or [None])
    th.manual_seed(9)
    expected = sb3.sample()
    th.manual_seed(9)
    actions = family.sample(params)
    assert th.equal(actions, expected.reshape(64, -1))
    assert th.equal(family.log_prob(params, actions), sb3.log_prob(expected))
    th.testing.assert_close(family.entropy(params), sb3.entropy(), rtol=1e-6, atol=0)


@choice_families
def test_choices_made_from_noise_have_their_probabilities(family):
    n = 100_000
    params = random_params(family, seed=8, scale=0.5, batch=1, dtype=th.float32)
    actions = family.from_noise(params.expand(n, -1), th.randn(n, family.noise_dim))
    every = all_actions(family)
    # All components at once: that they are independent is tested as well.
    counts = [(actions == row).all(dim=1).sum().item() for row in every.float()]
    expected = n * family.log_prob(params.double().expand(len(every), -1), every).exp().numpy()
    assert expected.min() > 5
    assert stats.chisquare(counts, expected / expected.sum() * n).pvalue > FALSE_ALARM


@pytest.mark.parametrize("squash", [False, True])
def test_reals_made_from_noise_are_mean_plus_std_times_noise(squash):
    family = make_distribution(BOX_2D, squash)
    net, std = random_net(family, seed=9)
    z = th.randn(5, 4, dtype=th.float64)
    assert th.equal(family.from_noise(family.params(net, std), z), net + std * z)


@every_family
@pytest.mark.parametrize("z", [-40.0, -10.0, 0.0, 10.0])
def test_equal_extreme_noise_decides_nothing_between_choices(family, z):
    params = random_params(family, seed=10, dtype=th.float32)
    actions = family.from_noise(params, th.full((5, family.noise_dim), z))
    assert actions.isfinite().all() and family.log_prob(params, actions).isfinite().all()
    if isinstance(family, Categorical):
        # In float32 Phi(10) rounds to 1, and a Gumbel made of it would be infinite for every choice.
        assert th.equal(actions, family.mode(params))


@pytest.mark.parametrize(("z", "logit", "action"), [(10, -53, 1), (10, -54, 0), (-10, 53, 0), (-10, 54, 1)])
def test_a_coin_made_of_extreme_noise_still_weighs_its_logit(z, logit, action):
    # log Phi(10) - log Phi(-10) = 53.23.
    family = make_distribution(spaces.MultiBinary(1))
    assert family.from_noise(th.tensor([[float(logit)]]), th.tensor([[float(z)]])) == action


# --- mode and std -----------------------------------------------------------------------------------------------------


@choice_families
@random_cases
@settings(deadline=None, max_examples=5)
def test_mode_is_the_most_likely_choice(family, seed, scale):
    actions = all_actions(family)
    params = random_params(family, seed, scale=scale, batch=1)
    best = family.log_prob(params.expand(len(actions), -1), actions).max()
    mode = family.mode(params)
    assert mode.shape == (1, family.action_dim)
    assert family.log_prob(params, mode).item() == pytest.approx(best.item(), abs=1e-12)


# --- what the environment gets ----------------------------------------------------------------------------------------

shapes = st.sampled_from([(), (1,), (3,), (2, 2)])
any_float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def boxes(draw):
    dtype, low, high = draw(
        st.sampled_from(
            [("f4", -1e6, 1e6), ("f8", -1e6, 1e6), ("i1", -128, 127), ("u1", 0, 255), ("i4", -(2**31), 2**31 - 1)]
        )
    )
    element = st.floats(low, high, width=32) if dtype[0] == "f" else st.integers(low, high)
    shape = draw(shapes)
    a, b = (draw(arrays(dtype, shape, elements=element)) for _ in range(2))
    return spaces.Box(np.minimum(a, b), np.maximum(a, b), shape, np.dtype(dtype).type)


@given(st.data(), boxes(), st.booleans())
@settings(deadline=None, max_examples=100)
def test_every_real_becomes_a_member_of_its_box(data, space, squash):
    family = make_distribution(space, squash)
    actions = data.draw(arrays(np.float32, (4, family.action_dim), elements=any_float32))
    env_actions = family.to_env(actions.copy())
    assert env_actions.shape == (4, *space.shape) and env_actions.dtype == space.dtype
    assert all(space.contains(np.asarray(row)) for row in env_actions)


@st.composite
def choice_spaces(draw):
    kind, shape = draw(st.sampled_from(["discrete", "multi_discrete", "multi_binary"])), draw(shapes.filter(len))
    numbers = st.integers(-100, 100)
    if kind == "discrete":
        return spaces.Discrete(draw(st.integers(1, 9)), start=draw(numbers))
    if kind == "multi_binary":
        return spaces.MultiBinary(shape)
    sizes = draw(arrays(np.int64, shape, elements=st.integers(1, 5)))
    return spaces.MultiDiscrete(sizes, start=draw(arrays(np.int64, shape, elements=numbers)))


def test_start_is_added_to_choices():
    assert FAMILIES["discrete"].to_env(np.array([[0.0], [3.0]])).tolist() == [-2, 1]
    expected = [[[1, -1], [0, 7]], [[2, 1], [3, 8]]]
    assert FAMILIES["multi_discrete"].to_env(np.array([[0, 0, 0, 0], [1, 2, 3, 1]])).tolist() == expected


def test_integers_are_rounded_then_clipped_floats_only_clipped():
    integers = make_distribution(spaces.Box(-100, 100, (2,), np.int8))
    assert integers.to_env(np.float32([[-1.7, 0.6], [150, -150]])).tolist() == [[-2, 1], [100, -100]]
    assert FAMILIES["box"].to_env(np.float32([[-1.75, 0.625, 0.0]])).tolist() == [[-1, 0.625, 0]]


@every_family
def test_to_env_changes_no_argument(family):
    # The buffer and the callbacks keep the internal actions.
    actions = random_actions(family, seed=16).float().numpy()
    before = actions.copy()
    family.to_env(actions)[...] = 0
    np.testing.assert_array_equal(actions, before)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (np.float32, -2.0, 6.0),
        (np.float64, 0.25, 0.5),
        (np.uint8, 0, 255),
        # The difference of these bounds overflows the space's own dtype.
        (np.int8, -128, 127),
        (np.int32, -(2**31), 2**31 - 1),
        (np.float32, -np.finfo(np.float32).max, np.finfo(np.float32).max),
    ],
)
def test_squashed_actions_span_the_whole_box(dtype, low, high):
    space = spaces.Box(low, high, (1,), dtype)
    family = make_distribution(space, squash_output=True)
    lowest, middle, highest = family.to_env(np.array([[-30.0], [0.0], [30.0]], dtype=np.float32)).flatten()
    assert (lowest, highest) == (space.low[0], space.high[0])
    assert abs(float(middle) - (float(low) / 2 + float(high) / 2)) <= 0.5 * np.issubdtype(dtype, np.integer)


# --- products ---------------------------------------------------------------------------------------------------------


def parts_of(family):
    """The simple distributions in a product, in order, each with its columns of parameters, actions and noise."""
    columns = {"param_dim": 0, "action_dim": 0, "noise_dim": 0}
    found = []

    def visit(part):
        if isinstance(part, Product):
            for inner in part.parts:
                visit(inner)
            return
        here = []
        for name, start in columns.items():
            columns[name] = start + getattr(part, name)
            here.append(slice(start, columns[name]))
        found.append((part, *here))

    visit(family)
    assert columns == {name: getattr(family, name) for name in columns}
    return found


@every_product
@random_cases
@settings(deadline=None, max_examples=5)
def test_a_product_adds_up_its_parts(family, seed, scale):
    params, other = random_params(family, seed, scale=scale), random_params(family, seed + 1, scale=scale)
    actions = random_actions(family, seed)
    parts = parts_of(family)
    log_prob = sum(part.log_prob(params[:, p], actions[:, a]) for part, p, a, _ in parts)
    th.testing.assert_close(family.log_prob(params, actions), log_prob, rtol=1e-12, atol=1e-12)
    entropy = sum(part.entropy(params[:, p]) for part, p, _, _ in parts)
    th.testing.assert_close(family.entropy(params), entropy, rtol=1e-12, atol=1e-12)
    kl = sum(part.kl(params[:, p], other[:, p]) for part, p, _, _ in parts)
    th.testing.assert_close(family.kl(params, other), kl, rtol=1e-12, atol=1e-12)


@every_product
def test_a_product_draws_its_parts_in_order(family):
    params = random_params(family, seed=1, batch=20, dtype=th.float32)
    z = th.randn(20, family.noise_dim)
    th.manual_seed(3)
    drawn = family.sample(params)
    th.manual_seed(3)
    assert drawn.dtype == th.float32
    for part, p, a, n in parts_of(family):
        assert th.equal(drawn[:, a], part.sample(params[:, p]).float())
        assert th.equal(family.from_noise(params, z)[:, a], part.from_noise(params[:, p], z[:, n]).float())
        assert th.equal(family.mode(params)[:, a], part.mode(params[:, p]).float())


@pytest.mark.parametrize("shape", [(4,), (1, 4), (5, 1), (5, 4)])
def test_a_product_hands_each_box_its_standard_deviation(shape):
    family = make_distribution(spaces.Tuple([BOX_0D, CHOICES["discrete"], BOX]))
    std = th.rand(shape, dtype=th.float64) + 0.1
    params = family.params(th.zeros(5, family.net_dim, dtype=th.float64), std)
    assert th.equal(family.std(params), std.expand(5, 4))
    (box, first, *_), _, (_, second, *_) = parts_of(family)
    assert th.equal(box.std(params[:, first]), std.expand(5, 4)[:, :1])
    assert th.equal(params[:, second][:, 3:], std.expand(5, 4)[:, 1:])
    assert PRODUCTS["choices"].std(random_params(PRODUCTS["choices"], seed=1)) is None


def test_the_noise_of_choices_has_a_log_std_of_zero():
    family = make_distribution(spaces.Tuple([BOX_0D, CHOICES["discrete"], BOX]))
    log_std = th.arange(8.0).reshape(2, 4) + 1
    expected = th.tensor([[1.0, 0, 0, 0, 0, 2, 3, 4], [5, 0, 0, 0, 0, 6, 7, 8]])
    assert th.equal(family.noise_log_std(log_std), expected)
    assert th.equal(family.noise_log_std(log_std[:, :1]), th.where(expected > 0, log_std[:, :1], 0.0))
    assert FAMILIES["box"].noise_log_std(log_std) is log_std


@st.composite
def mixed_spaces(draw, depth=2):
    inner = st.one_of(boxes(), choice_spaces())
    if depth:
        inner = st.one_of(inner, mixed_spaces(depth - 1))
    parts = draw(st.lists(inner, min_size=1, max_size=3))
    # A name before "a": the order is that of the spaces and not of their names.
    return spaces.Tuple(parts) if draw(st.booleans()) else spaces.Dict([(f"{9 - i}", p) for i, p in enumerate(parts)])


def flat(space, action):
    """The numbers in an action, in order."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return np.concatenate([flat(sub, action[key]) for key, sub in subspaces(space).items()])
    return np.ravel(action).astype(np.float64)


@given(mixed_spaces(), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60)
def test_every_action_of_a_product_becomes_a_member_of_its_space(space, seed):
    family = make_distribution(space)
    actions = family.sample(random_params(family, seed, scale=5.0)).float().numpy()
    env_actions = family.to_env(actions)
    assert len(env_actions) == 5
    expected = np.concatenate([part.to_env(actions[:, a]).reshape(5, -1) for part, _, a, _ in parts_of(family)], axis=1)
    for action, row in zip(env_actions, expected, strict=True):
        assert space.contains(action)
        np.testing.assert_array_equal(flat(space, action), row)


def test_squashing_a_product_squashes_its_boxes():
    kinds = [type(part) for part, *_ in parts_of(PRODUCTS["squashed_mixed"])]
    assert kinds == [Categorical, SquashedDiagGaussian, Bernoulli, SquashedDiagGaussian, Categorical]
    for space in (spaces.Tuple([spaces.Discrete(2)]), CHOICES["multi_binary"]):
        with pytest.raises(ValueError, match=r"squash_output=True needs a Box action space, not .*: leave it out"):
            make_distribution(space, squash_output=True)


# --- masks ------------------------------------------------------------------------------------------------------------

MASKABLE = {name: FAMILIES[name] for name in CHOICES} | {
    name: PRODUCTS[name] for name in ("mixed", "squashed_mixed", "choices")
}
maskable_families = pytest.mark.parametrize("family", MASKABLE.values(), ids=MASKABLE)


def random_masks(family, seed, batch=5):
    """Masks that leave at least one alternative of each choice."""
    rng = np.random.default_rng(seed)
    masks = []
    for n in family.choices:
        mask = rng.random((batch, n)) < 0.4
        mask[np.arange(batch), rng.integers(n, size=batch)] = True
        masks.append(mask)
    return th.from_numpy(np.concatenate(masks, axis=1))


def allowed(family, masks, actions):
    """Whether each row of actions takes allowed alternatives only, by the layout as it is documented."""
    taken = []
    for part, _, a, _ in parts_of(family):
        if not isinstance(part, DiagGaussian):
            taken += actions[:, a].long().unbind(dim=1)
    starts = np.cumsum([0, *family.choices[:-1]])
    each = [masks.gather(1, (s + c).unsqueeze(1)) for s, c in zip(starts.tolist(), taken, strict=True)]
    return th.cat(each, dim=1).all(dim=1)


@pytest.mark.parametrize("name", CHOICES)
@random_cases
@settings(deadline=None, max_examples=8)
def test_masking_is_conditioning_on_what_is_allowed(name, seed, scale):
    """By enumeration of all actions: probability 0 if forbidden, renormalized if not; entropy and KL follow."""
    family = FAMILIES[name]
    every = all_actions(family)
    net, other = (random_net(family, seed + i, scale, batch=1)[0] for i in range(2))
    masks = random_masks(family, seed, batch=1)
    is_allowed = allowed(family, masks.expand(len(every), -1), every)

    def probabilities(net, masks):
        return family.log_prob(family.params(net, None, masks).expand(len(every), -1), every).exp()

    p, q = (probabilities(each, None) * is_allowed for each in (net, other))
    p, q = p / p.sum(), q / q.sum()
    masked = probabilities(net, masks)
    assert (masked[~is_allowed] == 0).all()
    th.testing.assert_close(masked, p, rtol=1e-10, atol=1e-14)
    params, params_other = family.params(net, None, masks), family.params(other, None, masks)
    th.testing.assert_close(family.entropy(params), -th.special.xlogy(p, p).sum().reshape(1), rtol=1e-9, atol=1e-9)
    kl = (p * (p / q).log())[is_allowed].sum().reshape(1)
    th.testing.assert_close(family.kl(params, params_other), kl, rtol=1e-8, atol=1e-9)


@maskable_families
@pytest.mark.parametrize("seed", range(3))
def test_what_is_masked_is_never_taken(family, seed):
    masks = random_masks(family, seed, batch=500)
    net, std = random_net(family, seed, scale=30.0, batch=500, dtype=th.float32)
    params = family.params(net, std, masks)
    z = th.randn(500, family.noise_dim)
    # So far out that float32 has no probability for it, of every sign at once.
    extreme = th.where(th.rand(500, family.noise_dim) < 0.5, 40.0, -40.0)
    for actions in (
        family.mode(params),
        family.sample(params),
        family.from_noise(params, z),
        family.from_noise(params, 6 * z),
        family.from_noise(params, extreme),
    ):
        assert allowed(family, masks, actions).all()
        assert family.log_prob(params, actions.float()).isfinite().all()


@maskable_families
def test_a_mask_that_allows_everything_changes_nothing(family):
    net, std = random_net(family, seed=1, dtype=th.float32)
    masks = th.ones(5, sum(family.choices), dtype=th.bool)
    assert th.equal(family.params(net, std, masks), family.params(net, std))


@maskable_families
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_masked_alternatives_have_no_gradient_and_others_finite(family, scale):
    masks = random_masks(family, seed=4, batch=50)
    net, std = random_net(family, seed=4, scale=scale, batch=50, dtype=th.float32)
    net.requires_grad_()
    old = family.params(*random_net(family, seed=5, batch=50, dtype=th.float32), masks)
    params = family.params(net, std, masks)
    actions = family.sample(old)
    log_ratio = family.log_prob(params, actions) - family.log_prob(old, actions)
    total = log_ratio.clamp(-5, 5).exp() + family.entropy(params) + family.kl(old, params)
    total.sum().backward()
    assert total.isfinite().all() and net.grad.isfinite().all()
    if isinstance(family, Categorical):
        assert (net.grad[~masks] == 0).all()


@pytest.mark.parametrize("name", ["discrete", "multi_discrete", "multi_binary"])
def test_masked_numbers_are_sb3_contribs(name):
    family = make_distribution(FLAT[name])
    masks = random_masks(family, seed=6, batch=64)
    net = random_net(family, seed=6, batch=64, dtype=th.float32)[0]
    theirs = make_masked_proba_distribution(family.action_space)
    # They have two logits for each bit, of which only the difference counts.
    theirs.proba_distribution(th.stack([-net, net], dim=2).flatten(1) / 2 if name == "multi_binary" else net)
    theirs.apply_masking(masks)
    params = family.params(net, None, masks)
    mode = family.mode(params)
    assert th.equal(mode, theirs.mode().reshape(64, -1).to(mode.dtype))
    th.testing.assert_close(family.entropy(params), theirs.entropy(), rtol=1e-5, atol=1e-6)
    th.manual_seed(9)
    actions = theirs.sample()
    expected = theirs.log_prob(actions)
    th.testing.assert_close(family.log_prob(params, actions.reshape(64, -1)), expected, rtol=1e-5, atol=1e-6)
    if name != "multi_binary":
        th.manual_seed(9)
        assert th.equal(family.sample(params), actions.reshape(64, -1))


# --- the factory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(3), r"action_space=Text.* is not supported: use Box, .*flatten_space"),
        (spaces.Dict(a=spaces.Tuple([spaces.Text(3)])), r"action_space\['a'\]\[0\]=Text.* is not supported: use Box"),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Dict()), r"action_space\['b'\]=Dict\(\) is empty"),
        (
            spaces.Box(-np.inf, np.inf, (2,)),
            r"action_space=Box\(-inf, inf.* an infinite low and high: give the environment's Box finite ones",
        ),
        (spaces.Box(0.0, np.inf, (2,)), r"action_space=Box\(0.0, inf.* an infinite high: "),
        (spaces.Box(np.float32([0, -np.inf]), np.float32([1, 1])), r"action_space=Box.* an infinite low: "),
        (spaces.Box(-(2**60), 2**60, (1,), np.int64), r"integers beyond ±2\*\*53"),
        (spaces.Box(-1.0, 1.0, (2, 0)), r"action_space=Box.* is empty"),
        (spaces.MultiDiscrete([]), r"action_space=MultiDiscrete.* is empty"),
    ],
)
def test_unsupported_spaces_are_named_with_the_remedy(space, message):
    with pytest.raises(ValueError, match=message):
        make_distribution(space)


# --- family and parameters together -----------------------------------------------------------------------------------


@every_family
def test_bound_distribution_hands_on_to_its_family(family):
    params = random_params(family, seed=13)
    bound = BoundDistribution(family, params)
    assert bound.params is params and bound.action_dist is family
    mode = family.mode(params)
    # As SB3's: one number for each Discrete action, whose number of actions is `action_dim`.
    is_discrete = isinstance(family.action_space, spaces.Discrete)
    mode = mode.flatten() if is_discrete else mode
    assert bound.action_dim == (family.action_space.n if is_discrete else family.action_dim)
    assert th.equal(bound.mode(), mode) and th.equal(bound.get_actions(deterministic=True), mode)
    th.manual_seed(1)
    expected = family.sample(params)
    for draw in (bound.sample, bound.get_actions):
        th.manual_seed(1)
        assert draw().shape == mode.shape
        th.manual_seed(1)
        assert th.equal(draw().reshape(expected.shape), expected)
    for actions in (expected, expected.flatten()):
        assert th.equal(bound.log_prob(actions), family.log_prob(params, expected))
    assert th.equal(bound.entropy(), family.entropy(params))


@pytest.mark.parametrize("name", ["squashed_box", "discrete", "multi_discrete", "multi_binary"])
def test_bound_distribution_shows_torchs_object(name):
    family = FAMILIES[name]
    net, std = random_net(family, seed=15)
    shown = BoundDistribution(family, family.params(net, std)).distribution
    if isinstance(family, DiagGaussian):
        assert isinstance(shown, td.Normal) and th.equal(shown.mean, net) and th.equal(shown.stddev, std)
    elif isinstance(family, Bernoulli):
        assert isinstance(shown, td.Bernoulli) and th.equal(shown.logits, net)
    else:
        assert isinstance(shown, td.Categorical if name == "discrete" else list)
        heads = shown if isinstance(shown, list) else [shown]
        th.testing.assert_close(th.cat([head.probs for head in heads], 1), family.params(net, None).exp())


@pytest.mark.parametrize(
    ("kind", "squash"), [("discrete", False), ("tuple", False), ("mixed", False), ("mixed", True), ("box_int", True)]
)
def test_actions_in_tensors_are_those_in_numpy(kind, squash):
    space = ENV_ACTIONS[kind]
    family = make_distribution(space, squash)
    th.manual_seed(0)
    # Logits, and means with standard deviations, which are positive.
    params = family.params(
        3 * th.randn(64, family.net_dim), th.ones(family.gaussian_dim) if family.gaussian_dim else None
    )
    actions = family.sample(params).float()
    found = family.tensors_to_env(th.device("cpu"))(actions)
    for i, expected in enumerate(family.to_env(actions.numpy())):
        assert_rows_equal(space, found, expected, i)


def assert_rows_equal(space, found, expected, i):
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for key, sub in subspaces(space).items():
            assert_rows_equal(sub, found[key], expected[key], i)
        return
    row = found[i].numpy()
    assert row.dtype == space.dtype and space.contains(row if row.ndim else row[()])
    # NumPy's tanh is another than torch's, by a bit, which is scaled to the width of the space.
    span = space.high - space.low if isinstance(space, spaces.Box) and space.is_bounded() else np.zeros(())
    np.testing.assert_allclose(row, expected, rtol=1e-6, atol=np.finfo(np.float32).eps * float(span.max()))


def test_alternatives_that_a_network_forbids_leave_the_kl_finite():
    distribution = make_distribution(spaces.Discrete(3))
    old, new = (distribution.params(th.tensor([[0.0, logit, -th.inf]]), None) for logit in (1.0, 2.0))
    kl = td.kl_divergence(*(td.Categorical(logits=th.tensor([[0.0, logit]])) for logit in (1.0, 2.0)))
    th.testing.assert_close(distribution.kl(old, new), kl)
