"""The tables of what ``benchmark_vec_env.py`` has measured."""

from collections.abc import Mapping
from statistics import median

from report.markdown import markdown

#: The vector environment that steps all environments in this process, and those with so many workers.
BASE = "Lean"
WORKERS = {n: f"Workers: {n}" for n in (1, 2, 4, 8)}

#: Microseconds by task, number of environments and kind, one per round; JSON has the numbers as text.
Results = Mapping[str, Mapping[int, Mapping[str, list[float]]]]


def table(results: Results, base: str, corner: str, titles: Mapping[str, str] | None = None) -> list[str]:
    """A column for each task and number of environments, and a row for each kind: the median time over rounds, and how
    many times faster than ``base`` that is, the median of the ratios within rounds.

    :param results: what was measured
    :param base: the kind that others are compared with, if it was measured
    :param corner: header of the first column
    :param titles: names of the kinds in the table, in its order; ``None``: all kinds under their own names
    """
    columns = {f"{task} ×{n}": by_kind for task, by_n in results.items() for n, by_kind in by_n.items()}
    titles = titles or {kind: kind for by_kind in columns.values() for kind in by_kind}
    rows = [[title, *(cell(by_kind, kind, base) for by_kind in columns.values())] for kind, title in titles.items()]
    return markdown([corner, *columns], rows)


def cell(by_kind: Mapping[str, list[float]], kind: str, base: str) -> str:
    """The time of one kind, and the ratio."""
    if kind not in by_kind:
        return "–"
    text = f"{median(by_kind[kind]):,.0f}"
    if kind == base or base not in by_kind:
        return text
    ratios = [theirs / own for own, theirs in zip(by_kind[kind], by_kind[base], strict=True)]
    return f"{text} ({median(ratios):.2f}×)"
