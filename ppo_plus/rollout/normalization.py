"""What ``VecNormalize`` makes of numbers that are not finite: it counts them before anybody else can see them."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

#: Where a ``VecNormalize`` keeps statistics; it has some of them only where it normalizes by them.
STATISTICS = ("obs_rms", "ret_rms", "returns")


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

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Where numbers turn out not to be finite within it, the statistics are put back."""
        try:
            yield
        except FloatingPointError:
            if self.normalize is not None:
                vars(self.normalize).update(copy.deepcopy(self._kept))
            raise

    def raw_obs(self, obs: Any) -> Any:
        """The latest observations, before they were normalized to ``obs``."""
        return obs if self.normalize is None else self.normalize.old_obs

    def raw_rewards(self, rewards: Any) -> Any:
        """The latest rewards, before they were normalized to ``rewards``."""
        return rewards if self.normalize is None else self.normalize.old_reward


def are_finite(normalize: VecNormalize) -> bool:
    """Whether all statistics of a ``VecNormalize`` are numbers to normalize by."""
    found = [vars(normalize)[name] for name in ("obs_rms", "ret_rms") if name in vars(normalize)]
    each = [
        rms for statistics in found for rms in (statistics.values() if isinstance(statistics, dict) else [statistics])
    ]
    return all(bool(np.isfinite(part).all()) for rms in each for part in (rms.mean, rms.var, rms.count))
