"""What rl_zoo3 makes of every entry of some of its files, pickled to a path. A program of its own, because importing
rl_zoo3 changes Gymnasium.

``python rl_zoo3_entries.py out.pkl ppo a2c``
"""

import argparse
import pickle
import sys
from pathlib import Path

import yaml
from rl_zoo3.exp_manager import ExperimentManager

PROGRESS = (1.0, 0.25, 0.0)


def read(algo: str, path: Path, env_id: str, atari: bool) -> dict:
    """One entry, through rl_zoo3's own reading and preprocessing."""
    manager = ExperimentManager(argparse.Namespace(), algo, "CartPole-v1", "", config=str(path), verbose=0)
    manager.env_name = argparse.Namespace(gym_id=env_id)
    manager._is_atari = atari
    hyperparams, saved = manager.read_hyperparameters()
    hyperparams, env_wrapper, callbacks, vec_env_wrapper = manager._preprocess_hyperparams(dict(hyperparams))
    policy_kwargs = hyperparams.pop("policy_kwargs", {})
    return {
        "n_timesteps": manager.n_timesteps,
        "n_envs": manager.n_envs,
        "policy": hyperparams.pop("policy"),
        "normalize": manager.normalize_kwargs if manager.normalize else None,
        "frame_stack": manager.frame_stack,
        "env_wrapper": parts(env_wrapper),
        "vec_env_wrapper": parts(vec_env_wrapper),
        "callback": [type(callback) for callback in callbacks],
        "env_kwargs": manager.env_kwargs,
        "monitor_kwargs": manager.monitor_kwargs,
        "policy_kwargs": policy_kwargs,
        "hyperparams": {
            name: [value(p) for p in PROGRESS] if callable(value) else value for name, value in hyperparams.items()
        },
    }


def parts(wrap) -> list:
    """Classes and arguments that rl_zoo3's wrapping function has closed over, by name: the classes may need rl_zoo3."""
    if wrap is None:
        return []
    cells = dict(zip(wrap.__code__.co_freevars, (cell.cell_contents for cell in wrap.__closure__), strict=True))
    classes = [(cls.__module__, cls.__qualname__) for cls in cells["wrapper_classes"]]
    return list(zip(classes, cells["wrapper_kwargs"], strict=True))


def read_file(algo: str) -> dict:
    """All entries of a file."""
    path = Path(sys.modules["rl_zoo3"].__file__).parent / "hyperparams" / f"{algo}.yml"
    names = yaml.safe_load(path.read_bytes())
    return {name: read(algo, path, "ALE/Pong-v5" if name == "atari" else name, name == "atari") for name in names}


if __name__ == "__main__":
    out, *algos = sys.argv[1:]
    Path(out).write_bytes(pickle.dumps({algo: read_file(algo) for algo in algos}))
