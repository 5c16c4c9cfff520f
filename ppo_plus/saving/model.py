"""A model as a file that cannot run code: its arguments and state as text, its weights as tensors."""

import math
import os
import warnings
from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import GymEnv

from ppo_plus.compiling.compilation import CompileStatus
from ppo_plus.formulas.schedules import Unknown
from ppo_plus.require import ATTRIBUTES, nearest, require_spaces
from ppo_plus.saving.format import container
from ppo_plus.saving.format.container import PathOrFile, naming
from ppo_plus.saving.format.names import (
    Damaged,
    Refused,
    building,
    constructor_arguments,
    decoding,
    is_registered,
    name_of,
    passed,
    require_activation,
    require_attributes,
)
from ppo_plus.saving.format.values import Undescribable, describe, restore, unknown_names

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
    "observations": "position.obs",
    "episode_starts": "position.starts",
    "carry": "position.carry",
    "kl_memory": "updater.kl_memory",
    "skipped_minibatches": "updater.n_skipped",
    "planned_gradient_steps": "compilation.n_planned",
    "compile_decision": "compilation.decision",
    "compile_required": "compilation.strict",
    "compile_obstacles": "compilation.unable",
}
#: Attributes that are numbers, at least 0.
COUNTS = {"n_envs", "num_timesteps", "_total_timesteps", "_num_timesteps_at_start", "_n_updates", "_episode_num"}
#: Attributes that are made from the others, or have no meaning here.
NOT_SAVED = frozenset({"action_noise", "_last_original_obs"})
#: The name of the optimizer's state among the parameters.
OPTIMIZER = "policy.optimizer"
#: Arguments of policies that only training starts from.
INITIAL = {"log_std_init", "ortho_init"}
#: Arguments besides ``policy_kwargs`` that change the weights that there are.
SHAPING = frozenset({"action_mask_key", "exploration", "use_sde"})
#: What classes among ``policy_kwargs`` must be subclasses of, unless they are registered.
CLASSES = {
    "features_extractor_class": BaseFeaturesExtractor,
    "optimizer_class": th.optim.Optimizer,
}


def argument_attributes(cls: type[Any]) -> dict[str, str]:
    """The arguments of a class that do not have to be as they were, and the attributes that have them."""
    names = constructor_arguments(cls) - {"self", "args", "kwargs", "policy", "env", "device", "_init_setup_model"}
    return {name: ATTRIBUTES.get(name, name) for name in sorted(names)}


