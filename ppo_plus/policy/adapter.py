"""Policy classes written for SB3. One that overrides methods that SB3 calls runs as in SB3.

The results of ``forward``, ``evaluate_actions`` and ``predict_values`` lack the parameters of the action distribution,
so these have no exact KL, no masks and no memory, gSDE for Box actions only, and SB3's action spaces.
"""

import warnings
from collections.abc import Callable
from functools import cache
from inspect import isfunction
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common import policies as sb3
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule

from ppo_plus.formulas.exploration import NoiseState
from ppo_plus.policy.arguments import SHAPING
from ppo_plus.policy.distributions import ActionDistribution, make_distribution
from ppo_plus.policy.observations import as_dict, canonical_space
from ppo_plus.policy.policies import ActorCriticPolicy, Carry, CnnPolicy, MultiInputPolicy, PolicyOutput

P = TypeVar("P")
#: Methods whose work :class:`~ppo_plus.policy.policies.ActorCriticPolicy` does elsewhere.
CALLED_BY_SB3 = ("forward", "evaluate_actions", "get_distribution", "predict_values", "_get_action_dist_from_latent")
#: Arguments of our policies that SB3's do not have.
NOT_IN_SB3 = (SHAPING - {"use_sde"}) | {"actor_keys"}
#: SB3's policy classes, and ours that replace them.
OURS: dict[type, type[ActorCriticPolicy]] = {
    sb3.ActorCriticPolicy: ActorCriticPolicy,
    sb3.ActorCriticCnnPolicy: CnnPolicy,
    sb3.MultiInputActorCriticPolicy: MultiInputPolicy,
}
#: The policy classes of sb3-contrib, and the names of ours that replace them.
CONTRIBS = {
    "MaskableActorCriticPolicy": "MlpPolicy",
    "MaskableActorCriticCnnPolicy": "CnnPolicy",
    "MaskableMultiInputActorCriticPolicy": "MultiInputPolicy",
    "RecurrentActorCriticPolicy": "MlpLstmPolicy",
    "RecurrentActorCriticCnnPolicy": "CnnLstmPolicy",
    "RecurrentMultiInputActorCriticPolicy": "MultiInputLstmPolicy",
}


def contribs_policy(policy: object) -> str:
    """The name of sb3-contrib's policy class that a class is or is derived from; ``""``: none."""
    bases = policy.__mro__ if isinstance(policy, type) else ()
    names = (base.__name__ for base in bases if base.__module__.startswith("sb3_contrib."))
    return next((name for name in names if name in CONTRIBS), "")


def without_contrib(policy: P) -> P | str:
    """The name of ours in place of a policy class of sb3-contrib; another policy unchanged.

    :raises ValueError: a class is derived from one of sb3-contrib's
    """
    if not (theirs := contribs_policy(policy)):
        return policy
    name = CONTRIBS[theirs]
    if not getattr(policy, "__module__", "").startswith("sb3_contrib."):
        kind = "takes masks as well" if theirs.startswith("Maskable") else "has an LSTM"
        remedy = f"derive it from ppo_plus.{name}, which {kind}, or pass ppo_plus.{name} (to load: policy_class=)"
        raise ValueError(f"policy={policy!r} is derived from sb3-contrib's {theirs}: {remedy}")
    return name


class EvaluatedActions(ActionDistribution):
    """Log-probability and entropy of given actions, as SB3's methods return them: ``params``, shape ``(B, 2)``."""

    net_dim = param_dim = noise_dim = 0

    def __init__(self, policy: sb3.ActorCriticPolicy):
        super().__init__(policy.action_space)
        self._inner = make_distribution(policy.action_space)
        self._unscale = policy.unscale_action if policy.squash_output else np.asarray
        self._scale = policy.scale_action if policy.squash_output else np.asarray
        self.action_dim, self.dtype, self.choices = self._inner.action_dim, self._inner.dtype, []

    def log_prob(self, params: th.Tensor, actions: th.Tensor) -> th.Tensor:
        return params[:, 0]

    def entropy(self, params: th.Tensor) -> th.Tensor:
        return params[:, 1]

    def to_env(self, actions: np.ndarray) -> np.ndarray | list[Any]:
        return self._inner.to_env(self._unscale(actions.reshape(-1, *self.action_space.shape)))  # type: ignore[misc]

    def from_env(self, actions: Any) -> np.ndarray:
        return self._inner.from_env(self._scale(actions))

    def tensors_to_env(self, device: th.device) -> Callable[[th.Tensor], Any]:
        return lambda actions: th.as_tensor(self.to_env(actions.numpy(force=True)), device=device)

    def _unknown(self, *_: Any) -> NoReturn:
        raise NotImplementedError("the distribution of a policy class that overrides SB3's methods is not known")

    params = sample = from_noise = mode = kl = to_torch = _unknown  # type: ignore[assignment]


