"""Exported policies in onnxruntime."""

import json

import numpy as np


class Exported:
    """A file that ``export`` wrote, played as the page on deploying does: memory starts at 0, and stays between calls.

    :param path: the ``.onnx``
    """

    def __init__(self, path):
        import onnxruntime

        self.session = onnxruntime.InferenceSession(path)
        self.description = json.loads(self.session.get_modelmeta().custom_metadata_map["ppo_plus"])
        self.memory = {}

    def __call__(self, **observations):
        """The outputs for named observations; nothing starts an episode."""
        (n,) = {len(part) for part in observations.values()}
        inputs = {}
        for entry in self.description["inputs"]:
            shape = [n if size == "batch" else size for size in entry["shape"]]
            inputs[entry["name"]] = np.zeros(shape, entry["dtype"])
        names = [output["name"] for output in self.description["outputs"]]
        inputs |= self.memory | {name: part for name, part in observations.items() if name in inputs}
        outputs = dict(zip(names, self.session.run(names, inputs), strict=True))
        self.memory = {name.removeprefix("next_"): part for name, part in outputs.items() if "memory" in name}
        return outputs
