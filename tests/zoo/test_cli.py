"""The command line, as a user runs it."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from ppo_plus.zoo.cli import main

ROOT = Path(__file__).parents[2]


def run(arguments, cwd, **options):
    """Run Python in a folder outside the checkout, with the package importable from the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, text=True, timeout=300, **options)


def test_train(tmp_path):
    command = [str(ROOT / "scripts" / "train.py"), "--env", "CartPole-v1", "-n", "2e3", "-f", "runs"]
    done = run(command, tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("CartPole-v1: mean return ")
    progress = [line for line in done.stderr.splitlines() if "of 2000 timesteps" in line]
    assert len(progress) == 10 and progress[-1].startswith("2000 of 2000")
    assert (tmp_path / "runs" / "ppo_plus" / "CartPole-v1_1" / "learning_curve.png").is_file()


def test_progress_bar_on_a_terminal(tmp_path):
    command = ["-c", "from ppo_plus.zoo.cli import main; main()", "train", "--env", "CartPole-v1", "-n", "300"]
    terminal, stdout = pty.openpty()
    done = run(command, tmp_path, stdout=stdout, stderr=subprocess.PIPE)
    shown = os.read(terminal, 100_000).decode()
    os.close(stdout)
    os.close(terminal)
    assert done.returncode == 0, done.stderr
    assert "%" in shown and "mean return" in shown
    assert "timesteps/s" not in done.stderr


def test_settings_file(tmp_path, capsys):
    path = tmp_path / "mine.yml"
    path.write_text("default: {n_timesteps: 64, n_steps: 32, batch_size: 32, normalize: true}")
    main(["train", "--env", "CartPole-v1", "-conf", str(path), "-f", str(tmp_path), "--seed", "1", "--device", "cpu"])
    assert "after 64 timesteps" in capsys.readouterr().out
    assert (tmp_path / "ppo_plus" / "CartPole-v1_1" / "vecnormalize.pkl").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "CartPol-v1"], "Did you mean: `CartPole`"),
        (["--env", "CartPole-v99"], "CartPole"),
        (["--env", "no_such_module:Foo-v0"], "no_such_module"),
        (["--env", ""], "environment"),
        (["--env", "CartPole-v1", "-n", "0"], "positive whole number, not '0'"),
        (["--env", "CartPole-v1", "-n", "many"], "positive whole number, not 'many'"),
        (["--env", "CartPole-v1", "--seed", "x"], "--seed"),
        (["--env", "CartPole-v1", "--seed", "-1"], "eed"),
        (["--env", "CartPole-v1", "--device", "toaster"], "there is no device 'toaster'"),
        (["--env", "CartPole-v1", "-conf", "nope.yml"], "nope.yml"),
        (["--env", "CartPole-v1", "-conf", "."], "directory"),
        (["--env", "CartPole-v1", "-f", __file__], "irectory"),
        (["--env", "CartPole-v1", "--nope"], "--nope"),
        ([], "--env"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    check_one_line_error(arguments, message, capsys)
    assert list(tmp_path.glob("logs/ppo_plus/*")) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("default: [", "no valid YAML"),
        ("default: {n_timesteps: 64, gama: 1}", "unknown key 'gama'; the nearest valid key is 'gamma'"),
        ("default: {n_timesteps: 64, policy: Nope}", "Nope"),
        ("default: {n_timesteps: 64, learning_rate: lin_x}", "lin_x"),
        ("default: {n_timesteps: 64, learning_rate: -1}", "learning_rate"),
        ("default: {n_timesteps: 64, n_epochs: many}", "n_epochs"),
        ("default: {n_timesteps: 64, batch_size: [1]}", "batch_size"),
        ("default: {n_timesteps: 64, gamma: high}", "gamma"),
        ("default: {n_timesteps: 64, env_kwargs: {wheels: 3}}", "wheels"),
        ("default: {n_timesteps: 64, policy_kwargs: {net_architecture: [8]}}", "net_architecture"),
        ("default: {n_timesteps: 64, policy_kwargs: \"open('x')\"}", "not allowed"),
    ],
)
def test_mistake_in_the_settings_file(tmp_path, capsys, text, message):
    path = tmp_path / "settings.yml"
    path.write_text(text)
    check_one_line_error(["--env", "CartPole-v1", "-conf", str(path), "-f", str(tmp_path)], message, capsys)


def check_one_line_error(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", *arguments])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("ppo-plus") and ": error: " in error
    assert error.count("\n") == 1 and error.endswith("\n")
    assert message in error


def test_an_error_in_training_shows_its_traceback(tmp_path, monkeypatch):
    def fail(_run):
        raise ValueError("a bug")

    monkeypatch.setattr("ppo_plus.zoo.cli.train", fail)
    with pytest.raises(ValueError, match="a bug"):
        main(["train", "--env", "CartPole-v1", "-f", str(tmp_path)])


def test_the_package_does_not_load_the_zoo(tmp_path):
    code = "import sys, ppo_plus; sys.exit(any(name.startswith('ppo_plus.zoo') for name in sys.modules))"
    assert run(["-c", code], tmp_path).returncode == 0
