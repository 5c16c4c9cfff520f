"""Which files and types of ppo_plus one transition passes, from the environment's step to the changed weights.

    python benchmarks/walk.py

Eight CartPoles in SB3's ``DummyVecEnv``, uncompiled: every call of a function of the package is noted, with the types
of the package among its variables, from the return of ``env.step`` to the end of ``train``.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

from stable_baselines3.common.env_util import make_vec_env

import ppo_plus
from ppo_plus import PPO_Plus

ROOT = Path(ppo_plus.__file__).parent


def walk() -> tuple[dict[str, set[str]], set[str]]:
    """The functions that are called in each file, and the names of types."""
    env = make_vec_env("CartPole-v1", 8)
    model = PPO_Plus("MlpPolicy", env, n_steps=16, batch_size=32, n_epochs=2, seed=0, compile=False, device="cpu")
    model.learn(128)
    files: dict[str, set[str]] = defaultdict(set)
    types: set[str] = set()

    def note(frame: FrameType, event: str, arg: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and ROOT in path.parents:
            files[path.relative_to(ROOT).as_posix()].add(frame.f_code.co_qualname)
            found = (type(value) for value in frame.f_locals.values())
            types.update(each.__name__ for each in found if each.__module__.startswith("ppo_plus."))

    step, train = env.step_wait, model.train

    def noted_step() -> Any:
        result = step()
        sys.setprofile(note)
        return result

    def noted_train() -> None:
        train()
        sys.setprofile(None)

    env.step_wait, model.train = noted_step, noted_train  # type: ignore[method-assign]
    model.learn(128, reset_num_timesteps=False)
    return dict(files), types


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    files, types = walk()
    for name, functions in sorted(files.items()):
        print(f"{name}: {', '.join(sorted(each for each in functions if '<' not in each))}")
    print(f"\n{len(files)} files; {len(types)} types: {', '.join(sorted(types))}")


if __name__ == "__main__":
    main()
