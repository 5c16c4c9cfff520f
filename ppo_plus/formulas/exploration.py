r"""Exploration as a noise process.

A process yields ``z``, one standard-normal number per component, and the action distribution turns ``z`` into an
action. Whatever the process, the marginal of each ``z`` is exactly N(0, 1); only its correlation over time differs. So
log-probability, entropy and KL of every action space keep their formulas.

The state of a process between steps (its *carry*, a dict of tensors whose first dimension is the environment) is an
argument and a result. ``N`` environments, ``F`` latent features, ``D`` noise components.

Write your own by subclassing :class:`~ppo_plus.NoiseProcess`: :meth:`~ppo_plus.NoiseProcess.init` and
:meth:`~ppo_plus.NoiseProcess.sample`.
"""

import math
from dataclasses import dataclass

import torch as th

from ppo_plus.require import LARGEST, require_int, require_number

#: State of a process.
NoiseState = dict[str, th.Tensor]
#: The most steps of a series, each of which needs memory in every environment and component.
MAX_HORIZON = 100_000


@dataclass(frozen=True)
class NoiseProcess:
    """Base class: fresh noise at every step, drawn by the distribution itself."""

    def init(self, n_envs: int, latent_dim: int, noise_dim: int, device: th.device | str = "cpu") -> NoiseState:
        """Draw the state for ``n_envs`` environments.

        :return: the carry; every tensor has ``n_envs`` rows
        """
        return {}

    def renew(self, carry: NoiseState, envs: th.Tensor, latent_dim: int, noise_dim: int) -> NoiseState:
        """Draw the state of some environments again.

        :param carry: the state that :meth:`init` or :meth:`sample` returned; not changed
        :param envs: indices of the environments, integers of shape ``(K,)``
        :return: the new carry
        """
        fresh = self.init(len(envs), latent_dim, noise_dim, envs.device)
        return {name: part.index_put((envs,), fresh[name]) for name, part in carry.items()}

    def sample(
        self, carry: NoiseState, features: th.Tensor, log_std: th.Tensor | None
    ) -> tuple[th.Tensor | None, NoiseState]:
        """The noise of one step.

        :param carry: the state of these ``N`` environments
        :param features: the actor's last hidden layer, shape ``(N, F)``
        :param log_std: the policy's parameter for Gaussian components, ``None`` for discrete actions
        :return: ``z`` of shape ``(N, D)``, each N(0, 1), or ``None`` to let the distribution draw white noise; and
            the carry for the next step
        """
        return None, carry

    def log_std_shape(self, latent_dim: int, action_dim: int) -> tuple[int, ...]:
        """Shape of the learned ``log_std`` for ``action_dim`` Gaussian components."""
        return (action_dim,)

    def std(self, log_std: th.Tensor, features: th.Tensor) -> th.Tensor:
        """Standard deviation of the Gaussian components at these states, broadcastable to ``(B, action_dim)``."""
        return log_std.exp()


@dataclass(frozen=True)
class WhiteNoise(NoiseProcess):
    """Independent noise at every step, as in SB3 and most other libraries."""


