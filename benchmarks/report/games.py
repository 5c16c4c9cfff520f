"""The tables of what ``learning_agents.py`` has found."""

from pathlib import Path
from typing import Any

import numpy as np

from report.markdown import markdown
from report.results import RESULTS, read_lines

FILE = RESULTS / "agents.jsonl"
GAMES = {"tictactoe": "tic-tac-toe", "connect_four": "Connect Four"}
ARMS = {
    "shared": "`PPO_Plus`",
    "central_critic": "`PPO_Plus`, central critic",
    "supersuit": "SuperSuit and SB3's `PPO`",
}


def self_play(file: Path = FILE) -> list[str]:
    """Games that the most likely actions win and lose, in percent, from both seats: the mean over seeds."""
    rows = []
    for task, game in GAMES.items():
        runs = [run for run in read_lines(file) if run["task"] == task]
        minutes = np.mean([run["cpu_seconds"] / 60 for run in runs]) if runs else 0.0
        for name in runs[0]["scores"] if runs else ():
            opponent, seat = name.split(", ")
            of_seeds = [run["scores"][name] for run in runs]
            shares = [f"{100 * np.mean([score[key] for score in of_seeds]):.1f}" for key in ("won", "lost")]
            cost = f"{runs[0]['timesteps']:,} in {minutes:.0f} CPU minutes"
            rows.append([game, cost, str(len(runs)), opponent, seat, *shares])
    return markdown(["game", "steps", "seeds", "against", "seat", "won, %", "lost, %"], rows)


def spread(file: Path = FILE) -> list[str]:
    """The return of an agent of simple_spread, and the cost: mean and range over seeds."""
    rows = []
    for arm, title in ARMS.items():
        runs = [run for run in read_lines(file) if run["task"] == "spread" and run["arm"] == arm]
        if runs:
            returns, seconds = (_with_range(runs, key) for key in ("return", "cpu_seconds"))
            rows.append([title, f"{runs[0]['timesteps']:,}", str(len(runs)), returns, seconds])
    return markdown(["trained with", "rows", "seeds", "return", "CPU s"], rows)


def _with_range(runs: list[dict[str, Any]], key: str) -> str:
    values = [run[key] for run in runs]
    return f"{np.mean(values):.1f} [{min(values):.1f}, {max(values):.1f}]"
