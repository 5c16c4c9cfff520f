"""``ppo-plus tune`` and ``ppo-plus tune worker``. Optuna is loaded when a study is: other subcommands do without it."""

import argparse
import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppo_plus.zoo.cli.arguments import (
    add_algo_argument,
    add_env_arguments,
    add_fault_arguments,
    add_gym_packages,
    add_option,
    allowed_packages,
    duration,
    whole_number,
)
from ppo_plus.zoo.cli.train import add_experiment_arguments, make_experiment
from ppo_plus.zoo.installation import command, import_packages, pip_install, this_command
from ppo_plus.zoo.interrupts import exit_codes
from ppo_plus.zoo.runs import file_name

if TYPE_CHECKING:
    from ppo_plus.zoo.tune.study import Study
    from ppo_plus.zoo.tune.task import TuningTask

#: Environment variable with the storage's URL, whose password everybody on a machine could read among the arguments.
STORAGE_VARIABLE = "PPO_PLUS_STORAGE"

DESCRIPTION = """
Search for hyperparameters, and export the best settings: confirmed if they beat both the default and the settings
file's entry on unseen seeds, else marked as not confirmed. Run the same command again to resume the study.
"""

#: Fields of a plan that are whole numbers: option, default, and help.
COUNTS = {
    "n_seeds": ("--n-seeds N", 1, "training seeds of each trial"),
    "n_evals": ("--n-evaluations N", 10, "most evaluations of each run; the steps between two are whole rollouts"),
    "n_eval_episodes": ("--eval-episodes N", 10, "episodes of each evaluation"),
    "n_eval_envs": ("--n-eval-envs N", 1, "number of evaluation environments"),
    "last_evals": ("--last-evals N", 3, "the score of a run is the mean of its last N evaluations"),
    "n_finalists": ("--finalists N", 3, "number of trials to compare with the baselines"),
    "race_seeds": ("--race-seeds N", 2, "additional seeds of the best trials; 0: no race"),
    "confirm_seeds": ("--confirm-seeds N", 10, "unseen seeds, at least 10; 0: no confirmation"),
}


def add_parser(commands: Any) -> None:
    """Add the subcommand, and ``worker`` below it, to the program's subparsers."""
    help = "search for hyperparameters, and confirm them on unseen seeds"
    command = commands.add_parser("tune", help=help, description=DESCRIPTION)
    add_env_arguments(command, "--log-folder", env_required=False)
    add_algo_argument(command, "for rl_zoo3's command lines; both tune PPO_Plus")
    add_experiment_arguments(command, seed_default=0)
    command.set_defaults(prepare=partial(_guarded, _prepare))
    add = partial(add_option, command.add_argument_group("search, score and confirmation"))
    help = "number of trials in the search, of all workers together; pruned and failed trials count"
    add("--max-total-trials N", help, type=whole_number, default=40)
    add("--sampler", "tpe, random or gp", default="tpe")
    add("--pruner", "median, hyperband or none", default="median")
    add("--search-space FILE", "YAML search space (default: the package's own)")
    add("--race-share X", "share of the finished trials that run on more seeds", type=float, default=0.2)
    help = (
        "plan the study within a time such as 10m or 2h, once the baselines have run; the numbers of trials, finalists "
        "and seeds are then upper limits"
    )
    add("--budget TIME", help, type=duration)
    for field, (option, default, help) in COUNTS.items():
        kind = int if field in ("race_seeds", "confirm_seeds") else whole_number
        add(option, help, dest=field, type=kind, default=default)
    group = command.add_argument_group("study and workers")
    _add_study_arguments(group, f"${STORAGE_VARIABLE}, else study.db in the folder of the study, below -f")
    add = partial(add_option, group)
    add("--study-name NAME", "name of the study (default: the environment's id, with the variant)")
    help = "number of worker processes on this machine; others join with `ppo-plus tune worker`"
    add("--workers N", help, type=whole_number, default=1)
    add("--trial N", "only export the settings of trial N of the study", type=int)
    below = command.add_subparsers(metavar="worker", help="work on a study that was started elsewhere")
    description = "Work on a study that `ppo-plus tune` has started with the same storage, on any machine."
    worker = below.add_parser("worker", description=description)
    worker.set_defaults(prepare=partial(_guarded, _prepare_worker))
    add_gym_packages(worker)
    help = (
        "allow the study to import wrappers, callbacks and policies from any package: anyone who can write to the "
        "storage can then run code here"
    )
    worker.add_argument("--trust-config", action="store_true", help=help)
    _add_study_arguments(worker, f"${STORAGE_VARIABLE}", required=True)
    add_option(worker, "--study-name NAME", "name of the study", required=True)


