"""Export of a policy to ONNX and ``torch.export``, checked against ``predict``.

What is exported is the policy as one module, from raw observations to actions of the environment. Raw observations are
those before the wrappers that become a part of the policy. Inputs and outputs are dicts of tensors. Their names:
``observation`` or ``observation.KEY``, ``action_masks``, ``memory.I``, ``episode_start``; ``action`` or ``action.KEY``,
and ``next_memory.I``.
"""

import copy
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics, RecordVideo, TimeLimit
from gymnasium.wrappers import vector as vectorized
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
)
from torch import nn

from ppo_plus.envs.layers import layers
from ppo_plus.envs.normalization import mean_seen, normalized_by, observation_moments
from ppo_plus.envs.resumable.state import Resumable
from ppo_plus.policy.arguments import frozen
from ppo_plus.policy.masking import nothing_allowed
from ppo_plus.policy.observations import parts_of
from ppo_plus.policy.policies import ActorCriticPolicy, n_rows
from ppo_plus.public import version_of
from ppo_plus.require import require_one_of
from ppo_plus.saving.files import replacing, write_text
from ppo_plus.saving.model import SavedModel
from ppo_plus.saving.statistics import ROUNDING, UNIT, move_into
from ppo_plus.trees import mapped, tree_leaves

#: Wrappers that change neither observations nor actions.
HARMLESS: tuple[type, ...] = (
    Monitor,
    TimeLimit,
    OrderEnforcing,
    PassiveEnvChecker,
    Resumable,
    VecCheckNan,
    VecMonitor,
    VecVideoRecorder,
    RecordVideo,
    RecordEpisodeStatistics,
    vectorized.RecordVideo,
    vectorized.RecordEpisodeStatistics,
)
Normalization = Literal["environment"] | None
#: Inputs or outputs by name.
Tensors = dict[str, th.Tensor]
Arrays = dict[str, np.ndarray]
#: What ``predict`` takes and returns of memory.
Memory = tuple[np.ndarray, ...] | None


def raw_observations(
    model: SavedModel, normalization: Normalization
) -> tuple[spaces.Space, list[VecEnvWrapper], list[str]]:
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
    wrappers = [one for one in layers(env) if isinstance(one, (VecEnvWrapper, gym.Wrapper, gym.vector.VectorWrapper))]
    names = dict.fromkeys(type(wrapper).__name__ for wrapper in wrappers if not isinstance(wrapper, HARMLESS))
    return model.observation_space if env is None else env.observation_space, inside, [*names]


def outermost(env: VecEnv | None, normalization: Normalization) -> tuple[list[VecEnvWrapper], VecEnv | None]:
    """The wrappers of an environment that can be a part of the policy (innermost first), and what they wrap.

    :raises ValueError: a ``VecNormalize`` cannot, since other wrappers are around it
    """
    inside: list[VecEnvWrapper] = []
    while isinstance(env, (VecTransposeImage, VecNormalize, *HARMLESS)):
        if isinstance(env, VecNormalize) and env.norm_obs and normalization is None:
            break
        if isinstance(env, (VecTransposeImage, VecNormalize)):
            inside.insert(0, env)
        env = env.venv  # type: ignore[union-attr]
    if normalization is not None and any(isinstance(one, VecNormalize) and one.norm_obs for one in layers(env)):
        raise ValueError(
            f"VecNormalize is inside {type(env).__name__}, and so cannot be a part of the policy: train with it around "
            "the other wrappers, or keep it (to export, model.export(path, normalization=None), and normalize before)"
        )
    return inside, env


# --- the policy -------------------------------------------------------------------------------------------------------

#: The dimension of any size in descriptions of shapes.
BATCH = "batch"


