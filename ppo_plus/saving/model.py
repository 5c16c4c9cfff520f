"""A model as a file that cannot run code: its arguments and state as text, its weights as tensors."""

import inspect
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
from stable_baselines3.common.type_aliases import GymEnv
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from ppo_plus.compiling.compilation import CompileStatus
from ppo_plus.formulas.schedules import Bounded
from ppo_plus.require import nearest, require_spaces
from ppo_plus.saving.format import container
from ppo_plus.saving.format.container import PathOrFile, naming
from ppo_plus.saving.format.names import Damaged, Refused, decoding, name_of, require_attributes
from ppo_plus.saving.format.values import Undescribable, describe, restore
from ppo_plus.saving.sb3.zip import read_sb3_zip

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
#: Attributes that are made from the others, or have no meaning here.
NOT_SAVED = frozenset({"action_noise", "lr_schedule", "_last_original_obs"})
#: Arguments whose attributes have another name.
ATTRIBUTES = {"stats_window_size": "_stats_window_size"}
#: How many weights a model may make, and how many times more than its file contains: networks may replace others.
MOST_WEIGHTS, MOST_TIMES = 2**22, 4


def argument_attributes(cls: type[Any]) -> dict[str, str]:
    """The arguments of a class that do not have to be as they were, and the attributes that have them."""
    constructors = [vars(each)["__init__"] for each in cls.__mro__ if "__init__" in vars(each) and each is not object]
    names = {name for constructor in constructors for name in inspect.signature(constructor).parameters}
    names -= {"self", "args", "kwargs", "policy", "env", "device", "_init_setup_model"}
    return {name: ATTRIBUTES.get(name, name) for name in sorted(names)}


