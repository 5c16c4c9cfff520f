"""What the learning scripts share: training runs side by side, kept in a file, and tables of them."""

import argparse
import json
import math
import platform
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import torch as th
from markdown_table import markdown  # the script beside this one
from sb3_contrib import __version__ as contrib_version
from stable_baselines3 import __version__ as sb3_version
from stable_baselines3.common.type_aliases import MaybeCallback

from ppo_plus import __version__
from ppo_plus.zoo.cli.arguments import whole_number
from ppo_plus.zoo.tune.statistics import iqm_interval


@dataclass
class Result:
    """One training run: what was learned by whom with which seed, in how many steps, how many of them per second of CPU
    time, and what came out."""

    task: str
    contender: str
    seed: int
    steps: int
    steps_per_second: float
    score: float


def parser(
    doc: str | None, tables: Iterable[str], seeds: int | None = None, contenders: Iterable[str] = ()
) -> argparse.ArgumentParser:
    """What learning scripts can be asked for.

    :param doc: the script's docstring
    :param tables: what it can be limited to
    :param seeds: runs of each contender by default; ``None``: not to be chosen
    :param contenders: those that can be left out
    """
    tables, contenders = list(tables), list(contenders)
    result = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if len(tables) > 1:
        result.add_argument("--only", nargs="+", choices=tables, default=tables, help="what to learn")
    if contenders:
        result.add_argument("--without", nargs="+", choices=contenders, default=[], help="contenders to leave out")
    if seeds is not None:
        result.add_argument("--seeds", type=whole_number, default=seeds, help="runs of each contender")
    result.add_argument("--jobs", type=whole_number, default=cpu_count(), help="runs at a time")
    result.add_argument("--json", type=Path, help="file for all results")
    return result


def facts() -> dict[str, str]:
    """What the results depend on."""
    return {
        "python": platform.python_version(),
        "torch": th.__version__,
        "stable_baselines3": sb3_version,
        "sb3_contrib": contrib_version,
        "ppo_plus": __version__,
        "machine": f"{platform.system()} {platform.machine()}, {cpu_count()} cores",
    }


def learn(model: Any, steps: int, callback: MaybeCallback = None) -> float:
    """Train a model.

    :return: environment steps per second of CPU time
    """
    start = process_time()
    model.learn(steps, callback=callback)
    return float(model.num_timesteps / (process_time() - start))


def run(
    jobs: Iterable[Callable[[], Result]], arguments: argparse.Namespace, before: Sequence[Result] = ()
) -> list[Result]:
    """Run jobs in processes with one thread each, and keep what there is after each of them: a table takes long.

    :param jobs: functions that can be sent to a process
    :param arguments: of :func:`parser`
    :param before: results that there are already
    :return: all results: those from before, then in the order of the jobs
    :raises Exception: what a job has raised; those that have not begun are not done then, what there is before is kept
    :raises SystemExit: Ctrl-C, which ends the jobs that are going on as well
    """
    print(", ".join(f"{key} {value}" for key, value in facts().items()))
    results, futures = [*before], []
    with ProcessPoolExecutor(arguments.jobs, get_context("spawn"), _begin) as pool:
        try:
            futures += [pool.submit(job) for job in jobs]
            for future in as_completed(futures):
                if future.exception() is not None:
                    pool.shutdown(cancel_futures=True)
                ended = [each for each in futures if each.done() and not each.cancelled() and each.exception() is None]
                results = [*before, *(each.result() for each in ended)]
                if arguments.json:
                    save(results, arguments.json)
                done = future.result()
                n_done = len(results) - len(before)
                print(
                    f"{n_done} of {len(futures)}: {done.task}, {done.contender}, seed {done.seed}: {done.score:.2f}",
                    flush=True,
                )
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            kept = f", kept in {arguments.json}" if arguments.json else ""
            print(f"interrupted: {len(results) - len(before)} of {len(futures)} runs are done{kept}", file=sys.stderr)
            raise SystemExit(130) from None
    return results


def _begin() -> None:
    """In each process. Ctrl-C ends it at once: what it was about is not kept, and what would follow is not wanted."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    th.set_num_threads(1)


def done_before(path: Path) -> list[Result]:
    """The results in a file; none if there is no file. It ends the script if they are of other versions: a file says
    them once for all its runs."""
    if not path.exists():
        return []
    versions, now = json.loads(path.read_text())["versions"], facts()
    if others := [name for name in now if versions.get(name) != now[name]]:
        differ = ", ".join(f"{name} {versions.get(name)}, and not {now[name]}" for name in others)
        raise SystemExit(f"{path} has results of {differ}: give another file to --json")
    return read(path)


def read(path: Path) -> list[Result]:
    """The results in a file; a run that never reached its goal has an infinite score, one of which it was not kept no
    number of steps per second."""
    found = []
    for run in json.loads(path.read_text())["runs"]:
        score = math.inf if run["score"] is None else run["score"]
        found.append(Result(**{"steps_per_second": math.nan} | run | {"score": score}))
    return found


def save(results: list[Result], path: Path) -> None:
    # JSON has no infinity: null stands for a goal that was never reached.
    runs = [asdict(result) | {"score": None if result.score == math.inf else result.score} for result in results]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"versions": facts(), "runs": runs}, indent=1, allow_nan=False) + "\n")


#: An interval of fewer runs is little more than the lowest and the highest of them.
N_INTERVAL = 5


def score(scores: Sequence[float]) -> str:
    """The interquartile mean and its 95 % interval; of few runs, the score of each."""
    if len(scores) < N_INTERVAL:
        return ", ".join(f"{each:.1f}" for each in scores)
    return str(iqm_interval(scores))


def _returns(runs: list[Result]) -> str:
    return ", ".join(f"{run.score:.2f}" for run in runs)


def _interval(runs: list[Result]) -> str:
    found = iqm_interval([run.score for run in runs])
    return f"{found:.2f}" if len(runs) >= N_INTERVAL else f"{found.value:.2f}"


#: Columns of a table: what stands there for the runs of one contender.
COLUMNS: dict[str, Callable[[list[Result]], str]] = {
    "task": lambda runs: runs[0].task,
    "contender": lambda runs: runs[0].contender,
    "steps": lambda runs: f"{runs[0].steps:,}",
    "returns": _returns,
    "IQM [95 %]": _interval,
}
SPEED: dict[str, Callable[[list[Result]], str]] = {
    "steps/s": lambda runs: f"{median(run.steps_per_second for run in runs):,.0f}",
}


def rows(results: list[Result], columns: dict[str, Callable[[list[Result]], str]] = COLUMNS) -> list[str]:
    """A table with a line for each task and contender, in the order in which they come."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.task, result.contender), []).append(result)
    return markdown(list(columns), ([cell(runs) for cell in columns.values()] for runs in groups.values()))
