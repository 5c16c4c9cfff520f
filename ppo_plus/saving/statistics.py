"""Normalization statistics as a file that cannot run code, and those that SB3 pickled."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

from ppo_plus.envs.normalization import are_finite, mean_seen, observation_moments
from ppo_plus.policy.observations import parts_of
from ppo_plus.policy.policies import ActorCriticPolicy
from ppo_plus.saving.format import container
from ppo_plus.saving.format.container import naming
from ppo_plus.saving.format.names import Damaged, Refused, decoding
from ppo_plus.saving.sb3.pickles import parse, value_of
from ppo_plus.trees import tree_map

KIND = "statistics"
#: The statistics, and how they were used: the names in a file, and the attributes of ``VecNormalize``.
STATISTICS = {
    "observation_space": "observation_space",
    "observation_moments": "obs_rms",
    "return_moments": "ret_rms",
    "training": "training",
    "normalize_observations": "norm_obs",
    "normalized_keys": "norm_obs_keys",
    "normalize_rewards": "norm_reward",
    "clip_observations": "clip_obs",
    "clip_rewards": "clip_reward",
    "gamma": "gamma",
    "epsilon": "epsilon",
}
#: How much rounding to single precision changes raw observations, relatively, and may change normalized ones.
UNIT, ROUNDING = 2.0**-24, 1e-5
#: Names that people give SB3's files of statistics.
SB3_NAMES = "*[Vv]ec*[Nn]ormalize*.pkl"


def statistics_path(path: Path, suffix: str = ".zip") -> Path:
    """The file of a model's statistics: ``best_model.zip`` has ``best_model_vecnormalize.zip``, for SB3 ``.pkl``."""
    return path.with_name(f"{path.name.removesuffix('.zip')}_vecnormalize{suffix}")


def find_statistics(model: Path, *folders: Path) -> Path | None:
    """The file of a model's statistics, ours or SB3's: the one with the model's name, such as
    ``best_model_vecnormalize.pkl`` or the ``rl_model_vecnormalize_64_steps.pkl`` of ``rl_model_64_steps.zip``, or else
    one that all models share, in the model's folder or the further folders.

    :raises ValueError: several may be meant
    """
    if any(model.parent.glob(statistics_path(Path("*")).name)):
        return path if (path := statistics_path(model)).is_file() else None
    models, named = {path.stem for path in model.parent.glob("*.zip")}, re.compile("[_-]?vec.*normalize[_-]?", re.I)
    paths = [folder.glob(SB3_NAMES) for folder in (model.parent, *folders)]
    every = [{path: named.sub("_", path.stem).strip("_-") for path in found} for found in paths]
    for names in ({model.stem}, {""}, {name for found in every for name in found.values()} - models):
        for found in every:
            fitting = sorted(path for path, name in found.items() if name in names)
            if len(fitting) > 1:
                remedy = f"load the model alone, and call absorb_normalization({str(fitting[0])!r}), or another"
                raise ValueError(f"{model} may have the statistics {[path.name for path in fitting]}: {remedy}")
            if fitting:
                return fitting[0]
    return None


def write_statistics(normalize: VecNormalize, path: Path) -> None:
    """Write the statistics of environments to a file, completely or not at all."""
    container.write(path, KIND, {name: getattr(normalize, attribute, None) for name, attribute in STATISTICS.items()})


def read_statistics(path: Path) -> dict[str, Any]:
    """The statistics in a file of ours or SB3's, by attribute of ``VecNormalize``; nothing in the file is run.

    :raises Refused: it is damaged or something else, or cannot be read without running it
    """
    is_ours = container.is_container(path)
    saved: Any = container.read(path, KIND) if is_ours else path.read_bytes()
    with naming(path, "VecNormalize"), decoding():
        if not is_ours:
            parsed = parse(saved)
            if parsed.name != "stable_baselines3.common.vec_env.vec_normalize:VecNormalize":
                raise Damaged("it is the pickle of something else")
            present = {name: attribute for name, attribute in STATISTICS.items() if attribute in parsed.state}
            # Where observations are not normalized, SB3 has no moments of them, and once there were no keys.
            values = {name: value_of(parsed.state[attribute], len(saved)) for name, attribute in present.items()}
            saved = {"observation_moments": None, "normalized_keys": None} | values
        statistics: Any = SimpleNamespace(**{attribute: saved[name] for name, attribute in STATISTICS.items()})
        are_finite(statistics)  # raises an error if they are not numbers
        return vars(statistics)


def load_statistics(path: str | Path, venv: VecEnv) -> VecNormalize:
    """Environments in a ``VecNormalize`` with saved statistics and options, as SB3's ``VecNormalize.load``.

    :param path: what ``ppo-plus train``, :class:`~ppo_plus.EvalAfterUpdates` (``…_vecnormalize.zip``) or SB3's
        ``VecNormalize.save`` wrote; nothing in the file is run
    :param venv: the environments, not normalized
    :raises TypeError: ``venv`` is not a vector environment, or it normalizes already
    :raises ValueError: the file is damaged, or its statistics are not finite, or do not fit the observations
    """
    if not isinstance(venv, VecEnv) or unwrap_vec_normalize(venv) is not None:
        raise TypeError(f"venv={venv!r} must be a vector environment that is not in a VecNormalize, like make_vec(...)")
    saved = read_statistics(Path(path))
    options = {*STATISTICS.values()} - {"observation_space", "obs_rms", "ret_rms"}
    normalize = VecNormalize(venv, **{name: saved[name] for name in options})
    put_statistics(normalize, saved, Path(path))
    return normalize


