"""Watch and record a trained model."""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from PIL import Image
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import tile_images

from ppo_plus import PPO_Plus
from ppo_plus.envs.checked_envs import of_ended
from ppo_plus.rollout.evaluation import predict_in
from ppo_plus.saving.files import replacing
from ppo_plus.zoo.experiment import load_statistics, make_envs, saved_experiment
from ppo_plus.zoo.installation import ALLOWED_PACKAGES, Packages
from ppo_plus.zoo.runs import RunFolder

#: Viewers show faster GIFs slowly.
MAX_GIF_FPS = 50
#: Not needed to play; replacing the schedules here often makes it unnecessary to trust a file of SB3.
NOT_LEARNING = {"learning_rate": 0.0, "clip_range": 0.2, "clip_range_vf": None}


@dataclass(frozen=True)
class Player:
    """A trained model with environments to play in, whose normalization statistics are fixed."""

    model: PPO_Plus
    env: VecEnv
    deterministic: bool

    def play(self, n_timesteps: int) -> Iterator[list[dict[str, Any]]]:
        """Play steps in each environment, and yield the infos of ended episodes, with a ``Monitor``'s ``episode``."""
        obs, state, starts = self.env.reset(), None, np.ones(self.env.num_envs, dtype=bool)
        predict = predict_in(self.model, self.env)
        for _ in range(n_timesteps):
            actions, state = predict(obs, state, starts, self.deterministic)
            obs, _, starts, infos = self.env.step(actions)
            yield [info for info in of_ended(infos, starts) if info["episode"]]


def make_player(
    folder: RunFolder,
    model: Path,
    n_envs: int = 1,
    seed: int = 0,
    device: str = "auto",
    deterministic: bool | None = None,
    env_kwargs: dict[str, Any] | None = None,
    packages: Packages = ALLOWED_PACKAGES,
    trust_pickle: bool = False,
) -> Player:
    """A model of a run with its normalization statistics, in the environments that it was trained for;
    ``deterministic=None``: with actions as in the run's evaluations.

    :raises FileNotFoundError: a file is missing
    :raises ValueError: a file is damaged, or can only be read with ``trust_pickle``
    """
    if not model.is_file():
        raise FileNotFoundError(f"there is no model {model}: choose another run or model, or resume this run")
    experiment = saved_experiment(folder, packages).replace(vec_env="dummy")
    own = experiment.env_kwargs if experiment.eval_env_kwargs is None else experiment.eval_env_kwargs
    playing = experiment.replace(eval_env_kwargs={**own, **(env_kwargs or {})})
    env = make_envs(playing, n_envs, seed, evaluation=True)
    load_statistics(model, env, experiment.env_id)
    loaded = PPO_Plus.load(model, env, device, custom_objects=dict(NOT_LEARNING), trust_pickle=trust_pickle, seed=seed)
    return Player(loaded, env, experiment.deterministic_eval if deterministic is None else deterministic)


def enjoy(player: Player, n_timesteps: int) -> None:
    """Play, and print the return and length of each episode, and their means. Ctrl-C ends it."""
    episodes: list[tuple[float, int]] = []
    with suppress(KeyboardInterrupt):
        for ended in player.play(n_timesteps):
            for info in ended:
                episode = info["episode"]
                episodes.append((episode["r"], episode["l"]))
                print(f"episode {len(episodes)}: return {episode['r']:.2f}, length {episode['l']}", flush=True)
    player.env.close()
    if episodes:
        (mean, mean_length), (std, std_length) = np.mean(episodes, axis=0), np.std(episodes, axis=0)
        lengths = f"mean length {mean_length:.2f} +/- {std_length:.2f}"
        print(f"mean return {mean:.2f} +/- {std:.2f}, {lengths} over {len(episodes)} episodes")
    else:
        print(f"no episode ended within {n_timesteps} steps: play more (-n), or give the environment a time limit")


def record(player: Player, n_timesteps: int, path: Path) -> None:
    """Play in environments with ``render_mode="rgb_array"``, write a ``.gif`` or ``.mp4``, and print its path."""
    fps = (player.env.get_attr("metadata")[0] or {}).get("render_fps") or 30
    frames = (tile_images([_checked(image) for image in player.env.get_images()]) for _ in player.play(n_timesteps))
    path.parent.mkdir(parents=True, exist_ok=True)
    (_write_gif if path.suffix.lower() == ".gif" else _write_video)(frames, path, fps)
    player.env.close()
    print(path)


def _write_gif(frames: Iterator[np.ndarray], path: Path, fps: float) -> None:
    every = math.ceil(fps / MAX_GIF_FPS)
    images = map(Image.fromarray, islice(frames, 0, None, every))
    with replacing(path) as file:
        next(images).save(file, "gif", save_all=True, append_images=images, duration=round(1000 * every / fps), loop=0)


def _write_video(frames: Iterator[np.ndarray], path: Path, fps: float) -> None:
    from imageio.v2 import get_writer

    # Without a block size imageio would scale the pictures to multiples of 16; codecs need even sizes only.
    writer: Any = get_writer(path, fps=fps, macro_block_size=2)
    with writer:
        for frame in frames:
            height, width = frame.shape[:2]
            writer.append_data(np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))


def _checked(image: np.ndarray | None) -> np.ndarray:
    """A picture, ``(H, W, 3)`` in 8 bits, or an error with the remedy."""
    if not isinstance(image, np.ndarray) or image.ndim != 3 or image.dtype != np.uint8:
        remedy = "with render_mode='rgb_array', return an array (H, W, 3) of numpy.uint8"
        raise gym.error.UnsupportedMode(f"the environment's render() returned {image!r}: {remedy}")
    return image
