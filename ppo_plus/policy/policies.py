"""Actor-critic policies: SB3's networks and parameter names, for every action space and exploration.

A policy is an encoder (:meth:`ActorCriticPolicy.encode`) and heads (:meth:`ActorCriticPolicy.heads`) with an action
distribution (:mod:`ppo_plus.policy.distributions`) and an exploration (:mod:`ppo_plus.formulas.exploration`). Its
interface, its networks and their initialization, ``policy_kwargs`` and the names in ``state_dict()`` are SB3's.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common import policies as sb3
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    MlpExtractor,
    NatureCNN,
)
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn, optim

from ppo_plus.formulas.exploration import NoiseProcess, NoiseState, StateDependentNoise, WhiteNoise
from ppo_plus.formulas.moments import Moments
from ppo_plus.policy.arguments import NetworkLike, split_network
from ppo_plus.policy.distributions import ActionDistribution, BoundDistribution, make_distribution
from ppo_plus.policy.masking import Masks, as_masks, check_mask_key, nothing_allowed
from ppo_plus.policy.normalization import (
    OPTIONS,
    ObservationNormalizer,
    ValueNormalizer,
    check_encoder,
    normalization_options,
)
from ppo_plus.policy.observations import (
    GivenObservation,
    as_starts,
    canonical_space,
    for_convolutions,
    is_finite,
    make_preprocess,
    not_finite,
    parts_of,
    to_tensor,
    visible_spaces,
)
from ppo_plus.policy.streams import Streams
from ppo_plus.trees import to_device

#: Memory of a policy: any nesting of tensors whose first dimension is the environment; empty without memory.
Memory = Any


class Carry(NamedTuple):
    """State between the steps of environments; each environment has a row in every tensor.

    :param memory: what the policy remembers (:class:`ppo_plus.WithMemory`); empty without memory
    :param noise: state of its exploration (see :mod:`ppo_plus.formulas.exploration`)
    """

    memory: Memory = {}
    noise: NoiseState = {}


class Features(NamedTuple):
    """Features of ``B`` observations: the encoder's results, each of shape ``(B, F)``.

    :param actor: for the actor
    :param critic: for the critic; the same tensor if both share the encoder
    """

    actor: th.Tensor
    critic: th.Tensor


class Heads(NamedTuple):
    """Values and action distributions for ``B`` observations: the results of the heads.

    :param values: the critic's, shape ``(B,)``; with ``K - 1`` streams ``(B, K)``, those of the reward first
    :param params: parameters of the action distribution, shape ``(B, param_dim)``
    :param latent: the actor's last hidden layer, which feeds state-dependent noise, shape ``(B, F)``
    """

    values: th.Tensor
    params: th.Tensor
    latent: th.Tensor


class PolicyOutput(NamedTuple):
    """Actions of a policy in ``N`` environments, returned by :meth:`ppo_plus.ActorCriticPolicy.act`.

    :param actions: internal actions (see :mod:`ppo_plus.policy.distributions`), shape ``(N, action_dim)``
    :param values: shape ``(N,)``
    :param log_probs: shape ``(N,)``
    :param params: parameters of the action distribution, shape ``(N, param_dim)``
    """

    actions: th.Tensor
    values: th.Tensor
    log_probs: th.Tensor
    params: th.Tensor

    def packed(self) -> th.Tensor:
        """All parts in one tensor, shape ``(N, action_dim + 2 + param_dim)``, which is copied from a device at once."""
        return th.cat([self.actions, self.values[:, None], self.log_probs[:, None], self.params], dim=1)

    @classmethod
    def unpacked(cls, packed: Any, dim: int) -> "PolicyOutput":
        """The parts of :meth:`packed` with ``dim`` numbers per action, as views of a tensor or an array."""
        return cls(packed[:, :dim], packed[:, dim], packed[:, dim + 1], packed[:, dim + 2 :])


def n_rows(obs: PyTorchObs) -> int:
    """The number of observations in a tensor, or in a dict of tensors."""
    # Not by len, which would make the number a constant of an exported program.
    return (next(iter(obs.values())) if isinstance(obs, dict) else obs).shape[0]


class ActorCriticPolicy(sb3.ActorCriticPolicy):
    """Policy and value networks; ``MlpPolicy``, and the base of the others.

    It has the arguments of SB3's ``ActorCriticPolicy``, and some more. ``use_sde`` works for every action space,
    ``squash_output`` for Box with and without gSDE.

    :param observation_space: the environment's observation space
    :param action_space: the environment's action space
    :param lr_schedule: learning rate as a function of the remaining progress
    :param net_arch: hidden layers: a list for both networks, or ``dict(pi=[...], vf=[...])``
    :param activation_fn: activation after each hidden layer
    :param ortho_init: orthogonal initial weights
    :param use_sde: explore by :class:`~ppo_plus.formulas.exploration.StateDependentNoise`
    :param log_std_init: initial ``log_std``
    :param full_std: see :class:`~ppo_plus.formulas.exploration.StateDependentNoise`
    :param use_expln: see :class:`~ppo_plus.formulas.exploration.StateDependentNoise`
    :param squash_output: squash Box actions by tanh
    :param features_extractor_class: network before the hidden layers; by default that of the policy class
    :param features_extractor_kwargs: further arguments of that class
    :param share_features_extractor: one features extractor for actor and critic, if both see the same
    :param normalize_images: divide image values by 255
    :param optimizer_class: the optimizer
    :param optimizer_kwargs: further arguments of the optimizer; by default ``eps=1e-5`` for Adam
    :param exploration: a noise process, instead of ``use_sde``
    :param actor: a custom network from features to means or logits: a module (it is copied), or a function of its
        input and output size. It replaces SB3's hidden and output layers and keeps its initial weights. gSDE uses the
        input of its last layer if it is an ``nn.Sequential``, otherwise the features
    :param critic: the same, from features to one value
    :param autocast: compute the features in bfloat16 (``torch.autocast``), which makes convolutions faster if the
        processor has bfloat16 arithmetic. Weights, heads and the loss stay in float32
    :param action_mask_key: the entry of Dict observations that is the action mask (see
        :mod:`ppo_plus.policy.masking`), and not a feature
    :param actor_keys: the entries of Dict observations that the actor sees and ``predict`` needs; ``None``: all
    :param critic_keys: the same for the critic, which is used in training only (Pinto et al. 2017, arXiv:1710.06542);
        ``None``: everything. It needs ``actor_keys``. If the two see different entries, each has a features extractor
    :param normalize_observations: as of :class:`ppo_plus.PPO_Plus` (:mod:`ppo_plus.policy.normalization`)
    :param normalize_values: the same
    :param streams: the same (:class:`ppo_plus.Stream`)
    :raises ValueError: an argument that does not fit the spaces or another argument
    """

    action_dist: ActionDistribution  # type: ignore[assignment]
    default_features_extractor: type[BaseFeaturesExtractor] = FlattenExtractor
    #: Whether it has memory (:class:`ppo_plus.WithMemory`).
    remembers = False
    #: Whether the encoder, with memory, is compiled together with the loss; otherwise it runs eagerly before.
    compiles_encoder = True
    #: Whether the parameters of its action distribution are known, without which nothing is compiled.
    has_params = True
    #: Attributes that neither acting nor evaluating depends on.
    not_constant = frozenset("optimizer optimizer_class optimizer_kwargs _noise lr_schedule _networks _streams".split())

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        activation_fn: type[nn.Module] = nn.Tanh,
        ortho_init: bool = True,
        use_sde: bool = False,
        log_std_init: float = 0.0,
        full_std: bool = True,
        use_expln: bool = False,
        squash_output: bool = False,
        features_extractor_class: type[BaseFeaturesExtractor] | None = None,
        features_extractor_kwargs: dict[str, Any] | None = None,
        share_features_extractor: bool = True,
        normalize_images: bool = True,
        optimizer_class: type[optim.Optimizer] = optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        *,
        exploration: NoiseProcess | None = None,
        actor: NetworkLike | None = None,
        critic: NetworkLike | None = None,
        autocast: bool = False,
        action_mask_key: str | None = None,
        actor_keys: Sequence[str] | None = None,
        critic_keys: Sequence[str] | None = None,
        normalize_observations: bool | dict[str, Any] = False,
        normalize_values: bool | dict[str, Any] = False,
        streams: Sequence[Any] = (),
    ):
        if exploration is not None and (use_sde or use_expln or not full_std):
            raise ValueError(
                f"{use_sde=}, {full_std=} and {use_expln=} have no effect beside exploration={exploration!r}: pass "
                "these options to ppo_plus.StateDependentNoise, or leave exploration out"
            )
        if action_mask_key is not None:
            check_mask_key(action_mask_key, observation_space, make_distribution(action_space).mask_layout)
        spaces_seen = visible_spaces(observation_space, actor_keys, critic_keys, action_mask_key)
        self.actor_space, self.critic_space = spaces_seen
        extractor = features_extractor_class or self.default_features_extractor
        if optimizer_kwargs is None:
            optimizer_kwargs = {"eps": 1e-5} if optimizer_class is optim.Adam else {}
        # SB3's ActorCriticPolicy.__init__ would make distributions and networks, and supports fewer spaces.
        sb3.BasePolicy.__init__(
            self,
            observation_space,
            action_space,
            extractor,
            features_extractor_kwargs,
            normalize_images=normalize_images,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
            squash_output=squash_output,
        )
        if net_arch is not None and actor is not None and critic is not None:
            raise ValueError(f"net_arch={net_arch!r} has no effect beside actor and critic: leave it out")
        if net_arch is None:
            net_arch = [] if extractor is NatureCNN else dict(pi=[64, 64], vf=[64, 64])
        elif isinstance(net_arch, list) and net_arch and isinstance(net_arch[0], dict):
            net_arch = net_arch[0]
        self.net_arch = net_arch
        self.activation_fn = activation_fn
        self.ortho_init = ortho_init
        self.log_std_init = log_std_init
        self.use_sde = use_sde
        self.dist_kwargs = {"full_std": full_std, "use_expln": use_expln, "squash_output": squash_output}
        if exploration is None:
            exploration = StateDependentNoise(full_std, use_expln) if use_sde else WhiteNoise()
        self.exploration = exploration
        self.autocast = autocast
        self.action_mask_key = action_mask_key
        self.actor_keys, self.critic_keys = actor_keys, critic_keys
        self.normalize_observations, self.normalize_values = normalize_observations, normalize_values
        self._networks: dict[str, NetworkLike | None] = {"actor": actor, "critic": critic}
        self._streams = tuple(streams)
        self._noise: NoiseState = {}
        #: The distributions over actions; ``action_dist`` is SB3's name of it.
        self.distribution = self.action_dist = make_distribution(action_space, squash_output)
        self.share_features_extractor = share_features_extractor and self.actor_space is self.critic_space
        self.value_normalizer: ValueNormalizer | None = None
        self.streams: Streams | None = None
        self._make_encoder()
        self._build(lr_schedule)

    def _make_encoder(self) -> None:
        """Create what encodes observations, as SB3 does before ``_build``."""
        options = normalization_options("normalize_observations", self.normalize_observations)
        self.observation_normalizer = None if options is None else self.make_observation_normalizer(options)
        self._preprocess = make_preprocess(self.actor_space, self.normalize_images)
        self._preprocess_critic = make_preprocess(self.critic_space, self.normalize_images)
        extractor = self.features_extractor = self.pi_features_extractor = self.make_features_extractor()
        if self.actor_space is not self.critic_space:
            extractor = self._make_extractor(self.critic_space)
        elif not self.share_features_extractor:
            extractor = self.make_features_extractor()
        self.vf_features_extractor = extractor
        self.features_dim, self.vf_features_dim = self.features_extractor.features_dim, extractor.features_dim

    def make_features_extractor(self) -> BaseFeaturesExtractor:
        """Create a features extractor for what the actor sees."""
        return self._make_extractor(self.actor_space)

    def _make_extractor(self, space: spaces.Space) -> BaseFeaturesExtractor:
        extractor, is_dict = self.features_extractor_class, isinstance(space, spaces.Dict)
        if {FlattenExtractor: False, NatureCNN: False, CombinedExtractor: True}.get(extractor, is_dict) != is_dict:
            raise ValueError(
                f'policy: observation_space={space} does not fit SB3\'s {extractor.__name__}: a "MultiInput" policy '
                'takes Dict observations, "Mlp" and "Cnn" take others'
            )
        space = for_convolutions(extractor, canonical_space(space), normalized=not self.normalize_images)
        return extractor(space, **self.features_extractor_kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        """Create networks and optimizer; initial weights are drawn in SB3's order."""
        self._build_mlp_extractor()
        self.action_net = nn.Linear(self.mlp_extractor.latent_dim_pi, self.distribution.net_dim)
        self.value_net = nn.Linear(self.mlp_extractor.latent_dim_vf, 1)
        if self.ortho_init:
            self._initialize_orthogonally()
        self._replace_networks()
        if self.distribution.gaussian_dim:
            shape = self.exploration.log_std_shape(self.mlp_extractor.latent_dim_pi, self.distribution.gaussian_dim)
            self.log_std = nn.Parameter(th.ones(shape) * self.log_std_init)
        options = normalization_options("normalize_values", self.normalize_values)
        n_values = 1 + len(self._streams)
        self.value_normalizer = None if options is None else ValueNormalizer(self.value_net, n_values, **options)
        self._build_memory()
        self.streams = Streams(self._streams, self) if self._streams else None
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]

    def _build_mlp_extractor(self) -> None:
        super()._build_mlp_extractor()
        if self.vf_features_dim != self.features_dim:
            critics = MlpExtractor(self.vf_features_dim, self.net_arch, self.activation_fn, self.device)
            self.mlp_extractor.value_net = critics.value_net
            self.mlp_extractor.latent_dim_vf = critics.latent_dim_vf

    def _build_memory(self) -> None:
        """Create the layers of memory, if the policy has any."""

    def _replace_networks(self) -> None:
        """Put custom networks, which keep their initial weights, in the place of SB3's hidden layers and last layer."""
        networks, layers = self._networks, self.mlp_extractor
        if networks["actor"] is not None:
            layers.policy_net, self.action_net, layers.latent_dim_pi = split_network(
                "actor", networks["actor"], self.features_dim, self.distribution.net_dim, self.device
            )
        if networks["critic"] is not None:
            layers.value_net, self.value_net, layers.latent_dim_vf = split_network(  # type: ignore[assignment]
                "critic", networks["critic"], self.vf_features_dim, 1, self.device
            )

    def make_observation_normalizer(self, options: Mapping[str, Any]) -> ObservationNormalizer:
        """Create a normalizer, with these options, of what actor or critic see."""
        check_encoder(type(self))
        return ObservationNormalizer((self.actor_space, self.critic_space), self.normalize_images, **options)

    def _initialize_orthogonally(self) -> None:
        """Draw orthogonal weights in SB3's order."""
        gains = [(self.mlp_extractor, np.sqrt(2)), (self.action_net, 0.01), (self.value_net, 1.0)]
        if self.share_features_extractor:
            gains = [(self.features_extractor, np.sqrt(2)), *gains]
        else:
            gains += [(self.pi_features_extractor, np.sqrt(2)), (self.vf_features_extractor, np.sqrt(2))]
        for module, gain in gains:
            module.apply(partial(self.init_weights, gain=gain))

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        if None not in self._networks.values():
            data["net_arch"] = None
        if not self.share_features_extractor:
            data["share_features_extractor"] = False
        names = ["autocast", "action_mask_key", "actor_keys", "critic_keys", *OPTIONS]
        own = self._networks | {name: getattr(self, name) for name in names} | {"streams": self._streams}
        if not (self.use_sde or type(self.exploration) is WhiteNoise):
            own["exploration"] = self.exploration
        # Without defaults, a class written for SB3 can read them, too.
        return data | {name: value for name, value in own.items() if value not in (None, False, (), [])}

    # --- for the algorithm ---------------------------------------------------------------------------------------

    def act(
        self, obs: PyTorchObs, carry: Carry, episode_starts: th.Tensor | None = None, masks: th.Tensor | None = None
    ) -> tuple[PolicyOutput, Carry]:
        """Sample actions, with exploration.

        A function of its arguments, the weights and torch's generator, without side effects.

        :param obs: raw observations of ``N`` environments; the other arguments are those of :meth:`evaluate`
        :param carry: memory and noise (:meth:`init_carry`)
        :return: the step, and the carry for the next one
        """
        features, memory = self.encode_step(obs, carry.memory, episode_starts)
        values, params, latent = self.heads(features, self._masks(obs, masks))
        actions, noise = self._explore(params, latent, carry.noise)
        log_probs = self.distribution.log_prob(params, actions)
        values = values if self.streams is None else values[:, 0]
        return PolicyOutput(actions, values, log_probs, params), Carry(memory, noise)

    def evaluate(
        self,
        obs: PyTorchObs,
        carry: Carry | None = None,
        episode_starts: th.Tensor | None = None,
        masks: th.Tensor | None = None,
    ) -> tuple[th.Tensor, th.Tensor]:
        """Values and parameters of action distributions for ``B`` observations, with gradients.

        With memory, the observations are sequences of equal length, one after another: as many as the carry has rows.

        :param carry: memory before the first step of each sequence; ``None``: empty memory before each observation
        :param episode_starts: which observations begin an episode, booleans of shape ``(B,)``; ``None``: none
        :param masks: action masks (:mod:`ppo_plus.policy.masking`), booleans ``(B, M)``; ``None``: none, or in ``obs``
        :return: values as in :class:`Heads`, and parameters ``(B, param_dim)`` for :attr:`distribution`
        """
        if carry is None:
            features, _ = self.encode_step(obs, self.init_memory(n_rows(obs)), episode_starts)
        else:
            features = self.encode_sequences(obs, carry.memory, episode_starts)
        return self.heads(features, self._masks(obs, masks))[:2]

    def evaluate_batch(self, batch: Any) -> tuple[th.Tensor, th.Tensor]:
        """:meth:`evaluate` of a :class:`ppo_plus.Batch`; by the heads alone if it has ``features``."""
        if batch.features is None:
            return self.evaluate(batch.observations, batch.carry, batch.episode_starts, batch.masks)
        return self.heads(batch.features, self._masks(batch.observations, batch.masks))[:2]

    def encode(self, obs: PyTorchObs) -> Features:
        """Features of ``B`` raw observations, before any memory."""
        features = self.extract_features(obs)
        if self.share_features_extractor:
            return Features(features, features)  # type: ignore[arg-type]
        return Features(*features)

    def encode_batch(self, batch: Any) -> Features:
        """Features of a :class:`ppo_plus.Batch`, after memory if there is any: the first half of the policy."""
        if batch.features is not None:
            return batch.features  # type: ignore[no-any-return]
        return self.encode_sequences(batch.observations, batch.carry and batch.carry.memory, batch.episode_starts)

    # A kind of memory overrides these six (:class:`ppo_plus.WithMemory`); here are those of a policy without memory.

    def init_memory(self, n_envs: int) -> Memory:
        """The memory of ``n_envs`` environments before their first step."""
        return {}

    def encode_step(
        self, obs: PyTorchObs, memory: Memory, episode_starts: th.Tensor | None = None
    ) -> tuple[Features, Memory]:
        """Features for one step of each of ``N`` environments, and the memory after it.

        :param memory: the memory before the step
        :param episode_starts: which environments begin an episode with empty memory, booleans ``(N,)``; ``None``: none
        """
        return self.encode(obs), memory

    def encode_sequences(self, obs: PyTorchObs, memory: Memory, episode_starts: th.Tensor | None = None) -> Features:
        """Features for whole sequences of equal length, one after another, ``B`` rows; ``memory`` is that before the
        first step of each sequence, and has as many rows as there are sequences. See :meth:`evaluate`."""
        return self.encode(obs)

    def prepare_rollout(self, rollout: Any) -> Any:
        """The rollout that an update is going to learn from, a :class:`ppo_plus.Batch`, with masks that are in the
        observations, and what is counted once for all its minibatches in ``rollout.carry.memory``."""
        return rollout._replace(masks=self._masks(rollout.observations, rollout.masks))

    def before_update(self, transitions: Callable[[str], Any], total: Callable[[Moments], Moments]) -> None:
        """Add the returns of a rollout to the moments that values are normalized by, if they are.

        :param transitions: returns a tensor of the rollout by its name, with a row per transition
        :param total: returns the moments of all processes together, given those of this one
        """
        if self.value_normalizer is not None:
            last = [self.value_net, *([self.streams.head] if self.streams else [])]
            self.value_normalizer.rescale(last, total(Moments.of(transitions("returns"))))

    def after_update(self, transitions: Callable[[str], Any], total: Callable[[Moments], Moments]) -> None:
        """Add a rollout's observations to the moments that normalize them, if any do; see :meth:`before_update`."""
        if self.observation_normalizer is not None:
            moments = self.observation_normalizer.moments_of(transitions("observations"))
            self.observation_normalizer.add(total(moments))

    def memory_to_state(self, memory: Memory) -> tuple[th.Tensor, ...]:
        """The actor's memory as the ``state`` of :meth:`predict`: tensors whose second dimension is the environment."""
        return ()

    def state_to_memory(self, state: Sequence[np.ndarray | th.Tensor] | None, n_envs: int) -> Memory:
        """The memory of ``n_envs`` environments, given the ``state`` of :meth:`predict`; ``None``: empty.

        :raises ValueError: it does not fit
        """
        return {}

    def heads(self, features: Features, masks: th.Tensor | None = None) -> Heads:
        """The second half of the policy: values and action distributions, from features and masks ``(B, M)`` if any."""
        if features.actor is features.critic:
            latent_pi, latent_vf = self.mlp_extractor(features.actor)
        else:
            latent_pi = self.mlp_extractor.forward_actor(features.actor)
            latent_vf = self.mlp_extractor.forward_critic(features.critic)
        std = self.exploration.std(self.log_std, latent_pi) if self.distribution.gaussian_dim else None
        params = self.distribution.params(self.action_net(latent_pi), std, masks)
        values = self.value_net(latent_vf)
        values = values.flatten() if self.streams is None else th.cat([values, self.streams.head(latent_vf)], dim=1)
        if self.value_normalizer is not None:
            values = self.value_normalizer(values)
        return Heads(values, params, latent_pi)

    def init_carry(self, n_envs: int) -> Carry:
        """Empty memory and fresh noise for ``n_envs`` environments."""
        sizes = self.mlp_extractor.latent_dim_pi, self.distribution.noise_dim
        return Carry(self.init_memory(n_envs), self.exploration.init(n_envs, *sizes, self.device))

    def renew_noise(self, carry: Carry, envs: np.ndarray) -> Carry:
        """Draw the noise again for the environments with these indices, shape ``(K,)``; memory stays."""
        indices = to_device(th.from_numpy(np.asarray(envs)), self.device)
        sizes = self.mlp_extractor.latent_dim_pi, self.distribution.noise_dim
        return carry._replace(noise=self.exploration.renew(carry.noise, indices, *sizes))

    # --- SB3's interface -------------------------------------------------------------------------------------------

    def reset_noise(self, n_envs: int = 1) -> None:
        """Draw the noise of :meth:`predict` and :meth:`forward` again; training has separate noise."""
        self._noise = self.init_carry(n_envs).noise

    def forward(
        self, obs: PyTorchObs, deterministic: bool = False, action_masks: Masks | None = None
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """Actions, values and log-probabilities for ``B`` raw observations.

        :param deterministic: the mode instead of a sample
        :param action_masks: action masks, ``(B, M)``
        :return: internal actions ``(B, *action_space.shape)`` (Dict and Tuple: ``(B, action_dim)``), values ``(B, 1)``,
            log-probabilities ``(B,)``
        """
        masks = self._mask_tensor(action_masks, obs)
        if deterministic:
            values, params = self.evaluate(obs, masks=masks)
            actions = self.distribution.mode(params)
            log_probs = self.distribution.log_prob(params, actions)
        else:
            self._fit_noise(n_rows(obs))
            carry = Carry(self.init_memory(n_rows(obs)), self._noise)
            (actions, values, log_probs, _), carry = self.act(obs, carry, masks=masks)
            self._noise = carry.noise
        shape, values = self.action_space.shape, values.view(values.shape[0], -1)[:, :1]
        return actions if shape is None else actions.reshape(-1, *shape), values, log_probs

    def extract_features(  # type: ignore[override]
        self, obs: PyTorchObs, features_extractor: BaseFeaturesExtractor | None = None
    ) -> th.Tensor | tuple[th.Tensor, th.Tensor]:
        """Features ``(B, features_dim)`` of raw observations, by the given extractor or the policy's.

        Two extractors give those of actor and critic; the critic's are NaN if ``obs`` lacks its entries.
        """
        if features_extractor is not None:
            of_critic = features_extractor is self.vf_features_extractor
            return self._extract(features_extractor, self._inputs(obs, of_critic))
        inputs = self._inputs(obs)
        if self.share_features_extractor:
            return self._extract(self.features_extractor, inputs)
        features = self._extract(self.pi_features_extractor, inputs)
        if self.actor_space is not self.critic_space:
            if self._lacks_critic_entries(obs):
                # Actions need no values, and NaN cannot be mistaken for one.
                return features, features.new_full((features.shape[0], self.vf_features_extractor.features_dim), th.nan)
            inputs = self._inputs(obs, of_critic=True)
        return features, self._extract(self.vf_features_extractor, inputs)

    def _inputs(self, obs: PyTorchObs, of_critic: bool = False) -> PyTorchObs:
        """The inputs of the features extractor: preprocessed and normalized observations."""
        inputs = (self._preprocess_critic if of_critic else self._preprocess)(obs)
        return inputs if self.observation_normalizer is None else self.observation_normalizer(inputs)

    def _lacks_critic_entries(self, obs: Any) -> bool:
        return isinstance(self.critic_space, spaces.Dict) and not self.critic_space.spaces.keys() <= obs.keys()

    def _extract(self, extractor: BaseFeaturesExtractor, inputs: PyTorchObs) -> th.Tensor:
        if not self.autocast:
            return extractor(inputs)
        with th.autocast(self.device.type, th.bfloat16):
            return extractor(inputs).float()

    def evaluate_actions(
        self, obs: PyTorchObs, actions: th.Tensor, action_masks: Masks | None = None
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """Values ``(B, 1)``, log-probabilities ``(B,)`` of internal ``actions``, and entropies ``(B,)``."""
        values, params = self.evaluate(obs, masks=self._mask_tensor(action_masks, obs))
        distribution = BoundDistribution(self.distribution, params)
        return values.view(values.shape[0], -1)[:, :1], distribution.log_prob(actions), distribution.entropy()

    def get_distribution(self, obs: PyTorchObs, action_masks: Masks | None = None) -> BoundDistribution:  # type: ignore[override]
        """The action distribution at ``obs``, with the methods of SB3's."""
        return BoundDistribution(self.distribution, self.evaluate(obs, masks=self._mask_tensor(action_masks, obs))[1])

    def predict_values(
        self, obs: PyTorchObs, carry: Carry | None = None, episode_starts: th.Tensor | None = None
    ) -> th.Tensor:
        """Values at ``obs``, ``(B, 1)``, with streams ``(B, K)``; the other arguments are those of :meth:`evaluate`.

        :raises ValueError: ``obs`` lacks entries that the critic sees
        """
        if self._lacks_critic_entries(obs):
            needed = f"the critic sees {[*self.critic_space]}"  # type: ignore[misc]
            raise ValueError(f"observations of {[*obs]} have no value, since {needed}: add the missing entries")
        values = self.evaluate(obs, carry, episode_starts)[0]
        return values.reshape(values.shape[0], -1)

    def obs_to_tensor(self, observation: GivenObservation) -> tuple[PyTorchObs, bool]:
        """An observation as a batch of tensors, and whether it was one; what the actor does not see may be missing."""
        optional = parts_of(self.observation_space).keys() - parts_of(self.actor_space).keys() - {self.action_mask_key}
        return to_tensor(observation, self.observation_space, self.device, optional=optional)

    def predict(
        self,
        observation: GivenObservation,
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: Masks | None = None,
    ) -> tuple[Any, tuple[np.ndarray, ...] | None]:
        """Actions that the environment's action space contains.

        :param observation: one observation, or a batch; of Dict observations the entries that the actor sees
        :param state: what the previous call returned; ``None``: empty memory. Without memory it is returned unchanged
        :param episode_start: which observations begin an episode, ``(B,)``: noise is drawn again, memory is reset
        :param deterministic: the mode instead of a sample
        :param action_masks: action masks (:mod:`ppo_plus.policy.masking`), ``(M,)`` or for a batch ``(B, M)``
        :return: action of shape ``action_space.shape`` (for a batch ``(B, *shape)``, or for Dict and Tuple spaces a
            list of ``B`` actions), and the next ``state``: arrays whose second dimension is ``B``, as sb3-contrib's for
            recurrent layers, ``(layers, B, hidden)``
        :raises ValueError: observation or state do not fit, or the masks do not fit the actions
        :raises FloatingPointError: the observation or what the policy makes of it is not finite
        """
        if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
            raise ValueError("observation is a tuple (observation, info), as env.reset() returns: pass the first only")
        self.set_training_mode(False)
        obs, batched = self.obs_to_tensor(observation)
        has_state = self.remembers or self._noise
        episode_start = as_starts(episode_start, n_rows(obs)) if has_state and episode_start is not None else None
        if not batched and action_masks is not None:
            action_masks = [action_masks]
        if action_masks is None and isinstance(obs, dict) and (key := self.action_mask_key) is not None:
            # Of zeros and ones; those of final observations may allow nothing.
            as_masks(f"observation[{key!r}]", obs[key].numpy(force=True), self.distribution.mask_layout)
        with th.no_grad():
            starts = None if episode_start is None else th.from_numpy(episode_start).to(self.device)
            features, memory = self.encode_step(obs, self.state_to_memory(state, n_rows(obs)), starts)
            _, params, latent = self.heads(features, self._masks(obs, self._mask_tensor(action_masks, obs)))
            if deterministic:
                actions = self.distribution.mode(params)
            else:
                self._fit_noise(len(params), episode_start)
                actions, self._noise = self._explore(params, latent, self._noise)
            if getattr(self._predict, "__func__", None) is not vars(ActorCriticPolicy)["_predict"]:
                actions = self._predict(obs, deterministic).reshape(actions.shape)
        if self.remembers:
            state = tuple(part.numpy(force=True) for part in self.memory_to_state(memory))
        chosen, made = actions.numpy(force=True), params.numpy(force=True)
        # A logit may be -inf: the alternative is never chosen.
        if not is_finite(made) and not (np.isfinite(made.max()) and is_finite(chosen)):
            raise not_finite(self)
        env_actions = self.distribution.to_env(chosen)
        if batched:
            return env_actions, state
        return (env_actions[0] if isinstance(env_actions, list) else env_actions.squeeze(axis=0)), state

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> th.Tensor:
        """SB3's, without memory and masks; :meth:`predict` calls it if a subclass overrides it."""
        return self.forward(observation, deterministic)[0]

    # --- parts -----------------------------------------------------------------------------------------------------

    def _explore(self, params: th.Tensor, latent_pi: th.Tensor, noise: NoiseState) -> tuple[th.Tensor, NoiseState]:
        """Sampled actions, and the noise for the next step."""
        log_std = self.distribution.noise_log_std(self.log_std) if self.distribution.gaussian_dim else None
        z, noise = self.exploration.sample(noise, latent_pi, log_std)
        needed = params.shape[0], self.distribution.noise_dim
        if z is not None and z.shape != needed:
            raise ValueError(f"{self.exploration!r}: sample returned noise of shape {tuple(z.shape)}, not {needed}")
        return (self.distribution.sample(params) if z is None else self.distribution.from_noise(params, z)), noise

    def _masks(self, obs: PyTorchObs, masks: th.Tensor | None) -> th.Tensor | None:
        """The masks, or those in the observations."""
        if masks is not None or self.action_mask_key is None:
            return masks
        assert isinstance(obs, dict)
        return obs[self.action_mask_key].flatten(1).bool()

    def _mask_tensor(self, action_masks: Masks | None, obs: PyTorchObs) -> th.Tensor | None:
        """The argument ``action_masks`` for ``B`` observations, checked, booleans ``(B, M)``."""
        if action_masks is None:
            return None
        layout, n_obs = self.distribution.mask_layout, n_rows(obs)
        is_one = n_obs == 1 and getattr(action_masks, "ndim", 0) == 1 and str(action_masks.dtype) != "object"  # type: ignore[union-attr]
        masks = as_masks("action_masks", [action_masks] if is_one else action_masks, layout)
        if len(masks) != n_obs:
            raise ValueError(f"action_masks has {len(masks)} masks for {n_obs} observations: give one for each")
        if nothing_allowed(masks, layout).any():
            raise ValueError(f"action_masks={action_masks} allow nothing to choose from, for choices among {layout}")
        return th.as_tensor(masks, device=self.device)

    def _fit_noise(self, n_envs: int, episode_start: np.ndarray | None = None) -> None:
        """Make the noise of :meth:`predict` and :meth:`forward` fit a batch."""
        noise = next(iter(self._noise.values()), None)
        if noise is None or len(noise) != n_envs or noise.device != self.device:
            self.reset_noise(n_envs)
        elif episode_start is not None and np.any(episode_start):
            self._noise = self.renew_noise(Carry(noise=self._noise), np.flatnonzero(episode_start)).noise


class CnnPolicy(ActorCriticPolicy):
    """:class:`ActorCriticPolicy` for images, through SB3's ``NatureCNN`` by default."""

    default_features_extractor = NatureCNN


class MultiInputPolicy(ActorCriticPolicy):
    """:class:`ActorCriticPolicy` for Dict observations, through SB3's ``CombinedExtractor`` by default."""

    default_features_extractor = CombinedExtractor


MlpPolicy = ActorCriticPolicy
