"""Checks that several processes run, by name: ``torchrun ... tests/helpers/rank_checks.py NAME ...``."""

import re
import shutil
import signal
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch as th
from envs import RandomEnv, vec
from faulty_envs import Failing
from gymnasium import spaces
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize, sync_envs_normalization

from ppo_plus import Checkpoints, PPO_Plus, RolloutBuffer
from ppo_plus.distributed.ranks import Ranks, RanksError
from ppo_plus.saving.checkpoint import checkpoint
from ppo_plus.zoo.callbacks import EvalAfterUpdates
from ppo_plus.zoo.experiment import load_experiment, make_envs
from ppo_plus.zoo.runs import Options
from ppo_plus.zoo.train import make_eval_envs


def model(cls=PPO_Plus, **given):
    env = VecNormalize(vec(spaces.Discrete(3), n_envs=2, env_class=RandomEnv))
    return cls("MlpPolicy", env, **{"n_steps": 16, "batch_size": 16, "n_epochs": 1, "seed": 1} | given)


def collectives(ranks):
    vector = th.tensor([1.0, 2.0]) * (ranks.rank + 1)
    ranks.sum(vector)
    assert vector.tolist() == [3.0, 6.0]
    assert [int(each) for each in ranks.gather(th.tensor(ranks.rank))] == [0, 1]
    assert ranks.gather_values(f"{ranks}") == ["rank 0 of 2", "rank 1 of 2"]
    assert ranks.lead(ranks.rank) == 0
    # A view of every second number, which is not contiguous.
    whole = th.arange(6.0) + 10 * ranks.rank
    ranks.copy_lead([whole[::2]])
    assert whole[::2].tolist() == [0.0, 2.0, 4.0] and whole[1] == 1 + 10 * ranks.rank
    seeds = ranks.gather_values((ranks.seed(7), ranks.seed(None)))
    assert seeds[0][0] == 7 and len({seed for pair in seeds for seed in pair}) == 4
    assert ranks.waited > 0


def differing(ranks):
    said = "n_steps differs between ranks: 16 on rank 0, 32 on rank 1"
    with pytest.raises(RanksError, match=re.escape(said)):
        model(n_steps=16 * (1 + ranks.rank)).learn(64)


def pooled(ranks):
    """Statistics, episodes and steps are those of all; weights stay the same over rollouts and calls."""
    trained = model(learning_rate="lin_1e-3").learn(256)
    assert trained.num_timesteps == 256
    trained.learn(128, reset_num_timesteps=False)
    assert trained.num_timesteps == 384
    statistics = trained.get_vec_normalize_env()
    told = {
        "count": statistics.obs_rms.count,
        "mean": statistics.obs_rms.mean.tolist(),
        "returns": float(statistics.ret_rms.var),
        "episodes": [(episode["r"], episode["l"]) for episode in trained.ep_info_buffer],
        "weights": [weight.sum().item() for weight in trained.policy.parameters()],
        "explained": trained.logger.name_to_value["train/explained_variance"],
    }
    first, second = ranks.gather_values(told)
    assert first == second
    # Each step of each environment, and its two resets.
    assert abs(first["count"] - (384 + 4)) < 1e-2
    assert trained.verbose == 0
    noise = ranks.gather_values(trained.rollout_buffer.actions.tolist())
    assert noise[0] != noise[1]


def stopped(ranks):
    """A callback on one of them ends all."""
    steps = []

    def stop(locals_, _):
        steps.append(locals_["n_steps"])
        return not (ranks.rank == 1 and len(steps) == 5)

    trained = model()
    trained.learn(640, callback=ConvertCallback(stop))
    assert trained._n_updates == 0
    assert ranks.gather_values(len(steps)) == [16, 5]
    # All have counted the same, and can go on.
    assert ranks.gather_values(trained.num_timesteps) == [64, 64]
    assert trained.learn(64)._n_updates == 1


def frozen(ranks):
    """Statistics that no longer learn."""

    def freeze(locals_, _):
        locals_["env"].training = locals_["self"].num_timesteps < 40
        return True

    trained = model(normalize_advantage="rollout").learn(192, callback=ConvertCallback(freeze))
    statistics = trained.get_vec_normalize_env().obs_rms
    told = ranks.gather_values((statistics.count, statistics.mean.tolist(), trained._n_updates))
    assert told[0] == told[1] and told[0][0] < 60 and told[0][2] == 3


