"""What each of the recommended settings changes, over runs that differ in several settings at once.

A score is 0 at random actions and 1 near the best return; a linear model has a mean for each task and an effect for
each setting (ridge of 0.2). Five tasks do not count: on three nearly all runs have a score of 1, on Asterix
nearly all of 0, and on MountainCarContinuous they see the flag or not.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from report.markdown import markdown
from report.results import RESULTS

FILE = RESULTS / "recommended_search.jsonl"
#: Returns of random actions, and near the best.
SCALE = {
    "Walker2d-v5": (0, 4200),
    "HalfCheetah-v5": (-280, 5500),
    "LunarLander-v3": (-180, 275),
    "flappy_bird_gymnasium:FlappyBird-v0": (-7.5, 300),
    "Pendulum-v1": (-1200, -150),
    "minatar_games:MinAtar/Freeway-v1": (0, 20),
}
#: What effects are differences from.
BASE = {"batch_size": 64, "n_steps": 256, "learning_rate": "0.0003", "recompute_advantages": False, "gae_lambda": 0.95}
BASE |= {"gamma": 0.99, "log_std_init": -0.5, "ent_coef": 0.005, "net_arch": "64 units", "normalize_observations": True}


def levels(settings: dict[str, Any]) -> dict[str, Any]:
    """The value of each setting that varies."""
    policy = settings.get("policy_kwargs", {})
    found = {name: (settings | policy).get(name) for name in BASE} | {"net_arch": "64 units"}
    found["learning_rate"] = str(settings["learning_rate"]) + ", adapted to the KL" * ("kl_control" in settings)
    if "max_scale" in settings:
        found["learning_rate"] += f", at most {settings['max_scale']:.1f} times"
    if "net_arch" in policy:
        found["net_arch"] = f"{policy['net_arch']['vf'][0]} units in the critic"
    return {name: value for name, value in found.items() if value is not None}


def effects(runs: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each value of a setting: what it changes in the score, with its standard error."""
    runs = [run for run in runs if run["task"] in SCALE]
    low, high = np.array([SCALE[run["task"]] for run in runs], float).T
    score = np.clip((np.array([run["return"] for run in runs]) - low) / (high - low), -0.2, 1.2)
    values = [levels(run["settings"]) for run in runs]
    changes = [
        (name, value) for name in BASE for value in sorted({v[name] for v in values if name in v} - {BASE[name]})
    ]
    x = np.array(
        [
            [run["task"] == task for task in SCALE] + [v.get(name) == value for name, value in changes]
            for run, v in zip(runs, values, strict=True)
        ],
        float,
    )
    normal = x.T @ x + np.diag([0.0] * len(SCALE) + [0.2] * len(changes))
    found = np.linalg.solve(normal, x.T @ score)
    variance = np.sum((score - x @ found) ** 2) / (len(score) - len(found))
    errors = np.sqrt(np.diag(np.linalg.inv(normal)) * variance)
    numbers = np.stack([x.sum(0), found, errors], axis=1)[len(SCALE) :]
    rows = [
        [f"`{name}`", str(value), str(BASE[name]), f"{n:.0f}", f"{effect:+.2f} ± {error:.2f}"]
        for (name, value), (n, effect, error) in zip(changes, numbers, strict=True)
    ]
    return markdown(["setting", "value", "instead of", "runs", "effect on the score"], rows)
