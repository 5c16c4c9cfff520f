"""``ppo-plus tune`` and ``ppo-plus tune worker``. Optuna is loaded when a study is: other subcommands do without it."""

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppo_plus.zoo.cli.arguments import (
    add_algo_argument,
    add_env_arguments,
    add_fault_arguments,
    allowed_packages,
    refuse,
    whole_number,
)
from ppo_plus.zoo.cli.train import OFF_POLICY, add_experiment_arguments, make_experiment
from ppo_plus.zoo.interrupts import exit_codes, this_command
from ppo_plus.zoo.runs import file_name

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

    from ppo_plus.zoo.experiment import Experiment
    from ppo_plus.zoo.tune.heartbeats import Heartbeats
    from ppo_plus.zoo.tune.plan import Plan
    from ppo_plus.zoo.tune.processes import Workers

#: Environment variable with the storage's URL, which may have a password: everybody on a machine can read the arguments
#: of its processes.
STORAGE_VARIABLE = "PPO_PLUS_STORAGE"

REMEDIES = {
    "-optimize/--optimize-hyperparameters": "`ppo-plus tune` always does; leave it out",
    "--n-trials": "use --max-total-trials N, which counts the trials of all workers together",
    "--n-jobs": "use --workers N",
    "--n-startup-trials": "the sampler chooses how many trials are random at first; leave it out",
    "--trial-id": "the best settings are exported as a file: ppo-plus train -conf FILE",
    "--no-optim-plots/--optimization-log-path": "the report is written below -f; leave it out",
    "--eval-freq": "use --n-evaluations N, the evaluations of each run",
    "-i/--trained-agent": "every trial starts from new weights; leave it out",
    "--save-freq/-uuid/--uuid/-tb/--tensorboard-log/--log-interval/-P/--progress/--verbose/--track/"
    "--wandb-project-name/--wandb-entity/--wandb-group/-tags/--wandb-tags": "it is for `ppo-plus train`; leave it out",
    **OFF_POLICY,
}

DESCRIPTION = """
Search for hyperparameters, and export a winner if it beats both the default and the settings file's entry on unseen
seeds. The same command again resumes the study.
"""
STORAGE_HELP = (
    "where the study is: sqlite:///FILE for processes on one machine, "
    "postgresql+psycopg://USER@HOST/DATABASE for any number of machines. A worker that is killed loses nothing but its "
    "trial's progress: the trial is done again, and counts once (a trial that loses its third worker has failed: it "
    "may be what kills them). (default: "
)


def add_parser(commands: Any) -> None:
    """Add the subcommand, and ``worker`` below it.

    :param commands: the program's subparsers
    """
    command = commands.add_parser(
        "tune", help="search for hyperparameters, and confirm them on unseen seeds", description=DESCRIPTION
    )
    add_env_arguments(command, "--log-folder", env_required=False)
    add_algo_argument(command, "for rl_zoo3's command lines; PPO_Plus is tuned either way")
    add_experiment_arguments(command, seed_default=0)
    command.set_defaults(prepare=prepare)
    _add_search_arguments(command.add_argument_group("the search"))
    _add_score_arguments(command.add_argument_group("the score of a run, and what confirms it"))
    group = command.add_argument_group("the study and its workers")
    storage = f"the environment variable {STORAGE_VARIABLE}, else sqlite in the study's folder, below -f"
    _add_study_arguments(group, storage, "the environment's id, with the variant's name")
    group.add_argument("--workers", type=whole_number, default=1, metavar="N", help="processes on this machine "
        "(%(default)s); others join with `ppo-plus tune worker`")  # fmt: skip
    refuse(command, REMEDIES)
    below = command.add_subparsers(metavar="worker", help="work on a study that was started elsewhere")
    worker = below.add_parser(
        "worker",
        description="Work on a study that `ppo-plus tune` has started with the same storage, on any machine.",
    )
    worker.add_argument("--gym-packages", nargs="+", default=[], metavar="PKG", help="packages to import first")
    worker.add_argument("--trust-config", action="store_true", help="let the study import wrappers, callbacks and "
        "policies from anywhere: anyone who can write to the storage can then run code here")  # fmt: skip
    worker.set_defaults(prepare=prepare_worker)
    _add_study_arguments(worker, f"the environment variable {STORAGE_VARIABLE}", "the storage's only study")


