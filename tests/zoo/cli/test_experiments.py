"""``ppo-plus train``, ``zoo`` and ``tune``."""

import errno
import inspect
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import gymnasium as gym
import pytest
import yaml
from command_line import ROOT, TRAIN, environment, run, subcommands
from envs import ACTIONS, IMAGE, RandomEnv
from parametrization import sample

from ppo_plus import PPO_Plus, Refused
from ppo_plus.settings import Settings
from ppo_plus.zoo.cli import main
from ppo_plus.zoo.cli.experiments import _print_measured
from ppo_plus.zoo.experiment import load_experiment
from ppo_plus.zoo.interrupts import SIGNALS

NAMES = [*inspect.signature(Settings).parameters]
_CHECKPOINTS = "stable_baselines3.common.callbacks.CheckpointCallback"


@pytest.mark.slow
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
    assert re.search(
        r"^resume from [\d,]+ timesteps: .* train --resume logs/ppo_plus/CartPole-v1_1$", stdout, re.MULTILINE
    )
    assert PPO_Plus.load(folder / "CartPole-v1.zip").num_timesteps > 0
    assert (folder / "CartPole-v1_vecnormalize.zip").is_file()


@pytest.mark.parametrize("number", SIGNALS)
def test_an_interrupt_lost_in_other_code_still_ends_training(folder, handlers, loses_interrupt, number):
    loses_interrupt(number)
    with pytest.raises(SystemExit) as stop:
        main([*TRAIN, "-n", "2048", "--eval-freq", "-1", "--no-progress", "-params", "n_steps:128"])
    assert stop.value.code == 128 + number
    assert PPO_Plus.load(folder / "logs/ppo_plus/CartPole-v1_1/CartPole-v1.zip").num_timesteps < 2048


def test_ctrl_c_before_any_work_is_one_line(monkeypatch, capsys):
    def interrupt(_args):
        raise KeyboardInterrupt

    monkeypatch.setattr("ppo_plus.zoo.cli.experiments.make_experiment", interrupt)
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
    assert f"training with the entry 'default' of {path}, and the policy is MlpPolicy" in captured.err
    gym.register("Pictures-v0", lambda: RandomEnv(ACTIONS["discrete"], IMAGE))
    path.write_text("default: {n_timesteps: 64, policy: MlpPolicy}")
    assert dry_run(capsys, "-conf", str(path), "--env", "Pictures-v0")["Pictures-v0"]["policy"] == "MlpPolicy"
    assert (folder / "ppo_plus" / "CartPole-v1_1" / "CartPole-v1" / "vecnormalize.pkl").is_file()


def test_atari_games_that_skip_frames_themselves_are_named(capsys):
    """The wrappers of the entry skip frames, too."""
    pytest.importorskip("ale_py", reason="ale-py is not installed")
    said = "skips frames itself"
    for env_kwargs in ([], ["--env-kwargs", "frameskip:1"]):
        main(["train", "--env", "ALE/Pong-v5", "--dry-run", "--n-envs", "1", "--eval-freq", "-1", *env_kwargs])
        assert (said in capsys.readouterr().err) == (not env_kwargs)


def dry_run(capsys, *arguments):
    main([*TRAIN, "--dry-run", "--n-envs", "1", *arguments])
    return yaml.safe_load(capsys.readouterr().out)


def test_dry_run_prints_the_resolved_experiment_and_does_nothing(folder, capsys):
    words = "-n 1e3 --n-envs 2 --seed 5 --vec-env dummy --env-kwargs sutton_barto_reward:True --num-threads 2"
    words += " --eval-freq 7e3 --save-freq -5 -tb tb --eval-env-kwargs sutton_barto_reward:False"
    words += " -params learning_rate:lin_1e-3 gamma:0.5"
    shown = dry_run(capsys, *words.split(), "policy_kwargs:dict(net_arch=[4], activation_fn=nn.ReLU)")
    settings = {"n_timesteps": 1000, "n_envs": 2, "gamma": 0.5, "learning_rate": "lin_1e-3", "n_steps": 256}
    settings |= {"policy_kwargs": "dict(net_arch=[4], activation_fn=nn.ReLU)", "n_threads": 2}
    settings |= {"env_kwargs": {"sutton_barto_reward": True}}
    assert shown["CartPole-v1"].items() >= settings.items()
    run = {"seed": 5, "vec_env": "dummy", "eval_freq": 7000, "save_freq": 0, "tensorboard_log": "tb"}
    assert shown["run"].items() >= {**run, "eval_env_kwargs": {"sutton_barto_reward": False}}.items()
    assert list(folder.iterdir()) == []


