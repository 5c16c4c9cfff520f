"""``ppo-plus tune`` and ``ppo-plus tune worker``: their flags, and what they call.

Optuna is loaded when a study is, so that the other commands do without it.
"""

import argparse
import os
import signal
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

STORAGE_VARIABLE = "PPO_PLUS_STORAGE"

DESCRIPTION = """
Search for hyperparameters, confirm the best ones on seeds that the search never saw, and export a winner. The same
command again goes on where the study was.
"""
STORAGE_HELP = (
    "where the study is: sqlite:///FILE for processes on one machine, postgresql+psycopg://USER@HOST/DATABASE for any "
    "number of machines. On both, a worker that is killed loses nothing but its trial's progress: the trial is done "
    "again and counts once. journal:FILE works without a database and without that guarantee, because only databases "
    f"have heartbeats (default: ${STORAGE_VARIABLE}, else sqlite in the study's folder)"
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``ppo-plus tune``, and the command ``worker`` below it.

    :param parser: the parser of ``ppo-plus tune``
    """
    parser.description = DESCRIPTION
    worker = parser.add_subparsers(dest="worker", metavar="worker").add_parser(
        "worker",
        help="work on a study that another machine or process has started",
        description="Work on a study that `ppo-plus tune` has started with the same storage, here or elsewhere.",
    )
    _add_study_flags(worker)
    add = parser.add_argument
    add("--env", metavar="ID", help="Gymnasium environment id, such as Pendulum-v1 (required)")
    add("-n", "--n-timesteps", type=float, metavar="N", help="timesteps of each run (default: the settings file's)")
    add("--max-total-trials", type=int, default=40, metavar="N", help="trials of the search, exactly (default: 40)")
    add("--workers", type=int, default=1, metavar="N", help="worker processes on this machine (default: 1)")
    add("--sampler", default="tpe", help="tpe, random, gp, or cmaes with the package cmaes (default: tpe)")
    add("--pruner", default="median", help="median, hyperband or none (default: median)")
    add("--search-space", metavar="FILE", help="YAML search space (default: the package's own)")
    add("-conf", "--conf-file", metavar="FILE", help="YAML settings (default: the package's own)")
    add("--n-evaluations", type=int, default=10, metavar="N", help="evaluations per run, about (default: 10)")
    add("--eval-episodes", type=int, default=10, metavar="N", help="episodes per evaluation (default: 10)")
    add("--n-eval-envs", type=int, default=1, metavar="N", help="environments per evaluation (default: 1)")
    add("--last-evals", type=int, default=3, metavar="K", help="a score is the mean of the last K (default: 3)")
    add("--n-seeds", type=int, default=1, metavar="N", help="seeds of each trial (default: 1)")
    add("--race-share", type=float, default=0.2, metavar="X", help="share that gets more seeds (default: 0.2)")
    add("--race-seeds", type=int, default=2, metavar="N", help="how many more; 0 for no race (default: 2)")
    add("--finalists", type=int, default=3, metavar="N", help="trials compared with the default (default: 3)")
    add("--confirm-seeds", type=int, default=10, metavar="N", help="on how many unseen seeds, 10 or more; 0 for no "
        "confirmation and no export (default: 10)")  # fmt: skip
    add("--seed", type=int, default=0, help="seed of the study (default: 0)")
    add("--device", default="auto", help="cpu, cuda or auto (default: auto)")
    add("--vec-env", choices=("dummy", "subproc"), default="dummy", help="kind of vector environment (default: dummy)")
    add("--trust-config", action="store_true", help="let the settings file import classes from any package")
    add("-f", "--log-folder", default="logs", metavar="DIR", help="the report is in DIR/tune/STUDY (default: logs)")
    _add_study_flags(parser)


def _add_study_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--storage", metavar="URL", help=STORAGE_HELP)
    add("--study-name", metavar="NAME", help="name of the study (default: the environment's id; for a worker, the only "
        "study of the storage)")  # fmt: skip
    add("--gym-packages", nargs="+", default=[], metavar="PACKAGE", help="packages that register environments")
    add("--heartbeat-interval", type=int, default=15, metavar="S", help="seconds between signs of life (default: 15)")
    add("--grace-period", type=int, default=60, metavar="S", help="seconds of silence after which a worker counts as "
        "dead; the same for all workers (default: 60)")  # fmt: skip


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Tune, or work on a study.

    :param args: the parsed arguments
    :param parser: for its ``error``, which ends the program with one line and exit code 2
    """
    missing = [name for name in ("optuna", "scipy") if find_spec(name) is None]
    if missing:
        parser.error(f"tuning needs {' and '.join(missing)}: pip install 'ppo_plus[zoo]'")
    # What a scheduler sends before it kills: put the job back first.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _work(args, parser) if args.worker else _tune(args, parser)
    except KeyboardInterrupt:
        print("interrupted: run the same command to go on", file=sys.stderr)
        sys.exit(130)


def _tune(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    from ppo_plus.zoo.tune.tuner import Workers, WorkersDied, tune
    from ppo_plus.zoo.tune.worker import StudyStopped

    if args.env is None:
        parser.error("the following arguments are required: --env")
    try:
        arguments, folder, url = _prepare(args)
    except _mistakes() as error:
        parser.error(_one_line(error))
    options = [f"--heartbeat-interval={args.heartbeat_interval}", f"--grace-period={args.grace_period}"]
    if args.gym_packages:
        options += ["--gym-packages", *args.gym_packages]
    try:
        verdict = tune(**arguments, folder=folder, workers=Workers(args.workers, url, tuple(options)))
    except ValueError as error:
        parser.error(_one_line(error))
    except (StudyStopped, WorkersDied) as error:
        print(f"{parser.prog}: {str(error).strip()}", file=sys.stderr)
        sys.exit(1)
    print(verdict)
    print(f"report: {folder / 'report.md'}")


def _prepare(args: argparse.Namespace) -> tuple[dict[str, Any], Path, str]:
    """Everything that a mistake of the user can be in: settings, space, plan and storage."""
    import optuna

    from ppo_plus.zoo.experiment import ALLOWED_PACKAGES, load_experiment
    from ppo_plus.zoo.hyperparams import positive_int
    from ppo_plus.zoo.tune.plan import Plan
    from ppo_plus.zoo.tune.space import read_space
    from ppo_plus.zoo.tune.stages import Study
    from ppo_plus.zoo.tune.storage import open_storage
    from ppo_plus.zoo.tune.tuner import check

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for package in args.gym_packages:
        import_module(package)
    positive_int("--workers", args.workers)
    experiment = load_experiment(
        args.env, args.conf_file, trust_config=args.trust_config, device=args.device, vec_env=args.vec_env
    )
    plan = Plan(
        n_timesteps=positive_int("--n-timesteps", args.n_timesteps or experiment.n_timesteps),
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
        seed=args.seed,
    )
    space = read_space(args.search_space)
    packages = None if args.trust_config else ALLOWED_PACKAGES
    check(experiment, space, plan, packages)
    name = args.study_name or args.env
    folder = Path(args.log_folder, "tune", name.replace("/", "-").replace(":", "-"))
    url = args.storage or os.environ.get(STORAGE_VARIABLE) or f"sqlite:///{folder / 'study.db'}"
    study = Study(name, open_storage(url, args.heartbeat_interval, args.grace_period))
    arguments = dict(
        experiment=experiment,
        space=space,
        study=study,
        plan=plan,
        max_total_trials=args.max_total_trials,
        packages=packages,
    )
    return arguments, folder, url


def _work(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    import optuna

    from ppo_plus.zoo.tune.stages import Study, only_study
    from ppo_plus.zoo.tune.storage import open_storage
    from ppo_plus.zoo.tune.worker import StudyStopped, Worker

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    url = args.storage or os.environ.get(STORAGE_VARIABLE)
    if url is None:
        parser.error(f"the following arguments are required: --storage (or ${STORAGE_VARIABLE})")
    try:
        for package in args.gym_packages:
            import_module(package)
        storage = open_storage(url, args.heartbeat_interval, args.grace_period)
        worker = Worker(Study(args.study_name or only_study(storage), storage))
    except _mistakes() as error:
        parser.error(_one_line(error))
    try:
        worker.work()
    except StudyStopped as error:
        print(f"{parser.prog}: another worker stopped the study: {error}", file=sys.stderr)
        sys.exit(1)


def _mistakes() -> tuple[type[Exception], ...]:
    """What a mistake of the user may raise."""
    import gymnasium as gym

    return (ValueError, TypeError, AssertionError, ImportError, OSError, gym.error.Error)


def _one_line(error: Exception) -> str:
    return str(error) or type(error).__name__


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
