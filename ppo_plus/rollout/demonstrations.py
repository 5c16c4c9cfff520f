r"""Demonstrations: recorded in an environment, read from data sets, and cloned.

Behavioral cloning (Pomerleau 1991) maximizes the mean of :math:`\log \pi(a|s)` over demonstrated actions. Where rewards
and ends of episodes are known, the critic learns the demonstrator's returns :math:`R_t = r_t + \gamma R_{t+1}`, by
:math:`c_v\, \mathrm{mean}[(R - V)^2] / \mathrm{Var}[R]`. An episode that did not terminate leads to an observation that
is not in the data: the returns in it are bootstrapped from the value of its last one.
"""

import copy
import math
from collections.abc import Mapping
from inspect import signature
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.preprocessing import is_image_space, maybe_transpose
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from ppo_plus.compiling.compiled import Compilation
from ppo_plus.envs.checked_envs import CheckedEnvs
from ppo_plus.envs.checks import TIMEOUT, check_spaces, is_reset, row_of, seed_envs
from ppo_plus.envs.layers import share_layers
from ppo_plus.envs.lean_vec_env import LeanVecEnv
from ppo_plus.envs.make_vec import as_vec_env
from ppo_plus.envs.normalization import observation_moments, warn_of_statistics
from ppo_plus.envs.supervised.vec_env import RESTART
from ppo_plus.formulas.kl_control import KLControl
from ppo_plus.formulas.losses import Coefficients, Losses, gae
from ppo_plus.formulas.moments import Moments
from ppo_plus.policy.distributions import make_distribution
from ppo_plus.policy.masking import as_masks, find_masks
from ppo_plus.policy.observations import is_finite, to_network
from ppo_plus.policy.policies import Carry
from ppo_plus.process import assigned
from ppo_plus.require import LARGEST, require_int, require_spaces
from ppo_plus.rollout.buffer import AT_ONCE
from ppo_plus.rollout.evaluation import frozen
from ppo_plus.rollout.reestimate import values_of
from ppo_plus.trees import mapped, tree_leaves, tree_map
from ppo_plus.update.minibatch import Batch, UpdateRule, n_transitions, pick, steps_per_sequence
from ppo_plus.update.update import Updater

#: The entries of a data set, and what imitation calls them.
NAMES = {"observations": "obs", "actions": "acts", "rewards": "rews", "terminations": "", "truncations": ""}
MASKS = "action_masks"
#: The spaces of a reward, and of whether an episode ends.
REWARD, END = spaces.Box(-LARGEST, LARGEST, (), np.float64), spaces.Discrete(2)
#: Raised where a row is not what its space says.
MISTAKES = ValueError, TypeError, LookupError


