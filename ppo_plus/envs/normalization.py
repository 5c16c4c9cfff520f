"""What ``VecNormalize`` makes of numbers that are not finite: it counts them before anybody else can see them."""

import copy
import warnings
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

from ppo_plus.envs.autoreset import NEXT_STEP
from ppo_plus.require import require_finite

#: Where a ``VecNormalize`` keeps what it normalizes by; it has each only where it does.
MOMENTS = ("obs_rms", "ret_rms")
#: All that it changes by what it sees.
STATISTICS = (*MOMENTS, "returns")


class Statistics:
    """The statistics of a ``VecNormalize`` as they are now, so that they can be put back.

    :param env: environments, in a ``VecNormalize`` or not
    """

    def __init__(self, env: VecEnv):
        self.normalize = unwrap_vec_normalize(env)
        self._kept = self._copies()

    def _copies(self) -> dict[str, Any]:
        held = {} if self.normalize is None else vars(self.normalize)
        return {name: copy.deepcopy(held[name]) for name in STATISTICS if name in held}

    def restore(self) -> None:
        """Put the statistics back."""
        if self.normalize is not None:
            vars(self.normalize).update(copy.deepcopy(self._kept))

    def require_finite(self, step: int, obs: Any, rewards: np.ndarray | None = None) -> None:
        """Refuse NaN and infinity, and put the statistics back that have counted them.

        :param step: how many steps each environment has taken, for the message
        :param obs: the latest observations; looked at also as they were before they were normalized
        :param rewards: the latest rewards, likewise
        :raises FloatingPointError: not finite; see :func:`~ppo_plus.require.require_finite`
        """
        if self.normalize is not None:
            try:
                _require_finite(step, self.normalize.old_obs, None if rewards is None else self.normalize.old_reward)
            except FloatingPointError:
                self.restore()
                raise
        _require_finite(step, obs, rewards)


class VecNormalizeTransitions(VecNormalize):
    """SB3's ``VecNormalize`` for vector environments that take a step to reset (``NEXT_STEP``): such a step has a
    return of 0, which is none of an episode's, and is left out of the statistics of returns.

    The parameters are those of ``VecNormalize``. Over other environments it does the same as that.
    """

    def step_async(self, actions: np.ndarray) -> None:
        """Take a step, and know which environments only reset in it."""
        self._counted = ~np.array(getattr(self.venv, "resetting", np.zeros(self.num_envs, dtype=bool)))
        super().step_async(actions)

    def _update_reward(self, reward: np.ndarray) -> None:
        self.returns = self.returns * self.gamma + reward
        if self._counted.any():
            self.ret_rms.update(self.returns[self._counted])


def warn_of_resets(env: Any) -> None:
    """Warn where a ``VecNormalize`` counts steps that only reset."""
    normalize = unwrap_vec_normalize(env) if isinstance(env, VecEnv) else None
    counts = normalize is not None and normalize.norm_reward and not isinstance(normalize, VecNormalizeTransitions)
    if counts and getattr(env, "autoreset", None) == NEXT_STEP:
        warnings.warn(
            "VecNormalize counts a return of 0 for each step that only resets an environment, and so scales rewards "
            "by too wide a spread: use ppo_plus.VecNormalizeTransitions in its place, or a vector environment that "
            "resets in the same step",
            stacklevel=4,
        )


def _require_finite(step: int, obs: Any, rewards: np.ndarray | None) -> None:
    require_finite("observation", obs, step)
    if rewards is not None:
        require_finite("reward", rewards, step)


def are_finite(normalize: VecNormalize) -> bool:
    """Whether all statistics of a ``VecNormalize`` are numbers to normalize by."""
    each = running_statistics(normalize)
    return all(bool(np.isfinite(part).all()) for rms in each for part in (rms.mean, rms.var, rms.count))


def running_statistics(normalize: Any) -> list[Any]:
    """What a ``VecNormalize`` normalizes by, one after another."""
    found = [vars(normalize)[name] for name in MOMENTS if name in vars(normalize)]
    return [
        rms for statistics in found for rms in (statistics.values() if isinstance(statistics, dict) else [statistics])
    ]
