"""``ppo-plus train``, ``zoo`` and ``tune``, with rl_zoo3's flags as far as they make sense for PPO_Plus.

Optuna is loaded when a study is: other subcommands do not need it.
"""

import argparse
import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from secrets import randbelow
from typing import TYPE_CHECKING

from ppo_plus.distributed.torchrun import launch, launched, require_any_gpu
from ppo_plus.require import require_installed
from ppo_plus.saving.files import file_name
from ppo_plus.zoo.cli import arguments
from ppo_plus.zoo.cli.arguments import Commands, Pairs, Parser, add_option, interval, key_value, whole_number
from ppo_plus.zoo.hyperparams import builtin_file, measured_returns, pairs_option, read_entry, read_mapping, to_yaml
from ppo_plus.zoo.installation import (
    command,
    deterministic_option,
    has_screen,
    import_options,
    this_command,
    without_password,
)
from ppo_plus.zoo.interrupts import INTERRUPTED, came, deferred, exit_codes
from ppo_plus.zoo.runs import ALGO, Options, open_run

if TYPE_CHECKING:
    from ppo_plus.zoo.experiment import Experiment
    from ppo_plus.zoo.train import Run

#: Seconds that an interrupted worker of a study has to put its job back.
END_PATIENCE = 60
#: Options that change a run when it is resumed.
CHANGED_BY_RESUME = ("progress", "verbose", "restart_envs", "env_timeout", "env_workers", "tensorboard_log")
#: Arguments that may be given together with ``--resume``.
WITH_RESUME = {*"resume processes command prepare gym_packages trust_config traceback".split(), *CHANGED_BY_RESUME}

TRAIN = """
Train PPO_Plus, evaluate it during training, and save the last model, the best model and a learning curve in a new
folder below -f. The settings are the package's tuned ones for the environment, or else the recommended ones. Ctrl-C
ends the training early and saves what was learned.
"""


def add_parser(commands: Commands) -> None:
    """Add ``train``, ``zoo`` and ``tune``."""
    _add_train(commands)
    help = "list the environments that have settings, and what was measured: mean returns with 95 percent intervals"
    commands.add_parser("zoo", help=help, description=help).set_defaults(prepare=lambda args: print_zoo)
    _add_tune(commands)


def _add_train(commands: Commands) -> None:
    help = "train, evaluate and save a model, and plot its learning curve"
    command = commands.add_parser("train", help=help, description=TRAIN)
    command.set_defaults(prepare=partial(prepare_train, command))
    command.add_argument("--resume", metavar="RUN", help="resume the interrupted run in this folder")
    add_experiment_arguments(command)
    add = partial(add_option, command.add_argument_group("evaluation, checkpoints and output"))
    add("--eval-freq N", "evaluate every N timesteps; 0 or negative: never", type=interval, default=Options.eval_freq)
    add("--eval-episodes N", "episodes in each evaluation", type=whole_number, default=Options.eval_episodes)
    add("--n-eval-envs N", "number of evaluation environments", type=whole_number, default=Options.n_eval_envs)
    help = "save a checkpoint and a permanent model every N timesteps; 0 or negative: a checkpoint every ten minutes"
    add("--save-freq N", help, type=interval, default=Options.save_freq)
    add("--keep-checkpoints N", "checkpoints to keep for --resume", type=whole_number, default=Options.keep_checkpoints)
    add("-i --trained-agent FILE", "continue to train this model, a .zip file")
    add("-tb --tensorboard-log DIR", "log to this folder for TensorBoard (pip install tensorboard)")
    arguments.add_fault_arguments(add.args[0])
    help = "with environments in processes: share N of them, or with auto one per core (default: one per environment)"
    add("--env-workers N", help, type=lambda text: text if text == "auto" else whole_number(text))
    help = "share environments and minibatches among N processes, as torchrun --nproc-per-node N -m ppo_plus train"
    add("--processes N", help, type=whole_number)
    add("--trust-model", "with -i: read SB3's pickles, which can run code", action="store_true")
    add("--track", "log to Weights & Biases (pip install wandb tensorboard)", action="store_true")
    help = "show progress: a bar in a terminal, lines elsewhere"
    add("-P --progress", help, action=argparse.BooleanOptionalAction)
    add("--verbose", "1: print SB3's tables of metrics, 2: also debug messages", type=int, choices=[0, 1, 2])
    add("--dry-run", "check the experiment and print it, without training", action="store_true")


