"""Loading models that SB3's ``PPO`` or sb3-contrib's ``MaskablePPO`` and ``RecurrentPPO`` trained."""

import base64
import io
import json
import zipfile
from collections.abc import Callable, Collection
from contextlib import nullcontext, suppress
from typing import Any, cast

import torch as th
from gymnasium import spaces
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import GymEnv

from ppo_plus.envs.normalization import warn_of_statistics
from ppo_plus.policy.adapter import contribs_policy, without_contrib
from ppo_plus.saving.format.container import PathOrFile, is_container, naming, opened
from ppo_plus.saving.format.names import Damaged, NotInstalled, Refused, decoding, name_of
from ppo_plus.saving.model import ALWAYS, SAVED_WITH, M, SavedModel, argument_attributes, assemble, attributes_of
from ppo_plus.saving.sb3.pickles import parse, value_of
from ppo_plus.trees import tree_leaves

#: What a PPO has and SB3's other algorithms do not all have.
OF_PPO = frozenset({"clip_range", "n_epochs", "gae_lambda"})
#: What SB3 saves if the environments are in a ``VecNormalize``, also in one that normalizes rewards alone.
ORIGINAL = "_last_original_obs"


def from_sb3(
    cls: type[M],
    path: PathOrFile,
    env: GymEnv | None,
    device: th.device | str,
    changes: dict[str, Any],
    custom_objects: dict[str, Any] | None = None,
    trust_pickle: bool = False,
    print_system_info: bool = False,
    force_reset: bool = True,
) -> M:
    """See :meth:`ppo_plus.PPO_Plus.from_sb3`, of which ``cls`` is a class; the others are those of SB3's ``load``."""
    objects = custom_objects or {}
    data, unread, parameters, system_info = _read(cls, path, objects, changes, trust_pickle)
    if print_system_info:
        print(SAVED_WITH, system_info, sep="\n")
    data |= {**objects, **{name: changes[name] for name in ALWAYS if name in changes}}
    policy = data.get("policy_class")
    is_maskable = contribs_policy(policy).startswith("Maskable")
    if (ours := without_contrib(policy)) is not policy:
        data["policy_class"] = cls.policy_aliases[str(ours)]
    buffer_class = data.get("rollout_buffer_class")
    if getattr(buffer_class, "__module__", "").startswith(("stable_baselines3.", "sb3_contrib.")):
        data["rollout_buffer_class"] = None
    data |= {"value_clip": "plain", "_expects_masks": is_maskable}
    present = unread | data
    if ORIGINAL in present and present.get("_last_obs") is not None:  # it has been trained
        data["_trained_normalized"] = False if present[ORIGINAL] is None else "maybe"
    if is_maskable and isinstance(data.get("action_space"), spaces.MultiBinary):
        with naming(path, "saved model"), decoding("its weights"):
            # Ours is the difference of the two.
            change_logits(parameters, lambda rows: rows[1::2] - rows[::2], lambda _, rows: rows[1::2].clone())
    model = {"class": name_of(cls), "attributes": {}, "missing": unread, "parameters": parameters}
    for part, paths in attributes_of(cls).items():
        model[part] = {name: data[path] for name, path in paths.items() if path in data}
    attributes = argument_attributes(cls).values()
    replacing = {name: value for name, value in objects.items() if name in attributes}
    changes = replacing | changes | {"policy_class": data.get("policy_class")}
    with naming(path, "saved model"):
        loaded = assemble(cls, model, env, device, force_reset, changes)
    if env is not None:
        warn_of_statistics(data.get("_trained_normalized"), loaded.env)
    return loaded


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


def _read(
    cls: type[SavedModel],
    path: PathOrFile,
    custom_objects: dict[str, Any],
    changes: dict[str, Any],
    trust_pickle: bool,
) -> tuple[dict[str, Any], dict[str, str], dict[str, Any], str]:
    """What :func:`read_sb3_zip` returns, without running the pickles in it unless they are trusted."""
    if is_container(path):
        with naming(path):
            raise Refused(f"{cls.__name__} saved it: use {cls.__name__}.load")
    data, unread, parameters, system_info = read_sb3_zip(
        path, custom_objects.keys() | ({"policy_class"} & changes.keys())
    )
    if not {*data, *unread, *custom_objects, *changes} >= OF_PPO:
        which = "an SB3 PPO, or of an sb3-contrib MaskablePPO or RecurrentPPO"
        raise TypeError(f"{path!r} is not the path of {which}: pass the path of a model that one of them has saved")
    needed = {*ALWAYS, *argument_attributes(cls).values()} - changes.keys() - cls.scheduled
    lacking = {name: reason for name, reason in unread.items() if name in needed}
    if trust_pickle and unread:
        # Last, and only for these: another version of Python, for instance, cannot unpickle functions.
        unpickled: dict[str, Any] = {}
        with nullcontext() if lacking else suppress(Exception), opened(path) as file:
            sb3_file = cast(io.BufferedIOBase, file)
            unpickled = load_from_zip_file(sb3_file, device="cpu", custom_objects=custom_objects)[0] or {}
        data = unpickled | data
        unread = {name: reason for name, reason in unread.items() if name not in data}
        lacking = {name: reason for name, reason in lacking.items() if name in unread}
    if lacking:
        with naming(path):
            pickles = ", ".join(f"{name} ({reason})" for name, reason in lacking.items())
            remedy = f"Pass {'=, '.join(lacking)}= or, if you trust its source, trust_pickle=True (--trust-model)"
            raise Refused(f"it contains pickles that could run code: {pickles}. {remedy}")
    return data, unread, parameters, system_info


