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

    n_mutable = 2
    policy: Any
    #: The compiled form of :meth:`behind`; ``None``: nothing is compiled.
    _fused: Fused | None = None
    #: It with its first arguments settled, and the rollout among them.
    _bound: tuple[Callable[..., tuple[Losses, Gradient]], Batch] | None = None

    @property
    def compilable(self) -> Callable[..., Any]:
        return self.behind

    def behind(
        self,
        vector: th.Tensor,
        others: list[th.Tensor],
        coefficients: Coefficients,
        data: Batch,
        kl_coef: th.Tensor | None,
        recalled: Recalled,
        indices: th.Tensor,
    ) -> tuple[Losses, Gradient]:
        """The loss of one minibatch, and its gradient down to the recurrent layers; a pure function.

        For the other parameters see :meth:`__call__`.

        :param data: the rollout without its carry
        :param kl_coef: the coefficient that changes from one minibatch to the next
        :param recalled: what the recurrent layers made of the minibatch's observations
        :return: the loss; its gradient with respect to each weight, ``None`` for those that only stand before what was
            recalled, and then with respect to what was recalled
        """
        recalled = Recalled(*(part.detach().requires_grad_() for part in recalled))
        batch = pick(data, indices)._replace(carry=Carry(recalled=recalled))
        with self.standing_in(vector, others) as params:
            losses = self.loss(coefficients._replace(kl_coef=kl_coef), batch)
            grads = gradient(losses.total, [*params, *recalled])
        return losses._replace(total=losses.total.detach()), grads

    def differentiate(
        self, params: list[th.Tensor], coefficients: Coefficients, data: Batch, indices: th.Tensor | None
    ) -> tuple[Losses, Gradient]:
        # Which transitions are valid decides on shapes, which a compiled form has fixed.
        if self._fused is None or indices is None or data.valid is not None:
            return super().differentiate(params, coefficients, data, indices)
        recalled = self._recall(pick(data, indices))
        detached = Recalled(*(part.detach() for part in recalled))
        losses, grads = self._bind(coefficients, data)(coefficients.kl_coef, detached, indices)
        # The critic sends no gradient into layers that it shares; and layers may be frozen.
        ways = [way for way in zip(recalled, grads[len(params) :], strict=True) if way[0].requires_grad]
        if not ways:
            return losses, grads[: len(params)]
        outputs, inflow = zip(*ways, strict=True)
        through = th.autograd.grad(outputs, params, inflow, allow_unused=True)
        return losses, tuple(map(_sum, grads, through))

    def _recall(self, batch: Batch) -> Recalled:
        assert batch.carry is not None
        recalled: Recalled
        recalled, _ = self.policy.recall(batch.observations, batch.carry.memory, batch.episode_starts)
        return recalled

    def _bind(self, coefficients: Coefficients, data: Batch) -> Callable[..., tuple[Losses, Gradient]]:
        if self._bound is None or self._bound[1] is not data:
            assert self._fused is not None
            settled = coefficients._replace(kl_coef=None), data._replace(carry=None)
            self._bound = self._fused.bind(self.weights.vector, self.others, *settled), data
        return self._bound[0]

    def stepper(self, fused: Fused | None, verify: bool, *settled: Any) -> Callable[..., Any]:
        self._fused = fused
        return super().stepper(None, verify, *settled)

    def release(self) -> None:
        super().release()
        self._fused = self._bound = None


def _sum(a: th.Tensor | None, b: th.Tensor | None) -> th.Tensor | None:
    """The sum of gradients, ``None`` being 0."""
    return b if a is None else a if b is None else a + b
