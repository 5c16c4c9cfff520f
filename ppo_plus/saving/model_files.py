"""A model as files: what SB3 calls ``save`` and ``load``, checkpoints, exports, SB3's own zips, and copies."""

import io
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import torch as th
from gymnasium.vector import AsyncVectorEnv
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.utils import get_system_info
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnvWrapper, VecNormalize

from ppo_plus.envs.layers import layers
from ppo_plus.envs.normalization import normalized_by, warn_of_statistics
from ppo_plus.envs.supervised.vec_env import SupervisedVecEnv
from ppo_plus.formulas.schedules import Constant
from ppo_plus.require import require_installed
from ppo_plus.saving.checkpoint import checkpoint
from ppo_plus.saving.checkpoint.process_state import plain_attributes
from ppo_plus.saving.export import Normalization, export, outermost
from ppo_plus.saving.files import file_name
from ppo_plus.saving.format.container import PathOrFile, is_container, naming
from ppo_plus.saving.format.names import constructor_arguments
from ppo_plus.saving.hub import fetch, observation_statistics, push
from ppo_plus.saving.model import (
    SavedModel,
    argument_attributes,
    assemble,
    changed_attributes,
    check_optimizer_state,
    layout,
    read_model,
    save_model,
)
from ppo_plus.saving.sb3.from_sb3 import read_sb3
from ppo_plus.saving.sb3.to_sb3 import to_sb3
from ppo_plus.saving.statistics import move_into, statistics_path, write_statistics
from ppo_plus.settings import Settings
from ppo_plus.update.update import torch_defaults

#: A copy of a model has no environments that contain one of these, which cannot be copied.
NOT_COPIED = (VecEnvWrapper, SubprocVecEnv, SupervisedVecEnv, AsyncVectorEnv)


