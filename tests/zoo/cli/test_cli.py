"""The command line, as a user runs it."""

import argparse
import fcntl
import os
import pty
import re
import runpy
import signal
import struct
import subprocess
import sys
import termios
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import gymnasium as gym
import pytest
import torch as th
import yaml
from gymnasium.envs.classic_control import CartPoleEnv
from parametrization import sample

from ppo_plus import PPO_Plus, __version__
from ppo_plus.zoo import envs, interrupts
from ppo_plus.zoo.cli import main, make_parser
from ppo_plus.zoo.cli import train as train_command
from ppo_plus.zoo.cli.arguments import Parser, key_value
from ppo_plus.zoo.interrupts import SIGNALS

ROOT = Path(__file__).parents[3]
TRAIN = ["train", "--env", "CartPole-v1", "--device", "cpu"]


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def run(arguments, cwd, **options):
    """Run Python in a folder outside the checkout, with the package importable from the checkout."""
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment(), text=True, timeout=600, **options)


def test_scripts(folder, monkeypatch, capsys):
    """Train, enjoy, record and plot, one after the other."""

    def script(name, *arguments):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        runpy.run_path(str(ROOT / "scripts" / f"{name}.py"), run_name="__main__")
        return capsys.readouterr()

    done = script("train", "--env", "CartPole-v1", "-n", "2e3", "-f", "runs", "--eval-freq", "1000")
    assert done.out.startswith("CartPole-v1: mean return ")
    assert re.match(
        r"CartPole-v1: training for 2,000 timesteps, in rollouts of 256 \(32 steps of 8 environments\), seed \d+",
        done.err,
    )
    assert done.out.endswith("watch it: ppo-plus enjoy --env CartPole-v1 -f runs\n")
    progress = [line for line in done.err.splitlines() if "/2.00k [" in line]
    assert len(progress) >= 8 and progress[-1].startswith("100%")
    assert done.err.count("evaluation after") == 2
    run_folder = folder / "runs" / "ppo_plus" / "CartPole-v1_1"
    assert (run_folder / "learning_curve.png").is_file()
    done = script("enjoy", "--env", "CartPole-v1", "-f", "runs", "--no-render", "-n", "600", "--load-best")
    assert "episode 1: return " in done.out and "mean return " in done.out
    done = script("record", "--env", "CartPole-v1", "-f", "runs", "-n", "5")
    assert Path(done.out.strip()).samefile(run_folder / "CartPole-v1.gif")
    done = script("plot", "-e", "CartPole-v1", "-f", "runs", "-o", "curves.svg")
    assert ", 1 run\n" in done.out and (folder / "curves.svg").is_file()


@pytest.mark.slow
def test_progress_bar_on_a_terminal(tmp_path):
    command = ["-m", "ppo_plus", "train", "--env", "CartPole-v1", "-n", "3000"]
    terminal, stderr = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    done = run(command, tmp_path, stdout=subprocess.PIPE, stderr=stderr)
    os.close(stderr)
    shown = b""
    try:
        while data := os.read(terminal, 100_000):
            shown += data
    except OSError:  # how Linux says that there is no more
        pass
    os.close(terminal)
    assert done.returncode == 0
    text = shown.decode()
    assert "100%" in text and "mean return" in text and "steps/s" in text and "<" in text


