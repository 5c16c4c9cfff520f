"""The arguments of policies, ``policy_kwargs``: their checks before a policy is built, and custom networks."""

import copy
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, FlattenExtractor, NatureCNN
from torch import nn

from ppo_plus.policy.normalization import OPTIONS
from ppo_plus.policy.observations import canonical_space
from ppo_plus.require import LARGEST, require_int, require_kind, require_number

#: Arguments of policies that ``PPO_Plus`` passes; they shape the policy, besides its class and ``policy_kwargs``.
SHAPING = frozenset({"use_sde", "exploration", "action_mask_key", "streams", *OPTIONS})
#: SB3's features extractors, and height and width that its NatureCNN needs at least.
SB3S, LEAST_PIXELS = (FlattenExtractor, NatureCNN, CombinedExtractor), 36
#: A custom network: a module, or a function ``(input_dim, output_dim) -> module``.
NetworkLike = nn.Module | Callable[[int, int], nn.Module]


def as_plain(value: Any, depth: int = 2) -> Any:
    """Mappings and sequences of other kinds, such as a ``UserDict`` or omegaconf's, as dicts and lists. Deeper than
    ``depth``, they are what a custom network asks for."""
    if not depth or isinstance(value, (list, tuple, str, spaces.Space)):
        return value
    if isinstance(value, Mapping):
        return {key: as_plain(part, depth - (key != "net_arch")) for key, part in value.items()}
    return list(value) if isinstance(value, Sequence) else value


def check_policy_kwargs(policy_kwargs: dict[str, Any]) -> None:
    """:raises TypeError, ValueError: an argument is one of ``PPO_Plus``, of the wrong kind, or out of range"""
    for name in SHAPING & policy_kwargs.keys():
        remedy = f"PPO_Plus(..., {name}={policy_kwargs[name]!r})"
        raise TypeError(f"policy_kwargs: {name} is an argument of PPO_Plus: pass {remedy}")
    _check_net_arch(policy_kwargs.get("net_arch"))
    require_kind("policy_kwargs: autocast", policy_kwargs.get("autocast", False), bool, "True or False")
    require_number("policy_kwargs: log_std_init", policy_kwargs.get("log_std_init", 0.0), -LARGEST, LARGEST)
    for name in ("features_extractor_kwargs", "optimizer_kwargs"):
        require_kind(f"policy_kwargs: {name}", policy_kwargs.get(name), (Mapping, NoneType), "a dict")
    activation_fn = policy_kwargs.get("activation_fn", nn.Tanh)
    try:
        # A function may make modules: `partial(nn.LeakyReLU, 0.1)` does, `torch.relu` does not.
        makes_modules = isinstance(activation_fn, type) or isinstance(activation_fn(), nn.Module)
    except Exception:
        makes_modules = False
    if not makes_modules:
        raise TypeError(f"policy_kwargs: activation_fn={activation_fn!r} must be a class, such as torch.nn.ReLU")
    for name in ("features_extractor_class", "optimizer_class"):
        require_kind(f"policy_kwargs: {name}", policy_kwargs.get(name), (Callable, NoneType), "a class")  # type: ignore[arg-type]
    optimizer_class = policy_kwargs.get("optimizer_class", th.optim.Adam)
    others = th.optim.LBFGS, th.optim.SparseAdam  # which need the loss as a closure, or sparse gradients
    if isinstance(optimizer_class, type) and (
        not hasattr(optimizer_class, "step") or issubclass(optimizer_class, others)
    ):
        raise ValueError(
            f"policy_kwargs: optimizer_class={optimizer_class!r} must be a first-order optimizer of torch for dense "
            "gradients, such as torch.optim.Adam"
        )