def prepare(args: argparse.Namespace) -> Callable[[], None]:
    """Everything that the user's mistakes can be in: settings, search space, plan and storage."""
    _load()
    with exit_codes({}, _interrupted()):
        return _prepare(args)


def _prepare(args: argparse.Namespace) -> Callable[[], None]:
    from ppo_plus.zoo.envs import check_supervision, choose_vec_env
    from ppo_plus.zoo.tune.attributes import BUDGET
    from ppo_plus.zoo.tune.space import read_space
    from ppo_plus.zoo.tune.stages import Study, progress
    from ppo_plus.zoo.tune.storage import shown
    from ppo_plus.zoo.tune.tuner import begin, check

    if args.env is None:
        raise ValueError("the following arguments are required: --env")
    module, colon, _ = args.env.rpartition(":")
    if colon:
        # Gymnasium imports it, and workers must be allowed to.
        args.gym_packages = [*args.gym_packages, module]
    # Once, so that all trials of a study have the same.
    experiment = choose_vec_env(make_experiment(args), **_supervision(args))
    plan, space = _plan(args, experiment), read_space(args.search_space)
    check_supervision(experiment.vec_env, **_supervision(args))
    task = check(experiment, space, plan, allowed_packages(args), tuple(args.gym_packages))
    name = args.study_name or "/".join(filter(None, (args.env, args.variant)))
    folder = Path(args.log_folder, "tune", file_name(name))
    url = _url(args) or f"sqlite:///{folder / 'study.db'}"
    study = Study(name, _open(url), _heartbeats(args))
    begin(study, task, args.max_total_trials, folder)
    print(progress(study, shown(url)))
    print(task.plan.describe(study.attributes()[BUDGET], len(task.baselines())))
    workers = _workers(args, args.workers, url)
    return partial(_tune, study, task, folder, workers)


def prepare_worker(args: argparse.Namespace) -> Callable[[], None]:
    """Open the study."""
    _load()
    with exit_codes({}, _interrupted()):
        return _prepare_worker(args)


def _prepare_worker(args: argparse.Namespace) -> Callable[[], None]:
    from ppo_plus.zoo.envs import check_supervision
    from ppo_plus.zoo.tune.processes import supervise
    from ppo_plus.zoo.tune.stages import Study, only_study
    from ppo_plus.zoo.tune.worker import Worker

    url = _url(args)
    if url is None:
        raise ValueError(f"the following arguments are required: --storage (or ${STORAGE_VARIABLE})")
    for package in args.gym_packages:
        import_module(package)
    storage = _open(url, must_exist=True)
    supervision = _supervision(args)
    study = Study(args.study_name or only_study(storage), storage, _heartbeats(args))
    worker = Worker(study, allowed_packages(args), supervision)
    check_supervision(worker.task.experiment.vec_env, **supervision)
    if args.run_timeout is None:
        return partial(_work, worker.work)
    # This process watches another one, and imports what its own arguments allow, not what the study names.
    task = replace(worker.task, packages=allowed_packages(args), gym_packages=tuple(args.gym_packages))
    workers = _workers(args, 1, url)
    return partial(_work, partial(supervise, worker.study, task, workers))


def _supervision(args: argparse.Namespace) -> dict[str, Any]:
    return {"restarts": args.restart_envs or 0, "timeout": args.env_timeout}


def _workers(args: argparse.Namespace, n: int, url: str) -> "Workers":
    from ppo_plus.zoo.tune.processes import Workers

    return Workers(n, url, args.heartbeat_interval, args.grace_period, args.run_timeout, _supervision(args))


