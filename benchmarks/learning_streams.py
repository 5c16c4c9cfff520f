"""Streams of reward on the tasks that need them: a limit for costs, and curiosity where rewards are sparse.

    python benchmarks/learning_streams.py --list                 # what is done, running, and left
    python benchmarks/learning_streams.py --run limit Hazards 0  # one run
    python benchmarks/learning_streams.py --queue                # all that is left; several queues share the work
    python benchmarks/learning_streams.py --table                # what came out

Each run appends a line to ``benchmarks/results/streams.jsonl``: curves of return and cost, and the last 100 training
episodes. What is done is not done again. ``learning_returns.py`` says how to pause a queue in the background.
MiniGrid's tasks need ``pip install minigrid``; without it, the queue leaves them out with a message.

``Hazards`` is a task of our own, for which nobody else has figures. Its limit is 10 of 200 steps within hazards. On
``MountainCar-v0``, all arguments are SB3's defaults; on MiniGrid, they are those of rl_zoo3.
"""

import argparse
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from campaign import check_steps, claim, is_claimed, lock_path, python, versions, work  # the modules beside this one
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation
from report.plan import Job, read
from report.results import append_line
from report.streams import FILE, JOBS, table
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from ppo_plus import Cost, PPO_Plus, RandomNetworkDistillation
from ppo_plus.zoo.cli.arguments import whole_number

SCRIPT = "benchmarks/learning_streams.py"
N_POINTS, N_LAST = 50, 100
LIMIT = 10.0


