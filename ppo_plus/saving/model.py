"""A model as a file that cannot run code: its arguments and state as text, its weights as tensors."""

import copy
import math
import os
import warnings
from collections.abc import Collection, Mapping
from contextlib import nullcontext, suppress
from dataclasses import astuple
from operator import attrgetter
from pathlib import Path
from types import CellType, FunctionType
from typing import Any, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus.call import Call
from ppo_plus.compiling.compiled import CompileStatus
from ppo_plus.formulas.exploration import NoiseProcess
from ppo_plus.formulas.schedules import Sampled, Schedule, Unknown, value_at
from ppo_plus.model import Model
from ppo_plus.policy.arguments import SHAPING
from ppo_plus.policy.policies import ActorCriticPolicy
from ppo_plus.require import ATTRIBUTES, nearest, require_spaces
from ppo_plus.rollout.collector import Position
from ppo_plus.saving.format import container, names
from ppo_plus.saving.format.container import PathOrFile, naming
from ppo_plus.saving.format.names import Damaged, Refused, decoding, name_of
from ppo_plus.saving.format.values import Undescribable, describe, restore
from ppo_plus.settings import SCHEDULED, Settings
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
    #: The weights that the policy is built with, by name and shape; ``None``: it is not built yet.
    built_layout: dict[str, Any] | None = None
    #: Whether the environments' method gave masks in training, so that ``predict`` needs them too.
    _expects_masks: bool = False
    _last_episode_starts: np.ndarray | None


M = TypeVar("M", bound=SavedModel)
KIND = "model"
#: What a model is never without: the names in a file, which are those of attributes too.
ALWAYS = ("policy_class", "observation_space", "action_space")
#: The state of a model beside its arguments: the names in a file, and the attributes that have it.
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
    "trained_normalized": "_trained_normalized",
    "observations": "_last_obs",
    "episode_starts": "_last_episode_starts",
    "carry": "position.carry",
    "stream_sums": "position.stream_sums",
    "kl_memory": "trainer.kl_memory",
    "skipped_minibatches": "trainer.n_skipped",
    "planned_gradient_steps": "compilation.n_planned",
    "compile_decision": "compilation.decision",
    "compile_required": "compilation.strict",
    "compile_obstacles": "compilation.unable",
}
#: Arguments of policies that change nothing of what a trained one computes.
CHANGEABLE = frozenset({"optimizer_class", "optimizer_kwargs", "autocast", "exploration", "streams"})
#: Where files have the values of a schedule, in equal steps of the remaining progress.
POINTS = [i / 1024 for i in range(1025)]
#: Options of how an optimizer computes, which are those of this machine.
IMPLEMENTATION = ("capturable", "differentiable", "foreach", "fused")


def argument_attributes(cls: type[Any]) -> dict[str, str]:
    """The arguments that may be changed on loading, and their attributes."""
    left_out = {"self", "args", "kwargs", "policy", "env", "device", "_init_setup_model"}
    arguments = names.constructor_arguments(cls).keys() - left_out
    return {name: ATTRIBUTES.get(name, name) for name in sorted(arguments)}


