"""Checkpoints: all that training needs to resume exactly where it was.

Beside the model, a checkpoint contains the state of the process: the random generators, the environments in the middle
of their episodes, the state of callbacks, and the lengths of log files. State can only be captured between rollouts, so
that no rollout has to be saved.
"""

import copy
import math
import re
import time
import warnings
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch as th
from stable_baselines3.common import utils
from stable_baselines3.common.callbacks import BaseCallback

from ppo_plus.distributed.ranks import Ranks
from ppo_plus.envs.resumable import state as env_state
from ppo_plus.generators import derived_seed
from ppo_plus.require import require_int, require_number
from ppo_plus.saving.checkpoint import log_state, random_state
from ppo_plus.saving.checkpoint.call import Call
from ppo_plus.saving.format import container
from ppo_plus.saving.format.names import Damaged
from ppo_plus.saving.format.values import Undescribable
from ppo_plus.saving.model import assemble, state_of
from ppo_plus.saving.sb3.from_sb3 import argument_attributes

#: The largest part of the training time that capturing the state in memory may take.
SHARE = 0.01
KIND = "checkpoint"
#: The parts of a checkpoint.
PARTS = {
    "call": "the call of learn: total_timesteps, iteration (rollouts), callbacks; null outside of one",
    "generators": "the random generators of the process",
    "model": "the parts of a model file",
    "policy": "which weights are frozen, and the buffers that a model file does not have",
    "env": "the state of the environments",
    "log": "the values that are recorded and not written, and the sizes of TensorBoard's files",
    "logs": "the sizes of other log files, and the patterns that find them",
    "num_timesteps": "of the model",
    "rank": "of the process",
    "ranks": "the number of processes",
    "moment": "a name that the files of several processes have in common; null for one process",
}
PATTERN = "checkpoint_*.zip"
#: Each process but the first has a file with its rank: ``checkpoint_000000002048_rank1.zip``.
NAME = re.compile(r"checkpoint_(?P<steps>\d+)(?:_rank(?P<rank>\d+))?\.zip")


def take(model: Any, folder: str | Path = ".", logs: Sequence[str] = (), moment: str | None = None) -> dict[str, Any]:
    """The present state of a model as a checkpoint; nothing in it changes with the model.

    :param model: a :class:`~ppo_plus.PPO_Plus` with environments
    :param folder: the folder that it is going to be written to
    :param logs: patterns of files that are only appended to, below ``folder``; see :class:`Checkpoints`
    :param moment: a unique name, which several processes have in common
    :raises RuntimeError: a rollout is not finished
    """
    if not model.call.between_rollouts:
        raise RuntimeError(
            "state can only be captured between two rollouts: save a checkpoint in a callback's on_rollout_start, or "
            "after learn, or use ppo_plus.Checkpoints"
        )
    return {
        "call": model.call.state(),
        # Before anything that could draw random numbers.
        "generators": random_state.get_states(),
        "model": _copied_state(model),
        "policy": _policy_extras(model.policy),
        "env": env_state.get_state(model.env),
        "log": log_state.get_state(model.logger) if model.call.callbacks is not None else None,
        "logs": {"patterns": list(logs), "kept": log_state.sizes(folder, logs)},
        "num_timesteps": model.num_timesteps,
        "rank": model.ranks.rank,
        "ranks": model.ranks.size,
        "moment": moment,
    }


def _copied_state(model: Any) -> dict[str, Any]:
    """:raises Undescribable: something that a model is made of can only be pickled"""
    state = state_of(model)
    needed = [reason for name, reason in state["missing"].items() if name in argument_attributes(type(model))]
    if needed:
        raise Undescribable(f"a checkpoint cannot contain all of the model: {needed[0]}")
    return copy.deepcopy(state)


def _policy_extras(policy: th.nn.Module) -> dict[str, Any]:
    """What ``state_dict()`` of a policy does not have: which weights are frozen, and non-persistent buffers."""
    kept = policy.state_dict().keys()
    return {
        "frozen": [name for name, weight in policy.named_parameters() if not weight.requires_grad],
        "buffers": {name: buffer.clone() for name, buffer in policy.named_buffers() if name not in kept},
    }


def _put_policy_extras(policy: th.nn.Module, state: dict[str, Any]) -> None:
    for name, weight in policy.named_parameters():
        weight.requires_grad_(name not in state["frozen"])
    for name, buffer in policy.named_buffers():
        if name in state["buffers"]:
            buffer.data = state["buffers"][name].to(buffer.device)


