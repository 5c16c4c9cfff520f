"""A model as a file that cannot run code: its arguments and state as text, its weights as tensors."""

import copy
import math
import os
import warnings
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import astuple
from operator import attrgetter
from pathlib import Path
from types import CellType, FunctionType
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy as SB3ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import GymEnv

from ppo_plus.call import Call
from ppo_plus.compiling.compiled import CompileStatus
from ppo_plus.envs.normalization import warn_of_statistics
from ppo_plus.formulas.exploration import NoiseProcess
from ppo_plus.formulas.kl_control import KLControl, KLState
from ppo_plus.formulas.schedules import Sampled, Schedule, Unknown, value_at
from ppo_plus.model import Model
from ppo_plus.policy.arguments import SHAPING
from ppo_plus.policy.normalization import OPTIONS, normalization_options
from ppo_plus.policy.policies import ActorCriticPolicy
from ppo_plus.require import ATTRIBUTES, require_spaces, unknown_argument
from ppo_plus.rollout.collector import Position
from ppo_plus.saving.format import container, names
from ppo_plus.saving.format.container import PathOrFile, naming
from ppo_plus.saving.format.names import Damaged, Refused, name_of
from ppo_plus.saving.format.values import Optional, Undescribable, describe, require_form, restore, unknown_names
from ppo_plus.saving.sb3.pickles import of_closure
from ppo_plus.settings import Settings
from ppo_plus.update.minibatch import FUSED, PER_PARAMETER, is_elementwise
from ppo_plus.update.update import Trainer


class SavedModel(Model):
    """What files keep of a :class:`ppo_plus.PPO_Plus`, or make it of, beside what SB3's algorithms have."""

    settings: Settings
    position: Position
    trainer: Trainer
    call: Call
    clip_range: Schedule | float | str | None
    clip_range_vf: Schedule | float | str | None
    exploration: NoiseProcess | None
    #: The arguments that may change over time.
    scheduled: ClassVar[frozenset[str]]
    #: The weights that the policy is built with, by name and shape; ``None``: it is not built yet.
    built_layout: dict[str, th.Size | type[th.optim.Optimizer]] | None
    #: Whether the environments' method gave masks in training, so that ``predict`` needs them too.
    _expects_masks: bool
    _last_episode_starts: np.ndarray | None
    _warned_of_schedules: bool


M = TypeVar("M", bound=SavedModel)
KIND = "model"
#: SB3's heading above the versions with which a model was saved.
SAVED_WITH = "== SAVED MODEL SYSTEM INFO =="


def _is_count(value: object) -> bool:
    return isinstance(value, (int, float, np.number)) and bool(0 <= value < math.inf)


def _is_kl_memory(value: Any) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], KLControl)
    return is_pair and isinstance(value[1], tuple) and [*map(type, value[1])] == [float] * len(KLState._fields)


def _is_policy_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, SB3ActorCriticPolicy)


#: What a model is never without, and its forms: the names in a file, which are those of attributes too.
ALWAYS = {"policy_class": _is_policy_class, "observation_space": spaces.Space, "action_space": spaces.Space}
#: The state of a model beside its arguments: the names in a file, the attributes that have it, and its forms.
STATE = {
    "n_envs": ("n_envs", _is_count),
    "num_timesteps": ("num_timesteps", _is_count),
    "total_timesteps": ("_total_timesteps", _is_count),
    "timesteps_at_start": ("_num_timesteps_at_start", _is_count),
    "progress_remaining": ("_current_progress_remaining", object),
    "start_time": ("start_time", object),
    "n_updates": ("_n_updates", _is_count),
    "n_episodes": ("_episode_num", _is_count),
    "episode_infos": ("ep_info_buffer", object),
    "episode_successes": ("ep_success_buffer", object),
    "expects_masks": ("_expects_masks", object),
    "trained_normalized": ("_trained_normalized", (None, bool, str)),
    "observations": ("_last_obs", object),
    "episode_starts": ("_last_episode_starts", (None, np.ndarray, th.Tensor)),
    "carry": ("position.carry", object),
    "stream_sums": ("position.stream_sums", (None, th.Tensor)),
    "kl_memory": ("trainer.kl_memory", (None, _is_kl_memory)),
    "skipped_minibatches": ("trainer.n_skipped", object),
    "planned_gradient_steps": ("compilation.n_planned", object),
    "compile_decision": ("compilation.decision", lambda it: type(it) is list and [*map(type, it)] == [bool, str, bool]),
    "compile_required": ("compilation.strict", object),
    "compile_obstacles": ("compilation.unable", object),
}
#: Arguments of policies that change nothing of what a trained one computes, or whose weights then do not fit.
CHANGEABLE = {"net_arch", "optimizer_class", "optimizer_kwargs", "autocast"}
#: Where files have the values of a schedule, in equal steps of the remaining progress.
POINTS = [i / 1024 for i in range(1025)]
#: Options of how an optimizer computes, which are those of this machine.
IMPLEMENTATION = ("capturable", "differentiable", "foreach", "fused")
#: What classes among ``policy_kwargs`` must be subclasses of, unless they are registered.
CLASSES = {"features_extractor_class": BaseFeaturesExtractor, "optimizer_class": th.optim.Optimizer}


