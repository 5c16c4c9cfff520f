"""``ppo-plus train``: rl_zoo3's flags, where they mean something for PPO_Plus."""

import argparse
import errno
import shlex
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppo_plus.zoo.cli.arguments import (
    TRUST_MODEL,
    add_algo_argument,
    add_env_arguments,
    add_fault_arguments,
    allowed_packages,
    key_value,
    refuse,
    require_device,
    seed,
    whole_number,
)
from ppo_plus.zoo.interrupts import INTERRUPTED, came, deferred
from ppo_plus.zoo.registry import import_packages
from ppo_plus.zoo.runs import Options, find_run, saved_arguments
from ppo_plus.zoo.torchrun import job, launch, launched

if TYPE_CHECKING:
    from ppo_plus.zoo.experiment import Experiment
    from ppo_plus.zoo.runs import RunFolder
    from ppo_plus.zoo.train import Run

#: Kinds of vector environments, as `ppo_plus.zoo.envs` makes them.
VEC_ENVS = ("dummy", "subproc", "gymnasium", "envpool", "auto")

#: rl_zoo3's options that are for other algorithms, and what to do instead.
OFF_POLICY = {"--truncate-last-trajectory/--save-replay-buffer": "PPO has no replay buffer; leave it out"}
TUNE = "`ppo-plus tune` searches for hyperparameters"
REMEDIES = {
    "-optimize/--optimize-hyperparameters": f"{TUNE}: ppo-plus tune --env ID",
    "--n-trials/--max-total-trials": f"{TUNE}: ppo-plus tune --max-total-trials N",
    "--n-jobs": f"{TUNE}: ppo-plus tune --workers N",
    "--n-startup-trials": f"{TUNE}, and chooses by itself how many trials are random at first",
    "--sampler": f"{TUNE}: ppo-plus tune --sampler NAME",
    "--pruner": f"{TUNE}: ppo-plus tune --pruner NAME",
    "--n-evaluations": f"{TUNE}: ppo-plus tune --n-evaluations N; a training run has --eval-freq",
    "--storage": f"{TUNE}: ppo-plus tune --storage URL",
    "--study-name": f"{TUNE}: ppo-plus tune --study-name NAME",
    "--trial-id": "`ppo-plus tune` exports the best settings as a file: ppo-plus train -conf FILE",
    "--no-optim-plots/--optimization-log-path": f"{TUNE} and writes its report below -f; leave it out",
    **OFF_POLICY,
}


DESCRIPTION = """
Train PPO_Plus, evaluate it on the way, and save the model, the best model and a learning curve in -f. The settings are
tuned ones where the package has some for the environment, else its defaults. Ctrl-C ends the training early and saves.
"""


def add_parser(commands: Any) -> None:
    """Add the subcommand.

    :param commands: the program's subparsers
    """
    command = commands.add_parser(
        "train", help="train, evaluate and save a model, and plot its learning curve", description=DESCRIPTION
    )
    command.set_defaults(prepare=partial(prepare, command))
    add_env_arguments(command, "--log-folder", env_required=False)
    command.add_argument(
        "--resume", metavar="RUN", help="folder of a run that was interrupted, to go on with as if it had not been"
    )
    add_algo_argument(command, "for rl_zoo3's command lines; PPO_Plus is trained either way")
    add_experiment_arguments(command)
    _add_option_arguments(command.add_argument_group("evaluation, checkpoints and output"))
    _add_tracking_arguments(command.add_argument_group("Weights & Biases"))
    refuse(command, REMEDIES)


def add_experiment_arguments(command: argparse.ArgumentParser, seed_default: int = -1) -> None:
    """The arguments that :func:`make_experiment` reads, besides those of ``add_env_arguments``.

    :param command: the parser
    :param seed_default: the seed where none is given
    """
    add = command.add_argument_group("what is trained").add_argument
    add(
        "-conf", "--conf-file", metavar="FILE", help="YAML settings in rl_zoo3's format (default: those of the package)"
    )
    add("--variant", metavar="NAME", help="use the entry ID/NAME of the settings, such as CartPole-v1/gSDE")
    add(
        "--trust-config",
        action="store_true",
        help="let the settings import wrappers, callbacks and policies from anywhere",
    )
    add(
        "-n",
        "--n-timesteps",
        type=whole_number,
        metavar="N",
        help="timesteps to train for (default: from the settings)",
    )
    add("--n-envs", type=whole_number, metavar="N", help="number of environments (default: from the settings)")
    add(
        "-params",
        "--hyperparams",
        nargs="+",
        type=key_value,
        default=[],
        metavar="K:V",
        help='settings to override, such as learning_rate:lin_3e-4 policy_kwargs:"dict(net_arch=[64])"',
    )
    add(
        "--seed",
        type=seed,
        default=seed_default,
        metavar="N",
        help="random seed; negative: drawn at random, and recorded (default: %(default)s)",
    )
    add(
        "--vec-env",
        choices=VEC_ENVS,
        default="dummy",
        help="step environments one by one, in processes, or as a vector environment of Gymnasium or EnvPool; auto: "
        "the fastest of them on this machine's cores that is the same task (default: %(default)s)",
    )
    add("--eval-env-kwargs", nargs="+", type=key_value, metavar="K:V", help="arguments of evaluation environments")
    add(
        "--num-threads",
        type=whole_number,
        metavar="N",
        help="torch's threads (default: depends on the size of a minibatch's work)",
    )


