"""Compiled functions, each kept while the constants of its trace are the same."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch as th

from ppo_plus.compiling.compiled import MAX_TRACES, Compiled
from ppo_plus.compiling.constants import Constants, NotComparable, constants_of, first_difference


class Cache:
    """Compiled functions by name, each with the constants of its trace."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Constants | str, Compiled]] = {}
        self._earlier: dict[str, tuple[int, str | None]] = {}

    @property
    def tries(self) -> dict[str, tuple[int, str | None]]:
        """For each function, how often it was traced and why it is not compiled (``None``: it is), in this process or
        in the one that saved the model."""
        here = {name: (compiled.n_traces, compiled.failure) for name, (_, compiled) in self._entries.items()}
        return self._earlier | here

    @tries.setter
    def tries(self, tries: dict[str, tuple[int, str | None]]) -> None:
        self._earlier = tries

    def __getstate__(self) -> dict[str, Any]:
        # Copies compile for themselves.
        return {"_entries": {}, "_earlier": self.tries}

    def __getitem__(self, name: str) -> Compiled:
        return self._entries[name][1]

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> list[Compiled]:
        """The compiled functions."""
        return [compiled for _, compiled in self._entries.values()]

    def get(self, name: str, function: Callable[..., Any], strict: bool, n_mutable: int = 0, **reads: Any) -> Compiled:
        """The compiled form of a function, a new one if it has read something that is different now.

        :param name: the function's name in messages
        :param function: the function; another one that reads the same must do the same
        :param strict: see :class:`~ppo_plus.compiling.compiled.Compiled`
        :param n_mutable: see there
        :param reads: what it reads: the arguments of :func:`~ppo_plus.compiling.constants.constants_of`
        :raises CompileError: ``strict``, and what it reads cannot be compared
        """
        # Kernels are compiled for a number of threads.
        settings = th.get_num_threads(), th.get_default_dtype(), th.is_autocast_enabled("cpu"), strict
        constants = _read(settings=settings, **reads)
        entry = self._entries.get(name)
        if entry is not None and entry[0] == constants:
            return entry[1]
        compiled = Compiled(function, name, n_mutable, strict, partial(_read, **reads))
        n_traces, failure = (
            self._earlier.pop(name, (0, None)) if entry is None else (entry[1].n_traces, entry[1].failure)
        )
        # The last of the earlier traces is repeated now.
        compiled.n_traces = n_traces if entry is not None or failure else max(n_traces - 1, 0)
        if isinstance(constants, str):
            compiled.fail(constants)
        elif compiled.n_traces >= MAX_TRACES and failure:
            compiled.failure = failure  # without a second warning
        elif entry is not None and compiled.n_traces >= MAX_TRACES:
            changed = "what it reads" if isinstance(entry[0], str) else first_difference(entry[0], constants)
            compiled.fail(f"{changed} changed {MAX_TRACES} times, and each time it was traced again")
        self._entries[name] = constants, compiled
        return compiled

    def start_counting(self) -> None:
        """Set all counts of traces to 0."""
        self._earlier.clear()
        for compiled in self.values():
            compiled.n_traces = 0

    def failures(self) -> list[str]:
        """Which functions run uncompiled, and why."""
        return [f"{each.name} runs uncompiled ({each.failure})" for each in self.values() if each.failure]


def _read(**reads: Any) -> Constants | str:
    """:func:`~ppo_plus.compiling.constants.constants_of`; a message if something cannot be compared."""
    try:
        return constants_of(**reads)
    except NotComparable as unknown:
        return str(unknown)
