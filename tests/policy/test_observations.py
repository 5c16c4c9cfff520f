"""Observations: SB3's numbers wherever SB3 has any, and definitions where it has none."""

import math

import numpy as np
import pytest
import torch as th
from envs import RandomEnv
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.preprocessing import preprocess_obs

from ppo_plus import CnnPolicy, PPO_Plus
from ppo_plus.policy.observations import canonical_space, make_preprocess, require_finite, to_network, to_tensor

CPU = th.device("cpu")
IMAGE = spaces.Box(0, 255, (3, 36, 40), np.uint8)

# What SB3 can preprocess.
COMMON = {
    "box": spaces.Box(-1.0, 1.0, (3,)),
    "box_int": spaces.Box(-9, 9, (4,), np.int16),
    "image": IMAGE,
    "float_image": spaces.Box(0.0, 255.0, (3, 36, 40)),
    "small_range_image": spaces.Box(0, 100, (3, 36, 40), np.uint8),
    "discrete": spaces.Discrete(5),
    "multi_discrete": spaces.MultiDiscrete([3, 2, 4]),
    "multi_binary_2d": spaces.MultiBinary([2, 3]),
    "dict": spaces.Dict(image=IMAGE, choice=spaces.Discrete(3), vector=spaces.Box(-1.0, 1.0, (2,))),
}
# What it cannot.
BEYOND = {
    "box_0d": spaces.Box(-1.0, 1.0, ()),
    "discrete_start": spaces.Discrete(4, start=-2),
    "multi_discrete_start": spaces.MultiDiscrete([3, 2], start=[5, -1]),
    "multi_discrete_2d": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "multi_discrete_2d_start": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, -1], [0, 7]]),
    "dict_start": spaces.Dict(a=spaces.Discrete(3, start=1), b=spaces.MultiDiscrete([[2], [2]])),
}


def batch_of(space, n, seed=0):
    """``n`` members of a space, stacked as a vectorized environment does."""
    space.seed(seed)
    members = [space.sample() for _ in range(n)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([member[key] for member in members]) for key in space.spaces}
    return np.stack(members)


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a.dtype == b.dtype and th.equal(a, b)


# --- network input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize_images", [True, False])
@pytest.mark.parametrize("space", COMMON.values(), ids=COMMON)
def test_preprocessing_gives_sb3s_numbers(space, normalize_images):
    observations, _ = to_tensor(batch_of(space, 4), space, CPU)
    result = make_preprocess(space, normalize_images)(observations)
    assert same(result, preprocess_obs(observations, space, normalize_images))


@pytest.mark.parametrize("space", [s for s in BEYOND.values() if not isinstance(s, (spaces.Dict, spaces.Box))])
def test_choices_become_one_hot_vectors_from_their_start_on(space):
    observations = batch_of(space, 50)
    result = make_preprocess(space)(th.from_numpy(observations))
    sizes = np.atleast_1d(getattr(space, "nvec", getattr(space, "n", None))).flatten()
    expected = [
        np.concatenate([np.eye(n, dtype=np.float32)[choice] for n, choice in zip(sizes, row, strict=True)])
        for row in (observations - space.start).reshape(50, -1)
    ]
    assert same(result, th.from_numpy(np.stack(expected)))


# --- the space that features extractors see ---------------------------------------------------------------------------


@pytest.mark.parametrize("space", COMMON.values(), ids=COMMON)
def test_canonical_space_is_the_space_where_sb3_can_handle_it(space):
    assert canonical_space(space) == space


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(0, 1, (0,)), "=Box.* is empty: let the environment return"),
        (spaces.Dict(), "=Dict.* is empty"),
        (spaces.Text(3), "=Text.* is not supported: .*TransformObservation"),
        (spaces.Dict(a=spaces.Dict(b=spaces.Discrete(2))), r"\['a'\]=Dict.* is not supported: .*FlattenObservation"),
        (spaces.Dict(a=IMAGE, mission=spaces.Text(3)), r"\['mission'\]=Text.* is not supported: .*minigrid.wrappers"),
    ],
)
def test_unsupported_spaces_are_named_with_the_remedy(space, message):
    with pytest.raises(ValueError, match=f"observation_space{message}"):
        canonical_space(space)


@pytest.mark.parametrize(("policy", "space"), [(CnnPolicy, spaces.Dict(a=IMAGE)), ("MultiInputPolicy", IMAGE)])
def test_the_policy_for_other_observations_is_named(policy, space):
    with pytest.raises(ValueError, match='policy: observation_space=.* a "MultiInput" policy takes Dict observations'):
        PPO_Plus(policy, RandomEnv(spaces.Discrete(2), space), device="cpu")


# --- from what the environment returns to tensors ---------------------------------------------------------------------


