"""Updates of a policy: minibatch by minibatch, until the epochs or the KL control end them.

:func:`prepared` chooses how minibatches are made. :class:`CompiledMinibatch` runs the whole rule compiled, and
:class:`CompiledGradient` the gradient alone where something stands between gradient and step: recurrent layers, or
other processes.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch as th
from stable_baselines3.common.utils import update_learning_rate
from torch.optim import Optimizer

from ppo_plus.compiling.compilation import Compilation
from ppo_plus.compiling.compiled import Compiled
from ppo_plus.formulas.kl_control import KLControl, KLState, same_control
from ppo_plus.formulas.losses import Coefficients, Losses
from ppo_plus.policy.distributions import to_device
from ppo_plus.policy.policies import Features
from ppo_plus.trees import tree_map
from ppo_plus.update.flat import moments, packed, trainable
from ppo_plus.update.minibatch import (
    FINITE,
    Batch,
    Gradient,
    Minibatch,
    Outcome,
    UpdateRule,
    gradient_by_parts,
    head_gradient,
    means,
    names_not_finite,
    pick,
    read,
)

#: After so many minibatches in a row with a non-finite loss or gradient, training stops.
MAX_SKIPPED = 10
CPU = th.device("cpu")
#: Beyond this mean standard deviation of actions, a warning says so.
LARGE_STD = 1000.0


def coefficients_of(numbers: Mapping[str, Any]) -> Coefficients:
    """The values of all schedules, by name of the argument, as tensors on the CPU."""
    numbers = {**numbers, "target_kl": th.nan if numbers["target_kl"] is None else numbers["target_kl"]}
    return Coefficients(**{name: None if value is None else th.tensor(value) for name, value in numbers.items()})  # type: ignore[arg-type]


class Updater:
    """What lasts from one update to the next, besides weights and optimizer."""

    def __init__(self) -> None:
        #: The KL control of the last update, and the numbers of its state (running, beta, lr_scale).
        self.kl_memory: tuple[KLControl, tuple[float, ...]] | None = None
        #: Minibatches in a row that were skipped for a non-finite loss or gradient.
        self.n_skipped = 0
        #: Where they began, and how many updates ago.
        self.began, self.age = "", 0
        self.has_warned = False

    def kl_state(self, control: KLControl) -> KLState:
        """The KL control's state at the start of an update: that of the last update, with ``running`` reset to true.
        Another control than in the last update starts from its initial state."""
        state = control.init()
        if self.kl_memory is not None and same_control(self.kl_memory[0], control):
            state = KLState(*map(th.tensor, self.kl_memory[1]))
        return state._replace(running=th.tensor(True))

    @contextmanager
    def start(
        self,
        rule: UpdateRule,
        numbers: Mapping[str, Any],
        device: th.device,
        compilation: Compilation,
        **reads: Any,
    ) -> Iterator["Update"]:
        """Start an update, which ends with the block. Inside, the weights stand in a flat vector. ``numbers`` are the
        values of schedules, by name of the argument.

        :raises FloatingPointError: too many minibatches in a row had a non-finite loss or gradient
        """
        state = self.kl_state(rule.control)
        self.age += 1
        # With Python's numbers, so that it is logged unrounded.
        learning_rate: Any = KLState(*(value.item() for value in state)).scaled(numbers["learning_rate"])  # type: ignore[arg-type]
        update_learning_rate(rule.policy.optimizer, learning_rate)
        on_cpu = coefficients_of(numbers)
        coefficients = tree_map(lambda value: to_device(value, device), on_cpu)
        with packed(rule.policy.optimizer) as lent:
            minibatch = prepared(rule, lent, coefficients, compilation, **reads)
            asks = device.type != "cuda" or any(True for _ in rule.policy.buffers())
            update = Update(minibatch, rule.control, state, on_cpu.target_kl, self, learning_rate, device, asks)
            yield update
            update.finish()
            self.kl_memory = rule.control, tuple(float(value) for value in update.state)

    def count_skipped(self, finite: Iterable[float], describe: Callable[[int], str] = str) -> None:
        """Count the minibatches in a row whose loss or gradient was not finite; ``describe`` says what of one was not.

        :raises FloatingPointError: too many in a row were not
        """
        for i, flag in enumerate(finite):
            if not (flag or self.n_skipped):
                self.began, self.age = describe(i), 0
            self.n_skipped = 0 if flag else self.n_skipped + 1
            if self.n_skipped >= MAX_SKIPPED:
                raise FloatingPointError(
                    f"loss or gradient was not finite in {MAX_SKIPPED} minibatches in a row; no step was "
                    f"taken in them. It began {f'{self.age} updates ago' if self.age else 'in this update'}, in "
                    f"{self.began}. Lower learning_rate or max_grad_norm, normalize rewards and observations "
                    "(VecNormalize), or fix compute_loss"
                )


class Update:
    """One update, from its first minibatch to its last; the control's state and target (0-d) are on the CPU."""

    def __init__(
        self,
        minibatch: Minibatch,
        control: KLControl,
        state: KLState,
        target_kl: th.Tensor,
        updater: Updater,
        learning_rate: float,
        device: th.device = CPU,
        asks: bool = True,
    ):
        self._minibatch, self.control, self.state, self._target_kl = minibatch, control, state, target_kl
        self._updater, self._learning_rate, self._device = updater, learning_rate, device
        self._may_stop = type(control).after_minibatch is not KLControl.after_minibatch
        # Whether to ask after each minibatch if it was the last one. On CUDA, waiting for the answer takes longer than
        # making the others, which change no weight; but they must not change buffers or draw numbers either.
        self._asks = asks
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
        self.kl = target_kl

    def step(self, data: Batch, indices: th.Tensor) -> None:
        """Learn from a minibatch: the rows of a rollout with these indices."""
        if not self._unread[-1]:
            self.state = KLState(*(to_device(value, self._device) for value in self.state))
        before = None if self._asks or not self._may_stop else th.cuda.get_rng_state(self._device)
        self.state, self._names, record = self._minibatch(data, self.state, indices)
        self._unread[-1].append(record)
        if before is not None:
            self._asks = not before.equal(th.cuda.get_rng_state(self._device))
        self.stopped = self._may_stop and self._asks and not self.state.running

    def end_epoch(self) -> None:
        """Ask the KL control whether another epoch may follow.

        :raises FloatingPointError: too many minibatches in a row had a non-finite loss or gradient
        """
        self.n_epochs += 1
        self._unread.append([])
        # Without a control nothing has to be known of an epoch on a GPU before the update ends.
        if self._device.type == "cpu" or type(self.control) is not KLControl:
            self.kl = means(self._names, self._read()).get(self.control.measure, self._target_kl)
            self.state = self.control.after_epoch(self.state, self.kl, self._target_kl)
            self.stopped = not self.state.running

    def _read(self) -> th.Tensor:
        """Read what the epochs since the last call left, in one copy; returns the records of the last one.

        :raises FloatingPointError: too many minibatches in a row had a non-finite loss or gradient
        """
        tables, state = read(([th.stack(records) for records in self._unread[:-1]], tuple(self.state)))
        self.state, self._unread = KLState(*state), [[]]
        for table in tables:
            self._tables.append(table)
            self._updater.count_skipped(table[:, FINITE].tolist(), self._describe)
        return self._tables[-1]

    def _describe(self, i: int) -> str:
        """What is not finite in minibatch ``i`` of the epoch that was read last."""
        wrong = names_not_finite(self._names, self._tables[-1][i])
        return f"minibatch {i + 1} of epoch {len(self._tables)}: not finite are {wrong}"

    def finish(self) -> None:
        """End the update.

        :raises FloatingPointError: too many minibatches in a row had a non-finite loss or gradient
        """
        if len(self._unread) > 1:
            self._read()
        self.state = self.control.after_update(self.state, self.kl, self._target_kl)

    def metrics(self, policy: Any) -> dict[str, float]:
        """What is logged of the update, as ``train/<name>``."""
        table = th.cat(self._tables)
        found = {name: mean.item() for name, mean in means(self._names, table).items()}
        found["learning_rate"] = self._learning_rate
        if found.get("action_std", 0.0) > LARGE_STD and not self._updater.has_warned:
            self._updater.has_warned = True
            warnings.warn(
                f"train/action_std is {found['action_std']:.3g}: unless the bounds of the action space are as wide, "
                "actions are noise clipped at these. Lower ent_coef, which raises log_std, or learning_rate",
                stacklevel=5,
            )
        if hasattr(policy, "log_std"):
            found["std"] = policy.log_std.detach().exp().mean().item()
        if skipped := table[:, FINITE].tolist().count(0.0):
            found["skipped_minibatches"] = skipped
        if type(self.control) is not KLControl:
            found["kl_early_stop"] = float(not self.state.running)
            found["kl_coef"], found["lr_scale"] = self.state.beta.item(), self.state.lr_scale.item()
        return found


