"""Which of many settings matter: folded designs of experiments.

In a design every factor is high in one half of all runs and low in the other, and any two factors are high together in
a quarter of them. So every main effect is a difference between halves: all runs serve all factors. Folded, with as many
runs again of all the opposite levels, no interaction of two factors looks like the effect of one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import hadamard
from scipy.stats import t as student


class Factor(NamedTuple):
    """Something that may be one way or the other.

    :param name: what it is called
    :param high: the settings that it changes, in the format of a settings file, where a setting ``a.b`` is ``b`` in the
        dict ``a``; low is to leave them
    """

    name: str
    high: dict[str, Any]


@dataclass(frozen=True)
class Design:
    """Factors, and their levels in each run.

    :param base: settings with all factors low; ``rollout``, if it is there, is the number of steps of all environments
        together, and gives ``n_steps``
    :param factors: what may be high
    :param levels: of each factor (columns) in each run (rows), -1 or 1
    """

    base: dict[str, Any]
    factors: tuple[Factor, ...]
    levels: np.ndarray

    def settings(self, run: Sequence[int]) -> dict[str, Any]:
        """The settings of a run.

        :param run: the level of each factor
        """
        found = dict(self.base)
        for factor, level in zip(self.factors, run, strict=True):
            found |= factor.high if level > 0 else {}
        if "rollout" in found:
            found["n_steps"] = found.pop("rollout") // found["n_envs"]
        architecture = {name: found.pop(f"policy_kwargs.net_arch.{name}") for name in ("pi", "vf")}
        kwargs = {key.partition(".")[2]: found.pop(key) for key in list(found) if key.startswith("policy_kwargs.")}
        given = ", ".join(f"{name}={value}" for name, value in kwargs.items())
        return {**found, "policy_kwargs": f"dict(net_arch={architecture}{', ' if given else ''}{given})"}

    def name(self, run: Sequence[int]) -> str:
        """The settings of a run that are not low, in words; "base" where all are.

        :param run: the level of each factor
        """
        high = (factor.name for factor, level in zip(self.factors, run, strict=True) if level > 0)
        return ", ".join(name.partition(", not")[0] for name in high) or "base"

    def effects(self, scores: np.ndarray) -> np.ndarray:
        r"""The main effect of each factor, and its 95 % interval.

        Of each task, scores are divided by their mean over all runs, so that an effect is a part of what the task
        usually brings; a run's score :math:`y` is the mean of these over tasks. The effect of a factor is
        :math:`\overline{y_+} - \overline{y_-}`, by least squares for all factors at once, so that the effect of one
        does not count as another's noise. The interval is Student's, of what no main effect explains: chance,
        interactions.

        :param scores: of each run (rows) on each task (columns); NaN where there is none yet, and such a run does not
            count
        :return: effect, lower and upper bound for each factor, shape ``(n_factors, 3)``; NaN while there are too few
            runs
        :raises ValueError: the mean of a task is not positive: no effect can be a part of it
        """
        run = np.isfinite(scores).all(axis=1).nonzero()[0]
        x = np.column_stack([np.ones(len(run)), self.levels[run]])
        spare = len(x) - x.shape[1]
        if spare < 1 or np.linalg.matrix_rank(x) < x.shape[1]:
            return np.full((len(self.factors), 3), np.nan)
        means = scores[run].mean(axis=0)
        if (means <= 0).any():
            raise ValueError(f"scores must be positive on average, not {means}")
        y = (scores[run] / means).mean(axis=1)
        found = np.linalg.lstsq(x, y)[0]
        variance = ((y - x @ found) ** 2).sum() / spare * np.diag(np.linalg.inv(x.T @ x))
        effect, half = 2 * found[1:], 2 * student.ppf(0.975, spare) * np.sqrt(variance[1:])
        return np.stack([effect, effect - half, effect + half], axis=1)


def folded(half: np.ndarray) -> np.ndarray:
    """A design and all its opposite levels: twice the runs."""
    return np.vstack([half, -half])


def plackett_burman() -> np.ndarray:
    """Plackett and Burman's (1946) 12 runs of eleven factors: a row, its rotations, and one run with all low."""
    generator = (1, 1, -1, 1, 1, 1, -1, -1, -1, 1, -1)
    rotated = [np.roll(generator, i) for i in range(len(generator))]
    return np.vstack([*rotated, -np.ones((1, len(generator)), dtype=int)])