def _check_net_arch(net_arch: Any) -> None:
    if net_arch is None:
        return
    wanted = "a list of sizes, or dict(pi=[...], vf=[...])"
    require_kind("policy_kwargs: net_arch", net_arch, (list, tuple, dict), wanted)
    if isinstance(net_arch, dict):
        for name, sizes in net_arch.items():
            if name not in ("pi", "vf"):
                raise ValueError(
                    f"policy_kwargs: net_arch={net_arch!r} names a network {name!r}, but those of PPO are pi (the "
                    "actor) and vf (the critic): use dict(pi=[...], vf=[...])"
                )
            _check_sizes(f"policy_kwargs: net_arch[{name!r}]", sizes)
    elif len(net_arch) == 1 and isinstance(net_arch[0], dict):
        _check_net_arch(net_arch[0])  # SB3 still takes a dict alone in a list, and warns
    else:
        _check_sizes("policy_kwargs: net_arch", net_arch)


def _check_sizes(name: str, sizes: Any) -> None:
    require_kind(name, sizes, (list, tuple), "a list of sizes, such as [64, 64]")
    for i, size in enumerate(sizes):
        require_int(f"{name}[{i}]", size, 1)


def make_extractor(
    extractor: type[BaseFeaturesExtractor], space: spaces.Space, kwargs: Mapping[str, Any]
) -> BaseFeaturesExtractor:
    """A features extractor for observations of a space.

    :raises ValueError: SB3's extractors do not take such observations
    """
    is_dict = isinstance(space, spaces.Dict)
    if is_dict != (extractor is CombinedExtractor) and extractor in SB3S:
        remedy = 'a "MultiInput" policy takes Dict observations, "Mlp" and "Cnn" take others'
        if isinstance(space, spaces.Dict) and "action_mask" in space.spaces:
            remedy += ', and action_mask_key="action_mask" uses the mask'
        raise ValueError(f"policy: observation_space={space} does not fit SB3's {extractor.__name__}: {remedy}")
    try:
        return extractor(canonical_space(space), **kwargs)
    except (AssertionError, RuntimeError) as error:
        if extractor not in SB3S:
            raise
        raise ValueError(
            f"observation_space={space} does not fit SB3's {extractor.__name__}, whose images are of "
            f"{LEAST_PIXELS} x {LEAST_PIXELS} pixels at least, with three dimensions, and of uint8 from 0 to 255, or "
            "scaled and channels first with policy_kwargs=dict(normalize_images=False): change them by "
            'ResizeObservation, ReshapeObservation or TransformObservation of Gymnasium, use an "Mlp" policy, or pass '
            "policy_kwargs=dict(features_extractor_class=...)"
        ) from error


def split_network(
    name: str, network: NetworkLike, input_dim: int, output_dim: int, device: th.device
) -> tuple[nn.Sequential, nn.Module, int]:
    """A custom network in SB3's two parts, hidden layers and last layer, and the size between them.

    A network that is not an ``nn.Sequential``, or has its own ``forward``, is one layer.
    """
    is_function = callable(network) and not isinstance(network, nn.Module)
    module: Any = network(input_dim, output_dim) if is_function else copy.deepcopy(network)
    is_sequence = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    layers = list(module) if is_sequence else [module]
    if not layers or not isinstance(module, nn.Module):
        raise TypeError(
            f"policy_kwargs: {name}={network!r} must be a module with layers, or a function "
            "(input_dim, output_dim) -> module"
        )
    hidden, last, training = nn.Sequential(*layers[:-1]), layers[-1], module.training
    module.to(device).eval()  # so that one row is enough for batch norm
    try:
        with th.no_grad():
            latent = hidden(th.zeros(1, input_dim, device=device))
            shapes = latent.shape[:-1], last(latent).shape
        if shapes != ((1,), (1, output_dim)):
            raise ValueError(f"its output has the shape {tuple(shapes[1])}")
    except Exception as error:
        raise ValueError(
            f"policy_kwargs: {name}={network!r} must map one row of features, of shape (1, {input_dim}), to shape "
            f"(1, {output_dim}), and to a row before its last layer: {error}"
        ) from error
    module.train(training)
    return hidden, last, latent.shape[1]
