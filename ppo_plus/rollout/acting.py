"""Acting: a policy's choice of actions as a function of tensors, compiled where training is."""

from collections.abc import Callable
from typing import Any

import torch as th

from ppo_plus.compiling.compilation import Compilation
from ppo_plus.compiling.torch_private import swapped, without_gradients
from ppo_plus.policy.masking import MaskSource
from ppo_plus.policy.policies import Carry

#: Acts: takes observations, carry, episode starts and masks as tensors; returns a packed step, and the next carry.
Act = Callable[..., tuple[th.Tensor, Carry]]


class Acting:
    """Acting as a pure function of tensors."""

    def __init__(self, policy: Any):
        self.policy = policy

    def tensors(self) -> list[th.Tensor]:
        """All parameters and buffers of the policy."""
        return [*self.policy.parameters(), *self.policy.buffers()]

    def __call__(self, tensors: list[th.Tensor], *inputs: Any) -> tuple[th.Tensor, Carry]:
        """:meth:`plain` with these parameters and buffers."""
        with swapped(self.policy, self.tensors(), tensors):
            return self.plain(*inputs)

    def plain(self, *inputs: Any) -> tuple[th.Tensor, Carry]:
        """``policy.act(*inputs)`` with its step packed."""
        step, carry = self.policy.act(*inputs)
        return step.packed(), carry


def prepare_act(policy: Any, masks: MaskSource | None, compilation: Compilation) -> Act:
    """The function by which a policy acts in the next rollout.

    :param policy: the policy
    :param masks: the source of action masks, if there are any
    :param compilation: whether and what to compile
    """
    acting = Acting(policy)
    tensors = acting.tensors()
    compiled = compilation.compiled("acting", acting, n_mutable=1, given=tensors, policy=policy, masks=masks)
    if compiled is None:
        return without_gradients(acting.plain)
    # Callbacks may move weights between the steps.
    return without_gradients(compiled.bind(tensors, plain=acting.plain, may_move=True))