class ModelFiles(SavedModel):
    """A model that can be saved, loaded, exported and copied: what :class:`ppo_plus.PPO_Plus` has of files."""

    #: A folder of logs that only a file asks for; a loaded model writes nothing there.
    _log_of_file: str | None = None
    #: See :meth:`ppo_plus.PPO_Plus.evaluate`.
    evaluate: Callable[..., Any]

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        """As SB3's; an interrupted call of ``learn`` continues with the timesteps that are left, and its logs."""
        if self._log_of_file is not None and self.tensorboard_log is None:
            warnings.warn(
                f"the model was saved with tensorboard_log={self._log_of_file!r}, which is not a relative folder "
                "below the working folder: pass tensorboard_log= to load, or set model.tensorboard_log, to log there",
                stacklevel=4,
            )
        if self.tensorboard_log is not None:
            require_installed("tensorboard", f"tensorboard_log={self.tensorboard_log!r}")
        if self.call.resumed is not None:
            total_timesteps, reset_num_timesteps = self._total_timesteps - self.num_timesteps, False
        with checkpoint.logs_continued(self, tb_log_name):
            return super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        callback = super()._init_callback(callback, progress_bar)
        self.call.watch(callback)
        self.call.configured = [plain_attributes(part) for part in self.call.callbacks]  # to tell what changes in them
        return callback

    def save(
        self,
        path: str | Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """Save the model, in a file that cannot run code; the other arguments are SB3's. An earlier file stays until
        the new one is complete.

        What no file can describe is left out with a warning that names it, and then passed to :meth:`load`; see
        :func:`ppo_plus.register`. Of a schedule that is a lambda, the values are saved.

        :param path: where; without a suffix, ``.zip`` is added. Or an open file
        :param exclude: attributes to leave out
        :param include: attributes to keep although ``exclude`` has them
        :raises OSError: it cannot be written
        :raises ValueError: the weights, buffers or optimizer differ from those that the policy is built with
        """
        save_model(self, path, {*(exclude or ())} - {*(include or ())})

    @classmethod
    def load(  # type: ignore[override]
        cls,
        path: str | Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        trust_pickle: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Load a saved model; the arguments are SB3's. A model that SB3's ``PPO`` saved is loaded by
        :meth:`from_sb3`.

        Nothing in the file is run, and it can name classes of ppo_plus, SB3, sb3-contrib, torch and Gymnasium only, of
        the program's own modules, and those that were given to :func:`ppo_plus.register`.

        :param path: what :meth:`save` wrote, or SB3
        :param env: the environment to train in
        :param device: the device to compute on
        :param custom_objects: attributes in place of those in the file
        :param print_system_info: print the versions that are installed, and those that saved it, unless SB3 did
        :param force_reset: start new episodes, if an environment is given
        :param trust_pickle: read SB3's files with pickles as SB3 does, which runs their code
        :param kwargs: arguments to change, such as ``tensorboard_log``, which is loaded only if it is a relative folder
        :raises TypeError: there is no such argument
        :raises ValueError: the file is damaged, lacks something, or would have to be trusted
        """
        if print_system_info:
            print("== CURRENT SYSTEM INFO ==")
            get_system_info()
        changes = changed_attributes(cls, kwargs, custom_objects)
        saved = _read(cls, path, changes, print_system_info, trust_pickle)
        # Errors of environments are not the file's.
        verbose = (saved["arguments"] | changes).get("verbose", 0)
        vec_env = None if env is None else cls._wrap_env(env, verbose)
        with naming(path, "saved model"):
            model: Self = assemble(cls, saved, vec_env, device, force_reset, changes)
        model.compilation.n_planned = 0
        if env is not None:
            warn_of_statistics(model._trained_normalized, model.env)
        return model

    @classmethod
    def from_sb3(
        cls,
        path: str | Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        trust_pickle: bool = False,
        custom_objects: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Take over a trained SB3 ``PPO``, or an sb3-contrib ``MaskablePPO`` or ``RecurrentPPO``; as :meth:`load`.

        Training continues: weights, optimizer, hyperparameters and counters are copied; ``value_clip`` is ``"plain"``.

        :param path: a saved model
        :param env: the environment to train in
        :param device: the device to compute on
        :param trust_pickle: unpickle the file, which runs code in it. Without it, what the model needs is read without
            running anything if possible, and else has to be passed in ``kwargs``
        :param custom_objects: attributes in place of those in the file, as in SB3's ``load``
        :param kwargs: arguments to change on the way
        :raises TypeError: another model, or there is no such argument
        :raises ValueError: the file is damaged, or needs to be trusted
        """
        return cls.load(path, env, device, custom_objects, trust_pickle=trust_pickle, **kwargs)

    def to_sb3(self, path: str | Path | io.BufferedIOBase) -> None:
        """Save the model so that SB3's ``PPO.load`` reads it: the networks, the optimizer and SB3's arguments. With an
        LSTM, sb3-contrib's ``RecurrentPPO`` reads it, and with action masks its ``MaskablePPO``.

        Statistics of observations are written beside it, as ``NAME_vecnormalize.pkl`` for SB3's ``VecNormalize.load``.

        :param path: where; without a suffix, ``.zip`` is added. Or an open file
        :raises ImportError: sb3-contrib is needed and missing
        :raises ValueError: they have no such policies, spaces or exploration
        :raises OSError: it cannot be written
        """
        to_sb3(self, path)

    @classmethod
    def from_hub(cls, repo: str, env: GymEnv | None = None, filename: str | None = None, **kwargs: Any) -> Self:
        """Load a model of the Hugging Face Hub, which ``ppo-plus push``, SB3 or rl_zoo3 uploaded. Nothing in its files
        is run. Statistics of a ``VecNormalize`` become a part of the policy, which takes raw observations then.

        :param repo: ``"user/name"``
        :param env: the environment to train in, which does not normalize observations
        :param filename: the model's ``.zip``, if the repository has several
        :param kwargs: further arguments of :meth:`load`
        :raises ImportError: the extra is missing: ``pip install "ppo_plus[hub]"``
        :raises ConnectionError: the hub has no such repository, or cannot be reached, and its files are not cached
        :raises ValueError: as :meth:`load`, or there is no such model
        """
        path = fetch(repo, filename)
        source, is_normalized = observation_statistics(path, (filename or "").count("/"))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the model was trained on observations that (were|may have been) norm")
            model = cls.load(path, env, **kwargs)
        if source is not None and model._trained_normalized is not False:
            return model.absorb_normalization(source)
        is_normal = model.policy.observation_normalizer or any(rms.count >= 1 for rms in normalized_by(model.env))
        if (is_normalized or model._trained_normalized) and not is_normal:
            may = "" if model._trained_normalized is True else "may have "
            problem = f"repo={repo!r} has no statistics of {path.name}, which {may}learned from normalized observations"
            remedy = "get its vec_normalize.pkl, and call absorb_normalization"
            warnings.warn(f"{problem} (VecNormalize), so that its actions may be wrong: {remedy}", stacklevel=2)
        return model

    def push_to_hub(self, repo: str, env_id: str, env: GymEnv | None = None, n_eval_episodes: int = 10) -> str:
        """Upload the model to the Hugging Face Hub with its statistics and a card, in place of what was there, as
        ``ppo-plus push`` uploads a run. Use it instead of ``huggingface_sb3.package_to_hub``, which reads SB3's files.

        :param repo: ``"user/name"``, which is made if it does not exist
        :param env_id: the id of the environment, for the card
        :param env: where to measure the mean return, for the card; by default the training environment. If there is
            none, the card has no return
        :param n_eval_episodes: number of episodes, at least 1
        :return: the address
        :raises ImportError: the extra is missing: ``pip install "ppo_plus[hub]"``
        :raises ConnectionError: the hub cannot be reached, or does not allow it
        :raises ValueError: as :meth:`save`
        """
        score, normalize = "", self.get_vec_normalize_env()
        if env is not None or self.env is not None:
            mean, std = self.evaluate(n_eval_episodes, env)
            score = f"{mean:.2f} +/- {std:.2f} over {n_eval_episodes} episodes, after {self.num_timesteps:,} timesteps"
        defaults, of_machine = constructor_arguments(type(self)), {"tensorboard_log", "verbose"}
        text = ""
        for name, attribute in argument_attributes(type(self)).items():
            value = getattr(self, attribute, defaults[name])
            value = value.value if isinstance(value, Constant) else value
            if name not in of_machine and (value or None) != (defaults[name] or None):
                text += f"{name}: {value}\n"
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"{file_name(env_id)}.zip"
            self.save(path)
            if normalize is not None:
                write_statistics(normalize, statistics_path(path))
            usage = f'`PPO_Plus.from_hub("{repo}")` loads it. It was trained by `learn`'
            return push(repo, path, env_id, score, usage, text.rstrip())

    def export(self, path: str | Path, *, normalization: Normalization = "environment") -> Path:
        """Export the policy, to act by its mode as :meth:`predict` does, without this package: see :doc:`/deploying`.

        Observations are those before ``VecNormalize`` and ``VecTransposeImage``, which become a part of the policy, and
        actions those of the environment. The file is compared with :meth:`predict` before it is kept.

        :param path: a name that ends in ``.onnx``; a program of ``torch.export`` (``.pt2``) and a description
            (``.json``) of inputs and outputs are written beside it
        :param normalization: ``"environment"``: observations are normalized as in the model's environment; ``None``:
            they are not, or outside of the policy
        :return: the path
        :raises ImportError: the extra is missing: ``pip install "ppo_plus[export]"``
        :raises ValueError: whether observations are normalized is unknown, or the policy class overrides methods of
            SB3's policy
        :raises RuntimeError: what was exported acts otherwise than :meth:`predict`
        :raises OSError: it cannot be written
        """
        return export(self, path, normalization)

    def save_checkpoint(self, folder: str | Path) -> Path:
        """Write all that training needs to resume exactly, which :meth:`resume` reads.

        During ``learn``, the callback :class:`ppo_plus.Checkpoints` calls it.

        :param folder: the folder; the file is called ``checkpoint_<timesteps>.zip``
        :return: the file
        :raises RuntimeError: a rollout is not finished
        :raises OSError: it cannot be written
        """
        return checkpoint.write(folder, checkpoint.take(self))

    @classmethod
    def resume(cls, folder: str | Path, env: GymEnv, device: th.device | str = "auto", **kwargs: Any) -> Self:
        """Resume from a checkpoint exactly. If it was written during ``learn``, the next call of ``learn`` continues
        that one: pass the same arguments.

        Environments resume in their episodes (:mod:`ppo_plus.envs.resumable.state`), or start new ones with a warning.

        :param folder: a folder of checkpoints, of which the newest valid one is read, or the file of one
        :param env: environments made as those were
        :param device: the device to compute on
        :param kwargs: arguments to change, such as ``verbose``; those that change more than what is shown make another
            run. Pass ``tensorboard_log`` to continue TensorBoard's files: the folder in the file is not used
        :return: the model
        :raises TypeError: there is no such argument
        :raises FileNotFoundError: there is no checkpoint
        :raises ValueError: it is damaged, or the environments are others
        """
        return checkpoint.resume(cls, folder, env, device, changed_attributes(cls, kwargs))  # type: ignore[no-any-return]

    def set_parameters(
        self, load_path_or_dict: Any, exact_match: bool = True, device: th.device | str = "auto"
    ) -> None:
        """As SB3's: a dict such as ``get_parameters`` returns, or a file that :meth:`load` reads."""
        if not isinstance(load_path_or_dict, Mapping):
            load_path_or_dict = _read(type(self), load_path_or_dict, {})["parameters"]
        unknown = load_path_or_dict.keys() - {*self._get_torch_save_params()[0]}
        if unknown:  # SB3 would follow the name through attributes
            raise ValueError(f"the parameters have {min(unknown)[:100]!r}, which {type(self).__name__} does not have")
        super().set_parameters(dict(load_path_or_dict), exact_match, device)
        check_optimizer_state(self.policy.optimizer)

    @torch_defaults()
    def absorb_normalization(self, source: str | Path | VecNormalize | None = None) -> Self:
        """Move the statistics of a ``VecNormalize`` into the policy. From then on it takes raw observations, and acts
        on them as it did on normalized ones; a ``VecNormalize`` of the model normalizes rewards at most.

        :param source: a ``VecNormalize``, or a file of its statistics, ours or SB3's; ``None``: the model's own
        :return: the model, with ``normalize_observations`` as the ``VecNormalize`` was
        :raises ValueError: the policy normalizes already, the statistics do not fit, other wrappers are around the
            model's ``VecNormalize``, or images are normalized
        """
        own = self.get_vec_normalize_env()
        outermost(self.env, "environment")  # raises an error if other wrappers are around it
        self.normalize_observations = move_into(self.policy, own if source is None else source)
        self.built_layout = layout(self.policy)
        if own is not None:
            own.norm_obs, self._last_obs = False, None
        self._trained_normalized = False
        self.settings = Settings.of(self)
        return self

    def _excluded_save_params(self) -> list[str]:
        made_again = ["settings", "built_layout", "_warned_of_masks", "collector", "call", "ranks", "shared"]
        of_no_use = ["action_noise", "_last_original_obs", "_log_of_file"]
        return [*super()._excluded_save_params(), *made_again, *of_no_use]

    def __getstate__(self) -> dict[str, Any]:
        # Copies log nowhere, collect their next rollout from the start, and have no callbacks, which refer to modules
        # by the globals that they have been given.
        call = replace(self.call, callbacks=[], configured=[])
        state = vars(self) | {"_logger": Logger(None, []), "_custom_logger": False, "collector": None, "call": call}
        if any(isinstance(layer, NOT_COPIED) for layer in layers(self.env)):
            state |= {"env": None, "_vec_normalize_env": None}
        return state


def _read(
    cls: type[SavedModel], path: PathOrFile, changes: dict[str, Any], show: bool = False, trust_pickle: bool = False
) -> dict[str, Any]:
    """What :func:`assemble` makes a model of, from a file of ours or of SB3's."""
    return read_model(cls, path, changes, show) if is_container(path) else read_sb3(cls, path, changes, trust_pickle)