def anew(ranks):
    """Advantages that are estimated anew are those of each process's values, normalized by the moments of all."""

    class Noting(PPO_Plus):
        def compute_loss(self, batch, coefficients):
            self.seen.append((batch, self.policy.predict_values(batch.observations).flatten().detach()))
            return super().compute_loss(batch, coefficients)

    settings = dict(cls=Noting, n_epochs=2, batch_size=32, learning_rate=1e-2, recompute_advantages=True, compile=False)
    for kind in (True, "rollout"):
        trained = model(normalize_advantage=kind, **settings)
        trained.seen = []
        trained.learn(64)
        (first, _), (second, values) = trained.seen
        # The values behind the second epoch's estimates are those that the weights give then.
        raw = second.returns - values
        assert (first.returns.sort().values - second.returns.sort().values).abs().max() > 1e-2
        used = second.advantages if kind == "rollout" else second.normalized
        if kind is True:
            th.testing.assert_close(raw, second.advantages, rtol=1e-4, atol=1e-4)
        told = ranks.gather_values((raw.tolist(), used.tolist(), [w.tolist() for w in trained.policy.parameters()]))
        assert told[0][2] == told[1][2]
        whole = th.tensor(told[0][0] + told[1][0])
        th.testing.assert_close(used, (raw - whole.mean()) / whole.std(), rtol=1e-3, atol=1e-3)


def differing_later(ranks):
    def change(locals_, _):
        if ranks.rank == 1:
            locals_["self"].n_epochs = 2
        return True

    said = "n_epochs differs between ranks"
    with pytest.raises(RanksError, match=re.escape(said)):
        model().learn(256, callback=ConvertCallback(change))


def differing_schedules(ranks):
    """Also those that a callback has put in the place of others."""

    def change(locals_, _):
        if ranks.rank == 1:
            locals_["self"].lr_schedule = lambda progress: 1e-3
        return True

    said = "learning_rate differs between ranks: 0.0003 on rank 0"
    with pytest.raises(RanksError, match=re.escape(said)):
        model().learn(256, callback=ConvertCallback(change))


def differing_callbacks(ranks):
    """Those in which processes wait for each other."""
    callback = EvalAfterUpdates(vec(spaces.Discrete(3))) if ranks.leads else None
    said = "callback differs between ranks: ['EvalAfterUpdates'] on rank 0, [] on rank 1"
    with pytest.raises(RanksError, match=re.escape(said)):
        model().learn(64, callback=callback)


class Copying(RolloutBuffer):
    """A buffer of one's own, each of whose minibatches is a rollout by itself."""

    def minibatches(self, batch_size, data):
        for rows, indices in super().minibatches(batch_size, data):
            yield rows._replace(normalized=None), indices


def foreign_buffer(ranks):
    trained = [model(rollout_buffer_class=kind).learn(64) for kind in (Copying, RolloutBuffer)]
    copied, plain = ([weight.sum().item() for weight in each.policy.parameters()] for each in trained)
    assert copied == plain
    first, second = ranks.gather_values(copied)
    assert first == second


def set_aside(ranks):
    """What another run has left is moved, of all of them, before anybody writes."""
    folder = Path(ranks.lead(tempfile.mkdtemp()))
    for n_rollouts in (3, 1):
        model().learn(n_rollouts * 64, callback=Checkpoints(folder, save_freq=64, keep=9))
    found = {place: sorted(path.name for path in (folder / place).glob("*.zip")) for place in (".", "earlier_1")}
    names = [f"checkpoint_{steps:012d}.zip" for steps in (0, 64, 128)]
    ranks.gather_values(None)
    assert found == {".": names[:1], "earlier_1": names}
    ranks.gather_values(None)
    if ranks.leads:
        shutil.rmtree(folder)


EXPERIMENT = load_experiment("CartPole-v1", overrides={"normalize": True}).replace(seed=5)


def evaluated(ranks):
    """The episodes are those that one process would play, shared out; the first one records them."""
    folder = Path(ranks.lead(tempfile.mkdtemp()))
    eval_env = make_eval_envs(EXPERIMENT, Options(n_eval_envs=2), ranks)
    callback = EvalAfterUpdates(eval_env, n_eval_episodes=5, log_path=folder, best_model_save_path=folder)

    def count_otherwise(locals_, _):
        if ranks.rank == 1:
            callback.evaluated_updates = 99
        return True

    arguments = dict(n_steps=32, batch_size=32, n_epochs=1, seed=0, compile=False)
    trained = PPO_Plus("MlpPolicy", make_envs(EXPERIMENT, 2, first=2 * ranks.rank), **arguments)
    trained.learn(128, callback=[callback, ConvertCallback(count_otherwise)])
    assert ranks.gather_values((eval_env.num_envs, callback.evaluations_timesteps)) == [(1, [128]), (1, [])]
    # Statistics are those of all, in each.
    means = ranks.gather_values(eval_env.obs_rms.mean.tolist())
    assert means[0] == means[1] == trained.get_vec_normalize_env().obs_rms.mean.tolist()
    if ranks.leads:
        whole = make_eval_envs(EXPERIMENT, Options(n_eval_envs=2), Ranks())
        sync_envs_normalization(trained.env, whole)
        expected = evaluate_policy(trained, whole, 5, return_episode_rewards=True)
        with np.load(folder / "evaluations.npz") as saved:
            found = [saved[name][0].tolist() for name in ("results", "ep_lengths")]
        assert sorted(zip(*found, strict=True)) == sorted(zip(*expected, strict=True))
        assert len(set(found[0])) > 2 and callback.last_mean_reward == np.mean(expected[0])
        assert (folder / "best_model.zip").exists()
        shutil.rmtree(folder)