def changes(cls: type[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Changed arguments of a saved model, by attribute; raises :class:`TypeError` if a model has no such argument."""
    arguments = argument_attributes(cls)
    known = {*arguments, *ALWAYS}
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


def places_of(cls: type[Any]) -> dict[str, dict[str, str]]:
    """Where a model has what is in the parts of a file: by part, and by name in the file."""
    return {"arguments": {name: name for name in ALWAYS} | argument_attributes(base_of(cls)), "state": STATE}


def _not_attributes(model: Any) -> set[str]:
    """The attributes that are made from others, belong to this process, or are in other parts of a file."""
    places = [place for part in places_of(type(model)).values() for place in part.values()]
    left_out = {*model._excluded_save_params(), *NOT_SAVED, *model._get_torch_save_params()[0]}
    return {each.partition(".")[0] for each in [*places, *left_out]}


def save_model(model: Any, path: PathOrFile, exclude: Iterable[str] | None, include: Iterable[str] | None) -> None:
    """Save a :class:`~ppo_plus.PPO_Plus`; see :meth:`ppo_plus.PPO_Plus.save`."""
    state = state_of(model, exclude or (), include or ())
    _require_rebuildable(model)
    container.write(container.path_to_save(path), KIND, state)
    told = []
    if state["missing"]:
        told.append(f"the model is saved {_without(state['missing'])}; or pass it to load")
    if unknown := sorted({name for part in ("arguments", "attributes") for name in unknown_names(state[part])}):
        titles = ", ".join(name.rpartition(":")[2] for name in unknown)
        told.append(f"load needs {' and '.join(unknown)}: call ppo_plus.register({titles}) before it")
    if told:
        warnings.warn("; ".join(told), stacklevel=3)


def layout(policy: th.nn.Module) -> dict[str, th.Size]:
    """The names and shapes of a policy's weights and buffers."""
    return {name: each.shape for name, each in policy.state_dict().items()}


def _require_rebuildable(model: Any) -> None:
    """:raises ValueError: the policy has other weights or buffers than it is built with, which no file can restore"""
    now = layout(model.policy)
    built = model.built_layout or now
    other = next((name for name in {**now, **built} if built.get(name) != now.get(name)), None)
    if other is None:
        return
    raise ValueError(
        f"the policy's {other!r} has been added, removed or resized since the policy was built, so that load could not "
        "build the policy again: make it in a policy class (docs/customizing.md), or undo the change (such as "
        "torch.compile) before saving"
    )


def state_of(model: Any, exclude: Iterable[str] = (), include: Iterable[str] = ()) -> dict[str, Any]:
    """A model as a value for :func:`assemble`: ``"arguments"`` and ``"state"`` by their names in files, the other
    ``"attributes"`` by their own, and under ``"missing"``, by name, why what has no description is left out."""
    present = vars(model).keys() - ({*exclude} - {*include})
    saved: dict[str, Any] = {"class": name_of(type(model))}
    for part, names in places_of(type(model)).items():
        found = {name: place for name, place in names.items() if place.partition(".")[0] in present}
        saved[part] = {name: attrgetter(place)(model) for name, place in found.items()}
    others = present - (_not_attributes(model) - {*include})
    saved["attributes"] = {name: value for name, value in vars(model).items() if name in others}
    if "compile_decision" in saved["state"]:
        decision = saved["state"]["compile_decision"]
        saved["state"]["compile_decision"] = [decision.compiles, decision.reason, decision.unexpected]
    for name, value in saved["arguments"].items():
        if isinstance(value, os.PathLike):
            saved["arguments"][name] = os.fspath(value)
    missing = {}
    for part in ("arguments", "state", "attributes"):
        for name, value in [*saved[part].items()]:
            try:
                if isinstance(value, Unknown):
                    raise Undescribable(value.reason)
                describe(value, name)
            except Undescribable as error:
                missing[name] = str(error)
                del saved[part][name]
    return {**saved, "missing": missing, "parameters": model.get_parameters()}


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
    head, arrays = container.read_parts(path, KIND)
    if print_system_info:
        print("== SAVED MODEL SYSTEM INFO ==", *map(": ".join, head["packages"].items()), sep="\n")
    places = places_of(cls)["arguments"] | argument_attributes(cls)
    with naming(path, "saved model"), passed(custom_objects.values()):
        saved = _restored(cls, head["value"], arrays, {*custom_objects, *changes})
        needed = {*places.values()} - {*custom_objects, *changes, *cls.scheduled}
        lacking = {name: reason for name, reason in saved["missing"].items() if places.get(name) in needed}
        if lacking:
            raise Refused(f"it was saved {_without(lacking)}. Pass {', '.join(f'{name}=' for name in lacking)}")
        model = assemble(cls, saved, env, device, force_reset, changes, custom_objects)
    n_envs = saved["state"].get("n_envs")
    if env is not None and not force_reset and model.n_envs != n_envs:
        raise ValueError(
            f"force_reset=False continues the episodes of the {n_envs} environments that the model was saved with, but "
            f"env has {model.n_envs}: pass as many, or leave it out"
        )
    return model


def _restored(
    cls: Any, written: dict[str, Any], arrays: Mapping[str, th.Tensor], given: Collection[str]
) -> dict[str, Any]:
    """The value of :func:`state_of` from its description; arguments that are given need not be readable."""
    with decoding("the model"):
        saved = {name: _part(written, name, arrays) for name in ("class", "missing", "parameters")}
        saved["missing"] = dict(saved["missing"])
        for part, names in {**places_of(cls), "attributes": {}}.items():
            saved[part] = {}
            for name, _ in written[part].items():
                if name == "kl_memory" and "kl_control" in given:
                    continue  # another control has no use for it
                try:
                    saved[part][name] = _part(written[part], name, arrays)
                except Refused as error:
                    is_damaged = isinstance(error, Damaged) or name not in cls.scheduled
                    if is_damaged and names.get(name, name) not in given:
                        raise
                    saved["missing"][name] = str(error)
    return saved


def _part(written: Mapping[str, Any], name: str, arrays: Mapping[str, th.Tensor]) -> Any:
    try:
        return restore(written[name], arrays)
    except Refused as error:
        raise type(error)(f"{name}: {error}") from error


def _without(missing: Mapping[str, Any]) -> str:
    """What is missing, why, and then the remedies, each once."""
    reasons = [str(reason).rpartition(": ") for reason in missing.values()]
    problems, remedies = "; ".join(each[0] for each in reasons), "; ".join(dict.fromkeys(each[2] for each in reasons))
    return f"without {' and '.join(missing)}: {problems}: {remedies}"


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
    given = {name: changes[name] for name in ALWAYS if name in changes}
    # Others are classes that the file names within its arguments.
    known = {*ALWAYS, *argument_attributes(cls).values(), *saved["attributes"]}
    given |= {name: each for name, each in (custom_objects or {}).items() if name in known}
    # Where a model writes is for the caller to say.
    folder = places.pop("tensorboard_log", None)
    if folder is not None and env is not None and "tensorboard_log" not in {*changes, *given}:
        warnings.warn(
            f"the model was saved with tensorboard_log={str(folder)[:200]!r}, and no loaded model writes where a file "
            "says: pass tensorboard_log= to log there again",
            stacklevel=4,
        )
    unknown = {name: Unknown(str(reason)) for name, reason in saved["missing"].items() if name in cls.scheduled}
    data = unknown | {place: value for place, value in places.items() if "." not in place} | given
    if saved["class"] not in map(name_of, cls.__mro__):
        warnings.warn(
            f"the model is a {str(saved['class'])[:100]}, and is loaded as a {cls.__name__}, without the loss and the "
            "methods of its class: call load of that class to use them",
            stacklevel=4,
        )
    _check_kinds(data, saved["parameters"])
    if "policy_kwargs" not in {*changes, *given}:
        require_activation(data.get("policy_kwargs", {}))
    data.setdefault("policy_kwargs", changes.get("policy_kwargs", {})).pop("device", None)
    if env is not None:
        wrapped = cls._wrap_env(env, data.get("verbose", 0))
        require_spaces(wrapped, data["observation_space"], data["action_space"])
        data |= {"observation_space": wrapped.observation_space, "action_space": wrapped.action_space}
        data["n_envs"], env = wrapped.num_envs, wrapped
    model = cls(data["policy_class"], env, device=device, _init_setup_model=False)
    left_out = _not_attributes(model)
    with building(saved["parameters"]["policy"]):
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
        put_parameters(model, saved["parameters"], places, changes, device)
        if model.use_sde:
            model.policy.reset_noise()
    return model


def put_parameters(
    model: Any,
    parameters: dict[str, Any],
    arguments: Mapping[str, Any],
    changes: Mapping[str, Any],
    device: th.device | str,
) -> None:
    """Give a model the weights and the optimizer's state of a file, which has these arguments, of which some were
    changed. New options of the optimizer replace those in the file; another optimizer starts with a new state.

    :raises ValueError: a changed argument is an initial value, or does not fit the weights
    """
    model.built_layout = layout(model.policy)
    now = model.policy_kwargs
    before = arguments.get("policy_kwargs", now)
    changed = {name for name in {**before, **now} if not _same(before.get(name), now.get(name))}
    for name in sorted(INITIAL & changed & now.keys()):
        remedy = f", or set model.policy.log_std.data.fill_({now[name]!r}) after loading" if "std" in name else ""
        raise ValueError(
            f"policy_kwargs: {name}={now[name]!r} is what training starts from, and this model is trained: leave it "
            f"out{remedy}"
        )
    optimizer = model.policy.optimizer
    options = [
        {name: each for name, each in group.items() if name not in ("params", "lr")} for group in optimizer.param_groups
    ]
    old, new = before.get("optimizer_kwargs") or {}, now.get("optimizer_kwargs") or {}
    needs_other_state = any(bool(old.get(name)) != bool(new.get(name)) for name in ("amsgrad", "centered", "momentum"))
    if "optimizer_class" in changed or needs_other_state:
        warnings.warn(
            f"{type(optimizer).__name__} starts with a new state: that in the file is of another", stacklevel=5
        )
        parameters = {**parameters, OPTIMIZER: optimizer.state_dict()}
    try:
        model.set_parameters(parameters, exact_match=True, device=device)
    except Exception as error:
        reasons = [
            f"policy_kwargs: {name}={now.get(name)!r} (in the file {before.get(name)!r})" for name in changed - INITIAL
        ]
        others = (name for name in SHAPING & changes.keys() if not _same(changes[name], arguments.get(name)))
        reasons += [f"{name}={changes[name]!r} (in the file {arguments.get(name)!r})" for name in others]
        if not reasons:
            raise Damaged(f"its weights do not fit its networks ({' '.join(str(error).split())[:200]})") from error
        raise ValueError(
            f"{' and '.join(sorted(reasons))}: the weights in the file do not fit. Leave it out, or make a new model"
        ) from error
    if changed:
        for group, each in zip(optimizer.param_groups, options, strict=True):
            group.update(each)


def _same(value: Any, other: Any) -> bool:
    try:
        return bool(value == other)
    except Exception:  # arrays are neither equal nor different
        return value is other


def _by_place(cls: Any, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments and the state of a file, which are checked, by where a model has them."""
    if not all(isinstance(saved.get(part), dict) for part in ("arguments", "state", "attributes", "parameters")):
        raise Damaged("it does not describe a model")
    require_attributes(cls, saved["attributes"])
    found: dict[str, Any] = {}
    for part, places in places_of(cls).items():
        unknown = saved[part].keys() - places.keys()
        if unknown:
            raise Damaged(f"it has an unknown {part} {str(min(unknown))[:100]!r}")
        found |= {places[name]: value for name, value in saved[part].items()}
    for name in sorted(COUNTS & found.keys()):
        if not isinstance(found[name], (int, float, np.number)) or not 0 <= found[name] < math.inf:
            raise Damaged(f"its {name}={found[name]!r:.50} is not a count")
    if "compile_decision" in saved["state"]:
        decision = saved["state"]["compile_decision"]
        if not isinstance(decision, list) or list(map(type, decision)) != [bool, str, bool]:
            raise Damaged("its compile_decision is not valid")
        found[STATE["compile_decision"]] = CompileStatus(*decision)
    return found


def _check_kinds(data: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """:raises Damaged: a model cannot be made of these"""
    policy_class = data.get("policy_class")
    is_policy = isinstance(policy_class, type) and issubclass(policy_class, ActorCriticPolicy)
    are_spaces = all(isinstance(data.get(name), spaces.Space) for name in ("observation_space", "action_space"))
    if not is_policy or not are_spaces or not isinstance(data.get("policy_kwargs", {}), dict):
        raise Damaged("its policy or its spaces are missing or not valid")
    weights = parameters.get("policy")
    if not isinstance(weights, dict) or not all(isinstance(each, th.Tensor) for each in weights.values()):
        raise Damaged("it has no weights")
    for name, base in CLASSES.items():
        named = data.get("policy_kwargs", {}).get(name)
        if isinstance(named, type) and not issubclass(named, base) and not is_registered(named):
            raise Damaged(f"its {name}, {named.__qualname__}, is not a {base.__name__}")
    if spaces.flatdim(data["action_space"]) > sum(each.numel() for each in weights.values()):
        raise Damaged("it has more actions than its weights could choose from")