def _add_study_arguments(group: Any, storage: str, required: bool = False) -> None:
    """The arguments that the tuner and its workers have in common; ``storage`` is the default in words."""
    help = (
        "database of the study: sqlite:///FILE for workers on one machine, postgresql+psycopg://USER@HOST/DATABASE for "
        f"workers on any number of machines (default: {storage})"
    )
    # Not with `add_option`, which shows the default: it may have a password.
    url = os.environ.get(STORAGE_VARIABLE)
    group.add_argument("--storage", metavar="URL", default=url, required=required and not url, help=help)
    help = "repeat the trial of a worker that sends no heartbeat for S seconds; the same for all workers of a study"
    add_option(group, "--grace-period S", help, type=whole_number, default=60)
    add_fault_arguments(group, of=" in each run")


def _guarded(prepare: Callable[[Any, dict[str, Any]], Callable[[], None]], args: Any) -> Callable[[], None]:
    """Prepare what a mistake of the user can be in, and return the work, which ends with an exit code. ``prepare`` gets
    the arguments, and those of supervised environments."""
    missing = [name for name in ("optuna", "scipy") if find_spec(name) is None]
    if missing:
        raise ImportError(f"tuning needs {' and '.join(missing)}: {pip_install(extra='zoo')}")
    # Imported while Ctrl-C still ends the process at once.
    import optuna

    from ppo_plus.zoo.tune.jobs import named_errors
    from ppo_plus.zoo.tune.study import EXIT_CODES
    from ppo_plus.zoo.tune.tuner import WorkersDied

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    resume = f"interrupted; resume with: {this_command()}"
    with exit_codes({}, resume), named_errors():
        work = prepare(args, {"restarts": args.restart_envs or 0, "timeout": args.env_timeout})

    def guarded() -> None:
        with exit_codes({**EXIT_CODES, WorkersDied: 1}, resume):
            work()

    return guarded


def _prepare(args: argparse.Namespace, supervision: dict[str, Any]) -> Callable[[], None]:
    from ppo_plus.zoo.tune.jobs import shown
    from ppo_plus.zoo.tune.report import NOT_CONFIRMED, entry_path
    from ppo_plus.zoo.tune.space import read_space
    from ppo_plus.zoo.tune.task import Plan, TuningTask
    from ppo_plus.zoo.tune.tuner import Workers, begin, finish

    if args.env is None:
        raise ValueError("the following arguments are required: --env")
    module, colon, _ = args.env.rpartition(":")
    if colon:
        # Gymnasium imports it, and workers must be allowed to.
        args.gym_packages = [*args.gym_packages, module]
    name = args.study_name or "/".join(filter(None, (args.env, args.variant)))
    folder = Path(args.log_folder, "tune", file_name(name))
    url = args.storage or f"sqlite:///{folder / 'study.db'}"
    if args.trial is not None:
        return _prepare_export(args, _study(args, url, name), folder)
    experiment = make_experiment(args)
    options = {name: getattr(args, name) for name in (*COUNTS, "race_share", "sampler", "pruner")}
    seconds = args.budget and args.budget * args.workers
    plan = Plan(n_timesteps=experiment.n_timesteps, seed=experiment.seed, seconds=seconds, **options)
    space = read_space(args.search_space)
    task = TuningTask(experiment, space, plan, allowed_packages(args), tuple(args.gym_packages)).checked()
    study = _study(args, url, name)
    begin(study, task, args.max_total_trials, folder)
    print(study.progress(shown(url)))
    print(task.plan.describe(study.budget, len(task.baselines())))
    print("when the baselines have run, an estimate follows" + (" and fewer runs, to end in time" if seconds else ""))

    def work() -> None:
        verdict = finish(study, task, folder, Workers(args.workers, url, supervision))
        print(verdict)
        print(f"report: {folder / 'report.md'}")
        entry = entry_path(task, folder, NOT_CONFIRMED if verdict.winner is None else "")
        if entry.is_file():
            _print_entry(task, entry)

    return work


def _prepare_export(args: argparse.Namespace, study: "Study", folder: Path) -> Callable[[], None]:
    from ppo_plus.zoo.tune.report import export_trial
    from ppo_plus.zoo.tune.study import read_task

    task = read_task(study, allowed_packages(args))
    return partial(_print_entry, task, export_trial(study, task, args.trial, folder))


def _print_entry(task: "TuningTask", entry: Path) -> None:
    from ppo_plus.zoo.tune.report import NOT_CONFIRMED, retraining

    marked = " of the best trial, not confirmed" if NOT_CONFIRMED in entry.name else ""
    print(f"settings{marked}: {entry}")
    print(f"train with them: {command(*retraining(task, entry))}")


def _prepare_worker(args: argparse.Namespace, supervision: dict[str, Any]) -> Callable[[], None]:
    from ppo_plus.zoo.tune.study import TuningWorker, read_task

    import_packages(args.gym_packages)
    study = _study(args, args.storage, args.study_name)
    return TuningWorker(study, read_task(study, allowed_packages(args)), supervision).work


def _study(args: argparse.Namespace, url: str, name: str) -> "Study":
    """Open the storage of a study."""
    from ppo_plus.zoo.tune.jobs import Heartbeats, open_storage
    from ppo_plus.zoo.tune.study import Study

    return Study(name, open_storage(url), Heartbeats(args.grace_period))
