"""A confirmed winner as an entry of a settings file, with where it comes from."""

import shlex
from importlib.metadata import version
from pathlib import Path

import yaml

from ppo_plus import __version__
from ppo_plus.saving.format.atomic import write_text
from ppo_plus.zoo.experiment import Experiment
from ppo_plus.zoo.hyperparams import format_literal
from ppo_plus.zoo.runs import file_name
from ppo_plus.zoo.tune.plan import counted
from ppo_plus.zoo.tune.task import TuningTask
from ppo_plus.zoo.tune.verdict import TuningVerdict

PACKAGES = ("torch", "stable_baselines3", "gymnasium", "optuna")


def export(verdict: TuningVerdict, task: TuningTask, study_name: str, path: Path) -> bool:
    """Write the winner's settings, which both this package and rl_zoo3 read.

    :param verdict: what the study has found
    :param task: the study's task
    :param study_name: the study's name
    :param path: the YAML file
    :return: whether there was a winner; else no file is left
    """
    if verdict.winner is None:
        path.unlink(missing_ok=True)
        return False
    finalist = verdict.finalists[verdict.winner]
    origin = [
        f"Found by ppo-plus tune: study {study_name}, {finalist.name}, with {versions()}.",
        str(verdict),
        f"On seed {task.plan.seed} the trial's score was {finalist.screening_scores[0]!r}, the mean of the last "
        f"{counted(task.plan.last_evals, 'evaluation')}, and is again:",
        retrain_command(task, Path(path.name)),
    ]
    entry = yaml.safe_dump({task.experiment.env_id: finalist.settings}, sort_keys=False)
    write_text(path, "".join(f"# {line}\n" for line in origin) + entry)
    return True


def entry_path(task: TuningTask, folder: Path) -> Path:
    """Where a winner's entry is written."""
    return folder / f"{file_name(task.experiment.env_id)}.yml"


def retrain_command(task: TuningTask, path: Path) -> str:
    """The command that trains with an exported entry as its trial did."""
    plan, experiment = task.plan, task.experiment
    words: list[object] = ["ppo-plus", "train", "--env", experiment.env_id, "-conf", path, "--seed", plan.seed]
    words += ["--eval-freq", plan.eval_freq, "--eval-episodes", plan.n_eval_episodes]
    words += ["--n-eval-envs", plan.n_eval_envs]
    if experiment.eval_env_kwargs:
        given = experiment.eval_env_kwargs.items()
        words += ["--eval-env-kwargs", *(f"{key}:{format_literal(value)}" for key, value in given)]
    for field in ("vec_env", "device"):
        value = getattr(experiment, field)
        if value != Experiment.__dataclass_fields__[field].default:
            words += [f"--{field.replace('_', '-')}", value]
    if task.gym_packages:
        words += ["--gym-packages", *task.gym_packages]
    if task.packages is None:
        words.append("--trust-config")
    return shlex.join(map(str, words))


def versions() -> str:
    """The packages that results depend on, and their versions."""
    packages = [("ppo_plus", __version__), *((name, version(name)) for name in PACKAGES)]
    return ", ".join(f"{name} {number}" for name, number in packages)
