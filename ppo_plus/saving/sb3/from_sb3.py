"""Loading models that SB3's ``PPO`` or sb3-contrib's ``MaskablePPO`` and ``RecurrentPPO`` trained."""

import copy
import inspect
import io
import pathlib
from collections import deque
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import GymEnv

from ppo_plus.require import nearest, require_spaces
from ppo_plus.saving.format.container import naming
from ppo_plus.saving.format.names import Refused, require_attributes
from ppo_plus.saving.sb3.zip import SavedBySB3, check_unread, read_sb3_zip

Path = str | pathlib.Path | io.BufferedIOBase

#: Attributes that are not copied: they belong to the new model's environment, device and networks.
OWN = {"policy_class", "n_envs", "lr_schedule", "collector", "updater", "compilation"} | {
    *("_last_obs", "_last_episode_starts", "_last_lstm_states"),
}


def from_sb3(
    cls: Any,
    path_or_model: Path | BaseAlgorithm,
    env: GymEnv | None,
    device: th.device | str,
    kwargs: dict[str, Any],
    custom_objects: dict[str, Any] | None = None,
    trust_pickle: bool = False,
) -> Any:
    """See :meth:`ppo_plus.PPO_Plus.from_sb3`, of which ``cls`` is a class; ``custom_objects`` as in SB3's ``load``."""
    given = changes(cls, kwargs)
    own_env = None
    if isinstance(path_or_model, BaseAlgorithm):
        saved, own_env = _of_model(path_or_model), path_or_model.get_env()
    else:
        saved = _read(cls, path_or_model, custom_objects or {}, given, trust_pickle)
    data = saved.data
    if env is None:
        env = own_env
    else:
        env = cls._wrap_env(cls._checked_env(env, data["verbose"]), data["verbose"])
        require_spaces(env, data["observation_space"], data["action_space"])
    model = cls(data["policy_class"], env, device=device, _init_setup_model=False)
    left_out = OWN.union(model._excluded_save_params())
    for name in data.keys() - left_out:
        # Containers are copied, so that the two models share nothing that either changes.
        vars(model)[name] = copy.copy(data[name]) if isinstance(data[name], (dict, deque)) else data[name]
    trainer, name = _CONTRIB.get(_name(data["policy_class"]), ("PPO", ""))
    model.policy_class = model.policy_aliases.get(name, data["policy_class"])
    model.n_envs = data["n_envs"] if model.env is None else model.env.num_envs
    if model.env is own_env and trainer != "RecurrentPPO":
        # Otherwise episodes start again: the memory of sb3-contrib's policies is not loaded.
        model._last_obs, model._last_episode_starts = data.get("_last_obs"), data.get("_last_episode_starts")
    buffer_class = model.rollout_buffer_class
    if buffer_class is not None and buffer_class.__module__.startswith(("stable_baselines3.", "sb3_contrib.")):
        model.rollout_buffer_class = None
    model.value_clip = "plain"
    vars(model).update(given)
    # Seeding again with the old seed would replay the random numbers of the beginning.
    seed = model.seed
    model.seed = kwargs.get("seed")
    model._setup_model()
    model.seed = seed
    # Copies: torch's optimizers would share the very same state.
    parameters = copy.deepcopy(saved.parameters)
    if trainer == "MaskablePPO":
        model._expects_masks = True
        if isinstance(data["action_space"], spaces.MultiBinary):
            _join_logits(parameters)
    model.set_parameters(parameters, device=device)  # type: ignore[arg-type]
    return model


def _join_logits(parameters: dict[str, dict[str, Any]]) -> None:
    r"""MaskablePPO has two logits for each bit of a MultiBinary action; ours is their difference, so that

    .. math:: \mathrm{softmax}(x_0, x_1)_1 = \mathrm{sigmoid}(x_1 - x_0).

    The gradient with respect to the difference is that with respect to :math:`x_1`, and so are the optimizer's moments.
    """
    weights, states = parameters["policy"], parameters["policy.optimizer"]["state"]
    names: dict[Any, str] = {}
    for name, weight in weights.items():
        # A shared module has its weights under several names, and the optimizer once.
        names.setdefault((weight.data_ptr(), weight.shape), name)
    order = list(names.values())
    for name in ("action_net.weight", "action_net.bias"):
        shape = weights[name].shape
        weights[name] = weights[name][1::2] - weights[name][::2]
        state = states.get(order.index(name), {})
        for key, value in state.items():
            if isinstance(value, th.Tensor) and value.shape == shape:
                state[key] = value[1::2].clone()


def saved_by(path: Path, custom_objects: dict[str, Any] | None = None) -> SavedBySB3:
    """A saved model, read by SB3, which runs the pickles in it; an open file is left where it was.

    :raises ValueError: the file is damaged, or not a saved model
    """
    position = path.tell() if isinstance(path, io.IOBase) else None
    try:
        data, parameters, _ = load_from_zip_file(path, device="cpu", custom_objects=custom_objects)
    except (OSError, ImportError):
        raise  # it cannot be opened, or a package that it needs is not installed
    except Exception as error:
        raise ValueError(f"{path} is not a valid saved model (damaged or truncated?): {error}") from error
    if not data or not parameters:
        # If an archive was cut, an inner one may look like all of it.
        raise ValueError(f"{path} is not a valid saved model (damaged or truncated?): no weights or no attributes")
    if position is not None:
        path.seek(position)  # type: ignore[union-attr]
    return SavedBySB3(data, {}, parameters)


