"""Values that pass between the environments, the encoder and the heads of a policy."""

from typing import NamedTuple

import torch as th

State = tuple[th.Tensor, ...]
#: What a policy remembers: the state of each of its recurrent layers.
Memory = dict[str, State]


class Carry(NamedTuple):
    """What is carried from one step of the environments to the next; each has a row in every tensor.

    :param memory: what the policy remembers; empty without recurrent layers
    :param noise: what its exploration holds (see :mod:`ppo_plus.formulas.exploration`)
    """

    memory: Memory = {}
    noise: dict[str, th.Tensor] = {}


class Features(NamedTuple):
    """What the encoder makes of ``B`` observations, for the heads; each of shape ``(B, F)``.

    :param actor: for the actor
    :param critic: for the critic; the same tensor where both share the encoder
    """

    actor: th.Tensor
    critic: th.Tensor


class Heads(NamedTuple):
    """What the heads make of the features of ``B`` observations.

    :param values: the critic's, shape ``(B,)``
    :param params: parameters of the action distribution, shape ``(B, param_dim)``
    :param latent: the actor's last hidden layer, which feeds state-dependent noise, shape ``(B, F)``
    """

    values: th.Tensor
    params: th.Tensor
    latent: th.Tensor