@pytest.mark.parametrize("space", {**COMMON, **BEYOND}.values(), ids={**COMMON, **BEYOND})
def test_to_tensor_makes_or_keeps_a_batch(space):
    batch = batch_of(space, 3)
    one = {key: rows[0] for key, rows in batch.items()} if isinstance(batch, dict) else batch[0]
    batched, was_batch = to_tensor(batch, space, CPU)
    single, was_single_batch = to_tensor(one, space, CPU)
    assert was_batch and not was_single_batch
    first = {key: rows[:1] for key, rows in batched.items()} if isinstance(batched, dict) else batched[:1]
    assert same(single, first)
    arrays, tensors = (list(x.values()) if isinstance(x, dict) else [x] for x in (batch, batched))
    for array, tensor in zip(arrays, tensors, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert tensor.numpy().dtype == array.dtype


@given(st.integers(0, 3), st.integers(1, 4))
@settings(deadline=None, max_examples=20)
def test_a_batch_is_known_by_its_shape(ndim, n):
    space = spaces.Box(-1.0, 1.0, (2, 3, 4)[:ndim])
    assert not to_tensor(np.zeros(space.shape), space, CPU)[1]
    assert to_tensor(np.zeros((n, *space.shape)), space, CPU)[1]
    with pytest.raises(ValueError, match=r"observation of shape .* does not fit observation_space=Box.*: pass shape"):
        to_tensor(np.zeros((n, n, *space.shape)), space, CPU)


@pytest.mark.parametrize("number", [2, np.int64(2), np.array(2)])
def test_a_plain_number_is_an_observation_of_a_discrete_space(number):
    tensor, batched = to_tensor(number, COMMON["discrete"], CPU)
    assert tensor.tolist() == [2] and not batched


@pytest.mark.parametrize("in_dict", [False, True])
def test_channel_last_images_fit_a_channel_first_space(in_dict):
    batch = batch_of(IMAGE, 2)
    space = spaces.Dict(image=IMAGE) if in_dict else IMAGE
    for images, channel_last in ((batch, batch.transpose(0, 2, 3, 1)), (batch[0], batch[0].transpose(1, 2, 0))):
        tensor, batched = to_tensor({"image": channel_last} if in_dict else channel_last, space, CPU)
        tensor = tensor["image"] if in_dict else tensor
        np.testing.assert_array_equal(tensor.numpy(), images if batched else images[None])
        assert batched == (images.ndim == 4)


@pytest.mark.parametrize("observation", [np.zeros(3), {"a": 1}, None])
def test_a_dict_space_needs_a_dict_with_its_keys(observation):
    with pytest.raises(ValueError, match=r"(?s)observation .* must be a dict with the keys \['a', 'b'\]"):
        to_tensor(observation, BEYOND["dict_start"], CPU)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_what_is_not_finite_raises_with_its_name(bad):
    observation = batch_of(COMMON["box"], 2)
    observation[1, -1] = bad
    with pytest.raises(FloatingPointError, match=r"(?s)^observation=array.* is not finite"):
        to_tensor(observation, COMMON["box"], CPU)
    space = spaces.Dict(a=COMMON["box"], b=COMMON["discrete"])
    with pytest.raises(FloatingPointError, match=r"(?s)^observation\['a'\]=array.* is not finite"):
        to_tensor({"a": observation, "b": np.zeros(2)}, space, CPU)


def test_a_box_without_a_dimension_is_learned_from():
    env = RandomEnv(spaces.Discrete(2), spaces.Box(-1.0, 1.0, ()))
    model = PPO_Plus("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu").learn(8)
    assert model.predict(np.float32(0.5))[0] in (0, 1) and model.predict(np.zeros(3, np.float32))[0].shape == (3,)


class Outside(RandomEnv):
    """Returns a choice that its space does not have."""

    def step(self, action):
        _, *rest = super().step(action)
        return 5, *rest


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("compile", [False, True])
def test_a_choice_outside_of_its_space_raises_an_error(compile):
    model = PPO_Plus(
        "MlpPolicy", Outside(spaces.Discrete(2), spaces.Discrete(5)), n_steps=8, batch_size=8, compile=compile
    )
    with pytest.raises(ValueError, match=r"observation \[5\] is outside of its space Discrete\(5\)"):
        model.learn(8)
    with pytest.raises(ValueError, match="outside of its space"):
        model.predict(-1)
    with pytest.raises(ValueError, match=r"Discrete\(5, start=1\), which counts from start=1: fix one"):
        to_network(np.zeros(1), spaces.Discrete(5, start=1), th.device("cpu"))


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((2, 3)),
        np.zeros(2, dtype=np.float32),
        np.full(2, 1e30, dtype=np.float32),  # their squares are not
        np.array([[1], [2**62]]),
        np.array([True, False]),
        np.zeros((2, 0)),
        {"a": np.zeros((2, 3)), "b": np.array([1, 2], dtype=np.uint8)},
    ],
    ids=str,
)
def test_finite_numbers_pass(values):
    require_finite("observation", values, 5)


@pytest.mark.parametrize(("bad", "dtype"), [(math.nan, np.float32), (math.inf, np.float16), (-math.inf, np.float64)])
def test_other_numbers_are_named_with_their_environment_and_step(bad, dtype):
    for shape in ((3,), (3, 2), (3, 2, 4)):
        values = np.ones(shape, dtype=dtype)
        values[(1, *[-1] * (values.ndim - 1))] = bad
        with pytest.raises(FloatingPointError, match=r"(?s)reward .* is not finite: .* in environment 1 at step 42"):
            require_finite("reward", values, 42)
