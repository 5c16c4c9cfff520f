"""Several processes and what they tell each other."""

import re
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch as th
from envs import vec
from faulty_envs import Failing
from gymnasium import spaces
from models import make_normalized
from processes import in_each
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.vec_env import DummyVecEnv
from stream_envs import counting

from ppo_plus import Cost, PPO_Plus
from ppo_plus.callbacks import EvalAfterUpdates
from ppo_plus.distributed.ranks import Ranks, RanksError, state_of
from ppo_plus.distributed.shared import SharedTraining


def test_alone_nothing_is_sent():
    ranks = Ranks.present()
    assert (ranks.rank, ranks.size, ranks.several, ranks.leads, ranks.seed(3), ranks.seed(None)) == (
        *(0, 1, False, True, 3, None),
    )


def test_each_process_has_its_own_seed():
    """Two processes would differ even if the seed did not depend on the rank: only rank 0 has the run's."""
    processes = [Ranks(rank, 3) for rank in range(3)]
    assert processes[0].seed(7) == 7 and len({each.seed(7) for each in processes}) == 3


def test_a_seed_that_is_set_later_is_another_one_in_each_process(monkeypatch):
    drawn = []
    for rank in range(2):
        monkeypatch.setattr("ppo_plus.ppo.shared_training", lambda rank=rank: SharedTraining(Ranks(rank, 2)))
        model = PPO_Plus("MlpPolicy", vec(spaces.Discrete(3)), n_steps=8, batch_size=8, seed=3, device="cpu")
        model.set_random_seed(7)
        drawn.append((model.env.reset().tolist(), th.rand(1).item(), np.random.rand()))
    assert all(one != other for one, other in zip(*drawn, strict=True))


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        ({"clip_range": 0.1}, {"clip_range": 0.3}, "clip_range"),
        ({"clip_range_vf": None}, {"clip_range_vf": 0.2}, "clip_range_vf"),
        ({"learning_rate": "lin_3e-4"}, {"learning_rate": "lin_1e-2"}, "learning_rate"),
        ({"learning_rate": abs}, {"learning_rate": 0.01}, "learning_rate"),
        ({"target_kl": None}, {"target_kl": 0.01}, "target_kl"),
        ({}, {"gamma": 0.9}, "gamma"),
        ({}, {"seed": 4, "tensorboard_log": "runs"}, None),
    ],
)
def test_arguments_that_differ_between_processes_are_named(one, other, name, monkeypatch):
    models = [PPO_Plus("MlpPolicy", vec(spaces.Discrete(3)), device="cpu", **each) for each in (one, other)]
    facts = [model.settings.shared_by_processes for model in models]
    texts = [{each: repr(value) for each, value in own.items()} for own in facts]
    monkeypatch.setattr(Ranks, "gather_values", lambda self, own: texts)
    with pytest.raises(RanksError, match=f"^{name} differs between ranks") if name else nullcontext():
        Ranks(0, 2).require_same(facts[0])


@in_each
def test_collectives(ranks):
    vector = th.tensor([1.0, 2.0]) * (ranks.rank + 1)
    ranks.sum(vector)
    assert vector.tolist() == [3.0, 6.0]
    assert [int(each) for each in ranks.gather(th.tensor(ranks.rank))] == [0, 1]
    assert ranks.gather_values((ranks.rank, ranks.size)) == [(0, 2), (1, 2)]
    assert ranks.lead(ranks.rank) == 0
    # A view of every second number, which is not contiguous.
    whole = th.arange(6.0) + 10 * ranks.rank
    ranks.copy_lead([whole[::2]])
    assert whole[::2].tolist() == [0.0, 2.0, 4.0] and whole[1] == 1 + 10 * ranks.rank
    seeds = ranks.gather_values((ranks.seed(7), ranks.seed(None)))
    assert seeds[0][0] == 7 and len({seed for pair in seeds for seed in pair}) == 4
    assert ranks.waited > 0


@th.no_grad()
def move(model, amount=0.1):
    model.policy.action_net.weight.add_(amount)


#: What one process changes, whether in a rollout, and the error of both.
CHANGES = {
    "arguments": (
        lambda model: setattr(model, "n_steps", 32),
        False,
        "n_steps differs between ranks: 16 on rank 0, 32",
    ),
    "arguments in a rollout": (lambda model: setattr(model, "n_epochs", 2), True, "n_epochs differs between ranks"),
    "what is frozen": (
        lambda model: model.policy.action_net.bias.requires_grad_(False),
        False,
        "frozen weights differs between ranks: [] on rank 0, ['action_net.bias'] on rank 1",
    ),
}


def on_rank_1(change):
    """A callback that changes the model in the first step, in one process only."""

    changed = []

    def step(locals_, _):
        if Ranks.present().rank == 1 and not changed:
            changed.append(True)
            change(locals_["self"])
        return True

    return ConvertCallback(step)


def learn_changed(ranks, what):
    change, in_rollout, said = CHANGES[what]
    model = make_normalized()
    if ranks.rank == 1 and not in_rollout:
        change(model)
    with pytest.raises(RanksError, match=re.escape(said)):
        model.learn(256, on_rank_1(change) if in_rollout else None)


@pytest.mark.parametrize("what", CHANGES)
def test_what_one_process_changes_raises_an_error(what, processes):
    processes(learn_changed, what)


@in_each
def test_weights_that_one_process_changes_become_those_of_rank_0(ranks):
    """By rounding, or by a callback."""
    for amount in (1e-7, 0.1):
        trained = make_normalized().learn(256, on_rank_1(partial(move, amount=amount)))
        first, second = ranks.gather_values([part.tolist() for part in state_of(trained.policy)])
        assert first == second


@in_each
def test_different_callbacks_raise_an_error(ranks):
    """Callbacks in which processes wait for each other."""
    callback = EvalAfterUpdates(vec(spaces.Discrete(3))) if ranks.leads else None
    said = "callback differs between ranks: ['EvalAfterUpdates'] on rank 0, [] on rank 1"
    with pytest.raises(RanksError, match=re.escape(said)):
        make_normalized().learn(64, callback=callback)


@in_each
def test_different_streams_raise_an_error(ranks):
    streams = [Cost("cost", limit=1.0 + ranks.rank)]
    model = PPO_Plus("MlpPolicy", counting(2), n_steps=32, batch_size=32, streams=streams, device="cpu")
    with pytest.raises(RanksError, match="streams differs between ranks"):
        model.learn(64)


def learn_with_error(ranks, in_evaluation):
    def fail(locals_, _):
        if ranks.rank == 1 and locals_["self"].num_timesteps > 100:
            raise ValueError("boom")
        return True

    eval_env = DummyVecEnv([lambda: Failing("raise" if ranks.rank == 1 else None)])
    eval_env.seed(0)
    callback = EvalAfterUpdates(eval_env, 64, warn=False) if in_evaluation else ConvertCallback(fail)
    model = PPO_Plus("MlpPolicy", DummyVecEnv([Failing]), n_steps=16, batch_size=16, n_epochs=1, compile=False)
    error, message = RanksError, "another process that trains with it has ended"
    if ranks.rank == 1:
        error, message = ValueError, "boom"
    with pytest.raises(error, match=message):
        model.learn(10**4, callback)


@pytest.mark.parametrize("in_evaluation", [False, True])
def test_an_error_of_one_ends_all(in_evaluation, processes):
    processes(learn_with_error, in_evaluation)
