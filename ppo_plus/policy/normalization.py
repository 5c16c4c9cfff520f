r"""Normalization inside the policy: running moments of observations and of returns, which are buffers of it.

So they are saved, loaded, exported, resumed and copied with its weights. Both are updated once per rollout and constant
while it is collected and learned from, so that the policy that learns is the one that acted.

*Observations*: :math:`o' = \mathrm{clip}((o - \mu) / \sqrt{\sigma^2 + \epsilon}, -c, c)` for each number, with the
moments of all observations of training. Formula and defaults are those of SB3's ``VecNormalize``. The moments of a
rollout are added after the update; in the first rollout :math:`\mu = 0` and :math:`\sigma = 1`.

*Values*: the critic's last layer predicts :math:`\hat v`; the value, in units of the reward, is :math:`v = \mu +
\hat v \sqrt{\sigma^2 + \epsilon}` with the moments of all returns of training. The moments of a rollout are added
before the update, and the last layer is rescaled so that no value changes (PopArt, van Hasselt et al. 2016,
arXiv:1602.07714; :math:`\epsilon` is rl_games'). In the first rollout, values are 0; what the layer predicts is
normalized from the beginning, and values follow it when the first moments are known.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from ppo_plus.formulas.moments import Moments
from ppo_plus.policy.observations import parts_of
from ppo_plus.require import require_kind, require_number

#: The options of both, with their defaults.
OPTIONS: dict[str, dict[str, Any]] = {
    "normalize_observations": {"epsilon": 1e-8, "clip": 10.0, "keys": None},
    "normalize_values": {"epsilon": 1e-5},
}


def normalization_options(name: str, value: bool | Mapping[str, Any]) -> dict[str, Any] | None:
    """The options of an argument in :data:`OPTIONS` that is true, false or a dict of some of them; ``None``: false."""
    defaults = OPTIONS[name]
    require_kind(name, value, (bool, Mapping), f"True, False, or a dict with some of {', '.join(defaults)}")
    if isinstance(value, bool):
        return defaults if value else None
    if unknown := [*value.keys() - defaults.keys()]:
        raise ValueError(f"{name}={value!r} has the unknown option {unknown[0]!r}: use some of {', '.join(defaults)}")
    options = {**defaults, **value}
    for option in defaults.keys() - {"keys"}:
        require_number(f"{name}: {option}", options[option], 0, above=True)
    if options.get("keys") is not None:
        require_kind(f"{name}: keys", options["keys"], (list, tuple), "a list of names of observations")
        if not options["keys"]:
            raise ValueError(f"{name}={value!r} names nothing to normalize: leave keys out for all entries")
    return options


def check_encoder(policy_class: type) -> None:
    """:raises ValueError: a policy class overrides a method that normalizes observations, and calls none that does"""
    normalizing = {"extract_features", "_inputs", "observation_normalizer", "super"}
    for name in ("encode", "extract_features"):
        code = getattr(inspect.unwrap(getattr(policy_class, name)), "__code__", None)
        if code is not None and normalizing.isdisjoint(code.co_names):
            raise ValueError(
                f"normalize_observations does not reach {policy_class.__name__}.{name}: call super().{name}(obs), "
                "or leave it out and pass policy_kwargs=dict(features_extractor_class=...)"
            )


class RunningMoments(nn.Module):
    """Count, mean and variance of numbers, as buffers in double precision; the variance is 1 before there are any."""

    count: th.Tensor
    mean: th.Tensor
    var: th.Tensor
    #: The mean in two parts and the deviation, in single precision: computed with the moments, not in each step.
    single: th.Tensor

    def __init__(self, size: tuple[int, ...], epsilon: float):
        super().__init__()
        self.epsilon = epsilon
        self.register_buffer("count", th.zeros((), dtype=th.double))
        self.register_buffer("mean", th.zeros(size, dtype=th.double))
        self.register_buffer("var", th.ones(size, dtype=th.double))
        self.register_buffer("single", th.empty(3, *size), persistent=False)
        self._round()

    @property
    def std(self) -> th.Tensor:
        r""":math:`\sqrt{\sigma^2 + \epsilon}`."""
        return (self.var + self.epsilon).sqrt()

    def add(self, moments: Moments) -> None:
        """Add the moments of further numbers, in place, unless they are not finite."""
        moments = Moments(*(part.to(self.mean.device) for part in moments))
        count, mean, _ = both = Moments(self.count, self.mean, self.var * self.count).plus(moments)
        is_finite = th.isfinite(mean).all() & th.isfinite(both.m2).all()
        self.var.copy_(both.var.where(is_finite & (count > 0), self.var))
        self.count.copy_(count.where(is_finite, self.count))
        self.mean.copy_(mean.where(is_finite, self.mean))
        self._round()

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._round()

    def _round(self) -> None:
        # What single precision loses of the mean may be large beside the deviation.
        high = self.mean.float()
        self.single.copy_(th.stack([high, self.mean - high, self.std]))


class ObservationNormalizer(RunningMoments):
    """Normalizes the numbers of observations; images and choices stay unchanged. All moments stand in one vector.

    :param observed: the spaces of what actor and critic see, or dicts of spaces
    :param normalize_images: as of the policy, which tells images from other numbers
    :raises ValueError: an entry of ``keys`` does not exist or has no numbers, or nothing has
    """

    def __init__(
        self,
        observed: Sequence[spaces.Space],
        normalize_images: bool,
        epsilon: float,
        clip: float,
        keys: Sequence[str] | None,
    ):
        entries: dict[str, spaces.Space] = {}
        for space in observed:
            entries |= parts_of(space)
        numbers = {
            key: sub.shape or (1,)
            for key, sub in entries.items()
            if isinstance(sub, spaces.Box) and not is_image_space(sub, normalized_image=not normalize_images)
        }
        wrong = [key for key in keys or () if key not in numbers or key == ""]
        if wrong or not numbers:
            what = f"keys names {wrong[0]!r}, which" if wrong else f"observation_space={observed[0]}"
            raise ValueError(
                f"normalize_observations: {what} has no numbers to normalize (images and choices have none): use some "
                f"of {[*numbers]}, or leave it out"
            )
        #: The shape of each entry that is normalized (``""``: the whole), in the order of the moments.
        self.shapes = {key: shape for key, shape in numbers.items() if keys is None or key in keys}
        super().__init__((sum(map(math.prod, self.shapes.values())),), epsilon)
        self.clip = clip

    def forward(self, inputs: PyTorchObs) -> PyTorchObs:
        """Normalized inputs of the network; a Dict may lack entries."""
        if not isinstance(inputs, dict):
            return self._normalized(inputs, self.single)
        parts = self.split(self.single).items()
        return inputs | {key: self._normalized(inputs[key], part) for key, part in parts if key in inputs}

    def split(self, rows: th.Tensor) -> dict[str, th.Tensor]:
        """The columns of each entry, in rows of the moments' size."""
        columns = rows.split([math.prod(shape) for shape in self.shapes.values()], dim=1)
        return dict(zip(self.shapes, columns, strict=True))

    def _normalized(self, rows: th.Tensor, single: th.Tensor) -> th.Tensor:
        high, low, std = single.view(3, *rows.shape[1:]).unbind()
        return ((rows - high - low) / std).clamp(-self.clip, self.clip)

    def moments_of(self, observations: PyTorchObs) -> Moments:
        """The moments of raw observations, ``B`` rows."""
        entries = parts_of(observations)
        rows = [entries[key].reshape(-1, math.prod(shape)).double() for key, shape in self.shapes.items()]
        return Moments.of(th.cat(rows, dim=1))


