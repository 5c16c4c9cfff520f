"""The form of a checkpoint, which is checked before anything in it is used: it may be damaged, or a stranger's."""

from typing import Any

import torch as th

from ppo_plus.saving.checkpoint.process_state import GPUS
from ppo_plus.saving.format.names import Damaged

#: The form of states of environments. A form is a type (of integers: at least 0), ``None``, a list with the form of its
#: items, a dict with the forms of its entries or, under ``str``, of all, or a tuple of forms, one of which fits.
ENVS = {"layers": [str], "vec_layers": [{str: object}], "envs": (None, [dict]), "n_envs": int, "reason": (None, str)}
CALLBACK = {"class": str, "own": object, "changed": {str: object}, "envs": {str: ENVS}}
LOG = {"values": {str: object}, "counts": {str: int}, "excluded": {str: object}}
FORM = {
    "call": (None, {"total_timesteps": (int, float), "iteration": int, "callbacks": [CALLBACK]}),
    "generators": {"python": tuple, "numpy": dict, "torch": th.Tensor, **dict.fromkeys(GPUS, [th.Tensor])},
    "model": dict,
    "policy": {"frozen": [str], "buffers": {str: th.Tensor}},
    "env": ENVS,
    "log": (None, {**LOG, "folder": (None, str), "sizes": {str: int}}),
    "logs": {"kept": {str: int}},
    "num_timesteps": int,
    "rank": int,
}


def require_form(checkpoint: Any) -> None:
    """:raises Damaged: a part of a checkpoint is missing or not valid"""
    if isinstance(checkpoint, dict) and isinstance(checkpoint.get("generators"), dict):
        # Earlier versions kept those of CUDA alone.
        checkpoint["generators"] = {"xpu": [], "mps": [], **checkpoint["generators"]}
    for name, form in FORM.items():
        if not isinstance(checkpoint, dict) or name not in checkpoint or not _fits(checkpoint[name], form):
            raise Damaged(f"its part {name!r} is missing or not valid")
    if checkpoint["call"] is not None and checkpoint["log"] is None:
        raise Damaged("it has a call of learn without its log")


def _fits(value: Any, form: Any) -> bool:
    if isinstance(form, tuple):
        return any(_fits(value, each) for each in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(_fits(each, form[0]) for each in value)
    if isinstance(form, dict):
        forms = dict.fromkeys(value, form[str]) if str in form and isinstance(value, dict) else form
        is_named = isinstance(value, dict) and all(isinstance(key, str) for key in value)
        return is_named and forms.keys() <= value.keys() and all(_fits(value[key], forms[key]) for key in forms)
    if form is int:
        return type(value) is int and value >= 0
    return value is None if form is None else isinstance(value, form)
