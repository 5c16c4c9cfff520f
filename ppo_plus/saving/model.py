"""A model as a file that cannot run code: its arguments and state as text, its weights as tensors."""

import math
import os
import threading
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.save_util import recursive_getattr, recursive_setattr
from stable_baselines3.common.type_aliases import GymEnv
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from ppo_plus.compiling.compilation import CompileStatus
from ppo_plus.formulas.schedules import Bounded
from ppo_plus.require import require_spaces
from ppo_plus.saving.format import container
from ppo_plus.saving.format.container import PathOrFile, naming
from ppo_plus.saving.format.decode import restore
from ppo_plus.saving.format.encode import Undescribable, describe
from ppo_plus.saving.format.names import Damaged, Refused, name_of, require_attributes
from ppo_plus.saving.sb3.from_sb3 import argument_attributes
from ppo_plus.saving.sb3.zip import check_unread, read_sb3_zip

KIND = "model"
#: What a model is never without: the names in a file, which are those of attributes too.
ALWAYS = ("policy_class", "observation_space", "action_space")
#: The state of a model beside its arguments: the names in a file, and where the model has it.
STATE = {
    "n_envs": "n_envs",
    "num_timesteps": "num_timesteps",
    "total_timesteps": "_total_timesteps",
    "timesteps_at_start": "_num_timesteps_at_start",
    "progress_remaining": "_current_progress_remaining",
    "start_time": "start_time",
    "n_updates": "_n_updates",
    "n_episodes": "_episode_num",
    "episode_infos": "ep_info_buffer",
    "episode_successes": "ep_success_buffer",
    "expects_masks": "_expects_masks",
    "observations": "collector.obs",
    "episode_starts": "collector.starts",
    "carry": "collector.carry",
    "kl_memory": "updater.kl_memory",
    "skipped_minibatches": "updater.n_skipped",
    "planned_gradient_steps": "compilation.n_planned",
    "compile_decision": "compilation.decision",
    "compile_required": "compilation.strict",
    "compile_obstacles": "compilation.unable",
}
DECISION = STATE["compile_decision"]
#: Attributes that are made from the others, or have no meaning here.
NOT_SAVED = frozenset({"action_noise", "lr_schedule", "_last_original_obs"})
#: How many weights a model may make, and how many times more than its file contains: networks may replace others.
MOST_WEIGHTS, MOST_TIMES = 2**22, 4


def places_of_arguments(cls: Any) -> dict[str, str]:
    """The arguments of ``PPO_Plus`` and its spaces: the names in a file, and the attributes that have them.

    :param cls: the class, or one that is derived from it; further arguments of that are attributes like any other
    """
    ours = next(each for each in cls.__mro__ if name_of(each) == "ppo_plus:PPO_Plus")
    return {name: name for name in ALWAYS} | argument_attributes(ours)


def save_model(model: Any, path: PathOrFile, exclude: Iterable[str] | None, include: Iterable[str] | None) -> None:
    """Save a :class:`~ppo_plus.PPO_Plus`; see :meth:`ppo_plus.PPO_Plus.save`."""
    state = state_of(model, exclude, include)
    container.write(path, KIND, state)
    if state["missing"]:
        names, reasons = _names_and_reasons(state["missing"])
        warnings.warn(f"the model is saved without {names}: {reasons}; or save(path, pickle=True)", stacklevel=3)


def state_of(model: Any, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None) -> dict[str, Any]:
    """A model as a value that files can contain; :func:`assemble` makes the model again.

    :param model: a :class:`~ppo_plus.PPO_Plus`
    :param exclude: attributes to leave out
    :param include: attributes to keep that would be left out
    :return: ``"arguments"`` and ``"state"`` by their names in files, and the other ``"attributes"`` by their own; under
        ``"missing"``, by name, why what has no description is left out
    """
    left_out = {*(exclude or ()), *model._excluded_save_params(), *NOT_SAVED} - {*(include or ())}
    states, variables = model._get_torch_save_params()
    left_out |= {name.partition(".")[0] for name in [*states, *variables]}
    present = vars(model).keys() - left_out
    places = {"arguments": places_of_arguments(type(model)), "state": STATE}
    saved: dict[str, Any] = {"class": name_of(type(model))}
    for part, names in places.items():
        saved[part] = {name: attrgetter(place)(model) for name, place in names.items() if _owner(place) in present}
    known = {_owner(place) for names in places.values() for place in names.values()}
    saved["attributes"] = {name: value for name, value in vars(model).items() if name in present - known}
    if "compile_decision" in saved["state"]:
        decision = saved["state"]["compile_decision"]
        saved["state"]["compile_decision"] = [decision.compiles, decision.reason, decision.unexpected]
    saved["arguments"] = {name: _plain(value) for name, value in saved["arguments"].items()}
    missing = [_take_undescribable(saved[part]) for part in ("arguments", "state", "attributes")]
    saved["missing"] = {name: reason for reasons in missing for name, reason in reasons.items()}
    saved["parameters"] = model.get_parameters()
    saved["variables"] = {name: recursive_getattr(model, name) for name in variables}
    return saved


