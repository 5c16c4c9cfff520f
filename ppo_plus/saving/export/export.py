"""Export of a policy to ONNX and ``torch.export``, checked against ``predict``; the policy played in onnxruntime."""

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, VecTransposeImage
from torch import nn

from ppo_plus.envs.normalization import mean_seen, observation_moments
from ppo_plus.policy.masking import nothing_allowed
from ppo_plus.policy.observations import parts_of
from ppo_plus.saving.export.deployed import (
    BATCH,
    FORMAT,
    Deployed,
    Normalization,
    Tensors,
    build,
    described_action,
    named,
    observation_like,
    shape_of,
)
from ppo_plus.saving.files import replacing, write_text
from ppo_plus.saving.format.container import naming
from ppo_plus.saving.format.names import Refused, decoding
from ppo_plus.saving.format.values import NATIVE, require_form
from ppo_plus.saving.statistics import ROUNDING, UNIT
from ppo_plus.trees import mapped

OPSET = 18
#: How far numbers may differ from those of ``predict``: absolutely, or relatively where they or their bounds exceed 1.
TOLERANCE = 1e-5
#: The batches of the check, and its steps in each.
BATCHES, STEPS = (1, 5), 3
#: A further step has observations so many times as large, where only much larger differences than rounding count.
EXTREME, COARSE = 1e3, 0.1
#: Inputs or outputs by name.
Arrays = dict[str, np.ndarray]
#: The key of the description in the metadata of an ONNX file.
METADATA = "ppo_plus"


def export(model: Any, path: str | Path, normalization: Normalization) -> Path:
    """See :meth:`ppo_plus.PPO_Plus.export`, of which ``model`` is one."""
    path = Path(path)
    if path.suffix != ".onnx":
        raise ValueError(f"path={str(path)!r} must end in .onnx: a program .pt2 and a description .json are put beside")
    version = require_extra().__version__
    deployed = Deployed(model, normalization)
    example = as_tensors(_feeds(deployed, 3, np.random.default_rng(0)))
    with th.no_grad(), _quiet():
        outputs = deployed(example)
        text = json.dumps(deployed.description(outputs) | {"opset": OPSET}, indent=2)
        # Made here: it imports sympy, which would take half a second of `import ppo_plus`.
        any_size = th.export.Dim(BATCH, min=1)
        shapes = {described["name"]: {described["shape"].index(BATCH): any_size} for described in deployed.inputs}
        options: Any = {"dynamo": True, "opset_version": OPSET, "external_data": False, "verbose": False}
        options |= {"input_names": [*example], "output_names": [*outputs]}
        calls = _calls(deployed.policy)
        try:
            program = th.export.export(deployed, (example,), dynamic_shapes=(shapes,), strict=False)
            onnx: Any = th.onnx.export(program, (), **options)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            remedy = "Replace it by layers that torch.onnx supports, without branches on values or sizes of tensors"
            raise ValueError(f"torch cannot export the {calls[-1]}: {reason}. {remedy}") from error
        onnx.model.metadata_props[METADATA] = text
        data = onnx.model_proto.SerializeToString()
        largest = _check(deployed, ExportedPolicy(data, model.action_space), program.module())
    with replacing(path) as file:
        file.write(data)
    with replacing(path.with_suffix(".pt2")) as file:
        th.export.save(program, file, extra_files={f"{METADATA}.json": text})
    write_text(path.with_suffix(".json"), text)
    checked = f"{sum(BATCHES) * STEPS} observations in onnxruntime {version}, largest difference {largest:.1g}"
    print(f"{path} acts as predict does ({checked})")
    return path


def _calls(policy: nn.Module) -> list[str]:
    """A list that always ends with the layer that computes at the moment, and begins with the policy."""
    calls = [f"policy ({type(policy).__name__})"]
    for name, layer in [*policy.named_modules()][1:]:
        title = f"layer {name} ({type(layer).__name__})"
        layer.register_forward_pre_hook(lambda *_, title=title: calls.append(title))
        layer.register_forward_hook(lambda *_: calls.__delitem__(-1))
    return calls