def write(folder: str | Path, checkpoint: dict[str, Any], keep: int | None = None) -> Path:
    """Write a checkpoint, completely or not at all.

    :param folder: the folder
    :param checkpoint: from :func:`take`
    :param keep: the number of files to leave in the folder, at least 1; ``None``: all
    :return: its file
    :raises OSError: it cannot be written
    :raises Undescribable: it has a value that can only be pickled
    """
    path = _path(folder, checkpoint["num_timesteps"], checkpoint["rank"])
    container.write(path, KIND, checkpoint)
    if keep is not None:
        _prune(folder, checkpoint["rank"], keep)
    return path


def _prune(folder: str | Path, rank: int, keep: int) -> None:
    """Delete all but the newest files of a process."""
    for old in files(folder, rank)[keep:]:
        old.unlink(missing_ok=True)


def files(folder: str | Path, rank: int = 0) -> list[Path]:
    """The checkpoints in a folder, newest first.

    :param folder: the folder
    :param rank: the process
    """
    return sorted((path for path, name in _named(folder) if int(name["rank"] or 0) == rank), reverse=True)


def steps_of(path: Path) -> int:
    """The number of timesteps at which a checkpoint was taken.

    :param path: from :func:`files`
    """
    name = NAME.fullmatch(path.name)
    assert name is not None
    return int(name["steps"])


def _named(folder: str | Path) -> list[tuple[Path, re.Match[str]]]:
    """The checkpoints of all processes in a folder, with their parsed names."""
    found = [(path, NAME.fullmatch(path.name)) for path in Path(folder).glob(PATTERN)]
    return [(path, name) for path, name in found if name]


def set_aside(folder: str | Path, num_timesteps: int) -> Path | None:
    """Move the files of another run, of all processes, into a subfolder: the newest file is found by its number of
    timesteps, and theirs may be larger.

    :param folder: the folder
    :param num_timesteps: where training begins; at 0 all files are another run's, and else those with more timesteps
    :return: the subfolder; ``None``: there was no such file
    :raises OSError: a file cannot be moved
    """
    others = [path for path, name in _named(folder) if not num_timesteps or int(name["steps"]) > num_timesteps]
    if not others:
        return None
    subfolders = (Path(folder) / f"earlier_{number}" for number in count(1))
    subfolder = next(each for each in subfolders if not each.exists())
    subfolder.mkdir()
    for path in others:
        path.rename(subfolder / path.name)
    return subfolder


def _path(folder: str | Path, num_timesteps: int, rank: int) -> Path:
    return Path(folder) / f"checkpoint_{num_timesteps:012d}{f'_rank{rank}' if rank else ''}.zip"


def read(folder: str | Path) -> dict[str, Any]:
    """The newest valid checkpoint in a folder.

    :param folder: the folder, or the file of a checkpoint
    :raises FileNotFoundError: there is none
    :raises Damaged: none is valid
    """
    found = [Path(folder)] if Path(folder).is_file() else files(folder)
    if not found:
        raise FileNotFoundError(f"{folder} has no checkpoint ({PATTERN})")
    *newer, oldest = found
    for path in newer:
        try:
            return _read(path)
        except Damaged as error:
            warnings.warn(f"{error}; resuming from the one before", stacklevel=3)
    return _read(oldest)


def _read(path: Path) -> dict[str, Any]:
    """The checkpoint in a file; the paths of its logs are relative to the file's present folder."""
    checkpoint = container.read(path, KIND)
    if not isinstance(checkpoint, dict) or checkpoint.keys() != PARTS.keys():
        with container.naming(path, "checkpoint"):
            raise Damaged("it has other parts")
    return {**checkpoint, "logs": {**checkpoint["logs"], "folder": path.parent}}


def read_in_all_processes(folder: str | Path, ranks: Ranks) -> dict[str, Any]:
    """The newest checkpoint of which all processes have a valid file; if it is of another number of processes, the file
    of the first.

    :param folder: the folder
    :param ranks: the processes, which all call this
    :raises FileNotFoundError: there is none
    :raises Damaged: none is valid
    """
    if Path(folder).is_file():
        raise FileNotFoundError(f"{folder} is the checkpoint of one process of several: pass its folder")
    found = ranks.lead([path.name for path in files(folder)])
    if not found:
        raise FileNotFoundError(f"{folder} has no checkpoint ({PATTERN})")
    for name in found:
        lead = _try(Path(folder) / name)
        same = lead is not None and lead["ranks"] == ranks.size
        own = _try(_path(folder, lead["num_timesteps"], ranks.rank)) if lead and same else lead
        # A file of the same step may be of an earlier attempt.
        if all(ranks.gather_values(own is not None and lead is not None and own["moment"] == lead["moment"])):
            assert own is not None
            return own
        if ranks.leads:
            warnings.warn(f"{name} is not valid in all processes; resuming from the one before", stacklevel=3)
    raise Damaged(f"{folder} has no checkpoint that is valid in all {ranks.size} processes")


