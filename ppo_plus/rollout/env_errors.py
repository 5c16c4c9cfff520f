"""What environments get wrong, in words: the old gym's interface, and observations of another shape than their space.

SB3 calls them, so that such a mistake shows as an error of its code, ``could not broadcast`` or ``too many values to
unpack``. What is looked at here is the error, not each step: steps are as fast as without.
"""

import math
import re
import traceback
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus.require import require_finite
from ppo_plus.rollout.normalization import Statistics

#: What to do about the old gym's interface where its code cannot be changed.
CONVERT = "or convert an environment of the old gym by shimmy.GymV21CompatibilityV0(env=env)"
RESET = (
    "reset() must return (observation, info), as Gymnasium has it, where the old gym returned an observation: "
    f"return observation, {{}}, {CONVERT}"
)
SEED = (
    f"reset() must take seed and options, as Gymnasium has it: def reset(self, *, seed=None, options=None), {CONVERT}"
)
STEP = (
    "step() must return (observation, reward, terminated, truncated, info), as Gymnasium has it, where the old gym "
    f"returned one done: a time limit is truncated, every other end terminated, {CONVERT}"
)


class Explained:
    """Within it, an error that an environment's mistake led to is raised again in other words.

    :raises TypeError: an environment has the old gym's interface
    :raises ValueError: an observation has another form than its space
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: Any) -> None:
        explanation = _explanation(error) if isinstance(error, Exception) else None
        if explanation is not None:
            raise explanation from error


def check_reset(env: VecEnv, obs: Any, step: int, before: Statistics) -> None:
    """Check what environments returned at the beginning of their episodes.

    :param env: the environments
    :param obs: their observations; ``None``: their episodes are to begin anew
    :param step: how many steps each of them has taken, for messages
    :param before: their statistics of before, which are put back where observations are not finite
    :raises TypeError: an environment has the old gym's interface
    :raises ValueError: the observations are of another shape than their space
    :raises FloatingPointError: they are not finite
    """
    # An old environment's observation of two numbers can be unpacked.
    wrong = [each for each in getattr(env.unwrapped, "reset_infos", []) if not isinstance(each, dict)]
    if wrong:
        raise TypeError(f"env={env!r} returned {wrong[0]!r} as info: {RESET}")
    if obs is not None:
        check_shape(obs, env.observation_space, env.num_envs)
        with before.kept():
            require_finite("observation", before.raw_obs(obs), step)


def check_shape(obs: Any, space: spaces.Space, n_envs: int, name: str = "observation") -> None:
    """:raises ValueError: observations of ``n_envs`` environments do not have the size of their space"""
    if isinstance(space, spaces.Dict):
        for key, sub in space.items():
            check_shape(obs[key], sub, n_envs, f"{name}[{key!r}]")
        return
    expected = (n_envs, *(space.shape or ()))
    # Numbers may come as rows of one, which are as good.
    if np.shape(obs)[:1] != (n_envs,) or math.prod(np.shape(obs)) != math.prod(expected):
        raise ValueError(
            f"env returned {name} of shape {np.shape(obs)} for {n_envs} environments, but its space {space} asks for "
            f"{expected}: mend its observation_space, or what it returns"
        )


def _explanation(error: Exception) -> Exception | None:
    """The error in other words; ``None``: it is no mistake known here, or has been explained."""
    frame = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    module, function, found = frame.f_globals.get("__name__", ""), frame.f_code.co_name, frame.f_locals
    # Only what is raised by the code that called an environment, and not by the environment.
    if not module.startswith(("stable_baselines3.", "gymnasium.")) or "self" not in found:
        return None
    env = found["self"]
    if hasattr(env, "envs") and "env_idx" in found:
        env = env.envs[found["env_idx"]]
    env = getattr(env, "unwrapped", env)
    if function == "_save_obs" and "obs" in found:
        return ValueError(
            f"env={env!r} returned an observation of {_described(found['obs'])}, but its observation_space="
            f"{env.observation_space} has {_shape(env.observation_space)}: mend the one or the other"
        )
    if function == "reset" and re.search("unexpected keyword argument '(seed|options)'", str(error)):
        return TypeError(f"env={env!r}: {SEED}")
    if "unpack" not in str(error) or function not in ("reset", "step", "step_wait"):
        return None
    # A step that ends an episode resets.
    is_reset = function == "reset" or "expected 2" in str(error)
    return TypeError(f"env={env!r}: {RESET if is_reset else STEP}")


def _described(obs: Any) -> str:
    """The shape of an observation, or those of its parts."""
    try:
        return (
            f"shape { ({key: np.shape(sub) for key, sub in obs.items()} if isinstance(obs, dict) else np.shape(obs)) }"
        )
    except ValueError:
        return "unequal rows"


def _shape(space: spaces.Space) -> Any:
    return {key: sub.shape for key, sub in space.items()} if isinstance(space, spaces.Dict) else space.shape
