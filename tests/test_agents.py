"""The trained agents in the repository play, and their figures are theirs."""

import json
from pathlib import Path

import gymnasium as gym
import pytest
from parametrization import sample

from ppo_plus.saving.files import file_name
from ppo_plus.zoo.cli import main
from ppo_plus.zoo.hyperparams import read_mapping
from ppo_plus.zoo.runs import ALGO, RunFolder

AGENTS = Path(__file__).parents[1] / "agents"
FIGURES = [json.loads(line) for line in (AGENTS / "agents.jsonl").read_text(encoding="utf-8").splitlines()]


def test_there_is_a_folder_for_each_figure():
    folders = sorted(path.name for path in (AGENTS / ALGO).iterdir())
    assert folders == sorted(f"{file_name(figure['env'])}_1" for figure in FIGURES) and len(folders) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("figure", sample(FIGURES, 6), ids=lambda figure: figure["env"])
def test_an_agent_plays_as_its_figure_says(figure, capsys):
    """Files are small, name the seed, and hold what reaches the return: two episodes within four deviations."""
    folder = RunFolder(AGENTS / ALGO / f"{file_name(figure['env'])}_1", figure["env"])
    assert folder.last_model.stat().st_size <= 400_000
    assert (folder.settings / "command.txt").read_text(encoding="utf-8").strip() == figure["command"]
    assert folder.arguments()["seed"] == figure["seed"] and "n_timesteps" in read_mapping(
        folder.settings / "config.yml"
    )
    if "mujoco" in str(gym.spec(figure["env"]).entry_point):
        pytest.importorskip("mujoco")
    main(["enjoy", "--env", figure["env"], "--agents", str(AGENTS), "--no-render", "-n", "1600", "--n-envs", "2"])
    returns = [
        float(line.split()[3].rstrip(",")) for line in capsys.readouterr().out.splitlines() if "episode " in line
    ]
    assert returns, "no episode ended"
    mean = sum(returns[:2]) / len(returns[:2])
    assert abs(mean - figure["return"]) <= 4 * max(figure["std"], 1.0)