def _try(path: Path) -> dict[str, Any] | None:
    """The checkpoint in a file; ``None``: it is damaged or missing."""
    try:
        return _read(path)
    except (Damaged, OSError):
        return None


def resume(cls: Any, folder: str | Path, env: Any, device: th.device | str, kwargs: dict[str, Any]) -> Any:
    """See :meth:`ppo_plus.PPO_Plus.resume`, of which ``cls`` is a class."""
    ranks = Ranks.present()
    checkpoint = read_in_all_processes(folder, ranks) if ranks.several else read(folder)
    model = assemble(cls, checkpoint["model"], env, device, False, kwargs)
    _put_policy_extras(model.policy, checkpoint["policy"])
    if checkpoint["ranks"] == ranks.size:
        reason = env_state.set_state(model.env, checkpoint["env"])
    else:
        reason = f"the checkpoint is of {checkpoint['ranks']} processes, and there are {ranks.size} now"
        if "batch_size" not in kwargs:
            model.batch_size = _divided(model.batch_size * checkpoint["ranks"], ranks.size)
        env_state.set_statistics(model.env, checkpoint["env"])
        checkpoint = _for_another_number(checkpoint, ranks, model.seed)
    if reason is not None:
        warnings.warn(f"new episodes start: {reason}", stacklevel=3)
        if model.seed is not None:
            # The seed itself would repeat the first episodes.
            entropy = [model.seed, model.num_timesteps, *([ranks.rank] if ranks.rank else [])]
            model.env.seed(derived_seed(entropy))
        model.collector.interrupt()
    random_state.set_states(checkpoint["generators"])
    call = checkpoint["call"]
    if call is not None:
        model.call = Call(call["total_timesteps"])
        model.call.iteration, model.call.resumed = call["iteration"], checkpoint
    return model


def _divided(batch_size: int, n_processes: int) -> int:
    """Each process's share of a minibatch, whose total size is unchanged."""
    if batch_size % n_processes:
        raise ValueError(
            f"minibatches of {batch_size} transitions cannot be divided among {n_processes} processes: use a "
            f"number of processes that divides {batch_size}"
        )
    return batch_size // n_processes


def _for_another_number(checkpoint: dict[str, Any], ranks: Ranks, seed: int | None) -> dict[str, Any]:
    """The checkpoint of the first of some processes, for each of more or fewer."""
    logs = checkpoint["logs"]
    if ranks.leads:
        # The logs of all those that there were.
        others = [_try(_path(logs["folder"], checkpoint["num_timesteps"], i)) for i in range(1, checkpoint["ranks"])]
        for other in others:
            if other is not None:
                log_state.cut(**other["logs"])
        return checkpoint
    entropy = None if seed is None else [seed, checkpoint["num_timesteps"], ranks.rank]
    utils.set_random_seed(derived_seed(entropy))
    call = checkpoint["call"] and {**checkpoint["call"], "callbacks": []}
    nothing: dict[str, Any] = {"values": {}, "counts": {}, "excluded": {}, "folder": None, "sizes": {}}
    changes = {"call": call, "log": nothing, "logs": {**logs, "patterns": []}, "generators": random_state.get_states()}
    return {**checkpoint, **changes}