@dataclass(frozen=True)
class StateDependentNoise(NoiseProcess):
    r"""Generalized state-dependent exploration (gSDE; Raffin et al. 2021, arXiv:2005.05719), for every action space.

    The noise is a function of the state that stays the same until it is renewed: with features
    :math:`\phi(s)` (no gradient flows into them), learned :math:`\sigma` (1 for discrete actions) and stored
    :math:`\Theta, \eta \sim N(0, 1)`,

    .. math:: z_j = \frac{(\phi \odot \sigma_j) \cdot \Theta_j + 10^{-3} \eta_j}
                         {\sqrt{\|\phi \odot \sigma_j\|^2 + 10^{-6}}} \sim N(0, 1).

    The small :math:`\eta` keeps the marginal exact where all features are zero. For Box actions the standard
    deviation is :math:`\sqrt{\|\phi \odot \sigma_j\|^2 + 10^{-6}}`, as in SB3. It grows with the width of the last
    layer: at ``log_std_init=0`` 64 tanh units start near 2.7 (logged as ``train/action_std``); lower
    ``log_std_init`` to start calmer.

    :param full_std: one :math:`\sigma` per feature and action, shape ``(F, D)``, instead of one per feature, ``(F, 1)``
    :param use_expln: keep :math:`\sigma` from growing too fast by :math:`1 + \log(1 + x)` instead of :math:`e^x`
        for :math:`x > 0`
    """

    full_std: bool = True
    use_expln: bool = False

    def init(self, n_envs: int, latent_dim: int, noise_dim: int, device: th.device | str = "cpu") -> NoiseState:
        return {
            "theta": th.randn(n_envs, latent_dim, noise_dim, dtype=th.float32, device=device),
            "eta": th.randn(n_envs, noise_dim, dtype=th.float32, device=device),
        }

    def sample(self, carry: NoiseState, features: th.Tensor, log_std: th.Tensor | None) -> tuple[th.Tensor, NoiseState]:
        features = features.detach()
        sigma = features.new_ones(features.shape[1], 1) if log_std is None else self._sigma(log_std)
        noise = th.einsum("nf,nfd->nd", features, sigma * carry["theta"]) + 1e-3 * carry["eta"]
        return noise / (features.square() @ sigma.square() + 1e-6).sqrt(), carry

    def log_std_shape(self, latent_dim: int, action_dim: int) -> tuple[int, ...]:
        return (latent_dim, action_dim if self.full_std else 1)

    def std(self, log_std: th.Tensor, features: th.Tensor) -> th.Tensor:
        return (features.detach().square() @ self._sigma(log_std).square() + 1e-6).sqrt()

    def _sigma(self, log_std: th.Tensor) -> th.Tensor:
        if not self.use_expln:
            return log_std.exp()
        # Each branch gets only the numbers of its side, so that no infinity reaches the other's gradient. Not by clamp:
        # its gradient at 0, where log_std starts, depends on the version of torch.
        is_above = log_std > 0
        below = th.where(is_above, 0.0, log_std).exp()
        above = th.log1p(th.where(is_above, log_std, 0.0) + 1e-6) + 1.0
        return th.where(is_above, above, below)


@dataclass(frozen=True)
class ColoredNoise(NoiseProcess):
    r"""Noise whose power spectrum falls as :math:`f^{-\beta}`.

    0 is white, 1 pink, 2 red; 0.5 was found to be best for on-policy learning (Hollenstein et al. 2024,
    arXiv:2312.11091; for off-policy: Eberhard et al. 2023). A periodic series of ``horizon`` steps per environment and
    component is synthesized from Gaussian Fourier coefficients (Timmer and König 1995), scaled to unit variance.

    :param beta: exponent, at least 0
    :param horizon: length of the series in steps, even, from 4 to 100,000; it then repeats seamlessly
    """

    beta: float = 0.5
    horizon: int = 1024

    def __post_init__(self) -> None:
        require_number("ColoredNoise: beta", self.beta, 0, LARGEST)
        require_int("ColoredNoise: horizon", self.horizon, 4)
        if self.horizon % 2 or self.horizon > MAX_HORIZON:
            raise ValueError(f"ColoredNoise: horizon={self.horizon!r} must be even, and at most {MAX_HORIZON:,}")

    def init(self, n_envs: int, latent_dim: int, noise_dim: int, device: th.device | str = "cpu") -> NoiseState:
        bins = self.horizon // 2 + 1
        # The constant and the fastest wave are real: one Gaussian instead of two, so they get its whole variance.
        amplitude = th.arange(bins, dtype=th.float32, device=device).clamp(min=1).pow(-self.beta / 2)
        real, imaginary = amplitude * th.randn(2, n_envs, noise_dim, bins, dtype=th.float32, device=device)
        real[..., :: bins - 1] *= math.sqrt(2)
        series = th.fft.irfft(th.complex(real, imaginary), n=self.horizon, norm="forward")
        variance = 4 * amplitude.square().sum() - 2 * amplitude[0].square() - 2 * amplitude[-1].square()
        return {"series": series / variance.sqrt(), "step": th.zeros(n_envs, dtype=th.long, device=device)}

    def sample(self, carry: NoiseState, features: th.Tensor, log_std: th.Tensor | None) -> tuple[th.Tensor, NoiseState]:
        series, step = carry["series"], carry["step"]
        z = series[th.arange(len(series), device=series.device), :, step]
        return z, {"series": series, "step": (step + 1) % self.horizon}
