"""Loading models that SB3's ``PPO`` or sb3-contrib's ``MaskablePPO`` and ``RecurrentPPO`` trained."""

from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.type_aliases import GymEnv

from ppo_plus.formulas.schedules import Unknown
from ppo_plus.require import require_spaces
from ppo_plus.saving.format.bounds import building, require_activation
from ppo_plus.saving.format.container import PathOrFile, is_container, naming
from ppo_plus.saving.format.names import Damaged, Refused, require_attributes
from ppo_plus.saving.model import (
    ALWAYS,
    argument_attributes,
    changes,
    forget_log_folder,
    put_parameters,
    require_counts,
)
from ppo_plus.saving.sb3.zip import SavedBySB3, read_sb3_zip, saved_by

#: Attributes that are not copied: they belong to the new model's environment, device and networks.
OWN = {
    *("_last_obs", "_last_episode_starts", "_last_lstm_states", "policy_class", "n_envs", "lr_schedule"),
    *("collector", "updater", "compilation"),
}
#: What a PPO has and SB3's other algorithms do not all have.
OF_PPO = frozenset({"clip_range", "n_epochs", "gae_lambda"})
#: What trains the policy classes of sb3-contrib's modules.
TRAINERS = {
    "sb3_contrib.common.maskable.policies": "MaskablePPO",
    "sb3_contrib.common.recurrent.policies": "RecurrentPPO",
}
_THEIRS = ("stable_baselines3.", "sb3_contrib.")


def from_sb3(
    cls: Any,
    path: PathOrFile,
    env: GymEnv | None,
    device: th.device | str,
    kwargs: dict[str, Any],
    custom_objects: dict[str, Any] | None = None,
    trust_pickle: bool = False,
) -> Any:
    """See :meth:`ppo_plus.PPO_Plus.from_sb3`, of which ``cls`` is a class; ``custom_objects`` as in SB3's ``load``."""
    given = changes(cls, kwargs)
    saved = _read(cls, path, custom_objects or {}, given, trust_pickle)
    data, parameters = saved.data, saved.parameters
    forget_log_folder(data, {*given, *(custom_objects or ())}, env)
    if not trust_pickle and "policy_kwargs" not in {*given, *(custom_objects or ())}:
        require_activation(data.get("policy_kwargs"))
    trainer, name = _trainer_and_name(data["policy_class"])
    if env is not None:
        env = cls._wrap_env(cls._checked_env(env, data["verbose"]), data["verbose"])
        require_spaces(env, data["observation_space"], data["action_space"])
        data = data | {"observation_space": env.observation_space, "action_space": env.action_space}
    model = cls(data["policy_class"], env, device=device, _init_setup_model=False)
    vars(model).update({each: data[each] for each in data.keys() - OWN.union(model._excluded_save_params())})
    model.policy_class = model.policy_aliases.get(name, data["policy_class"])
    model.n_envs = data["n_envs"] if model.env is None else model.env.num_envs
    buffer_class = model.rollout_buffer_class
    if buffer_class is not None and buffer_class.__module__.startswith(("stable_baselines3.", "sb3_contrib.")):
        model.rollout_buffer_class = None
    model.value_clip = "plain"
    vars(model).update(given)
    # Seeding again with the old seed would replay the random numbers of the beginning.
    seed = model.seed
    model.seed = kwargs.get("seed")
    with nullcontext() if trust_pickle else building(parameters.get("policy")):
        model._setup_model()
    model.seed = seed
    if trainer == "MaskablePPO":
        model._expects_masks = True
        if isinstance(data["action_space"], spaces.MultiBinary):
            _join_logits(parameters)
    put_parameters(model, parameters, data, given, device)
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


def _trainer_and_name(policy_class: Any) -> tuple[str, str]:
    """What trains policies of this class, and the name of ours in their place (``""``: the class itself)."""
    bases = policy_class.__mro__ if isinstance(policy_class, type) else ()
    trainer = next((TRAINERS[base.__module__] for base in bases if base.__module__ in TRAINERS), "PPO")
    if trainer == "PPO":
        return trainer, ""
    for name, known in getattr(import_module("sb3_contrib"), trainer).policy_aliases.items():
        if known is policy_class:
            return trainer, name
    base = "ActorCriticPolicy, which takes masks as well" if trainer == "MaskablePPO" else "MlpLstmPolicy"
    raise ValueError(f"policy={policy_class!r} is a {trainer} custom policy: derive it from ppo_plus.{base}")


def _no_ppo(path: Any) -> TypeError:
    return TypeError(
        f"{path!r} is not the path of an SB3 PPO, or of an sb3-contrib MaskablePPO or RecurrentPPO: pass the path of a "
        "model that one of them has saved"
    )


def _read(cls: Any, path: Any, custom_objects: dict[str, Any], given: dict[str, Any], trust_pickle: bool) -> SavedBySB3:
    """A saved model, without running the pickles in it unless they are trusted."""
    if not isinstance(path, (str, Path)) and not hasattr(path, "read"):
        raise _no_ppo(path)
    if is_container(path):
        with naming(path):
            raise Refused(f"{cls.__name__} saved it: use {cls.__name__}.load")
    saved = read_sb3_zip(path, custom_objects.keys())
    found = {*saved.data, *saved.unread}
    if not found | {*custom_objects, *given} >= OF_PPO:
        raise _no_ppo(path)
    needed = {*ALWAYS, *argument_attributes(cls).values()} - given.keys() - cls.scheduled
    lacking = {name: reason for name, reason in saved.unread.items() if name in needed}
    if trust_pickle and saved.unread:
        # Last, and only for these: another version of Python, for instance, cannot unpickle functions.
        data = saved.data
        try:
            data = saved_by(path, custom_objects).data | data
        except (ImportError, Refused):
            if lacking:
                raise
        saved = saved._replace(
            data=data, unread={name: saved.unread[name] for name in saved.unread.keys() - data.keys()}
        )
        lacking = {}
    absent = {*ALWAYS, "n_envs", "verbose"} - saved.data.keys() - saved.unread.keys() - {*custom_objects, *given}
    with naming(path):
        if absent:
            raise Damaged(f"it has no {' and no '.join(sorted(absent))}")
        if "value_clip" in found:
            raise Refused("PPO_Plus saved it with pickle=True. If you trust its source, pass trust_pickle=True to load")
        if lacking:
            raise Refused(
                "it contains pickles that could run code: "
                f"{', '.join(f'{name} ({reason})' for name, reason in lacking.items())}. Pass "
                f"{', '.join(f'{name}=' for name in lacking)} or, if you trust its source, trust_pickle=True "
                "(--trust-model)"
            )
    schedules = {name: Unknown(reason) for name, reason in saved.unread.items() if name in cls.scheduled}
    data = {**saved.data, **schedules, **custom_objects, **{name: given[name] for name in ALWAYS if name in given}}
    with naming(path):
        require_counts(data)
        require_attributes(cls, data.keys() - OWN - {"policy", "_vec_normalize_env"})
    return saved._replace(data=data)
