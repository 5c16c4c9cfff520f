"""Updates of a policy: minibatch by minibatch, until the epochs or the KL control end them."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import torch as th
from torch.optim import SGD, Optimizer

from ppo_plus.compiling.compiled import Compilation, Compiled
from ppo_plus.compiling.torch_private import optimizer_step
from ppo_plus.formulas.kl_control import KLControl, KLState
from ppo_plus.formulas.losses import Coefficients
from ppo_plus.policy.policies import ActorCriticPolicy
from ppo_plus.require import NotFinite
from ppo_plus.trees import to_device, tree_map
from ppo_plus.update.minibatch import (
    COUNTED,
    FINITE,
    Batch,
    LossAndGradient,
    Outcome,
    TrainState,
    UpdateRule,
    concatenated,
    means,
    moments,
    n_transitions,
    names_not_finite,
    packed,
    pick,
    read,
    trainable,
)

#: Makes one minibatch, of the rollout, the KL control's state and the rows of the rollout.
Minibatch = Callable[[Batch, KLState, th.Tensor], Outcome]
#: The loss and gradient of a minibatch, of the same.
GradientFunction = Callable[[Batch, KLState, th.Tensor], LossAndGradient]

#: After so many minibatches in a row with a non-finite loss or gradient, training stops.
MAX_SKIPPED = 10
#: Seconds after which code that does not answer Ctrl-C is interrupted wherever it is.
PATIENCE = 1.0


def coefficients_of(values: Mapping[str, Any]) -> Coefficients:
    """The values of schedules, by name of the argument, as tensors on the CPU; a list is one for each value."""
    tensors: dict[str, Any] = {name: th.tensor(value) for name, value in values.items() if value is not None}
    if "clip_range" in tensors:
        # At the end of a schedule it may be 0: rounding alone would then decide which ratios are clipped.
        tensors["clip_range"] = tensors["clip_range"].clamp(min=1e-5)
    return Coefficients(**{"clip_range": None, "clip_range_vf": None, **tensors})


@contextmanager
def interrupts_wait() -> Iterator[Callable[[], None]]:
    """Defer Ctrl-C in the block until the yielded function is called, or the block ends, so that no step is half done.
    A second Ctrl-C after :data:`PATIENCE` seconds or more is not deferred, since the code may hang."""
    handler = signal.getsignal(signal.SIGINT)
    came: list[float] = []

    def answer() -> None:
        if came and callable(handler):
            came.clear()
            handler(signal.SIGINT, None)

    def receive(number: int, frame: FrameType | None) -> None:
        came.append(time.monotonic())
        if came[-1] - came[0] > PATIENCE:
            answer()

    # Python handles signals in the main thread.
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield answer
        return
    signal.signal(signal.SIGINT, receive)
    try:
        yield answer
    finally:
        signal.signal(signal.SIGINT, handler)
        answer()


@contextmanager
def torch_defaults() -> Iterator[None]:
    """In the block, torch makes tensors in single precision on the CPU and records gradients, whatever else was set."""
    before, elsewhere = th.get_default_dtype(), th.get_default_device().type != "cpu"
    with th.inference_mode(False), th.enable_grad(), th.device("cpu") if elsewhere else nullcontext():
        try:
            th.set_default_dtype(th.float32)
            yield
        finally:
            th.set_default_dtype(before)


class Trainer:
    """What lasts from one update to the next, besides weights and optimizer."""

    def __init__(self, compilation: Compilation) -> None:
        self.compilation = compilation
        #: The KL control of the last update, and the numbers of its state (running, beta, lr_scale).
        self.kl_memory: tuple[KLControl, tuple[float, ...]] | None = None
        #: Minibatches in a row that were skipped for a non-finite loss or gradient.
        self.n_skipped = 0

    def kl_state(self, control: KLControl) -> KLState:
        """The KL control's state at the start of an update: that of the last update, with ``running`` reset to true.
        Another control than in the last update starts from its initial state."""
        state = control.init()
        if self.kl_memory is not None and self.kl_memory[0] == control:
            state = KLState(*map(th.tensor, self.kl_memory[1]))
        return state._replace(running=th.tensor(True))

    @contextmanager
    def start(self, rule: UpdateRule, values: Mapping[str, Any], device: th.device) -> Iterator["Update"]:
        """Start an update, which ends with the block. Inside, the weights stand in a flat vector. Ctrl-C raises between
        two minibatches, so that it finds weights and optimizer as one of them has left them. The KL control scales the
        learning rates of the optimizer's groups.

        :param values: the values of schedules, by name of the argument
        :raises CompileError: ``compile=True``, and minibatches cannot be compiled
        :raises FloatingPointError: too many minibatches in a row had a non-finite loss or gradient, or the weights are
            not finite at the end
        """
        state, groups = self.kl_state(rule.control), rule.policy.optimizer.param_groups
        rates = th.tensor([group["lr"] for group in groups]).squeeze()
        on_cpu = coefficients_of(values)._replace(learning_rate=rates)
        for group in groups:
            group["lr"] *= state.lr_scale.item()
        coefficients = tree_map(lambda value: to_device(value, device), on_cpu)
        with interrupts_wait() as answer_interrupt, packed(rule.policy.optimizer) as flat:
            if self.compilation.decision.compiles:
                minibatch = compiled_minibatch(rule, flat, coefficients, self.compilation)
            else:
                minibatch = in_place(rule, flat, coefficients)
            update = Update(self, rule, state, on_cpu, minibatch, answer_interrupt, trainable(flat))
            yield update
            update.finish()
            if not update.ends_finite:
                rate = f"learning_rate={update.learning_rate:g}"
                raise NotFinite(f"the weights are not finite after an update with {rate}: lower it, or max_grad_norm")
            self.kl_memory = rule.control, tuple(float(value) for value in update.state)

    def count_skipped(self, names: Sequence[str], table: th.Tensor) -> None:
        """Count the minibatches in a row whose loss or gradient was not finite, in a table of records."""
        for i, flag in enumerate(table[:, FINITE].tolist()):
            self.n_skipped = 0 if flag else self.n_skipped + 1
            if self.n_skipped >= MAX_SKIPPED:
                raise NotFinite(
                    f"loss or gradient was not finite in {MAX_SKIPPED} minibatches in a row; no step was taken. "
                    f"Not finite are {names_not_finite(names, table[i])}. Lower learning_rate or max_grad_norm, pass "
                    "normalize_observations=True and normalize_values=True if they are not, or fix compute_loss"
                )


class Update:
    """One update, from its first minibatch to its last. The KL control's ``state`` and ``coefficients`` are on the CPU,
    and ``answer_interrupt`` raises ``KeyboardInterrupt`` if Ctrl-C has come."""

    def __init__(
        self,
        trainer: Trainer,
        rule: UpdateRule,
        state: KLState,
        coefficients: Coefficients,
        minibatch: Minibatch,
        answer_interrupt: Callable[[], None],
        weights: Sequence[th.Tensor],
    ):
        self._trainer, self.control, self._device = trainer, rule.control, weights[0].device
        self.state, self.coefficients = state, coefficients
        self._minibatch, self._answer_interrupt = minibatch, answer_interrupt
        #: That of the first group, logged unrounded.
        self.learning_rate: float = rule.policy.optimizer.param_groups[0]["lr"]
        self._may_stop = type(self.control).after_minibatch is not KLControl.after_minibatch
        # Whether to ask after each minibatch if it was the last one. On CUDA, waiting for the answer takes longer than
        # making the others, which change no weight; but they must not change buffers or draw numbers either.
        self._asks = self._device.type != "cuda" or rule.may_change_buffers
        self._weights = weights
        #: Whether all weights were finite when they were read last.
        self.ends_finite = True
        #: The names of the diagnostics.
        self._names: tuple[str, ...] = ()
        #: The records of each epoch since they were read last, and of all epochs that were read.
        self._unread: list[list[th.Tensor]] = [[]]
        self._tables: list[th.Tensor] = []
        #: Epochs that were begun.
        self.n_epochs = 0
        #: Whether the KL control has stopped the update, as far as is known.
        self.stopped = False
        #: The last epoch's mean of what the control measures, 0-d.
        self.kl = self.coefficients.target_kl

    def step(self, rollout: Batch, indices: th.Tensor) -> None:
        """Learn from a minibatch: the rows of a rollout with these indices."""
        if not self._unread[-1]:
            self.state = KLState(*(to_device(value, self._device) for value in self.state))
        before = None if self._asks or not self._may_stop else th.cuda.get_rng_state(self._device)
        self.state, names, record = self._minibatch(rollout, self.state, indices)
        if self._names not in ((), names):
            what = f"compute_loss returned the diagnostics {[*self._names]} in one minibatch and {[*names]} in another"
            raise ValueError(f"{what}: return the same, in the same order")
        self._names = names
        self._unread[-1].append(record)
        if before is not None:
            self._asks = not before.equal(th.cuda.get_rng_state(self._device))
        self.stopped = self._may_stop and self._asks and not self.state.running
        self._answer_interrupt()

    def run(self, epoch: Iterable[tuple[Batch, th.Tensor]]) -> None:
        """Learn from the minibatches of an epoch, until the KL control, which is also asked at its end, stops."""
        for rollout, indices in epoch:
            self.step(rollout, indices)
            if self.stopped:
                break
        self.n_epochs += 1
        self._unread.append([])
        # Without a control nothing has to be known of an epoch on a GPU before the update ends.
        if self._device.type == "cpu" or self.control.controls:
            self.kl = means(self._names, self._read()).get(self.control.measure, self.coefficients.target_kl)
            self.state = self.control.after_epoch(self.state, self.kl, self.coefficients.target_kl)
            self.stopped = not self.state.running

    def _read(self) -> th.Tensor:
        """Read what the epochs since the last call left, in one copy; returns the records of the last one."""
        finite = [weights.isfinite().all() for weights in self._weights]
        tables, state, finite = read(([th.stack(records) for records in self._unread[:-1]], tuple(self.state), finite))
        self.ends_finite = all(map(bool, finite))
        self.state, self._unread = KLState(*state), [[]]
        for table in tables:
            self._tables.append(table)
            self._trainer.count_skipped(self._names, table)
        return self._tables[-1]

    def finish(self) -> None:
        """End the update."""
        if len(self._unread) > 1:
            self._read()
        self.state = self.control.after_update(self.state, self.kl, self.coefficients.target_kl)

    def last_kl(self) -> float:
        """What the control measured in the last minibatch that counts."""
        table = self._tables[-1]
        return means(self._names, table[table[:, COUNTED] > 0][-1:])[self.control.measure].item()

    def metrics(self, policy: ActorCriticPolicy) -> dict[str, float]:
        """What is logged of the update, as ``train/<name>``."""
        table = th.cat(self._tables)
        logged = {name: mean.item() for name, mean in means(self._names, table).items()}
        logged["learning_rate"] = self.learning_rate
        if hasattr(policy, "log_std"):
            logged["std"] = policy.log_std.detach().exp().mean().item()
        if skipped := table[:, FINITE].tolist().count(0.0):
            logged["skipped_minibatches"] = skipped
        if self.control.controls:
            logged["kl_early_stop"] = float(not self.state.running)
            logged["kl_coef"], logged["lr_scale"] = self.state.beta.item(), self.state.lr_scale.item()
        return logged


def in_place(
    rule: UpdateRule, flat: Optimizer, coefficients: Coefficients, gradient_of: GradientFunction | None = None
) -> Minibatch:
    """Minibatches that change the policy. ``flat`` is its optimizer, as ``packed`` yields it; by default, the gradient
    is computed eagerly and with the policy's own weights."""
    gradient_of = gradient_of or partial(rule.own_gradient, coefficients)
    own, weights = trainable(rule.policy.optimizer), trainable(flat)
    step = partial(optimizer_step, flat, weights)

    def minibatch(rollout: Batch, state: KLState, indices: th.Tensor) -> Outcome:
        n = len(indices) if rule.reduction is None else n_transitions(rollout, indices)
        part = None
        if n:
            losses, gradient = gradient_of(rollout, state, indices)
            part = losses, gradient if flat is rule.policy.optimizer else (concatenated(gradient, own),)
        if rule.reduction is not None:
            part = rule.reduction(part, weights, n)
        assert part is not None
        return rule.apply(step, *part, state, coefficients)

    return minibatch


