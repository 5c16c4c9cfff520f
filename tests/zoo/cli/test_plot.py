"""``ppo-plus plot``."""

import re

import numpy as np
import pytest
from command_line import TRAIN

from ppo_plus.zoo.cli import main


def test_evaluations_of_two_runs(folder, capsys):
    for seed in ("1", "2"):
        main([*TRAIN, "-n", "512", "--eval-freq", "256", "--seed", seed])
    main(["plot", "-e", "CartPole-v1", "-l", "mine"])
    assert re.search(
        r"CartPole-v1, mine: .* after 512 timesteps, mean of 2 runs, from worst to best \[", capsys.readouterr().out
    )
    assert (folder / "curves.png").is_file()


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


def test_plot_says_where_it_cuts_runs(folder, capsys):
    for number, end in enumerate((1000, 4000), 1):
        path = folder / "logs" / "ppo_plus" / f"CartPole-v1_{number}"
        path.mkdir(parents=True)
        np.savez(path / "evaluations.npz", timesteps=[500, end], results=[[1.0], [2.0]])
    main(["plot", "-e", "CartPole-v1"])
    result, note, _ = capsys.readouterr().out.splitlines()
    assert "after 1,000 timesteps" in result
    assert note == "  (up to the end of the shortest run; the longest has 4,000 timesteps)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plot", "-e", "CartPole-v1"], "has no run of CartPole-v1"),
        (["plot", "-e", "CartPole-v1", "-o", "curves.txt"], "must end in .png, .svg or .pdf"),
        (["plot", "-e", "CartPole-v1", "-f", "a", "b", "-l", "c"], "1 labels for 2 folders"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(folder, check_one_line_error, arguments, message):
    check_one_line_error(arguments, message)