@pytest.mark.parametrize("number", sample([signal.SIGTERM, signal.SIGINT], 2))
def test_signals_save_the_model(tmp_path, number):
    """The second one does not disturb the saving that the first one started."""
    command = [sys.executable, "-m", "ppo_plus", "train", "--env", "CartPole-v1", "-n", "1e7"]
    process = subprocess.Popen(
        [*command, "-params", "normalize:true", "compile:false"],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A shell's background jobs, and so these tests there, ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    folder = tmp_path / "logs" / "ppo_plus" / "CartPole-v1_1"
    # Until an episode has been written: training is on. That takes as long as the machine is busy.
    while not any(path.read_text().count("\n") > 2 for path in folder.glob("*.csv")) and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(number)
    # The first line of its answer: it is saving now.
    while "interrupted" not in (line := process.stderr.readline()):
        assert line, "it ended without a word"
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 128 + number and stderr == ""
    assert "CartPole-v1: " in stdout and (folder / "learning_curve.png").is_file()
    assert PPO_Plus.load(folder / "CartPole-v1.zip").num_timesteps > 0
    assert (folder / "CartPole-v1_vecnormalize.zip").is_file()


@pytest.mark.parametrize("number", SIGNALS)
def test_an_interrupt_lost_in_other_code_still_ends_training(folder, handlers, loses_interrupt, number):
    loses_interrupt(number)
    with pytest.raises(SystemExit) as stop:
        main([*TRAIN, "-n", "2048", "--eval-freq", "-1", "--no-progress", "-params", "n_steps:128"])
    assert stop.value.code == 128 + number
    assert PPO_Plus.load(folder / "logs/ppo_plus/CartPole-v1_1/CartPole-v1.zip").num_timesteps < 2048


def test_both_signals_at_once_are_one_interrupt_of_training(handlers, monkeypatch):
    """Python would report the second one, were it ignored by the system's own handler."""
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    with pytest.raises(KeyboardInterrupt), interrupts.deferred(ends_process=True):
        for number in SIGNALS:
            signal.raise_signal(number)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        interrupts.check()
    assert interrupts.came() is None and not reported


def test_ctrl_c_before_any_work_is_one_line(monkeypatch, capsys):
    def interrupt(_args):
        raise KeyboardInterrupt

    monkeypatch.setattr("ppo_plus.zoo.cli.train.make_experiment", interrupt)
    with pytest.raises(SystemExit) as stop:
        main(TRAIN)
    assert stop.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_settings_file(folder, capsys):
    path = folder / "mine.yml"
    path.write_text("default: {n_timesteps: 64, n_steps: 32, batch_size: 32, normalize: true}")
    main([*TRAIN, "-conf", str(path), "-f", str(folder), "--seed", "1"])
    captured = capsys.readouterr()
    assert "after 64 timesteps" in captured.out
    assert f"{path} has no entry for CartPole-v1: training with its 'default'" in captured.err
    assert (folder / "ppo_plus" / "CartPole-v1_1" / "CartPole-v1" / "vecnormalize.pkl").is_file()


def dry_run(capsys, *arguments):
    main([*TRAIN, "--dry-run", *arguments])
    return yaml.safe_load(capsys.readouterr().out)


def test_dry_run_prints_the_resolved_experiment_and_does_nothing(folder, capsys):
    shown = dry_run(
        capsys,
        *[
            "-n",
            "1e3",
            "--n-envs",
            "2",
            "--seed",
            "5",
            "--vec-env",
            "dummy",
            "--env-kwargs",
            "sutton_barto_reward:True",
        ],
        *["-params", "learning_rate:lin_1e-3", "policy_kwargs:dict(net_arch=[4], activation_fn=nn.ReLU)", "gamma:0.5"],
        *["--num-threads", "2", "--eval-freq", "7", "-tb", "tb", "--eval-env-kwargs", "sutton_barto_reward:False"],
    )
    assert (
        shown["CartPole-v1"].items()
        >= {
            "n_timesteps": 1000,
            "n_envs": 2,
            "gamma": 0.5,
            "learning_rate": "lin_1e-3",
            "policy_kwargs": "dict(net_arch=[4], activation_fn=nn.ReLU)",
            "env_kwargs": {"sutton_barto_reward": True},
            "n_threads": 2,
            "n_steps": 32,
        }.items()
    )
    assert (
        shown["run"].items()
        >= {
            "seed": 5,
            "vec_env": "dummy",
            "eval_freq": 7,
            "tensorboard_log": "tb",
            "eval_env_kwargs": {"sutton_barto_reward": False},
        }.items()
    )
    assert list(folder.iterdir()) == []


def test_a_dry_run_prints_a_settings_file(folder, capsys):
    main([*TRAIN, "--dry-run", "--seed", "1", "-params", "gamma:0.5"])
    (folder / "mine.yml").write_text(capsys.readouterr().out)
    assert dry_run(capsys, "-conf", "mine.yml", "--seed", "1")["CartPole-v1"]["gamma"] == 0.5


def test_without_a_seed_a_random_one_is_recorded(folder, capsys):
    seeds = {dry_run(capsys)["run"]["seed"] for _ in range(3)} | {dry_run(capsys, "--seed", "-1")["run"]["seed"]}
    assert len(seeds) == 4 and min(seeds) >= 0
    assert dry_run(capsys, "--seed", "0")["run"]["seed"] == 0


def test_variants(folder, capsys):
    assert dry_run(capsys, "--variant", "gSDE")["CartPole-v1"]["use_sde"] is True


def test_packages_that_register_environments(folder, monkeypatch, capsys):
    (folder / "my_envs.py").write_text(
        "import gymnasium as gym\n"
        "gym.register('Mine-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=5)\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    main(["train", "--env", "Mine-v0", "--gym-packages", "my_envs", "-n", "64", "-params", "n_steps:64", "--seed", "0"])
    assert "Mine-v0: mean return 5.00" in capsys.readouterr().out
    main(["enjoy", "--env", "Mine-v0", "--gym-packages", "my_envs", "--no-render", "-n", "9"])
    assert "episode 1: return 5.00, length 5" in capsys.readouterr().out


def test_tensorboard(folder):
    main([*TRAIN, "-n", "256", "-tb", "tb", "--no-progress"])
    assert list(folder.glob("tb/CartPole-v1/PPO_Plus_1/events*"))


def test_training_a_saved_model_further(folder, capsys):
    main([*TRAIN, "-n", "256", "--no-progress"])
    main([*TRAIN, "-n", "256", "--no-progress", "-i", "logs/ppo_plus/CartPole-v1_1/CartPole-v1.zip"])
    assert (folder / "logs/ppo_plus/CartPole-v1_2/CartPole-v1.zip").is_file()


def test_evaluations_of_two_runs(folder, capsys):
    for seed in ("1", "2"):
        main([*TRAIN, "-n", "512", "--eval-freq", "256", "--seed", seed])
    main(["plot", "-e", "CartPole-v1", "-l", "mine"])
    assert re.search(
        r"CartPole-v1, mine: .* after 512 timesteps, mean of 2 runs, from worst to best \[", capsys.readouterr().out
    )
    assert (folder / "curves.png").is_file()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gamma:0.9", 0.9),
        ("learning_rate:lin_1e-3", "lin_1e-3"),
        ("use_sde:true", True),
        ("use_sde:True", True),
        ("target_kl:None", None),
        ("sde_sample_freq:'episode'", "episode"),
        ("sde_sample_freq:episode", "episode"),
        ("net:dict(a=[1, 2])", {"a": [1, 2]}),
        ("path:'a:b'", "a:b"),
        ("wrapper:gymnasium.wrappers.TimeLimit", "gymnasium.wrappers.TimeLimit"),
    ],
)
def test_key_value(text, expected):
    assert key_value(text) == (text.split(":")[0], expected)


