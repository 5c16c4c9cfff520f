"""Watch and record what a run has learned."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from stable_baselines3.common.vec_env import VecEnv
from tqdm import tqdm

from ppo_plus import PPO_Plus
from ppo_plus.rollout.evaluation import with_masks
from ppo_plus.zoo.envs import make_envs
from ppo_plus.zoo.experiment import Experiment, parse_settings
from ppo_plus.zoo.hyperparams import RunLoader, read_mapping
from ppo_plus.zoo.models import load_statistics
from ppo_plus.zoo.registry import ALLOWED_PACKAGES
from ppo_plus.zoo.runs import ALGO, RunFolder, saved_arguments

#: Viewers show faster GIFs slowly.
MAX_GIF_FPS = 50
#: What a model that only plays does without; schedules are what files of SB3 often need to be trusted for.
NOT_LEARNING = {"learning_rate": 0.0, "clip_range": 0.2, "clip_range_vf": None}
#: Formats of videos, for which ``imageio[ffmpeg]`` must be installed.
VIDEOS = (".mp4", ".mkv", ".mov", ".avi")


@dataclass(frozen=True)
class Player:
    """A trained model in front of environments.

    :param model: the model
    :param env: environments that do not learn
    :param deterministic: take the most likely actions
    """

    model: PPO_Plus
    env: VecEnv
    deterministic: bool

    def play(self, n_timesteps: int) -> Iterator[list[dict[str, Any]]]:
        """Play, and yield the environments' ``infos`` after each step.

        :param n_timesteps: steps of each environment
        """
        obs, state, starts = self.env.reset(), None, np.ones(self.env.num_envs, dtype=bool)
        player = with_masks(self.model, self.env)
        for _ in range(n_timesteps):
            actions, state = player.predict(obs, state, starts, self.deterministic)
            obs, _, starts, infos = self.env.step(actions)
            yield infos


def make_player(
    folder: RunFolder,
    model: Path,
    n_envs: int = 1,
    seed: int = 0,
    device: str = "auto",
    deterministic: bool | None = None,
    env_kwargs: dict[str, Any] | None = None,
    monitor_dir: Path | None = None,
    packages: Collection[str] | None = ALLOWED_PACKAGES,
    trust_pickle: bool = False,
) -> Player:
    """A model of a run, with the statistics saved beside it, in the environments that it was trained for.

    :param folder: the run's folder
    :param model: one of its models
    :param n_envs: environments side by side
    :param seed: seed of the first one
    :param device: device of the model
    :param deterministic: take the most likely actions; ``None``: as the run's evaluations did
    :param env_kwargs: arguments of the environment that replace the run's; ``render_mode``, for instance
    :param monitor_dir: folder for ``monitor.csv`` files; ``None``: none
    :param packages: what the run's settings may import from; ``None``: from anywhere
    :param trust_pickle: run what a model of SB3 is made of, where it cannot be read otherwise
    :raises FileNotFoundError: a file is missing
    :raises ValueError: a file is damaged, or would have to be trusted
    """
    if not model.is_file():
        raise FileNotFoundError(f"there is no model {model}")
    experiment = saved_experiment(folder, packages)
    env = make_envs(experiment, n_envs, seed, evaluation=True, monitor_dir=monitor_dir, **(env_kwargs or {}))
    # rl_zoo3 keeps one file of statistics for all models of a run.
    shared = folder.settings / "vecnormalize.pkl" if saved_arguments(folder).get("algo") != ALGO else None
    load_statistics(model, env, shared, trust_pickle)
    loaded = PPO_Plus.load(
        model, env=env, device=device, custom_objects=dict(NOT_LEARNING), trust_pickle=trust_pickle, seed=seed
    )
    return Player(loaded, env, experiment.deterministic_eval if deterministic is None else deterministic)


def saved_experiment(folder: RunFolder, packages: Collection[str] | None = ALLOWED_PACKAGES) -> Experiment:
    """The experiment of a run, of rl_zoo3's as well.

    :param folder: the run's folder
    :param packages: what its settings may import from; ``None``: from anywhere
    :raises FileNotFoundError: it is no run's folder
    :raises ValueError: its settings import from elsewhere
    """
    settings = read_mapping(folder.settings / "config.yml", RunLoader)
    arguments = saved_arguments(folder)
    if arguments.get("env_kwargs"):
        settings["env_kwargs"] = arguments["env_kwargs"]
    experiment = parse_settings(folder.env_id, settings, packages)
    return experiment.replace(seed=arguments.get("seed", 0), eval_env_kwargs=arguments.get("eval_env_kwargs"))


def enjoy(player: Player, n_timesteps: int, verbose: bool = True, progress: bool = False) -> None:
    """Play, and print the return and length of each episode, and their means. Ctrl-C ends it.

    :param player: the player; it renders if its environments do
    :param n_timesteps: steps of each environment
    :param verbose: print each episode, and not only the means
    :param progress: show a progress bar
    """
    returns: list[float] = []
    lengths: list[int] = []
    steps = tqdm(player.play(n_timesteps), total=n_timesteps, unit="step", disable=not progress)
    try:
        for infos in steps:
            for episode in (info["episode"] for info in infos if "episode" in info):
                returns.append(episode["r"])
                lengths.append(episode["l"])
                if verbose:
                    line = f"episode {len(returns)}: return {returns[-1]:.2f}, length {lengths[-1]}"
                    print(line, flush=True) if not progress else steps.write(line)
    except KeyboardInterrupt:
        pass
    steps.close()
    player.env.close()
    if returns:
        print(
            f"mean return {np.mean(returns):.2f} +/- {np.std(returns):.2f}, "
            f"mean length {np.mean(lengths):.2f} +/- {np.std(lengths):.2f} over {len(returns)} episodes"
        )
    else:
        print(f"no episode ended within {n_timesteps} steps")


def check_recording(path: Path) -> None:
    """Ask before playing whether a recording can be written.

    :param path: the file
    :raises ValueError: its name says no format that can be
    :raises ImportError: a video needs ``imageio[ffmpeg]``
    """
    suffix = path.suffix.lower()
    if suffix not in (".gif", *VIDEOS):
        raise ValueError(f"-o {path}: the name must end in .gif, {', '.join(VIDEOS[:-1])} or {VIDEOS[-1]}")
    if suffix != ".gif" and find_spec("imageio_ffmpeg") is None:
        raise ImportError(f"-o {path}: videos other than .gif need pip install 'imageio[ffmpeg]'")


def record(player: Player, n_timesteps: int, path: Path) -> None:
    """Play, and write what the environments show into a file.

    :param player: the player; its environments have ``render_mode="rgb_array"``
    :param n_timesteps: steps of each environment
    :param path: a ``.gif``, or one of :data:`VIDEOS`
    """
    fps = player.env.get_attr("metadata")[0].get("render_fps", 30)
    frames = _frames(player, n_timesteps)
    path.parent.mkdir(parents=True, exist_ok=True)
    (_write_gif if path.suffix.lower() == ".gif" else _write_video)(frames, path, fps)
    player.env.close()


def _write_gif(frames: Iterator[np.ndarray], path: Path, fps: int) -> None:
    every = -(-fps // MAX_GIF_FPS)
    images = map(Image.fromarray, islice(frames, 0, None, every))
    next(images).save(path, save_all=True, append_images=images, duration=round(1000 * every / fps), loop=0)


def _write_video(frames: Iterator[np.ndarray], path: Path, fps: int) -> None:
    from imageio.v2 import get_writer

    # Without a block size imageio would scale the pictures to multiples of 16; codecs need even sizes only.
    writer: Any = get_writer(path, fps=fps, macro_block_size=2)
    with writer:
        for frame in frames:
            height, width = frame.shape[:2]
            writer.append_data(np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))


def _frames(player: Player, n_timesteps: int) -> Iterator[np.ndarray]:
    for _ in player.play(n_timesteps):
        frame = player.env.render("rgb_array")
        assert frame is not None, "the environment renders nothing"
        yield frame
