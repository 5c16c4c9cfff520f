"""Loading models that SB3's ``PPO`` or sb3-contrib's ``MaskablePPO`` and ``RecurrentPPO`` trained."""

from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import GymEnv

from ppo_plus.saving.format.container import PathOrFile, is_container, naming, opened
from ppo_plus.saving.format.names import Refused, decoding, name_of
from ppo_plus.saving.model import ALWAYS, argument_attributes, assemble, changes, places_of
from ppo_plus.saving.sb3.zip import SavedBySB3, read_sb3_zip

#: What a PPO has and SB3's other algorithms do not all have.
OF_PPO = frozenset({"clip_range", "n_epochs", "gae_lambda"})
#: What trains the policy classes of sb3-contrib's modules.
TRAINERS = {
    "sb3_contrib.common.maskable.policies": "MaskablePPO",
    "sb3_contrib.common.recurrent.policies": "RecurrentPPO",
}


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
    given, objects = changes(cls, kwargs), custom_objects or {}
    saved = _read(cls, path, objects, given, trust_pickle)
    data = {**saved.data, **objects, **{name: given[name] for name in ALWAYS if name in given}}
    trainer, name = _trainer_and_name(data.get("policy_class"))
    data["policy_class"] = cls.policy_aliases.get(name, data.get("policy_class"))
    buffer_class = data.get("rollout_buffer_class")
    if getattr(buffer_class, "__module__", "").startswith(("stable_baselines3.", "sb3_contrib.")):
        data["rollout_buffer_class"] = None
    data |= {"value_clip": "plain", "_expects_masks": trainer == "MaskablePPO"}
    if trainer == "MaskablePPO" and isinstance(data.get("action_space"), spaces.MultiBinary):
        with naming(path, "saved model"), decoding("its weights"):
            _join_logits(saved.parameters)
    model = {"class": name_of(cls), "attributes": {}, "missing": saved.unread, "parameters": saved.parameters}
    for part, places in places_of(cls).items():
        model[part] = {name: data[place] for name, place in places.items() if place in data}
    with naming(path, "saved model"):
        return assemble(cls, model, env, device, True, given, {**objects, "policy_class": data["policy_class"]})


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
    if not {*saved.data, *saved.unread, *custom_objects, *given} >= OF_PPO:
        raise _no_ppo(path)
    needed = {*ALWAYS, *argument_attributes(cls).values()} - given.keys() - cls.scheduled
    lacking = {name: reason for name, reason in saved.unread.items() if name in needed}
    if trust_pickle and saved.unread:
        # Last, and only for these: another version of Python, for instance, cannot unpickle functions.
        data: dict[str, Any] = {}
        with nullcontext() if lacking else suppress(Exception), opened(path) as file:
            data = load_from_zip_file(file, device="cpu", custom_objects=custom_objects)[0] or {}
        unread = {name: saved.unread[name] for name in saved.unread.keys() - data.keys()}
        lacking = {name: lacking[name] for name in lacking.keys() & unread.keys()}
        saved = saved._replace(data=data | saved.data, unread=unread)
    if lacking:
        with naming(path):
            raise Refused(
                "it contains pickles that could run code: "
                f"{', '.join(f'{name} ({reason})' for name, reason in lacking.items())}. Pass "
                f"{', '.join(f'{name}=' for name in lacking)} or, if you trust its source, trust_pickle=True "
                "(--trust-model)"
            )
    return saved