class Hazards(gym.Env[np.ndarray, Any]):
    """Move a point to goals, which are worth 1 each; a step within one of four discs costs 1.

    Positions are in ``[-1, 1]²``. Discs and the first goal are drawn for each episode of 200 steps; a goal that is
    reached moves. The straight way leads through discs. Observed are the position and where goal and discs are from it.
    """

    N, RADIUS, SPEED, MAX_STEPS = 4, 0.3, 0.1, 200
    observation_space = spaces.Box(-4.0, 4.0, (4 + 2 * N,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.place = 0, np.zeros(2)
        self.discs = self.np_random.uniform(-0.8, 0.8, (self.N, 2))
        self.goal = self.np_random.uniform(-0.9, 0.9, 2)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        before = np.linalg.norm(self.goal - self.place)
        self.place = np.clip(self.place + self.SPEED * np.asarray(action, dtype=float), -1.0, 1.0)
        after = np.linalg.norm(self.goal - self.place)
        reward = float(before - after)
        if after < 0.15:
            reward += 1.0
            self.goal = self.np_random.uniform(-0.9, 0.9, 2)
        cost = float((np.linalg.norm(self.discs - self.place, axis=1) < self.RADIUS).any())
        return self._observe(), reward, False, self.t == self.MAX_STEPS, {"cost": cost}

    def _observe(self) -> np.ndarray:
        parts = (self.place, self.goal - self.place, (self.discs - self.place).ravel())
        return np.concatenate(parts).astype(np.float32)


#: The arguments of a run beside the streams, environments and steps, by task.
MINIGRID = dict(n_steps=512, learning_rate=2.5e-4, normalize_observations=True)
TASKS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "Hazards": (4, 1_000_000, dict(n_steps=1000, batch_size=200)),
    "MountainCar-v0": (1, 500_000, {}),
    "MiniGrid-MultiRoom-N4-S5-v0": (8, 2_000_000, MINIGRID),
    "MiniGrid-KeyCorridorS3R1-v0": (8, 1_000_000, MINIGRID),
}
STREAMS: dict[str, list[Any]] = {
    "none": [],
    "limit": [Cost("cost", limit=LIMIT)],
    "curiosity": [RandomNetworkDistillation()],
}


def make_env(task: str, n_envs: int, seed: int) -> Any:
    """The environments of a task; MiniGrid's observe their image as a vector."""
    if not task.startswith("MiniGrid"):
        return make_vec_env(Hazards if task == "Hazards" else task, n_envs, seed=seed)
    from minigrid.wrappers import ImgObsWrapper

    return make_vec_env(task, n_envs, seed=seed, wrapper_class=lambda env: FlattenObservation(ImgObsWrapper(env)))


class Episodes(BaseCallback):
    """Keeps the step at which each training episode ends, its return and its cost."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[float, float, float]] = []

    def _on_training_start(self) -> None:
        self.costs = np.zeros(self.training_env.num_envs)

    def _on_step(self) -> bool:
        for i, info in enumerate(self.locals["infos"]):
            self.costs[i] += info.get("cost", 0.0)
            if "episode" in info:
                self.done.append((self.num_timesteps, info["episode"]["r"], self.costs[i]))
                self.costs[i] = 0.0
        return True


def learn(job: Job, steps: int | None) -> dict[str, Any]:
    """Train; returns what is kept of it."""
    n_envs, budget, arguments = TASKS[job.task]
    env, episodes = make_env(job.task, n_envs, 1000 * job.seed), Episodes()
    model = PPO_Plus("MlpPolicy", env, seed=job.seed, device="cpu", n_threads=1, streams=STREAMS[job.arm], **arguments)
    version = versions("minigrid")
    wall, cpu = time.perf_counter(), time.process_time()
    model.learn(steps or budget, episodes)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    done = np.array(episodes.done, dtype=float).reshape(-1, 3)
    edges = np.linspace(0, model.num_timesteps, N_POINTS + 1)[1:]
    bins = np.searchsorted(edges, done[:, 0])
    return {
        "arm": job.arm,
        "task": job.task,
        "seed": job.seed,
        "steps": model.num_timesteps,
        "command": f"OMP_NUM_THREADS=1 python {SCRIPT} --run {job}" + (f" --steps {steps}" if steps else ""),
        "versions": version,
        "wall_seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "last": {"return": mean(done[-N_LAST:, 1]), "cost": mean(done[-N_LAST:, 2])},
        "curve": {
            "steps": [int(edge) for edge in edges],
            "return": [mean(done[bins == i, 1]) for i in range(N_POINTS)],
            "cost": [mean(done[bins == i, 2]) for i in range(N_POINTS)],
        },
    }


def mean(values: np.ndarray) -> float | None:
    """The mean of some episodes; ``None``: there are none."""
    return round(float(values.mean()), 3) if len(values) else None


def run(job: Job, file: Path, steps: int | None) -> None:
    """Do a run, unless it is done or another process is doing it."""
    with claim(lock_path(file, job)) as mine:
        if not mine or read(file, [job]):
            print(f"{job}: {'done already' if mine else 'another process is doing it'}", flush=True)
            return
        result = learn(job, steps)
        append_line(file, result)
    print(f"{time.strftime('%d %b %H:%M:%S')} {job}: {result['last']}, {result['cpu_seconds']} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="what is done, running, and left")
    what.add_argument("--run", nargs=3, metavar=("ARM", "TASK", "SEED"), help="do one run")
    what.add_argument("--queue", action="store_true", help="do what is left")
    what.add_argument("--table", action="store_true", help="what came out")
    parser.add_argument("--results", type=Path, default=FILE, help="JSON Lines file of results (default: %(default)s)")
    parser.add_argument("--steps", type=whole_number, help="environment steps of a run (default: those of its task)")
    arguments = parser.parse_args()
    check_steps(parser, arguments, FILE)
    file = arguments.results.resolve()
    if arguments.run:
        arm, task, seed = arguments.run
        if arm not in STREAMS or task not in TASKS or not seed.isdecimal():
            parser.error(f"ARM is one of {', '.join(STREAMS)}, TASK one of {', '.join(TASKS)}, and SEED a number")
        th.set_num_threads(1)
        run(Job(arm, task, int(seed)), file, arguments.steps)
    elif arguments.queue:
        missing = find_spec("minigrid") is None
        if missing:
            print("MiniGrid's tasks are left out: pip install minigrid", file=sys.stderr)
        steps = ["--steps", str(arguments.steps)] if arguments.steps else []
        possible = [job for job in JOBS if not (missing and job.task.startswith("MiniGrid"))]
        failed = work([*python(SCRIPT), "--results", str(file), *steps, "--run"], file, possible)
        raise SystemExit(f"{len(failed)} runs failed" if failed else 0)
    elif arguments.list:
        done = read(file, JOBS)
        for job in JOBS:
            state = "running" if is_claimed(lock_path(file, job)) else "open"
            print(f"{job}: {done[job]['last'] if job in done else state}")
    else:
        print("\n".join(table(file)))


if __name__ == "__main__":
    main()
