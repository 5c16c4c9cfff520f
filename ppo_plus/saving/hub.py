"""Models on the Hugging Face Hub: folders of our runs, and models of SB3 and rl_zoo3. Reading them runs no code."""

import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ppo_plus.saving.format.container import MEMBERS, is_container, read_parts
from ppo_plus.saving.statistics import SB3_NAMES, find_statistics, read_statistics, statistics_path

#: What is downloaded, and what is neither downloaded nor uploaded; the metrics of rl_zoo3 are a zip, but not a model.
READ = ["*.zip", "*.yml", SB3_NAMES]
LEFT_OUT = ["train_eval_metrics.zip", "rl_model_*", "checkpoints/*", "*.monitor.csv", ".*"]
#: Settings of rl_zoo3, ours too, that normalize observations or may.
NORMALIZES = re.compile(r"^[ -]*normalize\W+(true|dict|norm_)", re.I | re.M)
CARD = """---
{head}
---

# PPO_Plus in {env_id}

{about}

{usage}, with {versions}, and these settings:

```yaml
{settings}
```
"""


@contextmanager
def explained(repo: str) -> Iterator[Any]:
    """The hub's library, or ``ImportError``; errors inside become a :class:`ConnectionError` that names a remedy."""
    try:
        import huggingface_hub as hub
        from huggingface_hub import constants, errors
    except ImportError as error:
        raise ImportError('huggingface_hub is missing: pip install "ppo_plus[hub]"') from error
    try:
        yield hub
    except (errors.HTTPError, OSError) as error:
        if getattr(error, "filename", None):
            raise  # a file here cannot be read or written
        remedy = "check the name and the network; to upload, or if it is private, log in: hf auth login"
        reason = " ".join(str(error).split())
        raise ConnectionError(f"repo={repo!r} on {constants.ENDPOINT} ({reason}): {remedy}") from error


def push_run(repo: str, folder: Path, settings: Path, env_id: str, logs: Path | None = None) -> str:
    """Upload the folder of a run, of which ``settings`` is the folder with the settings; see :func:`push`."""
    model, score = folder / f"{settings.name}.zip", ""
    if not is_container(model):
        raise ValueError(f"{model} is not a model of PPO_Plus: call PPO_Plus.load and push_to_hub in Python")
    if (evaluations := folder / "evaluations.npz").is_file():
        with np.load(evaluations) as saved:
            steps, returns = saved["timesteps"][-1], saved["results"][-1]
            returns = returns[~np.isnan(returns)]  # rows of other lengths end in NaN
        score = f"{returns.mean():.2f} +/- {returns.std():.2f} over {len(returns)} episodes, after {steps:,} timesteps"
    command, text = ((settings / name).read_text("utf-8").strip() for name in ("command.txt", "config.yml"))
    command = re.sub(r"^('[^']*python[^']*'|\S*python\S*)( -u)? -m ppo_plus", "ppo-plus", command)
    usage = (
        f'`ppo-plus enjoy --repo {repo}` shows it, and `PPO_Plus.from_hub("{repo}")` loads it. `{command}` trained it'
    )
    return push(repo, model, env_id, score, usage, text, logs)


def push(repo: str, model: Path, env_id: str, score: str, usage: str, settings: str, logs: Path | None = None) -> str:
    """Upload the folder of a model with a card, in place of what was there, and return the address. The card, and the
    parts of the model, which the hub can show, are also written into the folder.

    :param score: the mean return and its standard deviation, ``"1.00 +/- 0.50"``, of which episodes; ``""``: unknown
    :param settings: its arguments, as YAML
    :param logs: a folder that TensorBoard reads, which is uploaded, too
    """
    folder, results = model.parent, None
    about = f"Mean return {score}.\n\n" if score else ""
    about += "".join(f"![Episodes]({path.name})" for path in folder.glob(f"{model.stem}.gif"))
    versions = ", ".join(map(" ".join, read_parts(model, "model")[0]["packages"].items()))
    with zipfile.ZipFile(model) as archive:
        for member in MEMBERS:
            (folder / "model").with_suffix(Path(member).suffix).write_bytes(archive.read(member))
    with explained(repo) as hub:
        if score:
            task, value = "reinforcement-learning", score.partition(" over")[0]
            results = [hub.EvalResult(task, env_id, env_id, "mean_reward", value, task_name=task)]
        tags = [env_id, "reinforcement-learning", "deep-reinforcement-learning", "ppo", "stable-baselines3"]
        head = hub.ModelCardData(library_name="ppo_plus", tags=tags, model_name=repo, eval_results=results).to_yaml()
        parts = {"head": head, "env_id": env_id, "about": about, "usage": usage, "settings": settings}
        (folder / "README.md").write_text(CARD.format(versions=versions, **parts), encoding="utf-8")
        hub.create_repo(repo, exist_ok=True)
        options = {"repo_id": repo, "delete_patterns": "*", "commit_message": "Upload a model of PPO_Plus"}
        left_out = [*LEFT_OUT, "*/vecnormalize.pkl"]
        url = str(hub.upload_folder(folder_path=folder, ignore_patterns=left_out, **options).commit_url)
        if logs is not None:
            hub.upload_folder(folder_path=logs, path_in_repo="runs", **options)
        return url


def fetch(repo: str, filename: str | None = None) -> Path:
    """Download a model with its statistics and settings, and return its path; without a name, that of the last model of
    a run of ours, or else of the only one. Raises :class:`ValueError` if there are none or several."""
    with explained(repo) as hub:
        files = Path(hub.snapshot_download(repo, allow_patterns=READ, ignore_patterns=LEFT_OUT))
        if filename is not None:  # which may be one of those that are left out
            beside = statistics_path(Path(filename)).as_posix()
            hub.snapshot_download(repo, allow_patterns=[filename, beside, SB3_NAMES])
    last = [f"{path.parent.name}.zip" for path in files.glob("*/args.yml")]
    left_out = [*LEFT_OUT, statistics_path(Path("*")).name]
    # The cache also has what other calls and programs downloaded.
    zips = {path.relative_to(files).as_posix(): path for path in sorted(files.rglob("*.zip"))}
    found = [name for name, path in zips.items() if not any(map(path.match, left_out))]
    names = [filename] if filename else last or [name for name in found if "/" not in name]
    if len(names) != 1 or names[0] not in zips:
        raise ValueError(f"repo={repo!r} has the files {found}: load one in Python, from_hub(repo, filename=...)")
    return zips[names[0]]


def observation_statistics(model: Path, depth: int) -> tuple[Path | None, bool]:
    """The statistics by which a model's observations are normalized, if its repository has them, and whether settings
    there say that they are; ``depth``: in how many folders the model lies."""
    folders = [*model.parents[1 : depth + 1], *sorted(model.parent.glob("*/"))]
    source = find_statistics(model, *folders)
    if source is not None and not read_statistics(source)["norm_obs"]:
        return None, False
    settings = [path.read_text("utf-8", "replace") for at in (model.parent, *folders) for path in at.glob("config.yml")]
    return source, any(map(NORMALIZES.search, settings))
