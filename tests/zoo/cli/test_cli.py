"""The command line, as a user runs it."""

import argparse
import re
import runpy
import shlex
import sys
import traceback
from pathlib import Path

import gymnasium as gym
import pytest
import yaml
from command_line import ROOT, TRAIN, run, subcommands

from ppo_plus import __version__
from ppo_plus.saving.format import names
from ppo_plus.zoo.cli import main
from ppo_plus.zoo.installation import command


@pytest.mark.slow
def test_scripts(folder, monkeypatch, capsys):
    """Train, enjoy, record and plot, one after the other."""
    monkeypatch.setattr("ppo_plus.zoo.cli.experiments.has_screen", lambda: False)

    def script(name, *arguments):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        runpy.run_path(str(ROOT / "scripts" / f"{name}.py"), run_name="__main__")
        return capsys.readouterr()

    monkeypatch.setattr("ppo_plus.zoo.callbacks.LAST_EPISODES", 1)
    shortly = ["--eval-freq", "500", "--eval-episodes", "1", "-params", "n_steps:64", "n_epochs:1"]
    done = script("train", "--env", "CartPole-v1", "-n", "1e3", "-f", "runs", *shortly)
    assert done.out.startswith("CartPole-v1: mean return ")
    assert re.match(r"CartPole-v1: training for 1,000 timesteps, seed \d+; Ctrl-C ends it early", done.err)
    run_folder = folder / "runs" / "ppo_plus" / "CartPole-v1_1"
    played = command("record", "--env", "CartPole-v1", "-f", run_folder.relative_to(folder))
    assert done.out.endswith(f": {played}\n")
    progress = [line for line in done.err.splitlines() if "/1.00k [" in line]
    assert len(progress) >= 8 and progress[-1].startswith("100%")
    assert done.err.count("evaluation after") == 2
    assert (run_folder / "learning_curve.png").is_file()
    done = script("enjoy", "--env", "CartPole-v1", "-f", "runs", "--no-render", "-n", "600", "--load-best")
    assert "episode 1: return " in done.out and "mean return " in done.out
    done = script("record", "--env", "CartPole-v1", "-f", "runs", "-n", "5")
    assert Path(done.out.strip()).samefile(run_folder / "CartPole-v1.gif")
    done = script("plot", "-e", "CartPole-v1", "-f", "runs", "-o", "curves.svg")
    assert ", 1 run\n" in done.out and (folder / "curves.svg").is_file()


@pytest.fixture
def my_envs(folder, monkeypatch):
    """A package in the working folder, with environments and a wrapper."""
    (folder / "my_envs").mkdir()
    (folder / "my_envs" / "__init__.py").touch()
    (folder / "my_envs" / "all.py").write_text(MY_ENVS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in gym.registry if name.startswith("Mine")]:
        gym.registry.pop(name)
    for name in ("my_envs", "my_envs.all"):
        sys.modules.pop(name, None)


MY_ENVS = """
import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

class Wrapper(gym.Wrapper):
    pass

class Named(CartPoleEnv):
    def __init__(self, size=1, image=False, **kwargs):
        assert size, "bad size"
        super().__init__(**kwargs)
        self.observation_space = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8) if image else (
            gym.spaces.Dict(a=self.observation_space)
        )

    def reset(self, **kwargs):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}

gym.register("Mine-v0", CartPoleEnv, max_episode_steps=5)
gym.register("Mine-Dict-v0", Named, max_episode_steps=5)
gym.register("Mine-Image-v0", Named, max_episode_steps=5, kwargs={"image": True})
"""
SHORT = "-n 64 --seed 0 --no-progress --eval-freq -1 -params n_steps:64 compile:False".split()


def test_packages_that_register_environments(folder, my_envs, check_one_line_error, capsys):
    """All commands allow the same of a package, of which one module is named, and ask for what a run needs."""
    options = ["--env", "Mine-v0", "--gym-packages", "my_envs.all"]
    main(["train", *options, *SHORT, "env_wrapper:my_envs.all.Wrapper"])
    shown = capsys.readouterr().out
    assert "Mine-v0: mean return 5.00" in shown and shown.strip().endswith("--gym-packages my_envs.all")
    main(["enjoy", *options, "--no-render", "-n", "9"])
    assert "episode 1: return 5.00, length 5" in capsys.readouterr().out
    run = "logs/ppo_plus/Mine-v0_1"
    for line in ("enjoy --no-render --env Mine-v0", "record --env Mine-v0", f"export {run}", f"train --resume {run}"):
        check_one_line_error(line.split(), f"{run} imports packages of yours: add --gym-packages my_envs.all")
    main("enjoy --env Mine-v0 --no-render -n 9 --trust-model".split())
    assert "length 5" in capsys.readouterr().out


