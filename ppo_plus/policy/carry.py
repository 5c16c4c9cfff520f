"""Values that pass between the environments, the encoder and the heads of a policy."""

from typing import NamedTuple

import torch as th

State = tuple[th.Tensor, ...]
#: Memory of a policy: the state of each of its recurrent layers.
Memory = dict[str, State]


class Carry(NamedTuple):
    """State between the steps of environments; each environment has a row in every tensor.

    :param memory: memory of the policy; empty without recurrent layers
    :param noise: state of its exploration (see :mod:`ppo_plus.formulas.exploration`)
    """

    memory: Memory = {}
    noise: dict[str, th.Tensor] = {}


class Features(NamedTuple):
    """Features of ``B`` observations: the encoder's results, each of shape ``(B, F)``.

    :param actor: for the actor
    :param critic: for the critic; the same tensor if both share the encoder
    """

    actor: th.Tensor
    critic: th.Tensor


class Heads(NamedTuple):
    """Values and action distributions for ``B`` observations: the results of the heads.

    :param values: the critic's, shape ``(B,)``
    :param params: parameters of the action distribution, shape ``(B, param_dim)``
    :param latent: the actor's last hidden layer, which feeds state-dependent noise, shape ``(B, F)``
    """

    values: th.Tensor
    params: th.Tensor
    latent: th.Tensor
