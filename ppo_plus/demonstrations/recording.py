"""Demonstrations recorded in an environment."""

from contextlib import closing, nullcontext
from operator import itemgetter
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from ppo_plus.demonstrations.reading import MASKS, NAMES, cast
from ppo_plus.envs.checked_envs import CheckedEnvs, is_reset
from ppo_plus.envs.checks import TIMEOUT, check_spaces, row_of, seed_envs
from ppo_plus.envs.layers import share_layers
from ppo_plus.envs.lean_vec_env import LeanVecEnv
from ppo_plus.envs.make_vec import as_vec_env, with_dicts
from ppo_plus.envs.normalization import warn_of_statistics
from ppo_plus.policy.distributions import make_distribution
from ppo_plus.policy.masking import find_masks
from ppo_plus.require import require_int
from ppo_plus.rollout.evaluation import frozen, undisturbed
from ppo_plus.trees import mapped, tree_map


def record_demonstrations(
    demonstrator: Any, env: GymEnv | str, n_episodes: int, deterministic: bool = True, seed: int | None = None
) -> dict[str, Any]:
    """Record whole episodes for :meth:`ppo_plus.PPO_Plus.pretrain`. Observations and rewards are those before a
    ``VecNormalize``, whose statistics stay unchanged.

    :param demonstrator: a model of this library, SB3 or sb3-contrib, or a function from one observation to an action
    :param env: an environment, a vector environment, or the id of an environment
    :param n_episodes: number of episodes, at least 1
    :param deterministic: whether a model chooses its most likely actions
    :param seed: seed of the environments; ``None``: they are not seeded
    :return: ``observations``, ``actions``, ``rewards``, ``terminations``, ``truncations``, and ``action_masks`` if the
        environments have them: arrays with a row per transition, for Dict and Tuple spaces dicts and tuples of arrays
    :raises TypeError: the demonstrator is something else, or a model that cannot take the masks
    :raises ValueError: an argument is out of range, spaces are not supported, or an action is not in the space
    """
    require_int("n_episodes", n_episodes, 1)
    predict = getattr(demonstrator, "predict", None)
    made = as_vec_env(maybe_make_env(env, 0))
    check_spaces(made)
    inner = made if isinstance(made, VecEnv) else LeanVecEnv([lambda: made])
    vec_env = with_dicts(inner)
    warn_of_statistics(getattr(demonstrator, "_trained_normalized", None), vec_env)
    kept = frozen(vec_env)
    own_env = None if predict is None else getattr(demonstrator, "env", None)
    if own_env is not None and share_layers(vec_env, own_env):
        demonstrator.set_env(own_env)  # training then starts new episodes
        kept = undisturbed(vec_env)
    source = find_masks(vec_env, make_distribution(vec_env.action_space).mask_layout)
    normalize, n_envs = unwrap_vec_normalize(vec_env), vec_env.num_envs
    # As many of each environment, so that short episodes count no more than long ones.
    left, running = [(n_episodes + i) // n_envs for i in range(n_envs)], [list[Any]() for _ in range(n_envs)]
    recorded, state, dones, n_steps = list[Any](), None, np.ones(n_envs, dtype=bool), 0
    owned = closing(vec_env) if isinstance(env, str) else nullcontext()
    with owned, kept, CheckedEnvs(vec_env, lambda: n_steps):
        if seed is not None:
            seed_envs(vec_env, seed)
        obs = vec_env.reset()
        while any(left):
            original = obs if normalize is None or not normalize.norm_obs else normalize.get_original_obs()
            seen = [row_of(original, i) for i in range(n_envs)]
            masks = {} if source is None else {MASKS: source.read(vec_env, obs, n_steps)}
            if predict is None:
                rows = seen if vec_env is inner else [tuple(row.values()) for row in seen]  # as it returns them
                actions: Any = cast("actions of the demonstrator", [*map(demonstrator, rows)], vec_env.action_space)
                if vec_env.action_space.shape is None:
                    actions = [row_of(actions, i) for i in range(n_envs)]
            else:
                actions, state = predict(obs, state, dones, deterministic, **masks)
            obs, rewards, dones, infos = vec_env.step(actions)
            n_steps += 1
            for i in range(n_envs):
                if not left[i] or is_reset(infos[i]):
                    continue
                cut = bool(dones[i] and infos[i].get(TIMEOUT, False))
                row = (seen[i], mapped(np.array, actions[i]), rewards[i], bool(dones[i]) and not cut, cut)
                running[i].append(dict(zip(NAMES, row, strict=True)) | mapped(itemgetter(i), masks))
                if dones[i]:
                    recorded += running[i]
                    running[i], left[i] = [], left[i] - 1
    return tree_map(lambda *rows: np.stack(rows), *recorded)  # type: ignore[no-any-return]
