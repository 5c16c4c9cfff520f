"""Tables of what ``determinism.py`` and ``soak.py`` have found."""

from typing import Any

from report.markdown import markdown


def determinism_table(results: dict[str, dict[str, dict[str, bool]]]) -> list[str]:
    """A line for each way to train: whether weights are the same on each task, uncompiled / compiled."""
    words = {True: "same", False: "differs"}
    rows = [
        [name, *(" / ".join(words[same] for same in modes.values()) for modes in tasks.values())]
        for name, tasks in results.items()
    ]
    return markdown(["uncompiled / compiled", *next(iter(results.values()))], rows)


def n_faults(result: dict[str, Any]) -> int:
    """How many faults a run survived, in both of its lives."""
    return sum(result["injected"].values()) + sum(result["env_faults"].values())


def _largest(runs: list[dict[str, Any]], name: str) -> Any:
    """The largest growth of a kind of runs, where it was measured."""
    return max((run["growth"][name] for run in runs if run["growth"]), default="")


def soak_table(results: list[dict[str, Any]]) -> list[str]:
    """A line for each kind of run: how many faults there were, and what they cost."""
    columns = ["injected", "survived", "updates lost", "files corrupted", "resumed runs that differ"]
    columns += ["growth, MiB", "growth, descriptors"]
    rows = []
    for name in dict.fromkeys(result["run"] for result in results):
        runs = [result for result in results if result["run"] == name]
        n = sum(map(n_faults, runs))
        cells = [
            n,
            n - sum(len(run["fatal"]) for run in runs),
            sum(run["updates_lost"] for run in runs),
            sum(len(run["files_corrupted"]) for run in runs),
            f"{sum(bool(run['differing']) for run in runs)} of {len(runs)}",
            *(_largest(runs, name) for name in ("memory_MiB", "descriptors")),
        ]
        rows.append([name, *map(str, cells)])
    return markdown(["run", *columns], rows)