def make_experiment(args: argparse.Namespace) -> "Experiment":
    """The experiment that the arguments describe.

    :param args: of a parser with ``add_env_arguments`` and :func:`add_experiment_arguments`
    :raises gymnasium.error.Error: there is no such environment
    :raises ValueError, OSError, ImportError: see :func:`load_experiment`
    """
    from ppo_plus.zoo.hyperparams import builtin_file, read_entry
    from ppo_plus.zoo.registry import find_env

    import_packages(args.gym_packages)
    find_env(args.env)
    source = _settings_file(args.conf_file) if args.conf_file else builtin_file()
    flags = {"n_timesteps": args.n_timesteps, "n_envs": args.n_envs, "n_threads": args.num_threads}
    overrides = {**dict(args.hyperparams), **{name: value for name, value in flags.items() if value is not None}}
    if args.env_kwargs:
        overrides["env_kwargs"] = dict(args.env_kwargs)
    entry, _ = read_entry(args.env, source, args.variant)
    import numpy as np

    from ppo_plus.zoo.experiment import load_experiment

    experiment = load_experiment(
        args.env,
        source,
        overrides,
        variant=args.variant,
        packages=allowed_packages(args),
        seed=args.seed if args.seed >= 0 else int(np.random.default_rng().integers(2**32)),
        device=args.device,
        vec_env=args.vec_env,
        eval_env_kwargs=None if args.eval_env_kwargs is None else dict(args.eval_env_kwargs),
    )
    require_device(args.device)
    if entry == "default":
        print(f"{source} has no entry for {args.env}: training with its 'default'", file=sys.stderr)
    return experiment


def prepare(command: argparse.ArgumentParser, args: argparse.Namespace) -> Callable[[], None]:
    """Build the run, or describe it.

    :param command: the parser
    :param args: what it read
    """
    starts = args.processes is not None and args.processes > 1
    if args.resume is not None:
        return _prepare_processes(args) if starts else _prepare_to_go_on(command, args)
    if args.env is None:
        raise ValueError("the following arguments are required: --env, or --resume")
    if args.trained_agent is not None and not Path(args.trained_agent).is_file():
        raise FileNotFoundError(f"-i {args.trained_agent}: there is no such file; it must be a model's .zip")
    if args.keep_timesteps and args.trained_agent is None:
        raise ValueError("--keep-timesteps goes on counting from a saved model: name it with -i")
    if starts and not args.dry_run:
        return _prepare_processes(args)
    records = _join(args, args.device)
    begun = _begun(args)
    if begun is not None:
        return _go_on(begun, args)
    experiment = make_experiment(args)
    name = run_name(experiment) if args.track else None
    options = _options(args, f"runs/{name}" if name else args.tensorboard_log)
    if options.tensorboard_log and find_spec("tensorboard") is None:
        raise ImportError("-tb and --track need TensorBoard: pip install tensorboard")
    from ppo_plus.zoo.train import check, set_up, train

    if args.dry_run:
        check(experiment, options)
        return partial(print, describe(experiment, options), end="")
    with deferred():
        run = set_up(experiment, options)

    def work() -> None:
        with deferred(ends_process=True):
            if name and records:
                track(args, experiment, name)
            _train(train, run, args)

    return work


def _join(args: argparse.Namespace, device: str) -> bool:
    """Be one of several processes, where torchrun has started them; they have one seed.

    :param device: where the model computes
    :return: whether this is the one that records
    """
    if not launched():
        return True
    import numpy as np

    from ppo_plus.zoo.torchrun import join

    ranks = join(device)
    if args.seed < 0:
        args.seed = int(np.random.default_rng().integers(2**32))
    args.seed = ranks.lead(args.seed)
    return ranks.leads


def _prepare_processes(args: argparse.Namespace) -> Callable[[], None]:
    """Start the command anew, in several processes."""
    if launched():
        raise ValueError(f"--processes {args.processes}: torchrun has started this process already; leave it out")
    # A mistake shows here, once.
    if args.resume is None:
        make_experiment(args).for_each_process(args.processes)
    else:
        find_run(Path(args.resume))
    return partial(launch, args.processes, sys.argv[1:])


