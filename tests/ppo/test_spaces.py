"""Observations and actions of every dtype, images, and the networks that see them."""

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, IMAGE, OBSERVATIONS, RandomEnv, vec
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from models import weights
from stable_baselines3.common.vec_env import DummyVecEnv
from training import make


@pytest.mark.parametrize("ortho_init", [True, False])
@pytest.mark.parametrize("observation", ["box", "image"])
def test_unshared_features_extractors_both_learn(observation, ortho_init):
    env = vec(ACTIONS["discrete"], OBSERVATIONS[observation])
    policy = {"image": "CnnPolicy", "box": "MlpPolicy"}[observation]
    model = make(
        env=env, policy=policy, policy_kwargs={"share_features_extractor": False, "ortho_init": ortho_init}, n_epochs=1
    )
    before = {name: weight.clone() for name, weight in model.policy.state_dict().items()}
    model.learn(16)
    assert [name for name, weight in model.policy.state_dict().items() if th.equal(weight, before[name])] == []
    assert (observation == "image") == any(name.startswith("vf_features_extractor") for name in before)


@pytest.mark.parametrize("ortho_init", [True, False])
def test_orthogonal_initial_weights_are_optional(ortho_init):
    weight = make(policy_kwargs={"ortho_init": ortho_init}).policy.mlp_extractor.policy_net[2].weight.detach()
    is_orthogonal = th.allclose(weight @ weight.T, 2 * th.eye(64), atol=1e-5)
    assert is_orthogonal == ortho_init


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float64"])
@pytest.mark.parametrize("squash_output", [False, True])
def test_box_actions_of_any_dtype_reach_their_bounds(dtype, squash_output):
    # The environment refuses an action that its space does not contain.
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if "int" in dtype else (-100, 100)
    if dtype == "int64":
        # Beyond 2**53 a float is no longer every integer.
        low, high = -(2**53), 2**53
    space = spaces.Box(np.full(2, low, dtype), np.full(2, high, dtype), dtype=np.dtype(dtype).type)
    model = make(env=vec(space), policy_kwargs={"squash_output": squash_output}).learn(16)
    extremes = model.policy.action_dist.to_env(np.array([[-1e30, 1e30]], dtype=np.float32))
    assert extremes.tolist() == [[low, high]]
    assert extremes.dtype == space.dtype


@pytest.mark.parametrize("dtype", ["uint8", "uint64", "float64", "bool"])
@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpLstmPolicy"])
def test_box_observations_of_any_dtype_are_learned_from(policy, dtype):
    """Memory looks at the final observations of time limits, too."""
    space = spaces.Box(0, 1, (3,), np.dtype(dtype).type)
    env = DummyVecEnv([lambda: TimeLimit(RandomEnv(ACTIONS["discrete"], space), 5)])
    policy_kwargs = {"lstm_hidden_size": 8} if policy == "MlpLstmPolicy" else {}
    assert th.isfinite(weights(make(env=env, policy=policy, policy_kwargs=policy_kwargs).learn(16))).all()


@pytest.mark.parametrize(("normalize_images", "scale"), [(True, 255.0), (False, 1.0)])
def test_images_are_scaled_unless_asked_otherwise(normalize_images, scale):
    policy = make(env=vec(ACTIONS["discrete"], IMAGE), policy_kwargs={"normalize_images": normalize_images}).policy
    image = th.from_numpy(IMAGE.sample())
    assert th.equal(policy.extract_features(image[None])[0], image.flatten() / scale)


def test_images_are_learned_from_without_normalizing_them_too():
    space = spaces.Box(0.0, 1.0, IMAGE.shape, np.float32)
    kwargs = {"normalize_images": False, "features_extractor_kwargs": {"normalized_image": True}}
    model = make(env=vec(ACTIONS["discrete"], space), policy="CnnPolicy", policy_kwargs=kwargs, n_epochs=1)
    assert th.isfinite(weights(model.learn(16))).all()
