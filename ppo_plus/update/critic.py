"""A critic that learns by itself: which weights are its own, with a learning rate of their own and passes of their own.

How good the advantages are is up to the critic, which can bear larger steps and more of them than the policy, since no
trust region holds it. TRPO makes 20 passes for it alone, at a learning rate of its own; DNA (Aitchison and Sweetser
2022, arXiv:2206.10027) and PPG (Cobbe et al. 2021, arXiv:2009.04416) train it in phases of its own, after the policy's.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch as th
from torch import nn
from torch.optim import Optimizer

from ppo_plus.policy.observations import to_tensor
from ppo_plus.update.batch import Batch
from ppo_plus.update.flat import trainable

#: What optimizers remember of weights, by the weights' names.
Moments = dict[str, dict[str, Any]]


def critic_weights(policy: Any) -> list[nn.Parameter]:
    """The critic's own weights: those that are learned, that values depend on, and that actions do not depend on.

    What actor and critic share is not the critic's own: a shared features extractor, or what ``shared_lstm`` shares.

    :param policy: the policy
    :raises ValueError: there are none
    """
    weights = trainable(policy.optimizer)
    training = policy.training
    policy.set_training_mode(False)
    with th.enable_grad():
        values, params = policy.evaluate_batch(_example(policy))
    policy.set_training_mode(training)
    of_values, of_actions = (_reached(outputs, weights) for outputs in (values, params))
    own = [p for p, value, action in zip(weights, of_values, of_actions, strict=True) if value and not action]
    if not own:
        raise ValueError(
            "critic_learning_rate and critic_epochs are for weights that the critic alone depends on, but the actor "
            "shares all of them, or they are frozen: give the critic layers of its own, such as "
            "policy_kwargs=dict(net_arch=dict(pi=[64], vf=[64])), or leave both out"
        )
    return own


def _example(policy: Any) -> Batch:
    """A transition such as the policy may meet."""
    obs, batched = to_tensor(copy.deepcopy(policy.observation_space).sample(), policy.observation_space, policy.device)
    assert not batched
    zero = th.zeros(1, device=policy.device)
    return Batch(obs, zero.expand(1, policy.family.action_dim), zero, zero, zero, zero)


def _reached(outputs: th.Tensor, weights: list[nn.Parameter]) -> list[bool]:
    """Which weights a result depends on."""
    if not outputs.requires_grad:
        return [False] * len(weights)
    grads = th.autograd.grad(outputs.sum(), weights, allow_unused=True, retain_graph=True)
    return [grad is not None for grad in grads]


@contextmanager
def learning_alone(policy: Any, weights: Sequence[nn.Parameter], moments: Moments) -> Iterator[None]:
    """Let nothing learn but these weights, by an optimizer of their own.

    Its class and arguments are those of the policy's optimizer, and it knows nothing of that one's steps: the gradients
    of the two differ in scale, by ``vf_coef`` and by what they are clipped together with.

    :param policy: the policy; meanwhile this is its optimizer, and its other weights are frozen
    :param weights: of the policy
    :param moments: what the optimizer remembers of them; brought up to date in the end
    """
    own = {name: p for name, p in policy.named_parameters() if any(p is each for each in weights)}
    others = [p for p in policy.parameters() if p.requires_grad and all(p is not each for each in own.values())]
    joint = policy.optimizer
    optimizer = policy.optimizer_class(own.values(), lr=joint.param_groups[0]["lr"], **policy.optimizer_kwargs)
    remember(optimizer, [moments.get(name, {}) for name in own])
    policy.optimizer = optimizer
    for p in others:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in others:
            p.requires_grad_(True)
        policy.optimizer = joint
        moments.update({name: dict(optimizer.state[p]) for name, p in own.items() if p in optimizer.state})


def remember(optimizer: Optimizer, states: Sequence[dict[str, Any]]) -> None:
    """Have an optimizer go on with these states of its parameters, in its order; an empty one begins anew."""
    kept = {i: state for i, state in enumerate(states) if state}
    optimizer.load_state_dict({"state": kept, "param_groups": optimizer.state_dict()["param_groups"]})
