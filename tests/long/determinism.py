"""Which runs are reproducible: they end with the same weights, bit for bit.

    python tests/long/determinism.py                                          # some seven minutes on two cores
    python tests/long/determinism.py --json benchmarks/results/determinism.json

Each run is a separate process, with the same seed and settings, that prints a hash of its weights. A run is compared
with the first of its column, uncompiled with uncompiled and compiled with compiled.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from ppo_plus import Checkpoints, PPO_Plus, Resumable, SupervisedVecEnv

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from machine import facts  # noqa: E402
from report.reliability import determinism_table  # noqa: E402
from report.results import write  # noqa: E402

TOTAL = 4_096
#: What is trained: environment, how many, whether normalized, and arguments of the model.
TASKS: dict[str, tuple[str, int, bool, dict[str, Any]]] = {
    "CartPole-v1": ("CartPole-v1", 4, False, {"policy": "MlpPolicy", "kl_control": "adaptive_lr", "target_kl": 0.01}),
    "Pendulum-v1, gSDE": ("Pendulum-v1", 2, True, {"policy": "MlpPolicy", "use_sde": True, "sde_sample_freq": 4}),
    "CartPole-v1, LSTM": ("CartPole-v1", 4, False, {"policy": "MlpLstmPolicy"}),
    "HalfCheetah-v5": ("HalfCheetah-v5", 2, True, {"policy": "MlpPolicy"}),
}


def make_envs(task: str, vec_env_cls: Any = DummyVecEnv) -> VecEnv:
    """The environments of a task."""
    env_id, n_envs, normalized, _ = TASKS[task]
    env = make_vec_env(env_id, n_envs, seed=1, wrapper_class=Resumable, vec_env_cls=vec_env_cls)
    return VecNormalize(env) if normalized else env


def make_model(task: str, compiled: bool, env: VecEnv | None = None, **changes: Any) -> PPO_Plus:
    """A new model of a task."""
    given: dict[str, Any] = {
        "n_steps": 128,
        "batch_size": 64,
        "n_epochs": 3,
        "seed": 1,
        "device": "cpu",
        "n_threads": 1,
    }
    env = make_envs(task) if env is None else env
    return PPO_Plus(env=env, compile=compiled, **given | TASKS[task][-1] | changes)


def plainly(task: str, compiled: bool) -> PPO_Plus:
    """Trained without anything special."""
    return make_model(task, compiled).learn(TOTAL)


def after_others(task: str, compiled: bool) -> PPO_Plus:
    """Trained in a process that has trained other models, and this one once."""
    for other in TASKS:
        make_model(other, compiled).learn(512)
    plainly(task, compiled)
    return plainly(task, compiled)


def in_processes(task: str, compiled: bool) -> PPO_Plus:
    """Trained in environments that are processes."""
    return make_model(task, compiled, make_envs(task, SupervisedVecEnv)).learn(TOTAL)


def in_sb3s_processes(task: str, compiled: bool) -> PPO_Plus:
    """Trained in SB3's: they return rewards in double precision, and ``DummyVecEnv`` in single precision."""
    return make_model(task, compiled, make_envs(task, SubprocVecEnv)).learn(TOTAL)


def interrupted(task: str, compiled: bool) -> PPO_Plus:
    """Trained in two processes, the second of which resumes from a checkpoint of the first."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--run", "first_half", task, str(compiled), folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        model = PPO_Plus.resume(folder, make_envs(task), device="cpu")
        assert 0 < model.num_timesteps < TOTAL
        return model.learn(TOTAL)


def first_half(task: str, compiled: bool, folder: str) -> PPO_Plus:
    """Trained until it is killed, so to say, with a checkpoint at every third of the way."""
    model = make_model(task, compiled)

    def stop(locals_: dict[str, Any], _: Any) -> bool:
        if locals_["self"].num_timesteps > TOTAL / 2:
            os._exit(0)
        return True

    from stable_baselines3.common.callbacks import ConvertCallback

    return model.learn(TOTAL, callback=[Checkpoints(folder, save_freq=TOTAL // 3), ConvertCallback(stop)])


def on_two_threads(task: str, compiled: bool) -> PPO_Plus:
    """Trained on two of torch's threads."""
    return make_model(task, compiled, n_threads=2).learn(TOTAL)


#: Vector units other than the processor's own, which the first run uses.
OTHER_UNITS = "default" if th.backends.cpu.get_cpu_capability() == "AVX2" else "avx2"
#: What differs from the first run of a column: its name, how it trains, and variables of its environment.
WAYS: dict[str, tuple[Callable[..., PPO_Plus], dict[str, str]]] = {
    "again, in another process": (plainly, {}),
    "after other models in the same process": (after_others, {}),
    "environments in processes (`SupervisedVecEnv`)": (in_processes, {}),
    "environments in SB3's `SubprocVecEnv`": (in_sb3s_processes, {}),
    "killed and resumed": (interrupted, {}),
    "other hashes of strings (`PYTHONHASHSEED`)": (plainly, {"PYTHONHASHSEED": "7"}),
    "two threads": (on_two_threads, {"OMP_NUM_THREADS": "2"}),
    "a processor with other vector units (`ATEN_CPU_CAPABILITY`)": (plainly, {"ATEN_CPU_CAPABILITY": OTHER_UNITS}),
}


def digest(model: PPO_Plus) -> str:
    """A hash of a model's weights."""
    found = hashlib.sha256()
    for weight in model.policy.state_dict().values():
        found.update(weight.numpy().tobytes())
    return found.hexdigest()


def run(way: Callable[..., PPO_Plus], variables: dict[str, str], task: str, compiled: bool) -> str:
    """The hash that a separate process prints."""
    command = [sys.executable, __file__, "--run", way.__name__, task, str(compiled)]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **variables}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()[-1]


def measure(jobs: int) -> dict[str, dict[str, dict[str, bool]]]:
    """For each way and task, whether the weights are the first run's, uncompiled and compiled."""
    modes = {"uncompiled": False, "compiled": True}
    ways = {"": (plainly, {}), **WAYS}
    with ThreadPoolExecutor(jobs) as pool:
        hashes = {
            (name, task, mode): pool.submit(run, *way, task, compiled)
            for task in TASKS
            for mode, compiled in modes.items()
            for name, way in ways.items()
        }
        return {
            name: {
                task: {mode: hashes[name, task, mode].result() == hashes["", task, mode].result() for mode in modes}
                for task in TASKS
            }
            for name in WAYS
        }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    options.add_argument("--json", type=Path, help="file for the results")
    options.add_argument("--run", nargs="+", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.run:
        way, task, compiled, *rest = args.run
        print(digest(globals()[way](task, compiled == "True", *rest)))
        return
    results = measure(args.jobs)
    print("\n".join(determinism_table(results)))
    if args.json:
        write(args.json, {"versions": facts(), "results": results})


if __name__ == "__main__":
    main()