# --- zips of SB3: weights, and JSON with pickles in it, which are run only if they are trusted ------------------------

#: The members of interest.
MEMBERS = {
    "policy": "policy.pth",
    "policy.optimizer": "policy.optimizer.pth",
    "data": "data",
    "system_info": "system_info.txt",
}
#: The largest size of compressed members: so many bytes, or so many times the size of the file.
MOST_BYTES, MOST_TIMES = 2**26, 20


def read_sb3_zip(
    path_or_file: PathOrFile, skipped: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, str], dict[str, Any], str]:
    """What can be read of a saved model without running its pickles: attributes, by name why others cannot, weights,
    and SB3's text on the system; raises :class:`Refused` if it is not a model, or only pickles have its weights."""
    with naming(path_or_file, "saved model"):
        with opened(path_or_file) as file, decoding("the archive"):
            size = file.seek(0, io.SEEK_END)
            with zipfile.ZipFile(file) as archive:
                _check_members(archive.infolist(), size)
                present = {*archive.namelist()}
                members = {name: archive.read(path) for name, path in MEMBERS.items() if path in present}
        system_info = members.pop("system_info", b"saved with SB3 1.2 or older")[:2000].decode(errors="replace")
        system_info = "\n".join("".join(filter(str.isprintable, line)) for line in system_info.splitlines())
        data, unread = _attributes(members.pop("data", b""), skipped)
        parameters = {name: _tensors(name, content) for name, content in members.items()}
        with decoding("its weights"):
            _share_extractor(parameters)
        return data, unread, parameters, system_info


def _share_extractor(parameters: dict[str, Any]) -> None:
    """Give actor and critic the weights of the features extractor, which SB3 before 1.7 has once."""
    weights = parameters.get("policy", {})
    if not any(name.startswith("pi_features_extractor.") for name in weights):
        extractor = {name: weight for name, weight in weights.items() if name.startswith("features_extractor.")}
        # First, because `change_logits` counts from the end.
        copies = {f"{part}_{name}": weight for part in ("pi", "vf") for name, weight in extractor.items()}
        parameters["policy"] = copies | weights


def _check_members(infos: list[zipfile.ZipInfo], size: int) -> None:
    if len({info.filename for info in infos}) != len(infos):
        raise Damaged("it has a member twice")
    if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in infos):
        raise Damaged("its members are compressed in another way than SB3's")
    if sum(info.file_size for info in infos) > max(MOST_BYTES, MOST_TIMES * size):
        raise Damaged(f"its members are more than {MOST_TIMES} times larger than itself")


def _attributes(text: bytes, skipped: Collection[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Those that can be read, and why the others cannot."""
    with decoding("its attributes"):
        written = {name: value for name, value in json.loads(text.decode()).items() if name not in skipped}
    data, unread = {}, {}
    for name, value in written.items():
        try:
            if isinstance(value, dict) and ":serialized:" in value:
                with decoding():
                    pickled = base64.b64decode(value[":serialized:"], validate=True)
                value = value_of(parse(pickled), len(pickled))
            data[name] = value
        except NotInstalled:
            raise
        except Refused as error:
            unread[name] = str(error)
    return data, unread


def _tensors(name: str, content: bytes) -> Any:
    """What torch saved, read by its reader that knows tensors only."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check_members(archive.infolist(), len(content))
        loaded = th.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Refused:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0][:200]
        raise Refused(f"{name}.pth cannot be read as tensors alone ({type(error).__name__}: {reason})") from error
    for tensor in (leaf for leaf in tree_leaves(loaded) if isinstance(leaf, th.Tensor)):
        if tensor.layout != th.strided or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise Refused("it has a tensor that is larger than its numbers")  # copies of it would be larger too
    return loaded
