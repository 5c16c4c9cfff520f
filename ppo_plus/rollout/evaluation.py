"""Evaluation that does not disturb training, and passes action masks."""

import copy
import math
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from gymnasium.wrappers import vector as vectorized
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, VecTransposeImage, unwrap_vec_normalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

from ppo_plus.envs.agents import AgentsVecEnv
from ppo_plus.envs.checked_envs import CheckedEnvs, is_reset, monitored
from ppo_plus.envs.checks import TIMEOUT, as_reward
from ppo_plus.envs.layers import layers, share_layers
from ppo_plus.envs.normalization import require_one_normalization, warn_of_statistics
from ppo_plus.envs.supervised.vec_env import RESTART
from ppo_plus.model import Model
from ppo_plus.policy.masking import find_masks
from ppo_plus.policy.observations import require_finite
from ppo_plus.process import assigned
from ppo_plus.require import require_int, require_spaces

#: Steps of an environment in an evaluation after which a warning says that no episode has ended.
LONG = 10_000
NORMALIZED_OBS = (NormalizeObservation, vectorized.NormalizeObservation)
#: Wrappers with running statistics that can be frozen.
RUNNING = (*NORMALIZED_OBS, NormalizeReward, vectorized.NormalizeReward)
#: Chooses actions, with arguments and results as of :meth:`ppo_plus.PPO_Plus.predict`.
Predict = Callable[..., tuple[Any, Any]]
#: Return and length of an episode, ``is_success`` if its last info has that, and the sums of streams, by name.
Episode = dict[str, float]


def evaluate(
    model: Model, n_eval_episodes: int, env: GymEnv | None, render: bool, deterministic: bool, return_episodes: bool
) -> tuple[float, float] | list[Episode]:
    """See :meth:`ppo_plus.PPO_Plus.evaluate`, of which ``model`` is one."""
    require_int("n_eval_episodes", n_eval_episodes, 1)
    vec_env = model.env if env is None else model._wrap_env(env, model.verbose)
    if vec_env is None:
        raise ValueError("env=None, and the model has no environment: pass env")
    with closing(vec_env) if isinstance(env, str) else nullcontext(), prepared(model, vec_env) as played:
        episodes = play(model, played, n_eval_episodes, render=render, deterministic=deterministic, warn=False)
    returns = [episode["return"] for episode in episodes]
    return episodes if return_episodes else (float(np.mean(returns)), float(np.std(returns)))


def play(model: Model, env: VecEnv, n_episodes: int, **options: Any) -> list[Episode]:
    """Episodes, played by SB3's ``evaluate_policy`` with these arguments, and with masks.

    An episode counts after a truncation, also if a ``Monitor`` knows nothing of it. Mistakes of the environment raise
    the errors of training. In a game, the number is rounded up to as many episodes of each agent.
    """
    for layer in layers(env):
        if isinstance(layer, AgentsVecEnv):
            n_episodes += -n_episodes % len(layer.agents)
    #: Steps of each environment, and those before its present episode.
    taken, before = Counter[int](), Counter[int]()
    #: Sums of streams in the present episode of each environment; NaN where infos lack them.
    sums: dict[int, dict[str, float]] = {}
    streams = {str(stream.name): stream for stream in model.streams if not stream.is_computed}
    episodes: list[Episode] = []

    def each_step(step: dict[str, Any], _: dict[str, Any]) -> None:
        i, info = step["i"], step["info"]
        # SB3 does not update it after a row's last counted episode, but agents of a game play on, with memory.
        over = step["episode_counts"] >= step["episode_count_targets"]
        step["episode_starts"][over] = step["dones"][over]
        taken[i] += 1
        require_finite("reward", step["reward"], taken[i], env=i)
        failed = step["done"] and RESTART in info
        if failed:
            # A fault of the environment has interrupted the episode, which does not count.
            step["dones"][i], step["current_rewards"][i], step["current_lengths"][i] = False, 0.0, 0
            sums.pop(i, None)
        elif step["done"] and (is_reset(info) or monitored(info) is None):
            info.pop("episode", None)
            if info.get(TIMEOUT):
                info["episode"] = {"r": step["current_rewards"][i], "l": step["current_lengths"][i]}
        if not (failed or is_reset(info)):
            own = sums.setdefault(i, {})
            for name, stream in streams.items():
                try:
                    own[name] = own.get(name, 0.0) + as_reward(stream.find(info))
                except KeyError:
                    own[name] = math.nan
        if step["done"] and ("episode" in info or not step["is_monitor_wrapped"]):
            before[i] = taken[i]
            episode = {name: total for name, total in sums.pop(i, {}).items() if not math.isnan(total)}
            if info.get("is_success") is not None:
                episode["is_success"] = bool(info["is_success"])
            if not failed:
                episodes.append(episode)
        if taken[i] == before[i] + LONG:
            warnings.warn(
                f"no episode of environment {i} has ended in {LONG:,} steps of the evaluation. If the policy never "
                "ends one, give the environment a time limit: Monitor(TimeLimit(env, max_episode_steps=...)); each "
                "agent of a game has to appear in it",
                stacklevel=4,
            )

    player: Any = SimpleNamespace(predict=predict_in(model, env))
    with CheckedEnvs(env, lambda: max(taken.values(), default=0)):
        returns, lengths = evaluate_policy(
            player, env, n_episodes, callback=each_step, return_episode_rewards=True, **options
        )
    columns = zip(returns, lengths, episodes, strict=True)  # type: ignore[arg-type]
    return [{"return": float(r), "length": int(n), **further} for r, n, further in columns]