def prepared(
    rule: UpdateRule,
    lent: Optimizer,
    coefficients: Coefficients,
    compilation: Compilation,
    **reads: Any,
) -> Minibatch:
    """The function that makes the minibatches of one update: compiled if training is and it can be, otherwise eager.

    :param reads: what ``compute_loss`` reads (:func:`~ppo_plus.compiling.constants.constants_of`)
    :raises CompileError: ``compile=True``, and they cannot be compiled
    """
    policy = rule.policy
    optimizer = policy.optimizer
    function: Callable[..., Any] = rule
    gradient: type[CompiledGradient] | None = None
    unable = None
    if policy.remembers:
        # Compilers gain nothing on the recurrent layers' loops over time, which run eagerly.
        function, gradient = partial(head_gradient, policy, rule.compute_loss), CompiledHeads
    elif rule.reduction is not None:
        function, gradient = rule.gradient, CompiledGradient
    if lent is optimizer:
        unable = (
            f"{type(optimizer).__name__} cannot be packed (see ppo_plus.update.flat.packed; weights "
            "that were frozen for a while have taken fewer steps than the others)"
        )
    options = {key: value for key, value in optimizer.param_groups[0].items() if key not in ("params", "lr")}
    compiled = compilation.compiled(
        "the update",
        function,
        unable=unable,
        # Weights and buffers change in place, and in the whole rule the optimizer's state, too.
        n_mutable=3 if gradient is None else 2,
        given=[*trainable(optimizer), *rule.list_others()],
        compute_loss=rule.compute_loss,
        policy=policy,
        control=rule.control,
        max_grad_norm=rule.max_grad_norm,
        optimizer=(type(optimizer), options),
        **reads,
    )
    in_place = partial(rule.in_place, lent, coefficients)
    if compiled is None:
        return partial(in_place, rule.eager_gradient)
    if gradient is None:
        return CompiledMinibatch(rule, compiled, lent, coefficients)
    return partial(in_place, gradient(rule, compiled, lent))


