"""Gymnasium's vector environments that compute in tensors, as a :class:`~ppo_plus.TensorEnv`.

``N`` is the number of environments.
"""

from typing import Any

import torch as th
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from ppo_plus.envs.checks import mapped
from ppo_plus.envs.tensors.env import Obs, TensorEnv, Transition
from ppo_plus.policy.masking import METHOD


def as_tensor_env(env: Any) -> TensorEnv | None:
    """The environments as a :class:`~ppo_plus.TensorEnv`; ``None``: they are not in tensors.

    :raises ValueError: they are in tensors, but in a way that is not supported
    """
    if isinstance(env, TensorEnv):
        return env
    if isinstance(env, VectorEnv):
        return GymTensors(env) if _speaks_torch(env) else None
    n = getattr(getattr(env, "unwrapped", env), "num_envs", None)
    if isinstance(n, int) and n > 1 and not isinstance(env, type):
        raise ValueError(
            f"env={env!r} steps {n} environments at once, but is neither a VecEnv nor a gymnasium.vector.VectorEnv: "
            "call it from a ppo_plus.TensorEnv (docs/capabilities/tensor_environments.md)"
        )
    return None


class GymTensors(TensorEnv):
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
        self.env, self.render_mode = env, env.render_mode
        device = getattr(env, "device", None) or getattr(env.unwrapped, "device", None) or "cpu"
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space, device)

    def reset(self, seed: int | None = None) -> Obs:
        obs, _ = self.env.reset(seed=seed)
        return as_tensor(obs, self.device)

    def step(self, actions: Any) -> Transition:
        *results, infos = self.env.step(actions)
        obs, rewards, terminated, truncated = as_tensor(tuple(results), self.device)
        final = infos.get("final_obs", infos.get("final_observation"))
        return Transition(obs, rewards, terminated, truncated, None if final is None else as_tensor(final, self.device))

    @property
    def has_masks(self) -> bool:
        return callable(getattr(self.env, METHOD, None))

    def action_masks(self) -> Any:
        return as_tensor(self.env.action_masks(), self.device)  # type: ignore[attr-defined]

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


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