@pytest.mark.parametrize("text", ["gamma", ":1", "gamma:", "a:__import__('os').system('true')", "a:open('x')", "a:[x]"])
def test_not_a_key_value(text):
    with pytest.raises(argparse.ArgumentTypeError):
        key_value(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "CartPol-v1"], "Did you mean: `CartPole`"),
        (["--env", "CartPole-v99"], "CartPole"),
        (["--env", "Foo-v0"], "Environment `Foo` doesn't exist"),
        (["--env", "CartPole"], "'CartPole' has no version: use CartPole-v1"),
        (["--env", "no_such_module:Foo-v0"], "no_such_module"),
        (["--env", ""], "environment"),
        (["--env", "CartPole-v1", "-n", "1e30"], "must be at most 1e+18, not '1e30'"),
        (["--env", "CartPole-v1", "-n", "0"], "positive whole number, not '0'"),
        (["--env", "CartPole-v1", "-n", "many"], "positive whole number, not 'many'"),
        (["--env", "CartPole-v1", "--seed", "x"], "invalid seed value: 'x'"),
        (["--env", "CartPole-v1", "--seed", str(2**32)], "must be a whole number below 2**32"),
        (["--env", "CartPole-v1", "--device", "toaster"], "--device toaster: torch finds none here"),
        (["--env", "CartPole-v1", "-conf", "nope.yml"], "error: nope.yml: no such file"),
        (["--env", "CartPole-v1", "-conf", "."], "directory"),
        (["--env", "CartPole-v1", "-f", __file__], "irectory"),
        (["--env", "CartPole-v1", "--variant", "nope"], "variants of CartPole-v1: CartPole-v1/gSDE"),
        (["--env", "CartPole-v1", "--gym-packages", "no_such_package"], "no_such_package"),
        (["--env", "CartPole-v1", "--env-kwargs", "wheels:3"], "wheels"),
        (["--env", "CartPole-v1", "--env-kwargs", "wheels"], "'wheels' must be KEY:VALUE"),
        (["--env", "CartPole-v1", "-params", "gamma:high"], "gamma='high' must be a number"),
        (["--env", "CartPole-v1", "-params", "gamma:high", "--dry-run"], "gamma='high' must be a number"),
        (["--env", "CartPole-v1", "--eval-env-kwargs", "wheels:3", "--dry-run"], "wheels"),
        (["--env", "CartPole-v1", "--algo", "sac"], "invalid choice: 'sac'"),
        (["--env", "CartPole-v1", "-conf", "mine.py"], "mine.py: no such file"),
        (["--env", "CartPole-v1", "-params", "gama:3"], "error: unknown key 'gama': did you mean 'gamma'?"),
        (["--env", "CartPole-v1", "-params", "gamma:open('x')"], "is not allowed"),
        (["--env", "CartPole-v1", "-i", "nope.zip"], "nope.zip: there is no such file"),
        (["--env", "CartPole-v1", "-i", __file__], ""),
        (["--env", "CartPole-v1", "--nope"], "--nope"),
        ([], "--env"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(folder, check_one_line_error, arguments, message):
    check_one_line_error(["train", *arguments], message)
    assert list(folder.glob("logs/ppo_plus/*")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["enjoy", "--env", "CartPole-v1"], "there is no run of CartPole-v1 in logs"),
        (["enjoy", "--env", "CartPole-v1", "--exp-id", "-1", "-f", "."], "there is no model CartPole-v1.zip"),
        (["record", "--env", "CartPole-v1", "--exp-id", "3"], "there is no run of CartPole-v1"),
        (["plot", "-e", "CartPole-v1"], "has no run of CartPole-v1"),
        (["plot", "-e", "CartPole-v1", "-o", "curves.txt"], "must end in .png, .svg or .pdf"),
        (["plot", "-e", "CartPole-v1", "-f", "a", "b", "-l", "c"], "1 labels for 2 folders"),
        (["tune"], "--env"),
        (["tune", "--env", "CartPole-v1", "-params", "policy:NopePolicy"], "policy='NopePolicy' is unknown"),
        (["tune", "--env", "CartPole-v1", "--env-timeout", "9"], "ended when it hangs: add --vec-env subproc"),
        (["tune", "--env", "Foo-v0"], "Environment `Foo` doesn't exist"),
        (
            ["tune", "worker", "--study-name", "x", "--storage", "postgresql+psycopg://me:secret@127.0.0.1:1/x"],
            "refused",
        ),
        (
            ["tune", "worker", "--study-name", "x", "--storage", "sqlite:///none.db"],
            "no study 'x': start it with `ppo-plus tune`",
        ),
        (["record", "--env", "CartPole-v1", "--exp-id", "-1", "-o", "x.xyz"], "-o x.xyz: the name must end in .gif"),
        (["fly"], "fly"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_mistake_in_the_other_commands(folder, check_one_line_error, arguments, message):
    check_one_line_error(arguments, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("default: [", "not valid YAML"),
        ("CartPole-v1: {n_timesteps: 64, gama: 1}", "unknown key 'gama': did you mean 'gamma'?"),
        ("CartPole-v1: {n_timestep: 64}", "unknown key 'n_timestep': did you mean 'n_timesteps'?"),
        ("CartPole-v1: {n_timesteps: 64, use_rms_prop: true}", "unknown key 'use_rms_prop'"),
        ("CartPole-v1: {n_timesteps: 64, policy: Nope}", "Nope"),
        ("CartPole-v1: {n_timesteps: 64, learning_rate: lin_x}", "lin_x"),
        ("CartPole-v1: {n_timesteps: 64, learning_rate: -1}", "learning_rate"),
        ("CartPole-v1: {n_timesteps: 64, n_epochs: many}", "n_epochs"),
        ("CartPole-v1: {n_timesteps: 64, batch_size: [1]}", "batch_size"),
        ("CartPole-v1: {n_timesteps: 64, gamma: high}", "gamma"),
        ("CartPole-v1: {n_timesteps: 64, env_kwargs: {wheels: 3}}", "wheels"),
        ("CartPole-v1: {n_timesteps: 64, env_wrapper: gymnasium.wrappers.GrayscaleObservation}", ""),
        ("CartPole-v1: {n_timesteps: 64, policy_kwargs: {net_architecture: [8]}}", "net_architecture"),
        ("CartPole-v1: {n_timesteps: 64, policy_kwargs: {activation_fn: relu}}", "'relu' must be a class, such as nn"),
        ("CartPole-v1: {n_timesteps: 64, policy_kwargs: \"open('x')\"}", "not allowed"),
    ],
)
def test_mistake_in_the_settings_file(folder, check_one_line_error, text, message):
    (folder / "settings.yml").write_text(text)
    check_one_line_error([*TRAIN, "-conf", "settings.yml"], message)
    assert list(folder.glob("logs/ppo_plus/*")) == []


def test_tracking_without_its_package(folder, check_one_line_error, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    check_one_line_error([*TRAIN, "--track"], "--track pip install wandb tensorboard: no wandb")


def test_tracking_takes_its_project_from_the_environment(folder, monkeypatch):
    started = {}
    stand_in = ModuleType("wandb")
    stand_in.__spec__ = ModuleSpec("wandb", None)
    stand_in.init = lambda **kwargs: started.update(kwargs)
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    main([*TRAIN, "-n", "64", "--seed", "3", "--track", "--no-progress", "-params", "n_steps:64"])
    assert re.fullmatch(r"CartPole-v1__ppo_plus__3__\d+", started["name"])
    assert (started["project"], started["sync_tensorboard"], started["config"]["seed"]) == ("mine", True, 3)
    assert list(folder.glob(f"runs/{started['name']}/CartPole-v1/*/events*"))


def test_an_environment_that_cannot_draw(folder, check_one_line_error, monkeypatch, capsys):
    """Most find out when they are to draw, not when they are made."""
    # Another test of this process may have imported it; then it would need a screen.
    monkeypatch.delitem(sys.modules, "mujoco", raising=False)

    class Undrawable(CartPoleEnv):
        def render(self):
            raise gym.error.DependencyNotInstalled('pygame is not installed, run `pip install "gymnasium[toy]"`')

    gym.register("Undrawable-v0", Undrawable, max_episode_steps=5)
    try:
        options = ["--env", "Undrawable-v0", "--device", "cpu"]
        main(["train", *options, "-n", "64", "-params", "n_steps:64", "--no-progress"])
        capsys.readouterr()
        for command in ("record", "enjoy"):
            check_one_line_error([command, *options], "pygame is not installed")
    finally:
        gym.registry.pop("Undrawable-v0")


def test_an_error_in_training_shows_its_traceback(folder, monkeypatch):
    def fail(_run):
        raise ValueError("a bug")

    monkeypatch.setattr("ppo_plus.zoo.train.train", fail)
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ValueError, match="a bug"):
        main(TRAIN)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"ppo-plus {__version__}\n"


def subcommands():
    """The parser of each subcommand."""
    return next(action for action in make_parser()._actions if isinstance(action.choices, dict)).choices


def test_every_argument_is_explained():
    assert {"train", "enjoy", "record", "plot"} <= set(subcommands())
    for name, parser in subcommands().items():
        text = parser.format_help()
        for action in parser._actions:
            if action.help == argparse.SUPPRESS:
                continue
            assert action.help, f"{name} {action.option_strings}"
            assert all(option in text for option in action.option_strings)


def test_rl_zoo3s_flags_are_there():
    flags = (
        "--algo --env -n --n-timesteps --seed --n-envs -params --hyperparams -conf --conf-file --eval-freq "
        "--eval-episodes --n-eval-envs --save-freq -tb --tensorboard-log -i --trained-agent --vec-env --device -f "
        "--log-folder -P --progress --track --env-kwargs --eval-env-kwargs --gym-packages --verbose --num-threads"
    )
    assert set(flags.split()) <= set(subcommands()["train"]._option_string_actions)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train --env CartPole-v1 --log-interval 10", "--log-interval"),
        ("enjoy --env CartPole-v1 --norm-reward", "--norm-reward"),
        ("tune --algo sac --env CartPole-v1", "invalid choice: 'sac'"),
        ("tune --algo ppo --env Foo-v0", "Environment `Foo` doesn't exist"),
        ("tune --env CartPole-v1 --sampler auto", "sampler='auto' must be one of tpe, random, gp"),
        ("tune --env CartPole-v1 --pruner halving", "pruner='halving' must be one of median, hyperband, none"),
    ],
)
def test_flags_and_values_that_do_not_exist(folder, check_one_line_error, arguments, message):
    check_one_line_error(arguments.split(), message)


