"""The arguments of policies, ``policy_kwargs``: their checks before a policy is built, custom networks, and copies."""

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch as th
from torch import nn

from ppo_plus.policy.normalization import OPTIONS

P = TypeVar("P", bound=nn.Module)

#: Arguments of policies that ``PPO_Plus`` passes; they shape the policy, besides its class and ``policy_kwargs``.
SHAPING = frozenset({"use_sde", "exploration", "action_mask_key", "streams", *OPTIONS})
#: A custom network: a module, or a function ``(input_dim, output_dim) -> module``.
NetworkLike = nn.Module | Callable[[int, int], nn.Module]


def check_policy_kwargs(policy_kwargs: dict[str, Any]) -> None:
    """:raises TypeError, ValueError: an argument is one of ``PPO_Plus``, or names networks that PPO does not have or
    that another argument replaces"""
    for name in SHAPING & policy_kwargs.keys():
        remedy = f"PPO_Plus(..., {name}={policy_kwargs[name]!r})"
        raise TypeError(f"policy_kwargs: {name} is an argument of PPO_Plus: pass {remedy}")
    activation_fn = policy_kwargs.get("activation_fn", nn.Tanh)
    if not callable(activation_fn) or isinstance(activation_fn, nn.Module):
        raise TypeError(f"policy_kwargs: activation_fn={activation_fn!r} must be a class, such as torch.nn.ReLU")
    net_arch, replaced = policy_kwargs.get("net_arch"), {"pi": "actor", "vf": "critic"}
    for name in net_arch if isinstance(net_arch, dict) else ():
        problem = f"policy_kwargs: net_arch={net_arch!r} names a network {name!r}"
        if name not in replaced:
            ours = "those of PPO are pi (the actor) and vf (the critic): use dict(pi=[...], vf=[...])"
            raise ValueError(f"{problem}, but {ours}")
        if policy_kwargs.get(replaced[name]) is not None:
            raise ValueError(f"{problem}, which {replaced[name]}= replaces: leave out one of them")


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
    needed = f"policy_kwargs: {name}={network!r} must map features of shape (1, {input_dim}) to (1, {output_dim}), but"
    try:
        with th.no_grad():
            latent = hidden(th.zeros(1, input_dim, device=device))
            shape = last(latent).shape
    except RuntimeError as error:
        raise ValueError(f"{needed} raises {error}") from error
    if shape != (1, output_dim):
        raise ValueError(f"{needed} returns the shape {tuple(shape)}")
    module.train(training)
    return hidden, last, latent.shape[1]


def frozen(policy: P) -> P:
    """A copy of a policy that does not learn, on the CPU and without the optimizer."""
    unused = getattr(policy, "optimizer", None), getattr(policy, "_networks", None)  # these may be of local functions
    kept = [value for module in policy.modules() for value in vars(module).values()]
    # What a module keeps of its last call, without its graph, which torch does not copy.
    results = {id(value): value.detach() for value in kept if isinstance(value, th.Tensor) and not value.is_leaf}
    return copy.deepcopy(policy, {id(part): None for part in unused} | results).to("cpu").requires_grad_(False).eval()