#: What may be said anew when a run goes on.
ANEW = {
    *("resume", "processes", "command", "prepare", "progress", "verbose", "gym_packages", "trust_config"),
    *("restart_envs", "env_timeout"),
}


def _prepare_to_go_on(command: argparse.ArgumentParser, args: argparse.Namespace) -> Callable[[], None]:
    """Build the run that ``--resume`` names."""
    others = [name for name, value in vars(args).items() if name not in ANEW and value != command.get_default(name)]
    if others:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise ValueError(f"--resume goes on with the run as it was begun: leave out {flags}")
    folder = find_run(Path(args.resume))
    _join(args, saved_arguments(folder)["device"])
    return _go_on(folder, args)


def _begun(args: argparse.Namespace) -> "RunFolder | None":
    """The run that torchrun has these processes go on with, after it has restarted them."""
    name = job()
    if name is None or args.dry_run:
        return None
    from ppo_plus.ranks import Ranks
    from ppo_plus.zoo.train import begun_by

    ranks = Ranks.present()
    begun = begun_by(name, Path(args.log_folder), args.env) if ranks.leads else None
    begun = ranks.lead(begun)
    if begun is not None and ranks.leads:
        print(f"{begun.path}: going on with what this job of torchrun ({name}) has begun", file=sys.stderr)
    return begun


def _go_on(folder: "RunFolder", args: argparse.Namespace) -> Callable[[], None]:
    """Build an interrupted run as it stood."""
    from ppo_plus.zoo.train import set_up_again, train

    import_packages(args.gym_packages)
    # What is not given stays as it was.
    survived = {
        name: getattr(args, name) for name in ("restart_envs", "env_timeout") if getattr(args, name) is not None
    }
    run = set_up_again(folder, allowed_packages(args), progress=args.progress, verbose=args.verbose, **survived)

    def work() -> None:
        with deferred(ends_process=True):
            _train(train, run, args)

    return work


def _train(train: Callable[["Run"], bool], run: "Run", args: argparse.Namespace) -> None:
    """Train, and say what can be done next, of several processes once.

    Where training does not reach its end the exit code says why: 128 plus the signal's number, or the operating
    system's number of a full disk (28) or of too little memory (12).

    :param train: trains a run
    :param run: the run
    :param args: what it was asked for
    """
    from ppo_plus.envs.supervised.faults import DISK_FULL
    from ppo_plus.files.checkpoint import files, steps_of
    from ppo_plus.ranks import RanksError

    leads, size = run.model.ranks.leads, run.model.ranks.size
    packages = ["--gym-packages", *args.gym_packages] if args.gym_packages else []
    trust = ["--trust-config"] if args.trust_config else []
    finished, code = False, INTERRUPTED
    try:
        finished = train(run)
        if leads:
            folder = [] if run.options.log_folder == "logs" else ["-f", run.options.log_folder]
            print("watch it:", shlex.join(["ppo-plus", "enjoy", "--env", run.experiment.env_id, *folder, *packages]))
    except RanksError as error:
        code = _told(1, str(error))
    except MemoryError as error:
        code = _told(errno.ENOMEM, f"there is too little memory ({error})")
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        code = _told(errno.ENOSPC, str(error))
    finally:
        newest = [] if finished or not leads else files(run.folder.checkpoints)
        if newest:
            processes = ["--processes", str(size)] if size > 1 else []
            resume = ["ppo-plus", "train", "--resume", str(run.folder.path), *processes, *packages, *trust]
            print(f"go on from {steps_of(newest[0]):,} timesteps: {shlex.join(resume)}", flush=True)
    if not finished:
        number = came()
        sys.exit(code if number is None else 128 + number)


def _told(code: int, reason: str) -> int:
    """Tell in one line what ended a run, and return its exit code."""
    print(f"ppo-plus train: error: {reason}", file=sys.stderr)
    return code


def _settings_file(name: str) -> Path:
    """A settings file of the user's."""
    path = Path(name)
    if path.suffix == ".py" or (not path.exists() and name.startswith("hyperparams.python")):
        raise ValueError(f"-conf {name}: settings are YAML here, because reading them must run no code; write its "
                         "dictionary `hyperparams` as YAML")  # fmt: skip
    return path


def describe(experiment: "Experiment", options: Options) -> str:
    """The resolved experiment as YAML."""
    import yaml

    run = {name: getattr(experiment, name) for name in ("seed", "device", "vec_env", "eval_env_kwargs")}
    return yaml.safe_dump({experiment.env_id: experiment.settings(), "run": {**run, **vars(options)}}, sort_keys=False)


