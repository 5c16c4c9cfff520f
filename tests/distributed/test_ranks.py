"""Several processes and what they tell each other."""

import copy
import re
from functools import partial

import pytest
import torch as th
from envs import vec
from gymnasium import spaces
from models import make_model, make_normalized
from processes import in_each
from stable_baselines3.common.callbacks import ConvertCallback
from torchrun import torchrun

from ppo_plus.callbacks import EvalAfterUpdates
from ppo_plus.distributed.ranks import Ranks, RanksError, checksums, frozen, state_of


def test_alone_nothing_is_sent():
    ranks = Ranks.present()
    assert (ranks.rank, ranks.size, ranks.several, ranks.leads, ranks.seed(3), ranks.seed(None)) == (
        *(0, 1, False, True, 3, None),
    )


def test_each_process_has_its_own_seed():
    """Two processes would differ even if the seed did not depend on the rank: only rank 0 has the run's."""
    processes = [Ranks(rank, 3) for rank in range(3)]
    assert processes[0].seed(7) == 7 and len({each.seed(7) for each in processes}) == 3


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


@in_each
def test_different_arguments_raise_an_error(ranks):
    said = "n_steps differs between ranks: 16 on rank 0, 32 on rank 1"
    with pytest.raises(RanksError, match=re.escape(said)):
        make_normalized(n_steps=16 * (1 + ranks.rank)).learn(64)


@in_each
def test_an_argument_that_a_callback_changes_on_one_raises_an_error(ranks):
    def change(locals_, _):
        if ranks.rank == 1:
            locals_["self"].n_epochs = 2
        return True

    said = "n_epochs differs between ranks"
    with pytest.raises(RanksError, match=re.escape(said)):
        make_normalized().learn(256, callback=ConvertCallback(change))


@in_each
def test_a_schedule_that_a_callback_replaces_raises_an_error(ranks):
    """Also those that a callback has put in the place of others."""

    def change(locals_, _):
        if ranks.rank == 1:
            locals_["self"].lr_schedule = lambda progress: 1e-3
        return True

    said = "learning_rate differs between ranks: 0.0003 on rank 0"
    with pytest.raises(RanksError, match=re.escape(said)):
        make_normalized().learn(256, callback=ConvertCallback(change))


@in_each
def test_different_callbacks_raise_an_error(ranks):
    """Those in which processes wait for each other."""
    callback = EvalAfterUpdates(vec(spaces.Discrete(3))) if ranks.leads else None
    said = "callback differs between ranks: ['EvalAfterUpdates'] on rank 0, [] on rank 1"
    with pytest.raises(RanksError, match=re.escape(said)):
        make_normalized().learn(64, callback=callback)


RAISING = """
import signal
from stable_baselines3.common.callbacks import ConvertCallback
from ppo_plus import PPO_Plus
from ppo_plus.distributed.ranks import RanksError
from ppo_plus.distributed.torchrun import join

ranks = join("cpu")
# Torchrun ends the others as soon as one has failed: this one first notices by itself.
signal.signal(signal.SIGTERM, signal.SIG_IGN)

def fail(locals_, _):
    if ranks.rank == 1 and locals_["self"].num_timesteps > 100:
        raise ValueError("the wind has torn the line")
    return True

try:
    PPO_Plus("MlpPolicy", "CartPole-v1", n_steps=32, compile=False).learn(10**9, callback=ConvertCallback(fail))
except RanksError as error:
    assert ranks.rank == 0 and "another process that trains with it has ended" in str(error)
    print("noticed", flush=True)
"""


@pytest.mark.slow
def test_an_error_of_one_ends_all_with_its_message(tmp_path):
    script = tmp_path / "raising.py"
    script.write_text(RAISING)
    done = torchrun(2, script)
    assert done.returncode == 1
    assert "ValueError: the wind has torn the line" in done.stderr
    assert "noticed" in done.stdout