#: Factors of more than one design.
ANEW = Factor("recomputed advantages", {"recompute_advantages": True})
EPSILON = Factor("normalization's epsilon 0.01, not 1e-8", {"normalize": "dict(epsilon=0.01)"})
LARGE_BATCHES = Factor("minibatches of 256, not 64", {"batch_size": 256})
LESS_NOISE = Factor("initial std 0.37, not 1", {"policy_kwargs.log_std_init": -1})
MORE_ENVS = Factor("16 x 128 steps, not 4 x 512", {"n_envs": 16, "n_steps": 128})
RATE_TO_0 = Factor("learning rate to 0, not constant", {"learning_rate": "lin_3e-4"})
SMALLER_LAMBDA = Factor("lambda 0.8, not 0.9", {"gae_lambda": 0.8})
SMALL_LAMBDA = Factor("lambda 0.9, not 0.95", {"gae_lambda": 0.9})
SQUASH = Factor("tanh squash", {"policy_kwargs.squash_output": True})
STILL_LESS_NOISE = Factor("initial std 0.17, not 0.37", {"policy_kwargs.log_std_init": -1.75})
WIDE_CRITIC = Factor("critic of 256 units, not 64", {"policy_kwargs.net_arch.vf": [256, 256]})

#: First, eleven factors in 24 runs, beside SB3's defaults with VecNormalize. Rollouts are as long as SB3's, 2,048
#: steps, of four environments: one would take twice the time.
MANY = Design(
    {
        "normalize": True,
        "n_envs": 4,
        "n_steps": 512,
        "policy_kwargs.net_arch.pi": [64, 64],
        "policy_kwargs.net_arch.vf": [64, 64],
    },
    (
        LESS_NOISE,
        WIDE_CRITIC,
        Factor("actor of 256 units, not 64", {"policy_kwargs.net_arch.pi": [256, 256]}),
        Factor("ReLU, not tanh", {"policy_kwargs.activation_fn": "nn.ReLU"}),
        RATE_TO_0,
        ANEW,
        Factor(
            "10 critic epochs at 1e-3 (measured at fb6d4cb, then removed)",
            {"critic_epochs": 10, "critic_learning_rate": 1e-3},
        ),
        MORE_ENVS,
        EPSILON,
        LARGE_BATCHES,
        SMALL_LAMBDA,
    ),
    folded(plackett_burman()),
)
#: Then eight factors in 16 runs: what it left open, and new ones. The initial std is what it was clear about; of the
#: rest, what was better in it stays, chance or not.
FEW = Design(
    MANY.base | EPSILON.high | MORE_ENVS.high | RATE_TO_0.high | LESS_NOISE.high,
    (
        STILL_LESS_NOISE,
        SMALL_LAMBDA,
        Factor("gamma 0.98, not 0.99", {"gamma": 0.98}),
        Factor("clip range 0.1, not 0.2", {"clip_range": 0.1}),
        Factor("colored noise, 1/f^0.5", {"exploration": "ColoredNoise(beta=0.5)"}),
        ANEW,
        SQUASH,
        WIDE_CRITIC,
    ),
    folded(hadamard(8)),
)
#: Two looks at full length: lambda 0.9, which it was in favor of, and a wide critic, with what the best run on Ant had
#: beside them, and with recomputed advantages, which Walker2d favored.
LONG = Design(
    FEW.base | SMALL_LAMBDA.high | WIDE_CRITIC.high | STILL_LESS_NOISE.high | SQUASH.high,
    (ANEW,),
    np.array([(-1,), (1,)]),
)
#: Then what had been left alone (how much is collected and how often it is learned from, entropy), further steps on the
#: ways that were clear (gamma, lambda), and again the two factors of which the tasks did not agree.
AGAIN = Design(
    FEW.base | SMALL_LAMBDA.high | WIDE_CRITIC.high,
    (
        STILL_LESS_NOISE,
        ANEW,
        Factor("16 x 32 steps, not 16 x 128", {"n_steps": 32}),
        Factor("5 epochs, not 10", {"n_epochs": 5}),
        Factor("learning rate from 1e-3, not 3e-4", {"learning_rate": "lin_1e-3"}),
        Factor("entropy coefficient 0.005, not 0", {"ent_coef": 0.005}),
        Factor("gamma 0.995, not 0.99", {"gamma": 0.995}),
        SMALLER_LAMBDA,
    ),
    folded(hadamard(8)),
)
#: Last, in full length, what is open of it, and the other way where one was worse.
LAST = Design(
    AGAIN.base,
    (
        ANEW,
        SMALLER_LAMBDA,
        Factor("16 x 256 steps, not 16 x 128", {"n_steps": 256}),
        Factor("learning rate from 1.5e-4, not 3e-4", {"learning_rate": "lin_1.5e-4"}),
    ),
    folded(hadamard(4)),
)
#: And how far an update goes: with a learning rate that is scaled to a target of the KL divergence.
KL = Design(
    LAST.base | ANEW.high | {"learning_rate": 3e-4, "kl_control": "adaptive_lr", "target_kl": "lin_0.01_0.002"},
    (
        Factor("target KL 0.02, not 0.01", {"target_kl": "lin_0.02_0.004"}),
        Factor("a critic's rate that is not scaled", {"critic_learning_rate": 3e-4}),
        LARGE_BATCHES,
        SMALLER_LAMBDA,
    ),
    folded(hadamard(4)),
)
#: The recipe of the parallel simulators, with many environments and an adapted learning rate. Minibatches and
#: environments have three levels, as two factors that are never high together. Twelve runs are what five hours allow
#: with several seeds, so this design is not folded: a search over such designs chose the one whose main effects vary
#: least, and whose interactions of two factors look least like a main effect. The first run is the recipe itself.
PARALLEL = Design(
    {
        "normalize": "dict(epsilon=0.01)",
        "n_envs": 64,
        "rollout": 4096,
        "batch_size": 512,
        "n_epochs": 5,
        "learning_rate": 5e-4,
        "kl_control": "adaptive_lr",
        "target_kl": 0.008,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "vf_coef": 1.0,
        "max_grad_norm": 1.0,
        "policy_kwargs.net_arch.pi": [256, 128, 64],
        "policy_kwargs.net_arch.vf": [256, 128, 64],
        "policy_kwargs.activation_fn": "nn.ELU",
        "policy_kwargs.log_std_init": 0,
    },
    (
        Factor("minibatches of 256, not 512", {"batch_size": 256}),
        Factor("minibatches of 1024, not 512", {"batch_size": 1024}),
        Factor("16 environments, not 64", {"n_envs": 16}),
        Factor("32 environments, not 64", {"n_envs": 32}),
        Factor("rollouts of 8192 steps, not 4096", {"rollout": 8192}),
        Factor("target KL 0.016, not 0.008", {"target_kl": 0.016}),
        SMALL_LAMBDA,
        Factor("initial std 0.5, not 1", {"policy_kwargs.log_std_init": -0.693}),
        ANEW,
        Factor("learning rate to 0, not constant, under the adaptation", {"learning_rate": "lin_5e-4"}),
    ),
    np.array(
        [
            (-1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
            (-1, -1, -1, 1, 1, 1, 1, 1, -1, -1),
            (-1, 1, -1, -1, -1, 1, 1, -1, -1, 1),
            (-1, -1, 1, -1, -1, 1, -1, 1, 1, 1),
            (-1, 1, -1, -1, 1, 1, -1, 1, 1, 1),
            (-1, 1, 1, -1, 1, -1, -1, -1, -1, -1),
            (1, -1, 1, -1, 1, 1, 1, -1, -1, 1),
            (1, -1, -1, 1, -1, -1, -1, 1, -1, 1),
            (1, -1, -1, 1, -1, 1, -1, -1, 1, -1),
            (1, -1, -1, -1, 1, -1, 1, 1, 1, -1),
            (-1, 1, 1, -1, -1, -1, 1, 1, 1, -1),
            (-1, -1, -1, 1, 1, -1, 1, -1, 1, 1),
        ]
    ),
)
#: Around the settings that the first seed of :data:`PARALLEL` favors (smaller minibatches, fewer environments, a larger
#: KL, less initial noise), with one or two settings changed at a time.
NEAR = Design(
    PARALLEL.base
    | {
        "batch_size": 256,
        "n_envs": 16,
        "rollout": 8192,
        "target_kl": 0.016,
        "policy_kwargs.log_std_init": -0.693,
    },
    (
        SMALL_LAMBDA,
        Factor("initial std 0.3, not 0.5", {"policy_kwargs.log_std_init": -1.204}),
        Factor("target KL 0.032, not 0.016", {"target_kl": 0.032}),
        Factor("32 environments, not 16", {"n_envs": 32}),
    ),
    np.array(
        [
            (-1, -1, -1, -1),
            (1, -1, -1, -1),
            (-1, 1, -1, -1),
            (1, 1, -1, -1),
            (-1, -1, 1, -1),
            (1, -1, -1, 1),
        ]
    ),
)
