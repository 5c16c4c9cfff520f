"""A policy as one module, from raw observations to actions of the environment: what is exported.

Raw observations are those before the wrappers that become a part of the policy. Inputs and outputs are dicts of
tensors. Their names: ``observation`` or ``observation.KEY``, ``action_masks``, ``memory.I``, ``episode_start``;
``action`` or ``action.KEY``, and ``next_memory.I``.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecCheckNan, VecEnvWrapper, VecNormalize, VecTransposeImage
from torch import nn

from ppo_plus.envs.checks import Numbers
from ppo_plus.envs.layers import layers
from ppo_plus.envs.normalization import normalized_by
from ppo_plus.envs.resumable.state import Resumable
from ppo_plus.policy.observations import parts_of
from ppo_plus.policy.policies import n_rows
from ppo_plus.public import version_of
from ppo_plus.require import require_one_of
from ppo_plus.rollout.evaluation import RECORDERS
from ppo_plus.saving.statistics import move_into
from ppo_plus.trees import tree_leaves

#: Wrappers that change neither observations nor actions.
HARMLESS = (*RECORDERS, Monitor, Numbers, TimeLimit, OrderEnforcing, PassiveEnvChecker, Resumable, VecCheckNan)
Normalization = Literal["environment"] | None
Tensors = dict[str, th.Tensor]


def raw_observations(model: Any, normalization: Normalization) -> tuple[spaces.Space, list[Any], list[str]]:
    """The space of a model's raw observations, the wrappers in the policy (innermost first), and the names of those
    outside; for errors see :meth:`ppo_plus.PPO_Plus.export`."""
    require_one_of("normalization", normalization, ("environment", None))
    if model.env is None and normalization is not None and model._trained_normalized is not False:
        raise ValueError(
            "the model has no environment, so whether its observations were normalized is unknown: load it with env=, "
            "in a VecNormalize with its statistics (ppo_plus.load_statistics), or pass normalization=None if they were "
            "not, or if you normalize them before"
        )
    inside, env = outermost(model.env, normalization)
    if normalization is not None and model.num_timesteps and any(rms.count < 1 for rms in normalized_by(model.env)):
        raise ValueError("VecNormalize has no statistics yet: load the model's (ppo_plus.load_statistics)")
    wrappers = [one for one in layers(env) if isinstance(one, (VecEnvWrapper, gym.Wrapper))]
    names = dict.fromkeys(_name(wrapper) for wrapper in wrappers if not isinstance(wrapper, HARMLESS))
    return model.observation_space if env is None else env.observation_space, inside, [*names]


def outermost(env: Any, normalization: Normalization = "environment") -> tuple[list[Any], Any]:
    """The wrappers of an environment that can be a part of the policy (innermost first), and what they wrap.

    :raises ValueError: a ``VecNormalize`` cannot, since other wrappers are around it
    """
    inside: list[Any] = []
    while isinstance(env, (VecTransposeImage, VecNormalize, *HARMLESS)):
        if isinstance(env, VecNormalize) and env.norm_obs and normalization is None:
            break
        if isinstance(env, (VecTransposeImage, VecNormalize)):
            inside.insert(0, env)
        env = env.venv  # type: ignore[union-attr]
    if normalization is not None and any(isinstance(one, VecNormalize) and one.norm_obs for one in layers(env)):
        raise ValueError(
            f"VecNormalize is inside {type(env).__name__}, and so cannot be a part of the policy: train with it around "
            "the other wrappers, or keep it (to export, pass normalization=None and normalize observations before)"
        )
    return inside, env


def _name(wrapper: Any) -> str:
    frames = vars(wrapper).get("stack_size") or getattr(vars(wrapper).get("stacked_obs"), "n_stack", None)
    return type(wrapper).__name__ if frames is None else f"{type(wrapper).__name__} of {frames} frames"


# --- the policy -------------------------------------------------------------------------------------------------------

#: What descriptions of this form begin with.
FORMAT = "ppo_plus policy 1"
#: The dimension of any size in descriptions of shapes.
BATCH = "batch"


class Deployed(nn.Module):
    """The policy of a model, as a copy on the CPU that takes raw observations, and acts by the mode.

    :raises ValueError: the policy cannot be exported, or cannot take the place of the environment's ``VecNormalize``
    """

    trained: Any

    def __init__(self, model: Any, normalization: Normalization):
        super().__init__()
        self.raw_space, self.wrappers, self.outside = raw_observations(model, normalization)
        if not model.policy.has_params:
            remedy = "derive it from ppo_plus.ActorCriticPolicy to export it, or trace it as SB3's page on export does"
            raise ValueError(f"policy={type(model.policy).__name__} overrides methods of SB3's policy: {remedy}")
        if model.policy.autocast:
            remedy = "set model.policy.autocast = False, and evaluate the model before you export it"
            raise ValueError(f"policy_kwargs: autocast=True computes in bfloat16, which onnxruntime does not: {remedy}")
        policy = self.policy = copy.deepcopy(model.policy).to("cpu").requires_grad_(False).eval()
        #: What it must act like: the policy before (not a module of this one), and what normalizes its observations.
        vars(self)["trained"] = copy.deepcopy(policy)
        self.normalizes = [one for one in self.wrappers if isinstance(one, VecNormalize) and one.norm_obs]
        for wrapper in self.normalizes:
            move_into(policy, wrapper)
        self.space = policy.action_space
        self._to_env = policy.distribution.tensors_to_env(th.device("cpu"))
        self.inputs = list(self._inputs(model))

    def forward(self, inputs: Tensors) -> Tensors:
        """Actions of the environment, and the next memory if there is any."""
        params, memory = self.distribution(inputs)
        return self.act(params) | memory

    def distribution(self, inputs: Tensors) -> tuple[th.Tensor, Tensors]:
        """Parameters of the distribution, and the next memory."""
        policy, observations = self.policy, self.observations(inputs)
        state = [part for name, part in inputs.items() if name.startswith("memory.")]
        memory = policy.state_to_memory(state, n_rows(observations))
        features, memory = policy.encode_step(observations, memory, inputs.get("episode_start"))
        _, params, _ = policy.heads(features, policy._masks(observations, inputs.get("action_masks")))
        following = {f"next_memory.{i}": part for i, part in enumerate(policy.memory_to_state(memory))}
        return params, following

    def act(self, params: th.Tensor) -> Tensors:
        """Actions of the environment for parameters of the distribution."""
        return named(self.space, self._to_env(self.policy.distribution.mode(params)))

    def observations(self, inputs: Tensors) -> Any:
        """What ``predict`` takes: the observations among the inputs, with the channels of images first."""
        parts = {name.partition(".")[2]: part for name, part in inputs.items() if name.startswith("observation")}
        for wrapper in self.wrappers:
            if isinstance(wrapper, VecTransposeImage) and not wrapper.skip:
                keys = wrapper.image_space_keys if isinstance(wrapper.observation_space, spaces.Dict) else [""]
                parts |= {key: parts[key].permute(0, 3, 1, 2) for key in keys if key in parts}
        return parts if isinstance(self.raw_space, spaces.Dict) else parts[""]

    def _inputs(self, model: Any) -> Iterator[dict[str, Any]]:
        """Descriptions of the inputs."""
        policy = self.policy
        for key, sub in parts_of(self.raw_space).items():
            if not key or key in policy.actor_space.spaces or key == policy.action_mask_key:
                yield observation_like(key, sub)
        if model._expects_masks:
            yield tensor_like("action_masks", np.empty((1, sum(policy.distribution.choices)), bool))
        if policy.remembers:
            for i, part in enumerate(policy.memory_to_state(policy.init_memory(1))):
                yield tensor_like(f"memory.{i}", part) | {"initial": 0.0}
            yield tensor_like("episode_start", np.empty(1, bool))

    def description(self, outputs: Tensors) -> dict[str, Any]:
        """What a caller needs to know of the files, as JSON: the inputs and outputs, the nesting of the action space
        with its outputs and their bounds, and the wrappers inside the policy and outside."""
        names = ("VecTransposeImage", "VecNormalize")
        return {
            "format": FORMAT,
            "inputs": self.inputs,
            "outputs": [tensor_like(name, part) for name, part in outputs.items()],
            "action": build(self.space, described_action),
            "wrappers_inside": [names[isinstance(wrapper, VecNormalize)] for wrapper in self.wrappers],
            "wrappers_outside": self.outside,
            "versions": {name: version_of(name) for name in ("ppo_plus", "torch")},
        }


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


def observation_like(key: str, space: Any) -> dict[str, Any]:
    """The description of the input for an entry of the observations (``""``: the whole)."""
    return tensor_like(f"observation.{key}".rstrip("."), np.empty((1, *(space.shape or ())), space.dtype))


def tensor_like(name: str, part: Any) -> dict[str, Any]:
    """The description of an input or output, from an example of it. Memory has the batch in its second dimension."""
    shape = [*part.shape]
    shape[name.removeprefix("next_").startswith("memory.")] = BATCH
    return {"name": name, "shape": shape, "dtype": str(part.dtype).removeprefix("torch.")}


def shape_of(described: dict[str, Any], n: int) -> list[int]:
    """The shape of an input for a batch of ``n``, from its description."""
    return [n if size == BATCH else size for size in described["shape"]]