def _feeds(deployed: Deployed, n: int, rng: np.random.Generator, scale: float = 1.0) -> Arrays:
    """Random inputs for a batch of ``n``. Observations are of the space, or near the statistics if they are normalized;
    real numbers in them are multiplied by ``scale``, within their bounds."""
    normalizer, moments, raw, feeds = deployed.policy.observation_normalizer, {}, {}, {}
    if normalizer is not None:
        rows = normalizer.split(th.stack([normalizer.mean, normalizer.std]))
        moments = dict(zip(normalizer.shapes, rows, strict=True))
    for key, space in parts_of(deployed.raw_space).items():
        space = copy.deepcopy(space)
        space.seed(int(rng.integers(2**31)))
        raw[key] = np.stack([np.asarray(space.sample()) for _ in range(n)])
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
            raw[key] = (scale * raw[key]).clip(space.low, space.high)
    for described in deployed.inputs:
        kind, _, part = described["name"].partition(".")
        value = raw[part] if kind == "observation" else rng.standard_normal(shape_of(described, n))
        if described["dtype"] == "bool":
            value = value > 0
        if kind == "action_masks":
            value[nothing_allowed(value, deployed.policy.distribution.mask_layout)] = True
        feeds[described["name"]] = value.astype(described["dtype"])
    return feeds


def _check(deployed: Deployed, exported: "ExportedPolicy", program: Any) -> float:
    """The largest difference to ``predict``, if it is not too large."""
    rng, policy, largest = np.random.default_rng(1), deployed.policy, 0.0
    for n in BATCHES:
        state = None
        for scale, tolerance in [(1.0, TOLERANCE)] * STEPS + [(EXTREME, COARSE)]:
            feeds = _feeds(deployed, n, rng, scale)
            if policy.remembers:
                state = state or [np.zeros_like(part) for name, part in feeds.items() if name.startswith("memory.")]
                feeds |= {f"memory.{i}": part for i, part in enumerate(state)}
            expected, state = predicted(deployed, feeds, state)
            by_torch = {name: part.numpy() for name, part in program(as_tensors(feeds)).items()}
            for outputs in (exported.run(feeds), by_torch):
                gap = difference(deployed, feeds, outputs, expected, tolerance)
                largest = max(largest, gap) if scale == 1.0 else largest
    return largest


def predicted(deployed: Deployed, feeds: Arrays, state: Any) -> tuple[Arrays, Any]:
    """What ``predict`` returns for named inputs, by the names of outputs, and its next state."""
    inputs, starts = as_tensors(feeds), feeds.get("episode_start")
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


def difference(
    deployed: Deployed, feeds: Arrays, outputs: Arrays, expected: Arrays, tolerance: float = TOLERANCE
) -> float:
    """The largest difference of outputs to those of ``predict``, relative where they (or, squashed, the bounds) are
    larger than 1. Raises :class:`RuntimeError` above ``tolerance``, unless rounding could have led to a choice."""
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
        if not gap.max() <= tolerance:
            raise _other(name, ours[gap.argmax()], theirs[gap.argmax()])
        largest = max(largest, float(gap.max()))
    return largest


def _bound(space: spaces.Space) -> float:
    return max(1.0, *np.abs([space.low, space.high]).flat) if isinstance(space, spaces.Box) else 1.0


def _nudged(deployed: Deployed, feeds: Arrays) -> Iterator[Tensors]:
    """Actions for parameters of the distribution that differ by :data:`TOLERANCE`."""
    rng, (params, _) = np.random.default_rng(2), deployed.distribution(as_tensors(feeds))
    size = TOLERANCE * params.abs().clamp(1.0, 1e3)
    for _ in range(50):
        yield deployed.act(params + size * th.from_numpy(rng.choice([-1, 1], params.shape)))


