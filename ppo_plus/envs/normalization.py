"""``VecNormalize``: its statistics, its arguments, and steps that only reset."""

import warnings
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

from ppo_plus.require import require_number

#: The attributes of a ``VecNormalize`` that it normalizes by; it has each only if it is used.
MOMENTS = ("obs_rms", "ret_rms")


class VecNormalizeTransitions(VecNormalize):
    """SB3's ``VecNormalize`` for vector environments that take a step to reset (``NEXT_STEP``): such a step has a
    return of 0 that belongs to no episode, and is left out of the statistics of returns.

    The parameters are those of ``VecNormalize``. With other environments it does the same as ``VecNormalize``.
    """

    def __init__(self, venv: VecEnv, *args: Any, **kwargs: Any):
        super().__init__(venv, *args, **kwargs)
        check_normalization(self)

    def step_async(self, actions: np.ndarray) -> None:
        """Start a step, and remember which environments only reset in it."""
        self._counted = ~np.array(getattr(self.venv, "resetting", np.zeros(self.num_envs, dtype=bool)))
        super().step_async(actions)

    def _update_reward(self, reward: np.ndarray) -> None:
        self.returns = self.returns * self.gamma + reward
        if self._counted.any():
            self.ret_rms.update(self.returns[self._counted])


def check_normalization(env: VecEnv) -> None:
    """Check the ``VecNormalize`` of an environment, if there is one, and warn if it counts steps that only reset.

    :raises ValueError: an argument is out of range: a negative ``clip_obs``, for instance, makes all observations equal
    """
    normalize = unwrap_vec_normalize(env)
    if normalize is None:
        return
    for name in ("clip_obs", "clip_reward", "epsilon"):
        require_number(f"VecNormalize: {name}", getattr(normalize, name), 0, above=True)
    require_number("VecNormalize: gamma", normalize.gamma, 0, 1)
    counts = normalize.norm_reward and not isinstance(normalize, VecNormalizeTransitions)
    if counts and getattr(env, "autoreset", None) == AutoresetMode.NEXT_STEP:
        warnings.warn(
            "VecNormalize counts a return of 0 for each step that only resets an environment, which distorts the scale "
            "of rewards: use ppo_plus.VecNormalizeTransitions instead, or a vector environment that resets in the "
            "same step",
            stacklevel=4,
        )


def are_finite(normalize: VecNormalize) -> bool:
    """Whether all statistics of a ``VecNormalize`` are finite."""
    parts = [part for rms in running_statistics(normalize) for part in (rms.mean, rms.var, rms.count)]
    return all(np.isfinite(part).all() for part in parts)


def running_statistics(normalize: Any) -> list[Any]:
    """The running statistics that a ``VecNormalize`` normalizes by."""
    moments = (vars(normalize)[name] for name in MOMENTS if name in vars(normalize))
    return [rms for entry in moments for rms in (entry.values() if isinstance(entry, dict) else [entry])]
