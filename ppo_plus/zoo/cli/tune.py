"""``ppo-plus tune`` and ``ppo-plus tune worker``. Optuna is loaded when a study is: other subcommands do without it."""

import argparse
import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppo_plus.zoo.cli.arguments import (
    add_algo_argument,
    add_env_arguments,
    add_fault_arguments,
    add_option,
    allowed_packages,
    whole_number,
)
from ppo_plus.zoo.cli.train import add_experiment_arguments, make_experiment
from ppo_plus.zoo.interrupts import exit_codes, this_command
from ppo_plus.zoo.runs import file_name

if TYPE_CHECKING:
    from ppo_plus.zoo.tune import Study

#: Environment variable with the storage's URL, which may have a password: everybody on a machine can read the arguments
#: of its processes.
STORAGE_VARIABLE = "PPO_PLUS_STORAGE"

DESCRIPTION = """
Search for hyperparameters, and export a winner if it beats both the default and the settings file's entry on unseen
seeds. The same command again resumes the study.
"""
STORAGE_HELP = (
    "where the study is: sqlite:///FILE for processes on one machine, postgresql+psycopg://USER@HOST/DATABASE for any "
    "number of machines. A worker that is killed loses nothing but its trial's progress: the trial is done again, and "
    "counts once (a trial that loses its third worker has failed: it may be what kills them). (default: "
)

#: Fields of a plan: option, default, and help.
COUNTS = {
    "n_seeds": ("--n-seeds", 1, "seeds of each trial"),
    "n_evals": ("--n-evaluations", 10, "of a run, about: the steps between two are whole rollouts"),
    "n_eval_episodes": ("--eval-episodes", 10, "episodes of each evaluation"),
    "n_eval_envs": ("--n-eval-envs", 1, "environments for them"),
    "last_evals": ("--last-evals", 3, "the score is the mean of the last N evaluations"),
    "n_finalists": ("--finalists", 3, "best trials to compare with the baselines"),
    "race_seeds": ("--race-seeds", 2, "further seeds of the best trials; 0: no race"),
    "confirm_seeds": ("--confirm-seeds", 10, "unseen seeds, at least 10; 0: no confirmation and no export"),
}


def add_parser(commands: Any) -> None:
    """Add the subcommand, and ``worker`` below it, to the program's subparsers."""
    command = commands.add_parser(
        "tune", help="search for hyperparameters, and confirm them on unseen seeds", description=DESCRIPTION
    )
    add_env_arguments(command, "--log-folder", env_required=False)
    add_algo_argument(command, "for rl_zoo3's command lines; PPO_Plus is tuned either way")
    add_experiment_arguments(command, seed_default=0)
    command.set_defaults(prepare=partial(_guarded, _prepare))
    group = command.add_argument_group("the search, the score of a run, and what confirms it")
    help = "trials of the search, all workers together: exactly so many are finished, pruned or failed in the end"
    add_option(group, "--max-total-trials", help, type=whole_number, default=40, metavar="N")
    add_option(group, "--sampler", "tpe, random or gp", default="tpe")
    add_option(group, "--pruner", "median, hyperband or none", default="median")
    group.add_argument("--search-space", metavar="FILE", help="YAML search space (default: the package's own)")
    help = "share of the finished trials that get more seeds"
    add_option(group, "--race-share", help, type=float, default=0.2, metavar="X")
    for field, (option, default, help) in COUNTS.items():
        kind = int if field in ("race_seeds", "confirm_seeds") else whole_number
        add_option(group, option, help, dest=field, type=kind, default=default, metavar="N")
    group = command.add_argument_group("the study and its workers")
    storage = f"the environment variable {STORAGE_VARIABLE}, else sqlite in the study's folder, below -f"
    _add_study_arguments(group, storage, "the environment's id, with the variant's name")
    help = "processes on this machine; others join with `ppo-plus tune worker`"
    add_option(group, "--workers", help, type=whole_number, default=1, metavar="N")
    below = command.add_subparsers(metavar="worker", help="work on a study that was started elsewhere")
    worker = below.add_parser(
        "worker",
        description="Work on a study that `ppo-plus tune` has started with the same storage, on any machine.",
    )
    add_option(worker, "--gym-packages", "packages to import first", nargs="+", default=[], metavar="PKG")
    worker.add_argument("--trust-config", action="store_true", help="let the study import wrappers, callbacks and "
        "policies from anywhere: anyone who can write to the storage can then run code here")  # fmt: skip
    worker.set_defaults(prepare=partial(_guarded, _prepare_worker))
    _add_study_arguments(worker, f"the environment variable {STORAGE_VARIABLE}", "the storage's only study")


def _add_study_arguments(group: Any, storage: str, study_name: str) -> None:
    """The arguments that the tuner and its workers have in common, with the defaults of two of them in words."""
    group.add_argument("--storage", metavar="URL", help=f"{STORAGE_HELP}{storage})")
    group.add_argument("--study-name", metavar="NAME", help=f"name of the study (default: {study_name})")
    help = "seconds of silence after which a worker counts as dead; the same for all workers of a study"
    add_option(group, "--grace-period", help, type=whole_number, default=60, metavar="S")
    add_fault_arguments(group, of=" in each run, here")


