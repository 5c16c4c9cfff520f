"""``VecNormalize``: its statistics, its arguments, steps that only reset, and the same in tensors."""

import warnings
from typing import Any

import numpy as np
import torch as th
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

from ppo_plus.envs.tensors.vec_env import Stepped
from ppo_plus.formulas.moments import Moments
from ppo_plus.require import require_number
from ppo_plus.trees import to_device, widest

#: Arguments of ``PPO_Plus``, and those of ``VecNormalize`` that do the same.
IN_POLICY = {"normalize_observations": "norm_obs", "normalize_values": "norm_reward"}


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
    if normalize.norm_reward and getattr(env, "autoreset", None) == AutoresetMode.NEXT_STEP:
        warnings.warn(
            "VecNormalize counts a return of 0 for each step that only resets an environment, which distorts the scale "
            "of rewards: pass norm_reward=False to it and normalize_values=True to PPO_Plus, or use a vector "
            "environment that resets in the same step",
            stacklevel=4,
        )


def normalized_by(env: Any) -> list[Any]:
    """The running statistics by which a ``VecNormalize`` normalizes the observations of an environment."""
    normalize = unwrap_vec_normalize(env)
    return [] if normalize is None else [*_of_obs(normalize).values()]


def warn_of_statistics(trained: bool | None, env: Any) -> None:
    """Warn if a policy would see other numbers in an environment than it was trained on.

    :param trained: whether those were normalized; ``None``: it is unknown
    """
    moments = normalized_by(env)
    if trained and (not moments or any(rms.count < 1 for rms in moments)):
        problem = "has no statistics yet" if moments else "does not normalize them"
        remedy = 'load its statistics, ppo_plus.load_statistics("..._vecnormalize.zip", env), or absorb_normalization'
    elif trained is False and moments:
        problem, remedy = "normalizes them", "leave VecNormalize out"
    else:
        return
    warnings.warn(
        f"the model was trained on observations that were {'' if trained else 'not '}normalized (VecNormalize), and "
        f"env={env!r} {problem}, so that its actions are wrong: {remedy}",
        stacklevel=4,
    )


def require_one_normalization(env: Any, normalize_observations: Any, normalize_values: Any = False) -> None:
    """:raises ValueError: a ``VecNormalize`` normalizes what the policy with these arguments normalizes itself"""
    normalize = unwrap_vec_normalize(env) if isinstance(env, VecEnv) else None
    values = (normalize_observations, normalize_values)
    for (name, option), value in zip(IN_POLICY.items(), values, strict=True):
        if normalize is not None and value and getattr(normalize, option):
            raise ValueError(
                f"{name}={value!r} and a VecNormalize with {option}=True would normalize twice: leave out the "
                f"VecNormalize, or pass {option}=False to it, or leave out {name}. For a model that was trained with a "
                "VecNormalize see PPO_Plus.absorb_normalization"
            )


def are_finite(normalize: VecNormalize) -> bool:
    """Whether all statistics of a ``VecNormalize`` are finite."""
    parts = [part for rms in running_statistics(normalize) for part in (rms.mean, rms.var, rms.count)]
    return all(np.isfinite(part).all() for part in parts)


def running_statistics(normalize: Any) -> list[Any]:
    """The running statistics that a ``VecNormalize`` normalizes by: of returns, and of observations."""
    return [normalize.ret_rms, *_of_obs(normalize).values()]


class Normalizing:
    """A ``VecNormalize`` during a rollout, in tensors on a device. The statistics are the wrapper's: they are read when
    a rollout begins, and written back when it ends, where evaluation, saving and callbacks find them."""

    def __init__(self, normalize: VecNormalize, device: th.device):
        self.normalize, self._device = normalize, device
        self._returns = self._tensor(normalize.returns)
        #: One number for each environment, which is not finite once an observation or reward was not.
        self.watch = th.zeros(normalize.num_envs, device=self._device)
        #: The statistics of observations by entry (``None``: there are no entries), and of discounted returns.
        self._obs = {key: self._moments(rms) for key, rms in _of_obs(normalize).items()}
        self._ret = self._moments(normalize.ret_rms)

    def tensors(self) -> list[th.Tensor]:
        """The tensors that :meth:`write` needs."""
        return [self.watch, self._returns, *self._ret, *(part for moments in self._obs.values() for part in moments)]

    def write(self, arrays: list[np.ndarray]) -> None:
        """Write the statistics, :meth:`tensors` as NumPy arrays, into the wrapper."""
        _, self.normalize.returns, *moments = arrays
        parts = moments[::3], moments[1::3], moments[2::3]
        for rms, n, mean, m2 in zip(running_statistics(self.normalize), *parts, strict=True):
            rms.count, rms.mean, rms.var = float(n), mean, m2 / n

    def __call__(self, step: Stepped) -> Stepped:
        """The step with observations and rewards normalized like in ``VecNormalize``."""
        normalize, training = self.normalize, self.normalize.training
        self.watch = self.watch + step.rewards
        for key, moments in self._obs.items():
            rows = (step.obs if key is None else step.obs[key]).float()
            self.watch = self.watch + rows.flatten(1).sum(dim=1)
            if training:
                self._obs[key] = moments.plus(_of_rows(rows, self._ret.mean.dtype))
        rewards = step.rewards
        if training:
            self._returns = self._returns * normalize.gamma + rewards
            self._ret = self._ret.plus(_of_rows(self._returns, self._ret.mean.dtype))
        if normalize.norm_reward:
            bound = normalize.clip_reward
            rewards = (rewards / (self._ret.var + normalize.epsilon).sqrt()).float().clamp(-bound, bound)
        self._returns = self._returns.masked_fill(step.dones, 0.0)
        # With the statistics after this step, as in SB3.
        epsilon = normalize.epsilon
        scales = {key: (m.mean.float(), (m.var + epsilon).rsqrt().float()) for key, m in self._obs.items()}
        final_obs = None if step.final_obs is None else self._normalized(step.final_obs, scales)
        return step._replace(obs=self._normalized(step.obs, scales), rewards=rewards, final_obs=final_obs)

    def _normalized(self, obs: Any, scales: dict[Any, tuple[th.Tensor, th.Tensor]]) -> Any:
        bound = self.normalize.clip_obs
        normalized = {
            key: ((obs if key is None else obs[key]) - mean).mul_(factor).clamp_(-bound, bound)
            for key, (mean, factor) in scales.items()
        }
        return obs | normalized if isinstance(obs, dict) else normalized.get(None, obs)

    def _tensor(self, value: Any) -> th.Tensor:
        return to_device(th.as_tensor(np.asarray(value, np.float64)).to(widest(self._device)), self._device)

    def _moments(self, rms: Any) -> Moments:
        count, mean, var = map(self._tensor, (rms.count, rms.mean, rms.var))
        return Moments(count, mean, var * count)


def _of_obs(normalize: VecNormalize) -> dict[Any, Any]:
    """The running statistics of observations, by entry; by ``None`` if they are not a Dict."""
    if not normalize.norm_obs or "obs_rms" not in vars(normalize):
        return {}
    return normalize.obs_rms if isinstance(normalize.obs_rms, dict) else {None: normalize.obs_rms}


def _of_rows(rows: th.Tensor, dtype: th.dtype) -> Moments:
    var, mean = th.var_mean(rows, dim=0, correction=0)
    n = th.full((), len(rows), dtype=dtype, device=rows.device)
    return Moments(n, mean.to(dtype), var.to(dtype) * len(rows))
