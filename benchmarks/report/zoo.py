"""What the entries of the settings file reached: the table of all of them, and the lines that the package ships.

A return is that of 20 episodes after training, in which actions are the most likely ones; on Atari and MiniGrid they
are sampled, as in rl_zoo3.
"""

from statistics import fmean
from typing import Any

from ppo_plus.zoo.hyperparams import builtin_file, parse_literal, read_mapping
from report.markdown import markdown
from report.plan import ARMS
from report.returns import results
from report.scores import score

#: What rl_zoo3 published for PPO (benchmark.md of 2.9), by the version here of the same task; mostly one run each, on
#: older versions of Box2D (2) and MuJoCo (3).
PUBLISHED = {
    "CartPole-v1": 500.0,
    "Pendulum-v1": -172.2,
    "MountainCar-v0": -110.4,
    "MountainCarContinuous-v0": 88.3,
    "Acrobot-v1": -73.5,
    "LunarLander-v3": 242.1,
    "LunarLanderContinuous-v3": 270.9,
    "BipedalWalker-v3": 287.9,
    "BipedalWalkerHardcore-v3": 122.4,
    "CarRacing-v3": 153.9,
    "Ant-v5": 1327.2,
    "HalfCheetah-v5": 5819.1,
    "Hopper-v5": 2410.4,
    "Swimmer-v5": 281.6,
    "Walker2d-v5": 3478.8,
    "PongNoFrameskip-v4": 20.989,
    "BreakoutNoFrameskip-v4": 398.033,
    "MiniGrid-Empty-Random-5x5-v0": 0.968,
    "MiniGrid-DoorKey-5x5-v0": 0.964,
    "MiniGrid-Unlock-v0": 0.963,
    "MiniGrid-KeyCorridorS3R1-v0": 0.949,
    "MiniGrid-RedBlueDoors-6x6-v0": 0.860,
    "MiniGrid-FourRooms-v0": 0.573,
    "MiniGrid-GoToDoor-5x5-v0": 0.525,
    "MiniGrid-PutNear-6x6-N2-v0": 0.612,
    "MiniGrid-MultiRoom-N4-S5-v0": 0.0,
    "MiniGrid-LockedRoom-v0": 0.0,
    "MiniGrid-ObstructedMaze-2Dlh-v0": 0.0,
}
#: Tasks that rl_zoo3 has no entry for.
NOT_IN_RL_ZOO3 = ("Pusher-v5",)
#: The environments whose runs have the entry for Atari.
ATARI = ("PongNoFrameskip-v4", "BreakoutNoFrameskip-v4")

Runs = list[dict[str, Any]]


def entries() -> dict[str, Any]:
    """The entries of single environments. Those of version 4 are left out: they equal those of version 5."""
    found = read_mapping(builtin_file())
    single = {name: entry for name, entry in found.items() if "-v" in name and not _is_version_4_of_5(name, found)}
    return {**single, **dict.fromkeys(ATARI, found["atari"])}


def _is_version_4_of_5(name: str, found: dict[str, Any]) -> bool:
    return "-v4" in name and name.replace("-v4", "-v5") in found


def values_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as a run records them, but for the number of timesteps: Python text as values, wrappers in a list."""
    named = {"n_envs": 1, "env_wrapper": [], "normalize": False, **settings, "n_timesteps": None}
    for name, value in named.items():
        if isinstance(value, str) and value.startswith(("dict(", "{", "[")):
            named[name] = parse_literal(value)
        elif isinstance(value, str) and name == "env_wrapper":
            named[name] = [value]
    return named


def runs() -> dict[str, Runs]:
    """By entry, the runs with its settings, one for each seed; none if it was not measured."""
    single = entries()
    by_entry = {name: dict[int, dict[str, Any]]() for name in single}
    for result in results():
        arm = ARMS[result["arm"]]
        if arm.settings or arm.by_task or arm.entry is None or not arm.algorithm.startswith("ppo_plus."):
            continue
        for name, entry in single.items():
            if name.partition("/")[0] == result["task"] and values_of(entry) == values_of(result["settings"]):
                by_entry[name].setdefault(result["seed"], result)
    return {name: list(found.values()) for name, found in by_entry.items()}


def returned(task: str, found: Runs) -> str:
    """The interquartile mean over runs with its 95 % interval; of few runs, the return of each."""
    is_grid = task.startswith("MiniGrid-")
    measure, digits = "stochastic" if is_grid or task in ATARI else "deterministic", ".2f" if is_grid else ".1f"
    return score([run[measure]["mean"] for run in found], digits)


def minutes(found: Runs) -> str:
    """CPU time of a training run, on average."""
    return f"{fmean(run['cpu_seconds'] for run in found) / 60:.1f}"


def lines() -> dict[str, str]:
    """By entry that was measured with its number of timesteps, what to expect of it in words."""
    single = entries()
    whole = {
        name: [run for run in found if run["settings"]["n_timesteps"] == int(float(single[name]["n_timesteps"]))]
        for name, found in runs().items()
    }
    return {
        name: f"{returned(name.partition('/')[0], found)} ({len(found)} seed{'s' * (len(found) > 1)}) after "
        f"{found[0]['steps']:,} steps, {minutes(found)} CPU minutes"
        for name, found in whole.items()
        if found
    }


def shipped() -> str:
    """The text of ``hyperparams/returns.yml``."""
    header = (
        "# What the entries of ppo_plus.yml reached: the interquartile mean over seeds [95 % interval] of 20 episodes\n"
        "# after training; of fewer than five seeds, each one. Made by docs/tables.py from\n"
        "# benchmarks/results/returns.jsonl and its archive.\n"
    )
    return header + "".join(f'{name}: "{line}"\n' for name, line in lines().items())


def table() -> list[str]:
    """A line for each entry that was run, but rl_zoo3's settings where they are another entry: these are a column."""
    measured, rows = runs(), []
    for name, found in measured.items():
        task, _, variant = name.partition("/")
        if found and variant != "rl_zoo3":
            cells = [f"{found[0]['steps']:,}", str(len(found)), returned(task, found), minutes(found)]
            rows.append([name, *cells, *_of_rl_zoo3(task, variant, measured)])
    columns = ["entry", "steps", "seeds", "return", "CPU minutes", "rl_zoo3's settings here", "published by rl_zoo3"]
    return markdown(columns, rows)


def not_run() -> list[str]:
    """A sentence that lists the other entries."""
    names = [name for name, found in runs().items() if not found and not name.endswith("/rl_zoo3")]
    return [f"rl_zoo3's settings, not run here: {', '.join(names)}."]


def _of_rl_zoo3(task: str, variant: str, measured: dict[str, Runs]) -> list[str]:
    """What rl_zoo3's settings reached here, and what rl_zoo3 published."""
    if variant:
        return ["", ""]
    published = f"{PUBLISHED[task]:.4g}" if task in PUBLISHED else "none"
    theirs = measured.get(f"{task}/rl_zoo3")
    if theirs is None:
        return ["no entry" if task in NOT_IN_RL_ZOO3 else "the same settings", published]
    reached = f"{returned(task, theirs)}, {theirs[0]['steps']:,} steps" if theirs else "not run"
    return [reached, published]