def record_demonstrations(
    demonstrator: Any, env: Any, n_episodes: int, deterministic: bool = True, seed: int | None = None
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
    :raises TypeError: the demonstrator is something else
    :raises ValueError: an argument is out of range, spaces are not supported, or the model cannot take the masks
    """
    require_int("n_episodes", n_episodes, 1)
    predict = getattr(demonstrator, "predict", None)
    if predict is None and not callable(demonstrator):
        raise TypeError(f"demonstrator={demonstrator!r} must be a model, or a function from observation to action")
    made = as_vec_env(maybe_make_env(env, 0))
    check_spaces(made)
    vec_env = made if isinstance(made, VecEnv) else LeanVecEnv([lambda: made])
    warn_of_statistics(getattr(demonstrator, "_trained_normalized", None), vec_env)
    if getattr(demonstrator, "env", None) is not None and share_layers(vec_env, demonstrator.env):
        demonstrator.set_env(demonstrator.env)  # training then starts new episodes
    source = find_masks(vec_env, make_distribution(vec_env.action_space).mask_layout)
    if source is not None and predict is not None and not _takes_masks(predict):
        raise ValueError(
            f"demonstrator={demonstrator!r} takes no action masks, and env={env!r} has them: pass a PPO_Plus, a "
            "MaskablePPO, or a function"
        )
    normalize, n_envs = unwrap_vec_normalize(vec_env), vec_env.num_envs
    # As many of each environment, so that short episodes count no more than long ones.
    left, running = [(n_episodes + i) // n_envs for i in range(n_envs)], [list[Any]() for _ in range(n_envs)]
    recorded, state, dones, n_steps = list[Any](), None, np.ones(n_envs, dtype=bool), 0
    with frozen(vec_env), CheckedEnvs(vec_env, lambda: n_steps):
        if seed is not None:
            seed_envs(vec_env, seed)
        obs: Any = vec_env.reset()
        while any(left):
            original = obs if normalize is None else normalize.get_original_obs()
            seen = [row_of(original, i) for i in range(n_envs)]
            masks = {} if source is None else {MASKS: source.read(vec_env, obs, n_steps)}
            if predict is None:
                actions: Any = [_action(demonstrator(row), vec_env.action_space) for row in seen]
                actions = actions if vec_env.action_space.shape is None else np.stack(actions)
            else:
                actions, state = predict(obs, state, dones, deterministic, **masks)
            obs, rewards, dones, infos = vec_env.step(actions)
            n_steps += 1
            for i in range(n_envs):
                if RESTART in infos[i]:
                    running[i] = []  # a fault of the environment has interrupted the episode
                    continue
                if not left[i] or is_reset(infos[i]):
                    continue
                cut = bool(dones[i] and infos[i].get(TIMEOUT, False))
                row = (seen[i], mapped(np.array, actions[i]), rewards[i], bool(dones[i]) and not cut, cut)
                running[i].append(dict(zip(NAMES, row, strict=True)) | mapped(itemgetter(i), masks))
                if dones[i]:
                    recorded += running[i]
                    running[i], left[i] = [], left[i] - 1
    return tree_map(lambda *rows: np.stack(rows), *recorded)  # type: ignore[no-any-return]


def _takes_masks(predict: Any) -> bool:
    parameters = signature(predict).parameters
    return MASKS in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _action(action: Any, space: spaces.Space) -> Any:
    """What a demonstrator returned, if it is an action of the space."""
    try:
        return _cast(mapped(_as_array, action), space, (), True)
    except MISTAKES as error:
        raise ValueError(
            f"the demonstrator returned {action!r:.200}: {error}. Pass a model itself, or a function that returns an "
            "action alone"
        ) from error


def read_demonstrations(model: Any, dataset: Any) -> dict[str, Any]:
    """A data set (see :meth:`ppo_plus.PPO_Plus.pretrain`) as tensors on the model's device, with a row per transition:
    ``observations`` as the policy sees them, internal ``actions``, and if they are known ``rewards``, ``ends`` of
    episodes, ``cut`` (the ends that are not terminations) and ``action_masks``.

    Observations are added to the statistics by which they are normalized.

    :raises ValueError: something is missing, unknown, or does not fit the spaces: names the row
    """
    if dataset is None or isinstance(dataset, (str, Path)):
        raise TypeError(f"dataset={dataset!r} must be a dict of arrays or a list of episodes: np.load reads .npz files")
    if isinstance(dataset, Mapping):
        data, last = _checked(model, "dataset", dataset), np.array([-1])
    else:
        episodes = dataset.iterate_episodes() if hasattr(dataset, "iterate_episodes") else dataset
        parts = [_checked(model, f"dataset[{i}]", _episode(part)) for i, part in enumerate(episodes)]
        if len({tuple(part) for part in parts}) != 1:
            raise ValueError("dataset has no episodes, or only some of them have rewards or masks: make them alike")
        data = tree_map(lambda *rows: np.concatenate(rows), *parts)
        last = np.cumsum([len(part["truncations"]) for part in parts]) - 1
    terminations, truncations = data.pop("terminations", None), data.pop("truncations", 0)
    if terminations is not None:
        data["ends"] = (terminations | truncations).astype(bool)
        data["ends"][last] = True
        data["cut"] = data["ends"] & (terminations == 0)
    elif model.policy.remembers:
        raise ValueError("dataset has no terminations: a policy with memory learns from whole episodes")
    normalize, observed = model.get_vec_normalize_env(), data.pop("observations")
    if normalize is not None:
        require_spaces(normalize, model.observation_space, model.action_space)
        for key, moments in observation_moments(normalize).items() if normalize.training else ():
            moments.update(observed[key] if key else observed)
        observed = normalize.normalize_obs(observed)
        if normalize.norm_reward:
            data.pop("rewards", None)  # their scale in training is not known yet
    observations = to_network(observed, model.observation_space, model.device)
    if (normalizer := model.policy.observation_normalizer) is not None:
        normalizer.add(normalizer.moments_of(observations))
    data["actions"] = model.policy.distribution.from_env(data["actions"])
    return {"observations": observations} | {name: th.as_tensor(rows).to(model.device) for name, rows in data.items()}


def _episode(episode: Any) -> dict[str, Any]:
    """The entries of a trajectory of imitation, an episode of Minari, or a dict of one or several episodes."""
    get = episode.get if isinstance(episode, Mapping) else lambda name: getattr(episode, name, None)
    found = {name: get(name) if get(name) is not None else get(short) for name, short in NAMES.items()}
    data = {name: rows for name, rows in found.items() if rows is not None}
    data |= episode if isinstance(episode, Mapping) else {}
    if {"observations", "actions"} <= data.keys():
        n, infos = _count(data["actions"]), get("infos")
        data["observations"] = mapped(lambda rows: rows[:n] if len(rows) == n + 1 else rows, data["observations"])
        # imitation does not say how an episode has ended, but its infos may.
        terminated = bool(get("terminal")) and not (infos is not None and infos[-1].get(TIMEOUT, False))
        last = np.arange(n) == n - 1
        data.setdefault("truncations", last)
        if get("terminal") is None and "terminations" not in data:
            data.pop("rewards", None)  # returns are unknown where the way an episode ended is
        data.setdefault("terminations", last & terminated)
    return data


def _count(rows: Any) -> int:
    return len(rows) if isinstance(rows, list) else len(np.atleast_1d(tree_leaves(rows)[0]))


def _checked(model: Any, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a data set or an episode as arrays in the dtypes of their spaces."""
    known = dict(zip(NAMES, (model.observation_space, model.action_space, REWARD, END, END), strict=True))
    names = [*known, MASKS]
    if not {*names[:2]} <= given.keys() <= {*names}:
        raise ValueError(f"{name} has {[*given]}: it needs {names[:2]}, and may have {names[2:]}")
    n, distribution, masks = _count(given["actions"]), model.policy.distribution, given.get(MASKS)
    if not n:
        raise ValueError(f"{name} is empty: give it at least one transition")
    data = {key: _rows(f"{name}[{key!r}]", given[key], known[key], n, key != names[0]) for key in known if key in given}
    if masks is not None:
        data[MASKS] = masks = as_masks(f"{name}[{MASKS!r}]", masks, distribution.mask_layout)
    elif model.action_mask_key is not None:
        masks = data["observations"][model.action_mask_key].reshape(n, -1).astype(bool)
    if masks is not None:
        if len(masks) != n:
            raise ValueError(f"{name} has {len(masks)} action_masks and {n} actions: give one of each per transition")
        # A masked action has the lowest of all log-probabilities.
        net, std = th.zeros(n, distribution.net_dim), th.ones(n, distribution.gaussian_dim)
        params = distribution.params(net, std, th.from_numpy(masks))
        log_probs = distribution.log_prob(params, th.from_numpy(distribution.from_env(data["actions"])))
        for row in (log_probs < -LARGEST / 2).nonzero()[:1]:
            raise ValueError(f"row {int(row)} of {name}['actions'] is forbidden by its mask: correct one of them")
    return data


def _rows(name: str, rows: Any, space: spaces.Space, n: int, bounded: bool) -> Any:
    """``n`` rows as an array, for Dict and Tuple spaces as a dict or tuple of them; an error names the first wrong row.

    :param bounded: whether the bounds of a Box are checked
    """
    rows = mapped(_as_array, rows)
    try:
        is_nested = isinstance(rows, list) and isinstance(rows[0], (dict, tuple))
        return _cast(tree_map(lambda *parts: np.stack(parts), *rows) if is_nested else rows, space, (n,), bounded)
    except MISTAKES as error:
        whole = error
    for i in range(n):
        row = "missing"
        try:
            row = rows[i] if isinstance(rows, list) else mapped(itemgetter(i), rows)
            _cast(row, space, (), bounded)
        except MISTAKES as error:
            raise ValueError(f"row {i} of {name} is {row!r:.200}: {error}") from None
    raise ValueError(f"{name}: {whole}")


def _as_array(part: Any) -> Any:
    return part.numpy(force=True) if isinstance(part, th.Tensor) else part


def _cast(rows: Any, space: Any, n: tuple[int, ...], bounded: bool) -> Any:
    """Numbers of shape ``(*n, *space.shape)`` in the dtype of a space; raises :data:`MISTAKES`."""
    if isinstance(space, spaces.Dict):
        return {key: _cast(rows[key], sub, n, bounded) for key, sub in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_cast(part, sub, n, bounded) for part, sub in zip(rows, space, strict=True))
    array, shape = np.asarray(rows), (*n, *space.shape)
    if is_image_space(space) and array.ndim == len(shape):
        array = maybe_transpose(array, space)
    if array.shape != shape:
        raise ValueError(f"it has the shape {array.shape}, and {space} needs {shape}")
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(space.dtype)
    fits = cast.dtype.kind == "f" or np.array_equal(cast, array)
    if isinstance(space, spaces.Box) and not bounded:
        fits = fits and is_finite(array)
    else:
        fits = fits and (batch_space(space, *n) if n else space).contains(cast)
    if not fits:
        raise ValueError(f"it is not finite or not in {space}: correct it, or clip it as the environment does")
    return cast


def clone(
    model: Any,
    data: dict[str, Any],
    n_epochs: int,
    batch_size: int,
    learning_rate: float,
    validation_split: float,
    patience: int | None,
    progress_bar: bool,
) -> None:
    """Fit the policy of a model to what :func:`read_demonstrations` returns; see :meth:`ppo_plus.PPO_Plus.pretrain`."""
    from tqdm import tqdm

    policy, values = model.policy, {"learning_rate": learning_rate, "ent_coef": 0.0, "vf_coef": 0.0}
    parts = [_batch(policy, data, rows) for rows in _split(data, validation_split) if len(rows)]
    batch, held_out = parts[0][0], [part[0] for part in parts[1:]]
    policy.set_training_mode(False)
    if {"rewards", "ends"} <= data.keys():
        _estimate(policy, parts, model.gamma)
        known = batch.returns if batch.valid is None else batch.returns[batch.valid]
        values["vf_coef"] = model.settings.at(1.0)["vf_coef"] / max(known.var(correction=0).item(), 1e-8)
        if policy.value_normalizer is not None and policy.streams is None:  # the returns of streams are not known
            policy.value_normalizer.rescale([policy.value_net], Moments.of(known))

    def compute_loss(batch: Batch, coefficients: Coefficients) -> Losses:
        values, params = policy.evaluate_batch(batch)
        if batch.valid is not None:
            values, params, batch = values[batch.valid], params[batch.valid], batch.only_valid()
        loss = -policy.distribution.log_prob(params, batch.actions).mean()
        error = F.mse_loss(values.view(len(values), -1)[:, 0], batch.returns)
        return Losses(loss + coefficients.vf_coef * error, {})

    policy.optimizer = _renewed(policy)
    kept, lowest, waited = None, math.inf, 0
    rule = UpdateRule(policy, compute_loss, KLControl(), model.max_grad_norm)
    bar = tqdm(range(n_epochs), "pretrain", disable=not progress_bar)
    optimizer = assigned(policy, optimizer=_renewed(policy, lr=learning_rate))
    with bar, optimizer, Updater(Compilation()).start(rule, values, model.device) as update:
        for _ in bar:
            policy.set_training_mode(True)
            for rows in _minibatches(batch, batch_size, th.randperm):
                update.step(batch, rows)
            update.end_epoch()
            policy.set_training_mode(False)
            if values["vf_coef"]:
                _estimate(policy, parts, model.gamma)
            for other in held_out:
                with th.no_grad():
                    some = _minibatches(other, AT_ONCE, th.arange)
                    each = [compute_loss(pick(other, rows), update.coefficients).total.item() for rows in some]
                    loss = float(np.average(each, weights=[n_transitions(other, rows) for rows in some]))
                bar.set_postfix(validation_loss=f"{loss:.4g}")
                waited += 1
                if loss < lowest:
                    kept, lowest, waited = copy.deepcopy(policy.state_dict()), loss, 0
            if waited == patience:
                break
    if kept is not None:
        policy.load_state_dict(kept)


def _renewed(policy: Any, **options: Any) -> Any:
    """A new optimizer like that of a policy, with the same groups of parameters."""
    groups = [group | options for group in policy.optimizer.param_groups]
    return type(policy.optimizer)(groups, **policy.optimizer_kwargs)


def _split(data: dict[str, Any], share: float) -> list[th.Tensor]:
    """The rows to learn from, and those to validate by: a share of the episodes, or else of the transitions."""
    n = len(data["actions"])
    episode = data["ends"].cpu().roll(1).cumsum(0) - 1 if "ends" in data else th.arange(n)
    n_episodes = int(episode[-1]) + 1
    held_out = th.randperm(n_episodes) < min(round(share * n_episodes), n_episodes - 1)
    return [mask.nonzero().squeeze(1) for mask in (~held_out[episode], held_out[episode])]


def _batch(policy: Any, data: dict[str, Any], rows: th.Tensor) -> tuple[Batch, dict[str, Any]]:
    """A batch of these rows of a data set, and its data; with memory, of episodes that are padded to the longest."""
    valid = starts = carry = None
    if policy.remembers:
        last = data["ends"].cpu()[rows].nonzero().squeeze(1)
        episodes = rows.split(last.diff(prepend=th.tensor([-1])).tolist())
        rows = pad_sequence(episodes, batch_first=True, padding_value=-1).flatten()
        valid, carry = (rows >= 0).to(policy.device), Carry(policy.init_memory(len(episodes)))
        starts = th.zeros_like(valid)
    part = tree_map(lambda column: column[rows.to(policy.device)], data)
    zeros = part["actions"].new_zeros(len(rows))
    batch = Batch(part["observations"], part["actions"], zeros, zeros, zeros, zeros.clone(), None, part.get(MASKS))
    return policy.prepare_rollout(batch._replace(carry=carry, episode_starts=starts, valid=valid)), part


def _minibatches(batch: Batch, size: int, order: Any) -> list[th.Tensor]:
    """The rows of minibatches of about so many transitions; with memory, of at least one sequence."""
    length = steps_per_sequence(batch)
    parts = order(len(batch.returns) // length).split(max(size // length, 1))
    steps = th.arange(length)
    return [(part[:, None] * length + steps).flatten().to(batch.returns.device) for part in parts]


def _estimate(policy: Any, parts: list[tuple[Batch, dict[str, Any]]], gamma: float) -> None:
    """Fill in the returns of batches, bootstrapped from present values where an episode did not terminate."""
    for batch, part in parts:
        rewards, ends = part["rewards"].float(), part["ends"]
        if part["cut"].any():
            rewards = th.where(part["cut"], values_of(policy, batch).view(len(rewards), -1)[:, 0], rewards)
        zeros, starts = th.zeros_like(rewards)[:, None], ends.roll(1)[:, None]
        batch.returns.copy_(gae(rewards[:, None], zeros, zeros[-1], starts, ends[-1:], gamma, 1.0).squeeze(1))
