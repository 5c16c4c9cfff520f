"""``VecNormalize``: its statistics, its arguments, and rows that it must not count."""

import warnings
from functools import partial
from typing import Any, Literal

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

from ppo_plus.envs.layers import Layer, layers
from ppo_plus.require import require_number

#: Whether a model was trained on normalized observations; ``"maybe"``: in SB3, in a ``VecNormalize``, which may have
#: normalized rewards alone; ``None``: unknown, or there was no training.
Trained = bool | Literal["maybe"] | None
#: Arguments of ``PPO_Plus``, and those of ``VecNormalize`` that do the same.
IN_POLICY = {"normalize_observations": "norm_obs", "normalize_values": "norm_reward"}


def check_normalization(env: VecEnv) -> None:
    """Check the ``VecNormalize`` of an environment, if there is one.

    :raises ValueError: an argument is out of range: a negative ``clip_obs``, for instance, makes all observations equal
    """
    if (normalize := unwrap_vec_normalize(env)) is None:
        return
    for name in ("clip_obs", "clip_reward", "epsilon"):
        require_number(f"VecNormalize: {name}", getattr(normalize, name), 0, above=True)
    require_number("VecNormalize: gamma", normalize.gamma, 0, 1)


def count_transitions(normalize: VecNormalize, env: Layer) -> None:
    """Have a ``VecNormalize`` count no returns of rows that are not transitions, and no observations of agents that are
    not there, until ``update`` is removed from its running statistics.

    :param env: environments whose ``stepped`` and, if they have it, ``observed`` say so, booleans ``(N,)``
    """
    counted = {"stepped": [normalize.ret_rms], "observed": observation_moments(normalize).values()}
    for name in counted.keys() & vars(env).keys():
        for rms in counted[name]:
            rms.update = partial(_count, rms, env, name)  # type: ignore[method-assign]


def _count(rms: RunningMeanStd, env: Layer, name: str, rows: np.ndarray) -> None:
    counted = rows[getattr(env, name)]
    if len(counted):
        RunningMeanStd.update(rms, counted)


def normalized_by(env: VecEnv | None) -> list[RunningMeanStd]:
    """The running statistics by which a ``VecNormalize`` normalizes the observations of an environment."""
    return [] if env is None else [*observation_moments(unwrap_vec_normalize(env)).values()]


def warn_of_statistics(trained: Trained, env: VecEnv | None) -> None:
    """Warn if a policy would see other numbers in an environment than it was trained on."""
    moments = normalized_by(env)
    if trained and (not moments or any(rms.count < 1 for rms in moments)):
        problem = "has no statistics yet" if moments else "does not normalize them"
        remedy = 'load its statistics, ppo_plus.load_statistics("..._vecnormalize.zip", env), or absorb_normalization'
    elif trained is False and moments:
        problem, remedy = "normalizes them", "leave VecNormalize out"
    else:
        return
    were = "may have been" if trained == "maybe" else "were" if trained else "were not"
    warnings.warn(
        f"the model was trained on observations that {were} normalized (VecNormalize), and env={env!r} {problem}, so "
        f"that its actions {'may be' if trained == 'maybe' else 'are'} wrong: {remedy}",
        stacklevel=3,
    )


def require_one_normalization(
    env: VecEnv | None, normalize_observations: bool | dict[str, Any], normalize_values: bool | dict[str, Any] = False
) -> None:
    """:raises ValueError: a ``VecNormalize`` normalizes what the policy with these arguments normalizes itself"""
    wrappers = [layer for layer in layers(env) if isinstance(layer, VecNormalize)]
    values = (normalize_observations, normalize_values)
    for (name, option), value in zip(IN_POLICY.items(), values, strict=True):
        if value is not False and any(getattr(wrapper, option) for wrapper in wrappers):
            raise ValueError(
                f"{name}={value!r} and a VecNormalize with {option}=True would normalize twice: leave out the "
                f"VecNormalize, or pass {option}=False to it, or leave out {name}. For a model that was trained with a "
                "VecNormalize see PPO_Plus.absorb_normalization"
            )


def are_finite(normalize: VecNormalize) -> bool:
    """Whether all statistics of a ``VecNormalize`` are finite."""
    parts = [part for rms in running_statistics(normalize) for part in (rms.mean, rms.var, rms.count)]
    return all(np.isfinite(part).all() for part in parts)


def running_statistics(normalize: VecNormalize | None) -> list[RunningMeanStd]:
    """The running statistics of returns and observations that a ``VecNormalize`` normalizes by, if there is one."""
    return [] if normalize is None else [normalize.ret_rms, *observation_moments(normalize).values()]


def mean_seen(rms: RunningMeanStd) -> np.ndarray:
    """The mean of the numbers that a ``VecNormalize`` has seen, without the 0 that it begins with (1e-4 times)."""
    return rms.mean * rms.count / max(rms.count - 1e-4, 1e-4)


def observation_moments(normalize: VecNormalize | None) -> dict[str, RunningMeanStd]:
    """The statistics by which a ``VecNormalize`` normalizes observations, by entry (``""``: the whole); empty: none."""
    if normalize is None or not normalize.norm_obs or "obs_rms" not in vars(normalize):
        return {}
    return normalize.obs_rms if isinstance(normalize.obs_rms, dict) else {"": normalize.obs_rms}
