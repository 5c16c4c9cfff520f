"""Settings for an environment that nobody has tuned, chosen by what is known of it before training."""

from contextlib import closing, nullcontext
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from ppo_plus.envs.agents import MASK
from ppo_plus.envs.make_vec import checked_env
from ppo_plus.envs.tensors.vec_env import TensorVecEnv
from ppo_plus.policy.observations import as_dict, is_small_image, parts_of
from ppo_plus.require import LARGEST, require_int
from ppo_plus.trees import named_parts

#: Transitions of a rollout, and how many rollouts a budget has at least.
TRANSITIONS, LEAST_ROLLOUTS = 2048, 100
#: The least steps of each environment per rollout and transitions of a minibatch, and the most minibatches of an epoch.
LEAST_STEPS, LEAST_BATCH, MOST_MINIBATCHES = 16, 64, 32


def recommended(env: GymEnv | str, n_timesteps: int | None = None) -> dict[str, Any]:
    """Arguments of :class:`ppo_plus.PPO_Plus` for an environment that nobody has tuned, the policy among them::

        env = make_vec("Mine-v0", n_envs=8)
        model = PPO_Plus(env=env, **recommended(env) | {"gamma": 0.999})

    They depend on the spaces, a ``VecNormalize``, the number of environments and the budget alone. The environment is
    neither reset nor stepped; one that is made from an id is closed. ``docs/learning.md`` has the reason for each rule.

    :param env: anything that ``PPO_Plus`` takes as its environment; several at once learn faster, see
        :func:`~ppo_plus.make_vec`
    :param n_timesteps: how many steps will be trained, at least 1; ``None``: many
    :return: a dict to print, to change, and to pass on
    :raises ValueError: the spaces are not supported
    :raises TypeError: not an environment
    """
    require_int("n_timesteps", n_timesteps, 1, or_none=True)
    made: Any = checked_env(env)
    with closing(made) if isinstance(env, str) else nullcontext():
        return settings_for(made, made.num_envs if isinstance(made, VecEnv) else 1, n_timesteps)


def settings_for(env: gym.Env | VecEnv, n_envs: int, n_timesteps: int | None = None) -> dict[str, Any]:
    """What :func:`recommended` returns for ``n_envs`` environments such as this one."""
    arguments = policy_arguments(env)
    policy_kwargs, mask_key = arguments.pop("policy_kwargs", {}), arguments.get("action_mask_key")
    most = TRANSITIONS if n_timesteps is None else min(TRANSITIONS, int(n_timesteps) // LEAST_ROLLOUTS)
    # Multiples of 8 have many divisors, so that minibatches can be small, and of the same size.
    n_steps = max(most // n_envs // 8 * 8, LEAST_STEPS)
    transitions = n_steps * n_envs
    sizes = (transitions // n for n in range(MOST_MINIBATCHES, 0, -1) if transitions % n == 0)
    batch_size = next((size for size in sizes if size >= LEAST_BATCH), transitions)
    arguments |= {"n_steps": n_steps, "batch_size": batch_size, "gamma": 0.995}
    wrapper = unwrap_vec_normalize(env) if isinstance(env, VecEnv) else None
    if wrapper is None or not wrapper.norm_reward:
        arguments["normalize_values"] = True
    seen = parts_of(as_dict(env.observation_space)).items()
    numbers = [part for key, part in seen if key != mask_key and isinstance(part, spaces.Box)]
    if (wrapper is None or not wrapper.norm_obs) and not all(map(_is_near_unit, numbers)):
        arguments["normalize_observations"] = True
    actions = _single_spaces(env.action_space)
    boxes = [space for space in actions if isinstance(space, spaces.Box)]
    # A simulator without bounds is given some, which say nothing of the scale of its actions.
    unbounded = isinstance(env, TensorVecEnv) and env.env.unbounded
    if boxes:
        policy_kwargs["log_std_init"] = -0.5
        # Some environments write the largest float32 for infinity.
        unbounded |= any((_largest(box) >= LARGEST).any() for box in boxes)
        if not unbounded and any(map(_is_far_from_unit, boxes)):
            policy_kwargs["squash_output"] = True
    if len(boxes) < len(actions):
        arguments["ent_coef"] = 0.005
    return arguments | ({"policy_kwargs": policy_kwargs} if policy_kwargs else {})


def policy_arguments(env: gym.Env | VecEnv) -> dict[str, Any]:
    """The policy and the arguments of :class:`ppo_plus.PPO_Plus` that the observations of an environment need::

        PPO_Plus(env=env, **policy_arguments(env))

    :return: ``"policy"``, and where they are needed ``"action_mask_key"`` and ``"policy_kwargs"`` with ``actor_keys``
    """
    space = as_dict(env.observation_space)
    if not isinstance(space, spaces.Dict):
        return {"policy": "CnnPolicy" if is_image_space(space) and not is_small_image(space) else "MlpPolicy"}
    arguments: dict[str, Any] = {"policy": "MultiInputPolicy"}
    if MASK in space.spaces and not all(isinstance(part, spaces.Box) for part in _single_spaces(env.action_space)):
        arguments["action_mask_key"] = MASK
    if hidden := getattr(env, "critic_only", ()):
        arguments["policy_kwargs"] = {"actor_keys": [key for key in space if key not in (*hidden, MASK)]}
    return arguments


def _is_near_unit(space: spaces.Box) -> bool:
    """Whether all bounds of observations are near ±1 and not beyond, as those of an image, which is divided by 255."""
    largest = _largest(space)
    return is_image_space(space) or bool(np.all((largest >= 0.5) & (largest <= 1)))


def _largest(space: spaces.Box) -> np.ndarray:
    """The larger of the two bounds of each number, without its sign."""
    return np.maximum(abs(space.low.astype(float)), abs(space.high.astype(float)))  # type: ignore[no-any-return]


def _is_far_from_unit(space: spaces.Box) -> bool:
    """Whether first actions, near 0 with a deviation of 0.6, cover little of the bounds, or are mostly beyond them."""
    low, high = (bound.astype(float)[space.low < space.high] for bound in (space.low, space.high))
    center, half = (low + high) / 2, (high - low) / 2
    return bool(np.any((abs(center) > half / 2) | (half > 5.0) | (half < 0.1)))


def _single_spaces(space: spaces.Space) -> list[spaces.Space]:
    """The spaces in a nesting of Dict and Tuple."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return [space]
    return [single for part in named_parts(space).values() for single in _single_spaces(part)]
