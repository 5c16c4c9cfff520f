"""Whether a model's training is compiled, and its compiled functions."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch as th

from ppo_plus.compiling.cache import Cache
from ppo_plus.compiling.compiled import Compiled, compile_error, obstacle

#: Gradient steps from which on compiling saves time: it makes each about 1 ms shorter (see
#: ``benchmarks/benchmark.py``), and takes 2 to 4 s, except for the first time on a machine.
WORTH_COMPILING = 4_000
#: The message before something is compiled.
NOTICE = "compiling first: some 20 s, or a few seconds where the same networks have been compiled before"


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


def is_worth_compiling(n_steps: int, device: th.device) -> bool:
    """Whether compiling saves time.

    :param n_steps: number of gradient steps
    :param device: where they are computed
    """
    return device.type == "cpu" and n_steps >= WORTH_COMPILING


def decide(
    requested: bool | str, n_steps: int, device: th.device, before: bool = False, unsupported: str | None = None
) -> CompileStatus:
    """Whether a run is compiled: requested, and possible here. It depends on the arguments alone, never on time.

    :param requested: the argument ``compile``
    :param n_steps: gradient steps that are planned so far, over all calls of ``learn``
    :param device: where it computes
    :param before: whether it was compiled before
    :param unsupported: why the policy cannot be compiled on any machine; ``None``: it can
    :raises CompileError: ``compile=True``, and the policy cannot be compiled, or nothing can here
    """
    if requested is False:
        return CompileStatus(False, "compile=False")
    if unsupported is not None:
        if requested is True:
            raise compile_error(unsupported)
        return CompileStatus(False, unsupported)
    if requested == "auto" and device.type != "cpu":
        return CompileStatus(False, f'compile="auto" compiles on a CPU only, and this is {device}')
    if requested == "auto" and not before and not is_worth_compiling(n_steps, device):
        return CompileStatus(False, f"{n_steps:,} gradient steps are planned; compiling starts at {WORTH_COMPILING:,}")
    reason = obstacle(device)
    if reason is None:
        return CompileStatus(True, "compile=True" if requested is True else f"{n_steps:,} gradient steps are planned")
    nothing = f"nothing can be compiled here ({reason})"
    if requested is True:
        raise compile_error(nothing)
    return CompileStatus(False, nothing, unexpected=True)


class Compilation:
    """Decisions and compiled functions of a model; a saved model keeps the decision, and compiles again."""

    def __init__(self) -> None:
        #: Gradient steps that all calls of ``learn`` have planned.
        self.n_planned = 0
        #: What was decided last.
        self.decision = CompileStatus(False, "learn has not been called yet")
        self.strict = False
        self.cache = Cache()
        #: Why a function cannot be compiled, by its name.
        self.unable: dict[str, str] = {}

    @property
    def tries(self) -> dict[str, tuple[int, str | None]]:
        """See :attr:`ppo_plus.compiling.cache.Cache.tries`."""
        return self.cache.tries

    @tries.setter
    def tries(self, tries: dict[str, tuple[int, str | None]]) -> None:
        self.cache.tries = tries

    def plan(self, requested: bool | str, n_steps: int, device: th.device, unsupported: str | None = None) -> None:
        """Decide for a call of ``learn``; the parameters are those of :func:`decide`.

        :param n_steps: gradient steps that the call plans
        :raises CompileError: see there
        """
        planned = self.n_planned + n_steps
        decision = decide(requested, planned, device, before=bool(self.decision), unsupported=unsupported)
        if decision.unexpected and decision != self.decision:
            warnings.warn(f"training runs uncompiled, and slower: {decision.reason}", RuntimeWarning, stacklevel=6)
        self.n_planned, self.decision, self.strict = planned, decision, requested is True
        self.cache.start_counting()

    @property
    def notice(self) -> str | None:
        """The message before training, if that is going to compile; ``None``: it is not."""
        return NOTICE if self.decision and not len(self.cache) else None

    def status(self, own_update: str | None = None) -> CompileStatus:
        """The decision, or why it could not be carried out.

        :param own_update: the name of a custom ``train``; it may have called the original all the same
        """
        if self.decision and own_update is not None and "the update" not in self.tries:
            return CompileStatus(False, f"{own_update} is a custom method, and is not compiled")
        unable = [f"{name} runs uncompiled ({reason})" for name, reason in self.unable.items()]
        failures = [*self.cache.failures(), *unable] if self.decision else []
        return CompileStatus(False, "; ".join(failures)) if failures else self.decision

    def compiled(
        self, name: str, function: Callable[..., Any], unable: str | None = None, n_mutable: int = 0, **reads: Any
    ) -> Compiled | None:
        """The compiled form of a function; ``None``: it has to run uncompiled. The other parameters are those of
        :meth:`~ppo_plus.compiling.cache.Cache.get`.

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
        return self.cache.get(name, function, strict=self.strict, n_mutable=n_mutable, **reads)