class Deployed(nn.Module):
    """The policy of a model, as a copy on the CPU that takes raw observations, and acts by the mode.

    :raises ValueError: the policy cannot be exported, or cannot take the place of the environment's ``VecNormalize``
    """

    trained: ActorCriticPolicy

    def __init__(self, model: SavedModel, normalization: Normalization):
        super().__init__()
        self.raw_space, self.wrappers, self.outside = raw_observations(model, normalization)
        if not model.policy.has_params:
            remedy = "derive it from ppo_plus.ActorCriticPolicy to export it, or trace it as SB3's page on export does"
            raise ValueError(f"policy={type(model.policy).__name__} overrides methods of SB3's policy: {remedy}")
        policy = self.policy = frozen(model.policy)
        #: What it must act like: the policy before (not a module of this one), and what normalizes its observations.
        vars(self)["trained"] = copy.deepcopy(policy)
        self.normalizes = [one for one in self.wrappers if isinstance(one, VecNormalize) and one.norm_obs]
        policy.streams = policy.value_normalizer = None  # no value is exported
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

    def observations(self, inputs: Tensors) -> th.Tensor | Tensors:
        """What ``predict`` takes: the observations among the inputs, with the channels of images first."""
        parts = {name.partition(".")[2]: part for name, part in inputs.items() if name.startswith("observation")}
        for wrapper in self.wrappers:
            if isinstance(wrapper, VecTransposeImage) and not wrapper.skip:
                keys = wrapper.image_space_keys if isinstance(wrapper.observation_space, spaces.Dict) else [""]
                parts |= {key: parts[key].permute(0, 3, 1, 2) for key in keys if key in parts}
        return parts if isinstance(self.raw_space, spaces.Dict) else parts[""]

    def _inputs(self, model: SavedModel) -> Iterator[dict[str, Any]]:
        """Descriptions of the inputs."""
        policy = self.policy
        for key, sub in parts_of(self.raw_space).items():
            if not key or key in parts_of(policy.actor_space) or key == policy.action_mask_key:
                yield tensor_like(f"observation.{key}".rstrip("."), np.empty((1, *(sub.shape or ())), sub.dtype))
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
            "format": "ppo_plus policy 1",
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
    names = tree_leaves(build(space, lambda name, _: name))
    if len({*names}) < len(names):
        raise ValueError(f"action_space={space} has several parts of one name, {names}: rename their keys")
    return dict(zip(names, tree_leaves(action), strict=True))


def described_action(name: str, space: spaces.Space) -> dict[str, Any]:
    """How an output is to be read."""
    facts = {fact: getattr(space, fact) for fact in ("n", "nvec", "start", "low", "high") if hasattr(space, fact)}
    kind = {"output": name, "type": type(space).__name__, "shape": space.shape, "dtype": str(space.dtype)}
    return kind | {fact: np.asarray(value).tolist() for fact, value in facts.items()}


def tensor_like(name: str, part: np.ndarray | th.Tensor) -> dict[str, Any]:
    """The description of an input or output, from an example of it. Memory has the batch in its second dimension."""
    shape = [*part.shape]
    shape[name.removeprefix("next_").startswith("memory.")] = BATCH
    return {"name": name, "shape": shape, "dtype": str(part.dtype).removeprefix("torch.")}


# --- the files --------------------------------------------------------------------------------------------------------

OPSET = 18
#: How far numbers may differ from those of ``predict``: absolutely, or relatively where they or their bounds exceed 1.
TOLERANCE = 1e-5
#: The batches of the check, and its steps in each.
BATCHES, STEPS = (1, 5), 3
#: The key of the description in the metadata of an ONNX file.
METADATA = "ppo_plus"


