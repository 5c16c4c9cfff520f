"""Trained agents of the settings file's measured entries, in ``agents/``, and pictures of them for the docs.

    python benchmarks/agents.py            # train what is missing, the quickest first
    python benchmarks/agents.py --films    # draw the GIFs in docs/pictures/agents that are missing
    ppo-plus enjoy --env HalfCheetah-v5 --agents agents

An agent is trained as the runs of ``docs/zoo_results.md`` were, with the seed whose return there is the median. A
folder of an agent is that of a run, without what only further training needs. A line of ``agents/agents.jsonl`` has the
return of the agent that is there, over 100 episodes with the most likely actions.
"""

import argparse
import shutil
from contextlib import chdir, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch as th
from campaign import versions  # the modules beside this one
from PIL import Image, ImageSequence
from report.plan import TASKS
from report.results import ROOT, append_line
from report.zoo import runs as runs_of_entries

from ppo_plus import PPO_Plus
from ppo_plus.saving.statistics import statistics_path
from ppo_plus.zoo.cli import main as ppo_plus
from ppo_plus.zoo.enjoy import make_player
from ppo_plus.zoo.experiment import Experiment, load_experiment, make_envs, make_model
from ppo_plus.zoo.runs import ALGO, Options, RunFolder
from ppo_plus.zoo.train import set_up, train

AGENTS, FILMS = ROOT / "agents", ROOT / "docs" / "pictures" / "agents"
FIGURES = AGENTS / "agents.jsonl"
N_EPISODES = 100
#: Of larger models, only what plays is kept in the repository.
MAX_BYTES = 400_000
#: Steps, width in pixels and colors of a GIF.
FILM = 100, 320, 32
#: Gymnasium's camera stays where MuJoCo's agents start, and far from the small ones.
CAMERAS = dict.fromkeys(TASKS, "camera_name:track") | {
    "InvertedDoublePendulum-v5": "default_camera_config:dict(distance=2.4, lookat=[0.0, 0.0, 0.6])"
}


def measured() -> dict[str, list[dict[str, Any]]]:
    """The runs of each task's own entry by which its settings were not chosen, the quickest task first; of fewer than
    three seeds, none is the median."""
    runs = {task: found for task, found in runs_of_entries().items() if "/" not in task and len(found) >= 3}
    return dict(sorted(runs.items(), key=lambda item: item[1][0]["cpu_seconds"]))


def median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run whose return is the median; of two in the middle, the lower."""
    ranked = sorted(runs, key=lambda run: run["deterministic"]["mean"])
    return ranked[(len(ranked) - 1) // 2]


def make(task: str, runs: list[dict[str, Any]]) -> None:
    """Train the agent of a task, and write its folder and its line."""
    seed = median(runs)["seed"]
    experiment = load_experiment(task, seed=seed, device="cpu")
    with TemporaryDirectory() as work, chdir(work):
        run = set_up(experiment, Options(eval_freq=0))
        train(run)
        folder = _published(run.folder, experiment)
    player = make_player(folder, folder.last_model, n_envs=10, seed=1_000)
    mean, std = player.model.evaluate(n_eval_episodes=N_EPISODES)
    append_line(
        FIGURES,
        {
            "env": task,
            "seed": seed,
            "of_seeds": len(runs),
            "steps": run.model.num_timesteps,
            "return": round(mean, 2),
            "std": round(std, 2),
            "episodes": N_EPISODES,
            "command": f"ppo-plus train --env {task} --seed {seed}",
            "versions": versions(),
        },
    )


def _published(run: RunFolder, experiment: Experiment) -> RunFolder:
    """A copy of a run among the agents, without the state of the optimizer."""
    folder = RunFolder(AGENTS / ALGO / run.path.name, experiment.env_id)
    folder.path.mkdir(parents=True)
    model = PPO_Plus.load(run.last_model, device="cpu")
    model.policy.optimizer.state.clear()
    model.save(folder.last_model)
    if folder.last_model.stat().st_size > MAX_BYTES:
        to_play(model, experiment).save(folder.last_model)
    if statistics_path(run.last_model).is_file():
        shutil.copy(statistics_path(run.last_model), statistics_path(folder.last_model))
    folder.settings.mkdir()
    for name in ("config.yml", "args.yml"):
        shutil.copy(run.settings / name, folder.settings / name)
    command = f"ppo-plus train --env {experiment.env_id} --seed {experiment.seed}\n"
    (folder.settings / "command.txt").write_text(command, encoding="utf-8")
    return folder


def to_play(model: PPO_Plus, experiment: Experiment) -> PPO_Plus:
    """A smaller model with the same actor: its weights are rounded to half precision, and its critic is one layer,
    which was not trained."""
    net_arch = model.policy.net_arch
    actor = net_arch["pi"] if isinstance(net_arch, dict) else net_arch
    with closing(make_envs(experiment, n_envs=1)) as envs:
        small = make_model(experiment.with_hyperparams({"policy_kwargs": {"net_arch": {"pi": actor, "vf": []}}}), envs)
    trained, own = model.policy.state_dict(), small.policy.state_dict()
    actors = {name: trained[name] for name in own.keys() & trained.keys() if trained[name].shape == own[name].shape}
    small.policy.load_state_dict(own | actors)
    small.num_timesteps = model.num_timesteps
    for weight in small.policy.parameters():
        weight.data = weight.data.half()
    return small


def film(task: str) -> None:
    """Draw an agent as a small GIF."""
    n_steps, width, colors = FILM
    with TemporaryDirectory() as work:
        path = Path(work, "film.gif")
        camera = ["--env-kwargs", CAMERAS[task]] if task in CAMERAS else []
        options = ["-f", str(AGENTS), "-n", str(n_steps), "--seed", "1", "-o", str(path), *camera]
        ppo_plus(["record", "--env", task, *options])
        with Image.open(path) as whole:
            duration = whole.info["duration"]
            frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(whole)][::2]
    size = width, round(width * frames[0].height / frames[0].width)
    small = [frame.resize(size).quantize(colors) for frame in frames]
    FILMS.mkdir(parents=True, exist_ok=True)
    small[0].save(
        FILMS / f"{task}.gif", save_all=True, append_images=small[1:], duration=2 * duration, loop=0, optimize=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--films", action="store_true", help="draw agents in place of training them")
    parser.add_argument("--env", nargs="+", metavar="ID", help="these tasks only")
    arguments = parser.parse_args()
    th.set_num_threads(1)
    for task, runs in measured().items():
        is_there = bool(list((AGENTS / ALGO).glob(f"{task}_*")))
        if arguments.env and task not in arguments.env:
            continue
        if arguments.films and is_there and not (FILMS / f"{task}.gif").exists():
            film(task)
        elif not arguments.films and not is_there:
            make(task, runs)


if __name__ == "__main__":
    main()