def print_zoo() -> None:
    """Print a line for each entry of the package's settings file that is of one environment, or was measured on one."""
    measured = measured_returns()
    names = (name for name in dict.fromkeys([*read_mapping(builtin_file()), *measured]) if "-v" in name)
    print("\n".join(f"{name:32} {measured.get(name, 'not measured')}" for name in names))


def _print_measured(experiment: "Experiment", variant: str | None) -> None:
    """Print what runs of an experiment reached, if it is an entry of the package's file that was measured."""
    from ppo_plus.zoo.experiment import load_experiment

    measured = measured_returns().get("/".join(filter(None, (experiment.env_id.rpartition(":")[2], variant))))
    if measured and experiment.settings() == load_experiment(experiment.env_id, variant=variant).settings():
        print(f"earlier runs with these settings reached {measured}; one run can end lower")


def add_experiment_arguments(command: argparse.ArgumentParser, seed_default: int = -1) -> None:
    """Add the arguments that :func:`make_experiment` reads."""
    arguments.add_env_arguments(command, "--log-folder")
    add_option(command, "--algo", "for rl_zoo3's commands; both are PPO_Plus", choices=[ALGO, "ppo"], default=ALGO)
    add = partial(add_option, command.add_argument_group("settings of the training"))
    add("-conf --conf-file FILE", "YAML file of settings in rl_zoo3's format (default: the package's own)")
    add("--variant NAME", "use the entry ID/NAME of the settings, such as CartPole-v1/gSDE")
    help = "allow the settings to import wrappers, callbacks and policies from any package"
    add("--trust-config", help, action="store_true")
    add("-n --n-timesteps N", "number of timesteps (default: from the settings)", type=whole_number)
    add("--n-envs N", "number of environments (default: from the settings)", type=whole_number)
    help = 'settings to override, such as learning_rate:lin_3e-4 policy_kwargs:"dict(net_arch=[64])"'
    add("-params --hyperparams K:V", help, nargs="+", action=Pairs, type=key_value, default={})
    add("--seed N", "random seed; negative (train only): draw one and record it", type=int, default=seed_default)
    help = "dummy: step the environments one after another; subproc: in separate processes"
    add("--vec-env {dummy,subproc}", help, default="dummy")
    help = "arguments of the evaluation environments (default: those of --env-kwargs or the settings)"
    add("--eval-env-kwargs K:V", help, nargs="+", action=Pairs, type=key_value)
    arguments.add_deterministic(add.args[0])
    add("--num-threads N", "number of torch's threads (default: depends on the minibatch)", type=whole_number)


def make_experiment(args: argparse.Namespace) -> "Experiment":
    """The experiment that the arguments describe, with the errors of ``find_env`` and ``load_experiment``."""
    from ppo_plus.zoo.installation import find_env

    # The errors below come before the import of torch, which takes seconds.
    arguments.import_named(args)
    spec = find_env(args.env)
    source = Path(args.conf_file) if args.conf_file else builtin_file()
    entry, contents = read_entry(args.env, source, args.variant)
    from ppo_plus.settings import BUILT_WITH
    from ppo_plus.zoo.experiment import load_experiment, with_recommended

    flags = {"n_timesteps": args.n_timesteps, "n_envs": args.n_envs, "n_threads": args.num_threads}
    flags |= {"env_kwargs": args.env_kwargs or None}
    given = {name: value for name, value in flags.items() if value is not None}
    if twice := given.keys() & args.hyperparams.keys():
        raise ValueError(f"-params {min(twice)}: another option gives it, too: leave out one of them")
    overrides = {**args.hyperparams, **given}
    experiment = load_experiment(
        args.env,
        source,
        overrides,
        variant=args.variant,
        packages=arguments.allowed_packages(args),
        seed=args.seed if args.seed >= 0 else randbelow(2**32),
        device=args.device,
        vec_env=args.vec_env,
        eval_env_kwargs=args.eval_env_kwargs,
        deterministic=args.deterministic,
    )
    if entry in ("default", "default/sb3"):
        recommends = entry == "default" and not args.conf_file
        # What the model of -i is built with stays.
        built = BUILT_WITH if getattr(args, "trained_agent", None) else ()
        experiment = with_recommended(experiment, {*contents, *overrides, *built}, policy_alone=not recommends)
        if recommends:
            print(f"there are no tuned settings for {args.env}: training with the recommended ones", file=sys.stderr)
            networks = ("policy", "policy_kwargs") if built else ()
            shown = {name: value for name, value in experiment.settings().items() if name not in networks}
            print(to_yaml(shown).rstrip(), file=sys.stderr)
            if hasattr(args, "trained_agent"):  # not if this is the tuner
                with suppress(ValueError):  # infinity cannot be written
                    print(f"look for better ones: {command('tune', *_same_training(args))}", file=sys.stderr)
        else:
            what = f"training with the entry {entry!r} of {source}, and the policy is {experiment.policy}"
            print(what, file=sys.stderr)
    skipped = {**spec.kwargs, **experiment.env_kwargs}.get("frameskip", 1)
    if entry.partition("/")[0] == "atari" and skipped != 1:
        problem = f"{args.env} skips frames itself (frameskip={skipped}), and so do the settings"
        remedy = "train a NoFrameskip id, such as PongNoFrameskip-v4, or add --env-kwargs frameskip:1"
        print(f"{problem}: {remedy}", file=sys.stderr)
    return experiment


