"""An exported policy, played with onnxruntime."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, VecTransposeImage

from ppo_plus.saving.export.deployed import BATCH, build

#: The key of the description in the metadata of an ONNX file.
METADATA = "ppo_plus"


def require_extra() -> Any:
    """The module ``onnxruntime``, or the error that says how to install what exporting needs."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f'{error.name} is missing: pip install "ppo_plus[export]"', name=error.name) from error
    return onnxruntime


class ExportedPolicy:
    """A policy that :meth:`ppo_plus.PPO_Plus.export` wrote: a path, or bytes."""

    def __init__(self, file: Path | bytes, action_space: spaces.Space):
        runtime = require_extra()
        try:
            self.session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
            self.description = json.loads(self.session.get_modelmeta().custom_metadata_map[METADATA])
        except Exception as error:
            raise ValueError(f"{file!r:.200} is not a policy that PPO_Plus.export wrote: {error}") from error
        self.action_space = action_space
        self.inputs = {each["name"]: each for each in self.description["inputs"]}

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs for named inputs."""
        names = [each.name for each in self.session.get_outputs()]
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
        given = {f"observation.{key}".rstrip("."): each for key, each in parts.items()}
        given |= {f"memory.{i}": each for i, each in enumerate(state or ())}
        given |= {"episode_start": episode_start, "action_masks": action_masks}
        inputs = {}
        for name, each in self.inputs.items():
            value, shape = given.get(name), [n if size == BATCH else size for size in each["shape"]]
            # Without them, memory is 0, no episode starts, and everything is allowed.
            value = np.full(shape, name == "action_masks") if value is None else value
            inputs[name] = np.asarray(value, each["dtype"])
        outputs = self.run(inputs)
        following = [value for name, value in outputs.items() if name.startswith("next_memory.")]
        if not isinstance(self.action_space, (spaces.Dict, spaces.Tuple)):
            return outputs["action"], following
        return [build(self.action_space, lambda name, _: outputs[name][i, ...]) for i in range(n)], following  # noqa: B023

    def raw(self, env: Any) -> VecEnv:
        """Environments without the wrappers that are inside the policy, so that they return what it takes."""
        for name in reversed(self.description["wrappers_inside"]):
            if not isinstance(env, {"VecNormalize": VecNormalize, "VecTransposeImage": VecTransposeImage}[name]):
                raise ValueError(f"the policy contains {name}, but env={env!r} is not in one")
            env = env.venv
        return env