def test_a_dry_run_prints_a_settings_file(folder, capsys):
    """Of one entry, or with what a run leaves: its settings alone."""
    main([*TRAIN, "--dry-run", "--n-envs", "1", "--seed", "1", "-params", "gamma:0.5"])
    (folder / "mine.yml").write_text(printed := capsys.readouterr().out)
    shown = dry_run(capsys, "-conf", "mine.yml", "--seed", "1")
    assert shown == yaml.safe_load(printed) and shown["CartPole-v1"]["gamma"] == 0.5
    (folder / "config.yml").write_text(yaml.safe_dump(shown["CartPole-v1"]))
    assert dry_run(capsys, "-conf", "config.yml", "--seed", "1") == shown


def test_a_tracked_run_logs_to_the_given_folder(folder, capsys, monkeypatch):
    monkeypatch.setattr("ppo_plus.zoo.cli.experiments.require_installed", lambda package, needed_for: None)
    assert dry_run(capsys, "--track", "-tb", "mine")["run"]["tensorboard_log"] == "mine"
    assert dry_run(capsys, "--track")["run"]["tensorboard_log"].startswith("runs/CartPole-v1__")


@pytest.mark.parametrize(("rank", "options", "said"), [("0", [], 1), ("1", [], 0), ("0", ["--processes", "2"], 0)])
def test_several_processes_print_the_settings_once(rank, options, said, folder, capsys, monkeypatch):
    """The first, or with ``--processes`` the command that starts them."""
    for name, value in {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("ppo_plus.distributed.torchrun.join", lambda _: SimpleNamespace(lead=lambda seed: seed))
    (folder / "mine.yml").write_text("default: {n_timesteps: 64}")
    main([*TRAIN, "--dry-run", "-conf", "mine.yml", *options])
    assert capsys.readouterr().err.count("training with the entry 'default'") == said


def test_a_package_that_logs_need_is_named_before_anything_begins(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(SystemExit) as stop:
        main([*TRAIN, "-tb", "logs"])
    assert stop.value.code == 2 and "-tb" in capsys.readouterr().err and not list(folder.iterdir())


def test_without_a_seed_a_random_one_is_recorded(folder, capsys):
    seeds = {dry_run(capsys)["run"]["seed"] for _ in range(3)} | {dry_run(capsys, "--seed", "-1")["run"]["seed"]}
    assert len(seeds) == 4 and min(seeds) >= 0
    assert dry_run(capsys, "--seed", "0")["run"]["seed"] == 0


def test_evaluations_may_sample_actions(folder, capsys):
    found = [dry_run(capsys, *words)["run"]["deterministic"] for words in ([], ["--stochastic"], ["--deterministic"])]
    assert found == [None, False, True]
    assert not load_experiment("CartPole-v1", deterministic=False).deterministic_eval


def test_the_zoo_and_the_measured_returns(capsys):
    main(["zoo"])
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["Acrobot-v1"].startswith("-67.2 [-68.1, -66.1] (10 seeds) after 1,003,520 steps, ")
    assert lines["CarRacing-v3/lstm"] == "not measured" and "default" not in lines
    _print_measured(load_experiment("Acrobot-v1", seed=7), None)
    _print_measured(load_experiment("gymnasium:Acrobot-v1", seed=7), None)
    said = f"earlier runs with these settings reached {lines['Acrobot-v1']}; one run can end lower\n"
    assert capsys.readouterr().out == said * 2
    # Of other settings, of fewer steps and of what was not measured, nothing is known.
    _print_measured(load_experiment("Acrobot-v1", overrides={"n_timesteps": 50_000}), None)
    _print_measured(load_experiment("CarRacing-v3", variant="lstm"), "lstm")
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_a_model_without_an_entry_is_trained_further_with_what_it_is_built_with(folder, capsys):
    """Recommended settings are for new models."""
    train = ["train", "--env", "Taxi-v4", "-n", "256", "--no-progress", "--eval-freq", "-1"]
    main([*train, "--variant", "sb3", "-params", "n_steps:128"])
    main([*train, "-i", "logs/ppo_plus/Taxi-v4_1/Taxi-v4.zip"])
    assert (folder / "logs/ppo_plus/Taxi-v4_2/Taxi-v4.zip").is_file()
    assert "recommended ones" in capsys.readouterr().err


@pytest.mark.slow
def test_training_a_saved_model_further(folder, monkeypatch):
    printed = []
    monkeypatch.setattr("ppo_plus.zoo.cli.experiments._print_measured", lambda *args: printed.append(args))
    short = ["-n", "64", "--no-progress", "-params", "n_steps:8", "n_epochs:1", "batch_size:64"]
    main([*TRAIN, *short])
    assert len(printed) == 1
    main([*TRAIN, *short, "-i", "logs/ppo_plus/CartPole-v1_1/CartPole-v1.zip"])
    assert len(printed) == 1  # what was reached from scratch
    assert (folder / "logs/ppo_plus/CartPole-v1_2/CartPole-v1.zip").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "CartPol-v1"], "Did you mean: `CartPole`"),
        (["--env", "Foo-v0"], "Environment `Foo` doesn't exist"),
        (["--env", "CartPole"], "No registered env with id: CartPole"),
        (["--env", "no_such_module:Foo-v0"], "no_such_module"),
        (["--env", ""], "environment"),
        (["--env", "CartPole-v1", "-n", "many"], "positive whole number, not 'many'"),
        (["--env", "CartPole-v1", "--seed", str(2**32)], "must be at least 0 and at most 4294967295"),
        (["--env", "CartPole-v1", "--device", "toaster"], "device='toaster' is not known to torch"),
        (["--env", "CartPole-v1", "-conf", "nope.yml"], "No such file or directory: 'nope.yml'"),
        (["--env", "CartPole-v1", "-f", __file__], "irectory"),
        (["--env", "CartPole-v1", "-params", "normalize:dict(clip=5.0)"], "unexpected keyword argument 'clip'"),
        (["--env", "CartPole-v1", "--variant", "nope"], "variants of CartPole-v1: sb3, rl_zoo3, gSDE"),
        (["--env", "CartPole-v1", "--gym-packages", "no_such_package"], "no_such_package"),
        (["--env", "CartPole-v1", "-params", "lr:1e-3"], "error: unknown key 'lr': did you mean 'learning_rate'?"),
        (["--env", "CartPole-v1", "--env-kwargs", "wheels:3"], "wheels"),
        (["--env", "CartPole-v1", "--env-kwargs", "wheels"], "'wheels' must be KEY:VALUE"),
        (["--env", "CartPole-v1", "-tb", "tb", "-params", "gamma:high"], "gamma='high' must be a number"),
        (["--env", "CartPole-v1", "--processes", "2", "-params", "gamma:high"], "gamma='high' must be a number"),
        (["--env", "CartPole-v1", "--processes", "3"], "n_envs=8 cannot be divided among 3 processes"),
        (["--env", "CartPole-v1", "--eval-env-kwargs", "wheels:3", "--dry-run"], "wheels"),
        (["--env", "CartPole-v1", "--algo", "sac"], "invalid choice: 'sac'"),
        (
            ["--env", "CartPole-v1", "-n", "9", "-params", "n_timesteps:5"],
            "-params n_timesteps: another option gives it",
        ),
        (["--env", "CartPole-v1", "--env-kwargs", "file:/x.xml"], """write text in quotes, file:"'text'\""""),
        (["--env", "CartPole-v1", "-i", "nope.zip"], "nope.zip"),
        (["--env", "CartPole-v1", "-i", __file__], ""),
        (
            ["--env", "CartPole-v1", "-i", __file__, "-params", "policy:CnnPolicy", "policy_kwargs:dict(net_arch=[8])"],
            "-i keeps the networks of its model: leave out policy and policy_kwargs of -params",
        ),
        (["--env", "CartPole-v1", "--log-interval", "10"], "--log-interval"),
        ([], "--env"),
        (["--env", "CartPole-v1", "--vec-env", "envpool"], "vec_env='envpool' must be one of 'dummy', 'subproc'"),
        (["--env", "CartPole-v1", "--env-timeout", "0"], "timeout=0.0 must be a number in (0, 1e+06]"),
        (["--resume", "x", "-n", "9"], "leave out --n-timesteps; a finished run's model is trained further with -i"),
        (["--env", "CartPole-v1", "-params", "streams:Cost('x')"], "missing 1 required keyword-only argument: 'limit'"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(folder, check_one_line_error, arguments, message):
    check_one_line_error(["train", *arguments], message)
    assert not [path.name for path in folder.rglob("*") if path.name not in ("logs", "ppo_plus")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("default: [", "not valid YAML"),
        ("CartPole-v1: {n_timesteps: 64, gama: 1}", "unknown key 'gama': did you mean 'gamma'?"),
        ("CartPole-v1: {n_timesteps: 64, policy: Nope}", "Nope"),
        (
            f"CartPole-v1: {{n_timesteps: 64, callback: {_CHECKPOINTS}}}",
            "missing 2 required positional arguments: 'save_freq'",
        ),
        ("CartPole-v1: {n_timesteps: 64, env_wrapper: gymnasium.wrappers.TimeLimit}", "'max_episode_steps'"),
        ("CartPole-v1: {n_timesteps: 64, learning_rate: lin_x}", "lin_x"),
        ('CartPole-v1: {n_timesteps: 64, n_steps: "64"}', "n_steps='64' must be an integer"),
        ("CartPole-v1: {n_timesteps: 64, env_wrapper: gymnasium.wrappers.GrayscaleObservation}", ""),
        (
            "CartPole-v1: {n_timesteps: 64, policy_kwargs: {activation_fn: relu}}",
            "'relu' must be a class, such as torch.nn.ReLU",
        ),
    ],
)
def test_mistake_in_the_settings_file(folder, check_one_line_error, text, message):
    (folder / "settings.yml").write_text(text)
    check_one_line_error([*TRAIN, "-conf", "settings.yml"], message)
    assert list(folder.glob("logs/ppo_plus/*")) == []