def _same_training(args: argparse.Namespace) -> list[str]:
    """The options of a command that say what is trained, for another command."""
    words = ["--env", args.env, *import_options(args.gym_packages, args.trust_config)]
    words += deterministic_option(args.deterministic)
    for option, value in (("-n", args.n_timesteps), ("--n-envs", args.n_envs)):
        words += [] if value is None else [option, str(value)]
    pairs_of = {"--env-kwargs": args.env_kwargs, "--eval-env-kwargs": args.eval_env_kwargs, "-params": args.hyperparams}
    for option, pairs in pairs_of.items():
        words += pairs_option(option, pairs)
    return words


def prepare_train(command: Parser, args: argparse.Namespace) -> Callable[[], None]:
    """Check the arguments and build the run; return the function that trains."""
    if args.resume is not None:
        names = [name for name, value in vars(args).items() if value != command.get_default(name)]
        if flags := [f"--{name.replace('_', '-')}" for name in names if name not in WITH_RESUME]:
            own = f"--resume continues the run with its own arguments: leave out {', '.join(flags)}"
            raise ValueError(f"{own}; a finished run's model is trained further with -i MODEL -n N")
    elif args.env is None:
        raise ValueError("the following arguments are required: --env, or --resume")
    if args.tensorboard_log or args.track:
        require_installed("tensorboard", "-tb" if args.tensorboard_log else "--track")
    if args.trained_agent is not None and (kept := args.hyperparams.keys() & {"policy", "policy_kwargs"}):
        raise ValueError(f"-i keeps the networks of its model: leave out {' and '.join(sorted(kept))} of -params")
    folder = None if args.resume is None else open_run(Path(args.resume))
    device = args.device if folder is None else folder.arguments().get("device", "auto")
    n_processes = args.processes or 1
    if launched():
        if n_processes not in (1, n_launched := int(os.environ["WORLD_SIZE"])):
            raise ValueError(f"--processes {n_processes}: torchrun has started {n_launched} processes; leave it out")
        from ppo_plus.distributed.torchrun import join

        # All processes use the seed of the first.
        args.seed = join(device).lead(randbelow(2**32) if args.seed < 0 else args.seed)
        n_processes = 1
    if n_processes > 1 and not args.dry_run:
        require_any_gpu(device)
    start = partial(launch, n_processes, ["train", *command.words]) if n_processes > 1 else None
    if folder is None:
        return _prepare_new(args, n_processes, start)
    if start:
        return start
    from ppo_plus.zoo.train import resume

    arguments.import_named(args, folder)
    changes = {name: getattr(args, name) for name in CHANGED_BY_RESUME if getattr(args, name) is not None}
    return partial(_train, resume(folder, arguments.allowed_packages(args), **changes), args)


