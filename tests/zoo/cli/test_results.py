"""``ppo-plus enjoy``, ``record``, ``export`` and ``plot``."""

import os
import sys

import gymnasium as gym
import numpy as np
import pytest
from command_line import TRAIN
from gymnasium.envs.classic_control import CartPoleEnv
from matplotlib.figure import Figure

from ppo_plus.zoo.cli import main


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
        main([*TRAIN, *options, "-n", "64", "-params", "n_steps:64", "--no-progress"])
        capsys.readouterr()
        for command in ("record", "enjoy"):
            check_one_line_error([command, *options], "pygame is not installed")
    finally:
        gym.registry.pop("Undrawable-v0")


def test_the_screen_is_chosen_before_modules_of_the_user_are_imported(folder, monkeypatch):
    """MuJoCo reads the choice when it is imported."""
    (folder / "draws.py").write_text("import os; found = os.environ.get('MUJOCO_GL')")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr("ppo_plus.zoo.cli.results.draw_without_screen", lambda: os.environ.update(MUJOCO_GL="egl"))
    monkeypatch.setenv("MUJOCO_GL", "none")
    with pytest.raises(SystemExit):
        main("record --env CartPole-v1 --exp-id -1 -f . --gym-packages draws".split())
    assert sys.modules.pop("draws").found == "egl"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["enjoy", "--env", "CartPole-v1"], "there is no run of CartPole-v1 in logs"),
        (["enjoy", "--env", "CartPole-v1", "--exp-id", "-1", "-f", "."], "there is no model CartPole-v1.zip"),
        (["record", "--env", "CartPole-v1", "--exp-id", "3"], "there is no run of CartPole-v1"),
        ("enjoy --env CartPole-v1 --norm-reward".split(), "--norm-reward"),
        ("record --env CartPole-v1 --exp-id -1 -o x".split(), "must end in .gif or .mp4"),
        ("record --env CartPole-v1 --exp-id -1 -o x.png".split(), "must end in .gif or .mp4"),
        (["export", "."], "RUN .: not the folder of a run"),
        (["plot", "-e", "CartPole-v1"], "has no run of CartPole-v1"),
        (["plot", "-e", "CartPole-v1", "-o", "curves"], "-o curves: the name must end in .png, .svg or .pdf"),
        (["plot", "-e", "CartPole-v1", "-f", "a", "b", "-l", "c", "c"], "1 labels for 2 folders: give each its own"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(folder, check_one_line_error, arguments, message):
    check_one_line_error(arguments, message)


@pytest.mark.parametrize(("options", "n_labels"), [([], 3), (["-y", "eval"], 1), (["-y", "train"], 1)])
def test_plot_of_a_single_run_shows_all_of_it(folder, monkeypatch, options, n_labels):
    """Evaluations alone, with equal returns, would lie on a separate axis."""
    panels = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: panels.extend(figure.axes))
    path = folder / "logs" / "ppo_plus" / "CartPole-v1_1"
    path.mkdir(parents=True)
    (path / "0.monitor.csv").write_text('#{"t_start": 1.0}\nr,l,t\n10.0,8,0.5\n500.0,8,1.5\n')
    np.savez(path / "evaluations.npz", timesteps=[8, 16], results=[[500.0], [500.0]])
    main(["plot", "-e", "CartPole-v1", *options])
    (axes,) = panels
    assert len(axes.get_legend_handles_labels()[1]) == n_labels
    assert options or axes.get_ylim()[0] < 10
    (path / "evaluations.npz").unlink()
    if not options:
        main(["plot", "-e", "CartPole-v1"])
        assert len(panels) == 2


def test_a_killed_runs_half_written_files(folder, capsys):
    """What is whole is drawn, and the file is named, and each run that is not drawn."""
    whole = '#{"t_start": 1.0}\nr,l,t\n1.0,8,0.5\n2.0,8,1.5\n'
    for number, text in enumerate((f"{whole}3.0,8,2", "", '#{"t_st', whole, f"{whole}3.0,8\n", f"[]\n{whole}")):
        path = folder / "logs" / "ppo_plus" / f"CartPole-v1_{number}"
        path.mkdir(parents=True)
        (path / "0.monitor.csv").write_text(text)
        (path / "evaluations.npz").write_bytes(b"PK\0"[:number])
    np.savez(path / "evaluations.npz", timesteps=[8], results=[[1.0]])
    main("plot -e CartPole-v1 -y train".split())
    shown = capsys.readouterr()
    assert "return 2.00 after 16 timesteps, mean of 2 runs" in shown.out
    left_out = {line.rpartition("CartPole-v1_")[2] for line in shown.err.splitlines()}
    damaged = {f"{i}/0.monitor.csv, which is damaged" for i in (4, 5)}
    empty = {f"{i}: no train returns, or none as late as another run's first" for i in (1, 2, 4, 5)}
    assert left_out == damaged | empty and len(shown.err.splitlines()) == 6
    main("plot -e CartPole-v1".split())
    shown = capsys.readouterr()
    assert "return 1.00 after 8 timesteps, 1 run" in shown.out and shown.err.count("npz, which is damaged") == 5


def test_plot_leaves_out_missing_runs(folder, capsys):
    path = folder / "logs" / "ppo_plus" / "CartPole-v1_1"
    path.mkdir(parents=True)
    np.savez(path / "evaluations.npz", timesteps=[8], results=[[1.0]])
    main(["plot", "-e", "CartPole-v1", "Pendulum-v1", "-f", "logs", "nowhere"])
    shown = capsys.readouterr()
    assert shown.out.count("1 run") == 1 and (folder / "curves.png").is_file()
    assert [line.partition(" with ")[0] for line in shown.err.splitlines()] == [
        "left out: nowhere/ppo_plus has no run of CartPole-v1",
        "left out: logs/ppo_plus has no run of Pendulum-v1",
        "left out: nowhere/ppo_plus has no run of Pendulum-v1",
    ]


def test_labels_are_no_formulas_and_plot_says_where_it_cuts_runs(folder, capsys):
    for number, end in enumerate((1000, 4000), 1):
        path = folder / "logs" / "ppo_plus" / f"CartPole-v1_{number}"
        path.mkdir(parents=True)
        np.savez(path / "evaluations.npz", timesteps=[500, end], results=[[1.0], [2.0]])
    main(["plot", "-e", "CartPole-v1", "-l", label := r"$\bad{$", "-o", "x.svg"])
    result, note, _ = capsys.readouterr().out.splitlines()
    assert result.startswith(f"CartPole-v1, {label}: ") and "after 1,000 timesteps" in result
    assert note == "  (up to the end of the shortest run; the longest has 4,000 timesteps)"
    assert (folder / "x.svg").is_file()
