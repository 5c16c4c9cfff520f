"""Action distributions: functions from the actor's outputs and standard-normal noise to actions.

One stateless class per kind of action space. A distribution's ``params`` are one tensor of shape ``(B, param_dim)``;
actions are *internal*: flat, shape ``(B, action_dim)``, zero-based choices for the discrete kinds and unclipped (before
any squashing) reals for Box. Only :meth:`ActionDistribution.to_env` converts them to actions that the environment's
action space contains.

Masks (:mod:`ppo_plus.policy.masking`) enter the parameters, in which a masked alternative has probability 0.

Formulas: Gaussian, categorical and Bernoulli as in any textbook, written in the order of operations of
``torch.distributions`` so that the same seed gives the same bits as SB3. From correlated noise ``z ~ N(0, 1)``,
discrete actions are drawn by the inverse transform of the Gumbel (Gumbel 1954; Maddison et al. 2014) and logistic
distributions.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Distribution
from torch.distributions import Normal as TorchNormal
from torch.nn import functional as F

from ppo_plus.policy.masking import MaskLayout
from ppo_plus.trees import named_parts, to_device, widest

#: The largest absolute value of squashed actions of demonstrations; a bound is 1.
NEAREST = 0.99


class ActionDistribution(ABC):
    """A family of distributions over one action space."""

    #: Outputs of the actor network: means or logits.
    net_dim: int
    #: Parameters of the distribution at one state.
    param_dim: int
    #: Components of the internal action.
    action_dim: int
    #: Standard-normal numbers per action.
    noise_dim: int
    #: Components with a learned standard deviation, the policy's ``log_std``.
    gaussian_dim: int = 0
    #: Number of alternatives of each choice, in order. A mask has one entry per alternative, ``sum(choices)`` in all.
    choices: list[int]
    #: Dtype of internal actions as NumPy arrays.
    dtype: type = np.float32

    def __init__(self, action_space: spaces.Space[Any]):
        self.action_space = action_space

    @property
    def mask_layout(self) -> MaskLayout:
        """:attr:`choices` in the structure of the action space (see :mod:`ppo_plus.policy.masking`)."""
        return self.choices

    @abstractmethod
    def params(self, net: th.Tensor, std: th.Tensor | None, masks: th.Tensor | None = None) -> th.Tensor:
        """The parameters of the distribution.

        :param net: output of the actor, shape ``(B, net_dim)``
        :param std: standard deviation, broadcastable to ``(B, gaussian_dim)``; ``None`` without Gaussian components
        :param masks: which alternatives are allowed, booleans ``(B, sum(choices))``; ``None``: all
        :return: shape ``(B, param_dim)``
        """

    def sample(self, params: th.Tensor) -> th.Tensor:
        """An independent draw from the global generator, shape ``(B, action_dim)``."""
        return self.from_noise(params, th.randn(len(params), self.noise_dim, dtype=params.dtype, device=params.device))

    @abstractmethod
    def from_noise(self, params: th.Tensor, z: th.Tensor) -> th.Tensor:
        """The action for noise ``z`` of shape ``(B, noise_dim)``: an exact sample if the components of ``z`` are
        independent N(0, 1). Shape ``(B, action_dim)``."""

    @abstractmethod
    def mode(self, params: th.Tensor) -> th.Tensor:
        """The deterministic action, shape ``(B, action_dim)``."""

    @abstractmethod
    def log_prob(self, params: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """Log-probability (density for Box) of internal actions ``(B, action_dim)``, shape ``(B,)``."""

    @abstractmethod
    def entropy(self, params: th.Tensor) -> th.Tensor:
        """Entropy in nats, differentiable, shape ``(B,)``."""

    @abstractmethod
    def kl(self, old: th.Tensor, new: th.Tensor) -> th.Tensor:
        """The exact KL(old‖new) in nats between two sets of parameters, shape ``(B,)``."""

    def to_env(self, actions: np.ndarray) -> np.ndarray | list[Any]:
        """Actions that the space contains, in its dtype; here choices, which count from the space's start.

        :param actions: internal actions, shape ``(N, action_dim)``
        :return: shape ``(N, *action_space.shape)``; for Dict and Tuple spaces a list of ``N`` actions
        """
        space, shape = self.action_space, self.action_space.shape or ()
        choices: np.ndarray = (actions.reshape(-1, *shape) + getattr(space, "start", 0)).astype(space.dtype)
        return choices

    def from_env(self, actions: Any) -> np.ndarray:
        """Internal actions of which :meth:`to_env` makes these.

        :param actions: the environment's, an array ``(N, *action_space.shape)``; for Dict and Tuple a dict or tuple
        :return: shape ``(N, action_dim)``
        """
        start = np.asarray(getattr(self.action_space, "start", 0))
        return np.asarray(actions - start, dtype=np.float32).reshape(len(actions), -1)

    def tensors_to_env(self, device: th.device) -> Callable[[th.Tensor], Any]:
        """:meth:`to_env` for actions on a device, where they stay.

        :return: a function of internal actions ``(N, action_dim)``; it returns a tensor ``(N, *action_space.shape)``,
            and for Dict and Tuple spaces a dict or tuple of them, as Gymnasium batches such actions
        """
        space, shape = self.action_space, self.action_space.shape or ()
        start, dtype = to_device(th.as_tensor(getattr(space, "start", 0)), device), torch_dtype(np.dtype(space.dtype))
        return lambda actions: (actions.long().reshape(-1, *shape) + start).to(dtype)

    @abstractmethod
    def to_torch(self, params: th.Tensor) -> Distribution | list[Any]:
        """The same distribution as an object (or list of objects) of ``torch.distributions``."""

    def std(self, params: th.Tensor) -> th.Tensor | None:
        """Standard deviation of the Gaussian components, shape ``(B, gaussian_dim)``; ``None`` without them."""
        return None

    def noise_log_std(self, log_std: th.Tensor) -> th.Tensor:
        """The policy's ``log_std``, ``(..., gaussian_dim)`` or ``(..., 1)``, for all components of the noise.

        :return: shape ``(..., noise_dim)`` (or ``log_std`` where all are Gaussian), 0 for discrete actions
        """
        return log_std if self.gaussian_dim else log_std.new_zeros(*log_std.shape[:-1], self.noise_dim)


class DiagGaussian(ActionDistribution):
    r"""Box: independent Gaussians, :math:`a = \mu + \sigma z`; ``params`` are :math:`(\mu, \sigma)`.

    The environment gets the action clipped to the bounds (rounded first, for integer spaces); the buffer and
    :meth:`log_prob` get the unclipped real number.
    """

    action_space: spaces.Box

    def __init__(self, action_space: spaces.Box):
        super().__init__(action_space)
        self.net_dim = self.action_dim = self.noise_dim = self.gaussian_dim = int(np.prod(action_space.shape))
        self.param_dim = 2 * self.net_dim
        self.choices = []
        self.is_integer = not np.issubdtype(action_space.dtype, np.floating)

    def params(self, net: th.Tensor, std: th.Tensor | None, masks: th.Tensor | None = None) -> th.Tensor:
        assert std is not None
        return th.cat([net, std.expand_as(net)], dim=1)

    def from_noise(self, params: th.Tensor, z: th.Tensor) -> th.Tensor:
        mean, std = params.chunk(2, dim=1)
        return mean + z * std

    def mode(self, params: th.Tensor) -> th.Tensor:
        return params[:, : self.action_dim]

    def log_prob(self, params: th.Tensor, actions: th.Tensor) -> th.Tensor:
        mean, std = params.chunk(2, dim=1)
        return (-((actions - mean) ** 2) / (2 * std**2) - std.log() - math.log(math.sqrt(2 * math.pi))).sum(dim=1)

    def entropy(self, params: th.Tensor) -> th.Tensor:
        return (0.5 + 0.5 * math.log(2 * math.pi) + params[:, self.action_dim :].log()).sum(dim=1)

    def kl(self, old: th.Tensor, new: th.Tensor) -> th.Tensor:
        mean, std = old.chunk(2, dim=1)
        new_mean, new_std = new.chunk(2, dim=1)
        ratio = (std / new_std).square()
        return 0.5 * (ratio + ((mean - new_mean) / new_std).square() - 1 - ratio.log()).sum(dim=1)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        space = self.action_space
        actions = actions.reshape(-1, *space.shape)
        if self.is_integer:
            # float64 represents every integer up to 2**53, float32 only up to 2**24.
            actions = np.rint(actions.astype(np.float64))
        # Several times cheaper than np.clip on small arrays.
        clipped: np.ndarray = np.minimum(np.maximum(actions, space.low), space.high).astype(space.dtype, copy=False)
        return clipped

    def tensors_to_env(self, device: th.device) -> Callable[[th.Tensor], th.Tensor]:
        space, dtype = self.action_space, torch_dtype(self.action_space.dtype)
        # If bounds are doubles or long integers, actions are converted before they are compared with them.
        wide = th.float32 if space.dtype == np.float32 else widest(device)
        low, high = (to_device(th.as_tensor(bound).to(wide), device) for bound in (space.low, space.high))

        def convert(actions: th.Tensor) -> th.Tensor:
            actions = actions.reshape(-1, *space.shape).to(wide)
            return (actions.round() if self.is_integer else actions).clamp(low, high).to(dtype)

        return convert

    def to_torch(self, params: th.Tensor) -> TorchNormal:
        mean, std = params.chunk(2, dim=1)
        return TorchNormal(mean, std)

    def std(self, params: th.Tensor) -> th.Tensor:
        return params[:, self.action_dim :]


class SquashedDiagGaussian(DiagGaussian):
    r"""Box, bounded: :math:`a = \tanh(u)` with Gaussian :math:`u`, scaled to the bounds for the environment.

    Internal actions are :math:`u`, before squashing, so ratio and KL are those of the Gaussians (a bijection leaves
    both unchanged), and tanh is never inverted. Density and entropy are those of
    :math:`\tanh(u) \in (-1, 1)^d` (Haarnoja et al. 2018, arXiv:1801.01290, appendix C).
    """

    def log_prob(self, params: th.Tensor, actions: th.Tensor) -> th.Tensor:
        return super().log_prob(params, actions) - _log_tanh_slope(actions).sum(dim=1)

    def entropy(self, params: th.Tensor) -> th.Tensor:
        r""":math:`H(u) + E[\log(1 - \tanh^2 u)]`, exact to 1e-9 in double precision, as is its gradient."""
        mean, std = params.chunk(2, dim=1)
        return super().entropy(params) + _mean_log_tanh_slope(mean, std).sum(dim=1)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        # In the dtype of an integer space, high - low could overflow.
        low, high = self.action_space.low.astype(np.float64), self.action_space.high.astype(np.float64)
        squashed = np.tanh(actions).reshape(-1, *self.action_space.shape)
        return super().to_env(low + 0.5 * (squashed + 1.0) * (high - low))

    def from_env(self, actions: Any) -> np.ndarray:
        # At a bound, tanh would have to be 1.
        low, high = self.action_space.low.astype(np.float64), self.action_space.high.astype(np.float64)
        squashed = 2.0 * (actions - low) / np.where(high > low, high - low, 1.0) - 1.0
        return super().from_env(np.arctanh(np.clip(squashed, -NEAREST, NEAREST)))

    def tensors_to_env(self, device: th.device) -> Callable[[th.Tensor], th.Tensor]:
        clipped, space = super().tensors_to_env(device), self.action_space
        low, high = (to_device(th.as_tensor(bound).to(widest(device)), device) for bound in (space.low, space.high))

        return lambda actions: clipped(low + 0.5 * (actions.tanh().reshape(-1, *space.shape) + 1.0) * (high - low))


class Categorical(ActionDistribution):
    r"""Discrete and MultiDiscrete: one independent choice per entry of ``nvec``; ``params`` are log-probabilities.

    From noise: :math:`g = -\log(-\log \Phi(z))` is Gumbel noise, so :math:`\arg\max(\mathrm{logits} + g)` is a sample.
    """

    action_space: "spaces.Discrete | spaces.MultiDiscrete"
    dtype = np.int64

    def __init__(self, action_space: "spaces.Discrete | spaces.MultiDiscrete"):
        super().__init__(action_space)
        n = action_space.n if isinstance(action_space, spaces.Discrete) else action_space.nvec
        self.choices = np.ravel(n).tolist()
        self.net_dim = self.param_dim = self.noise_dim = sum(self.choices)
        self.action_dim = len(self.choices)

    def _split(self, tensor: th.Tensor) -> tuple[th.Tensor, ...]:
        return (tensor,) if self.action_dim == 1 else th.split(tensor, self.choices, dim=1)

    def _join(self, columns: list[th.Tensor]) -> th.Tensor:
        return columns[0] if self.action_dim == 1 else th.cat(columns, dim=1)

    def params(self, net: th.Tensor, std: th.Tensor | None, masks: th.Tensor | None = None) -> th.Tensor:
        if masks is not None:
            # Finite, so that differences and products with probability 0 are 0 and not NaN; exp of it is exactly 0.
            net = net.where(masks, th.finfo(net.dtype).min)
        # One fused operation where gradients are needed; else SB3's operations, so that rollouts are equal bit for bit.
        # TorchScript's tracer compares graphs that are made with gradients and without.
        learns = th.is_grad_enabled() and not th.jit.is_tracing()  # type: ignore[no-untyped-call]
        if learns:
            return self._join([F.log_softmax(logits, dim=1) for logits in self._split(net)])
        return self._join([logits - logits.logsumexp(1, keepdim=True) for logits in self._split(net)])

    def sample(self, params: th.Tensor) -> th.Tensor:
        def draw(log_probs: th.Tensor) -> th.Tensor:
            # An exponential race, as in torch.multinomial: argmax(p / E) with E ~ Exp(1) is a draw from p. Never with
            # E = 0, which some generators draw: 0 / 0 would select a masked alternative.
            race = th.empty_like(log_probs).exponential_(1).clamp_(min=th.finfo(log_probs.dtype).tiny)
            # As SB3: the softmax of normalized logits. exp differs in the last bit, and so would some draws.
            return (F.softmax(log_probs, dim=1) / race).argmax(1, keepdim=True)

        return self._join([draw(log_probs) for log_probs in self._split(params)])

    def from_noise(self, params: th.Tensor, z: th.Tensor) -> th.Tensor:
        # log_ndtr is accurate in both tails; far out it rounds to 0, clamped since infinite noise beats any mask.
        return self.mode(params - (-th.special.log_ndtr(z)).clamp(min=th.finfo(z.dtype).tiny).log())

    def mode(self, params: th.Tensor) -> th.Tensor:
        return self._join([p.argmax(1, keepdim=True) for p in self._split(params)])

    def log_prob(self, params: th.Tensor, actions: th.Tensor) -> th.Tensor:
        chosen = actions.long()
        if self.action_dim > 1:
            chosen = chosen + to_device(th.from_numpy(np.cumsum([0, *self.choices[:-1]])), chosen.device)
        return params.gather(1, chosen).sum(dim=1)

    def entropy(self, params: th.Tensor) -> th.Tensor:
        return -(params.clamp(min=th.finfo(params.dtype).min) * params.exp()).sum(dim=1)

    def kl(self, old: th.Tensor, new: th.Tensor) -> th.Tensor:
        lowest = th.finfo(old.dtype).min
        return (old.exp() * (old.clamp(min=lowest) - new.clamp(min=lowest))).sum(dim=1)

    def to_torch(self, params: th.Tensor) -> Distribution | list[Any]:
        choices = [TorchCategorical(logits=logits) for logits in self._split(params)]
        return choices[0] if isinstance(self.action_space, spaces.Discrete) else choices


class Bernoulli(ActionDistribution):
    r"""MultiBinary: independent coins; ``params`` are logits.

    From noise: :math:`\log \Phi(z) - \log \Phi(-z)` is standard logistic, so
    :math:`\mathrm{logit} + \log \Phi(z) - \log \Phi(-z) > 0` is an exact draw.
    """

    action_space: spaces.MultiBinary

    def __init__(self, action_space: spaces.MultiBinary):
        super().__init__(action_space)
        self.net_dim = self.param_dim = self.action_dim = self.noise_dim = int(np.prod(action_space.shape))
        self.choices = [2] * self.action_dim

    def params(self, net: th.Tensor, std: th.Tensor | None, masks: th.Tensor | None = None) -> th.Tensor:
        if masks is None:
            return net
        may_be_0, may_be_1 = masks.reshape(masks.shape[0], -1, 2).unbind(dim=2)
        certain = th.finfo(net.dtype).max
        return net.where(may_be_0, certain).where(may_be_1, -certain)

    def sample(self, params: th.Tensor) -> th.Tensor:
        # As th.bernoulli, which does not return where a parameter is NaN.
        return (th.rand_like(params) < params.sigmoid()).to(params.dtype)

    def from_noise(self, params: th.Tensor, z: th.Tensor) -> th.Tensor:
        return self.mode(params + (th.special.log_ndtr(z) - th.special.log_ndtr(-z)))

    def mode(self, params: th.Tensor) -> th.Tensor:
        return (params > 0).to(params.dtype)

    def log_prob(self, params: th.Tensor, actions: th.Tensor) -> th.Tensor:
        return -F.binary_cross_entropy_with_logits(params, actions.to(params.dtype), reduction="none").sum(dim=1)

    def entropy(self, params: th.Tensor) -> th.Tensor:
        return F.binary_cross_entropy_with_logits(params, params.sigmoid(), reduction="none").sum(dim=1)

    def kl(self, old: th.Tensor, new: th.Tensor) -> th.Tensor:
        heads = old.sigmoid() * (F.logsigmoid(old) - F.logsigmoid(new))
        tails = (-old).sigmoid() * (F.logsigmoid(-old) - F.logsigmoid(-new))
        return (heads + tails).sum(dim=1)

    def to_torch(self, params: th.Tensor) -> TorchBernoulli:
        return TorchBernoulli(logits=params)


class Product(ActionDistribution):
    """Dict and Tuple: an independent distribution for each subspace, which may be a Dict or Tuple again.

    Parameters, internal actions, noise and masks are concatenated in the order of the subspaces.
    """

    action_space: "spaces.Dict | spaces.Tuple[Any]"

    def __init__(
        self, action_space: "spaces.Dict | spaces.Tuple[Any]", squash_output: bool = False, name: str = "action_space"
    ):
        super().__init__(action_space)
        if not (subspaces := named_parts(action_space)):
            raise ValueError(f"{name}={action_space} is empty: give it at least one subspace")
        self.parts = [
            make_distribution(sub, squash_output and make_distribution(sub).gaussian_dim > 0, f"{name}[{key!r}]")
            for key, sub in subspaces.items()
        ]
        #: The sizes of each part, by name.
        self._sizes = {"choices": [sum(part.choices) for part in self.parts]}
        for name in ("net_dim", "param_dim", "action_dim", "noise_dim", "gaussian_dim"):
            self._sizes[name] = [getattr(part, name) for part in self.parts]
            setattr(self, name, sum(self._sizes[name]))
        self.choices = [n for part in self.parts for n in part.choices]

    @property
    def mask_layout(self) -> MaskLayout:
        return _structured(self.action_space, [part.mask_layout for part in self.parts])

    def _call(self, method: str, *arguments: Sequence[Any]) -> list[Any]:
        """Call a method of each part with the part's own arguments."""
        return [getattr(part, method)(*own) for part, *own in zip(self.parts, *arguments, strict=True)]

    def _split(self, tensor: th.Tensor | None, sizes: str = "param_dim") -> Sequence[Any]:
        return [None] * len(self.parts) if tensor is None else th.split(tensor, self._sizes[sizes], dim=-1)

    def params(self, net: th.Tensor, std: th.Tensor | None, masks: th.Tensor | None = None) -> th.Tensor:
        std = None if std is None else std.expand(net.shape[0], self.gaussian_dim)
        arguments = self._split(net, "net_dim"), self._split(std, "gaussian_dim"), self._split(masks, "choices")
        return th.cat(self._call("params", *arguments), dim=1)

    def sample(self, params: th.Tensor) -> th.Tensor:
        return _joined(self._call("sample", self._split(params)), params)

    def from_noise(self, params: th.Tensor, z: th.Tensor) -> th.Tensor:
        return _joined(self._call("from_noise", self._split(params), self._split(z, "noise_dim")), params)

    def mode(self, params: th.Tensor) -> th.Tensor:
        return _joined(self._call("mode", self._split(params)), params)

    def log_prob(self, params: th.Tensor, actions: th.Tensor) -> th.Tensor:
        return th.stack(self._call("log_prob", self._split(params), self._split(actions, "action_dim"))).sum(dim=0)

    def entropy(self, params: th.Tensor) -> th.Tensor:
        return th.stack(self._call("entropy", self._split(params))).sum(dim=0)

    def kl(self, old: th.Tensor, new: th.Tensor) -> th.Tensor:
        return th.stack(self._call("kl", self._split(old), self._split(new))).sum(dim=0)

    def to_env(self, actions: np.ndarray) -> list[Any]:
        ends = np.cumsum(self._sizes["action_dim"])[:-1]
        columns = self._call("to_env", np.split(actions.reshape(len(actions), self.action_dim), ends, axis=1))
        parts = [_elements(part.action_space, column) for part, column in zip(self.parts, columns, strict=True)]
        return [_structured(self.action_space, row) for row in zip(*parts, strict=True)]

    def from_env(self, actions: Any) -> np.ndarray:
        parts = actions if isinstance(actions, tuple) else [actions[key] for key in self.action_space.spaces]
        return np.concatenate(self._call("from_env", parts), axis=1)

    def tensors_to_env(self, device: th.device) -> Callable[[th.Tensor], Any]:
        functions = [part.tensors_to_env(device) for part in self.parts]

        def convert(actions: th.Tensor) -> dict[str, Any] | tuple[Any, ...]:
            columns = zip(functions, self._split(actions, "action_dim"), strict=True)
            return _structured(self.action_space, [to_env(column) for to_env, column in columns])

        return convert

    def to_torch(self, params: th.Tensor) -> list[Any]:
        return self._call("to_torch", self._split(params))

    def std(self, params: th.Tensor) -> th.Tensor | None:
        stds = [std for std in self._call("std", self._split(params)) if std is not None]
        return th.cat(stds, dim=1) if stds else None

    def noise_log_std(self, log_std: th.Tensor) -> th.Tensor:
        log_std = log_std.expand(*log_std.shape[:-1], self.gaussian_dim)
        return th.cat(self._call("noise_log_std", self._split(log_std, "gaussian_dim")), dim=-1)


