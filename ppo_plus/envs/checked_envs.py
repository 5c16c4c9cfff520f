"""A context in which an error names the environment that raised it, and checks of what environments returned."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, unwrap_vec_normalize

from ppo_plus.envs.checks import AUTORESET, Info, check_info, check_shape, described
from ppo_plus.envs.layers import layers
from ppo_plus.envs.lean_vec_env import faster_methods
from ppo_plus.envs.normalization import count_transitions, running_statistics
from ppo_plus.policy.observations import NotFiniteError, require_finite


class CheckedEnvs:
    """Checks of what environments return, and a context in which an error gets a note on which environment raised it,
    and after how many steps, which ``step`` returns.

    Copies of the statistics of a ``VecNormalize`` are put back if it has counted a number that is not finite.
    """

    def __init__(self, env: VecEnv, step: Callable[[], int]):
        self._step, self._env, self._normalize = step, env, unwrap_vec_normalize(env)
        values = vars(self._normalize) if self._normalize else {}
        statistics = ("obs_rms", "ret_rms", "returns")
        self._statistics = {name: copy.deepcopy(values[name]) for name in statistics if name in values}
        #: Where to read which rows a ``VecNormalize`` counts; ``None``: it counts all.
        vec_envs = (layer for layer in layers(env) if isinstance(layer, VecEnv) and "stepped" in vars(layer))
        self._rows = self._normalize and next(vec_envs, None)
        #: What has the single environments; ``None``: they cannot be reached.
        self._dummy = next((layer for layer in layers(env) if isinstance(layer, DummyVecEnv)), None)
        self._attributes = {} if self._dummy is None else vars(self._dummy)
        #: Faster methods that a ``DummyVecEnv`` has within the context only: SB3's copy everything, and the user's
        #: object cannot be replaced, since callbacks and wrappers refer to it.
        self._lent = {} if self._dummy is None else faster_methods(self._dummy)

    def __enter__(self) -> None:
        if self._normalize is not None and self._rows is not None:
            count_transitions(self._normalize, self._rows)
        self._attributes.update(self._lent, _current=None)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        current = self._attributes.pop("_current", None)
        for name in self._lent:
            self._attributes.pop(name, None)
        if self._rows is not None:
            for rms in running_statistics(self._normalize):
                vars(rms).pop("update", None)
        if self._dummy is None or not isinstance(error, Exception) or hasattr(error, "__notes__"):
            return
        # There may be several rows for each environment.
        rows_each = self._env.num_envs // self._dummy.num_envs
        i = error.env // rows_each if isinstance(error, NotFiniteError) else current
        if i is not None:
            env = self._dummy.envs[i].unwrapped
            seed = getattr(env, "_np_random_seed", None)
            error.add_note(f"It was {described(i, env, seed, self._step())}.")

    def require_finite(self, obs: Any, rewards: np.ndarray | None = None) -> None:
        """Check the latest observations and rewards, before and after normalization.

        :raises FloatingPointError: not finite; see :func:`~ppo_plus.policy.observations.require_finite`
        """
        step = self._step()
        if self._normalize is not None:
            try:
                require_finite("observation", self._normalize.old_obs, step)
                if rewards is not None:
                    require_finite("reward", self._normalize.old_reward, step)
            except FloatingPointError:
                vars(self._normalize).update(copy.deepcopy(self._statistics))
                raise
        require_finite("observation", obs, step)
        if rewards is not None:
            require_finite("reward", rewards, step)

    def check_reset(self, obs: Any) -> None:
        """Check what the environments returned at the start of their episodes, if these are started.

        :raises ValueError: an info is not a dict, or observations have another shape than their space
        :raises FloatingPointError: observations are not finite
        """
        for info in getattr(self._env.unwrapped, "reset_infos", ()):
            check_info(info)
        check_shape(obs, self._env.observation_space, self._env.num_envs)
        self.require_finite(obs)


def is_reset(info: Info) -> bool:
    """Whether a step only reset the environment, and so is not a transition."""
    return bool(info.get(AUTORESET))


def monitored(info: Info) -> Info | None:
    """What a ``Monitor`` says of an episode in an info; ``None``: nothing, or ``"episode"`` is something else."""
    entry = info.get("episode")
    return entry if isinstance(entry, dict) and {"r", "l"} <= entry.keys() else None


def of_ended(infos: Sequence[Info], dones: np.ndarray | None = None) -> list[Info]:
    """What is logged of episodes: their success, and what a ``Monitor`` says of them, in its form only.

    :param dones: which of the infos are of an episode that has ended; ``None``: all
    """
    ended = (info for i, info in enumerate(infos) if dones is None or dones[i])
    return [{"episode": monitored(info), "is_success": info.get("is_success")} for info in ended]
