"""The interfaces of simulators that compute in tensors, each as a :class:`~ppo_plus.TensorEnv`.

None of them is imported here: they are recognized by their attributes. ``N`` is the number of environments.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper

from ppo_plus.envs.autoreset import SAME_STEP
from ppo_plus.envs.tensors.env import Obs, TensorEnv, Transition, box, gym_space
from ppo_plus.envs.tensors.jax_env import is_functional
from ppo_plus.policy.masking import METHOD

#: Names that simulators give the observations that the policy is to see, of several groups of them.
POLICY_GROUPS = ("policy", "actor", "state", "obs")


def as_tensor_env(env: Any, groups: Sequence[str] | None = None) -> TensorEnv | None:
    """The environments as a :class:`~ppo_plus.TensorEnv`; ``None``: they are not in tensors.

    :param env: anything
    :param groups: of several groups of observations those to take, as entries of a Dict; ``None``: the policy's alone
    :raises ValueError: they are, but in a way that is not supported; or they have no such groups
    """
    if isinstance(env, TensorEnv):
        return env
    if is_functional(env):
        raise ValueError(
            f"env={env!r} is a function of one environment's state: say how many there are to be, "
            "ppo_plus.JaxEnv(env, num_envs=4096)"
        )
    if isinstance(env, VectorEnv):
        return GymTensors(env) if _speaks_torch(env) else None
    core = getattr(env, "unwrapped", env)
    if isinstance(env, type) or not isinstance(getattr(core, "num_envs", None), int) or not hasattr(env, "step"):
        return None
    # First, since rsl_rl's wrappers of other simulators have both.
    if hasattr(env, "get_observations") and hasattr(env, "num_actions"):
        return RslRlTensors(env, groups)
    if hasattr(core, "single_observation_space") and hasattr(core, "single_action_space"):
        return ManagedTensors(env, groups)
    return None


class _Adapter(TensorEnv):
    """What the adapters of simulators share.

    :param env: the simulator
    """

    def __init__(self, env: Any, num_envs: int, observation_space: Any, action_space: Any, device: Any) -> None:
        self.env = env
        super().__init__(num_envs, observation_space, action_space, device or "cpu")

    @property
    def has_masks(self) -> bool:
        return callable(getattr(self.env, METHOD, None))

    def action_masks(self) -> th.Tensor:
        return as_tensor(self.env.action_masks(), self.device)  # type: ignore[no-any-return]

    def render(self) -> Any:
        return self.env.render() if hasattr(self.env, "render") else None

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()


class GymTensors(_Adapter):
    """A Gymnasium vector environment that returns tensors: ManiSkill's ``ManiSkillVectorEnv``, Gymnasium's
    ``NumpyToTorch`` and ``JaxToTorch`` around any other, or your own with a ``device``.

    Final observations are ``infos["final_obs"]``, or ``infos["final_observation"]``.

    :param env: in the autoreset mode ``SAME_STEP``
    :raises ValueError: in another
    """

    remedy = 'put it into infos["final_obs"]'

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        mode = (env.metadata or {}).get("autoreset_mode")
        if getattr(mode, "value", mode) not in (None, SAME_STEP) or getattr(env, "auto_reset", True) is False:
            raise ValueError(
                f"env={env!r} has autoreset mode {mode}, but environments in tensors have to begin the next episode in "
                "the step that ends one: make it with autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP"
            )
        # Gymnasium's wrapper cannot convert the final observations of Gymnasium's own vector environments.
        self._numpy = type(env).__name__ == "NumpyToTorch"
        inner: Any = env.env if self._numpy else env  # type: ignore[attr-defined]
        super().__init__(
            inner, env.num_envs, env.single_observation_space, env.single_action_space, getattr(env, "device", None)
        )

    def reset(self, seed: int | None = None) -> Obs:
        obs, _ = self.env.reset(seed=seed)
        return as_tensor(obs, self.device)

    def step(self, actions: Any) -> Transition:
        if self._numpy:
            actions = as_numpy(actions)
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        obs = as_tensor(obs, self.device)
        final = infos.get("final_obs", infos.get("final_observation"))
        if isinstance(final, np.ndarray) and final.dtype == object:
            final = _filled(obs, final, self.device)
        rewards, terminated, truncated = (as_tensor(each, self.device) for each in (rewards, terminated, truncated))
        final = None if final is None else as_tensor(final, self.device)
        return Transition(obs, rewards, terminated, truncated, final, _metrics(infos))


class ManagedTensors(_Adapter):
    """Isaac Lab's ``ManagerBasedRLEnv`` and ``DirectRLEnv``, and mjlab's ``ManagerBasedRlEnv``.

    Final observations are Isaac Lab's ``extras["final_obs"]`` (``cfg.compute_final_obs=True``), or those of an mjlab
    environment with ``cfg.auto_reset=False``, of which the adapter resets what has ended.

    :param env: the environment, in wrappers or not
    :param groups: see :func:`as_tensor_env`
    """

    def __init__(self, env: Any, groups: Sequence[str] | None = None) -> None:
        core = getattr(env, "unwrapped", env)
        self.cfg = getattr(core, "cfg", None)
        self._resets_itself = getattr(self.cfg, "auto_reset", True)
        is_mjlab = hasattr(self.cfg, "auto_reset")
        self.remedy = f"set cfg.{'auto_reset=False' if is_mjlab else 'compute_final_obs=True'} of the environment"
        self._groups = _Groups(gym_space(core.single_observation_space), groups)
        super().__init__(
            env, core.num_envs, self._groups.space, core.single_action_space, getattr(core, "device", None)
        )

    def reset(self, seed: int | None = None) -> Obs:
        obs, _ = self.env.reset(seed=seed)
        return self._groups.of(obs)

    def step(self, actions: Any) -> Transition:
        obs, rewards, terminated, truncated, extras = self.env.step(actions)
        final = extras.get("final_obs")
        if not self._resets_itself:
            # A copy, since the reset computes all observations anew.
            final = {key: _copied(sub) for key, sub in obs.items()}
            ended = (terminated | truncated).nonzero().squeeze(1)
            if len(ended):
                # Copies as well: to begin an episode clears the flags of the last one.
                rewards, terminated, truncated = rewards.clone(), terminated.clone(), truncated.clone()
                obs, extras = self.env.reset(env_ids=ended)
        elif isinstance(final, np.ndarray):
            final = _filled(obs, final, self.device)
        if getattr(self.cfg, "is_finite_horizon", False):
            # The end of the time is the end of the task.
            terminated = terminated | truncated
        final = None if final is None else self._groups.of(final)
        return Transition(self._groups.of(obs), rewards, terminated, truncated, final, _log(extras))


class RslRlTensors(_Adapter):
    """Environments with the interface of rsl_rl's ``VecEnv``, such as those of Genesis' examples.

    Observations are tensors, dicts or TensorDicts, with ``(extras)`` behind them or not. ``extras["time_outs"]`` says
    which episodes a time limit has cut; final observations are ``extras["final_obs"]``, where somebody puts them there.

    :param env: the environment
    :param groups: see :func:`as_tensor_env`
    """

    remedy = 'put it into extras["final_obs"]'

    def __init__(self, env: Any, groups: Sequence[str] | None = None) -> None:
        first = _first(env.get_observations())
        space = spaces.Dict({}) if isinstance(first, Mapping) or hasattr(first, "items") else box(first.shape[1:])
        if isinstance(space, spaces.Dict):
            space = spaces.Dict([(key, box(sub.shape[1:])) for key, sub in first.items()])
        self._groups = _Groups(space, groups)
        super().__init__(env, env.num_envs, self._groups.space, box(env.num_actions), getattr(env, "device", None))

    def reset(self, seed: int | None = None) -> Obs:
        if hasattr(self.env, "reset"):
            self.env.reset()
        return self._groups.of(_first(self.env.get_observations()))

    def step(self, actions: Any) -> Transition:
        obs, *_, rewards, ended, extras = self.env.step(actions)
        ended = ended.bool()
        timed = extras.get("time_outs")
        truncated = ended & timed.bool() if timed is not None else th.zeros_like(ended)
        final = extras.get("final_obs")
        final = None if final is None else self._groups.of(final)
        return Transition(self._groups.of(obs), rewards, ended & ~truncated, truncated, final, _log(extras))


class _Groups:
    """Which of several groups of observations are taken.

    :param space: a Dict of groups, or a space without any
    :param wanted: the groups to take; ``None``: the policy's, where one is known, and all where none is
    :raises ValueError: there are no such groups
    """

    def __init__(self, space: spaces.Space[Any], wanted: Sequence[str] | None):
        #: The group that is taken alone; or those that are taken as entries of a Dict.
        self.only: str | None = None
        self.keys: list[str] | None = None
        self.space = space
        if not isinstance(space, spaces.Dict):
            if wanted is not None:
                raise ValueError(f"groups={wanted!r}: the environment has only one group of observations, {space}")
            return
        known = [key for key in POLICY_GROUPS if key in space.spaces]
        if wanted is not None:
            missing = [key for key in wanted if key not in space.spaces]
            if missing or not wanted:
                raise ValueError(f"groups={wanted!r} must be of the environment's groups, {list(space.spaces)}")
            self.keys = list(wanted)
        elif known or len(space.spaces) == 1:
            self.only = (known or list(space.spaces))[0]
        else:
            self.keys = list(space.spaces)
        if self.only is not None:
            self.space = space[self.only]
        else:
            self.space = spaces.Dict([(key, space[key]) for key in self.keys or ()])

    def of(self, obs: Any) -> Obs:
        """The groups taken of observations."""
        if self.only is not None:
            return obs[self.only]
        return obs if self.keys is None else {key: obs[key] for key in self.keys}


def as_tensor(value: Any, device: th.device) -> Any:
    """Arrays of any kind as tensors on a device, in any nesting of dicts and tuples."""
    if isinstance(value, Mapping):
        return {key: as_tensor(sub, device) for key, sub in value.items()}
    if isinstance(value, tuple):
        return tuple(as_tensor(sub, device) for sub in value)
    return th.as_tensor(value, device=device)


def as_numpy(value: Any) -> Any:
    """Tensors as NumPy arrays of their own memory, in any nesting of dicts and tuples."""
    if isinstance(value, Mapping):
        return {key: as_numpy(sub) for key, sub in value.items()}
    if isinstance(value, tuple):
        return tuple(map(as_numpy, value))
    return value.cpu().numpy().copy()


def _speaks_torch(env: Any) -> bool:
    """Whether a vector environment takes and returns tensors: one of its layers converts to them, or is on a device."""
    if isinstance(getattr(env, "device", None), th.device):
        return True
    target = getattr(getattr(env, "_target_xp", None), "__name__", "")
    if target:
        return target.split(".")[-1] == "torch"
    return isinstance(env, VectorWrapper) and _speaks_torch(env.env)


def _filled(obs: Obs, final: np.ndarray, device: th.device) -> Obs:
    """Observations with the rows that an array of single final observations has.

    :param obs: ``N`` rows
    :param final: ``N`` objects, ``None`` where no episode has ended
    """
    ended = [i for i, row in enumerate(final) if row is not None]
    if not ended:
        return obs
    where = th.tensor(ended, device=device)

    def put(rows: Any, parts: list[Any]) -> Any:
        if isinstance(rows, Mapping):
            return {key: put(sub, [part[key] for part in parts]) for key, sub in rows.items()}
        stacked = th.stack([th.as_tensor(part, device=device) for part in parts])
        return rows.index_copy(0, where, stacked.to(rows.dtype))

    return put(obs, [final[i] for i in ended])


def _log(extras: Mapping[str, Any]) -> Mapping[str, Any]:
    return extras.get("log") or extras.get("episode") or {}  # type: ignore[no-any-return]


def _metrics(infos: Mapping[str, Any]) -> dict[str, Any]:
    """ManiSkill's metrics of the episodes that have ended."""
    found = (infos.get("final_info") or {}) if isinstance(infos.get("final_info"), Mapping) else {}
    ended = infos.get("_final_info")
    if not isinstance(ended, th.Tensor) or "episode" not in found:
        return {}
    episodes = {key: value for key, value in found["episode"].items() if isinstance(value, th.Tensor)}
    return {f"episode/{key}": (value.float() * ended).sum() / ended.sum() for key, value in episodes.items()}


def _copied(obs: Any) -> Any:
    return {key: _copied(sub) for key, sub in obs.items()} if hasattr(obs, "items") else obs.clone()


def _first(found: Any) -> Any:
    """Observations, with extras behind them or not."""
    return found[0] if isinstance(found, tuple) else found