def _plain(argument: Any) -> Any:
    """An argument as it was given: paths as text, schedules without the range that the argument has."""
    if isinstance(argument, os.PathLike):
        return os.fspath(argument)
    return argument.schedule if isinstance(argument, Bounded) else argument


def _owner(place: str) -> str:
    """The attribute of a model that a place is in."""
    return place.partition(".")[0]


def _take_undescribable(values: dict[str, Any]) -> dict[str, str]:
    """Take out what has no description, and return the reason for each."""
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
    """See :meth:`ppo_plus.PPO_Plus.load`, of which ``cls`` is a class; of a pickled file, what can be read safely."""
    given = {**custom_objects, **changes}
    needed = {*ALWAYS, *argument_attributes(cls).values()} - given.keys()
    if container.is_container(path):
        head, arrays = container.read_parts(path, KIND)
        if print_system_info:
            print(
                "== SAVED MODEL SYSTEM INFO ==",
                *(f"{name}: {each}" for name, each in head["packages"].items()),
                sep="\n",
            )
        with naming(path, "saved model"):
            saved = _restored(cls, head["value"], arrays, given)
            if not isinstance(saved["missing"], dict):
                raise Damaged("it does not describe a model")
            _check_missing(saved["missing"], {**places_of_arguments(cls), **argument_attributes(cls)}, needed)
    else:
        pickled = read_sb3_zip(path, given)
        check_unread(path, pickled.unread, needed)
        saved = {
            "arguments": {},
            "state": {},
            "attributes": pickled.data,
            "parameters": pickled.parameters,
            "variables": {},
        }
    with naming(path, "saved model"):
        return assemble(cls, saved, env, device, force_reset, changes, custom_objects)


def load_parameters(path: PathOrFile) -> dict[str, Any]:
    """The states of networks and optimizers in a file, for ``set_parameters``; parameters and errors as for loading."""
    if not container.is_container(path):
        return read_sb3_zip(path).parameters
    head, arrays = container.read_parts(path, KIND)
    with naming(path, "saved model"):
        return dict(_part(head["value"], "parameters", arrays))


def _restored(
    cls: Any, written: dict[str, Any], arrays: Mapping[str, th.Tensor], given: Collection[str]
) -> dict[str, Any]:
    """The value of :func:`state_of` from its description, without the attributes that are given."""
    places = {"arguments": places_of_arguments(cls), "state": STATE, "attributes": {}}
    saved: dict[str, Any] = {name: _part(written, name, arrays) for name in ("missing", "parameters", "variables")}
    for part, names in places.items():
        if not isinstance(written.get(part), dict):
            raise Damaged(f"it has no {part}")
        wanted = [name for name in written[part] if names.get(name, name) not in given]
        if "kl_control" in given and "kl_memory" in wanted:
            wanted.remove("kl_memory")  # another control has no use for it
        saved[part] = {name: _part(written[part], name, arrays) for name in wanted}
    return saved


def _part(written: Mapping[str, Any], name: str, arrays: Mapping[str, th.Tensor]) -> Any:
    try:
        return restore(written[name], arrays)
    except Refused as error:
        raise type(error)(f"{name}: {error}") from error
    except (KeyError, TypeError):
        raise Damaged(f"it has no {name}") from None


def _check_missing(missing: Any, places: Mapping[str, str], needed: Collection[str]) -> None:
    """:raises Refused: a file was saved without something that is needed and not given"""
    lacking = {name: reason for name, reason in missing.items() if places.get(name, name) in needed}
    if lacking:
        names, reasons = _names_and_reasons(lacking)
        raise Refused(f"it was saved without {names}: {reasons}. Pass {', '.join(f'{name}=' for name in lacking)}")


def _names_and_reasons(missing: Mapping[str, Any]) -> tuple[str, str]:
    return " and ".join(missing), "; ".join(map(str, missing.values()))


