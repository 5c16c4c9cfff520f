"""Evaluation that does not disturb training, and passes action masks."""

import copy
import math
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, VecTransposeImage, unwrap_vec_normalize

from ppo_plus.policy.masking import MaskSource, find_masks
from ppo_plus.require import require_int, require_spaces


def evaluate(model: Any, n_eval_episodes: int, env: Any, render: bool) -> tuple[float, float]:
    """See :meth:`ppo_plus.PPO_Plus.evaluate`, of which ``model`` is one."""
    require_int("n_eval_episodes", n_eval_episodes, 1)
    if env is not None:
        env = model._wrap_env(env, model.verbose)
        vec_env = _with_statistics_of(model, env)
    elif model.env is not None:
        vec_env = model.env
    else:
        raise ValueError("env=None, and the model has no environment: pass env")
    disturbs = model.env is not None and (env is None or _parts(env) & _parts(model.env))
    if disturbs:
        # Training then starts new episodes.
        model.collector.interrupt()
    with _frozen(vec_env):
        player = with_masks(model, vec_env)
        mean, std = evaluate_policy(player, vec_env, n_eval_episodes, deterministic=True, render=render, warn=False)
    if not math.isfinite(mean):  # type: ignore[arg-type]
        raise FloatingPointError(
            f"the mean return of {n_eval_episodes} episodes is {mean}: a reward of env={env or vec_env!r} is not "
            "finite. Mend the environment, or wrap it to clip its rewards"
        )
    return float(mean), float(std)  # type: ignore[arg-type]


def with_masks(model: Any, vec_env: VecEnv) -> Any:
    """What plays in an environment: the model, and where masks have to be handed in, the model with these."""
    source = find_masks(vec_env, model.policy.family.choices, model.action_mask_key)
    return model if source is None or source.key is not None else _Masked(model, vec_env, source)


class _Masked:
    """A model whose ``predict`` asks the environment for its masks; everything else is the model's."""

    def __init__(self, model: Any, env: VecEnv, source: MaskSource):
        self.model, self.env, self.source = model, env, source
        self.n_steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        masks = self.source.read(self.env, observation, self.n_steps)
        self.n_steps += 1
        return self.model.predict(observation, state, episode_start, deterministic, masks)


def _with_statistics_of(model: Any, vec_env: VecEnv) -> VecEnv:
    """The environment as the policy is used to seeing it."""
    require_spaces(vec_env, model.observation_space, model.action_space)
    training = model.get_vec_normalize_env()
    if training is None:
        return vec_env
    own = unwrap_vec_normalize(vec_env)
    if own is not None:
        if training.norm_obs and own.norm_obs and own is not training:
            own.obs_rms = copy.deepcopy(training.obs_rms)
        return vec_env
    # Pickling is how SB3 takes a VecNormalize apart from its environments.
    normalized: VecNormalize = pickle.loads(pickle.dumps(training))
    try:
        # SB3 transposes images outermost.
        normalized.set_venv(vec_env.venv if isinstance(vec_env, VecTransposeImage) else vec_env)
    except AssertionError:
        raise ValueError(
            f"env={vec_env!r} cannot be put into a VecNormalize with the training environment's statistics: that "
            "one has further wrappers around it: wrap env as the training environment is, VecNormalize included"
        ) from None
    return model._wrap_env(normalized)


def _parts(env: Any) -> set[int]:
    """The environment and all that it wraps, by identity."""
    parts = {id(env)}
    inner = [getattr(env, name) for name in ("venv", "env") if name in vars(env)]
    return parts.union(*map(_parts, [*inner, *vars(env).get("envs", ())]))


@contextmanager
def _frozen(env: VecEnv) -> Iterator[None]:
    """Statistics are used but not updated, and rewards are as the environment gives them."""
    normalize = unwrap_vec_normalize(env)
    if normalize is None:
        yield
        return
    before = normalize.training, normalize.norm_reward
    normalize.training, normalize.norm_reward = False, False
    try:
        yield
    finally:
        normalize.training, normalize.norm_reward = before
