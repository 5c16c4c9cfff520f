"""A context in which the mistakes of environments are errors that say what to do, and checks of what they returned."""

import copy
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, unwrap_vec_normalize

from ppo_plus.envs.checks import AUTORESET, Info, check_info, check_shape, described, explanation
from ppo_plus.envs.layers import layers
from ppo_plus.envs.lean_vec_env import faster_methods
from ppo_plus.envs.normalization import count_transitions, running_statistics
from ppo_plus.policy.observations import NotFiniteError, require_finite


class CheckedEnvs:
    """Checks of what environments return, and a context in which their mistakes say what to do: the old gym's interface
    is a ``TypeError``, an observation of another shape than its space a ``ValueError``.

    Any other error gets a note on which environment raised it, and after how many steps, which ``step`` returns. Copies
    of the statistics of a ``VecNormalize`` are put back if it has counted a number that is not finite.
    """

    def __init__(self, env: VecEnv, step: Callable[[], int]):
        self._step, self._env, self._normalize = step, env, unwrap_vec_normalize(env)
        values = vars(self._normalize) if self._normalize else {}
        statistics = ("obs_rms", "ret_rms", "returns")
        self._statistics = {name: copy.deepcopy(values[name]) for name in statistics if name in values}
        #: What says which rows a ``VecNormalize`` must not count; ``None``: it counts all.
        self._rows = self._normalize and next((layer for layer in layers(env) if "stepped" in vars(layer)), None)
        owners = (layer for layer in layers(env) if isinstance(layer, (DummyVecEnv, SyncVectorEnv)))
        #: What has the list ``envs`` of single environments; ``None``: they cannot be reached.
        self._owner = next(owners, None)
        is_dummy = isinstance(self._owner, DummyVecEnv)
        self._attributes = vars(self._owner) if is_dummy else {}
        #: What a ``DummyVecEnv`` has within the context only. One of the user cannot be exchanged, since callbacks and
        #: wrappers have it, and steps of SB3's copy everything; outside of the context, nothing of it is changed.
        self._lent = faster_methods(self._owner) if is_dummy else {}  # type: ignore[arg-type]
        self._added: dict[str, Any] = {}

    def __enter__(self) -> None:
        if self._normalize is not None and self._rows is not None:
            count_transitions(self._normalize, self._rows)
        self._added = self._lent
        if not self._lent.keys().isdisjoint(self._attributes):  # methods that the user has set
            self._added = {name: own for name, own in self._lent.items() if name not in self._attributes}
        self._attributes.update(self._added, _current=None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        current = self._attributes.pop("_current", None)
        for name in self._added:
            self._attributes.pop(name, None)
        if self._rows is not None:
            for rms in running_statistics(self._normalize):
                vars(rms).pop("update", None)
        if error is None:
            return
        if isinstance(error, (EOFError, ConnectionError)) and isinstance(self._env.unwrapped, SubprocVecEnv):
            error.add_note(
                f"A worker process of SubprocVecEnv died at step {self._step()}. With ppo_plus.SupervisedVecEnv(..., "
                "restarts=N), training continues with a new environment."
            )
        if self._owner is None or not isinstance(error, Exception):
            return
        # There may be several rows for each environment.
        rows_each = self._env.num_envs // len(self._owner.envs)
        i = error.env // rows_each if isinstance(error, NotFiniteError) else current
        explained = explanation(error, self._owner if i is None else self._owner.envs[i])
        if i is not None and not hasattr(error, "__notes__"):
            env = self._owner.envs[i].unwrapped
            seed = getattr(env, "_np_random_seed", None)
            (explained or error).add_note(f"It was {described(i, env, seed, self._step())}.")
        if explained is not None:
            raise explained from error

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

        :raises TypeError: an info is not a dict
        :raises ValueError: observations have another shape than their space
        :raises FloatingPointError: observations are not finite
        """
        for info in getattr(self._env.unwrapped, "reset_infos", ()):
            check_info(info)
        if obs is not None:
            check_shape(obs, self._env.observation_space, self._env.num_envs)
            self.require_finite(obs)


def as_rewards(rewards: Any, n_envs: int, step: int) -> np.ndarray:
    """Rewards as a new array of floats, shape ``(N,)``.

    :raises ValueError: they are something else
    """
    array = np.array(rewards)
    if array.shape not in ((n_envs,), (n_envs, 1)) or array.dtype.kind not in "biuf":
        raise ValueError(
            f"env returned rewards of shape {array.shape} and dtype {array.dtype} for {n_envs} environments, step "
            f"{step}: return one number for each, shape ({n_envs},)"
        )
    return array.reshape(n_envs) if array.dtype.kind == "f" else array.reshape(n_envs).astype(np.float32)


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