def _structured(space: "spaces.Dict | spaces.Tuple[Any]", parts: Sequence[Any]) -> dict[str, Any] | tuple[Any, ...]:
    return tuple(parts) if isinstance(space, spaces.Tuple) else dict(zip(space.spaces, parts, strict=True))


def _elements(space: spaces.Space[Any], actions: np.ndarray | list[Any]) -> list[Any]:
    """The rows that ``to_env`` returned: numbers for Discrete; arrays for the others, even with shape ``()``."""
    if isinstance(actions, list) or isinstance(space, spaces.Discrete):
        return list(actions)
    return [actions[i, ...] for i in range(len(actions))]


def _joined(actions: list[th.Tensor], params: th.Tensor) -> th.Tensor:
    return th.cat([part.to(params.dtype) for part in actions], dim=1)


def make_distribution(
    action_space: spaces.Space[Any], squash_output: bool = False, name: str = "action_space"
) -> ActionDistribution:
    """The distribution for an action space.

    :param action_space: Box, Discrete, MultiDiscrete or MultiBinary, of any shape, or Dict and Tuple of them, nested
    :param squash_output: squash Box actions by tanh instead of clipping them
    :raises ValueError: unsupported or empty space, Box without finite bounds, or squashing without a Box
    """
    if squash_output and not make_distribution(action_space, name=name).gaussian_dim:
        raise ValueError(f"squash_output=True needs a Box action space, not {action_space}: leave it out")
    if isinstance(action_space, (spaces.Dict, spaces.Tuple)):
        return Product(action_space, squash_output, name)
    if 0 in (action_space.shape or ()):
        raise ValueError(f"{name}={action_space} is empty: give it a shape without 0")
    if isinstance(action_space, spaces.Box):
        _check_box(action_space, name)
        return SquashedDiagGaussian(action_space) if squash_output else DiagGaussian(action_space)
    if isinstance(action_space, (spaces.Discrete, spaces.MultiDiscrete)):
        return Categorical(action_space)
    if isinstance(action_space, spaces.MultiBinary):
        return Bernoulli(action_space)
    raise ValueError(
        f"{name}={action_space} is not supported: use Box, Discrete, MultiDiscrete or MultiBinary, "
        "or Dict and Tuple of them (gymnasium.spaces.utils.flatten_space turns many others into a Box)"
    )