#: Arguments whose attributes have another name.
ATTRIBUTES = {"stats_window_size": "_stats_window_size"}


def argument_attributes(cls: type[Any]) -> dict[str, str]:
    """The arguments that may be changed on the way, and the attributes that have them."""
    return {name: ATTRIBUTES.get(name, name) for name in sorted(_changeable(cls))}


def changes(cls: type[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The changes, by the names of attributes.

    :raises TypeError: a model has no such argument or attribute
    """
    known = _changeable(cls)
    if not kwargs.keys() <= known:
        known |= vars(cls("MlpPolicy", None, device="cpu", _init_setup_model=False)).keys()
    for name, value in kwargs.items():
        if name not in known:
            likely = nearest(name, _changeable(cls))
            remedy = f"see help({cls.__name__}) for its arguments" if likely is None else f"did you mean {likely}?"
            raise TypeError(f"{name}={value!r} is not an argument of {cls.__name__}: {remedy}")
    return {ATTRIBUTES.get(name, name): value for name, value in kwargs.items()}


def _changeable(cls: type[Any]) -> set[str]:
    """Names of the arguments that may be changed on the way."""
    constructors = [vars(each)["__init__"] for each in cls.__mro__ if "__init__" in vars(each) and each is not object]
    names = {name for constructor in constructors for name in inspect.signature(constructor).parameters}
    return names - {"self", "args", "kwargs", "policy", "env", "device", "_init_setup_model"}


#: sb3-contrib's policy classes: what trains them, and the name of ours in their place.
_CONTRIB = {
    "maskable.policies.MaskableActorCriticPolicy": ("MaskablePPO", "MlpPolicy"),
    "maskable.policies.MaskableActorCriticCnnPolicy": ("MaskablePPO", "CnnPolicy"),
    "maskable.policies.MaskableMultiInputActorCriticPolicy": ("MaskablePPO", "MultiInputPolicy"),
    "recurrent.policies.RecurrentActorCriticPolicy": ("RecurrentPPO", "MlpLstmPolicy"),
    "recurrent.policies.RecurrentActorCriticCnnPolicy": ("RecurrentPPO", "CnnLstmPolicy"),
    "recurrent.policies.RecurrentMultiInputActorCriticPolicy": ("RecurrentPPO", "MultiInputLstmPolicy"),
}


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _name(policy_class: type) -> str:
    return _full_name(policy_class).removeprefix("sb3_contrib.common.")


def _trainer(policy_class: Any) -> str:
    """The name of what trains policies of this class."""
    bases = policy_class.__mro__ if isinstance(policy_class, type) else ()
    return next((_CONTRIB[_name(base)][0] for base in bases if _name(base) in _CONTRIB), "PPO")


def _of_model(model: Any) -> SavedBySB3:
    """:raises TypeError: it is not a PPO
    :raises ValueError: its policy is not supported"""
    trained_by = f".{_trainer(model.policy_class)}"
    if not any(name.startswith(_SB3) and name.endswith(trained_by) for name in map(_full_name, type(model).__mro__)):
        raise _no_ppo(model)
    _check_policy(model.policy_class)
    return SavedBySB3(vars(model), {}, model.get_parameters())


def _read(cls: Any, path: Any, custom_objects: dict[str, Any], given: dict[str, Any], trust_pickle: bool) -> SavedBySB3:
    """A saved model, without running the pickles in it unless they are trusted.

    :raises TypeError: it is not a PPO
    :raises ValueError: its policy is not supported, or the file cannot be read
    """
    if not isinstance(path, (str, pathlib.Path)) and not hasattr(path, "read"):
        raise _no_ppo(path)
    saved = saved_by(path, custom_objects) if trust_pickle else read_sb3_zip(path, {*custom_objects, *given})
    if not {*saved.data, *saved.unread, *custom_objects, *given} >= _OF_PPO:
        raise _no_ppo(path)
    if "value_clip" in {*saved.data, *saved.unread}:
        with naming(path):
            raise Refused("PPO_Plus saved it with pickle=True. If you trust its source, pass trust_pickle=True to load")
    needed = {"policy_class", "observation_space", "action_space", *argument_attributes(cls).values()}
    check_unread(path, saved.unread, needed)
    data = {**saved.data, **custom_objects}
    _check_policy(data["policy_class"])
    require_attributes(cls, data.keys() - OWN - {"policy", "_vec_normalize_env"})
    return saved._replace(data=data)


_SB3 = ("stable_baselines3.", "sb3_contrib.")
#: What a PPO has and SB3's other algorithms do not all have.
_OF_PPO = frozenset({"clip_range", "n_epochs", "gae_lambda"})


def _no_ppo(path_or_model: Any) -> TypeError:
    return TypeError(
        f"{path_or_model!r} is neither an SB3 PPO, an sb3-contrib MaskablePPO or RecurrentPPO, nor the path of one"
    )


def _check_policy(policy_class: Any) -> None:
    """:raises ValueError: a custom policy that sb3-contrib trains"""
    trainer = _trainer(policy_class)
    if trainer != "PPO" and _name(policy_class) not in _CONTRIB:
        raise ValueError(
            f"policy={policy_class!r} is a {trainer} custom policy: derive it from "
            + ("ppo_plus.ActorCriticPolicy, which takes masks as well", "ppo_plus.MlpLstmPolicy")[
                trainer != "MaskablePPO"
            ]
        )