def failing_evaluation(ranks):
    """An error in the evaluation of one of them ends all."""
    fault = "raise" if ranks.rank == 1 else None
    trained = PPO_Plus("MlpPolicy", DummyVecEnv([Failing]), n_steps=16, batch_size=16, n_epochs=1)
    eval_env = DummyVecEnv([lambda: Failing(fault)])
    eval_env.seed(0)
    callback = EvalAfterUpdates(eval_env, warn=False)
    error, message = (ValueError, "boom") if fault else (RanksError, "another process that trains with it has ended")
    with pytest.raises(error, match=message):
        trained.learn(64, callback=callback)


def resumed(ranks):
    """Also what environments are normalized by goes on to the bit."""
    folder = Path(ranks.lead(tempfile.mkdtemp()))
    arguments = dict(n_steps=32, batch_size=32, n_epochs=1, seed=0, compile=False)
    whole, again = [make_envs(EXPERIMENT, 2, first=2 * ranks.rank) for _ in range(2)]
    trained = PPO_Plus("MlpPolicy", whole, **arguments).learn(1024, callback=Checkpoints(folder, save_freq=128, keep=9))
    for path in checkpoint.files(folder) if ranks.leads else []:
        if checkpoint.steps_of(path) > 256:
            path.unlink()
    ranks.gather_values(None)
    other = PPO_Plus.resume(folder, again)
    assert other.num_timesteps == 256
    other.learn(1024, callback=Checkpoints(folder))
    for ours, theirs in zip(other.policy.parameters(), trained.policy.parameters(), strict=True):
        assert th.equal(ours, theirs)
    assert again.obs_rms.var.tolist() == whole.obs_rms.var.tolist()
    ranks.gather_values(None)
    if ranks.leads:
        shutil.rmtree(folder)


def unwritten(ranks):
    """The first one writes the states of all; training continues if it cannot."""
    folder = Path(ranks.lead(tempfile.mkdtemp()))

    def obstruct(*_):
        if ranks.leads:
            (folder / "checkpoint_000000000064.zip").mkdir(exist_ok=True)
        return True

    callbacks = [ConvertCallback(obstruct), Checkpoints(folder, save_freq=64, keep=9)]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model().learn(192, callback=callbacks)
    assert sum("no checkpoint after 64 timesteps" in str(each.message) for each in warned) == ranks.leads
    found = sorted(path.name for path in folder.iterdir() if path.is_file())
    ranks.gather_values(None)
    if ranks.leads:
        shutil.rmtree(folder)
    assert found == [f"checkpoint_{steps:012d}.zip" for steps in (0, 128)]


def on_rank_1(change):
    """A callback that changes the policy once, in one process only."""

    def step(locals_, _):
        policy = locals_["self"].policy
        if policy.change is not None and Ranks.present().rank == 1:
            policy.change(policy)
            policy.change = None
        return True

    trained = model()
    trained.policy.change = change
    return trained, ConvertCallback(step)


def drifting(ranks):
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


def freezing(ranks):
    """A weight that one process freezes is noticed before the update."""
    trained, callback = on_rank_1(lambda policy: policy.action_net.bias.requires_grad_(False))
    with pytest.raises(RanksError, match=FREEZING):
        trained.learn(256, callback)


def freezing_early(ranks):
    """A weight that one process freezes is noticed before training."""
    trained = model()
    trained.policy.action_net.bias.requires_grad_(ranks.rank == 0)
    with pytest.raises(RanksError, match=FREEZING):
        trained.learn(256)


def raising(ranks):
    """An error on one of them ends all."""

    def fail(locals_, _):
        if ranks.rank == 1 and locals_["self"].num_timesteps > 100:
            raise ValueError("the wind has torn the line")
        return True

    # Torchrun ends the others as soon as one has failed: this one first finds out by itself.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start = time.monotonic()
    try:
        model().learn(10**9, callback=ConvertCallback(fail))
    except RanksError as error:
        assert ranks.rank == 0 and "another process that trains with it has ended" in str(error)
        # It could also be that the other one is merely slow.
        assert time.monotonic() - start < 600
        print("noticed", flush=True)


if __name__ == "__main__":
    store, rank, size = next(th.distributed.rendezvous("env://"))
    for name in sys.argv[1:]:
        # Each in a group of its own: an error ends it.
        own = th.distributed.PrefixStore(name, store)
        th.distributed.init_process_group("gloo", store=own, rank=rank, world_size=size)
        present = Ranks.present()
        try:
            globals()[name](present)
        finally:
            present.leave()