class CompiledGradient:
    """Loss and gradient of a process's part of a minibatch, compiled."""

    def __init__(self, rule: UpdateRule, compiled: Compiled, lent: Optimizer):
        self._rule, self._compiled, self._vector = rule, compiled, trainable(lent)[0].data
        #: The rollout that the compiled form is bound to, and the bound form.
        self._data: Any = None
        self._bound: Any = None

    def __call__(self, coefficients: Coefficients, data: Batch, indices: th.Tensor) -> tuple[Losses, Gradient]:
        if self._data is not data:

            def eager(kl_coef: th.Tensor | None, indices: th.Tensor) -> tuple[Losses, Gradient]:
                return self._rule.eager_gradient(coefficients._replace(kl_coef=kl_coef), data, indices)

            self._bind(coefficients, data, plain=eager)
        return self._bound(coefficients.kl_coef, indices)  # type: ignore[no-any-return]

    def _bind(self, coefficients: Coefficients, data: Batch, **given: Any) -> None:
        fixed = coefficients._replace(kl_coef=None), data
        self._data, self._bound = data, self._compiled.bind(self._vector, self._rule.list_others(), *fixed, **given)


class CompiledHeads(CompiledGradient):
    """Loss and gradient of a minibatch of sequences: the encoder eager, the heads and the loss compiled.

    The parameters are those of :class:`CompiledGradient`, with the compiled form of
    :func:`~ppo_plus.update.minibatch.head_gradient`.
    """

    def __call__(self, coefficients: Coefficients, data: Batch, indices: th.Tensor) -> tuple[Losses, Gradient]:
        # The number of valid transitions decides shapes, which a compiled form has fixed; and if compiling has failed,
        # hooks on weights must see the gradient of the weights themselves.
        if data.valid is not None or self._compiled.failure is not None:
            return self._rule.eager_gradient(coefficients, data, indices)
        if self._data is not data:
            self._bind(coefficients, data)

        def head(features: Features) -> tuple[Losses, Gradient]:
            return self._bound(coefficients.kl_coef, features, indices)  # type: ignore[no-any-return]

        policy = self._rule.policy
        return gradient_by_parts(policy, head, trainable(policy.optimizer), pick(data, indices))


class CompiledMinibatch:
    """Minibatches in the compiled form of an :class:`UpdateRule`."""

    def __init__(self, rule: UpdateRule, compiled: Compiled, lent: Optimizer, coefficients: Coefficients):
        self._rule, self._compiled, self._lent, self._coefficients = rule, compiled, lent, coefficients
        self._eager = partial(rule.in_place, lent, coefficients, rule.eager_gradient)
        self._fresh = not moments(lent)
        self._full_size = 0
        self._data: Any = None
        self._bound: Any = None

    def __call__(self, data: Batch, state: KLState, indices: th.Tensor) -> Outcome:
        if self._data is not data:
            # The trace needs a full minibatch, and the optimizer's state, which its first step may create.
            self._full_size = max(self._full_size, len(indices))
            if self._fresh or len(indices) < self._full_size:
                outcome = self._eager(data, state, indices)
                # A step that was skipped has not made the state yet.
                self._fresh = self._fresh and not bool(outcome[2][FINITE])
                return outcome
            self._bind(data)
        return self._bound(state, indices)  # type: ignore[no-any-return]

    def _bind(self, data: Batch) -> None:
        (vector,) = trainable(self._lent)
        vector.grad = None  # the compiled form leaves none
        # Only now, since a module may have replaced a buffer, or have a new one.
        fixed = vector.data, moments(self._lent), self._rule.list_others(), self._coefficients, data
        self._data, self._bound = data, self._compiled.bind(*fixed, plain=partial(self._eager, data))
