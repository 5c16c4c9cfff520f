"""Custom networks of a policy, ``policy_kwargs=dict(actor=..., critic=...)``."""

import copy
from collections.abc import Callable

import torch as th
from torch import nn

#: A custom network: a module, or a function ``(input_dim, output_dim) -> module``.
NetworkLike = nn.Module | Callable[[int, int], nn.Module]


def split_network(
    name: str, given: NetworkLike, input_dim: int, output_dim: int, device: th.device
) -> tuple[nn.Sequential, nn.Module, int]:
    """A custom network in SB3's two parts, hidden layers and last layer, and the size between them.

    A network that is not an ``nn.Sequential`` is one layer.
    """
    if isinstance(given, nn.Module) or not callable(given):
        network = copy.deepcopy(given)
    else:
        network = given(input_dim, output_dim)
    if not isinstance(network, nn.Module) or (isinstance(network, nn.Sequential) and not len(network)):
        raise TypeError(
            f"policy_kwargs: {name}={given!r} must be a module with layers, or a function "
            "(input_dim, output_dim) -> module"
        )
    layers = list(network) if isinstance(network, nn.Sequential) else [network]
    hidden, last = nn.Sequential(*layers[:-1]).to(device), layers[-1].to(device)
    latent = _output_of(name, hidden, th.zeros(1, input_dim, device=device))
    output = _output_of(name, last, latent)
    if output.shape != (1, output_dim):
        raise ValueError(
            f"policy_kwargs: {name} maps one row of {input_dim} features to shape {tuple(output.shape)}, "
            f"but must map it to (1, {output_dim}): change its last layer"
        )
    return hidden, last, latent.shape[1]


def _output_of(name: str, module: nn.Module, inputs: th.Tensor) -> th.Tensor:
    """The output of a custom module, in eval mode so that one row is enough for batch norm."""
    training = module.training
    module.eval()
    try:
        with th.no_grad():
            output = module(inputs)
    except Exception as error:
        raise ValueError(
            f"policy_kwargs: {name} fails on an input of shape {tuple(inputs.shape)}: {error}. "
            "Its first layer must take the features extractor's output"
        ) from error
    finally:
        module.train(training)
    if not isinstance(output, th.Tensor) or output.ndim != 2:
        raise ValueError(
            f"policy_kwargs: {name} must map rows of features to rows of a tensor, not to {type(output).__name__}"
            f"{getattr(output, 'shape', '')}: wrap the module in one that returns a 2-d tensor"
        )
    return output