def _prepare_new(args: argparse.Namespace, n_processes: int, start: Callable[[], None] | None) -> Callable[[], None]:
    """Build a new run, or print its settings (``--dry-run``), or check it and return what starts its processes."""
    # The settings are printed once: by the command that starts processes, or by the first process of torchrun.
    is_printed = launched() and (args.processes or os.environ["RANK"] != "0")
    with redirect_stderr(io.StringIO() if is_printed else sys.stderr):
        experiment = make_experiment(args)
    values = {field.name: getattr(args, field.name) for field in fields(Options)}
    options = Options(**{name: value for name, value in values.items() if value is not None})
    run_name = f"{file_name(experiment.env_id)}__ppo_plus__{experiment.seed}__{int(time.time())}"
    if args.track:
        require_installed("wandb", "--track")
        args.tensorboard_log = args.tensorboard_log or f"runs/{run_name}"
        options = replace(options, tensorboard_log=args.tensorboard_log)
    from ppo_plus.zoo.train import check, set_up

    if args.dry_run or start:
        experiment.for_each_process(n_processes, options.trained_agent is not None)
        check(experiment, options)
        settings = {experiment.env_id: experiment.settings(), "run": {**experiment.beside_settings(), **vars(options)}}
        return start if start and not args.dry_run else partial(print, to_yaml(settings), end="")
    with deferred():
        run = set_up(experiment, options)
    if run.model.ranks.leads and args.trained_agent is None:
        _print_measured(experiment, args.variant)
    if run.model.ranks.leads and args.track:
        import wandb

        logged = {**vars(run.model.settings), **experiment.settings(), "env": experiment.env_id}
        project = os.environ.get("WANDB_PROJECT", "ppo_plus")
        try:
            wandb.init(name=run_name, project=project, config=logged, sync_tensorboard=True)
        except Exception as error:
            shutil.rmtree(run.folder.path, ignore_errors=True)  # a run without a model
            raise ConnectionError(f"--track: {error}. Log in (wandb login), or set WANDB_MODE=offline") from error
    return partial(_train, run, args)


def _train(run: "Run", args: argparse.Namespace) -> None:
    """Train, upload a tracked run's model, and print what can be done next. If training does not reach its end, the
    exit code says why: 128 plus the signal's number, or the system's number of a full disk (28) or of too little
    memory (12)."""
    from ppo_plus.distributed.ranks import RanksError
    from ppo_plus.saving.format.names import Refused
    from ppo_plus.zoo.train import train

    finished = False
    with exit_codes({RanksError: 1, Refused: 1, MemoryError: errno.ENOMEM}):
        try:
            finished = train(run)
            if run.model.ranks.leads and args.track:
                import wandb

                from ppo_plus.saving.statistics import statistics_path

                model = run.folder.last_model
                artifact = wandb.Artifact(f"{run.folder.path.name}-{getattr(wandb.run, 'id', '')}", "model")
                for path in filter(Path.is_file, (model, statistics_path(model))):
                    artifact.add_file(str(path))
                wandb.log_artifact(artifact)
        finally:
            if run.model.ranks.leads:
                _print_next_command(run, args, finished)
        if not finished:
            sys.exit(128 + (came() or signal.SIGINT))


def _print_next_command(run: "Run", args: argparse.Namespace, finished: bool) -> None:
    """The command that plays the trained model, or resumes the run."""
    from ppo_plus.saving.checkpoint.checkpoint import files, steps_of

    imports = import_options(run.options.gym_packages, args.trust_config)
    if finished:
        what, play = ("watch it", "enjoy") if has_screen() else ("record it (there is no screen)", "record")
        print(f"{what}:", command(play, "--env", run.experiment.env_id, "-f", run.folder.path, *imports))
    elif checkpoints := files(run.folder.checkpoints):
        again = ["--processes", str(run.model.ranks.size)] if run.model.ranks.several else []
        # The run's folder never says where to log.
        again += ["-tb", args.tensorboard_log] if args.tensorboard_log else []
        resume = command("train", "--resume", run.folder.path, *imports, *again)
        print(f"resume from {steps_of(checkpoints[0]):,} timesteps: {resume}", flush=True)


