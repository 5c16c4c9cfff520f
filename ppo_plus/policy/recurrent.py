"""Policies with memory: any policy class, with recurrent layers before its hidden layers.

A policy class gets memory by one more base class: ``class CnnLstmPolicy(LSTMMemory, CnnPolicy)``. Arguments, structure,
initial weights and the names in ``state_dict()`` are those of sb3-contrib's ``RecurrentPPO``; what is different is that
the layers' state is handed in and handed back (:class:`~ppo_plus.policy.carry.Carry`).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from ppo_plus.policy.carry import Features, Memory, State
from ppo_plus.policy.memory import GRU, LSTM, Layout, Recurrent
from ppo_plus.policy.policies import ActorCriticPolicy, CnnPolicy, MultiInputPolicy
from ppo_plus.require import require_int, require_kind


class WithMemory(ActorCriticPolicy):
    """Gives a policy class memory when it comes first among the base classes: :class:`LSTMMemory`, :class:`GRUMemory`.

    The names of the arguments are sb3-contrib's, for GRUs as well.

    :param args: arguments of the policy class, by position
    :param lstm_hidden_size: units of each recurrent layer, at least 1
    :param n_lstm_layers: recurrent layers on top of each other, at least 1
    :param shared_lstm: the critic sees what the actor's layers remember (and sends no gradient into them); needs
        ``enable_critic_lstm=False`` and a shared features extractor
    :param enable_critic_lstm: the critic has layers of its own. Without them, and without sharing, it remembers nothing
    :param lstm_kwargs: ``bias`` and ``dropout`` of torch's layers
    :param kwargs: arguments of the policy class, by name
    :raises ValueError: an argument that does not fit another, or is not supported
    """

    #: The kind of layer, and what its attributes are called.
    layer: Callable[..., Recurrent]
    layer_name: str
    remembers = True

    def __init__(
        self,
        *args: Any,
        lstm_hidden_size: int = 256,
        n_lstm_layers: int = 1,
        shared_lstm: bool = False,
        enable_critic_lstm: bool = True,
        lstm_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        require_int("policy_kwargs: lstm_hidden_size", lstm_hidden_size, 1)
        require_int("policy_kwargs: n_lstm_layers", n_lstm_layers, 1)
        require_kind("policy_kwargs: lstm_kwargs", lstm_kwargs, (dict, type(None)), "a dict, or None")
        if shared_lstm and enable_critic_lstm:
            raise ValueError("policy_kwargs: shared_lstm=True needs enable_critic_lstm=False")
        unknown = (lstm_kwargs or {}).keys() - {"bias", "dropout"}
        if unknown:
            raise ValueError(f"policy_kwargs: lstm_kwargs={lstm_kwargs!r} may only set bias and dropout")
        self.lstm_hidden_size = lstm_hidden_size
        self.n_lstm_layers = n_lstm_layers
        self.shared_lstm = shared_lstm
        self.enable_critic_lstm = enable_critic_lstm
        self.lstm_kwargs = lstm_kwargs or {}
        super().__init__(*args, **kwargs)
        if shared_lstm and not self.share_features_extractor:
            raise ValueError(
                "policy_kwargs: shared_lstm=True needs share_features_extractor=True, and actor and critic that "
                "see the same (actor_keys, critic_keys)"
            )

    def _build_mlp_extractor(self) -> None:
        # What is behind the recurrent layers sees their output as features.
        self._input_dims = {"actor": int(self.features_dim), "critic": int(self.vf_features_dim)}
        self.features_dim = self.vf_features_dim = self.lstm_hidden_size
        super()._build_mlp_extractor()

    def _build_memory(self) -> None:
        setattr(self, f"{self.layer_name}_actor", self._make_layer("actor"))
        if self.enable_critic_lstm:
            setattr(self, f"{self.layer_name}_critic", self._make_layer("critic"))
        elif not self.shared_lstm:
            self.critic = nn.Linear(self._input_dims["critic"], self.lstm_hidden_size)

    def _make_layer(self, owner: str) -> Recurrent:
        return self.layer(self._input_dims[owner], self.lstm_hidden_size, self.n_lstm_layers, **self.lstm_kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        names = ("lstm_hidden_size", "n_lstm_layers", "shared_lstm", "enable_critic_lstm", "lstm_kwargs")
        return super()._get_constructor_parameters() | {name: getattr(self, name) for name in names}

    @property
    def _layers(self) -> dict[str, Recurrent]:
        """The recurrent layers by whose they are."""
        owners = ("actor", "critic") if self.enable_critic_lstm else ("actor",)
        return {owner: getattr(self, f"{self.layer_name}_{owner}") for owner in owners}

    def init_memory(self, n_envs: int) -> Memory:
        return {owner: layer.init(n_envs) for owner, layer in self._layers.items()}

    def encode(
        self, obs: PyTorchObs, memory: Memory, episode_starts: th.Tensor | None = None
    ) -> tuple[Features, Memory]:
        features: Any = self.extract_features(obs)
        pi_inputs, vf_inputs = (features, features) if self.share_features_extractor else features
        inputs = {"actor": pi_inputs} | ({"critic": vf_inputs} if self.enable_critic_lstm else {})
        outputs, memory = self._run_layers(inputs, memory, episode_starts)
        if not self.enable_critic_lstm:
            outputs["critic"] = outputs["actor"].detach() if self.shared_lstm else self.critic(vf_inputs)
        return Features(**outputs), memory

    def _run_layers(
        self, inputs: dict[str, th.Tensor], memory: Memory, starts: th.Tensor | None
    ) -> tuple[dict[str, th.Tensor], Memory]:
        """What the recurrent layers make of their inputs, by owner, and the memory afterwards.

        :param inputs: ``B`` rows for each owner
        :param memory: of ``B`` environments for one step of each, or of fewer for sequences one after another (then no
            memory is returned); empty: nothing is remembered, and each row is a step of its own
        :param starts: which rows begin an episode
        """
        n_rows = len(inputs["actor"])
        memory = memory or self.init_memory(n_rows)
        n_sequences = len(memory["actor"][0])
        layers = self._layers
        if n_sequences == n_rows:
            steps = {owner: layers[owner].step(x, memory[owner], starts) for owner, x in inputs.items()}
            return {owner: y for owner, (y, _) in steps.items()}, {owner: state for owner, (_, state) in steps.items()}
        starts = th.zeros(n_rows, dtype=th.bool, device=self.device) if starts is None else starts
        layout = Layout(starts, n_sequences)
        return {owner: layers[owner].sequences(x, memory[owner], layout) for owner, x in inputs.items()}, {}

    def _memory_from(self, state: Any, obs: PyTorchObs) -> Memory:
        n_envs = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        # Actions depend on what the actor remembers alone.
        return self.init_memory(n_envs) | {"actor": self._from_arrays(state, n_envs)}

    def _state_of(self, memory: Memory, state: Any) -> Any:
        return tuple(part.transpose(0, 1).numpy(force=True) for part in memory["actor"])

    def _from_arrays(self, state: tuple[np.ndarray, ...] | None, n_envs: int) -> State:
        """The actor's memory from what :meth:`predict` returned."""
        empty = self._layers["actor"].init(n_envs)
        if state is None:
            return empty
        shape = self.n_lstm_layers, n_envs, self.lstm_hidden_size
        if len(state) != len(empty) or any(np.shape(part) != shape for part in state):
            raise ValueError(
                f"state has arrays of shapes {[np.shape(part) for part in state]}, but {n_envs} observations need "
                f"{len(empty)} of shape {shape}: pass what predict returned for as many, or None at the beginning"
            )
        return tuple(th.as_tensor(part, dtype=th.float32, device=self.device).transpose(0, 1) for part in state)


