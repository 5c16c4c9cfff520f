"""From a gradient to new weights: clip, ask the KL control, step the optimizer, and keep a record."""

from collections.abc import Callable, Sequence

import torch as th
from torch.optim import Optimizer

from ppo_plus.compiling.torch_private import as_if_compiling
from ppo_plus.formulas.kl_control import KLControl, KLState
from ppo_plus.formulas.losses import Coefficients, Losses
from ppo_plus.update.flat import new_optimizer
from ppo_plus.update.gradient import Gradient

#: What the record of a minibatch begins with: whether its numbers were finite, and whether it counts in the averages
#: (it does until the one, included, at which the KL control stops the update).
FINITE, COUNTED = 0, 1

#: Steps an optimizer: takes the gradient, the learning rate (0-d) and whether the step is applied (0-d).
OptimizerStep = Callable[[Gradient, th.Tensor, th.Tensor], None]


def clip_factor(grads: Gradient, max_norm: float) -> tuple[th.Tensor, th.Tensor]:
    r"""What to multiply a gradient by so that its norm is at most :math:`c`: :math:`\min(1, c / (\|g\| + 10^{-6}))`.

    :return: the norm :math:`\|g\|` and the factor, both 0-d
    """
    norms = [th.linalg.vector_norm(grad) for grad in grads if grad is not None]
    norm = norms[0] if len(norms) == 1 else th.linalg.vector_norm(th.stack(norms))
    return norm, (max_norm / (norm + 1e-6)).clamp(max=1.0)


def apply(
    optimizer_step: OptimizerStep,
    losses: Losses,
    grads: Gradient,
    max_grad_norm: float,
    control: KLControl,
    state: KLState,
    coefficients: Coefficients,
) -> tuple[KLState, tuple[str, ...], th.Tensor]:
    """One step along a gradient, unless it is not finite or the KL control has stopped the update.

    :param grads: in one vector where it stands alone (it is changed then)
    :return: the control's next state, the names of the diagnostics, and a record of the minibatch: two flags
        (:data:`FINITE`, :data:`COUNTED`), then the diagnostics
    :raises ValueError: a diagnostic is missing or not 0-d
    """
    norm, factor = clip_factor(grads, max_grad_norm)
    if len(grads) == 1 and grads[0] is not None and grads[0].is_contiguous():
        grads = (grads[0].mul_(factor),)
    else:
        # New tensors: torch may have spread one number over many weights.
        grads = tuple(None if grad is None else grad * factor for grad in grads)
    total = losses.total.detach()
    finite = counted = applied = th.isfinite(total + norm)
    next_state = state
    if type(control) is not KLControl:
        counted = finite & state.running
        next_state = control.after_minibatch(state, _measured(control, losses), coefficients.target_kl)
        if next_state is not state:
            next_state = KLState(*(th.where(counted, new, old) for new, old in zip(next_state, state, strict=True)))
        applied = counted & next_state.running
    optimizer_step(grads, next_state.scaled(coefficients.learning_rate), applied)
    diagnostics = {"loss": total, **losses.diagnostics, "grad_norm": norm}
    try:
        record = th.stack([finite.to(total.dtype), counted.to(total.dtype), *diagnostics.values()])
    except (TypeError, RuntimeError):
        wrong = [name for name, value in losses.diagnostics.items() if getattr(value, "shape", None) != ()]
        raise ValueError(f"compute_loss returned diagnostics {wrong} that are not 0-d tensors: return means") from None
    return next_state, tuple(diagnostics), record


def _measured(control: KLControl, losses: Losses) -> th.Tensor:
    try:
        return losses.diagnostics[control.measure]
    except KeyError:
        raise ValueError(
            f"kl_control={control!r} reads the diagnostic {control.measure!r}, but compute_loss returned "
            f"only {sorted(losses.diagnostics)}: return it too"
        ) from None


def functional_step(like: Optimizer, vector: th.Tensor, moments: dict[str, th.Tensor]) -> OptimizerStep:
    r"""The step of an optimizer as a function of tensors, which it changes in place where the step is applied.

    The optimizer's own step is made on copies with a learning rate of 1 and scaled, :math:`w + \eta (w_1 - w)`, which
    is the same for elementwise optimizers and lets the learning rate be a tensor in all of them.
    """

    def step(grads: Gradient, learning_rate: th.Tensor, applied: th.Tensor) -> None:
        stepped = vector.detach().clone().requires_grad_()
        (stepped.grad,) = grads
        new_moments = {name: moment.clone() for name, moment in moments.items()}
        optimizer = new_optimizer(like, stepped)
        group = optimizer.param_groups[0]
        options = {key: value for key, value in like.param_groups[0].items() if key != "params"}
        group.update(options | {"lr": 1.0} | {key: False for key in ("foreach", "fused") if key in group})
        if "capturable" in group:
            group["capturable"] = True
        optimizer.state[stepped] = new_moments
        with as_if_compiling():
            optimizer.step()
        new_vector = vector + learning_rate * (stepped.detach() - vector)
        vector.copy_(th.where(applied, new_vector, vector))
        for name, moment in moments.items():
            moment.copy_(th.where(applied, new_moments[name], moment))

    return step


def means(names: Sequence[str], table: th.Tensor) -> dict[str, th.Tensor]:
    """The mean of each diagnostic in a table of records over the minibatches that count, 0-d (NaN if there is none)."""
    counted = table[table[:, COUNTED] > 0, COUNTED + 1 :]
    return dict(zip(names, counted.mean(dim=0), strict=True))


def names_not_finite(names: Sequence[str], record: th.Tensor) -> str:
    """The diagnostics of a minibatch that are not finite."""
    numbers = record[COUNTED + 1 :].isfinite().tolist()
    return ", ".join(name for name, is_finite in zip(names, numbers, strict=True) if not is_finite)