def export(model: SavedModel, path: str | Path, normalization: Normalization) -> Path:
    """See :meth:`ppo_plus.PPO_Plus.export`, of which ``model`` is one."""
    path = Path(path)
    if path.suffix != ".onnx":
        raise ValueError(f"path={str(path)!r} must end in .onnx: a program .pt2 and a description .json are put beside")
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f'{error.name} is missing: pip install "ppo_plus[export]"', name=error.name) from error
    deployed = Deployed(model, normalization)
    example = mapped(th.from_numpy, _feeds(deployed, 3, np.random.default_rng(0)))
    with th.no_grad(), _quiet():
        outputs = deployed(example)
        text = json.dumps(deployed.description(outputs) | {"opset": OPSET}, indent=2)
        # Made here: it imports sympy, which would take half a second of `import ppo_plus`.
        any_size = th.export.Dim(BATCH, min=1)
        shapes = {described["name"]: {described["shape"].index(BATCH): any_size} for described in deployed.inputs}
        options: dict[str, Any] = {"dynamo": True, "opset_version": OPSET, "external_data": False, "verbose": False}
        options |= {"input_names": [*example], "output_names": [*outputs]}
        program = th.export.export(deployed, (example,), dynamic_shapes=(shapes,), strict=False)
        onnx: Any = th.onnx.export(program, (), **options)
        onnx.model.metadata_props[METADATA] = text
        for node in onnx.model.graph:
            node.metadata_props.clear()  # lines of code, with the folders of this machine
        data = onnx.model_proto.SerializeToString()
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        largest = _check(deployed, session, program.module())
    with replacing(path) as file:
        file.write(data)
    with replacing(path.with_suffix(".pt2")) as file:
        th.export.save(program, file, extra_files={f"{METADATA}.json": text})
    write_text(path.with_suffix(".json"), text)
    checked = f"{sum(BATCHES) * STEPS} observations in onnxruntime {onnxruntime.__version__}"
    print(f"{path} acts as predict does ({checked}, largest difference {largest:.1g})")
    return path


def _feeds(deployed: Deployed, n: int, rng: np.random.Generator) -> Arrays:
    """Random inputs for a batch of ``n``: observations of the space, or near the statistics that normalize them."""
    normalizer, moments, raw, feeds = deployed.policy.observation_normalizer, {}, {}, {}
    if normalizer is not None:
        moments = normalizer.split(th.stack([normalizer.mean, normalizer.std]))
    for key, space in parts_of(deployed.raw_space).items():
        space = copy.deepcopy(space)
        space.seed(int(rng.integers(2**31)))
        raw[key] = np.stack([np.asarray(space.sample()) for _ in range(n)])
        if key == deployed.policy.action_mask_key:
            raw[key] = rng.integers(0, 2, raw[key].shape).astype(space.dtype)
        if space.dtype.kind == "f":
            # Wide spaces would give numbers that no environment returns.
            raw[key] = raw[key].clip(-10.0, 10.0)
            if key in moments:
                mean, std = moments[key].numpy().reshape(2, *space.shape)
                for wrapper in deployed.normalizes:
                    mean = mean_seen(observation_moments(wrapper)[key])
                    if space.dtype == np.float64:  # what rounding changes is a constant: `move_into` refuses others
                        std = np.where(np.abs(mean) * UNIT <= ROUNDING * std, std, 0.0)
                raw[key] = mean + std * rng.standard_normal(raw[key].shape)
            raw[key] = raw[key].clip(space.low, space.high)
    for described in deployed.inputs:
        kind, _, part = described["name"].partition(".")
        shape = [n if size == BATCH else size for size in described["shape"]]
        value = raw[part] if kind == "observation" else rng.standard_normal(shape)
        if described["dtype"] == "bool":
            value = value > 0
        if kind == "action_masks":
            value[nothing_allowed(value, deployed.policy.distribution.mask_layout)] = True
        feeds[described["name"]] = value.astype(described["dtype"])
    return feeds