class SB3Interface(sb3.ActorCriticPolicy):
    """Implements the interface of our policies by the methods of an SB3 policy; the first of the base classes."""

    remembers = has_params = False

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, *args: Any, **kwargs: Any):
        given = {name: kwargs.pop(name, None) for name in NOT_IN_SB3}
        if not isinstance(action_space, spaces.Box):
            given["use_sde"] = kwargs.get("use_sde")
            if isinstance(action_space, (spaces.Dict, spaces.Tuple)) or len(action_space.shape or ()) > 1:
                given["action_space"] = action_space
        if canonical_space(observation_space) != as_dict(observation_space):
            given["observation_space"] = observation_space
        for name, value in given.items():
            if value not in (None, False, (), []):
                problem = f"{name}={value!r} does not reach a policy class that overrides SB3's methods"
                raise ValueError(f"{problem}: derive it from ppo_plus.ActorCriticPolicy")
        super().__init__(observation_space, action_space, *args, **kwargs)
        # ``action_dist`` is SB3's distribution here.
        self.distribution = EvaluatedActions(self)  # type: ignore[arg-type]

    def act(
        self, obs: PyTorchObs, carry: Carry, episode_starts: th.Tensor | None = None, masks: th.Tensor | None = None
    ) -> tuple[PolicyOutput, Carry]:
        """:meth:`ppo_plus.ActorCriticPolicy.act` by ``forward``."""
        actions, values, log_probs = self(obs)
        actions = actions.reshape(len(log_probs), -1).float()
        return PolicyOutput(actions, values.flatten(), log_probs, actions[:, :0]), carry

    def evaluate_batch(self, batch: Any) -> tuple[th.Tensor, th.Tensor]:
        """:meth:`ppo_plus.ActorCriticPolicy.evaluate_batch` by ``evaluate_actions``."""
        actions, shape = batch.actions, self.action_space.shape or ()
        if isinstance(self.action_space, (spaces.Discrete, spaces.MultiDiscrete)):
            actions = actions.long().reshape(-1, *shape)
        values, log_prob, entropy = self.evaluate_actions(batch.observations, actions)
        # Without a formula for the entropy, SB3 uses this estimate.
        return values.flatten(), th.stack([log_prob, -log_prob if entropy is None else entropy], dim=1)

    # There is no memory, nothing is normalized, and there is one critic.
    init_memory = ActorCriticPolicy.init_memory
    before_update, after_update = ActorCriticPolicy.before_update, ActorCriticPolicy.after_update
    observation_normalizer = value_normalizer = streams = None
    _noise: NoiseState = {}

    def prepare_rollout(self, rollout: Any) -> Any:
        return rollout

    def predict_values(
        self, obs: PyTorchObs, carry: Carry | None = None, episode_starts: th.Tensor | None = None
    ) -> th.Tensor:
        return super().predict_values(obs)

    def predict(  # type: ignore[override]
        self, *args: Any, action_masks: None = None, **kwargs: Any
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """SB3's ``predict``; ``action_masks`` must be ``None``."""
        if action_masks is not None:
            raise ValueError("action_masks do not reach a policy class that overrides SB3's methods: leave them out")
        predict = super().predict
        actions, state = predict(*args, **kwargs)
        is_sb3s = getattr(predict, "__func__", None) is sb3.BasePolicy.predict
        if is_sb3s and np.issubdtype(self.action_space.dtype, np.integer):
            actions = np.asarray(np.rint(actions) + getattr(self.action_space, "start", 0), self.action_space.dtype)
        return actions, state

    def init_carry(self, n_envs: int) -> Carry:
        """Draw new noise, which SB3's policies store."""
        if self.use_sde:
            self.reset_noise(n_envs)
        return Carry()

    def renew_noise(self, carry: Carry, envs: np.ndarray) -> Carry:
        """Draw the noise of all environments again."""
        return self.init_carry(len(envs))


def overridden(policy_class: type) -> list[str]:
    """Methods of a user's policy class that replace :data:`CALLED_BY_SB3`, or for SB3, use its distribution."""
    custom = policy_class.__mro__[: policy_class.__mro__.index(sb3.ActorCriticPolicy)]
    custom = tuple(base for base in custom if not base.__module__.startswith("ppo_plus."))
    attribute = "" if issubclass(policy_class, ActorCriticPolicy) else "action_dist"
    parts = {name: part for base in custom for name, part in vars(base).items()}
    using = [name for name, part in parts.items() if isfunction(part) and attribute in part.__code__.co_names]
    return [*dict.fromkeys([name for name in CALLED_BY_SB3 if name in parts] + using)]


def warn_of_overrides(policy_class: type) -> None:
    """Warn if a policy class overrides methods that SB3 calls: it lacks features, or these methods are not called."""
    if methods := overridden(policy_class):
        consequence = (
            "but training calls other methods: override encode, heads, act or evaluate instead"
            if adapt_policy_class(policy_class).has_params
            else "and so runs as in SB3, uncompiled, and without exact KL, gSDE off Box, masks and memory. For these "
            "derive it from ppo_plus.ActorCriticPolicy, and override encode, heads, act or evaluate"
        )
        warnings.warn(f"policy={policy_class.__name__} overrides {', '.join(methods)}, {consequence}", stacklevel=6)


def build_policy(
    policy_class: type,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    lr_schedule: Schedule,
    device: th.device,
    **arguments: Any,
) -> ActorCriticPolicy:
    """A policy on a device, of one of our classes or one that was written for SB3."""
    policy = adapt_policy_class(policy_class)(observation_space, action_space, lr_schedule, **arguments).to(device)
    if policy.optimizer.state and device.type != "cpu":
        # State that was made with the optimizer stayed on the CPU.
        policy.optimizer.load_state_dict(policy.optimizer.state_dict())
    warn_of_overrides(policy_class)
    return policy


@cache
def adapt_policy_class(policy_class: type) -> type[ActorCriticPolicy]:
    """Make a policy class written for SB3 usable here; ours are returned unchanged.

    A subclass of SB3's ``ActorCriticPolicy`` keeps its name, its ``__init__`` and its networks. If it overrides none of
    the methods that SB3 calls, our class is inserted between it and SB3's; otherwise it runs as in SB3.
    """
    if isinstance(policy_class, type) and issubclass(policy_class, ActorCriticPolicy):
        return policy_class
    if not (isinstance(policy_class, type) and issubclass(policy_class, sb3.ActorCriticPolicy)):
        raise TypeError(f"policy={policy_class!r} must be a subclass of ppo_plus.ActorCriticPolicy (or of SB3's)")
    if policy_class in OURS:
        return OURS[policy_class]
    theirs = next(theirs for theirs in reversed(OURS) if issubclass(policy_class, theirs))
    # Before SB3's class, whose `__init__` does not know our arguments.
    inserted: dict[type, None] = dict.fromkeys([policy_class, OURS[theirs], ActorCriticPolicy, theirs])
    bases = (SB3Interface, policy_class) if overridden(policy_class) else tuple(inserted)
    attributes = {"__module__": policy_class.__module__, "__reduce_ex__": _reduce_ex, "written_class": policy_class}
    return type(policy_class.__name__, bases, attributes)


def _reduce_ex(policy: object, protocol: int) -> tuple[object, ...]:
    """Pickle by the class that the user wrote, since pickles do not find the one that is made of it."""
    return _empty, (vars(type(policy))["written_class"],), policy.__getstate__()


def _empty(policy_class: type) -> ActorCriticPolicy:
    adapted = adapt_policy_class(policy_class)
    return adapted.__new__(adapted)
