"""``ppo-plus tune`` and ``ppo-plus tune worker``. Optuna is loaded when a study is: other subcommands do without it."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ppo_plus.zoo.cli.arguments import add_env_arguments, allowed_packages, whole_number
from ppo_plus.zoo.cli.train import add_experiment_arguments, make_experiment
from ppo_plus.zoo.folders import file_name

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

    from ppo_plus.zoo.experiment import Experiment
    from ppo_plus.zoo.tune.plan import Plan

#: Environment variable with the storage's URL. Worker processes get it that way: everybody on a machine can read the
#: arguments of processes, and there may be a password in it.
STORAGE_VARIABLE = "PPO_PLUS_STORAGE"

DESCRIPTION = """
Search for hyperparameters, confirm the best ones on seeds that the search never saw, and export a winner. The default
and the settings file's own entry are tried first. The same command again goes on where the study was.
"""
STORAGE_HELP = (
    "where the study is: sqlite:///FILE for processes on one machine, postgresql+psycopg://USER@HOST/DATABASE for any "
    "number of machines. With both, a worker that is killed loses nothing but its trial's progress: the trial is done "
    "again, and counts once (a trial that loses its third worker has failed: it may be what kills them). journal:FILE "
    "needs no database, and has no such guarantee, because only databases have heartbeats. (default: "
)


def add_parser(commands: Any) -> None:
    """Add the subcommand, and ``worker`` below it.

    :param commands: the program's subparsers
    """
    command = commands.add_parser(
        "tune", help="search for hyperparameters that are better on unseen seeds, too", description=DESCRIPTION
    )
    add_env_arguments(command, "--log-folder", env_required=False)
    add_experiment_arguments(command, seed_default=0)
    command.set_defaults(prepare=prepare)
    _add_search_arguments(command.add_argument_group("the search"))
    _add_score_arguments(command.add_argument_group("the score of a run, and what confirms it"))
    group = command.add_argument_group("the study and its workers")
    storage = f"the environment variable {STORAGE_VARIABLE}, else sqlite in the study's folder, below -f"
    _add_study_arguments(group, storage, "the environment's id, with the variant's name")
    group.add_argument("--workers", type=whole_number, default=1, metavar="N", help="processes on this machine "
        "(%(default)s); others join with `ppo-plus tune worker`")  # fmt: skip
    below = command.add_subparsers(metavar="worker", help="work on a study that was started elsewhere")
    worker = below.add_parser(
        "worker",
        description="Work on a study that `ppo-plus tune` has started with the same storage, on any machine.",
    )
    worker.add_argument("--gym-packages", nargs="+", default=[], metavar="PKG", help="packages to import first")
    worker.add_argument("--trust-config", action="store_true", help="let the study import wrappers, callbacks and "
        "policies from anywhere: whoever can write to the storage then runs code here")  # fmt: skip
    worker.set_defaults(prepare=prepare_worker)
    _add_study_arguments(worker, f"the environment variable {STORAGE_VARIABLE}", "the storage's only study")


def prepare(args: argparse.Namespace) -> Callable[[], None]:
    """Everything that a mistake of the user can be in: settings, search space, plan and storage."""
    _require_packages()
    from ppo_plus.zoo.tune.plan import tell_budget
    from ppo_plus.zoo.tune.space import read_space
    from ppo_plus.zoo.tune.stages import BUDGET, Study, standing
    from ppo_plus.zoo.tune.storage import shown
    from ppo_plus.zoo.tune.tuner import Workers, begin, check

    if args.env is None:
        raise ValueError("the following arguments are required: --env")
    module, colon, _ = args.env.rpartition(":")
    if colon:
        # Gymnasium imports it, and workers must be told that they may.
        args.gym_packages = [*args.gym_packages, module]
    experiment = make_experiment(args)
    plan, space = _plan(args, experiment), read_space(args.search_space)
    task = check(experiment, space, plan, allowed_packages(args), tuple(args.gym_packages))
    name = args.study_name or "/".join(filter(None, (args.env, args.variant)))
    folder = Path(args.log_folder, "tune", file_name(name))
    url = _url(args) or f"sqlite:///{folder / 'study.db'}"
    study = Study(name, _open(url, args))
    begin(study, task, args.max_total_trials, folder)
    tell_budget(experiment.n_timesteps, task)
    print(standing(study, shown(url)))
    print(task.plan.describe(study.attributes()[BUDGET]))
    options = [f"--heartbeat-interval={args.heartbeat_interval}", f"--grace-period={args.grace_period}"]
    if args.gym_packages:
        options += ["--gym-packages", *args.gym_packages]
    if args.trust_config:
        options.append("--trust-config")
    return partial(_tune, study, task, folder, Workers(args.workers, url, tuple(options)))


def prepare_worker(args: argparse.Namespace) -> Callable[[], None]:
    """Open the study."""
    _require_packages()
    from ppo_plus.zoo.tune.stages import Study, only_study
    from ppo_plus.zoo.tune.worker import Worker

    url = _url(args)
    if url is None:
        raise ValueError(f"the following arguments are required: --storage (or ${STORAGE_VARIABLE})")
    for package in args.gym_packages:
        import_module(package)
    storage = _open(url, args, must_exist=True)
    return partial(_work, Worker(Study(args.study_name or only_study(storage), storage), allowed_packages(args)))


def _tune(study: Any, task: Any, folder: Path, workers: Any) -> None:
    from ppo_plus.zoo.tune.export import entry_path, retrain_command
    from ppo_plus.zoo.tune.storage import StorageError
    from ppo_plus.zoo.tune.tuner import WorkersDied, finish
    from ppo_plus.zoo.tune.worker import StudyStopped

    with _ending_well({StudyStopped: 1, WorkersDied: 1, StorageError: 2}):
        verdict = finish(study, task, folder, workers)
    print(verdict)
    print(f"report: {folder / 'report.md'}")
    if verdict.winner is not None:
        entry = entry_path(task, folder)
        print(f"settings: {entry}")
        print(f"train with them: {retrain_command(task, entry)}")


def _work(worker: Any) -> None:
    from ppo_plus.zoo.tune.storage import StorageError
    from ppo_plus.zoo.tune.worker import CannotCompile, StudyStopped

    with _ending_well({StudyStopped: 1, CannotCompile: 1, StorageError: 2}):
        worker.work()


@contextmanager
def _ending_well(codes: dict[type[Exception], int]) -> Iterator[None]:
    """Turn what ends a study early into a line and an exit code.

    :param codes: the exit codes of what is no surprise; anything else shows its traceback
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        # SIGTERM is what a scheduler sends before it kills. Jobs are put back as for Ctrl-C.
        signal.signal(number, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted: its jobs wait for whoever goes on", file=sys.stderr)
        sys.exit(130)
    except tuple(codes) as error:
        print(f"ppo-plus: error: {str(error).strip()}", file=sys.stderr)
        sys.exit(codes[type(error)])


def _interrupt(*_: object) -> NoReturn:
    # Once is enough: a second one would interrupt the putting back.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _require_packages() -> None:
    missing = [name for name in ("optuna", "scipy") if find_spec(name) is None]
    if missing:
        raise ImportError(f"tuning needs {' and '.join(missing)}: pip install '.[zoo]' in a checkout")


def _plan(args: argparse.Namespace, experiment: "Experiment") -> "Plan":
    from ppo_plus.zoo.tune.plan import Plan

    return Plan(
        n_timesteps=experiment.n_timesteps,
        n_evals=args.n_evaluations,
        n_eval_episodes=args.eval_episodes,
        n_eval_envs=args.n_eval_envs,
        last_evals=args.last_evals,
        n_seeds=args.n_seeds,
        race_share=args.race_share,
        race_seeds=args.race_seeds,
        n_finalists=args.finalists,
        confirm_seeds=args.confirm_seeds,
        sampler=args.sampler,
        pruner=args.pruner,
        seed=experiment.seed,
    )


def _url(args: argparse.Namespace) -> str | None:
    return args.storage or os.environ.get(STORAGE_VARIABLE)


def _open(url: str, args: argparse.Namespace, must_exist: bool = False) -> "BaseStorage":
    import optuna

    from ppo_plus.zoo.tune.storage import open_storage

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return open_storage(url, args.heartbeat_interval, args.grace_period, must_exist)


def _add_search_arguments(group: Any) -> None:
    add = group.add_argument
    add("--max-total-trials", type=whole_number, default=40, metavar="N", help="trials of the search, all workers "
        "together: exactly so many are finished, pruned or failed in the end (%(default)s)")  # fmt: skip
    add("--sampler", default="tpe", help="tpe, random, gp, or cmaes (pip install cmaes) (%(default)s)")
    add("--pruner", default="median", help="median, hyperband or none (%(default)s)")
    add("--search-space", metavar="FILE", help="YAML search space (default: the package's own)")
    add("--n-seeds", type=whole_number, default=1, metavar="N", help="seeds of each trial (%(default)s)")


def _add_score_arguments(group: Any) -> None:
    add = group.add_argument
    add("--n-evaluations", type=whole_number, default=10, metavar="N", help="of a run, about: the steps between two "
        "are whole rollouts (%(default)s)")  # fmt: skip
    add("--eval-episodes", type=whole_number, default=10, metavar="N", help="episodes of each (%(default)s)")
    add("--n-eval-envs", type=whole_number, default=1, metavar="N", help="environments for them (%(default)s)")
    add("--last-evals", type=whole_number, default=3, metavar="K", help="the score is the mean of the last K "
        "evaluations (%(default)s)")  # fmt: skip
    add("--race-share", type=float, default=0.2, metavar="X", help="share of the finished trials that get more seeds "
        "(%(default)s)")  # fmt: skip
    add("--race-seeds", type=int, default=2, metavar="N", help="how many more; 0: no race (%(default)s)")
    add("--finalists", type=whole_number, default=3, metavar="N", help="best trials to compare with the default "
        "(%(default)s)")  # fmt: skip
    add("--confirm-seeds", type=int, default=10, metavar="N", help="on so many unseen seeds, at least 10; 0: no "
        "confirmation and no export (%(default)s)")  # fmt: skip


def _add_study_arguments(group: Any, storage: str, study_name: str) -> None:
    """The arguments that the tuner and its workers have in common.

    :param group: where they go
    :param storage: where the study is by default, for people
    :param study_name: its name by default, for people
    """
    add = group.add_argument
    add("--storage", metavar="URL", help=f"{STORAGE_HELP}{storage})")
    add("--study-name", metavar="NAME", help=f"name of the study (default: {study_name})")
    add("--heartbeat-interval", type=whole_number, default=15, metavar="S", help="seconds between two signs of life of "
        "a worker (%(default)s)")  # fmt: skip
    add("--grace-period", type=whole_number, default=60, metavar="S", help="seconds of silence after which a worker "
        "counts as dead; the same for all workers of a study (%(default)s)")  # fmt: skip