def compiled_minibatch(
    rule: UpdateRule, flat: Optimizer, coefficients: Coefficients, compilation: Compilation
) -> Minibatch:
    """Compiled minibatches: as a whole, or the gradient alone where something stands between gradient and step, other
    processes or an encoder that is not compiled. In place, if they cannot be compiled."""
    policy, optimizer = rule.policy, rule.policy.optimizer
    whole = policy.compiles_encoder and rule.reduction is None
    unable = None
    if flat is optimizer:
        unable = (
            f"{type(optimizer).__name__} cannot be packed: it is not elementwise, has several groups of parameters or "
            "hooks, or some weights, such as those frozen for a while, have taken fewer steps"
        )
    if not policy.compiles_encoder and type(policy).evaluate is not ActorCriticPolicy.evaluate:
        unable = f"{type(policy).__name__} overrides evaluate: with memory, override heads, the only part compiled"
    options = {key: value for key, value in optimizer.param_groups[0].items() if key not in ("params", "lr")}
    objects = {name: getattr(rule, name) for name in ("compute_loss", "policy", "control", "max_grad_norm")}
    objects["optimizer"] = type(optimizer), options
    tensors = [*trainable(optimizer), *rule.list_others()]
    reads = replace(rule.reads, tensors=tensors, objects=objects | dict(rule.reads.objects))
    compiled = compilation.compiled("the update", rule if whole else rule.gradient, reads, unable)
    if compiled is None:
        return in_place(rule, flat, coefficients)
    if whole:
        return whole_compiled(rule, compiled, flat, coefficients)
    return in_place(rule, flat, coefficients, gradient_compiled(rule, compiled, flat, coefficients))