def _guarded(prepare: Callable[[argparse.Namespace], Callable[[], None]], args: Any) -> Callable[[], None]:
    """Prepare what a mistake of the user can be in, and return the work, which ends with an exit code.

    :raises ImportError: a package that tuning needs is not installed
    """
    missing = [name for name in ("optuna", "scipy") if find_spec(name) is None]
    if missing:
        raise ImportError(f"tuning needs {' and '.join(missing)}: pip install '.[zoo]' in a checkout")
    # Imported while Ctrl-C still ends the process at once.
    import_module("ppo_plus.zoo.tune.tuner")
    from ppo_plus.zoo.tune.processes import WorkersDied
    from ppo_plus.zoo.tune.storage import StorageError
    from ppo_plus.zoo.tune.worker import CannotCompile, StudyStopped

    resume = f"interrupted; resume with: {this_command()}"
    with exit_codes({}, resume):
        work = prepare(args)

    def guarded() -> None:
        with exit_codes({StudyStopped: 1, CannotCompile: 1, WorkersDied: 1, StorageError: 2}, resume):
            work()

    return guarded


def _prepare(args: argparse.Namespace) -> Callable[[], None]:
    from ppo_plus.zoo.envs import check_supervision, choose_vec_env
    from ppo_plus.zoo.tune import Plan, Workers, read_space
    from ppo_plus.zoo.tune.attributes import BUDGET
    from ppo_plus.zoo.tune.stages import progress
    from ppo_plus.zoo.tune.storage import shown
    from ppo_plus.zoo.tune.tuner import begin, check

    if args.env is None:
        raise ValueError("the following arguments are required: --env")
    module, colon, _ = args.env.rpartition(":")
    if colon:
        # Gymnasium imports it, and workers must be allowed to.
        args.gym_packages = [*args.gym_packages, module]
    supervision = _supervision(args)
    # Once, so that all trials of a study have the same.
    experiment = choose_vec_env(make_experiment(args), **supervision)
    given = {name: getattr(args, name) for name in (*COUNTS, "race_share", "sampler", "pruner")}
    plan = Plan(n_timesteps=experiment.n_timesteps, seed=experiment.seed, **given)
    space = read_space(args.search_space)
    check_supervision(experiment.vec_env, **supervision)
    task = check(experiment, space, plan, allowed_packages(args), tuple(args.gym_packages))
    name = args.study_name or "/".join(filter(None, (args.env, args.variant)))
    folder = Path(args.log_folder, "tune", file_name(name))
    url = _url(args) or f"sqlite:///{folder / 'study.db'}"
    study = _study(args, url, name)
    begin(study, task, args.max_total_trials, folder)
    print(progress(study, shown(url)))
    print(task.plan.describe(study.attributes()[BUDGET], len(task.baselines())))
    workers = Workers(args.workers, url, args.grace_period, supervision)
    return partial(_tune, study, task, folder, workers)


def _tune(study: Any, task: Any, folder: Path, workers: Any) -> None:
    from ppo_plus.zoo.tune.report import entry_path, retrain_command
    from ppo_plus.zoo.tune.tuner import finish

    verdict = finish(study, task, folder, workers)
    print(verdict)
    print(f"report: {folder / 'report.md'}")
    if verdict.winner is not None:
        entry = entry_path(task, folder)
        print(f"settings: {entry}")
        print(f"train with them: {retrain_command(task, entry)}")


def _prepare_worker(args: argparse.Namespace) -> Callable[[], None]:
    from ppo_plus.zoo.envs import check_supervision
    from ppo_plus.zoo.tune.worker import Worker

    url = _url(args)
    if url is None:
        raise ValueError(f"the following arguments are required: --storage (or ${STORAGE_VARIABLE})")
    for package in args.gym_packages:
        import_module(package)
    supervision = _supervision(args)
    worker = Worker(_study(args, url, args.study_name, must_exist=True), allowed_packages(args), supervision)
    check_supervision(worker.task.experiment.vec_env, **supervision)
    return worker.work


def _study(args: argparse.Namespace, url: str, name: str | None, must_exist: bool = False) -> "Study":
    """Open the storage, and the study of that name in it; ``None``: the only one."""
    import optuna

    from ppo_plus.zoo.tune import Study, open_storage
    from ppo_plus.zoo.tune.heartbeats import Heartbeats
    from ppo_plus.zoo.tune.stages import only_study

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = open_storage(url, must_exist)
    return Study(name or only_study(storage), storage, Heartbeats(args.grace_period))


def _url(args: argparse.Namespace) -> str | None:
    return args.storage or os.environ.get(STORAGE_VARIABLE)


def _supervision(args: argparse.Namespace) -> dict[str, Any]:
    return {"restarts": args.restart_envs or 0, "timeout": args.env_timeout}