def move_into(policy: ActorCriticPolicy, source: VecNormalize | str | Path | None) -> dict[str, Any]:
    """Give a policy the statistics by which a ``VecNormalize``, or a file of its statistics, normalizes observations.

    :return: the argument ``normalize_observations`` that makes such a policy
    :raises ValueError: the policy normalizes already, there are no statistics, they do not fit, images are normalized,
        or observations lose too much in single precision
    """
    if not policy.has_params:
        problem = f"policy={type(policy).__name__} overrides SB3's methods, and cannot normalize observations"
        raise ValueError(f"{problem}: derive it from ppo_plus.ActorCriticPolicy")
    if policy.observation_normalizer is not None:
        raise ValueError(f"normalize_observations={policy.normalize_observations!r}: the policy normalizes already")
    if policy.streams is not None and policy.streams.are_computed:
        remedy = "keep VecNormalize, as PPO_Plus.load(file, env=load_statistics(statistics, env)) does"
        raise ValueError(f"streams that are computed from observations would now get raw ones: {remedy}")
    path = Path(source) if isinstance(source, (str, Path)) else None
    normalize: Any = source if path is None else SimpleNamespace(**read_statistics(path))
    seen = parts_of(policy.actor_space) | parts_of(policy.critic_space)
    moments = {key: rms for key, rms in observation_moments(normalize).items() if key in seen or key == ""}
    if not moments:
        remedy = "pass a VecNormalize that does, or its file of statistics, or load the model with its environments"
        raise ValueError(f"source={source!r} does not normalize observations that the policy sees: {remedy}")
    require_finite(normalize, path or Path("the model"))
    keys = None if "" in moments else [*moments]
    options = {"epsilon": normalize.epsilon, "clip": normalize.clip_obs, "keys": keys}
    normalizer = policy.make_observation_normalizer(options)
    shapes, needed = {key: np.shape(rms.mean) or (1,) for key, rms in moments.items()}, normalizer.shapes
    if shapes != needed:
        raise ValueError(f"source={source!r} has statistics of shapes {shapes}, and the policy needs {needed}")
    for key in shapes:
        if len(shapes[key]) == 3 and np.all(np.abs([seen[key].low, seen[key].high]) == normalize.clip_obs):
            problem = f"source={source!r} normalizes images, and the model's space is that of normalized ones"
            remedy = "keep VecNormalize, or train without it on images, which the policy divides by 255"
            raise ValueError(f"{problem}: {remedy}")
    means = [_mean_in_single(key, seen[key].dtype, moments[key], normalize.epsilon) for key in normalizer.shapes]
    variances = [np.ravel(moments[key].var) for key in normalizer.shapes]
    mean, var = (th.as_tensor(np.concatenate(parts)) for parts in (means, variances))
    count = th.tensor(min(rms.count for rms in moments.values()))
    normalizer.load_state_dict({"count": count, "mean": mean, "var": var})
    policy.observation_normalizer, policy.normalize_observations = normalizer.to(policy.device), options
    return options


def _mean_in_single(key: str, dtype: np.dtype, rms: RunningMeanStd, epsilon: float) -> np.ndarray:
    """The mean to subtract from observations that the policy has rounded to single precision before.

    :raises ValueError: rounding changes normalized observations by more than :data:`ROUNDING`
    """
    mean, var, seen = (np.ravel(part) for part in (rms.mean, rms.var, mean_seen(rms)))
    exact = dtype.itemsize < 8 if dtype.kind == "f" else np.abs(mean) + 10 * np.sqrt(var) < 2**24
    error = np.where(exact, 0.0, np.abs(mean) * UNIT)
    # Without what VecNormalize begins with, a 0 of variance 1 that counts 1e-4 times.
    deviation = np.sqrt(np.abs(var - 1e-4 * (1 + mean * seen) / max(rms.count, 1e-4)))
    lost = np.minimum(error, deviation) / np.sqrt(var + epsilon)
    i = lost.argmax()
    if lost[i] > ROUNDING:
        raise ValueError(
            f"number {i} of observation{key and f'[{key!r}]'} ({dtype}) has mean {mean[i]:.6g} and deviation "
            f"{deviation[i]:.3g}, and the policy computes in single precision, which cannot tell such numbers apart: "
            "keep VecNormalize, or subtract a constant in the environment and train again"
        )
    # A constant, as in Humanoid, loses nothing.
    return np.where(deviation < error, mean + np.float32(seen) - seen, mean)


def put_statistics(normalize: VecNormalize, statistics: dict[str, Any], path: Path) -> None:
    """Replace the statistics of environments by those of :func:`read_statistics`; errors as :func:`load_statistics`."""
    saved = SimpleNamespace(**statistics)
    with naming(path, "VecNormalize"), decoding():
        if saved.norm_obs:
            if not normalize.norm_obs:
                raise Refused("it has statistics of observations, and the environment has norm_obs=False")
            shapes = [tree_map(lambda rms: (rms.mean.shape, rms.var.shape), one.obs_rms) for one in (saved, normalize)]
            if shapes[0] != shapes[1]:
                other = f"{saved.observation_space}, not {normalize.observation_space}"
                raise Refused(f"the statistics are of observations {other}")
    require_finite(saved, path)
    normalize.ret_rms = saved.ret_rms
    if saved.norm_obs:
        normalize.obs_rms = saved.obs_rms


def require_finite(normalize: Any, path: Path) -> None:
    """:raises ValueError: statistics are not finite"""
    if not are_finite(normalize):
        why = "an environment has returned NaN or infinity, which makes every observation NaN"
        remedy = "Fix the environment and train again"
        raise ValueError(f"the statistics of VecNormalize for {path} are not finite: {why}. {remedy}")