class ValueNormalizer(RunningMoments):
    """Makes values of the predictions of a critic, which ends with the layer ``last``. With streams, several values are
    predicted, each with its own moments."""

    #: What no traced code reads.
    not_constant = frozenset({"keeps_values"})

    def __init__(self, last: nn.Module, n_values: int, epsilon: float):
        # A parametrization recomputes weights, so that changing them has no effect.
        parts = (last.weight, last.bias) if isinstance(last, nn.Linear) else (None,)
        if not all(isinstance(part, nn.Parameter) for part in parts):
            raise ValueError(
                f"normalize_values rescales the critic's last layer, but {last} is not a torch.nn.Linear with a bias "
                "and without weight_norm or the like: end policy_kwargs=dict(critic=...) with one, or do not normalize"
            )
        super().__init__(() if n_values == 1 else (n_values,), epsilon)
        #: Whether values are still what they were in the rollout.
        self.keeps_values = self.count > 0

    def forward(self, predictions: th.Tensor) -> th.Tensor:
        """Values in units of the reward."""
        mean, _, std = self.single.unbind()
        return th.addcmul(mean, predictions, std)

    @property
    def std(self) -> th.Tensor:
        """0 before the first rollout, so that values are 0 in every unit of rewards."""
        return super().std * (self.count > 0)

    @th.no_grad()
    def rescale(self, last: Sequence[nn.Linear], moments: Moments) -> None:
        """Add the moments of further returns, and change the critic's last layers so that values stay the same; the
        first moments change no layer: predictions are normalized from the beginning."""
        known, mean, std = self.count > 0, self.mean.clone().reshape(-1), self.std.reshape(-1)
        self.add(moments)
        self.keeps_values = known
        new_mean, new_std = self.mean.reshape(-1), self.std.reshape(-1)
        scales, shifts = (std / new_std).where(known, 1.0), ((mean - new_mean) / new_std).where(known, 0.0)
        rows = (row for layer in last for row in zip(layer.weight.split(1), layer.bias.split(1), strict=True))
        for (weight, bias), scale, shift in zip(rows, scales, shifts, strict=True):
            weight.copy_(weight * scale)
            bias.copy_(bias * scale + shift)

    def in_units_of_values(self, coefficients: Mapping[str, Any]) -> dict[str, Any]:
        r"""The coefficients of an update in units of values instead of predictions: ``vf_coef`` becomes
        :math:`c / \sigma^2`, and ``clip_range_vf`` :math:`\epsilon \sigma`, but none around the 0 of the first rollout;
        lists with several values."""
        std, bound = self.std.cpu(), coefficients["clip_range_vf"]
        clip_range_vf = None if bound is None else (bound * std).where(self.keeps_values.cpu(), math.inf).tolist()
        return {**coefficients, "vf_coef": (coefficients["vf_coef"] / std**2).tolist(), "clip_range_vf": clip_range_vf}