def changes(cls: type[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Changed arguments of a saved model, by attribute; raises :class:`TypeError` if a model has no such argument."""
    arguments = argument_attributes(cls)
    known = {*arguments}
    if not kwargs.keys() <= known:
        known |= vars(cls("MlpPolicy", None, device="cpu", _init_setup_model=False)).keys()
    for name, value in kwargs.items():
        if name not in known:
            likely = nearest(name, arguments)
            remedy = f"see help({cls.__name__}) for its arguments" if likely is None else f"did you mean {likely}?"
            raise TypeError(f"{name}={value!r} is not an argument of {cls.__name__}: {remedy}")
    return {ATTRIBUTES.get(name, name): value for name, value in kwargs.items()}


def base_of(cls: type[Any]) -> type[Any]:
    """``PPO_Plus``, of which ``cls`` is a class."""
    return next(each for each in cls.__mro__ if name_of(each) == "ppo_plus:PPO_Plus")


def _places(cls: type[Any]) -> dict[str, dict[str, str]]:
    """Where a model has what is in the parts of a file: by part, and by name in the file."""
    return {"arguments": {name: name for name in ALWAYS} | argument_attributes(base_of(cls)), "state": STATE}


def _not_attributes(model: Any) -> set[str]:
    """The attributes that are made from others, belong to this process, or are in other parts of a file."""
    places = [place for part in _places(type(model)).values() for place in part.values()]
    left_out = {*model._excluded_save_params(), *NOT_SAVED, *model._get_torch_save_params()[0]}
    return {each.partition(".")[0] for each in [*places, *left_out]}


def save_model(model: Any, path: PathOrFile, exclude: Iterable[str] | None, include: Iterable[str] | None) -> None:
    """Save a :class:`~ppo_plus.PPO_Plus`; see :meth:`ppo_plus.PPO_Plus.save`."""
    state = state_of(model, exclude or (), include or ())
    container.write(path, KIND, state)
    if state["missing"]:
        warnings.warn(f"the model is saved {_without(state['missing'])}; or save(path, pickle=True)", stacklevel=3)


def state_of(model: Any, exclude: Iterable[str] = (), include: Iterable[str] = ()) -> dict[str, Any]:
    """A model as a value that files can contain, from which :func:`assemble` makes the model again: ``"arguments"`` and
    ``"state"`` by their names in files, and the other ``"attributes"`` by their own; under ``"missing"``, by name, why
    what has no description is left out."""
    present = vars(model).keys() - {*exclude}
    saved: dict[str, Any] = {"class": name_of(type(model))}
    for part, names in _places(type(model)).items():
        found = {name: place for name, place in names.items() if place.partition(".")[0] in present}
        saved[part] = {name: attrgetter(place)(model) for name, place in found.items()}
    others = present - (_not_attributes(model) - {*include})
    saved["attributes"] = {name: value for name, value in vars(model).items() if name in others}
    if "compile_decision" in saved["state"]:
        decision = saved["state"]["compile_decision"]
        saved["state"]["compile_decision"] = [decision.compiles, decision.reason, decision.unexpected]
    saved["arguments"] = {name: _plain(value) for name, value in saved["arguments"].items()}
    missing = {}
    for part in ("arguments", "state", "attributes"):
        for name, value in [*saved[part].items()]:
            try:
                describe(value, name)
            except Undescribable as error:
                missing[name] = str(error)
                del saved[part][name]
    return {**saved, "missing": missing, "parameters": model.get_parameters()}


def _plain(argument: Any) -> Any:
    """An argument as it was given: paths as text, schedules without the range that the argument has."""
    if isinstance(argument, os.PathLike):
        return os.fspath(argument)
    return argument.schedule if isinstance(argument, Bounded) else argument


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
    """See :meth:`ppo_plus.PPO_Plus.load`, of which ``cls`` is a class."""
    given = {**custom_objects, **changes}
    head, arrays = container.read_parts(path, KIND)
    if print_system_info:
        print("== SAVED MODEL SYSTEM INFO ==", *map(": ".join, head["packages"].items()), sep="\n")
    with naming(path, "saved model"):
        saved = _restored(cls, head["value"], arrays, given)
        places = _places(cls)["arguments"] | argument_attributes(cls)
        needed = {*places.values()} - given.keys()
        lacking = {name: reason for name, reason in saved["missing"].items() if places.get(name) in needed}
        if lacking:
            raise Refused(f"it was saved {_without(lacking)}. Pass {', '.join(f'{name}=' for name in lacking)}")
        return assemble(cls, saved, env, device, force_reset, changes, custom_objects)


def load_parameters(path: PathOrFile) -> dict[str, Any]:
    """The states of networks and optimizers in a file, for ``set_parameters``; parameters and errors as for loading."""
    if not container.is_container(path):
        return read_sb3_zip(path).parameters
    head, arrays = container.read_parts(path, KIND)
    with naming(path, "saved model"), decoding("the model"):
        return dict(_part(head["value"], "parameters", arrays))


def _restored(
    cls: Any, written: dict[str, Any], arrays: Mapping[str, th.Tensor], given: Collection[str]
) -> dict[str, Any]:
    """The value of :func:`state_of` from its description, without the attributes that are given."""
    # Another control has no use for the memory of this one.
    unwanted = {*given, STATE["kl_memory"]} if "kl_control" in given else {*given}
    with decoding("the model"):
        saved = {name: _part(written, name, arrays) for name in ("missing", "parameters")}
        saved["missing"] = dict(saved["missing"])
        for part, names in {**_places(cls), "attributes": {}}.items():
            wanted = [name for name, _ in written[part].items() if names.get(name, name) not in unwanted]
            saved[part] = {name: _part(written[part], name, arrays) for name in wanted}
    return saved


def _part(written: Mapping[str, Any], name: str, arrays: Mapping[str, th.Tensor]) -> Any:
    try:
        return restore(written[name], arrays)
    except Refused as error:
        raise type(error)(f"{name}: {error}") from error


def _without(missing: Mapping[str, Any]) -> str:
    return f"without {' and '.join(missing)}: {'; '.join(map(str, missing.values()))}"


def assemble(
    cls: Any,
    saved: dict[str, Any],
    env: GymEnv | None,
    device: th.device | str,
    force_reset: bool,
    changes: dict[str, Any],
    custom_objects: Mapping[str, Any] | None = None,
) -> Any:
    """The model of a file, made in SB3's order; raises :class:`Damaged` if it describes none."""
    places = _by_place(cls, saved)
    given = {**{name: changes[name] for name in ALWAYS if name in changes}, **(custom_objects or {})}
    data = {place: value for place, value in places.items() if "." not in place} | given
    n_weights = _check_kinds(data, saved["parameters"])
    data.setdefault("policy_kwargs", changes.get("policy_kwargs", {})).pop("device", None)
    if env is not None:
        wrapped = cls._wrap_env(env, data.get("verbose", 0))
        require_spaces(wrapped, data["observation_space"], data["action_space"])
        data |= {"observation_space": wrapped.observation_space, "action_space": wrapped.action_space}
        data["n_envs"], env = wrapped.num_envs, wrapped
    model = cls(data["policy_class"], env, device=device, _init_setup_model=False)
    left_out = _not_attributes(model)
    with _building(n_weights):
        vars(model).update({name: each for name, each in saved["attributes"].items() if name not in left_out}, **data)
        for place, value in places.items():
            owner, _, name = place.rpartition(".")
            if owner:
                setattr(attrgetter(owner)(model), name, value)
        if env is not None and force_reset:
            model._last_obs = None
        vars(model).update(changes)
        model._setup_model()
        if saved["parameters"].keys() != {*model._get_torch_save_params()[0]}:
            raise Damaged(f"it has other networks than {cls.__name__}")
        model.set_parameters(saved["parameters"], exact_match=True, device=device)
        if model.use_sde:
            model.policy.reset_noise()
    return model


def _by_place(cls: Any, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments and the state of a file, which are checked, by where a model has them."""
    if not all(isinstance(saved.get(part), dict) for part in ("arguments", "state", "attributes", "parameters")):
        raise Damaged("it does not describe a model")
    require_attributes(cls, saved["attributes"])
    found: dict[str, Any] = {}
    for part, places in _places(cls).items():
        unknown = saved[part].keys() - places.keys()
        if unknown:
            raise Damaged(f"it has an unknown {part} {str(min(unknown))[:100]!r}")
        found |= {places[name]: value for name, value in saved[part].items()}
    if "compile_decision" in saved["state"]:
        decision = saved["state"]["compile_decision"]
        if not isinstance(decision, list) or list(map(type, decision)) != [bool, str, bool]:
            raise Damaged("its compile_decision is not valid")
        found[STATE["compile_decision"]] = CompileStatus(*decision)
    return found


def _check_kinds(data: Mapping[str, Any], parameters: Mapping[str, Any]) -> int:
    """The number of weights of what a model is made of, which is checked."""
    policy_class = data.get("policy_class")
    is_policy = isinstance(policy_class, type) and issubclass(policy_class, ActorCriticPolicy)
    are_spaces = all(isinstance(data.get(name), spaces.Space) for name in ("observation_space", "action_space"))
    if not is_policy or not are_spaces or not isinstance(data.get("policy_kwargs", {}), dict):
        raise Damaged("its policy or its spaces are missing or not valid")
    weights = parameters.get("policy")
    if not isinstance(weights, dict) or not all(isinstance(each, th.Tensor) for each in weights.values()):
        raise Damaged("it has no weights")
    n_weights = sum(each.numel() for each in weights.values())
    if spaces.flatdim(data["action_space"]) > n_weights:
        raise Damaged("it has more actions than its weights could choose from")
    return n_weights


@contextmanager
def _building(n_weights: int) -> Iterator[None]:
    """Raise :class:`Damaged` before networks are built that are much larger than the weights of a file."""
    thread, left = threading.get_ident(), MOST_WEIGHTS + MOST_TIMES * n_weights

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