def _check(deployed: Deployed, session: Any, program: nn.Module) -> float:
    """The largest difference of a session of onnxruntime and a program to ``predict``, if it is not too large."""
    rng, policy, largest = np.random.default_rng(1), deployed.policy, 0.0
    names = [output.name for output in session.get_outputs()]
    for n in BATCHES:
        state: Memory = None
        for _ in range(STEPS):
            feeds = _feeds(deployed, n, rng)
            if policy.remembers:
                state = state or tuple(0 * part for name, part in feeds.items() if name.startswith("memory."))
                feeds |= {f"memory.{i}": part for i, part in enumerate(state)}
            expected, state = predicted(deployed, feeds, state)
            by_onnx = dict(zip(names, session.run(names, feeds), strict=True))
            by_torch = {name: part.numpy() for name, part in program(mapped(th.from_numpy, feeds)).items()}
            for outputs in (by_onnx, by_torch):
                largest = max(largest, difference(deployed, feeds, outputs, expected))
    return largest


def predicted(deployed: Deployed, feeds: Arrays, state: Memory) -> tuple[Arrays, Memory]:
    """What ``predict`` returns for named inputs, by the names of outputs, and its next state."""
    inputs, starts = mapped(th.from_numpy, feeds), feeds.get("episode_start")
    obs = mapped(th.Tensor.numpy, deployed.observations(inputs))
    for wrapper in deployed.normalizes:
        parts = obs if isinstance(obs, dict) else {"": obs}
        moments = observation_moments(wrapper).items()
        parts |= {key: wrapper._normalize_obs(parts[key], rms) for key, rms in moments if key in parts}
        obs = parts.get("", parts)
    actions, state = deployed.trained.predict(obs, state, starts, True, inputs.get("action_masks"))
    following = {f"next_memory.{i}": part for i, part in enumerate(state or ())}
    if not isinstance(actions, list):
        return {"action": actions} | following, state
    rows = [named(deployed.space, action) for action in actions]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]} | following, state


def difference(deployed: Deployed, feeds: Arrays, outputs: Arrays, expected: Arrays) -> float:
    """The largest difference of outputs to those of ``predict``, relative where they (or, squashed, the bounds) are
    larger than 1. Raises :class:`RuntimeError` above :data:`TOLERANCE`, unless rounding could have led to a choice."""
    largest, bounds = 0.0, {}
    if deployed.policy.squash_output:
        bounds = named(deployed.space, build(deployed.space, lambda _, sub: _bound(sub)))
    for name, theirs in expected.items():
        ours = outputs[name]
        if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            raise _other(name, f"{ours.dtype} of shape {ours.shape}", f"{theirs.dtype} of shape {theirs.shape}")
        exact = theirs.astype(np.float64)
        gap = np.abs(ours - exact) / np.maximum(np.abs(exact), bounds.get(name, 1.0))
        gap = gap.reshape(len(ours), -1).max(axis=1)
        if ours.dtype.kind != "f" and gap.any():
            for other in _nudged(deployed, feeds):
                gap[(ours == other[name].numpy()).reshape(len(ours), -1).all(axis=1)] = 0.0
        if not gap.max() <= TOLERANCE:
            raise _other(name, ours[gap.argmax()], theirs[gap.argmax()])
        largest = max(largest, float(gap.max()))
    return largest


def _bound(space: spaces.Space) -> float:
    return max(1.0, *np.abs([space.low, space.high]).flat) if isinstance(space, spaces.Box) else 1.0


def _nudged(deployed: Deployed, feeds: Arrays) -> Iterator[Tensors]:
    """Actions for parameters of the distribution that differ by :data:`TOLERANCE`."""
    rng, (params, _) = np.random.default_rng(2), deployed.distribution(mapped(th.from_numpy, feeds))
    size = TOLERANCE * params.abs().clamp(1.0, 1e3)
    for _ in range(50):
        yield deployed.act(params + size * th.from_numpy(rng.choice([-1, 1], params.shape)))


def _other(name: str, ours: np.ndarray | str, theirs: np.ndarray | str) -> RuntimeError:
    return RuntimeError(
        f"the exported policy acts otherwise than predict: its {name} is {ours}, not {theirs}. Nothing was written: a "
        "custom network may draw random numbers, or depend on more than its input, or need double precision"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes on its own parts."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)