def _check_box(space: spaces.Box, name: str) -> None:
    """:raises ValueError: without finite bounds, or integers that floats cannot hold"""
    if infinite := [bound for bound in ("low", "high") if not np.isfinite(getattr(space, bound)).all()]:
        which = " and ".join(infinite)
        remedy = "give the environment's Box finite ones (a ClipAction wrapper removes them)"
        raise ValueError(f"{name}={space} has an infinite {which}: {remedy}")
    bounds = [space.low.astype(np.float64), space.high.astype(np.float64)]
    if np.issubdtype(space.dtype, np.integer) and np.abs(bounds).max(initial=0) > 2**53:
        raise ValueError(
            f"{name}={space} has integers beyond ±2**53, which floats cannot tell apart: give the Box narrower bounds"
        )


@dataclass(frozen=True, eq=False)
class BoundDistribution:
    """A distribution together with its parameters, with the methods of SB3's ``Distribution``.

    Returned by ``policy.get_distribution(obs)``. Actions are internal ones (see the module), shape ``(B, action_dim)``,
    or ``(B,)`` for ``Discrete``, as SB3's.
    """

    action_dist: ActionDistribution
    params: th.Tensor

    @property
    def distribution(self) -> Distribution | list[Any]:
        """The same as an object of ``torch.distributions`` (a list for several choices or subspaces), unsquashed."""
        return self.action_dist.to_torch(self.params)

    @property
    def action_dim(self) -> int:
        """The components of an action; for ``Discrete``, as in SB3, the number of actions."""
        space = self.action_dist.action_space
        return int(space.n) if isinstance(space, spaces.Discrete) else self.action_dist.action_dim

    def _shaped(self, actions: th.Tensor) -> th.Tensor:
        return actions.squeeze(1) if isinstance(self.action_dist.action_space, spaces.Discrete) else actions

    def sample(self) -> th.Tensor:
        """An independent draw."""
        return self._shaped(self.action_dist.sample(self.params))

    def mode(self) -> th.Tensor:
        """The deterministic action."""
        return self._shaped(self.action_dist.mode(self.params))

    def get_actions(self, deterministic: bool = False) -> th.Tensor:
        """:meth:`mode` or :meth:`sample`."""
        return self.mode() if deterministic else self.sample()

    def log_prob(self, actions: th.Tensor) -> th.Tensor:
        """Log-probability of actions ``(B, action_dim)`` (or ``(B,)`` where that is 1), shape ``(B,)``."""
        return self.action_dist.log_prob(self.params, actions.reshape(-1, self.action_dist.action_dim))

    def entropy(self) -> th.Tensor:
        """Entropy in nats, shape ``(B,)``."""
        return self.action_dist.entropy(self.params)


