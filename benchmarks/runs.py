"""What the learning scripts share: training runs side by side, and a file of their results."""

import argparse
import json
import math
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path
from time import process_time
from typing import Any

import machine  # the modules beside this one
import torch as th
from report.results import write
from report.scores import Result, read
from stable_baselines3.common.type_aliases import MaybeCallback

from ppo_plus.zoo.cli.arguments import whole_number


def parser(
    doc: str | None, tables: Iterable[str], seeds: int | None = None, contenders: Iterable[str] = ()
) -> argparse.ArgumentParser:
    """The options of a learning script.

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
    return machine.facts("sb3_contrib")


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
    """Run jobs in processes with one thread each, and save all results after each job, since they take long.

    :param jobs: functions that can be sent to a process
    :param arguments: of :func:`parser`
    :param before: earlier results
    :return: all results: those from before, then in the order of the jobs
    :raises Exception: what a job has raised; jobs that have not begun are not done, and earlier results are kept
    :raises SystemExit: Ctrl-C, which ends running jobs as well
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
    """Set up a process of the pool: one thread, and Ctrl-C ends it at once, since its unfinished run is not kept."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    th.set_num_threads(1)


def done_before(path: Path) -> list[Result]:
    """The results in a file; none if there is no file. Results of other versions end the script, because a file names
    the versions once for all its runs."""
    if not path.exists():
        return []
    versions, now = json.loads(path.read_text())["versions"], facts()
    if others := [name for name in now if versions.get(name) != now[name]]:
        differ = ", ".join(f"{name} {versions.get(name)}, not {now[name]}" for name in others)
        raise SystemExit(f"{path} has results of {differ}: give another file to --json")
    return read(path)


def save(results: list[Result], path: Path) -> None:
    # JSON has no infinity: null stands for a goal that was never reached.
    runs = [asdict(result) | {"score": None if result.score == math.inf else result.score} for result in results]
    write(path, {"versions": facts(), "runs": runs}, allow_nan=False)