def test_rl_zoo3s_algorithm(folder, capsys):
    main([*TRAIN, "--algo", "ppo", "-n", "64", "-params", "n_steps:64", "--eval-freq", "64", "--no-progress"])
    main("enjoy --algo ppo --env CartPole-v1 --no-render -n 600".split())
    main("plot --algo ppo -e CartPole-v1".split())
    assert (folder / "logs" / "ppo_plus" / "CartPole-v1_1").is_dir()


def test_a_gpu_that_is_not_there(folder, check_one_line_error):
    if th.cuda.is_available():
        pytest.skip("it is there")
    message = "--device cuda: torch finds none here ("
    check_one_line_error(["train", "--env", "CartPole-v1", "--device", "cuda"], message)
    check_one_line_error(["train", "--env", "CartPole-v1", "--device", "cuda", "--dry-run"], message)


def test_plot_leaves_out_missing_runs(folder, capsys):
    main([*TRAIN, "-n", "64", "-params", "n_steps:64", "--eval-freq", "64", "--no-progress"])
    capsys.readouterr()
    main(["plot", "-e", "CartPole-v1", "Pendulum-v1", "-f", "logs", "nowhere"])
    shown = capsys.readouterr()
    assert shown.out.count("1 run") == 1 and (folder / "curves.png").is_file()
    assert [line.partition(" with ")[0] for line in shown.err.splitlines()] == [
        "left out: nowhere/ppo_plus has no run of CartPole-v1",
        "left out: logs/ppo_plus has no run of Pendulum-v1",
        "left out: nowhere/ppo_plus has no run of Pendulum-v1",
    ]


