"""Loading models that SB3's ``PPO`` or sb3-contrib's ``MaskablePPO`` and ``RecurrentPPO`` trained."""

import base64
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch as th
from gymnasium import spaces
from stable_baselines3.common.save_util import load_from_zip_file

from ppo_plus.policy.adapter import contribs_policy, without_contrib
from ppo_plus.saving.format.container import PathOrFile, naming, opened
from ppo_plus.saving.format.names import Damaged, Refused, decoding, name_of
from ppo_plus.saving.model import SavedModel, attributes_of
from ppo_plus.saving.sb3.pickles import parse, value_of
from ppo_plus.saving.statistics import statistics_path
from ppo_plus.trees import tree_leaves

#: What SB3 saves if the environments are in a ``VecNormalize``, also in one that normalizes rewards alone.
ORIGINAL = "_last_original_obs"


def read_sb3(cls: type[SavedModel], path: PathOrFile, changes: dict[str, Any], trust_pickle: bool) -> dict[str, Any]:
    """A model of SB3 or sb3-contrib as the value of a file of ours, in which what is changed need not be readable; of
    SB3's policy and buffer classes, ours.

    :raises TypeError: it is another algorithm's
    :raises Refused: it is damaged
    """
    with naming(path, "saved model"):
        data, unread, parameters = read_sb3_zip(path)
        if trust_pickle and unread:
            # Only these are unpickled: what was read may need packages or a Python of that time.
            with opened(path) as file:
                given = data | changes
                unpickled = load_from_zip_file(cast(io.BufferedIOBase, file), device="cpu", custom_objects=given)[0]
            data = (unpickled or {}) | data
        present = unread | data | changes
        if not present.keys() >= {"clip_range", "n_epochs", "gae_lambda"}:  # SB3's other algorithms do not have all
            which = "an SB3 PPO, or of an sb3-contrib MaskablePPO or RecurrentPPO"
            raise TypeError(f"{path!r} is not the path of {which}: pass the path of a model that one of them has saved")
        policy, buffer_class = data.get("policy_class"), data.get("rollout_buffer_class")
        # A policy class of the user's may be unreadable.
        is_maskable = (contribs_policy(policy) or getattr(buffer_class, "__name__", "")).startswith("Maskable")
        if "policy_class" not in changes and (ours := without_contrib(policy)) is not policy:
            data["policy_class"] = cls.policy_aliases[str(ours)]
        if getattr(buffer_class, "__module__", "").startswith(("stable_baselines3.", "sb3_contrib.")):
            data["rollout_buffer_class"] = None
        data |= {"value_clip": "plain", "_expects_masks": is_maskable}
        if ORIGINAL in present and present.get("_last_obs") is not None:  # it has been trained
            data["_trained_normalized"] = False if present[ORIGINAL] is None else "maybe"
        elif isinstance(path, (str, os.PathLike)) and statistics_path(Path(path), ".pkl").is_file():
            data["_trained_normalized"] = "maybe"  # as what `to_sb3` writes
        if is_maskable and isinstance(data.get("action_space"), spaces.MultiBinary):
            # Ours is the difference of the two.
            change_logits(parameters, lambda rows: rows[1::2] - rows[::2], lambda _, rows: rows[1::2].clone())
    missing = {name: reason for name, reason in unread.items() if name not in data}
    model = {"class": name_of(cls), "attributes": {}, "missing": missing, "parameters": parameters}
    for part, paths in attributes_of(cls).items():
        model[part] = {name: data[path] for name, path in paths.items() if path in data}
    return model


def change_logits(
    parameters: dict[str, dict[str, Any]],
    of_weight: Callable[[th.Tensor], th.Tensor],
    of_moment: Callable[[str, th.Tensor], th.Tensor],
) -> None:
    r"""Change weights and moments between MaskablePPO's logits of a MultiBinary action, two for each bit, and ours,

    .. math:: \mathrm{softmax}(x_0, x_1)_1 = \mathrm{sigmoid}(x_1 - x_0).

    The gradient with respect to the difference is that with respect to :math:`x_1`, and so are the optimizer's moments.
    """
    weights, optimizer = parameters["policy"], parameters["policy.optimizer"]
    order, (group,) = [*weights], optimizer["param_groups"]
    for name in ("action_net.weight", "action_net.bias"):
        shape = weights[name].shape
        weights[name] = of_weight(weights[name])
        # From the end: buffers and further names of shared weights, which the optimizer does not have, come before.
        state = optimizer["state"].get(group["params"][order.index(name) - len(order)], {})
        for key, value in state.items():
            if isinstance(value, th.Tensor) and value.shape == shape:
                state[key] = of_moment(key, value)


# --- zips of SB3: weights, and JSON with pickles in it, which are run only if they are trusted ------------------------

#: The members of interest.
MEMBERS = {"policy": "policy.pth", "policy.optimizer": "policy.optimizer.pth", "data": "data"}
#: The largest size of compressed members: so many bytes, or so many times the size of the file.
MOST_BYTES, MOST_TIMES = 2**26, 20


def read_sb3_zip(path_or_file: PathOrFile) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    """What can be read of a saved model without running its pickles: attributes, by name why others cannot, and
    weights; raises :class:`Refused` if it is not a model, or only pickles have its weights."""
    with opened(path_or_file) as file, decoding():
        size = file.seek(0, io.SEEK_END)
        with zipfile.ZipFile(file) as archive:
            _check_members(archive.infolist(), size)
            present = {*archive.namelist()}
            members = {name: archive.read(path) for name, path in MEMBERS.items() if path in present}
        data, unread = _attributes(members.pop("data", b""))
        parameters = {name: _tensors(content) for name, content in members.items()}
        _share_extractor(parameters)
        return data, unread, parameters


def _share_extractor(parameters: dict[str, Any]) -> None:
    """Give actor and critic the weights of the features extractor, which SB3 before 1.7 has once."""
    weights = parameters.get("policy", {})
    if not any(name.startswith("pi_features_extractor.") for name in weights):
        extractor = {name: weight for name, weight in weights.items() if name.startswith("features_extractor.")}
        # First, because `change_logits` counts from the end.
        copies = {f"{part}_{name}": weight for part in ("pi", "vf") for name, weight in extractor.items()}
        parameters["policy"] = copies | weights


def _check_members(infos: list[zipfile.ZipInfo], size: int) -> None:
    if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in infos):
        raise Damaged("its members are compressed in another way than SB3's")
    if sum(info.file_size for info in infos) > max(MOST_BYTES, MOST_TIMES * size):
        raise Damaged(f"its members are more than {MOST_TIMES} times larger than itself")


def _attributes(text: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """Those that can be read, and why the others cannot."""
    data, unread = {}, {}
    for name, value in json.loads(text.decode()).items():
        try:
            if isinstance(value, dict) and ":serialized:" in value:
                pickled = base64.b64decode(value[":serialized:"])
                value = value_of(parse(pickled), len(pickled))
            data[name] = value
        except Refused as error:
            unread[name] = str(error)
    return data, unread


def _tensors(content: bytes) -> Any:
    """What torch saved, read by its reader that knows tensors only."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        _check_members(archive.infolist(), len(content))
    loaded = th.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    for tensor in (leaf for leaf in tree_leaves(loaded) if isinstance(leaf, th.Tensor)):
        if tensor.layout != th.strided or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise Refused("it has a tensor that is larger than its numbers")  # copies of it would be larger too
    return loaded
