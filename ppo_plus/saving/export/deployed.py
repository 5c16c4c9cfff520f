"""A policy as one module, from raw observations to actions of the environment: what is exported.

Raw observations are those before the wrappers that become a part of the policy. Inputs and outputs are dicts of
tensors. Their names: ``observation`` or ``observation.KEY``, ``action_masks``, ``memory.I``, ``episode_start``,
``noise`` (gSDE: ``noise.theta`` and ``noise.eta``); ``action`` or ``action.KEY``, and ``next_memory.I``.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from torch import nn

from ppo_plus.envs.checks import Numbers
from ppo_plus.envs.layers import layers
from ppo_plus.envs.normalization import observation_moments
from ppo_plus.envs.resumable.state import Resumable
from ppo_plus.formulas.exploration import NoiseProcess, NoiseState, StateDependentNoise
from ppo_plus.policy.policies import n_rows
from ppo_plus.public import version_of
from ppo_plus.require import require_one_of
from ppo_plus.rollout.evaluation import RECORDERS
from ppo_plus.trees import tree_leaves

#: Wrappers that change neither observations nor actions.
HARMLESS = (*RECORDERS, Monitor, Numbers, TimeLimit, OrderEnforcing, PassiveEnvChecker, Resumable, VecCheckNan)
Normalization = Literal["environment"] | None
Tensors = dict[str, th.Tensor]


@dataclass(frozen=True)
class Raw:
    """Raw observations: their space, the wrappers in the policy (innermost first), the names of those outside."""

    space: spaces.Space
    wrappers: list[Any]
    outside: list[str]

    def processed(self, obs: Any) -> Any:
        """What ``predict`` takes for a batch of raw observations."""
        for wrapper in self.wrappers:
            normalizes = isinstance(wrapper, VecNormalize)
            obs = wrapper.normalize_obs(obs) if normalizes else wrapper.transpose_observations(obs)
        return obs

    def processed_tensors(self, parts: Tensors) -> Tensors:
        """The same for tensors, by entry; some may be missing."""
        parts = dict(parts)
        for wrapper in self.wrappers:
            if isinstance(wrapper, VecTransposeImage):
                keys = wrapper.image_space_keys if isinstance(wrapper.observation_space, spaces.Dict) else [""]
                parts |= {key: parts[key].permute(0, 3, 1, 2) for key in keys if key in parts and not wrapper.skip}
                continue
            for key, rms in _moments(wrapper).items():
                if key in parts:
                    # In double precision, as VecNormalize.
                    mean, std = map(th.tensor, (rms.mean, np.sqrt(rms.var + wrapper.epsilon)))
                    parts[key] = ((parts[key].double() - mean) / std).clamp(-wrapper.clip_obs, wrapper.clip_obs).float()
        return parts

    def sample(self, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """``n`` observations by entry: of the space, or near the statistics if they are normalized."""
        moments = {key: rms for wrapper in self.wrappers for key, rms in _moments(wrapper).items()}
        sampled = {}
        for key, space in parts_of(self.space).items():
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
    if env is None and normalization is not None and model._trained_normalized is not False:
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
    if model.num_timesteps and any(rms.count < 1 for wrapper in inside for rms in _moments(wrapper).values()):
        raise ValueError("VecNormalize has no statistics yet: load the model's (ppo_plus.load_statistics)")
    wrappers = [] if env is None else [one for one in layers(env) if isinstance(one, (VecEnvWrapper, gym.Wrapper))]
    names = dict.fromkeys(_name(wrapper) for wrapper in wrappers if not isinstance(wrapper, HARMLESS))
    return Raw(space, inside, [*names])


def parts_of(space: spaces.Space) -> dict[str, Any]:
    """The spaces of the entries of observations (``""``: the whole)."""
    return dict(space.items()) if isinstance(space, spaces.Dict) else {"": space}


def _moments(wrapper: Any) -> dict[str, Any]:
    return observation_moments(wrapper) if isinstance(wrapper, VecNormalize) else {}


def _name(wrapper: Any) -> str:
    frames = vars(wrapper).get("stack_size") or getattr(vars(wrapper).get("stacked_obs"), "n_stack", None)
    return type(wrapper).__name__ if frames is None else f"{type(wrapper).__name__} of {frames} frames"


# --- the policy -------------------------------------------------------------------------------------------------------

#: What descriptions of this form begin with.
FORMAT = "ppo_plus policy 1"
#: The dimension of any size in descriptions of shapes.
BATCH = "batch"


@dataclass(frozen=True)
class InputNoise(NoiseProcess):
    """Noise that is an input: ``z`` as ``noise`` in the state, or the state of gSDE."""

    process: NoiseProcess

    def renew(self, carry: NoiseState, *_: Any) -> NoiseState:
        return carry

    def sample(self, carry: NoiseState, features: th.Tensor, log_std: th.Tensor | None) -> Any:
        return (carry["noise"], carry) if "noise" in carry else self.process.sample(carry, features, log_std)

    def std(self, log_std: th.Tensor, features: th.Tensor) -> th.Tensor:
        return self.process.std(log_std, features)


class Deployed(nn.Module):
    """The policy of a model, as a copy on the CPU: its mode, or with noise as an input."""

    def __init__(self, model: Any, raw: Raw, deterministic: bool):
        super().__init__()
        # SB3's distributions may have tensors with gradients, which torch does not copy.
        memo = {id(model.policy.action_dist): copy.copy(model.policy.action_dist)}
        policy = self.policy = copy.deepcopy(model.policy, memo).to("cpu").requires_grad_(False).eval()
        self.raw, self.deterministic, self.space = raw, deterministic, policy.action_space
        if getattr(policy, "autocast", False):
            raise ValueError(
                "policy_kwargs: autocast=True computes features in bfloat16, which onnxruntime does not: set "
                "model.policy.autocast = False, and evaluate the model before you export it"
            )
        if not deterministic and not policy.has_params:
            raise ValueError(
                f"deterministic=False: the distribution of {type(policy).__name__} is not known, since it overrides "
                "methods of SB3's policy: leave it out"
            )
        self._to_env = policy.distribution.tensors_to_env(th.device("cpu")) if policy.has_params else self._as_sb3
        self.inputs = list(self._inputs(model))
        if not deterministic:
            policy.exploration = InputNoise(policy.exploration)

    def forward(self, inputs: Tensors) -> Tensors:
        """Actions of the environment, and the next memory if there is any."""
        if not self.policy.has_params:
            return named(self.space, self._to_env(self.policy._predict(self._observations(inputs), deterministic=True)))
        params, latent, memory = self.distribution(inputs)
        return self.act(params, latent, inputs) | memory

    def distribution(self, inputs: Tensors) -> tuple[th.Tensor, th.Tensor, Tensors]:
        """Parameters of the distribution, the actor's last hidden layer, and the next memory."""
        policy, observations = self.policy, self._observations(inputs)
        state = [part for name, part in inputs.items() if name.startswith("memory.")]
        memory = policy.state_to_memory(state, n_rows(observations))
        features, memory = policy.encode_step(observations, memory, inputs.get("episode_start"))
        _, params, latent = policy.heads(features, policy._masks(observations, inputs.get("action_masks")))
        following = {f"next_memory.{i}": part for i, part in enumerate(policy.memory_to_state(memory))}
        return params, latent, following

    def act(self, params: th.Tensor, latent: th.Tensor, inputs: Tensors) -> Tensors:
        """Actions of the environment for parameters of the distribution."""
        if self.deterministic:
            return named(self.space, self._to_env(self.policy.distribution.mode(params)))
        return named(self.space, self._to_env(self.policy._explore(params, latent, noise_of(inputs))[0]))

    def _observations(self, inputs: Tensors) -> Any:
        parts = {name.partition(".")[2]: part for name, part in inputs.items() if name.startswith("observation")}
        parts = self.raw.processed_tensors(parts)
        return parts if isinstance(self.raw.space, spaces.Dict) else parts[""]

    def _as_sb3(self, actions: th.Tensor) -> th.Tensor:
        """Actions as SB3's ``predict`` returns them."""
        space, actions = self.space, actions.reshape(-1, *self.space.shape)
        if not isinstance(space, spaces.Box):
            return actions
        low, high = (th.as_tensor(bound.astype(np.result_type(bound, np.float32))) for bound in (space.low, space.high))
        if self.policy.squash_output:
            return low + 0.5 * (actions + 1.0) * (high - low)
        return actions.to(low.dtype).clamp(low, high)

    def _inputs(self, model: Any) -> Iterator[dict[str, Any]]:
        """Descriptions of the inputs."""
        policy = self.policy
        visible: Any = getattr(policy, "actor_space", self.raw.space)
        for key, sub in parts_of(self.raw.space).items():
            if not key or key in visible.spaces or key == getattr(policy, "action_mask_key", None):
                yield tensor_like(f"observation.{key}".rstrip("."), np.empty((1, *sub.shape), sub.dtype))
        if model._expects_masks:
            yield tensor_like("action_masks", np.empty((1, sum(policy.distribution.choices)), bool))
        if policy.remembers:
            for i, part in enumerate(policy.memory_to_state(policy.init_memory(1))):
                yield tensor_like(f"memory.{i}", part) | {"initial": 0.0}
            yield tensor_like("episode_start", np.empty(1, bool))
        if not self.deterministic:
            shapes = {"noise": policy._noise_dims[1:]}
            if isinstance(policy.exploration, StateDependentNoise):
                shapes = {"noise.theta": policy._noise_dims, "noise.eta": policy._noise_dims[1:]}
            for name, shape in shapes.items():
                yield tensor_like(name, np.empty((1, *shape), np.float32))

    def description(self, outputs: Tensors) -> dict[str, Any]:
        """What a caller needs to know of the files, as JSON: the inputs and outputs, the nesting of the action space
        with its outputs and their bounds, and the wrappers inside the policy and outside."""
        kinds = {True: "VecNormalize", False: "VecTransposeImage"}
        return {
            "format": FORMAT,
            "inputs": self.inputs,
            "outputs": [tensor_like(name, part) for name, part in outputs.items()],
            "action": build(self.space, described_action),
            "deterministic": self.deterministic,
            "wrappers_inside": [kinds[isinstance(wrapper, VecNormalize)] for wrapper in self.raw.wrappers],
            "wrappers_outside": self.raw.outside,
            "versions": {name: version_of(name) for name in ("ppo_plus", "torch")},
        }