def torch_dtype(dtype: npt.DTypeLike) -> th.dtype:
    """The torch dtype of a NumPy dtype."""
    return th.from_numpy(np.empty(0, dtype)).dtype


def _log_tanh_slope(u: th.Tensor) -> th.Tensor:
    r""":math:`\log(1 - \tanh^2 u) = 2(\log 2 - u - \mathrm{softplus}(-2u))`, finite for every ``u``."""
    return 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))


def _mean_log_tanh_slope(mean: th.Tensor, std: th.Tensor) -> th.Tensor:
    r""":math:`E[\log(1 - \tanh^2 u)] = 2 (\log 2 - E[\log 2\cosh u])` for :math:`u \sim N(\mu, \sigma^2)`.

    :math:`\log 2\cosh u = E|u + l|` for a logistic :math:`l` of scale 1/2, since its second derivative is twice the
    density of :math:`l`. A logistic is a mixture of Gaussians, so that :math:`u + l` is one, too: what is left is the
    mean of a folded normal, :math:`s \sqrt{2/\pi}\, e^{-\mu^2/2s^2} + \mu\, \mathrm{erf}(\mu/s\sqrt 2)` with
    :math:`s^2 = \sigma^2 + \tau^2`, for each :math:`\tau` of the mixture. That is smooth for narrow and wide :math:`u`.
    """
    tables = (th.from_numpy(table).to(mean.dtype) for table in _logistic_as_gaussians())
    variances, weights = (to_device(table, mean.device) for table in tables)
    s = (std.square().unsqueeze(-1) + variances).sqrt()
    z = mean.unsqueeze(-1) / s
    folded = s * (math.sqrt(2 / math.pi) * (-0.5 * z.square()).exp() + z * th.erf(z * math.sqrt(0.5)))
    return 2.0 * (math.log(2.0) - folded @ weights)


@lru_cache
def _logistic_as_gaussians(n_nodes: int = 16) -> tuple[np.ndarray, np.ndarray]:
    r"""Variances :math:`\tau^2` and weights of Gaussians whose mixture is the logistic distribution of scale 1/2.

    :math:`\tau` has Kolmogorov's distribution (Andrews and Mallows 1974), of density
    :math:`8\tau \sum_j (-1)^{j+1} j^2 e^{-2j^2\tau^2}`. It and all its derivatives vanish at both ends, for which
    the trapezoidal rule is the most accurate.
    """
    tau = np.geomspace(0.22, 3.5, n_nodes)
    j = np.arange(1, 80)[:, None]
    # Nodes in equal ratios: each weight is proportional to its node.
    weights = tau * (8 * tau * (-1.0) ** (j + 1) * j**2 * np.exp(-2 * (j * tau) ** 2)).sum(axis=0)
    return tau**2, weights / weights.sum()
