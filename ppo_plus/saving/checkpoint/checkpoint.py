"""Checkpoints: all that training needs to resume exactly where it was.

Beside the model, a checkpoint contains the state of the process: random generators, environments in the middle of
episodes, callbacks, and lengths of log files. State can only be captured between rollouts: no rollout has to be saved.
"""

import copy
import io
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus.distributed.ranks import Ranks, frozen_weights
from ppo_plus.envs.checks import check_shape
from ppo_plus.envs.resumable import state as env_state
from ppo_plus.envs.resumable.attributes import NotResumableError
from ppo_plus.generators import derived_seed
from ppo_plus.require import require_int, require_kind, require_number
from ppo_plus.saving.checkpoint import process_state
from ppo_plus.saving.format import container
from ppo_plus.saving.format.names import Damaged, decoding
from ppo_plus.saving.format.values import Undescribable
from ppo_plus.saving.model import M, SavedModel, argument_attributes, assemble, refusal_of, sampled_of, state_of
from ppo_plus.settings import SCHEDULED
from ppo_plus.trees import tree_map

#: The largest part of the training time that capturing the state in memory may take.
SHARE = 0.01
KIND = "checkpoint"
#: A further part, if there are several processes: the checkpoints of the others by rank.
OTHERS = "others"


def take(model: SavedModel, folder: str | Path = ".", logs: Sequence[str] = ()) -> dict[str, Any]:
    """The state of a model as a checkpoint; of several processes, which all call this, the first gets all states."""
    if model.env is None:
        raise ValueError("the model has no environment, whose state a checkpoint contains: call set_env(env) first")
    if not model.call.between_rollouts:
        remedy = "use ppo_plus.Checkpoints, or save in on_rollout_start, or after a call of learn without an error"
        raise RuntimeError(f"state can only be captured between two rollouts: {remedy}")
    # Before anything that could draw random numbers.
    generators = process_state.get_generators()
    state = state_of(model)
    missing = state["missing"]
    if needed := [reason for name, reason in missing.items() if name in argument_attributes(type(model))]:
        raise Undescribable(f"a checkpoint cannot contain all of the model: {needed[0]}")
    if missing:
        reasons = "; ".join(missing.values())
        warnings.warn(f"checkpoints lack {' and '.join(missing)}: set it again after resume ({reasons})", stacklevel=3)
    ranks, call, policy = model.ranks, model.call, model.policy
    persistent = policy.state_dict().keys()
    # These are not in the policy's state.
    buffers = {name: buffer.clone() for name, buffer in policy.named_buffers() if name not in persistent}
    checkpoint: dict[str, Any] = {
        "call": None,
        "generators": generators,
        "model": copy.deepcopy(state),
        "policy": {"frozen": frozen_weights(policy), "buffers": buffers, "noise": copy.deepcopy(policy._noise)},
        "env": env_state.get_state(model.env),
        "log_files": process_state.sizes(folder, logs),
        "num_timesteps": model.num_timesteps,
        "rank": ranks.rank,
    }
    if call.resumed is not None:  # it has not learned since
        checkpoint |= {name: call.resumed[name] for name in ("call", "generators", "log_files")}
    elif call.callbacks and call.total_timesteps is not None:  # None: a loop by hand, which no call continues
        callbacks = zip(call.callbacks, call.configured, strict=True)
        checkpoint["call"] = {
            "total_timesteps": call.total_timesteps,
            "iteration": call.iteration,
            "callbacks": [process_state.get_callback(*pair) for pair in callbacks],
            "logger": process_state.get_logger(model.logger),
        }
    if ranks.several:
        file = io.BytesIO()
        if not ranks.leads:
            container.write(file, KIND, checkpoint)
        _, *others = ranks.gather_values(file.getvalue())
        if ranks.leads:
            checkpoint[OTHERS] = [container.read(io.BytesIO(data), KIND) for data in others]
    return checkpoint


def write(folder: str | Path, checkpoint: dict[str, Any], keep: int | None = None) -> Path:
    """Write a checkpoint to a file, which is returned; of several processes, the first writes that of all."""
    path = Path(folder) / f"checkpoint_{checkpoint['num_timesteps']:012d}.zip"
    if not checkpoint["rank"]:
        container.write(path, KIND, checkpoint)
        if (reason := refusal_of(checkpoint["model"])) is not None:
            warnings.warn(f"resume would raise an error: {reason}", stacklevel=4)
        for old in files(folder)[keep:] if keep else []:
            old.unlink(missing_ok=True)
    return path


