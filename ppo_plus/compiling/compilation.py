"""Whether a model's training is compiled, and the compiled forms that it has made."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch as th

from ppo_plus.compiling.cache import Cache
from ppo_plus.compiling.compiled import Compiled, demanded, obstacle

#: Compiling pays from about so many gradient steps on: each is about 1 ms shorter then
#: (``benchmarks/benchmark.py``), and compiling takes 2 to 4 s, but for the first time on a machine.
WORTH_COMPILING = 4_000
#: What is said before something is compiled.
NOTICE = "compiling first: some 20 s, or a few seconds where the same networks have been compiled before"


@dataclass(frozen=True)
class Verdict:
    """Whether a run compiles: true or false, and in words why.

    :param compiles: whether it does
    :param reason: why (not)
    :param unexpected: whether it should but cannot, which is worth a warning
    """

    compiles: bool
    reason: str
    unexpected: bool = False

    def __bool__(self) -> bool:
        return self.compiles

    def __str__(self) -> str:
        return f"{'yes' if self.compiles else 'no'}: {self.reason}"


def pays(n_steps: int, device: th.device) -> bool:
    """Whether compiling pays for so many gradient steps.

    :param n_steps: gradient steps
    :param device: where they are made
    """
    return device.type == "cpu" and n_steps >= WORTH_COMPILING


def decide(
    requested: bool | str, n_steps: int, device: th.device, before: bool = False, foreign: str | None = None
) -> Verdict:
    """Whether a run compiles: requested, and possible here. It depends on the arguments only, never on time or caches.

    :param requested: the argument ``compile``
    :param n_steps: gradient steps that the model has planned so far, over all calls of ``learn``
    :param device: where it computes
    :param before: whether it was compiled before
    :param foreign: why the policy cannot be compiled wherever it is; ``None``: it can
    :raises CompileError: ``compile=True``, and the policy cannot be compiled, or nothing can here
    """
    if requested is False:
        return Verdict(False, "compile=False")
    if foreign is not None:
        if requested is True:
            raise demanded(foreign)
        return Verdict(False, foreign)
    if requested == "auto" and device.type != "cpu":
        return Verdict(False, f'compile="auto" compiles on a CPU only, and this is {device}')
    if requested == "auto" and not before and not pays(n_steps, device):
        return Verdict(False, f"{n_steps:,} gradient steps are planned; it pays from {WORTH_COMPILING:,} on")
    reason = obstacle(device)
    if reason is None:
        return Verdict(True, "compile=True" if requested is True else f"{n_steps:,} gradient steps are planned")
    nothing = f"nothing can be compiled here ({reason})"
    if requested is True:
        raise demanded(nothing)
    return Verdict(False, nothing, unexpected=True)


class Compilation:
    """What a model knows of its compiling; a saved one keeps the decision, and compiles anew."""

    def __init__(self) -> None:
        #: Gradient steps that all calls of ``learn`` have planned.
        self.n_planned = 0
        #: What was decided last.
        self.decision = Verdict(False, "learn has not been called yet")
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

    def plan(self, requested: bool | str, n_steps: int, device: th.device, foreign: str | None = None) -> None:
        """Decide for a call of ``learn``; the parameters are those of :func:`decide`.

        :param n_steps: gradient steps that the call plans
        :raises CompileError: see there
        """
        planned = self.n_planned + n_steps
        decision = decide(requested, planned, device, before=bool(self.decision), foreign=foreign)
        if decision.unexpected and decision != self.decision:
            warnings.warn(f"training runs uncompiled, and slower: {decision.reason}", RuntimeWarning, stacklevel=6)
        self.n_planned, self.decision, self.strict = planned, decision, requested is True
        self.cache.start_counting()

    @property
    def notice(self) -> str | None:
        """What there is to say before training goes on, if that is going to compile."""
        return NOTICE if self.decision and not len(self.cache) else None

    def verdict(self, own_update: str | None = None) -> Verdict:
        """The decision, or what came of it.

        :param own_update: what has trained, where it is not ours; it may have called ours all the same
        """
        if self.decision and own_update is not None and "the update" not in self.tries:
            return Verdict(False, f"{own_update} is its own, and is not compiled")
        unable = [f"{name} runs uncompiled ({reason})" for name, reason in self.unable.items()]
        failures = [*self.cache.failures(), *unable] if self.decision else []
        return Verdict(False, "; ".join(failures)) if failures else self.decision

    def compiled(
        self, name: str, function: Callable[..., Any], unable: str | None = None, n_mutable: int = 0, **reads: Any
    ) -> Compiled | None:
        """The compiled form of a function; ``None``: it is to run as it is. The other parameters are those of
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
                raise demanded(unable)
            return None
        return self.cache.get(name, function, strict=self.strict, n_mutable=n_mutable, **reads)