def changed_attributes(
    cls: type[Any], arguments: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a caller gives in place of what a file has, by attribute; ``TypeError`` if there is no such argument."""
    known = argument_attributes(cls)
    for name, value in arguments.items():
        if name not in {*known, *known.values(), *ALWAYS, *STATE.values()}:
            likely, owner = nearest(name, known), cls.__name__
            remedy = f"see help({owner}) for its arguments" if likely is None else f"did you mean {likely}?"
            raise TypeError(f"{name}={value!r} is not an argument of {owner}: {remedy}")
    return {ATTRIBUTES.get(name, name): value for name, value in {**(custom_objects or {}), **arguments}.items()}


def base_of(cls: type[Any]) -> type[Any]:
    """``PPO_Plus``, of which ``cls`` is a class."""
    return next(base for base in cls.__mro__ if name_of(base) == "ppo_plus:PPO_Plus")


def attributes_of(cls: type[Any]) -> dict[str, dict[str, str]]:
    """The attributes of a model that have what is in the parts of a file: by part, and by name in the file."""
    return {"arguments": {name: name for name in ALWAYS} | argument_attributes(base_of(cls)), "state": STATE}


# --- saving -----------------------------------------------------------------------------------------------------------


def save_model(model: SavedModel, path: PathOrFile, exclude: Collection[str]) -> None:
    """Save a :class:`~ppo_plus.PPO_Plus`; see :meth:`ppo_plus.PPO_Plus.save`."""
    state = state_of(model, exclude)
    container.write(path, KIND, state)
    notes, arguments = [], state["arguments"]
    if state["missing"]:
        names_and_reasons = f"{' and '.join(state['missing'])}: {'; '.join(state['missing'].values())}"
        notes.append(f"the model is saved without {names_and_reasons}; or pass it to load in custom_objects=")
    if sampled := [name for name in sampled_of(arguments) if getattr(model, name) is not arguments[name]]:
        values = f"the function's values at {len(POINTS):,} points of the remaining progress"
        remedy = "to save the function itself, call ppo_plus.register"
        notes.append(f"{' and '.join(sampled)}: the file has {values}, with straight lines between them; {remedy}")
    if (reason := refusal_of(state)) is not None:
        notes.append(f"load would raise an error: {reason}")
    if notes:
        warnings.warn("; ".join(notes), stacklevel=3)


def refusal_of(state: dict[str, Any]) -> Refused | None:
    """The error that reading a state of :func:`state_of` would raise; ``None``: none."""
    try:
        restore(*describe({part: state[part] for part in ("arguments", "state", "attributes")}))
    except Refused as error:
        return error
    return None


def layout(policy: ActorCriticPolicy) -> dict[str, Any]:
    """The names and shapes of a policy's weights and buffers, and the class and the weights of its optimizer."""
    names_of = {weight: name for name, weight in policy.named_parameters()}
    optimized = [[names_of.get(weight) for weight in group["params"]] for group in policy.optimizer.param_groups]
    shapes = {name: getattr(tensor, "shape", None) for name, tensor in policy.state_dict().items()}
    return shapes | {"optimizer": (type(policy.optimizer), optimized)}


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
    """A model as the value of a file: ``"arguments"`` and ``"state"`` by their names in files, the other
    ``"attributes"`` by their own, and under ``"missing"``, by name, why what has no description is left out."""
    _require_rebuildable(model)
    saved: dict[str, Any] = {"class": name_of(type(model))}
    for part, paths in attributes_of(type(model)).items():
        roots = {name: path.partition(".")[0] for name, path in paths.items()}
        here = [name for name, root in roots.items() if hasattr(model, root) and root not in exclude]
        saved[part] = {name: attrgetter(paths[name])(model) for name in here}
    left_out = _not_attributes(model) | {*exclude}
    saved["attributes"] = {name: value for name, value in names.own(model).items() if name not in left_out}
    if "compile_decision" in saved["state"]:
        saved["state"]["compile_decision"] = [*astuple(saved["state"]["compile_decision"])]
    if isinstance(saved["arguments"].get("tensorboard_log"), os.PathLike):
        saved["arguments"]["tensorboard_log"] = os.fspath(saved["arguments"]["tensorboard_log"])
    missing, weights = {}, set[int]()
    for part in ("arguments", "state", "attributes"):
        for name, value in [*saved[part].items()]:
            try:
                if part == "arguments" and name in SCHEDULED:
                    value = saved[part][name] = storable(name, value)
                describe(value, name, weights)
                if part == "attributes":
                    names.require_attributes(type(model), [name])
            except (Undescribable, Refused) as error:
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
    with suppress(Undescribable, Refused):
        restore(*describe(schedule))
        return schedule
    remedy = "use a function of the remaining progress alone, or a schedule such as ppo_plus.linear(3e-4)"
    try:
        function: Any = schedule
        with suppress(Exception):
            function = _copied(function)  # calls may change it
        first, again = (value_at(1.0, name, function, -math.inf) for _ in range(2))
        if first != again:
            raise ValueError("it returns different numbers for the same progress")
        values = [value_at(point, name, function, -math.inf) for point in POINTS]
        if values[-1] != first:
            raise ValueError("it depends on more than the remaining progress")
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


# --- loading ----------------------------------------------------------------------------------------------------------


def read_model(cls: type[SavedModel], path: PathOrFile, changes: Mapping[str, Any], show: bool) -> dict[str, Any]:
    """The value of :func:`state_of` in a file; what is changed may be unreadable. ``show``: print what wrote it."""
    head, arrays = container.read_parts(path, KIND)
    if show:
        print("== SAVED MODEL SYSTEM INFO ==", *map(": ".join, head["packages"].items()), sep="\n")
    with naming(path, "saved model"), decoding():
        written = head["value"]
        saved = {name: restore(written[name], arrays) for name in ("class", "missing", "parameters")}
        saved["missing"] = dict(saved["missing"])
        for part, paths in {**attributes_of(cls), "attributes": {}}.items():
            saved[part] = {}
            for name, description in written[part].items():
                if name == "kl_memory" and "kl_control" in changes:
                    continue  # another control has no use for it
                try:
                    saved[part][name] = restore(description, arrays)
                except Refused as error:
                    is_needed = isinstance(error, Damaged) or name not in SCHEDULED
                    if is_needed and paths.get(name, name) not in changes:
                        raise type(error)(f"{name}: {error}") from error
                    saved["missing"][name] = f"{name}: {error}"
        return saved


def assemble(
    cls: type[M],
    saved: dict[str, Any],
    env: VecEnv | None,
    device: th.device | str,
    force_reset: bool,
    changes: dict[str, Any],
) -> M:
    """The model of :func:`state_of`, made in SB3's order, with these attributes in place of those in the file."""
    _require_complete(cls, saved["missing"], changes)
    with decoding():
        names.require_attributes(cls, saved["attributes"])
        in_file, policy = _by_attribute(cls, saved, changes), saved["parameters"]["policy"]
        weights = {name: part for name, part in policy.items() if isinstance(part, th.Tensor)}
        unknown = {name: Unknown(reason) for name, reason in saved["missing"].items() if name in SCHEDULED}
        values = unknown | in_file | changes
        if spaces.flatdim(values["action_space"]) > sum(tensor.numel() for tensor in weights.values()):
            raise Damaged("it has more actions than its weights could choose from")
        if "policy_kwargs" not in changes:
            _require_harmless(values.get("policy_kwargs", {}))
    if env is not None:
        # The model keeps the spaces of the file: weights follow the order of their keys.
        require_spaces(env, values["observation_space"], values["action_space"])
        values["n_envs"] = env.num_envs
    constructor: Any = cls  # of more arguments than SB3's
    model: M = constructor(values["policy_class"], env, device=device, _init_setup_model=False)
    left_out = _not_attributes(model)
    # Networks of the caller's arguments are as large as these ask for.
    with nullcontext() if "policy_kwargs" in changes else names.Bounded(weights):
        attributes = {name: value for name, value in saved["attributes"].items() if name not in left_out}
        for path, value in (attributes | values).items():
            owner, _, name = path.rpartition(".")
            setattr(attrgetter(owner)(model) if owner else model, name, value)
        if env is not None and force_reset:
            model._last_obs = None
        model._setup_model()
        if "streams" in changes and "streams" in in_file:
            before, now = ([one.name for one in some] for some in (in_file["streams"] or (), model.streams))
            if before != now:
                raise ValueError(f"streams={model.streams!r} must have the names of those in the file: {before}")
        put_parameters(model, saved["parameters"], in_file, changes)
        for name in saved["attributes"].keys() & {*model._get_torch_save_params()[1]}:
            getattr(model, name).data.copy_(saved["attributes"][name].data)  # `_setup_model` has made it again
        if model.use_sde:
            model.policy.reset_noise()
    return model


def _require_complete(cls: type[SavedModel], missing: Mapping[str, str], changes: Mapping[str, Any]) -> None:
    """:raises Refused: an argument is neither in the file nor given, and not asked for by ``learn`` alone"""
    needed = {*ALWAYS, *argument_attributes(cls).values()} - changes.keys() - SCHEDULED.keys()
    if lacking := {name: reason for name, reason in missing.items() if name in needed}:
        reasons = ", ".join(f"{name} ({reason})" for name, reason in lacking.items())
        remedy = "or, if it is SB3's and you trust its source, trust_pickle=True (--trust-model)"
        raise Refused(f"it was read without {reasons}. Pass {'=, '.join(lacking)}=, {remedy}")


def _by_attribute(cls: type[SavedModel], saved: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The arguments and the state of a file by attribute, with warnings about what is left out."""
    values = {paths[name]: value for part, paths in attributes_of(cls).items() for name, value in saved[part].items()}
    if "compile_decision" in saved["state"]:
        values[STATE["compile_decision"]] = CompileStatus(*saved["state"]["compile_decision"])
    values.get("policy_kwargs", {}).pop("device", None)
    folder = values.get("tensorboard_log")
    if folder is not None and not _is_below(folder) and "tensorboard_log" not in changes:
        values |= {"tensorboard_log": None, "_log_of_file": str(folder)[:200]}
    if saved["class"] not in map(name_of, cls.__mro__):
        loaded = f"the model is a {saved['class'][:100]}, and is loaded as a {cls.__name__}"
        remedy = "call load of that class to use them"
        warnings.warn(f"{loaded}, without the loss and the methods of its class: {remedy}", stacklevel=4)
    return values


def _is_below(folder: object) -> bool:
    """Whether a file may ask for logs there: below the working folder, without a link on the way."""
    if not isinstance(folder, str) or not folder.isprintable() or len(folder) > 200:
        return False
    is_relative = not os.path.isabs(folder) and os.pardir not in Path(folder).parts
    return is_relative and os.path.realpath(folder) == os.path.normpath(os.path.join(os.path.realpath("."), folder))


def _require_harmless(policy_kwargs: dict[str, Any]) -> None:
    """:raises Refused: a class among the arguments of a file could make more numbers than are counted"""
    for name in ("features_extractor_class", "optimizer_class"):
        if isinstance(policy_kwargs.get(name), type):
            names.counted(policy_kwargs[name])
    names.require_activation(policy_kwargs)


def put_parameters(
    model: SavedModel, parameters: dict[str, Any], in_file: Mapping[str, Any], changes: Mapping[str, Any]
) -> None:
    """Give a model the weights and the optimizer's state of a file, which has these attributes, of which some were
    changed. Another optimizer, or one with other options, starts with a new state.

    :raises ValueError: a changed argument would change what the trained model computes, or does not fit the weights
    """
    model.built_layout = layout(model.policy)
    now = model.policy_kwargs
    before, defaults = in_file.get("policy_kwargs", now), names.constructor_arguments(type(model))
    pairs = {name: (now.get(name), before.get(name)) for name in {*now, *before}}
    pairs |= {name: (changes[name], in_file.get(name, defaults[name])) for name in SHAPING & changes.keys()}
    changed = {name: pair for name, pair in pairs.items() if not _equal(*pair)}
    if kept := sorted(changed.keys() - CHANGEABLE):
        reasons = " and ".join(f"{name}={changed[name][0]!r} (in the file {changed[name][1]!r})" for name in kept)
        raise ValueError(f"{reasons} is a part of the model that was trained: leave it out, or make a new model")
    if changed.keys() & {"optimizer_class", "optimizer_kwargs"}:
        optimizer = model.policy.optimizer
        warnings.warn(f"{type(optimizer).__name__} starts with a new state: the file's is of another", stacklevel=4)
        parameters = {**parameters, "policy.optimizer": optimizer.state_dict()}
    if "exploration" in changed and model.position.carry is not None:
        fresh = model.policy.init_carry(model.n_envs)  # the noise in the file is of another
        model.position.carry = model.position.carry._replace(noise=fresh.noise)
    try:
        model.set_parameters(parameters, exact_match=True)
    except RuntimeError as error:
        raise Refused(f"its weights do not fit: {error}") from error


def _equal(value: Any, other: Any) -> bool:
    """Whether two arguments are equal; ``==`` of arrays and tensors is not one answer."""
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_equal(value[name], other[name]) for name in value)
    is_array = isinstance(value, (np.ndarray, th.Tensor)) or isinstance(other, (np.ndarray, th.Tensor))
    return np.array_equal(value, other) if is_array else bool(value == other)


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