def gradient_compiled(
    rule: UpdateRule, compiled: Compiled, flat: Optimizer, coefficients: Coefficients
) -> GradientFunction:
    """Loss and gradient of a process's part of a minibatch, compiled; after the encoder, if that is not compiled."""
    vector, call = trainable(flat)[0].data, compiled.function
    bound: Batch | None = None

    def gradient_of(rollout: Batch, state: KLState, indices: th.Tensor) -> LossAndGradient:
        # The number of valid transitions decides shapes, which a compiled form has fixed; and if compiling has failed,
        # hooks on weights must see the gradient of the weights themselves.
        if rollout.valid is not None or compiled.failure is not None:
            return rule.own_gradient(coefficients, rollout, state, indices)
        nonlocal bound, call
        if bound is not rollout:
            train_state = TrainState(vector, rule.list_others(), {})
            # What was counted for an encoder that has run already would be a constant of the trace.
            read = rollout
            if not rule.policy.compiles_encoder:
                read = tree_map(lambda leaf: leaf if isinstance(leaf, th.Tensor) else None, rollout)
            bound, call = rollout, compiled.bind(train_state, coefficients, read)
        if rule.policy.compiles_encoder:
            return call(state, indices)  # type: ignore[no-any-return]
        return rule.gradient_by_parts(partial(call, state, indices), pick(rollout, indices))

    return gradient_of