def _options(args: argparse.Namespace, tensorboard_log: str | None) -> Options:
    return Options(
        log_folder=args.log_folder,
        uuid=args.uuid,
        eval_freq=args.eval_freq,
        eval_episodes=args.eval_episodes,
        n_eval_envs=args.n_eval_envs,
        save_freq=args.save_freq,
        keep_checkpoints=args.keep_checkpoints,
        trained_agent=args.trained_agent,
        keep_timesteps=args.keep_timesteps,
        trust_model=args.trust_model,
        tensorboard_log=tensorboard_log,
        log_interval=None if args.log_interval < -1 else max(args.log_interval, 1),
        restart_envs=args.restart_envs or 0,
        env_timeout=args.env_timeout,
        progress=args.progress,
        verbose=args.verbose,
    )


def _add_option_arguments(group: Any) -> None:
    add, default = group.add_argument, Options()
    add(
        "--eval-freq",
        type=int,
        default=default.eval_freq,
        metavar="N",
        help="timesteps between evaluations; negative: none (default: %(default)s)",
    )
    add(
        "--eval-episodes",
        type=whole_number,
        default=default.eval_episodes,
        metavar="N",
        help="episodes per evaluation (default: %(default)s)",
    )
    add(
        "--n-eval-envs",
        type=whole_number,
        default=default.n_eval_envs,
        metavar="N",
        help="environments for evaluation (default: %(default)s)",
    )
    add(
        "--save-freq",
        type=int,
        default=default.save_freq,
        metavar="N",
        help="timesteps between checkpoints, each beside a model that stays; negative: a checkpoint every ten minutes, "
        "and no models (default: %(default)s)",
    )
    add(
        "--keep-checkpoints",
        type=whole_number,
        default=default.keep_checkpoints,
        metavar="N",
        help="how many checkpoints to keep for --resume (default: %(default)s)",
    )
    add_fault_arguments(group)
    add(
        "--processes",
        type=whole_number,
        metavar="N",
        help="train in N processes on this machine, each with its part of the environments and of each minibatch: the "
        "same as torchrun --nproc-per-node N -m ppo_plus train",
    )
    add("-i", "--trained-agent", metavar="ZIP", help="a saved model whose training to continue")
    add("--keep-timesteps", action="store_true", help="with -i: go on counting timesteps from the saved model's")
    add("--trust-model", action="store_true", help=TRUST_MODEL)
    add("-tb", "--tensorboard-log", metavar="DIR", help="folder for TensorBoard")
    add(
        "--log-interval",
        type=int,
        default=-1,
        metavar="N",
        help="rollouts between logs; -1: log each, -2: none (default: %(default)s)",
    )
    add("-uuid", "--uuid", action="store_true", help="add a unique id to the name of the run's folder")
    add(
        "-P",
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="show progress, as a bar on a terminal, else as lines (default: yes)",
    )
    add(
        "--verbose",
        type=int,
        choices=[0, 1, 2],
        default=0,
        help="1: SB3's tables of metrics, 2: debug messages (default: %(default)s)",
    )
    add("--dry-run", action="store_true", help="check and print the experiment without training")


def _add_tracking_arguments(group: Any) -> None:
    add = group.add_argument
    add("--track", action="store_true", help="track the run with Weights & Biases (pip install wandb tensorboard)")
    add("--wandb-project-name", default="ppo_plus", metavar="NAME", help="project (default: %(default)s)")
    add("--wandb-entity", metavar="NAME", help="entity (team)")
    add("--wandb-group", metavar="NAME", help="group")
    add("-tags", "--wandb-tags", nargs="+", default=[], metavar="TAG", help="tags")


if TYPE_CHECKING:
    from ppo_plus.zoo.experiment import Experiment


def run_name(experiment: "Experiment") -> str:
    """Name of a tracked run, as rl_zoo3 names them.

    :raises ImportError: Weights & Biases is not installed
    """
    if find_spec("wandb") is None:
        raise ImportError("--track needs Weights & Biases: pip install wandb")
    return f"{experiment.env_id}__ppo_plus__{experiment.seed}__{int(time.time())}"


def track(args: argparse.Namespace, experiment: "Experiment", name: str) -> None:
    """Start tracking; what is written for TensorBoard from now on is uploaded.

    :param args: the arguments of ``ppo-plus train``
    :param experiment: what is trained
    :param name: name of the run
    """
    import wandb

    wandb.init(
        name=name,
        project=args.wandb_project_name,
        entity=args.wandb_entity,
        group=args.wandb_group,
        tags=args.wandb_tags,
        config={"env": experiment.env_id, "seed": experiment.seed, **experiment.settings()},
        sync_tensorboard=True,
    )