class LSTMMemory(WithMemory):
    """:class:`~ppo_plus.policy.recurrent.WithMemory` of LSTMs."""

    layer = LSTM
    layer_name = "lstm"


class GRUMemory(WithMemory):
    """:class:`~ppo_plus.policy.recurrent.WithMemory` of GRUs."""

    layer = GRU
    layer_name = "gru"


class MlpLstmPolicy(LSTMMemory):
    """:class:`~ppo_plus.policy.policies.ActorCriticPolicy` with LSTMs."""


class CnnLstmPolicy(LSTMMemory, CnnPolicy):
    """:class:`~ppo_plus.policy.policies.CnnPolicy` with LSTMs."""


class MultiInputLstmPolicy(LSTMMemory, MultiInputPolicy):
    """:class:`~ppo_plus.policy.policies.MultiInputPolicy` with LSTMs."""


class MlpGruPolicy(GRUMemory):
    """:class:`~ppo_plus.policy.policies.ActorCriticPolicy` with GRUs."""


class CnnGruPolicy(GRUMemory, CnnPolicy):
    """:class:`~ppo_plus.policy.policies.CnnPolicy` with GRUs."""


class MultiInputGruPolicy(GRUMemory, MultiInputPolicy):
    """:class:`~ppo_plus.policy.policies.MultiInputPolicy` with GRUs."""


#: The policies with memory by name.
RECURRENT: dict[str, type[BasePolicy]] = {
    policy.__name__: policy
    for policy in (
        MlpLstmPolicy,
        CnnLstmPolicy,
        MultiInputLstmPolicy,
        MlpGruPolicy,
        CnnGruPolicy,
        MultiInputGruPolicy,
    )
}