def whole_compiled(rule: UpdateRule, compiled: Compiled, flat: Optimizer, coefficients: Coefficients) -> Minibatch:
    """Minibatches in the compiled form of an :class:`UpdateRule`."""
    eager, call, full_size = in_place(rule, flat, coefficients), compiled.function, 0
    # Without momentum, this optimizer has no state to wait for.
    has_state = not isinstance(flat, SGD) or flat.param_groups[0]["momentum"] != 0
    bound: Batch | None = None

    def minibatch(rollout: Batch, state: KLState, indices: th.Tensor) -> Outcome:
        nonlocal bound, call, full_size
        if rollout.valid is not None:  # see gradient_compiled
            return eager(rollout, state, indices)
        if bound is not rollout:
            # The trace needs a full minibatch, and the optimizer's state, which the first step that is taken creates.
            full_size = max(full_size, len(indices))
            if len(indices) < full_size or (has_state and not moments(flat)):
                return eager(rollout, state, indices)
            (vector,) = trainable(flat)
            vector.grad = None  # the compiled form leaves none
            # Only now, since a module may have replaced a buffer, or have a new one.
            train_state = TrainState(vector.data, rule.list_others(), moments(flat))
            bound, call = rollout, compiled.bind(train_state, coefficients, rollout, plain=partial(eager, rollout))
        return call(state, indices)  # type: ignore[no-any-return]

    return minibatch