def test_networks_of_an_installed_package(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "site-packages").mkdir()
    code = (
        "from stable_baselines3.common.torch_layers import FlattenExtractor\n\nclass Net(FlattenExtractor):\n    pass\n"
    )
    (tmp_path / "site-packages" / "my_nets.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    options = "--env CartPole-v1 --gym-packages my_nets".split()
    main(["train", *options, *SHORT, "policy_kwargs:dict(features_extractor_class=my_nets.Net)"])
    monkeypatch.setattr(names, "_registered", {})  # as in another process
    main(["enjoy", *options, "--no-render", "-n", "99"])
    assert "episode 1: return" in capsys.readouterr().out


def test_a_module_before_the_colon_is_a_package_that_is_named(my_envs, check_one_line_error, capsys):
    main(["train", "--env", "my_envs.all:Mine-v0", *SHORT, "env_wrapper:my_envs.all.Wrapper"])
    main("enjoy --env my_envs.all:Mine-v0 --no-render -n 9".split())
    assert "length 5" in capsys.readouterr().out
    check_one_line_error(["export", "logs/ppo_plus/my_envs.all-Mine-v0_1"], "add --gym-packages my_envs.all")


@pytest.mark.parametrize("kind", ["pettingzoo", "selfplay"])
def test_a_package_that_a_game_lacks_is_named(folder, kind, monkeypatch, check_one_line_error):
    """Also by a module of the current folder, of which the traceback is shown, as of all code of the user."""
    pytest.importorskip("pettingzoo")
    monkeypatch.setitem(sys.modules, "chess", None)
    message = "pip install chess, which the game needs"
    check_one_line_error(["train", "--env", f"{kind}:pettingzoo.classic.chess_v6"], message)
    (folder / "needy_game_of_shell.py").write_text("import chess")
    with pytest.raises(ModuleNotFoundError, match=message):
        main(["train", "--env", f"{kind}:needy_game_of_shell"])


def test_games_of_pettingzoo_are_no_packages_of_the_user(folder, capsys):
    pytest.importorskip("pettingzoo")
    game = "selfplay:pettingzoo.classic.tictactoe_v3"
    main(["train", "--env", game, "-f", "runs", "-n", "16", "--eval-freq", "-1", "-params", "n_steps:16"])
    assert "--gym-packages" not in capsys.readouterr().out
    main(["export", "runs/ppo_plus/selfplay-pettingzoo.classic.tictactoe_v3_1", "-o", "policy.onnx"])
    assert "acts as predict does" in capsys.readouterr().out
    assert {path.suffix for path in folder.glob("policy.*")} == {".onnx", ".pt2", ".json"}


@pytest.mark.parametrize(("kind", "policy"), [("Dict", "MultiInputPolicy"), ("Image", "CnnPolicy")])
def test_the_default_policy_fits_the_observations(my_envs, capsys, kind, policy):
    which = ["--env", f"Mine-{kind}-v0", "--gym-packages", "my_envs.all", "-n", "900", "--env-kwargs", "size:3"]
    which += ["-params", "env_wrapper:{'gymnasium.wrappers.TimeLimit': dict(max_episode_steps=9)}"]
    main(["train", *which, "--dry-run"])
    shown = capsys.readouterr()
    # The same problem for the tuner.
    assert f" tune {shlex.join(which)}\n" in shown.err
    assert "training with the recommended ones\n" in shown.err and f"policy: {policy}" in shown.err
    assert yaml.safe_load(shown.out)[f"Mine-{kind}-v0"]["policy"] == policy


@pytest.mark.parametrize(
    ("arguments", "line", "error"),
    [
        (["--env", "Mine-Dict-v0", "--env-kwargs", "size:0"], 'assert size, "bad size"', AssertionError),
        (["--env", "Mine-v0", "--gym-packages", "broken"], "import no_such_module", ImportError),
        (
            ["--env", "Mine-v0", "-params", "policy_kwargs:dict(features_extractor_class=broken.Extractor)"],
            "import no_such_module",
            ValueError,
        ),
    ],
)
def test_an_error_in_the_users_code_is_pythons_to_show(folder, my_envs, arguments, line, error):
    (folder / "broken.py").write_text("import os\nimport no_such_module\n")
    with pytest.raises(error) as raised:
        main(["train", "--trust-config", "--gym-packages", "my_envs.all", *arguments])
    assert f"    {line}\n" in "".join(traceback.format_exception(raised.value))


def test_another_error_shows_its_traceback_on_demand(folder, check_one_line_error):
    arguments = [*TRAIN, "-params", "gamma:high"]
    check_one_line_error(arguments, "gamma='high' must be a number")
    with pytest.raises(TypeError, match="gamma='high'"):
        main([*arguments, "--traceback"])


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train --env CartPole-v1 --timesteps 100", "unrecognized arguments: --timesteps 100"),
        ("export x --deterministc", "unrecognized arguments: --deterministc"),
        ("train CartPole-v1", "unrecognized arguments: CartPole-v1 (see ppo-plus train --help)"),
        ("fly", "fly"),
        ("", "the following arguments are required: COMMAND"),
    ],
)
def test_a_misspelled_option_is_one_line(folder, check_one_line_error, command, message):
    check_one_line_error(command.split(), message)


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
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
    """Runs of `train --algo ppo` are ours, and the other commands find them."""
    main([*TRAIN, "--algo", "ppo", "-n", "64", "-params", "n_steps:64", "n_envs:1", "--seed", "0", "--no-progress"])
    assert (folder / "logs" / "ppo_plus" / "CartPole-v1_1").is_dir()
    main("enjoy --algo ppo --env CartPole-v1 --no-render -n 9".split())
    main("plot --algo ppo -e CartPole-v1 -y train".split())


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
train --env CartPole-v1 -n many
enjoy --env CartPole-v1
record --env CartPole-v1 --exp-id 3
plot -e CartPole-v1"""


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
