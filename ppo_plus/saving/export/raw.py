"""Raw observations: what an exported policy gets, before the wrappers that become a part of it."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnvWrapper,
    VecNormalize,
    VecTransposeImage,
    unwrap_vec_normalize,
)

from ppo_plus.envs.resumable.state import Resumable
from ppo_plus.require import require_one_of
from ppo_plus.rollout.evaluation import RECORDERS, layers

#: Wrappers that change neither observations nor actions.
HARMLESS = (*RECORDERS, Monitor, TimeLimit, OrderEnforcing, PassiveEnvChecker, Resumable, VecCheckNan)
Normalization = Literal["environment"] | None


@dataclass(frozen=True)
class Raw:
    """Raw observations: their space, the wrappers in the policy (innermost first), the names of those outside."""

    space: spaces.Space
    wrappers: list[Any]
    outside: list[str]

    def processed(self, obs: Any) -> Any:
        """What ``predict`` takes for a batch of raw observations."""
        for each in self.wrappers:
            obs = each.normalize_obs(obs) if isinstance(each, VecNormalize) else each.transpose_observations(obs)
        return obs

    def functions(self) -> list[dict[str, Callable[[th.Tensor], th.Tensor]]]:
        """The same for tensors: by wrapper, and by the entry of the observations (``""``: the whole)."""
        return [_normalizers(each) if isinstance(each, VecNormalize) else _transposers(each) for each in self.wrappers]

    def parts(self) -> dict[str, Any]:
        """The spaces of the entries (``""``: the whole)."""
        return dict(self.space.items()) if isinstance(self.space, spaces.Dict) else {"": self.space}

    def sample(self, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """``n`` observations by entry: of the space, or near the statistics if they are normalized."""
        moments = {key: each for wrapper in self.wrappers for key, each in _moments(wrapper).items()}
        sampled = {}
        for key, space in self.parts().items():
            space = copy.deepcopy(space)
            space.seed(int(rng.integers(2**31)))
            rows = np.stack([np.asarray(space.sample()) for _ in range(n)])
            if key in moments and rows.dtype.kind == "f":
                rows = moments[key].mean + np.sqrt(moments[key].var) * rng.standard_normal(rows.shape)
            elif rows.dtype.kind == "f":
                # Wide spaces would give numbers that no environment returns.
                rows = np.clip(rows, -10.0, 10.0).clip(space.low, space.high)
            sampled[key] = rows.astype(space.dtype)
        return sampled


def raw_observations(model: Any, normalization: Normalization) -> Raw:
    """The raw observations of a model; for errors see :meth:`ppo_plus.PPO_Plus.export`."""
    require_one_of("normalization", normalization, ("environment", None))
    inside: list[Any] = []
    env, space = model.env, model.observation_space
    if env is None and normalization is not None:
        raise ValueError(
            "the model has no environment, so whether its observations were normalized is unknown: load it with env=, "
            "in a VecNormalize with its statistics (ppo_plus.load_statistics), or pass normalization=None if they were "
            "not, or if you normalize them before"
        )
    while isinstance(env, (VecTransposeImage, VecNormalize, *HARMLESS)):
        if isinstance(env, VecNormalize) and env.norm_obs and normalization is None:
            break
        if isinstance(env, (VecTransposeImage, VecNormalize)):
            inside.insert(0, env)
        env = env.venv  # type: ignore[union-attr]
        space = env.observation_space
    further = None if env is None else unwrap_vec_normalize(env)
    if further is not None and further.norm_obs and normalization is not None:
        raise ValueError(
            f"VecNormalize is inside {type(env).__name__}, and so cannot be a part of the policy: train with it around "
            "the other wrappers, or pass normalization=None and normalize observations before"
        )
    if model.num_timesteps and any(each.count < 1 for wrapper in inside for each in _moments(wrapper).values()):
        raise ValueError("VecNormalize has no statistics yet: load the model's (ppo_plus.load_statistics)")
    found = [] if env is None else [each for each in layers(env) if isinstance(each, (VecEnvWrapper, gym.Wrapper))]
    names = dict.fromkeys(_name(each) for each in found if not isinstance(each, HARMLESS))
    return Raw(space, inside, [*names])


def _moments(wrapper: Any) -> dict[str, Any]:
    """The moments that a wrapper normalizes by, by entry of the observations."""
    if not isinstance(wrapper, VecNormalize) or not wrapper.norm_obs:
        return {}
    rms = wrapper.obs_rms
    return {key: rms[key] for key in wrapper.norm_obs_keys or ()} if isinstance(rms, dict) else {"": rms}


def _normalizers(wrapper: VecNormalize) -> dict[str, Callable[[th.Tensor], th.Tensor]]:
    def normalize(obs: th.Tensor, mean: th.Tensor, std: th.Tensor) -> th.Tensor:
        # In double precision, as VecNormalize.
        return ((obs.double() - mean) / std).clamp(-wrapper.clip_obs, wrapper.clip_obs).float()

    moments = {key: (each.mean, np.sqrt(each.var + wrapper.epsilon)) for key, each in _moments(wrapper).items()}
    return {
        key: partial(normalize, mean=th.from_numpy(mean), std=th.from_numpy(std))
        for key, (mean, std) in moments.items()
    }


def _transposers(wrapper: VecTransposeImage) -> dict[str, Callable[[th.Tensor], th.Tensor]]:
    keys = wrapper.image_space_keys if isinstance(wrapper.observation_space, spaces.Dict) else [""]
    return {} if wrapper.skip else {key: lambda obs: obs.permute(0, 3, 1, 2) for key in keys}


def _name(wrapper: Any) -> str:
    frames = vars(wrapper).get("stack_size") or getattr(vars(wrapper).get("stacked_obs"), "n_stack", None)
    return type(wrapper).__name__ if frames is None else f"{type(wrapper).__name__} of {frames} frames"