class Checkpoints(BaseCallback):
    """Writes checkpoints during ``learn``, from which :meth:`ppo_plus.PPO_Plus.resume` continues exactly.

    One is written at the beginning, and then at the start of the first rollout after each multiple of ``save_freq`` and
    after ``minutes``. If writing fails, there is a warning and training continues; earlier files are unchanged. Files
    of another run in the folder are moved into a subfolder when training begins, with a warning.

    :param folder: the folder for the files, ``checkpoint_<timesteps>.zip``
    :param save_freq: environment steps between two of them, over all environments together, at least 1; ``None``: by
        time only
    :param minutes: time between two of them, above 0; ``None``: by steps only
    :param keep: the number of newest files to keep, at least 1
    :param logs: patterns of files below ``folder`` that are only appended to, such as ``"../*.monitor.csv"``: when
        training resumes, they are cut to their length at the checkpoint
    :raises ValueError: an argument is out of range
    """

    saved_as = "Checkpoints"
    #: Of all callbacks; see :meth:`ppo_plus.saving.checkpoint.call.Call.watch`.
    comes_first = True
    #: See :attr:`ppo_plus.saving.checkpoint.call.Call.in_all_processes`.
    in_all_processes = True

    def __init__(
        self,
        folder: str | Path,
        save_freq: int | None = None,
        minutes: float | None = 10.0,
        keep: int = 3,
        logs: Sequence[str] = (),
    ):
        super().__init__()
        require_int("save_freq", save_freq, 1, or_none=True)
        require_number("minutes", minutes, 0, 1e9, above=True, or_none=True)
        require_int("keep", keep, 1)
        self.folder, self.save_freq, self.minutes, self.keep, self.logs = Path(folder), save_freq, minutes, keep, logs
        #: The state at the beginning of the present rollout, or of one shortly before.
        self.latest: dict[str, Any] | None = None
        self._taken, self._cost = -math.inf, 0.0

    def _on_training_start(self) -> None:
        self.written_at, self.written_time = -1, time.monotonic()
        self._begins = self.model.call.resumed is None  # type: ignore[attr-defined]
        if self._begins:
            if self._ranks.leads:
                self._set_aside()
            # No process writes before that.
            self._ranks.lead(None)

    def _set_aside(self) -> None:
        subfolder = set_aside(self.folder, self.num_timesteps)
        if subfolder is not None:
            warnings.warn(
                f"{self.folder} had checkpoints of another run, which are in {subfolder} now: to resume it, pass that "
                "folder to resume",
                stacklevel=2,
            )

    def _on_rollout_start(self) -> None:
        is_due, start = self.written_at < 0 or self._is_due(), time.monotonic()
        is_wanted = is_due or (start - self._taken) * SHARE >= self._cost
        moment = None
        if self._ranks.several:
            # The same decision in all processes.
            is_due, is_wanted, moment = self._ranks.lead((is_due, is_wanted, uuid4().hex))
        if is_wanted:
            self.latest = take(self.model, self.folder, self.logs, moment)
            self._taken = time.monotonic()
            self._cost = self._taken - start
            if self._begins and self._ranks.leads and self.latest["env"]["reason"] is not None:
                warnings.warn(
                    "a run that resumes from these checkpoints will start new episodes: "
                    f"{self.latest['env']['reason']} (see help(ppo_plus.Resumable))",
                    stacklevel=2,
                )
            self._begins = False
        if is_due:
            # Even if writing fails, so that it is not tried in every rollout.
            self.written_at, self.written_time = self.num_timesteps, time.monotonic()
            self._write_in_order()

    @property
    def _ranks(self) -> Ranks:
        return self.model.ranks  # type: ignore[attr-defined, no-any-return]

    def _write_in_order(self) -> None:
        """Write, the first process after the others: its file implies that theirs exist. Then remove older ones."""
        ranks = self._ranks
        if not ranks.several:
            self.write()
            return
        others = ranks.gather_values(ranks.leads or self.write() is not None)
        if ranks.lead(ranks.leads and all(others) and self.write() is not None):
            _prune(self.folder, ranks.rank, self.keep)

    def _is_due(self) -> bool:
        by_steps = (
            self.save_freq is not None and self.num_timesteps // self.save_freq > self.written_at // self.save_freq
        )
        return by_steps or (self.minutes is not None and time.monotonic() > self.written_time + 60 * self.minutes)

    def _on_step(self) -> bool:
        return True

    def write(self) -> Path | None:
        """Write the latest state, also in the middle of a rollout, or after an error.

        :return: the file; ``None`` if it could not be written
        """
        if self.latest is None:
            return None
        try:
            return write(self.folder, self.latest, None if self._ranks.several else self.keep)
        except OSError as error:
            timesteps = self.latest["num_timesteps"]
            warnings.warn(f"no checkpoint after {timesteps} timesteps: {error}; training continues", stacklevel=2)
            return None

    def get_state(self) -> dict[str, Any]:
        """The timesteps at which the last file was written."""
        return {"written_at": self.written_at}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.written_at = state["written_at"]
