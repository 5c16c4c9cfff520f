"""Whether a model's training is compiled, and its compiled functions."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch as th

from ppo_plus.compiling.compiled import MAX_TRACES, Compiled, compile_error, keeps_changing, obstacle
from ppo_plus.compiling.constants import NotComparable, Reads, constants_of, first_difference

#: Gradient steps from which on compiling saves time: it makes each about 1 ms shorter (see
#: ``benchmarks/benchmark.py``), and takes 2 to 4 s, except for the first time on a machine.
WORTH_COMPILING = 4_000
#: How to compile where ``"auto"`` does not.
FORCE = "compile=True compiles all the same"
#: The reason that needs no message.
AS_ASKED = "compile=False"


@dataclass(frozen=True)
class CompileStatus:
    """Whether a run is compiled: true or false, and as text with the reason.

    :param compiles: whether it is
    :param reason: why (not)
    :param unexpected: whether it should be and cannot, which gives a warning
    """

    compiles: bool
    reason: str
    unexpected: bool = False

    def __bool__(self) -> bool:
        return self.compiles

    def __str__(self) -> str:
        return f"{'yes' if self.compiles else 'no'}: {self.reason}"


class Compilation:
    """Decisions and compiled functions of a model; a saved model keeps the decision, and compiles again."""

    def __init__(self) -> None:
        #: Gradient steps that all calls of ``learn`` have planned.
        self.n_planned = 0
        #: What was decided last.
        self.decision = CompileStatus(False, "learn has not been called yet")
        self.strict = False
        #: Why a function cannot be compiled, by its name.
        self.unable: dict[str, str] = {}
        #: The compiled form of each function, by its name.
        self.functions: dict[str, Compiled] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Copies compile for themselves.
        return vars(self) | {"functions": {}}

    def plan(self, requested: bool | str, n_steps: int, device: th.device, unsupported: str | None = None) -> None:
        """Decide for a call of ``learn``: on the arguments alone, never on time.

        :param requested: the argument ``compile``
        :param n_steps: gradient steps that the call plans
        :param unsupported: why the policy cannot be compiled on any machine; ``None``: it can
        :raises CompileError: ``compile=True``, and the policy cannot be compiled, or nothing can here
        """
        planned = self.n_planned + n_steps
        decision = self._decide(requested, planned, device, unsupported)
        before, self.decision, self.strict = self.decision, decision, requested is True
        if self.strict and not decision:
            raise compile_error(decision.reason)
        if decision.unexpected and decision != before:
            warnings.warn(f"training runs uncompiled, and slower: {decision.reason}", RuntimeWarning, stacklevel=6)
        self.n_planned = planned
        for compiled in self.functions.values():
            compiled.n_traces = 0

    def _decide(self, requested: bool | str, n_steps: int, device: th.device, unsupported: str | None) -> CompileStatus:
        if requested is False:
            return CompileStatus(False, AS_ASKED)
        if unsupported is not None:
            return CompileStatus(False, unsupported)
        planned = f"{n_steps:,} gradient steps are planned"
        on_nvidia = device.type == "cuda" and not th.version.hip
        if device.type != "cpu" and not on_nvidia:
            return CompileStatus(False, f"nothing is compiled on {device}, where compiling has not been tested")
        if on_nvidia and requested == "auto":
            return CompileStatus(False, f"on {device}, only compile=True compiles")
        # What was compiled stays compiled.
        if requested == "auto" and not self.decision and n_steps < WORTH_COMPILING:
            return CompileStatus(False, f"{planned}; compiling starts at {WORTH_COMPILING:,}; {FORCE}")
        reason = obstacle(device)
        if reason is not None:
            return CompileStatus(False, f"nothing can be compiled here ({reason})", unexpected=True)
        return CompileStatus(True, "compile=True" if requested is True else planned)

    @property
    def notice(self) -> str | None:
        """The message before training: whether it is going to be compiled, and why; ``None``: nothing new."""
        if self.functions or self.decision.reason == AS_ASKED:
            return None
        if not self.decision:
            return f"training runs uncompiled: {self.decision.reason}"
        return (
            f"compiling first ({self.decision.reason}): some 20 s, or a few seconds where the same networks have been "
            "compiled before"
        )

    @property
    def seconds(self) -> float:
        """The time that compiling has taken so far."""
        return sum(compiled.seconds for compiled in self.functions.values())

    def status(self, own_update: str | None = None) -> CompileStatus:
        """The decision, or why it could not be carried out.

        :param own_update: the name of a custom ``train``; it may have called the original all the same
        """
        if not self.decision:
            return self.decision
        if own_update is not None and "the update" not in self.functions:
            return CompileStatus(False, f"{own_update} is a custom method, and is not compiled")
        failures = {name: compiled.failure for name, compiled in self.functions.items() if compiled.failure}
        reasons = [f"{name} runs uncompiled ({reason})" for name, reason in (failures | self.unable).items()]
        return CompileStatus(False, "; ".join(reasons)) if reasons else self.decision

    def compiled(
        self, name: str, function: Callable[..., Any], reads: Reads, unable: str | None = None
    ) -> Compiled | None:
        """The compiled form of a function; a new one if what it reads has changed; ``None``: it has to run uncompiled.

        :param function: another one of the same name that reads the same must do the same
        :param unable: why it cannot be compiled; ``None``: it can
        :raises CompileError: ``compile=True``, and it cannot be compiled
        """
        if not self.decision:
            return None
        self.unable.pop(name, None)
        if unable is not None:
            self.unable[name] = unable
            if self.strict:
                raise compile_error(unable)
            return None
        # Kernels are compiled for a number of threads.
        autocast = [th.is_autocast_enabled(kind) and th.get_autocast_dtype(kind) for kind in ("cpu", "cuda")]
        precision = th.get_default_dtype(), th.get_float32_matmul_precision()
        settings = th.get_num_threads(), precision, autocast, self.strict
        try:
            constants: Any = constants_of(replace(reads, objects={"settings": settings, **reads.objects}))
        except NotComparable as error:
            constants = str(error)
        known = self.functions.get(name)
        if known is not None and known.constants == constants:
            if self.strict and known.failure:
                known.fail(known.failure)
            return known
        compiled = Compiled(function, name, reads, self.strict, constants)
        self.functions[name] = compiled
        if isinstance(constants, str):
            compiled.fail(constants)
        elif known is not None:
            compiled.n_traces, compiled.seconds = known.n_traces, known.seconds
            if known.n_traces >= MAX_TRACES:
                compiled.failure = known.failure  # without a second warning
                changed = first_difference(known.constants, constants) or "what it reads"
                compiled.fail(known.failure or keeps_changing(changed))
        return compiled
