"""Which of many settings matter: a folded Plackett-Burman design.

In 12 runs of Plackett and Burman (1946) each of eleven factors is high in six runs and low in six, and any two factors
are high together in three; folded, with as many runs again of all the opposite levels, no interaction of two factors
looks like the effect of one. So every main effect is a difference between half of all runs and the other half.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

#: The first run; the next ones are its rotations, the last one has all low.
GENERATOR = (1, 1, -1, 1, 1, 1, -1, -1, -1, 1, -1)


class Factor(NamedTuple):
    """Something that may be one way or the other.

    :param name: what it is called
    :param high: the settings that it changes, in the format of a settings file; low is to leave them
    """

    name: str
    high: dict[str, Any]


#: Rollouts are as long as SB3's, 2,048 steps, of four environments: one would take twice the time.
BASE: dict[str, Any] = {"n_envs": 4, "n_steps": 512}
#: Beside SB3's defaults with VecNormalize. A setting ``a.b`` is ``b`` in the dict ``a``.
FACTORS = (
    Factor("initial std 0.37", {"policy_kwargs.log_std_init": -1}),
    Factor("critic of 256 units", {"policy_kwargs.net_arch.vf": [256, 256]}),
    Factor("actor of 256 units", {"policy_kwargs.net_arch.pi": [256, 256]}),
    Factor("ReLU", {"policy_kwargs.activation_fn": "nn.ReLU"}),
    Factor("learning rate to 0", {"learning_rate": "lin_3e-4"}),
    Factor("advantages anew", {"recompute_advantages": True}),
    Factor("10 critic epochs at 1e-3", {"critic_epochs": 10, "critic_learning_rate": 1e-3}),
    Factor("16 x 128 steps", {"n_envs": 16, "n_steps": 128}),
    Factor("normalization's epsilon 0.01", {"normalize": "dict(epsilon=0.01)"}),
    Factor("minibatches of 256", {"batch_size": 256}),
    Factor("lambda 0.9", {"gae_lambda": 0.9}),
)


def design() -> np.ndarray:
    """The levels, -1 or 1, of each factor (columns) in each run (rows): 24 x 11."""
    rotated = np.stack([np.roll(GENERATOR, i) for i in range(len(GENERATOR))])
    half = np.vstack([rotated, -np.ones((1, len(GENERATOR)), dtype=int)])
    return np.vstack([half, -half])


def settings(levels: Sequence[int]) -> dict[str, Any]:
    """The settings of a run.

    :param levels: of each factor
    """
    found: dict[str, Any] = BASE | {"policy_kwargs.net_arch.pi": [64, 64], "policy_kwargs.net_arch.vf": [64, 64]}
    for factor, level in zip(FACTORS, levels, strict=True):
        found |= factor.high if level > 0 else {}
    architecture = {name: found.pop(f"policy_kwargs.net_arch.{name}") for name in ("pi", "vf")}
    kwargs = {key.partition(".")[2]: found.pop(key) for key in list(found) if key.startswith("policy_kwargs.")}
    given = ", ".join(f"{name}={value}" for name, value in kwargs.items())
    return {**found, "policy_kwargs": f"dict(net_arch={architecture}{', ' if given else ''}{given})"}


def effects(scores: np.ndarray, confidence: float = 0.95) -> np.ndarray:
    r"""The main effect of each factor, and its interval.

    Of each task, scores are divided by their mean over all runs, so that an effect is a part of what the task usually
    brings; a run's score :math:`y` is the mean of these over tasks. The effect of a factor is
    :math:`\overline{y_+} - \overline{y_-}`, by least squares for all factors at once, so that the effect of one does
    not count as another's noise. The interval is Student's, of what no main effect explains: chance, interactions.

    :param scores: of each run (rows) on each task (columns); NaN where there is none yet
    :param confidence: how often such an interval contains the true value, in (0, 1)
    :return: effect, lower and upper bound for each factor, shape ``(11, 3)``; NaN while there are too few runs
    """
    seen = np.isfinite(scores).any(axis=1)
    levels = design()[seen]
    relative = np.nanmean(scores[seen] / np.nanmean(scores, axis=0), axis=1)
    x = np.column_stack([np.ones(len(levels)), levels])
    spare = len(x) - x.shape[1]
    if spare < 1 or np.linalg.matrix_rank(x) < x.shape[1]:
        return np.full((len(FACTORS), 3), np.nan)
    found = np.linalg.lstsq(x, relative)[0]
    variance = ((relative - x @ found) ** 2).sum() / spare * np.diag(np.linalg.inv(x.T @ x))
    effect, half = 2 * found[1:], 2 * student.ppf((1 + confidence) / 2, spare) * np.sqrt(variance[1:])
    return np.stack([effect, effect - half, effect + half], axis=1)