def argument_attributes(cls: type[Any]) -> dict[str, str]:
    """The arguments that may be changed on loading, and their attributes."""
    left_out = {"self", "args", "kwargs", "policy", "env", "device", "_init_setup_model"}
    arguments = names.constructor_arguments(cls).keys() - left_out
    return {name: ATTRIBUTES.get(name, name) for name in sorted(arguments)}


def changed_attributes(cls: type[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Changed arguments of a saved model, by attribute; raises :class:`TypeError` if a model has no such argument."""
    arguments = argument_attributes(cls)
    known = {*arguments, *ALWAYS}
    if not kwargs.keys() <= known:
        known |= vars(cls("MlpPolicy", None, device="cpu", _init_setup_model=False)).keys()
    for name, value in kwargs.items():
        if name not in known:
            raise unknown_argument(cls.__name__, name, value, {known: known for known in arguments})
    return {ATTRIBUTES.get(name, name): value for name, value in kwargs.items()}


def base_of(cls: type[Any]) -> type[Any]:
    """``PPO_Plus``, of which ``cls`` is a class."""
    return next(base for base in cls.__mro__ if name_of(base) == "ppo_plus:PPO_Plus")


def attributes_of(cls: type[Any]) -> dict[str, dict[str, str]]:
    """The attributes of a model that have what is in the parts of a file: by part, and by name in the file."""
    arguments = {name: name for name in ALWAYS} | argument_attributes(base_of(cls))
    return {"arguments": arguments, "state": {name: attribute for name, (attribute, _) in STATE.items()}}


def form_of(cls: type[Any]) -> dict[str, Any]:
    """The form of a model in a file, see :func:`~ppo_plus.saving.format.values.require_form`."""
    kinds = ALWAYS | {"policy_kwargs": dict}
    return {
        "class": str,
        # Nothing else is valid: no form fits.
        "arguments": Optional({str: ()} | dict.fromkeys(attributes_of(cls)["arguments"], object) | kinds),
        "state": Optional({str: ()} | {name: form for name, (_, form) in STATE.items()}),
        "attributes": {str: object},
        "missing": {str: str},
        "parameters": {"policy": {str: th.Tensor}, str: object},
    }


# --- saving -----------------------------------------------------------------------------------------------------------


def save_model(
    model: SavedModel, path: PathOrFile, exclude: Iterable[str] | None, include: Iterable[str] | None
) -> None:
    """Save a :class:`~ppo_plus.PPO_Plus`; see :meth:`ppo_plus.PPO_Plus.save`."""
    state = state_of(model, {*(exclude or ())} - {*(include or ())})
    _require_rebuildable(model)
    container.write(container.path_to_save(path), KIND, state)
    notes, arguments = [], state["arguments"]
    if state["missing"]:
        notes.append(f"the model is saved {_without(state['missing'])}; or pass it to load in custom_objects=")
    sampled = [name for name in sampled_of(arguments) if getattr(model, name) is not arguments[name]]
    if sampled and not model._warned_of_schedules:
        model._warned_of_schedules = True
        values = f"the function's values at {len(POINTS):,} points of the remaining progress"
        remedy = "to save the function itself, call ppo_plus.register"
        notes.append(f"{' and '.join(sampled)}: the file has {values}, with straight lines between them; {remedy}")
    if unknown := sorted({name for part in ("arguments", "attributes") for name in unknown_names(state[part])}):
        titles = ", ".join(name.rpartition(":")[2] for name in unknown)
        notes.append(f"load needs {' and '.join(unknown)}: call ppo_plus.register({titles}) before it")
    if notes:
        warnings.warn("; ".join(notes), stacklevel=3)


def layout(policy: ActorCriticPolicy) -> dict[str, th.Size | type[th.optim.Optimizer]]:
    """The names and shapes of a policy's weights and buffers, and the class of its optimizer."""
    return {name: tensor.shape for name, tensor in policy.state_dict().items()} | {"optimizer": type(policy.optimizer)}


def _require_rebuildable(model: SavedModel) -> None:
    """:raises ValueError: the policy's weights, buffers or optimizer are not those that it is built with"""
    now = layout(model.policy)
    built = model.built_layout or now
    for name in {**now, **built}:
        if built.get(name) != now.get(name):
            problem = f"the policy's {name!r} has been added, removed, resized or replaced since the policy was built"
            remedy = "make it in a policy class (docs/customizing.md), or undo the change (such as torch.compile)"
            raise ValueError(f"{problem}, and load could not build the policy again: {remedy} before saving")


def _not_attributes(model: SavedModel) -> set[str]:
    """The attributes that are made from others, belong to this process, or are in other parts of a file."""
    elsewhere = [path for part in attributes_of(type(model)).values() for path in part.values()]
    left_out = {*model._excluded_save_params(), *model._get_torch_save_params()[0]}
    return {path.partition(".")[0] for path in [*elsewhere, *left_out]}


def state_of(model: SavedModel, exclude: Collection[str] = ()) -> dict[str, Any]:
    """A model as a value of :func:`form_of`: ``"arguments"`` and ``"state"`` by their names in files, the other
    ``"attributes"`` by their own, and under ``"missing"``, by name, why what has no description is left out."""
    saved: dict[str, Any] = {"class": name_of(type(model))}
    for part, paths in attributes_of(type(model)).items():
        roots = {name: path.partition(".")[0] for name, path in paths.items()}
        here = [name for name, root in roots.items() if hasattr(model, root) and root not in exclude]
        saved[part] = {name: attrgetter(paths[name])(model) for name in here}
    others = vars(model).keys() - _not_attributes(model) - {*exclude}
    saved["attributes"] = {name: value for name, value in vars(model).items() if name in others}
    if "compile_decision" in saved["state"]:
        saved["state"]["compile_decision"] = [*astuple(saved["state"]["compile_decision"])]
    if isinstance(saved["arguments"].get("tensorboard_log"), os.PathLike):
        saved["arguments"]["tensorboard_log"] = os.fspath(saved["arguments"]["tensorboard_log"])
    missing = {}
    for part in ("arguments", "state", "attributes"):
        for name, value in [*saved[part].items()]:
            try:
                if part == "arguments" and name in type(model).scheduled:
                    value = saved[part][name] = storable(name, value)
                describe(value, name)
            except Undescribable as error:
                missing[name] = str(error)
                del saved[part][name]
    return {**saved, "missing": missing, "parameters": model.get_parameters()}


def sampled_of(arguments: Mapping[str, Any]) -> list[str]:
    """The names of the schedules of which there are only values."""
    return sorted(name for name, value in arguments.items() if isinstance(value, Sampled))


def storable(name: str, schedule: Schedule | str | float | None) -> Any:
    """A schedule as a file can have it: a function that no file can name by its values at :data:`POINTS`.

    :raises Undescribable: it is unknown, raises an error, or depends on more than the remaining progress
    """
    if isinstance(schedule, Unknown):
        raise Undescribable(schedule.reason)
    schedule = of_closure(schedule)
    with suppress(Undescribable):
        if not unknown_names(schedule):
            return schedule
    remedy = "use a function of the remaining progress alone, or a schedule such as ppo_plus.linear(3e-4)"
    try:
        function: Any = schedule
        with suppress(Exception):
            function = _copied(function)  # calls may change it
        values = [value_at(point, name, function, -math.inf) for point in POINTS]
        if values[-1] != value_at(1.0, name, function, -math.inf):
            raise ValueError("it returns different numbers for the same progress")
    except Exception as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise Undescribable(f"{name} ({schedule!r:.200}) cannot be saved by its values, {problem}: {remedy}") from error
    return Sampled(th.tensor(values, dtype=th.float64, device="cpu"))


def _copied(schedule: Schedule) -> Schedule:
    """A copy of a schedule with its state. That of a function is what its closure has of numbers and containers, since
    copies of other objects, such as environments, may have effects."""
    if not isinstance(schedule, FunctionType):
        return copy.deepcopy(schedule)
    known = (int, float, list, dict, np.ndarray)
    contents = [cell.cell_contents for cell in schedule.__closure__ or ()]
    cells = tuple(CellType(copy.deepcopy(each) if isinstance(each, known) else each) for each in contents)
    copied = FunctionType(schedule.__code__, schedule.__globals__, schedule.__name__, None, cells)
    copied.__defaults__, copied.__kwdefaults__ = copy.deepcopy((schedule.__defaults__, schedule.__kwdefaults__))
    return copied


def _without(missing: Mapping[str, Any]) -> str:
    """What is missing, and why, with the remedies."""
    return f"without {' and '.join(missing)}: {'; '.join(map(str, missing.values()))}"


# --- loading ----------------------------------------------------------------------------------------------------------


def load_model(
    cls: type[M],
    path: PathOrFile,
    env: GymEnv | None,
    device: th.device | str,
    custom_objects: Mapping[str, Any],
    print_system_info: bool,
    force_reset: bool,
    changes: dict[str, Any],
) -> M:
    """See :meth:`ppo_plus.PPO_Plus.load`, of which ``cls`` is a class."""
    head, arrays = container.read_parts(path, KIND)
    if print_system_info:
        print(SAVED_WITH, *map(": ".join, head["packages"].items()), sep="\n")
    arguments = attributes_of(cls)["arguments"] | argument_attributes(cls)
    passed_by_caller = {*custom_objects, *changes}
    with naming(path, "saved model"), names.passed(custom_objects.values()):
        saved = _restored(cls, head["value"], arrays, passed_by_caller)
        needed = {*arguments.values()} - passed_by_caller - cls.scheduled
        lacking = {name: reason for name, reason in saved["missing"].items() if arguments.get(name) in needed}
        if lacking:
            raise Refused(f"it was saved {_without(lacking)}. Pass {', '.join(f'{name}=' for name in lacking)}")
        # Other custom objects are classes that the file names within its arguments.
        named = saved["attributes"] | saved["missing"]
        attributes = {*arguments.values(), *named, *attributes_of(cls)["state"].values()}
        replacing = {name: value for name, value in custom_objects.items() if name in attributes}
        model = assemble(cls, saved, env, device, force_reset, replacing | changes)
    if env is not None:
        warn_of_statistics(model._trained_normalized, model.env)
    return model


def _restored(
    cls: type[SavedModel], written: dict[str, Any], arrays: Mapping[str, th.Tensor], passed_by_caller: Collection[str]
) -> dict[str, Any]:
    """The value of :func:`state_of` from its description; what the caller passes need not be readable."""
    with names.decoding("the model"):
        saved = {name: restore(written[name], arrays) for name in ("class", "missing", "parameters")}
        saved["missing"] = dict(saved["missing"])
        for part, paths in {**attributes_of(cls), "attributes": {}}.items():
            saved[part] = {}
            for name, description in written[part].items():
                if name == "kl_memory" and "kl_control" in passed_by_caller:
                    continue  # another control has no use for it
                try:
                    saved[part][name] = restore(description, arrays)
                except Refused as error:
                    is_needed = isinstance(error, Damaged) or name not in cls.scheduled
                    if is_needed and paths.get(name, name) not in passed_by_caller:
                        raise type(error)(f"{name}: {error}") from error
                    saved["missing"][name] = f"{name}: {error}"
    return saved


def assemble(
    cls: type[M],
    saved: dict[str, Any],
    env: GymEnv | None,
    device: th.device | str,
    force_reset: bool,
    changes: dict[str, Any],
) -> M:
    """The model of a file, made in SB3's order, with these attributes in place of those in the file.

    :raises Damaged: the file describes no model
    """
    require_form(saved, form_of(cls))
    names.require_attributes(cls, saved["attributes"])
    in_file, weights = _by_attribute(cls, saved, changes), saved["parameters"]["policy"]
    unknown = {name: Unknown(reason) for name, reason in saved["missing"].items() if name in cls.scheduled}
    values = unknown | in_file | changes
    _require_buildable(values, changes, weights)
    if env is not None:
        env = cls._wrap_env(env, values.get("verbose", 0))
        require_spaces(env, values["observation_space"], values["action_space"])
        values |= {name: getattr(env, name) for name in ("observation_space", "action_space")}
        values["n_envs"] = env.num_envs
    constructor: Any = cls  # of more arguments than SB3's
    model: M = constructor(values["policy_class"], env, device=device, _init_setup_model=False)
    left_out = _not_attributes(model)
    with names.building(weights):
        attributes = {name: value for name, value in saved["attributes"].items() if name not in left_out}
        for path, value in (attributes | values).items():
            owner, _, name = path.rpartition(".")
            setattr(attrgetter(owner)(model) if owner else model, name, value)
        if env is not None and force_reset:
            model._last_obs = None
        model._setup_model()
        if "streams" in changes:
            before, now = ([one.name for one in some] for some in (in_file.get("streams") or (), model.streams))
            if before != now and {*before} == {*now}:
                raise ValueError(f"streams={model.streams!r} are in another order than in the file: make it {before}")
        if saved["parameters"].keys() != {*model._get_torch_save_params()[0]}:
            raise Damaged(f"it has other networks than {cls.__name__}")
        put_parameters(model, saved["parameters"], in_file, changes)
        if model.use_sde:
            model.policy.reset_noise()
    return model


def _by_attribute(cls: type[SavedModel], saved: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The arguments and the state of a file by attribute, with warnings about what is left out."""
    paths = attributes_of(cls)
    values = {path: saved[part][name] for part in paths for name, path in paths[part].items() if name in saved[part]}
    if "compile_decision" in saved["state"]:
        values[paths["state"]["compile_decision"]] = CompileStatus(*saved["state"]["compile_decision"])
    values.get("policy_kwargs", {}).pop("device", None)
    folder = values.get("tensorboard_log")
    if folder is not None and not _is_below(folder) and "tensorboard_log" not in changes:
        values |= {"tensorboard_log": None, "_log_of_file": str(folder)[:200]}
    if saved["class"] not in map(name_of, cls.__mro__):
        loaded = f"the model is a {saved['class'][:100]}, and is loaded as a {cls.__name__}"
        remedy = "call load of that class to use them"
        warnings.warn(f"{loaded}, without the loss and the methods of its class: {remedy}", stacklevel=5)
    return values


def _is_below(folder: object) -> bool:
    """Whether a file may ask for logs there: below the working folder, without a link on the way."""
    if not isinstance(folder, str) or not folder.isprintable() or len(folder) > 200:
        return False
    is_relative = not os.path.isabs(folder) and os.pardir not in Path(folder).parts
    return is_relative and os.path.realpath(folder) == os.path.normpath(os.path.join(os.path.realpath("."), folder))


def _require_buildable(values: dict[str, Any], changes: dict[str, Any], weights: dict[str, th.Tensor]) -> None:
    """:raises Damaged: no model can be made of a file's attributes, of which some were changed"""
    require_form(values, ALWAYS)
    if spaces.flatdim(values["action_space"]) > sum(tensor.numel() for tensor in weights.values()):
        raise Damaged("it has more actions than its weights could choose from")
    if "policy_kwargs" in changes:
        return
    policy_kwargs = values.get("policy_kwargs", {})
    for name, base in CLASSES.items():
        named = policy_kwargs.get(name)
        if isinstance(named, type) and not issubclass(named, base) and not names.is_registered(named):
            raise Damaged(f"its {name}, {named.__qualname__}, is not a {base.__name__}")
    names.require_activation(policy_kwargs)


def put_parameters(
    model: SavedModel, parameters: dict[str, Any], in_file: Mapping[str, Any], changes: Mapping[str, Any]
) -> None:
    """Give a model the weights and the optimizer's state of a file, which has these attributes, of which some were
    changed. New options of the optimizer replace those in the file; another optimizer starts with a new state.

    :raises ValueError: a changed argument would change what the trained model computes, or does not fit the weights
    """
    model.built_layout = layout(model.policy)
    now = model.policy_kwargs
    before = in_file.get("policy_kwargs", now)
    changed = {name for name in {**before, **now} if not _same(before.get(name), now.get(name))}
    defaults = names.constructor_arguments(type(model.policy))
    both: dict[str, Any] = {name: (changes[name], in_file.get(name)) for name in SHAPING & changes.keys()}
    for name in changed:
        both[f"policy_kwargs: {name}"] = tuple(part.get(name, defaults.get(name)) for part in (now, before))
    both = {name: pair for name, pair in both.items() if not _same(*(_meaning(name, value) for value in pair))}
    reasons = " and ".join(f"{name}={new!r} (in the file {old!r})" for name, (new, old) in sorted(both.items()))
    if both.keys() - {f"policy_kwargs: {name}" for name in CHANGEABLE} - (SHAPING - OPTIONS.keys()):
        value = now.get("log_std_init")
        remedy = "" if value is None else f", or set model.policy.log_std.data.fill_({value!r}) after loading"
        raise ValueError(
            f"{reasons} is a part of the model that was trained: leave it out{remedy}, or make a new model"
        )
    optimizer = model.policy.optimizer
    options = [{k: v for k, v in group.items() if k not in ("params", "lr")} for group in optimizer.param_groups]
    old, new = before.get("optimizer_kwargs") or {}, now.get("optimizer_kwargs") or {}
    needs_other_state = any(bool(old.get(name)) != bool(new.get(name)) for name in ("amsgrad", "centered", "momentum"))
    if "optimizer_class" in changed or needs_other_state:
        warnings.warn(f"{type(optimizer).__name__} starts with a new state: the file's is of another", stacklevel=5)
        parameters = {**parameters, "policy.optimizer": optimizer.state_dict()}
    try:
        model.set_parameters(parameters, exact_match=True)
    except Exception as error:
        if not reasons:
            raise Damaged(f"its weights do not fit its networks ({' '.join(str(error).split())[:200]})") from error
        raise ValueError(f"{reasons}: the weights in the file do not fit. Leave it out, or make a new model") from error
    if changed:
        for group, before_loading in zip(optimizer.param_groups, options, strict=True):
            group.update(before_loading)


def _meaning(name: str, value: Any) -> Any:
    return normalization_options(name, False if value is None else value) if name in OPTIONS else value


def _same(value: object, other: object) -> bool:
    """Whether two values are equal, or have the same description: two modules with other weights, for instance."""
    with suppress(Exception):  # arrays are neither equal nor different
        if value == other:
            return True
    with suppress(Undescribable):
        return bool(describe(value)[0] == describe(other)[0])
    return False


def check_optimizer_state(optimizer: th.optim.Optimizer) -> None:
    """Check what an optimizer has loaded. How it computes (:data:`IMPLEMENTATION`) stays as it was made.

    :raises ValueError: its state, which is deleted then, does not fit its weights: kernels would write outside of it
    """
    needed = {"exp_avg", "exp_avg_sq", "step"} if isinstance(optimizer, (th.optim.Adam, th.optim.AdamW)) else set()
    valid = True
    for group in optimizer.param_groups:
        group.update({name: value for name, value in optimizer.defaults.items() if name in IMPLEMENTATION})
        valid &= all(_alike(group.get(name), default) for name, default in optimizer.defaults.items())
        names = needed | ({"max_exp_avg_sq"} if group.get("amsgrad") else set())
        for p in group["params"] if isinstance(optimizer, FUSED) else ():
            state = optimizer.state.get(p, {})
            if state.get("momentum_buffer", 0) is None:  # SGD without momentum, of an earlier torch
                del state["momentum_buffer"]
            valid &= all(_fits(name, value, p) for name, value in state.items())
            valid &= not state or names <= state.keys()
    if not valid:
        optimizer.state.clear()
        raise ValueError(f"the state of {type(optimizer).__name__} does not fit its weights")


def _alike(value: Any, default: object) -> bool:
    """Whether an option has the kind of its default: a number, or a list of as many numbers."""
    if isinstance(default, (tuple, list)):
        is_row = isinstance(value, (tuple, list)) and len(value) == len(default)
        return is_row and all(map(_alike, value, default))
    return value is None or default is None or isinstance(value, (int, float, th.Tensor))


def _fits(name: str, value: Any, p: th.Tensor) -> bool:
    if name in PER_PARAMETER:
        return th.as_tensor(value).shape == () and bool(value >= 0)
    return is_elementwise(name, value, p)