HEAVY = {"torch", "stable_baselines3", "matplotlib", "optuna", "scipy"}


#: Help, and mistakes that are told before anything is built.
QUICK = """--help
--version
train --help
tune --help
fly
train
train --env CartPol-v1
train --env CartPole-v1 -conf nope.yml
train --env CartPole-v1 -params policy_kwargs:f(x)
train --env CartPole-v1 -i nope.zip
train --env CartPole-v1 -n many
enjoy --env CartPole-v1
record --env CartPole-v1 --exp-id 3
plot -e CartPole-v1
plot -e CartPole-v1 -o x.txt"""


def test_help_and_most_mistakes_load_nothing_slow(tmp_path):
    code = """
import sys
from ppo_plus.zoo.cli import main
for arguments in sys.argv[1].splitlines():
    try:
        main(arguments.split())
    except SystemExit:
        loaded = {"torch", "stable_baselines3", "matplotlib", "optuna", "scipy"} & set(sys.modules)
        assert not loaded, (arguments, loaded)
    else:
        raise AssertionError(arguments)
"""
    done = run(["-c", code, QUICK], tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_as_a_module(tmp_path):
    done = run(["-m", "ppo_plus", "--version"], tmp_path, capture_output=True)
    assert done.stdout == f"ppo-plus {__version__}\n"


def test_errors_are_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        Parser(prog="ppo-plus train").error("n_steps=0\n  must be  at least 1")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "ppo-plus train: error: n_steps=0 must be at least 1\n"


def test_kinds_of_vector_environments():
    assert train_command.VEC_ENVS == (*envs.VEC_ENVS, *envs.BATCHED, "auto")


def test_the_package_does_not_load_the_zoo(tmp_path):
    code = "import sys, ppo_plus; sys.exit(any(name.startswith('ppo_plus.zoo') for name in sys.modules))"
    assert run(["-c", code], tmp_path).returncode == 0
