"""The command line, as a user runs it."""

import argparse
import re
import runpy
import sys
from pathlib import Path

import pytest
from command_line import ROOT, TRAIN, run, subcommands

from ppo_plus import __version__
from ppo_plus.zoo.cli import main
from ppo_plus.zoo.installation import command


def test_scripts(folder, monkeypatch, capsys):
    """Train, enjoy, record and plot, one after the other."""

    monkeypatch.setattr("ppo_plus.zoo.cli.experiments.has_screen", lambda: False)

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
    assert done.out.endswith(f": {command('record', '--env', 'CartPole-v1', '-f', 'runs')}\n")
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


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"ppo-plus {__version__}\n"


def test_every_argument_is_explained():
    assert {"train", "enjoy", "record", "plot"} <= set(subcommands())
    for name, parser in subcommands().items():
        text = parser.format_help()
        for action in parser._actions:
            if action.help == argparse.SUPPRESS:
                continue
            assert action.help, f"{name} {action.option_strings}"
            assert all(option in text for option in action.option_strings)


def test_rl_zoo3s_algorithm(folder, capsys):
    main([*TRAIN, "--algo", "ppo", "-n", "64", "-params", "n_steps:64", "--eval-freq", "64", "--no-progress"])
    main("enjoy --algo ppo --env CartPole-v1 --no-render -n 600".split())
    main("plot --algo ppo -e CartPole-v1".split())
    assert (folder / "logs" / "ppo_plus" / "CartPole-v1_1").is_dir()


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


def test_the_package_does_not_load_the_zoo(tmp_path):
    code = "import sys, ppo_plus; sys.exit(any(name.startswith('ppo_plus.zoo') for name in sys.modules))"
    assert run(["-c", code], tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fly"], "fly"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(folder, check_one_line_error, arguments, message):
    check_one_line_error(arguments, message)