@pytest.mark.exhaustive
def test_tracking_with_weights_and_biases_offline(tmp_path, monkeypatch):
    """In a separate process: trackers finish when their process ends."""
    pytest.importorskip("wandb", reason="needs wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    options = "-n 192 --seed 3 --no-progress -params n_steps:64 n_envs:1 learning_rate:lin_1e-3 --track"
    done = run(["-m", "ppo_plus", *TRAIN, *options.split()], tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    words = "mine CartPole-v1__ppo_plus__3__ CartPole-v1.zip lin_1e-3 tfevents rollout/ep_rew_mean".split()
    assert [word for word in [*NAMES, *words] if word.encode() not in log.read_bytes()] == []
    assert list(tmp_path.glob("runs/CartPole-v1__ppo_plus__3__*/CartPole-v1/*/events*"))


@pytest.mark.exhaustive
def test_a_tracker_that_cannot_be_reached_is_one_line(folder, monkeypatch, check_one_line_error):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "online")
    for name in ("HOME", "NETRC", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(folder / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    message = "Log in (wandb login), or set WANDB_MODE=offline"
    check_one_line_error([*TRAIN, "-n", "64", "--no-progress", "--track"], message)
    assert not list(folder.glob("logs/ppo_plus/*"))


@pytest.mark.exhaustive
def test_mlflow_as_in_the_docs(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address := f"sqlite:///{tmp_path}/mlflow.db")
    page = (ROOT / "docs" / "mlflow.md").read_text("utf-8")
    code = re.search(r"```text\n(.*?)```", page, re.DOTALL)[1].replace("100_000", "4_096")
    done = run(["-c", code], tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    (logged,) = (client := mlflow.MlflowClient(address)).search_runs(["0"])
    assert logged.data.params == {"n_steps": "2048", "gamma": "0.99"}
    steps = [metric.step for metric in client.get_metric_history(logged.info.run_id, "rollout/ep_rew_mean")]
    assert steps == [2048, 4096] and [file.path for file in client.list_artifacts(logged.info.run_id)] == ["model.zip"]


def test_an_error_in_training_shows_its_traceback(folder, monkeypatch):
    def fail(_run):
        raise ValueError("a bug")

    monkeypatch.setattr("ppo_plus.zoo.train.train", fail)
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ValueError, match="a bug"):
        main(TRAIN)
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MemoryError("Unable to allocate 8 TiB"), errno.ENOMEM, "Unable to allocate 8 TiB"),
        (MemoryError(), errno.ENOMEM, "MemoryError"),
        (OSError(errno.ENOSPC, "No space left on device"), errno.ENOSPC, "[Errno 28] No space left on device"),
        (Refused("the checkpoint is damaged"), 1, "the checkpoint is damaged"),
    ],
)
def test_the_exit_code_says_why_training_ended(folder, monkeypatch, capsys, error, code, line):
    def fail(_run):
        raise error

    monkeypatch.setattr("ppo_plus.zoo.train.train", fail)
    with pytest.raises(SystemExit) as stop:
        main(TRAIN)
    assert stop.value.code == code
    assert capsys.readouterr().err.splitlines()[-1] == f"ppo-plus: error: {line}"


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
        (["tune"], "--env"),
        (["tune", "--env", "CartPole-v1", "--seed", "-1"], "--seed -1: a study with a random seed cannot be resumed"),
        (["train", "--env", "CartPole-v1", "-i", "."], "there is no model .: give a file like CartPole-v1.zip"),
        (["tune", "--env", "CartPole-v1", "-params", "policy:NopePolicy"], "NopePolicy unknown"),
        (
            ["tune", "--env", "CartPole-v1", "--vec-env", "envpool"],
            "error: vec_env='envpool' must be one of 'dummy', 's",
        ),
        ("tune --algo sac --env CartPole-v1".split(), "invalid choice: 'sac'"),
        ("tune --algo ppo --env Foo-v0".split(), "Environment `Foo` doesn't exist"),
        ("tune --env CartPole-v1 --sampler auto".split(), "sampler='auto' must be one of 'tpe', 'random', 'gp'"),
        (
            "tune --env CartPole-v1 --pruner halving".split(),
            "pruner='halving' must be one of 'median', 'hyperband', 'none'",
        ),
    ],
)
def test_mistake_in_tune_is_one_line_and_exit_code_2(folder, check_one_line_error, arguments, message):
    check_one_line_error(arguments, message)