def _other(name: str, ours: Any, theirs: Any) -> RuntimeError:
    return RuntimeError(
        f"the exported policy acts otherwise than predict: its {name} is {ours}, not {theirs}. Nothing was written: a "
        "custom network may draw random numbers, or depend on more than its input, or need double precision"
    )


def as_tensors(feeds: Arrays) -> Tensors:
    """Arrays as tensors."""
    return {name: th.from_numpy(array) for name, array in feeds.items()}


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


# --- the exported policy ----------------------------------------------------------------------------------------------


def require_extra() -> Any:
    """The module ``onnxruntime``, or the error that says how to install what exporting needs."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f'{error.name} is missing: pip install "ppo_plus[export]"', name=error.name) from error
    return onnxruntime


#: The wrappers that may be inside a policy.
WRAPPERS = {"VecNormalize": VecNormalize, "VecTransposeImage": VecTransposeImage}
#: The form of an input or output in a description, and of the whole.
TENSOR = {"name": str, "shape": [lambda size: size == BATCH or type(size) is int], "dtype": NATIVE.__contains__}
FORM = {
    "format": lambda text: text == FORMAT,
    "inputs": [TENSOR],
    "outputs": [TENSOR],
    "action": object,
    "wrappers_inside": [lambda name: name in WRAPPERS],
}


class ExportedPolicy:
    """A policy that :meth:`ppo_plus.PPO_Plus.export` wrote: a path, or bytes."""

    def __init__(self, file: Path | bytes, action_space: spaces.Space):
        runtime = require_extra()
        with naming(file if isinstance(file, Path) else "the file", "exported policy"), decoding():
            self.session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
            description = self.description = json.loads(self.session.get_modelmeta().custom_metadata_map[METADATA])
            require_form(description, FORM)
            if description["action"] != json.loads(json.dumps(build(action_space, described_action))):
                raise Refused(f"it acts in another action space than {action_space}")
        self.action_space = action_space
        self.inputs = {described["name"]: described for described in description["inputs"]}

    def run(self, inputs: Arrays) -> Arrays:
        """The outputs for named inputs."""
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, inputs), strict=True))

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[Any, Any]:
        """As :meth:`ppo_plus.PPO_Plus.predict`, for a batch of raw observations."""
        parts = observation if isinstance(observation, dict) else {"": observation}
        n = len(next(iter(parts.values())))
        values = {f"observation.{key}".rstrip("."): part for key, part in parts.items()}
        values |= {f"memory.{i}": part for i, part in enumerate(state or ())}
        values |= {"episode_start": episode_start, "action_masks": action_masks}
        inputs = {}
        for name, described in self.inputs.items():
            value = values.get(name)
            # Without them, memory is 0, no episode starts, and everything is allowed.
            value = np.full(shape_of(described, n), name == "action_masks") if value is None else value
            inputs[name] = np.asarray(value, described["dtype"])
        outputs = self.run(inputs)
        following = [value for name, value in outputs.items() if name.startswith("next_memory.")]
        if not isinstance(self.action_space, (spaces.Dict, spaces.Tuple)):
            return outputs["action"], following
        return [build(self.action_space, lambda name, _: outputs[name][i, ...]) for i in range(n)], following  # noqa: B023

    def raw(self, env: Any) -> VecEnv:
        """Environments without the wrappers that are inside the policy, so that they return what it takes."""
        for name in reversed(self.description["wrappers_inside"]):
            if not isinstance(env, WRAPPERS[name]):
                raise ValueError(f"the policy contains {name}, but env={env!r} is not in one")
            env = env.venv
        observed = [observation_like(*part) for part in parts_of(env.observation_space).items()]
        for name, described in self.inputs.items():
            if name.startswith("observation") and described not in observed:
                raise ValueError(f"the policy's input is {described}, and env has observations {env.observation_space}")
        return env