def predict_in(model: Model, env: VecEnv) -> Predict:
    """The ``predict`` of a model in an environment, whose masks it gets if there are any."""
    source = find_masks(env, model.policy.distribution.mask_layout, model.action_mask_key)
    own: Predict = model.predict
    if source is None or source.key is not None:
        return own
    steps = count()

    def predict(observation: VecEnvObs, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        masks = source.read(env, observation, next(steps))
        return own(observation, *args, action_masks=masks, **kwargs)

    return predict


def check_evaluations(model: Model, callbacks: Sequence[BaseCallback]) -> None:
    """Warn of a callback of SB3 that evaluates, in the middle of a rollout, in the environments of training.

    :raises ValueError: a callback would evaluate on observations that are normalized twice
    """
    for callback in callbacks:
        if isinstance(callback, EvalCallback):
            require_one_normalization(callback.eval_env, model.normalize_observations)
            between_rollouts = getattr(callback, "in_all_processes", False)
            if not between_rollouts and model.env is not None and share_layers(callback.eval_env, model.env):
                warnings.warn(
                    f"{type(callback).__name__} resets the environments that are trained in, and learning sees none of "
                    "it: pass others as eval_env, or use ppo_plus.EvalAfterUpdates",
                    stacklevel=5,
                )


def with_statistics_of(model: Model, vec_env: VecEnv) -> VecEnv:
    """The environment wrapped as in training, with the present statistics of training.

    :raises ValueError: it has other spaces, or cannot be wrapped as the training environment is
    """
    require_spaces(vec_env, model.observation_space, model.action_space)
    require_one_normalization(vec_env, model.normalize_observations)
    training = model.get_vec_normalize_env()
    if training is None or not training.norm_obs:
        return vec_env
    if (own := unwrap_vec_normalize(vec_env)) is not None:
        if own.norm_obs and own is not training:
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


@contextmanager
def prepared(model: Model, env: VecEnv) -> Iterator[VecEnv]:
    """An environment to play in, with the present statistics of training, which it does not change.

    :raises ValueError: as :func:`with_statistics_of`
    """
    vec_env = with_statistics_of(model, env)
    trains = model.env is not None and share_layers(vec_env, model.env)
    if trains:
        # Training then starts new episodes.
        model._last_obs = None
    else:
        warn_of_statistics(model._trained_normalized, vec_env)
        if model.env is not None:
            _warn_of_statistics(model.env, vec_env)
    with undisturbed(vec_env) if trains else frozen(vec_env) as played:
        yield played


@contextmanager
def undisturbed(env: VecEnv) -> Iterator[VecEnv]:
    """The training environment to play in: a ``Monitor`` and the log of several agents record nothing. Statistics of
    ``VecNormalize``, and of Gymnasium's ``NormalizeObservation`` and ``NormalizeReward`` in this process, are used, but
    do not change."""
    with ExitStack() as undo:
        for layer in layers(env):
            if isinstance(layer, Monitor):
                lists = {name: value.copy() for name, value in vars(layer).items() if isinstance(value, list)}
                undo.callback(vars(layer).update, vars(layer) | lists)
                layer.results_writer = None
            elif isinstance(layer, AgentsVecEnv):
                undo.callback(vars(layer).update, last_returns=copy.deepcopy(layer.last_returns))
            elif isinstance(layer, RUNNING):
                undo.callback(vars(layer).update, dict(vars(layer)))
                layer.update_running_mean = False
        with frozen(env):
            yield env


def _warn_of_statistics(training: VecEnv, env: VecEnv) -> None:
    """Warn if an environment normalizes observations by other statistics than training does."""
    played = [layer for layer in layers(env) if isinstance(layer, NORMALIZED_OBS)]
    trained = [layer for layer in layers(training) if isinstance(layer, NORMALIZED_OBS)]
    if played and not any(np.array_equal(played[0].obs_rms.mean, layer.obs_rms.mean) for layer in trained):
        warnings.warn(
            f"env={env!r} normalizes observations by statistics that differ from those of training "
            "(NormalizeObservation), so the policy sees other numbers than it has learned from: use VecNormalize, "
            "whose statistics evaluation takes from training, or copy obs_rms",
            stacklevel=4,
        )


@contextmanager
def frozen(env: VecEnv) -> Iterator[VecEnv]:
    """Statistics are used but not updated, and rewards are as the environment gives them."""
    with ExitStack() as undo:
        for layer in layers(env):
            if isinstance(layer, VecNormalize):
                undo.enter_context(assigned(layer, training=False, norm_reward=False))
        yield env