TUNE = """
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
    "n_finalists": ("--finalists N", 3, "number of the best trials to compare with the baselines"),
    "confirm_seeds": ("--confirm-seeds N", 10, "unseen seeds, at least 10; 0: no confirmation"),
}


def _add_tune(commands: Commands) -> None:
    help = "search for hyperparameters, and confirm them on unseen seeds"
    command = commands.add_parser("tune", help=help, description=TUNE)
    add_experiment_arguments(command, seed_default=0)
    command.set_defaults(prepare=partial(prepare_tune, command))
    add = partial(add_option, command.add_argument_group("search, score and confirmation"))
    help = "number of trials in the search, of all workers together; pruned and failed trials count"
    add("--max-total-trials N", help, type=whole_number, default=40)
    add("--sampler", "tpe, random or gp", default="tpe")
    add("--pruner", "median, hyperband or none", default="median")
    add("--search-space FILE", "YAML search space (default: the package's own)")
    for field, (option, default, help) in COUNTS.items():
        add(option, help, dest=field, type=int, default=default)
    add = partial(add_option, command.add_argument_group("study and workers"))
    help = (
        "where the study is kept: sqlite:///FILE for one machine (default: study.db in the folder of the study, below "
        "-f); FILE.log in a shared folder for several; postgresql+psycopg://USER@HOST/DATABASE with the password in "
        "PGPASSWORD for any number"
    )
    add("--storage URL", help)
    help = "repeat the trial of a worker that sends no heartbeat for S seconds; the same for all workers of a study"
    add("--grace-period S", help, type=whole_number, default=60)
    arguments.add_fault_arguments(add.args[0], of=" in each run")
    add("--study-name NAME", "name of the study (default: the environment's id, with the variant)")
    help = "number of processes on this machine; the same command elsewhere adds others"
    add("--workers N", help, type=whole_number, default=1)


def prepare_tune(parser: Parser, args: argparse.Namespace) -> Callable[[], None]:
    """Create the study, or find it; return the function that works on it."""
    for package in ("optuna", "scipy"):
        require_installed(package, "ppo-plus tune")
    import optuna
    from sqlalchemy.engine import URL

    from ppo_plus.zoo.tune.jobs import Heartbeats, is_done, named_errors, open_storage
    from ppo_plus.zoo.tune.report import done_runs, entry_path, estimate, retraining
    from ppo_plus.zoo.tune.space import read_space
    from ppo_plus.zoo.tune.study import Study, create, is_over
    from ppo_plus.zoo.tune.task import Plan, TuningTask
    from ppo_plus.zoo.tune.tuner import EXIT_CODES, TuningWorker

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if args.env is None:
        raise ValueError("the following arguments are required: --env")
    if args.seed < 0:
        raise ValueError(f"--seed {args.seed}: a study with a random seed cannot be resumed; give a seed from 0")
    name = args.study_name or "/".join(filter(None, (args.env, args.variant)))
    folder = Path(args.log_folder, "tune", file_name(name))
    url = args.storage or URL.create("sqlite", database=str(folder / "study.db")).render_as_string()
    experiment = make_experiment(args)
    options = {name: getattr(args, name) for name in (*COUNTS, "sampler", "pruner")}
    plan = Plan(n_timesteps=experiment.n_timesteps, seed=experiment.seed, **options)
    space, packages = read_space(args.search_space), arguments.allowed_packages(args)
    task = TuningTask(experiment, space, plan, packages, tuple(args.gym_packages)).checked()
    with named_errors():
        study = Study(name, open_storage(url), Heartbeats(args.grace_period))
        create(study, task, args.max_total_trials)
        n_done, printed = sum(map(is_done, study.screening().trials())), set[object](done_runs(study))
        others = 0 if is_over(study, task) else args.workers - 1
    print(f"study {name!r} in {without_password(url)}: {n_done} of {study.budget} trials done")
    search, confirmation = task.plan.n_runs(study.budget, len(task.baselines()))
    each = f"with {task.plan.n_timesteps:,} timesteps each"
    print(f"at most {search} runs of the search and {confirmation} of the confirmation, {each}")

    def show() -> None:
        lines: dict[object, str] = {line: line for line in done_runs(study)}
        lines[len(study.begun_stages())] = estimate(study, task, args.workers)
        for key, line in lines.items():
            if line and key not in printed:
                printed.add(key)
                print(line, flush=True)

    def work() -> None:
        supervision = {"restarts": args.restart_envs or 0, "timeout": args.env_timeout}
        with exit_codes(EXIT_CODES, f"interrupted; resume with: {this_command()}"):
            with same_command(["tune", *parser.words, "--workers", "1"], others):
                verdict = TuningWorker(study, task, supervision, show).finish(folder)
        print(f"{verdict}\nreport: {folder / 'report.md'}")
        entry = entry_path(task, folder, verdict.winner is not None)
        if entry.is_file():
            print(f"settings{'' if verdict.winner else ' of the best trial, not confirmed'}: {entry}")
            print(f"train with them: {command(*retraining(task, entry))}")

    return work


@contextmanager
def same_command(words: Sequence[str], n: int) -> Iterator[None]:
    """While the block runs, the same command runs ``n`` times, without output. One that hangs in the end is killed."""
    command, nothing = [sys.executable, "-m", "ppo_plus", *words], subprocess.DEVNULL
    processes = [subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing) for _ in range(n)]
    try:
        yield
    except BaseException:
        for process in processes:
            process.terminate()  # so that it puts its job back and ends
        raise
    finally:
        for process in processes:
            try:
                if process.wait(END_PATIENCE) not in (0, INTERRUPTED, -signal.SIGTERM):
                    print(f"a worker ended with exit code {process.returncode}: --workers 1 shows why", file=sys.stderr)
            except subprocess.TimeoutExpired:
                process.kill()
