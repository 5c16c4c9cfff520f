"""A model as a file that cannot run code: its arguments and state as text, its weights as tensors."""

import math
import os
import threading
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.save_util import recursive_getattr, recursive_setattr
from stable_baselines3.common.type_aliases import GymEnv
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from ppo_plus.files import container
from ppo_plus.files.container import PathOrFile, naming
from ppo_plus.files.decode import restore
from ppo_plus.files.encode import Undescribable, describe
from ppo_plus.files.from_sb3 import attributes_of_arguments
from ppo_plus.files.names import Damaged, Refused, name_of
from ppo_plus.files.sb3_zip import check_unread, read_old_zip
from ppo_plus.require import require_spaces

KIND = "model"
#: What has a state of its own, and which of its attributes last.
OWNERS = {
    "collector": {"obs", "starts", "carry"},
    "learner": {"kl_memory", "skipped"},
    "compilation": {"n_planned", "decision", "strict", "unable", "tries"},
}
#: What is made anew from the rest.
DERIVED = frozenset({"lr_schedule"})
#: What a model is never without, beside its arguments.
ALWAYS = ("policy_class", "observation_space", "action_space")
#: How many weights a model may make, and how many times more than its file holds: networks may replace others.
MOST_WEIGHTS, MOST_TIMES = 2**22, 4


def save_model(model: Any, path: PathOrFile, exclude: Iterable[str] | None, include: Iterable[str] | None) -> None:
    """Save a :class:`~ppo_plus.PPO_Plus`; see :meth:`ppo_plus.PPO_Plus.save`."""
    state = state_of(model, exclude, include)
    container.write(path, KIND, state)
    if state["missing"]:
        names, reasons = _told(state["missing"])
        warnings.warn(f"the model is saved without {names}: {reasons}; or save(path, pickle=True)", stacklevel=3)


def state_of(model: Any, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None) -> dict[str, Any]:
    """All that lasts of a model, as a value that files can hold; :func:`assemble` makes the model again.

    :param model: a :class:`~ppo_plus.PPO_Plus`
    :param exclude: attributes to leave out
    :param include: attributes to keep that would be left out
    :return: under ``"missing"``, by name, what has no description and is left out
    """
    left_out = {*(exclude or ()), *model._excluded_save_params(), *DERIVED} - {*(include or ())}
    states, variables = model._get_torch_save_params()
    left_out |= {name.partition(".")[0] for name in [*states, *variables]}
    attributes: dict[str, Any] = {name: each for name, each in vars(model).items() if name not in left_out}
    owners = _states(attributes)
    if isinstance(attributes.get("tensorboard_log"), os.PathLike):
        attributes["tensorboard_log"] = os.fspath(attributes["tensorboard_log"])
    missing = {**_take_undescribable(attributes), **_take_undescribable(owners)}
    return {
        "class": name_of(type(model)),
        "attributes": attributes,
        "owners": owners,
        "missing": missing,
        "parameters": model.get_parameters(),
        "variables": {name: recursive_getattr(model, name) for name in variables},
    }


def _states(attributes: dict[str, Any]) -> dict[str, Any]:
    """The states of the owners among attributes, which are taken out."""
    present = {owner: attributes.pop(owner) for owner in OWNERS if owner in attributes}
    return {owner: {name: getattr(each, name) for name in sorted(OWNERS[owner])} for owner, each in present.items()}


def _take_undescribable(values: dict[str, Any]) -> dict[str, str]:
    """Take out what has no description, and say of each what it is."""
    found = {}
    for name, value in values.items():
        try:
            describe(value, name)
        except Undescribable as error:
            found[name] = str(error)
    for name in found:
        del values[name]
    return found


def load_model(
    cls: Any,
    path: PathOrFile,
    env: GymEnv | None,
    device: th.device | str,
    custom_objects: Mapping[str, Any],
    print_system_info: bool,
    force_reset: bool,
    changes: dict[str, Any],
) -> Any:
    """See :meth:`ppo_plus.PPO_Plus.load`, of which ``cls`` is a class; of an older file what can be read safely."""
    given = {**custom_objects, **changes}
    needed = {*ALWAYS, *attributes_of_arguments(cls)} - given.keys()
    if container.is_container(path):
        head, arrays = container.read_parts(path, KIND)
        if print_system_info:
            print(
                "== SAVED MODEL SYSTEM INFO ==",
                *(f"{name}: {each}" for name, each in head["packages"].items()),
                sep="\n",
            )
        with naming(path, "saved model"):
            saved = _restored(head["value"], arrays, given)
            _check_missing(saved["missing"], needed)
    else:
        old = read_old_zip(path, given)
        check_unread(path, old.unread, needed)
        saved = {"attributes": old.data, "owners": {}, "parameters": old.parameters, "variables": {}}
    saved["attributes"].update(custom_objects)
    with naming(path, "saved model"):
        return assemble(cls, saved, env, device, force_reset, changes)


def load_parameters(path: PathOrFile) -> dict[str, Any]:
    """The states of networks and optimizers in a file, for ``set_parameters``; parameters and errors as for loading."""
    if not container.is_container(path):
        return read_old_zip(path).parameters
    head, arrays = container.read_parts(path, KIND)
    with naming(path, "saved model"):
        return dict(_part(head["value"], "parameters", arrays))


