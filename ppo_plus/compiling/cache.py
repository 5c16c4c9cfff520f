"""How long a compiled form is good for."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch as th

from ppo_plus.compiling.compiled import MAX_TRACES, Compiled
from ppo_plus.compiling.constants import Constants, NotComparable, constants_of, first_difference


class Cache:
    """Compiled functions by name, each kept together with the constants of its trace until one of them changes."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Constants | str, Compiled]] = {}
        self._earlier: dict[str, tuple[int, str | None]] = {}

    @property
    def tries(self) -> dict[str, tuple[int, str | None]]:
        """Of each function how often it was traced, and why it is not compiled, if so: here, or in the process that
        the model comes from."""
        here = {name: (compiled.n_traces, compiled.failure) for name, (_, compiled) in self._held.items()}
        return self._earlier | here

    @tries.setter
    def tries(self, tries: dict[str, tuple[int, str | None]]) -> None:
        self._earlier = tries

    def __getstate__(self) -> dict[str, Any]:
        # What is compiled stays here; copies compile for themselves.
        return {"_held": {}, "_earlier": self.tries}

    def __getitem__(self, name: str) -> Compiled:
        return self._held[name][1]

    def __len__(self) -> int:
        return len(self._held)

    def values(self) -> list[Compiled]:
        """The functions."""
        return [compiled for _, compiled in self._held.values()]

    def get(self, name: str, function: Callable[..., Any], strict: bool, n_mutable: int = 0, **reads: Any) -> Compiled:
        """The compiled form of a function, made anew where it has read something that is different now.

        :param name: what the function is, for messages
        :param function: the function; another one that reads the same is taken to do the same
        :param strict: see :class:`~ppo_plus.compiling.compiled.Compiled`
        :param n_mutable: see there
        :param reads: what it reads: the arguments of :func:`~ppo_plus.compiling.constants.constants_of`
        :raises CompileError: ``strict``, and what it reads cannot be compared
        """
        # Kernels are made for so many threads.
        settings = th.get_num_threads(), th.get_default_dtype(), th.is_autocast_enabled("cpu"), strict
        constants = _read(settings=settings, **reads)
        held = self._held.get(name)
        if held is not None and held[0] == constants:
            return held[1]
        compiled = Compiled(function, name, n_mutable, strict, partial(_read, **reads))
        n_traces, failure = self._earlier.pop(name, (0, None)) if held is None else (held[1].n_traces, held[1].failure)
        # The last of the earlier traces is repeated now.
        compiled.n_traces = n_traces if held is not None or failure else max(n_traces - 1, 0)
        if isinstance(constants, str):
            compiled.fail(constants)
        elif compiled.n_traces >= MAX_TRACES and failure:
            compiled.failure = failure  # has been said
        elif held is not None and compiled.n_traces >= MAX_TRACES:
            changed = "what it reads" if isinstance(held[0], str) else first_difference(held[0], constants)
            compiled.fail(f"{changed} changed {MAX_TRACES} times, and each time it had to be traced anew")
        self._held[name] = constants, compiled
        return compiled

    def start_counting(self) -> None:
        """What changes from now on counts as changing all the time if it does so often."""
        self._earlier.clear()
        for compiled in self.values():
            compiled.n_traces = 0

    def failures(self) -> list[str]:
        """Which functions run as they are, and why."""
        return [f"{each.name} runs uncompiled ({each.failure})" for each in self.values() if each.failure]


def _read(**reads: Any) -> Constants | str:
    """:func:`~ppo_plus.compiling.constants.constants_of`; in words where something cannot be compared."""
    try:
        return constants_of(**reads)
    except NotComparable as unknown:
        return str(unknown)
