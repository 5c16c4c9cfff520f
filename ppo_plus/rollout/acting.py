"""Acting: a policy's choice of actions as a function of tensors, compiled where training is."""

from collections.abc import Callable
from typing import Any

import torch as th
from stable_baselines3.common.callbacks import BaseCallback

from ppo_plus.compiling.compilation import Compilation
from ppo_plus.compiling.torch_private import still_in_place, swapped, without_gradients
from ppo_plus.policy.carry import Carry
from ppo_plus.policy.masking import MaskSource

#: Acts: takes observations, carry, episode starts and masks as tensors; returns a packed step, and the next carry.
Act = Callable[..., tuple[th.Tensor, Carry]]


class Acting:
    """Acting as a pure function of tensors.

    :param policy: the policy
    """

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


def is_foreign(callback: BaseCallback) -> bool:
    """Whether a callback, or one in it, is neither SB3's nor ours, and so may do anything to the policy."""
    if not type(callback).__module__.startswith(("stable_baselines3.", "ppo_plus.")):
        return True
    values = [value for name, value in vars(callback).items() if name != "parent"]
    inner = [each for value in values for each in (value if isinstance(value, list) else [value])]
    return any(is_foreign(each) if isinstance(each, BaseCallback) else callable(each) for each in inner)


def prepare_act(
    policy: Any, masks: MaskSource | None, compilation: Compilation, callback: BaseCallback | None = None
) -> Act:
    """How a policy acts in the rollout that begins.

    :param policy: the policy
    :param masks: where action masks come from, if they do
    :param compilation: whether and what to compile
    :param callback: what is called between the steps; ``None``: nothing that may change the policy
    """
    acting = Acting(policy)
    tensors = acting.tensors()
    compiled = compilation.compiled("acting", acting, n_mutable=1, given=tensors, policy=policy, masks=masks)
    if compiled is None:
        return without_gradients(acting.plain)
    # Evaluation, too, may make a module replace its buffers.
    touches = callback is not None and (is_foreign(callback) or any(True for _ in policy.buffers()))
    if not touches:
        return without_gradients(compiled.bind(tensors, plain=acting.plain))
    # Weights may be moved, and the policy changed, between the steps.
    in_place = still_in_place(policy)
    return without_gradients(compiled.bind(tensors, in_place=in_place, plain=acting.plain))