def _restored(written: dict[str, Any], arrays: Mapping[str, th.Tensor], given: Collection[str]) -> dict[str, Any]:
    """What a description says of a model, without the attributes that are given."""
    try:
        attributes = {name: each for name, each in written["attributes"].items() if name not in given}
        owners = {name: each for name, each in written["owners"].items() if name in OWNERS}
    except (AttributeError, KeyError, TypeError) as error:
        raise Damaged(f"it describes no model ({type(error).__name__}: {error})") from error
    saved = {name: _part(written, name, arrays) for name in ("missing", "parameters", "variables")}
    saved["attributes"] = {name: _part(attributes, name, arrays) for name in attributes}
    saved["owners"] = {}
    for name in owners:
        try:
            saved["owners"][name] = _part(owners, name, arrays)
        except Damaged:
            raise
        except Refused:
            # What a KL control remembers is of no use to another one.
            if not (name == "learner" and "kl_control" in given):
                raise
    if not all(isinstance(each, dict) for each in (*saved.values(), *saved["owners"].values())):
        raise Damaged("it describes no model")
    return saved


def _part(written: Mapping[str, Any], name: str, arrays: Mapping[str, th.Tensor]) -> Any:
    try:
        return restore(written[name], arrays)
    except Refused as error:
        raise type(error)(f"{name}: {error}") from error
    except KeyError:
        raise Damaged(f"it has no {name}") from None


def _check_missing(missing: Any, needed: Collection[str]) -> None:
    lacking = {name: reason for name, reason in missing.items() if name in needed}
    if lacking:
        names, reasons = _told(lacking)
        raise Refused(f"it was saved without {names}: {reasons}. Pass {', '.join(f'{name}=' for name in lacking)}")


def _told(missing: Mapping[str, Any]) -> tuple[str, str]:
    """The names of what is missing, and why each is."""
    return " and ".join(missing), "; ".join(map(str, missing.values()))


def assemble(
    cls: Any,
    saved: dict[str, Any],
    env: GymEnv | None,
    device: th.device | str,
    force_reset: bool,
    changes: dict[str, Any],
) -> Any:
    """The model that a file says, as SB3 makes it of one.

    :param cls: its class
    :param saved: what :func:`state_of` returned
    :param env: where to train on
    :param device: where to compute
    :param force_reset: begin the episodes anew, where an environment is given
    :param changes: attributes to change
    :raises Damaged: it says of no model
    """
    data = {**{name: changes[name] for name in ALWAYS if name in changes}, **saved["attributes"]}
    _check_kinds(data, saved["parameters"])
    data.setdefault("policy_kwargs", changes.get("policy_kwargs", {})).pop("device", None)
    if env is not None:
        wrapped = cls._wrap_env(env, data.get("verbose", 0))
        require_spaces(wrapped, data["observation_space"], data["action_space"])
        data["n_envs"], env = wrapped.num_envs, wrapped
    model = cls(data["policy_class"], env, device=device, _init_setup_model=False)
    with _built(saved["parameters"]):
        vars(model).update(data)
        for owner, state in saved["owners"].items():
            for name in OWNERS[owner] & state.keys():
                setattr(getattr(model, owner), name, state[name])
        if env is not None and force_reset:
            vars(model).pop("_last_obs", None)
            model._last_obs = None
        vars(model).update(changes)
        model._setup_model()
        model.set_parameters(saved["parameters"], exact_match=True, device=device)
        for name, value in saved["variables"].items():
            recursive_setattr(model, f"{name}.data", value.data)
        if model.use_sde:
            model.policy.reset_noise()
    return model


def _check_kinds(data: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """:raises Damaged: it is not what a model is made of"""
    missing = [name for name in ALWAYS if name not in data]
    if missing:
        raise Damaged(f"it has no {' and no '.join(missing)}")
    is_policy = isinstance(data["policy_class"], type) and issubclass(data["policy_class"], ActorCriticPolicy)
    are_spaces = all(isinstance(data[name], spaces.Space) for name in ("observation_space", "action_space"))
    if not is_policy or not are_spaces or not isinstance(data.get("policy_kwargs", {}), dict):
        raise Damaged("its policy or its spaces are none")
    if _n_choices(data["action_space"]) > _n_weights(parameters):
        raise Damaged("it has more actions than the weights that it holds could choose from")


def _n_choices(space: spaces.Space) -> float:
    """How many outputs choices need at least."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        inner = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return sum(map(_n_choices, inner))
    if isinstance(space, spaces.MultiDiscrete):
        return float(space.nvec.sum(dtype=float))
    if isinstance(space, spaces.MultiBinary):
        return math.prod(map(float, space.shape))
    return float(space.n) if isinstance(space, spaces.Discrete) else 0.0


def _n_weights(parameters: Mapping[str, Any]) -> int:
    """:raises Damaged: it has none"""
    weights = parameters.get("policy")
    if not isinstance(weights, dict) or not all(isinstance(each, th.Tensor) for each in weights.values()):
        raise Damaged("it has no weights")
    return sum(each.numel() for each in weights.values())


@contextmanager
def _built(parameters: Mapping[str, Any]) -> Iterator[None]:
    """Refuse to build larger networks than a file holds weights of: memory for them is asked for, but never touched.

    :param parameters: the states of all networks and optimizers in the file
    :raises Damaged: they are larger, or do not fit
    """
    thread, left = threading.get_ident(), MOST_WEIGHTS + MOST_TIMES * _n_weights(parameters)

    def count(module: th.nn.Module, name: str, parameter: th.nn.Parameter) -> None:
        nonlocal left
        if threading.get_ident() == thread and parameter is not None and not is_lazy(parameter):
            left -= parameter.numel()
            if left < 0:
                raise Damaged("its networks are larger than the weights that it holds")

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    except (ValueError, TypeError):
        raise  # says itself which argument is wrong
    except Exception as error:
        raise Damaged(f"no model can be made of it ({type(error).__name__}: {error})") from error
    finally:
        handle.remove()