def _tune(study: Any, task: Any, folder: Path, workers: Any) -> None:
    from ppo_plus.zoo.tune.processes import WorkersDied
    from ppo_plus.zoo.tune.report import entry_path, retrain_command
    from ppo_plus.zoo.tune.storage import StorageError
    from ppo_plus.zoo.tune.tuner import finish
    from ppo_plus.zoo.tune.worker import StudyStopped

    with exit_codes({StudyStopped: 1, WorkersDied: 1, StorageError: 2}, _interrupted()):
        verdict = finish(study, task, folder, workers)
        print(verdict)
        print(f"report: {folder / 'report.md'}")
        if verdict.winner is not None:
            entry = entry_path(task, folder)
            print(f"settings: {entry}")
            print(f"train with them: {retrain_command(task, entry)}")


def _work(work: Callable[[], None]) -> None:
    from ppo_plus.zoo.tune.processes import WorkersDied
    from ppo_plus.zoo.tune.storage import StorageError
    from ppo_plus.zoo.tune.worker import CannotCompile, StudyStopped

    with exit_codes({StudyStopped: 1, CannotCompile: 1, WorkersDied: 1, StorageError: 2}, _interrupted()):
        work()


def _interrupted() -> str:
    return f"interrupted; resume with: {this_command()}"


def _load() -> None:
    """Import the tuner, while Ctrl-C still ends the process at once.

    :raises ImportError: a package that it needs is not installed
    """
    missing = [name for name in ("optuna", "scipy") if find_spec(name) is None]
    if missing:
        raise ImportError(f"tuning needs {' and '.join(missing)}: pip install '.[zoo]' in a checkout")
    import_module("ppo_plus.zoo.tune.tuner")


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


def _open(url: str, must_exist: bool = False) -> "BaseStorage":
    import optuna

    from ppo_plus.zoo.tune.storage import open_storage

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return open_storage(url, must_exist)


def _heartbeats(args: argparse.Namespace) -> "Heartbeats":
    from ppo_plus.zoo.tune.heartbeats import Heartbeats

    return Heartbeats(args.heartbeat_interval, args.grace_period)


def _add_search_arguments(group: Any) -> None:
    add = group.add_argument
    add("--max-total-trials", type=whole_number, default=40, metavar="N", help="trials of the search, all workers "
        "together: exactly so many are finished, pruned or failed in the end (%(default)s)")  # fmt: skip
    add("--sampler", default="tpe", help="tpe, random or gp (%(default)s)")
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
    add("--finalists", type=whole_number, default=3, metavar="N", help="best trials to compare with the baselines "
        "(%(default)s)")  # fmt: skip
    add("--confirm-seeds", type=int, default=10, metavar="N", help="on so many unseen seeds, at least 10; 0: no "
        "confirmation and no export (%(default)s)")  # fmt: skip


def _add_study_arguments(group: Any, storage: str, study_name: str) -> None:
    """The arguments that the tuner and its workers have in common.

    :param group: where they go
    :param storage: human-readable default of the storage
    :param study_name: human-readable default of the study's name
    """
    add = group.add_argument
    add("--storage", metavar="URL", help=f"{STORAGE_HELP}{storage})")
    add("--study-name", metavar="NAME", help=f"name of the study (default: {study_name})")
    add("--heartbeat-interval", type=whole_number, default=15, metavar="S", help="seconds between two signs of life of "
        "a worker (%(default)s)")  # fmt: skip
    add("--grace-period", type=whole_number, default=60, metavar="S", help="seconds of silence after which a worker "
        "counts as dead; the same for all workers of a study (%(default)s)")  # fmt: skip
    add_fault_arguments(group, of=" in each run, here")
    add("--run-timeout", type=whole_number, metavar="S", help="seconds that a run may take here: the trial of a "
        "longer one, whose environment may hang, has failed, and its worker is replaced (any time)")  # fmt: skip