# --- what processes compare of their weights --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policy():
    return make_model().learn(64).policy


class Second(Ranks):
    """The second of two processes, of which the first has these weights and finds nothing wrong."""

    def __init__(self, lead):
        super().__init__(1, 2)
        self.lead_state = lead

    def copy_lead(self, tensors):
        for tensor, theirs in zip(tensors, self.lead_state, strict=True):
            tensor.detach().copy_(theirs)

    def gather_values(self, value):
        return [None, value]


def compared(policy, function):
    """Compare a policy with a copy of it in which a weight has been changed; returns whether it is the same then."""
    other = copy.deepcopy(policy)
    with th.no_grad():
        other.value_net.weight.copy_(function(policy.value_net.weight))
    lead = [tensor.detach().clone() for tensor in state_of(policy).values()]
    Second(lead).settle_rounding(other, [checksums(policy), checksums(other)])
    return checksums(other) == checksums(policy)


def test_equal_weights_and_optimizer_states_are_the_same(policy):
    assert compared(policy, th.Tensor.clone)
    assert len(checksums(policy)) == 3 * len(list(policy.parameters())) + len(list(policy.parameters()))


def test_the_last_bit_is_a_difference_by_rounding(policy):
    assert compared(policy, lambda weight: weight.nextafter(th.tensor(1.0)))


@pytest.mark.parametrize("function", [th.neg, lambda weight: weight * 1.01, lambda weight: weight + 0.01])
def test_other_weights_raise_an_error(policy, function):
    with pytest.raises(RanksError, match="value_net.weight differs between ranks 0 and 1"):
        compared(policy, function)


def test_weights_that_one_process_lacks_raise_an_error(policy):
    first, second = checksums(policy), checksums(policy)
    del second["value_net.bias"]
    with pytest.raises(RanksError, match="value_net.bias differs"):
        Second([]).settle_rounding(policy, [first, second])


def test_frozen_weights_are_named(policy):
    policy.value_net.bias.requires_grad_(False)
    assert frozen(policy) == ["value_net.bias"]
    policy.value_net.bias.requires_grad_(True)


def on_rank_1(change):
    """A callback that changes the policy once, in one process only."""

    def step(locals_, _):
        policy = locals_["self"].policy
        if policy.change is not None and Ranks.present().rank == 1:
            policy.change(policy)
            policy.change = None
        return True

    trained = make_normalized()
    trained.policy.change = change
    return trained, ConvertCallback(step)


@in_each
def test_weights_that_one_changes_raise_an_error(ranks):
    """Weights that one process changes are noticed; those that differ by rounding become those of rank 0."""

    @th.no_grad()
    def add(amount, policy):
        policy.action_net.weight.add_(amount)

    trained, callback = on_rank_1(partial(add, 1e-7))
    trained.learn(256, callback)
    first, second = ranks.gather_values([weight.tolist() for weight in trained.policy.parameters()])
    assert first == second
    trained, callback = on_rank_1(partial(add, 0.1))
    with pytest.raises(RanksError, match=r"action_net.weight differs between ranks 0 and 1.*on one rank only"):
        trained.learn(256, callback)


FREEZING = re.escape("frozen weights differs between ranks: [] on rank 0, ['action_net.bias'] on rank 1")


@in_each
def test_a_weight_frozen_by_one_raises_an_error(ranks):
    """A weight that one process freezes is noticed before the update."""
    trained, callback = on_rank_1(lambda policy: policy.action_net.bias.requires_grad_(False))
    with pytest.raises(RanksError, match=FREEZING):
        trained.learn(256, callback)


@in_each
def test_a_weight_frozen_before_training_raises_an_error(ranks):
    """A weight that one process freezes is noticed before training."""
    trained = make_normalized()
    trained.policy.action_net.bias.requires_grad_(ranks.rank == 0)
    with pytest.raises(RanksError, match=FREEZING):
        trained.learn(256)
