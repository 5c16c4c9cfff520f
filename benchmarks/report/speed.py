"""Tables and the picture of what ``benchmark.py`` has measured.

It imports little, so that a benchmark's processes have no more in memory than what they measure.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from report.markdown import markdown

#: Names of contenders.
REFERENCE, COMPILED, SBX = "SB3", "PPO_Plus compiled", "SBX"
#: Parts of a step's time.
ENV, ACT, COLLECT, UPDATE, REST = SECTIONS = ("environment", "acting", "buffer, bootstrap, GAE", "update", "rest")
#: Workloads that the picture shows.
PICTURED = ("CartPole-v1-x8", "HalfCheetah-v5-x1")


@dataclass
class Measured:
    """The measurements of one contender on one workload.

    :param us_per_step: microseconds per environment step, one per round
    :param start_up: seconds of the first rollout and update in a fresh process
    :param start_up_empty: the same with an empty compiler cache
    :param memory: megabytes: ``peak``, and ``added`` by training
    :param sections: microseconds per environment step, by part
    :param error: why it was not measured
    """

    us_per_step: list[float] = field(default_factory=list)
    start_up: float | None = None
    start_up_empty: float | None = None
    memory: dict[str, float] = field(default_factory=dict)
    sections: dict[str, float] = field(default_factory=dict)
    error: str = ""

    def speed_ups(self, reference: "Measured") -> list[float]:
        """How many times faster than the reference, round by round."""
        return [theirs / own for own, theirs in zip(self.us_per_step, reference.us_per_step, strict=True)]


#: By workload and contender.
Results = dict[str, dict[str, Measured]]


def parse(results: dict[str, dict[str, dict[str, Any]]]) -> Results:
    """The results in a file."""
    return {title: {name: Measured(**each) for name, each in by.items()} for title, by in results.items()}


def ratio_cell(result: Measured, reference: Measured) -> str:
    """How many times faster than the reference in the same round: the median over rounds, and the range; of the
    reference, the median of its times.

    The machine is slower in some rounds than in others for all contenders, so this is not the ratio of median times.
    """
    if result.error or reference.error:
        return "–"
    if result is reference:
        return f"{median(result.us_per_step):.0f} µs per step"
    ratios = result.speed_ups(reference)
    return f"**{median(ratios):.2f}×** [{min(ratios):.2f}, {max(ratios):.2f}]"


def time_cell(result: Measured, reference: Measured) -> str:
    """The median time over rounds, and the ratio."""
    if result.error:
        return "–"
    text = f"{median(result.us_per_step):.1f} µs"
    return text if result is reference or reference.error else f"{text}, {ratio_cell(result, reference)}"


def comparison(results: Results, corner: str, cell: Callable[[Measured, Measured], str]) -> list[str]:
    """A row for each workload, a column for each contender."""
    contenders = list(next(iter(results.values())))
    rows = [[title, *(cell(by[name], by[REFERENCE]) for name in contenders)] for title, by in results.items()]
    return markdown([corner, *contenders], rows)


def details_table(results: Results) -> list[str]:
    """A row for each workload and contender."""
    header = ["workload", "trained with", "start-up, s", "with empty cache, s", "peak, MB", "added, MB"]
    rows = []
    for title, by_contender in results.items():
        for name, result in by_contender.items():
            if not result.error:
                seconds = ["" if s is None else f"{s:.2f}" for s in (result.start_up, result.start_up_empty)]
                memory = [f"{result.memory[key]:.0f}" for key in ("peak", "added")]
                parts = [f"{result.sections[section]:.1f}" if result.sections else "" for section in SECTIONS]
                rows.append([title, name, *seconds, *memory, *parts])
    return markdown([*header, *(f"{section}, µs" for section in SECTIONS)], rows)


def draw(results: Results, path: Path) -> None:
    """Draw the time per environment step, stacked by section."""
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * len(results), 3), layout="constrained")
    # Okabe and Ito's colors, which stay apart for the color-blind.
    colors = ("#999999", "#56B4E9", "#009E73", "#D55E00", "#F0E442")
    panels = figure.subplots(1, len(results), squeeze=False)[0]
    for ax, (title, by_contender) in zip(panels, results.items(), strict=True):
        bars = {name: result.sections for name, result in by_contender.items() if result.sections}
        ends = np.zeros(len(bars))
        for section, color in zip(SECTIONS, colors, strict=True):
            widths = [parts[section] for parts in bars.values()]
            ax.barh(list(bars), widths, left=ends, color=color, label=section)
            ends += widths
        for row, end in enumerate(ends):
            ax.text(end, row, f" {end:.0f}", va="center")
        ax.set(title=title, xlabel="µs per environment step", xlim=(0, 1.12 * ends.max()))
        ax.invert_yaxis()
        ax.spines[["top", "right"]].set_visible(False)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=len(SECTIONS), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def iterations(results: dict[str, dict[str, Any]]) -> list[str]:
    """How long an iteration of environments in tensors takes, by what factor longer than the first contender's, and
    what was learned."""
    best = next(iter(results.values()))
    rows = []
    for name, found in results.items():
        cells = []
        for kind in ("seconds", "cpu"):
            own = median(found[kind])
            cells += [f"{own * 1e3:,.0f}", f"{own / median(best[kind]):.2f}×"]
        rows.append([name, *cells, f"{found['return']:.0f}"])
    return markdown(["", "ms per iteration", "ratio", "processor ms", "ratio", "return"], rows)
