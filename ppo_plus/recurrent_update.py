"""The update of a policy with memory: what can be compiled of it, is.

Torch's loops over time are neither traced nor outdone. So a compiled update of such a policy has two parts: features
and recurrent layers as they are, and the loss as a function of what these recalled, compiled together with its
gradient. The chain rule joins them.
"""

from collections.abc import Callable
from typing import Any

import torch as th

from ppo_plus.buffers import Batch, pick
from ppo_plus.engine import Gradient, Update
from ppo_plus.fused import Fused
from ppo_plus.kernels import gradient
from ppo_plus.losses import Coefficients, Losses
from ppo_plus.memory import Carry, Recalled


class RecurrentUpdate(Update):
    """:class:`~ppo_plus.engine.Update` of a policy with memory.

    Compiled, it needs a loss that evaluates the policy at the minibatch's observations and nowhere else.
    """

    policy: Any
    #: The compiled form of :meth:`behind`, a function of its last two arguments; ``None``: nothing is compiled.
    _compiled_behind: Callable[..., tuple[Losses, Gradient]] | None = None

    @property
    def compilable(self) -> Callable[..., Any]:
        return self.behind

    def behind(
        self, vector: th.Tensor, buffers: list[th.Tensor], coefficients: Coefficients, batch: Batch
    ) -> tuple[Losses, Gradient]:
        """The loss of one minibatch, and its gradient down to the recurrent layers; a pure function.

        :param vector: the weights
        :param buffers: the policy's buffers, which its layers may change in place
        :param coefficients: weights and bounds of the loss
        :param batch: the minibatch, with what was recalled as its carry
        :return: the loss; its gradient with respect to each weight, ``None`` for those that only stand before what was
            recalled, and then with respect to what was recalled
        """
        assert batch.carry is not None
        recalled = Recalled(*(part.detach().requires_grad_() for part in batch.carry.recalled))
        with self.standing_in(vector, buffers) as params:
            losses = self.loss(coefficients, batch._replace(carry=Carry(recalled=recalled)))
            grads = gradient(losses.total, [*params, *recalled])
        return losses._replace(total=losses.total.detach()), grads

    def differentiate(
        self, params: list[th.Tensor], coefficients: Coefficients, data: Batch, indices: th.Tensor | None
    ) -> tuple[Losses, Gradient]:
        # Which transitions are valid decides on shapes, which a compiled form has fixed.
        if self._compiled_behind is None or indices is None or data.valid is not None:
            return super().differentiate(params, coefficients, data, indices)
        batch = pick(data, indices)
        assert batch.carry is not None
        recalled, _ = self.policy.recall(batch.observations, batch.carry.memory, batch.episode_starts)
        known = Carry(recalled=Recalled(*(part.detach() for part in recalled)))
        losses, grads = self._compiled_behind(coefficients, batch._replace(carry=known))
        behind, slopes = grads[: len(params)], grads[len(params) :]
        # The critic sends none into layers that it shares; and layers may be frozen.
        ways = [(part, slope) for part, slope in zip(recalled, slopes, strict=True) if part.requires_grad]
        before: Gradient = (None,) * len(params)
        if ways:
            outputs, slopes = zip(*ways, strict=True)
            before = th.autograd.grad(outputs, params, slopes, allow_unused=True)
        return losses, tuple(b if a is None else a if b is None else a + b for a, b in zip(behind, before, strict=True))

    def stepper(self, fused: Fused | None, verify: bool, *settled: Any) -> Callable[..., Any]:
        self.buffers = list(self.policy.buffers())
        self._compiled_behind = None if fused is None else fused.bind(self.weights.vector, self.buffers)
        return super().stepper(None, verify, *settled)

    def release(self) -> None:
        super().release()
        self._compiled_behind = None
