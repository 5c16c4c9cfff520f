"""Adapters that make a :class:`~ppo_plus.TensorEnv` of simulators that compute in tensors.

The simulators are not imported here but recognized by their attributes. ``N`` is the number of environments.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from ppo_plus.envs.outputs import mapped
from ppo_plus.envs.tensors.env import Obs, TensorEnv, Transition, box, gym_space, select_groups
from ppo_plus.policy.masking import METHOD
from ppo_plus.trees import tree_map


def as_tensor_env(env: Any, groups: Sequence[str] | None = None) -> TensorEnv | None:
    """The environments as a :class:`~ppo_plus.TensorEnv`; ``None``: they are not in tensors.

    :raises ValueError: they are in tensors, but in a way that is not supported; or they do not have these groups
    """
    if isinstance(env, TensorEnv):
        return env
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
    """The base class of the adapters, with the simulator as ``env``."""

    def __init__(self, env: Any, observation_space: Any, action_space: Any) -> None:
        self.env, self.render_mode = env, getattr(env, "render_mode", None)
        core = getattr(env, "unwrapped", env)
        device = getattr(env, "device", None) or getattr(core, "device", None) or "cpu"
        super().__init__(core.num_envs, observation_space, action_space, device)

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
    """A Gymnasium vector environment that returns tensors: ManiSkill's ``ManiSkillVectorEnv``, one in Gymnasium's
    ``JaxToTorch``, or your own with a ``device``; in autoreset mode ``SAME_STEP``.

    Final observations are ``infos["final_obs"]``, or ``infos["final_observation"]``.
    """

    remedy = 'put it into infos["final_obs"]'

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        mode = (env.metadata or {}).get("autoreset_mode")
        if (
            getattr(mode, "value", mode) not in (None, AutoresetMode.SAME_STEP.value)
            or getattr(env, "auto_reset", True) is False
        ):
            raise ValueError(
                f"env={env!r} has autoreset mode {mode}, but environments in tensors have to start the next episode in "
                "the step that ends one: make it with autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP"
            )
        super().__init__(env, env.single_observation_space, env.single_action_space)

    def reset(self, seed: int | None = None) -> Obs:
        obs, _ = self.env.reset(seed=seed)
        return as_tensor(obs, self.device)

    def step(self, actions: Any) -> Transition:
        *results, infos = self.env.step(actions)
        obs, rewards, terminated, truncated = as_tensor(tuple(results), self.device)
        final = infos.get("final_obs", infos.get("final_observation"))
        final = None if final is None else as_tensor(final, self.device)
        return Transition(obs, rewards, terminated, truncated, final, _metrics(infos))


class ManagedTensors(_Adapter):
    """Isaac Lab's ``ManagerBasedRLEnv`` and ``DirectRLEnv``, and mjlab's ``ManagerBasedRlEnv``.

    Final observations are Isaac Lab's ``extras["final_obs"]`` (``cfg.compute_final_obs=True``), or those of an mjlab
    environment with ``cfg.auto_reset=False``, whose ended episodes the adapter resets.
    """

    def __init__(self, env: Any, groups: Sequence[str] | None = None) -> None:
        core = getattr(env, "unwrapped", env)
        self.cfg = getattr(core, "cfg", None)
        self._resets_itself = getattr(self.cfg, "auto_reset", True)
        is_mjlab = hasattr(self.cfg, "auto_reset")
        self.remedy = f"set cfg.{'auto_reset=False' if is_mjlab else 'compute_final_obs=True'} of the environment"
        space, self._select = select_groups(gym_space(core.single_observation_space), groups)
        super().__init__(env, space, core.single_action_space)

    def reset(self, seed: int | None = None) -> Obs:
        obs, _ = self.env.reset(seed=seed)
        return self._select(obs)

    def step(self, actions: Any) -> Transition:
        obs, rewards, terminated, truncated, extras = self.env.step(actions)
        final = extras.get("final_obs")
        if not self._resets_itself:
            # A copy, since the reset computes all observations again.
            final = mapped(th.clone, obs)
            ended = (terminated | truncated).nonzero().squeeze(1)
            if len(ended):
                # Copies as well: the start of an episode clears the flags of the last one.
                rewards, terminated, truncated = rewards.clone(), terminated.clone(), truncated.clone()
                obs, extras = self.env.reset(env_ids=ended)
        elif isinstance(final, np.ndarray):
            final = _filled(obs, final, self.device)
        if getattr(self.cfg, "is_finite_horizon", False):
            # The end of the time is the end of the task.
            terminated = terminated | truncated
        final = None if final is None else self._select(final)
        return Transition(self._select(obs), rewards, terminated, truncated, final, _log(extras))


class RslRlTensors(_Adapter):
    """Environments with the interface of rsl_rl's ``VecEnv``, such as those of Genesis' examples.

    Observations are tensors, dicts or TensorDicts, followed by ``extras`` or not. ``extras["time_outs"]`` says which
    episodes a time limit has cut; final observations are ``extras["final_obs"]``, if you put them there.
    """

    remedy = 'put it into extras["final_obs"]'

    def __init__(self, env: Any, groups: Sequence[str] | None = None) -> None:
        first = _first(env.get_observations())
        is_dict = hasattr(first, "items")
        entries = [(key, box(part.shape[1:])) for key, part in (first.items() if is_dict else [("", first)])]
        space, self._select = select_groups(spaces.Dict(entries) if is_dict else entries[0][1], groups)
        super().__init__(env, space, box(env.num_actions))

    def reset(self, seed: int | None = None) -> Obs:
        if hasattr(self.env, "reset"):
            self.env.reset()
        return self._select(_first(self.env.get_observations()))

    def step(self, actions: Any) -> Transition:
        obs, *_, rewards, ended, extras = self.env.step(actions)
        ended = ended.bool()
        timed = extras.get("time_outs")
        truncated = ended & timed.bool() if timed is not None else th.zeros_like(ended)
        final = self._select(extras["final_obs"]) if "final_obs" in extras else None
        return Transition(self._select(obs), rewards, ended & ~truncated, truncated, final, _log(extras))


def as_tensor(value: Any, device: th.device) -> Any:
    """Arrays of any kind as tensors on a device, in any nesting of dicts and tuples."""
    return mapped(lambda part: th.as_tensor(part, device=device), value)


def as_numpy(value: Any) -> Any:
    """Tensors as NumPy arrays with their own memory, in any nesting of dicts and tuples."""
    return mapped(lambda tensor: tensor.cpu().numpy().copy(), value)


def _speaks_torch(env: Any) -> bool:
    """Whether a vector environment takes and returns tensors: it has a device, or one of its wrappers converts."""
    if isinstance(getattr(env, "device", None), th.device):
        return True
    if target := getattr(getattr(env, "_target_xp", None), "__name__", ""):
        return target.split(".")[-1] == "torch"
    return isinstance(env, VectorWrapper) and _speaks_torch(env.env)


def _filled(obs: Obs, final: np.ndarray, device: th.device) -> Obs:
    """Observations with the final ones, an array of ``N`` with ``None`` where no episode has ended, in their rows."""
    ended = [i for i, row in enumerate(final) if row is not None]

    def put(rows: th.Tensor, *parts: Any) -> th.Tensor:
        stacked = th.stack([th.as_tensor(part, device=device) for part in parts])
        return rows.index_copy(0, th.tensor(ended, device=device), stacked.to(rows.dtype))

    return tree_map(put, obs, *final[ended]) if ended else obs


def _log(extras: Mapping[str, Any]) -> Mapping[str, Any]:
    return extras.get("log") or extras.get("episode") or {}  # type: ignore[no-any-return]


def _metrics(infos: Mapping[str, Any]) -> dict[str, Any]:
    """ManiSkill's metrics, averaged over the episodes that have ended."""
    found, ended = infos.get("final_info"), infos.get("_final_info")
    if not isinstance(ended, th.Tensor) or not isinstance(found, Mapping) or "episode" not in found:
        return {}
    episodes = {key: value for key, value in found["episode"].items() if isinstance(value, th.Tensor)}
    return {f"episode/{key}": (value.float() * ended).sum() / ended.sum() for key, value in episodes.items()}


def _first(found: Any) -> Any:
    """The observations of a result that may also contain extras."""
    return found[0] if isinstance(found, tuple) else found
