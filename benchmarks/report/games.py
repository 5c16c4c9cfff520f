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
    """Games won and lost by the most likely actions, in percent, in the first seat and the second, and the ratings of
    snapshots after quarters of training: means over seeds."""
    rows = []
    for task, game in GAMES.items():
        runs = [run for run in read_lines(file) if run["task"] == task]
        lasts = [[run["ratings"][(len(run["ratings"]) - 1) * k // 4][1] for k in (1, 2, 3, 4)] for run in runs]
        for opponent in runs[0]["scores"] if runs else ():
            of_runs = [run["scores"][opponent] for run in runs]
            shares = [100 * np.mean([seats[key] for seats in of_runs], axis=0) for key in ("won", "lost")]
            cells = [" / ".join(f"{share:.1f}" for share in of_seats) for of_seats in shares]
            minutes = np.mean([run["cpu_seconds"] for run in runs]) / 60
            cells.append(", ".join(f"{rating:.0f}" for rating in np.mean(lasts, axis=0)))
            rows.append([game, f"{runs[0]['timesteps']:,}", f"{minutes:.0f}", str(len(runs)), opponent, *cells])
    return markdown(["game", "steps", "CPU minutes", "seeds", "against", "won, %", "lost, %", "ratings"], rows)


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
