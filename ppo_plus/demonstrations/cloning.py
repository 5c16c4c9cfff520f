r"""Behavioral cloning (Pomerleau 1991).

It maximizes the mean of :math:`\log \pi(a|s)` over demonstrated actions. Where rewards and ends of episodes are known,
the critic learns the demonstrator's returns :math:`R_t = r_t + \gamma R_{t+1}`, by
:math:`c_v\, \mathrm{mean}[(R - V)^2] / \max(\mathrm{Var}[R], 0.01\, \mathrm{mean}[R^2])`. An episode that did not
terminate leads to an observation that is not in the data: the returns in it are bootstrapped from the value of its last
one.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer

from ppo_plus.compiling.compiled import Compilation
from ppo_plus.demonstrations.reading import MASKS, read_demonstrations
from ppo_plus.envs.normalization import normalized_by, warn_of_statistics
from ppo_plus.formulas.kl_control import KLControl
from ppo_plus.formulas.losses import Coefficients, Losses, gae
from ppo_plus.formulas.moments import Moments
from ppo_plus.model import Model
from ppo_plus.policy.policies import ActorCriticPolicy, Carry
from ppo_plus.process import assigned, computing
from ppo_plus.require import LARGEST, require_int, require_number
from ppo_plus.rollout.buffer import AT_ONCE, values_of
from ppo_plus.settings import Settings
from ppo_plus.trees import tree_map
from ppo_plus.update.minibatch import Batch, UpdateRule, n_transitions, pick, steps_per_sequence
from ppo_plus.update.update import Trainer

#: A data set as :func:`~ppo_plus.demonstrations.reading.read_demonstrations` returns it.
Data = dict[str, Any]


def clone(
    model: Model,
    settings: Settings,
    dataset: Any,
    n_epochs: int,
    batch_size: int,
    learning_rate: float,
    validation_split: float,
    patience: int | None,
    progress_bar: bool,
) -> None:
    """See :meth:`ppo_plus.PPO_Plus.pretrain`, whose arguments these are, after those of the model."""
    for name, count in {"n_epochs": n_epochs, "batch_size": batch_size}.items():
        require_int(name, count, 1)
    require_number("learning_rate", learning_rate, 0, LARGEST, above=True)
    require_number("validation_split", validation_split, 0, 0.999)
    require_int("patience", patience, 1, or_none=True)
    warn_of_statistics(model._trained_normalized, model.env)
    generators = th.random.fork_rng([model.device] if model.device.type == "cuda" else [])
    with computing(settings.threads(model.policy, model.device)), generators:
        if model.seed is not None:
            th.manual_seed(model.seed)
        data = read_demonstrations(model, dataset)
        coefficients = {"learning_rate": learning_rate, "ent_coef": 0.0, "vf_coef": settings.at(1.0)["vf_coef"]}
        parts = [_batch(model.policy, data, rows) for rows in _split(data, validation_split) if len(rows)]
        shows = progress_bar and model.ranks.leads
        _fit(model, parts, coefficients, n_epochs, batch_size, patience, shows)
    model._last_obs = None
    if model.env is not None:
        model._trained_normalized = bool(normalized_by(model.env))


def _fit(
    model: Model,
    parts: list[tuple[Batch, Data]],
    coefficients: dict[str, float],
    n_epochs: int,
    batch_size: int,
    patience: int | None,
    progress_bar: bool,
) -> None:
    """Fit a policy to the first part of a data set, at most until the loss of the second part stops falling. The
    ``vf_coef`` is in units of the variance of returns, if these are known."""
    from tqdm import tqdm

    policy = model.policy
    batch, held_out = parts[0][0], [part[0] for part in parts[1:]]
    policy.set_training_mode(False)
    values = coefficients | {"vf_coef": 0.0}
    if {"rewards", "ends"} <= parts[0][1].keys():
        _estimate(policy, parts, model.gamma)
        known = batch.returns if batch.valid is None else batch.returns[batch.valid]
        # Returns that hardly vary would leave nothing to the actor when gradients are clipped.
        scale = max(known.var(correction=0).item(), 0.01 * known.square().mean().item()) or 1.0
        values["vf_coef"] = coefficients["vf_coef"] / scale
        if (normalizer := policy.value_normalizer) is not None:
            moments = Moments.of(known)
            if policy.streams is None:
                normalizer.rescale([policy.value_net], moments)
            elif not normalizer.count:
                # The returns of streams are not known: 0 and 1 stand for their moments, with little weight.
                mean, var = th.zeros_like(normalizer.mean), th.ones_like(normalizer.var)
                mean[0], var[0] = moments.mean, moments.var
                normalizer.add(Moments(th.ones_like(moments.n), mean, var))

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
    optimizer = assigned(policy, optimizer=_renewed(policy, lr=values["learning_rate"]))
    with bar, optimizer, Trainer(Compilation()).start(rule, values, model.device) as update:
        for _ in bar:
            policy.set_training_mode(True)
            update.run((batch, rows) for rows in _minibatches(batch, batch_size, th.randperm))
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


def _renewed(policy: ActorCriticPolicy, **options: float) -> Optimizer:
    """A new optimizer like that of a policy, with the same groups of parameters."""
    groups = [group | options for group in policy.optimizer.param_groups]
    # A function may take other arguments than the class of what it returns.
    kwargs = policy.optimizer_kwargs if isinstance(policy.optimizer_class, type) else {}
    return type(policy.optimizer)(groups, **kwargs)


def _split(data: Data, share: float) -> list[th.Tensor]:
    """The rows to learn from, and those to validate by: a share of the episodes, or else of the transitions."""
    n = len(data["actions"])
    episode = data["ends"].cpu().roll(1).cumsum(0) - 1 if "ends" in data else th.arange(n)
    n_episodes = int(episode[-1]) + 1
    held_out = th.randperm(n_episodes) < min(round(share * n_episodes), n_episodes - 1)
    return [mask.nonzero().squeeze(1) for mask in (~held_out[episode], held_out[episode])]


def _batch(policy: ActorCriticPolicy, data: Data, rows: th.Tensor) -> tuple[Batch, Data]:
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


def _minibatches(batch: Batch, size: int, order: Callable[[int], th.Tensor]) -> list[th.Tensor]:
    """The rows of minibatches of about so many transitions; with memory, of at least one sequence."""
    length = steps_per_sequence(batch)
    parts = order(len(batch.returns) // length).split(max(size // length, 1))
    steps = th.arange(length)
    return [(part[:, None] * length + steps).flatten().to(batch.returns.device) for part in parts]


def _estimate(policy: ActorCriticPolicy, parts: list[tuple[Batch, Data]], gamma: float) -> None:
    """Fill in the returns of batches, bootstrapped from present values where an episode did not terminate."""
    for batch, part in parts:
        rewards, ends = part["rewards"].float(), part["ends"]
        if part["cut"].any():
            rewards = th.where(part["cut"], values_of(policy, batch).view(len(rewards), -1)[:, 0], rewards)
        zeros, starts = th.zeros_like(rewards)[:, None], ends.roll(1)[:, None]
        batch.returns.copy_(gae(rewards[:, None], zeros, zeros[-1], starts, ends[-1:], gamma, 1.0).squeeze(1))
