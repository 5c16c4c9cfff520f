"""Recommended settings: what they depend on, and that a model can be made of them for every kind of environment."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize

from ppo_plus import PPO_Plus, TensorEnv, make_vec, recommended
from ppo_plus.recommendations import settings_for

NUMBERS, CHOICES = spaces.Box(-1.0, np.array([1.0, 1.0, 1.1]), dtype=np.float64), spaces.Discrete(4)
PICTURE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
ALWAYS = {"gamma": 0.995, "normalize_values": True}
FAR, MOST = spaces.Box(0, 50, (2,)), np.finfo(np.float32).max
MLP, CNN, MULTI = ({"policy": f"{name}Policy"} for name in ("Mlp", "Cnn", "MultiInput"))
#: Of continuous actions.
LESS_NOISE = {"log_std_init": -0.5}
CURIOUS, CALM = {"ent_coef": 0.005}, {"policy_kwargs": LESS_NOISE}
SCALED, MASKED = {"normalize_observations": True}, {"action_mask_key": "action_mask"}


class Untouched(gym.Env):
    """An environment that was asked for nothing but its spaces."""

    closed = False

    def __init__(self, observation_space=NUMBERS, action_space=CHOICES):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, **options):
        raise AssertionError("reset")

    def step(self, action):
        raise AssertionError("step")

    def close(self):
        Untouched.closed = True


gym.register("Untouched-v0", Untouched)


@pytest.mark.parametrize(
    ("observations", "actions", "expected"),
    [
        (NUMBERS, CHOICES, MLP | SCALED | CURIOUS),
        (NUMBERS, spaces.Box(-1, 1, (2,)), MLP | SCALED | CALM),
        (CHOICES, spaces.MultiBinary(2), MLP | CURIOUS),
        (spaces.Box(-1.0, 1.0, (3,)), CHOICES, MLP | CURIOUS),
        (spaces.Box(0, 1, (10, 10, 4), bool), CHOICES, MLP | CURIOUS),
        (spaces.Box(-0.04, 0.04, (3,)), CHOICES, MLP | SCALED | CURIOUS),
        (PICTURE, spaces.MultiDiscrete([2, 3]), CNN | CURIOUS),
        (PICTURE, spaces.Box(-1, 1, (2,)), CNN | CALM),
        (
            spaces.Dict(picture=PICTURE, numbers=NUMBERS),
            spaces.Dict(a=CHOICES, b=spaces.Tuple([spaces.Box(-1, 1, (1,))])),
            MULTI | SCALED | CURIOUS | CALM,
        ),
        (spaces.Tuple([CHOICES, PICTURE]), CHOICES, MULTI | CURIOUS),
    ],
    ids="numbers continuous choices unit-bounds bits small picture continuous-picture mixed tuple".split(),
)
def test_they_follow_from_the_spaces_and_make_a_model(observations, actions, expected):
    """The environment is neither reset nor stepped, and stays open."""
    env, Untouched.closed = Untouched(observations, actions), False
    found = recommended(env)
    assert found == {**ALWAYS, **expected, "n_steps": 2048, "batch_size": 64} and not Untouched.closed
    model = PPO_Plus(env=env, **{**found, "n_epochs": 3}, device="cpu")
    assert model.n_epochs == 3 and model.gamma == 0.995


@pytest.mark.parametrize(
    ("observations", "actions", "expected"),
    [
        # MiniGrid's without its mission: the image is too small for SB3's NatureCNN.
        (spaces.Dict(image=spaces.Box(0, 255, (7, 7, 3), np.uint8), direction=CHOICES), CHOICES, {}),
        (spaces.Tuple([spaces.Box(0, 255, (9, 40, 1), np.uint8), CHOICES]), CHOICES, {}),
        (spaces.Dict(state=CHOICES, action_mask=spaces.Box(0, 1, (3,), np.int8)), spaces.Discrete(3), MASKED),
        # No choice is masked: an entry of that name is an observation.
        (spaces.Dict(state=CHOICES, action_mask=spaces.Box(0, 3, (3,), np.int8)), spaces.Box(-1, 1, (3,)), SCALED),
    ],
    ids=["small-image", "narrow-image", "mask-alone", "no-mask"],
)
def test_their_models_choose_actions(observations, actions, expected):
    env = Untouched(observations, actions)
    found = recommended(env)
    names = ("action_mask_key", "normalize_observations")
    assert {name: found[name] for name in names if name in found} == expected
    model = PPO_Plus(env=env, **found, device="cpu")
    observation = observations.sample()
    if isinstance(observation, dict) and "action_mask" in observation:
        observation["action_mask"][:] = 1
    action, _ = model.predict(observation)
    assert actions.contains(action)


@pytest.mark.parametrize(
    ("n_envs", "n_timesteps", "n_steps", "batch_size"),
    [(1, None, 2048, 64), (8, 1_000_000, 256, 64), (3, None, 680, 68), (8, 20_000, 24, 64), (4096, None, 16, 2048)]
    + [(1, 1, 16, 16), (8, 1_000, 16, 64)],
)
def test_rollouts_fit_the_environments_and_the_budget(n_envs, n_timesteps, n_steps, batch_size):
    found = settings_for(Untouched(), n_envs, n_timesteps)
    assert (found["n_steps"], found["batch_size"]) == (n_steps, batch_size)
    assert n_steps * n_envs % batch_size == 0


@pytest.mark.parametrize(
    ("low", "high", "squashes"),
    [(-1, 1, False), (-2, 2, False), (-0.4, 0.4, False), (-1, 2, False)]
    + [(0, 50, True), (5, 10, True), (-100, 100, True), (0, 1, True), (-0.05, 0.05, True)]
    + [(-MOST, MOST, False), (np.array([1, -1]), np.array([1, 1]), False), (np.array([0, 3]), np.array([50, 3]), True)],
)
def test_bounds_far_from_the_first_actions_scale_them(low, high, squashes):
    env = Untouched(action_space=spaces.Box(low, high, (2,)))
    found = recommended(env)
    assert found["policy_kwargs"] == LESS_NOISE | ({"squash_output": True} if squashes else {})
    means, _ = PPO_Plus(env=env, **found, device="cpu").predict(np.zeros(3), deterministic=True)
    middle = (env.action_space.low + env.action_space.high) / 2 if squashes else 0.0
    assert np.isfinite(means).all() and np.allclose(means.clip(low, high), np.clip(middle, low, high), atol=0.5)


@pytest.mark.parametrize("actions", [spaces.Box(0, 255, (2,), np.uint8), spaces.Tuple([FAR, CHOICES])], ids=str)
def test_integers_and_parts_are_scaled_too(actions):
    env = Untouched(action_space=actions)
    model = PPO_Plus(env=env, **recommended(env), device="cpu")
    assert model.policy.squash_output and actions.contains(model.predict(np.zeros(3))[0])


@pytest.mark.parametrize(("norm_obs", "norm_reward"), [(True, True), (True, False), (False, True)])
def test_what_a_wrapper_normalizes_is_left_to_it(norm_obs, norm_reward):
    env = VecNormalize(make_vec(Untouched, 2), norm_obs=norm_obs, norm_reward=norm_reward)
    found = recommended(env)
    assert "normalize_observations" not in found or not norm_obs
    assert found.get("normalize_values", False) is not norm_reward
    PPO_Plus(env=env, **found, device="cpu")


def test_a_simulator_without_bounds_has_none_that_are_far():
    simulator = TensorEnv(2, NUMBERS, spaces.Box(-np.inf, np.inf, (1,)))
    assert recommended(simulator)["policy_kwargs"] == LESS_NOISE


def test_several_environments_count_and_those_of_an_id_are_closed():
    assert recommended(gym.make_vec("CartPole-v1", num_envs=4))["n_steps"] == 512
    assert recommended(make_vec("CartPole-v1", 8)) == recommended("CartPole-v1") | {"n_steps": 256}
    Untouched.closed = False
    recommended("Untouched-v0")
    assert Untouched.closed


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: recommended("Missing-v0"), gym.error.NameNotFound, "Missing"),
        (lambda: recommended(Untouched), TypeError, "must be a Gymnasium environment"),
        (lambda: recommended(Untouched(action_space=spaces.Text(3))), ValueError, "Text"),
        (lambda: recommended("CartPole-v1", 0), ValueError, "n_timesteps=0"),
        (lambda: recommended("CartPole-v1", 1e5), TypeError, "n_timesteps=100000.0"),
    ],
)
def test_bad_input_is_the_error_of_the_algorithm(call, error, text):
    with pytest.raises(error, match=text):
        call()