def files(folder: str | Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    return sorted(Path(folder).glob(f"checkpoint_{'[0-9]' * 12}.zip"), reverse=True)


def steps_of(path: Path) -> int:
    """The number of timesteps at which a checkpoint from :func:`files` was taken."""
    return int(path.stem.removeprefix("checkpoint_"))


def set_aside(folder: str | Path, num_timesteps: int) -> Path | None:
    """Move files with more timesteps into a subfolder, which is returned: they would be found as the newest ones."""
    if not (others := [path for path in files(folder) if steps_of(path) > num_timesteps]):
        return None
    subfolder = next(path for i in count(1) if not (path := Path(folder) / f"earlier_{i}").exists())
    subfolder.mkdir()
    for path in others:
        path.rename(subfolder / path.name)
    return subfolder


def read(path: Path) -> list[dict[str, Any]]:
    """The checkpoints in a file, by rank of their process, each with the ``"folder"`` that names of logs start in."""
    checkpoint = container.read(path, KIND)
    with container.naming(path, "checkpoint"), decoding():
        return [part | {"folder": path.parent} for part in (checkpoint, *checkpoint.pop(OTHERS, ()))]


def resume(cls: type[M], folder: str | Path, env: GymEnv, device: th.device | str, kwargs: dict[str, Any]) -> M:
    """See :meth:`ppo_plus.PPO_Plus.resume`, of which ``cls`` is a class."""
    paths = [Path(folder)] if Path(folder).is_file() else files(folder)
    env = cls._wrap_env(env, kwargs.get("verbose", 0))
    for path in paths:
        try:
            parts = read(path)
            with container.naming(path, "checkpoint"):
                return _resumed(cls, parts, env, device, kwargs)
        except Damaged as error:
            if path == paths[-1]:
                raise
            warnings.warn(f"{error}; resuming from the one before", stacklevel=3)
    raise FileNotFoundError(f"{folder} has no checkpoint (checkpoint_*.zip)")


def _resumed(
    cls: type[M], parts: list[dict[str, Any]], env: VecEnv, device: th.device | str, kwargs: dict[str, Any]
) -> M:
    """The model of a checkpoint, in its environments; raises :class:`Damaged` if it is not valid."""
    ranks, n = Ranks.present(), len(parts)
    if n != ranks.size:
        remedy = f"start {n} (ppo-plus train: --processes {n})"
        raise ValueError(f"the checkpoint is of {n} processes, and there are {ranks.size} now: {remedy}")
    checkpoint = parts[ranks.rank]
    call = checkpoint["call"]
    if call is not None:
        kwargs = {"tensorboard_log": None, **kwargs}  # whose files are continued, or named in a warning, by ``learn``
    model = assemble(cls, checkpoint["model"], env, device, False, kwargs)
    assert model.env is not None
    if sampled := sampled_of({name: getattr(model, name) for name in SCHEDULED}):
        rounded = f"{' and '.join(sampled)}: the checkpoint has values of a function, rounded between its points"
        remedy = f"pass {'=, '.join(sampled)}= to resume"
        warnings.warn(f"{rounded}, so that the run may differ in its last bits: {remedy}", stacklevel=4)
    with decoding(passing=(ValueError,)):  # of other environments
        for name, weight in model.policy.named_parameters():
            weight.requires_grad_(name not in checkpoint["policy"]["frozen"])
        for name, buffer in model.policy.named_buffers():
            if name in checkpoint["policy"]["buffers"]:
                buffer.copy_(checkpoint["policy"]["buffers"][name])
        if "exploration" not in kwargs and "noise" in checkpoint["policy"]:  # older files lack it
            noise = checkpoint["policy"]["noise"]
            model.policy._noise = tree_map(lambda part: part.to(model.policy.device), noise)
        states = checkpoint["env"]
        try:
            reason = env_state.set_state(model.env, states)
        except (NotResumableError, ValueError) as error:
            raise ValueError(str(error)) from error
        except Exception as error:
            raise ValueError(f"env: its set_state raised {error!r}") from error
    with decoding():
        if model._last_obs is not None:
            check_shape(model._last_obs, model.env.observation_space, model.env.num_envs)
        if call is not None:
            model.call.total_timesteps, model.call.iteration = call["total_timesteps"], call["iteration"]
            model.call.resumed = checkpoint
    if reason is not None:
        warnings.warn(f"new episodes start: {reason}", stacklevel=4)
        if model.seed is not None:
            # The seed itself would repeat the first episodes.
            entropy = [model.seed, model.num_timesteps, *([ranks.rank] if ranks.rank else [])]
            model.env.seed(derived_seed(entropy))
        model._last_obs = None
    with decoding():
        process_state.set_generators(checkpoint["generators"])
    return model


@contextmanager
def logs_continued(model: SavedModel, tb_log_name: str) -> Iterator[None]:
    """While a model sets up its logger: continue TensorBoard's files of the call that was interrupted."""
    resumed, logger = model.call.resumed, None
    if resumed is not None and not model._custom_logger:
        with container.naming(resumed["folder"], "checkpoint"):
            logger = process_state.reopen(resumed["call"]["logger"], model.tensorboard_log, tb_log_name, model.verbose)
    if logger is not None:
        model.set_logger(logger)
    yield
    if logger is not None:
        model._custom_logger = False


def restore(model: SavedModel) -> None:
    """Restore the rest of a checkpoint, once the call of ``learn`` that was interrupted has started again."""
    if (resumed := model.call.resumed) is None:
        return
    with container.naming(resumed["folder"], "checkpoint"), decoding():
        process_state.set_callbacks(model.call.callbacks, resumed["call"]["callbacks"])
        process_state.set_logger(model.logger, resumed["call"]["logger"])
        # Last, since what comes before may draw, or raise an error.
        process_state.set_generators(resumed["generators"])
    model.call.resumed = None


class Checkpoints(BaseCallback):
    """Writes checkpoints during ``learn``, from which :meth:`ppo_plus.PPO_Plus.resume` continues exactly.

    One is written at the beginning, and then at the start of the first rollout after each multiple of ``save_freq`` and
    after ``minutes``. If writing fails, there is a warning and training continues; earlier files are unchanged. When
    training begins, files with more timesteps or of another run are moved into a subfolder, with a warning.

    :param folder: the folder for the files, ``checkpoint_<timesteps>.zip``
    :param save_freq: environment steps between two of them, over all environments, at least 1; ``None``: by time only
    :param minutes: time between two of them, above 0; ``None``: by steps only
    :param keep: the number of newest files to keep, at least 1
    :param logs: patterns of files below ``folder`` that are only appended to, such as ``"../*.monitor.csv"``: when
        training resumes from this folder, they are cut to their length at the checkpoint, and no others
    :raises ValueError: an argument is out of range
    :raises TypeError: an argument is of the wrong kind
    """

    model: SavedModel
    #: See :class:`ppo_plus.call.Call`.
    comes_first = in_all_processes = True

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
        require_kind("logs", logs, (list, tuple), 'a list of patterns, such as ["../*.monitor.csv"]')
        self.folder, self.save_freq, self.minutes, self.keep, self.logs = Path(folder), save_freq, minutes, keep, logs
        #: The state at the beginning of the present rollout, or of one shortly before.
        self.latest: dict[str, Any] | None = None
        self._taken, self._cost = -math.inf, 0.0

    def _on_training_start(self) -> None:
        self.written_at, self.written_time = -1, time.monotonic()
        resumed = self.model.call.resumed
        if resumed is not None and resumed["folder"].resolve() == self.folder.resolve():
            with container.naming(self.folder, "checkpoint"):
                process_state.cut(self.folder, self.logs, resumed["log_files"])
        leads = self.model.ranks.leads
        begins = resumed is None and self.num_timesteps == 0  # and so has no files yet
        subfolder = set_aside(self.folder, -1 if begins else self.num_timesteps) if leads else None
        if subfolder is not None:
            moved = f"{self.folder} had later checkpoints, or those of another run, which are in {subfolder} now"
            warnings.warn(f"{moved}: to resume from them, pass that folder to resume", stacklevel=2)

    def _on_rollout_start(self) -> None:
        is_due, start = self._is_due(), time.monotonic()
        ranks: Ranks = self.model.ranks
        # The same decision in all processes.
        is_due, is_wanted = ranks.lead((is_due, is_due or (start - self._taken) * SHARE >= self._cost))
        if is_wanted:
            self.latest = take(self.model, self.folder, self.logs)
            self._taken = time.monotonic()
            self._cost = self._taken - start
        if is_due:
            # Even if writing fails, so that it is not tried in every rollout.
            self.written_at, self.written_time = self.num_timesteps, time.monotonic()
            self.write()

    def _is_due(self) -> bool:
        steps = self.save_freq is not None and self.num_timesteps // self.save_freq > self.written_at // self.save_freq
        time_is_up = self.minutes is not None and time.monotonic() > self.written_time + 60 * self.minutes
        return self.written_at < 0 or steps or time_is_up

    def _on_step(self) -> bool:
        return True

    def write(self) -> Path | None:
        """Write the latest state, also in the middle of a rollout, or after an error; ``None`` if that fails."""
        if self.latest is None:
            return None
        try:
            return write(self.folder, self.latest, self.keep)
        except OSError as error:
            timesteps = self.latest["num_timesteps"]
            warnings.warn(f"no checkpoint after {timesteps} timesteps: {error}; training continues", stacklevel=2)
            return None

    def get_state(self) -> dict[str, Any]:
        return {"written_at": self.written_at}

    def set_state(self, state: dict[str, Any]) -> None:
        self.written_at = state["written_at"]