def noise_of(inputs: Tensors) -> NoiseState:
    """The state of :class:`InputNoise`, from the inputs."""
    return {name.removeprefix("noise."): part for name, part in inputs.items() if name.startswith("noise")}


def build(space: spaces.Space, leaf: Callable[[str, spaces.Space], Any], name: str = "action") -> Any:
    """A nesting like that of the space, with ``leaf(name, space)`` for each part that is an output."""
    if isinstance(space, spaces.Dict):
        return {key: build(sub, leaf, f"{name}.{key}") for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(build(sub, leaf, f"{name}.{i}") for i, sub in enumerate(space.spaces))
    return leaf(name, space)


def named(space: spaces.Space, action: Any) -> dict[str, Any]:
    """The parts of a nested action by the names of outputs."""
    return dict(zip(tree_leaves(build(space, lambda name, _: name)), tree_leaves(action), strict=True))


def described_action(name: str, space: Any) -> dict[str, Any]:
    """How an output is to be read."""
    facts = {fact: getattr(space, fact) for fact in ("n", "nvec", "start", "low", "high") if hasattr(space, fact)}
    kind = {"output": name, "type": type(space).__name__, "shape": space.shape, "dtype": space.dtype.name}
    return kind | {fact: np.asarray(value).tolist() for fact, value in facts.items()}


def tensor_like(name: str, part: Any) -> dict[str, Any]:
    """The description of an input or output, from an example of it. Memory has the batch in its second dimension."""
    shape = [*part.shape]
    shape["memory." in name] = BATCH
    return {"name": name, "shape": shape, "dtype": str(part.dtype).removeprefix("torch.")}


def shape_of(described: dict[str, Any], n: int) -> list[int]:
    """The shape of an input for a batch of ``n``, from its description."""
    return [n if size == BATCH else size for size in described["shape"]]