def assemble(
    cls: Any,
    saved: dict[str, Any],
    env: GymEnv | None,
    device: th.device | str,
    force_reset: bool,
    changes: dict[str, Any],
    custom_objects: Mapping[str, Any] | None = None,
) -> Any:
    """The model of a file, made in SB3's order.

    :param cls: its class
    :param saved: from :func:`state_of`
    :param env: where to train on
    :param device: where to compute
    :param force_reset: start new episodes, if an environment is given
    :param changes: attributes to change
    :param custom_objects: attributes in place of those in the file
    :raises Damaged: it does not describe a model
    """
    places = _by_place(cls, saved)
    data = {place: value for place, value in places.items() if "." not in place}
    data = {**{name: changes[name] for name in ALWAYS if name in changes}, **saved["attributes"], **data}
    data.update(custom_objects or {})
    _check_kinds(data, saved["parameters"])
    data.setdefault("policy_kwargs", changes.get("policy_kwargs", {})).pop("device", None)
    if env is not None:
        wrapped = cls._wrap_env(env, data.get("verbose", 0))
        require_spaces(wrapped, data["observation_space"], data["action_space"])
        data["n_envs"], env = wrapped.num_envs, wrapped
    model = cls(data["policy_class"], env, device=device, _init_setup_model=False)
    with _building(saved["parameters"]):
        vars(model).update(data)
        for place, value in places.items():
            owner, _, name = place.rpartition(".")
            if owner:
                setattr(attrgetter(owner)(model), name, value)
        if env is not None and force_reset:
            vars(model).pop("_last_obs", None)
            model._last_obs = None
        vars(model).update(changes)
        model._setup_model()
        networks, variables = model._get_torch_save_params()
        if saved["parameters"].keys() != {*networks} or not saved["variables"].keys() <= {*variables}:
            raise Damaged(f"it has other networks or variables than {cls.__name__}")
        model.set_parameters(saved["parameters"], exact_match=True, device=device)
        for name, value in saved["variables"].items():
            recursive_setattr(model, f"{name}.data", value.data)
        if model.use_sde:
            model.policy.reset_noise()
    return model


def _by_place(cls: Any, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments and the state of a file, by where a model has them.

    :raises Damaged: the file has other parts, or unknown names
    """
    parts = ("arguments", "state", "attributes", "parameters", "variables")
    if not all(isinstance(saved.get(part), dict) for part in parts):
        raise Damaged("it does not describe a model")
    require_attributes(cls, saved["attributes"])
    found: dict[str, Any] = {}
    for part, places in (("arguments", places_of_arguments(cls)), ("state", STATE)):
        unknown = saved[part].keys() - places.keys()
        if unknown:
            raise Damaged(f"it has an unknown {part} {str(min(unknown))[:100]!r}")
        found |= {places[name]: value for name, value in saved[part].items()}
    if DECISION in found:
        found[DECISION] = _decision(found[DECISION])
    return found


def _decision(written: Any) -> CompileStatus:
    if not isinstance(written, list) or list(map(type, written)) != [bool, str, bool]:
        raise Damaged("its compile_decision is not valid")
    return CompileStatus(*written)


def _check_kinds(data: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """:raises Damaged: it is not what a model is made of"""
    missing = [name for name in ALWAYS if name not in data]
    if missing:
        raise Damaged(f"it has no {' and no '.join(missing)}")
    is_policy = isinstance(data["policy_class"], type) and issubclass(data["policy_class"], ActorCriticPolicy)
    are_spaces = all(isinstance(data[name], spaces.Space) for name in ("observation_space", "action_space"))
    if not is_policy or not are_spaces or not isinstance(data.get("policy_kwargs", {}), dict):
        raise Damaged("its policy or its spaces are not valid")
    if _n_choices(data["action_space"]) > _n_weights(parameters):
        raise Damaged("it has more actions than its weights could choose from")


def _n_choices(space: spaces.Space) -> float:
    """The least number of outputs that choices need."""
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
def _building(parameters: Mapping[str, Any]) -> Iterator[None]:
    """Do not build much larger networks than a file has weights for: memory would be allocated, but never used.

    :param parameters: the states of all networks and optimizers in the file
    :raises Damaged: they are larger, or do not fit
    """
    thread, left = threading.get_ident(), MOST_WEIGHTS + MOST_TIMES * _n_weights(parameters)

    def count(module: th.nn.Module, name: str, parameter: th.nn.Parameter) -> None:
        nonlocal left
        if threading.get_ident() == thread and parameter is not None and not is_lazy(parameter):
            left -= parameter.numel()
            if left < 0:
                raise Damaged("its networks are larger than its weights")

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    except (ValueError, TypeError):
        raise  # names the wrong argument
    except Exception as error:
        raise Damaged(f"no model can be made of it ({type(error).__name__}: {error})") from error
    finally:
        handle.remove()
