"""How a model is saved, loaded, converted from and to SB3, and resumed."""

import io
import pathlib
from collections.abc import Iterable
from typing import Any, TypeVar

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv

from ppo_plus.files import checkpoint
from ppo_plus.files.container import is_container, opened_to_write, path_to_save
from ppo_plus.files.from_sb3 import changes, from_sb3, saved_by
from ppo_plus.files.model import load_model, load_parameters, save_model
from ppo_plus.files.sb3_zip import is_of_sb3
from ppo_plus.files.to_sb3 import to_sb3

SelfLasting = TypeVar("SelfLasting", bound="Lasting")


class Lasting(OnPolicyAlgorithm):
    """The part of :class:`~ppo_plus.PPO_Plus` that reads and writes files."""

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
        pickle: bool = False,
    ) -> None:
        """Save the model, in a file that cannot run code; the other arguments are SB3's. An earlier file is
        replaced only once the new one is complete.

        What no file can describe, such as a lambda, is left out with a warning that names it, and then passed to
        :meth:`load`; see :func:`ppo_plus.register`.

        :param path: where; without a suffix, ``.zip`` is added. Or an open file
        :param exclude: attributes to leave out
        :param include: attributes to keep that would be left out
        :param pickle: save as SB3 does, with everything; to load the file you have to trust it
        :raises OSError: it cannot be written
        """
        if isinstance(path, (str, pathlib.Path)):
            path = path_to_save(path)
        if not pickle:
            return save_model(self, path, exclude, include)
        with opened_to_write(path) as file:
            super().save(file, exclude, include)

    def set_parameters(
        self, load_path_or_dict: Any, exact_match: bool = True, device: th.device | str = "auto"
    ) -> None:
        """As SB3's, also for a file that :meth:`save` wrote."""
        if not isinstance(load_path_or_dict, dict):
            load_path_or_dict = load_parameters(load_path_or_dict)
        unknown = load_path_or_dict.keys() - {*self._get_torch_save_params()[0]}
        if unknown:  # SB3 would follow the name through attributes
            raise ValueError(f"the parameters have {min(unknown)[:100]!r}, which {type(self).__name__} does not have")
        super().set_parameters(load_path_or_dict, exact_match, device)

    def to_sb3(self, path: str | pathlib.Path | io.BufferedIOBase) -> None:
        """Save the model so that SB3's ``PPO.load`` reads it: the networks, the optimizer and SB3's arguments.

        :param path: where; without a suffix, ``.zip`` is added. Or an open file
        :raises ValueError: SB3's ``PPO`` has no such policies, spaces or exploration
        :raises OSError: it cannot be written
        """
        to_sb3(self, path)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_settings", "_warned_of_masks", "call", "ranks", "together"]

    @classmethod
    def from_sb3(
        cls: type[SelfLasting],
        path_or_model: str | pathlib.Path | io.BufferedIOBase | BaseAlgorithm,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        trust_pickle: bool = False,
        **kwargs: Any,
    ) -> SelfLasting:
        """Take over a trained SB3 ``PPO``, or an sb3-contrib ``MaskablePPO`` or ``RecurrentPPO``.

        It takes the same actions, and training continues: weights, optimizer state, hyperparameters and counters are
        copied; ``value_clip`` is SB3's, ``"plain"``.

        :param path_or_model: a saved model, or a model
        :param env: the environment to train in; by default the model's, if it has one
        :param device: the device to compute on
        :param trust_pickle: unpickle the file, which runs code in it. Without it, what the model needs is read without
            running anything if possible, and else has to be passed in ``kwargs``
        :param kwargs: arguments to change on the way
        :raises TypeError: neither, or there is no such argument
        :raises ValueError: the file is damaged, or needs to be trusted
        """
        return from_sb3(cls, path_or_model, env, device, kwargs, trust_pickle=trust_pickle)

    def save_checkpoint(self, folder: str | pathlib.Path) -> pathlib.Path:
        """Write all that training needs to resume exactly, which :meth:`resume` reads.

        To have it done during ``learn``, use the callback :class:`ppo_plus.Checkpoints`.

        :param folder: the folder; the file is called ``checkpoint_<timesteps>.zip``
        :return: the file
        :raises RuntimeError: a rollout is not finished
        :raises OSError: it cannot be written
        """
        return checkpoint.write(folder, checkpoint.take(self))

    @classmethod
    def resume(
        cls: type[SelfLasting],
        folder: str | pathlib.Path,
        env: GymEnv,
        device: th.device | str = "auto",
        **kwargs: Any,
    ) -> SelfLasting:
        """Resume from a checkpoint exactly. If it was written during a call of ``learn``, the next call continues it:
        pass the same arguments.

        Environments resume in the middle of their episodes if they can (:mod:`ppo_plus.rollout.env_state`); else new
        episodes start, and a warning says why.

        :param folder: a folder of checkpoints, of which the newest valid one is read, or the file of one
        :param env: environments made as those were
        :param device: the device to compute on
        :param kwargs: arguments to change, such as ``verbose``; those that change more than what is shown make another
            run
        :return: the model
        :raises TypeError: there is no such argument
        :raises FileNotFoundError: there is no checkpoint
        :raises ValueError: it is damaged, or the environments are others
        """
        return checkpoint.resume(cls, folder, env, device, changes(cls, kwargs))  # type: ignore[no-any-return]

    @classmethod
    def load(  # type: ignore[override]
        cls: type[SelfLasting],
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        trust_pickle: bool = False,
        **kwargs: Any,
    ) -> SelfLasting:
        """Load a saved model; the arguments are SB3's. A model that SB3's ``PPO`` saved is loaded by
        :meth:`from_sb3`.

        Nothing in the file is run, and it can name classes of ppo_plus, SB3, sb3-contrib, torch and Gymnasium only, and
        those that were given to :func:`ppo_plus.register`.

        :param path: what :meth:`save` wrote, or SB3
        :param env: the environment to train in
        :param device: the device to compute on
        :param custom_objects: attributes in place of those in the file
        :param print_system_info: print with which versions it was saved
        :param force_reset: start new episodes, if an environment is given
        :param trust_pickle: read files with pickles as SB3 does, which runs their code
        :param kwargs: arguments to change on the way
        :raises TypeError: there is no such argument
        :raises ValueError: the file is damaged, lacks something, or would have to be trusted
        """
        kwargs, objects = changes(cls, kwargs), custom_objects or {}
        if not trust_pickle or is_container(path):
            if is_of_sb3(path):
                return from_sb3(cls, path, env, device, kwargs, objects)
            return load_model(cls, path, env, device, objects, print_system_info, force_reset, kwargs)
        if "value_clip" not in saved_by(path, custom_objects).data:
            return from_sb3(cls, path, env, device, kwargs, custom_objects, trust_pickle=True)
        return super().load(path, env, device, custom_objects, print_system_info, force_reset, **kwargs)
