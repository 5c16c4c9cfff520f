"""Models that several processes train together, and what one process makes of the same transitions.

    torchrun --standalone --nproc-per-node 2 tests/helpers/rank_training.py FOLDER

Each process writes, for each case, its rollout, its minibatches, and what it has learned.
"""

import sys
from functools import partial
from itertools import accumulate
from pathlib import Path

import gymnasium as gym
import torch as th
from compiled import by_operation
from envs import ACTIONS, OBSERVATIONS, VECTOR, MaskedEnv, RandomEnv, vec
from gymnasium import spaces
from networks import without_kinks
from stable_baselines3.common.vec_env import VecNormalize

from ppo_plus import PPO_Plus, as_vec_env
from ppo_plus.compiling import compiled
from ppo_plus.compiling.torch_private import compile_graph
from ppo_plus.distributed.ranks import Ranks
from ppo_plus.trees import tree_map


def two_groups(params, lr):
    """An optimizer that cannot be packed."""
    params = list(params)
    return th.optim.Adam([{"params": params[:3]}, {"params": params[3:]}], lr=lr)


class Unreached(PPO_Plus):
    """Its loss does not reach every weight."""

    def compute_loss(self, batch, coefficients):
        losses = super().compute_loss(batch, coefficients)
        return losses._replace(total=losses.diagnostics["value_loss"] * 0 + self._values(batch).square().mean())

    def _values(self, batch):
        return self.policy.evaluate_batch(batch)[0]


def resetting(n_envs):
    """Environments some of whose steps are no transitions."""
    return as_vec_env(gym.make_vec("CartPole-v1", n_envs, vectorization_mode="sync"))


BOX = spaces.Box(-1, 1, (2,))
DICT = spaces.Dict(a=BOX, b=spaces.Box(-1, 1, (3,)), c=BOX)
CASES = {
    "plain": {},
    "compiled": {"compile": True},
    "masks, mixed actions, gSDE": {"action_space": ACTIONS["mixed"], "use_sde": True, "env_class": MaskedEnv},
    "uneven minibatches": {"batch_size": 24},
    "stop": {"target_kl": 0.0003, "learning_rate": 1e-3},
    "penalty, rollout": {"action_space": BOX, "kl_control": "penalty", "target_kl": 0.01,
                         "normalize_advantage": "rollout"},
    "adaptive rate": {"action_space": BOX, "kl_control": "adaptive_lr", "target_kl": 0.001},
    "memory": {"policy": "MlpLstmPolicy", "policy_kwargs": {"lstm_hidden_size": 8}, "sequence_length": 8},
    "memory, compiled": {"policy": "MlpGruPolicy", "policy_kwargs": {"lstm_hidden_size": 8}, "compile": True},
    "keys": {"policy": "MultiInputPolicy", "observation_space": DICT, "policy_kwargs": {"actor_keys": ["a", "c"]}},
    "not packed": {"policy_kwargs": {"optimizer_class": two_groups}},
    "unreached": {"cls": Unreached},
    "normalized": {"normalize": True},
    "Dict observations": {"policy": "MultiInputPolicy", "observation_space": OBSERVATIONS["dict"]},
    "memory, steps that only reset": {
        "policy": "MlpLstmPolicy", "policy_kwargs": {"lstm_hidden_size": 8}, "make_env": resetting},
}  # fmt: skip
N_ENVS, N_STEPS = 2, 32


def make(case, seed=3, n_envs=N_ENVS):
    """The model of a case, with environments."""
    given = {"n_steps": N_STEPS, "batch_size": 16, "n_epochs": 2, "compile": False, "ent_coef": 0.01} | CASES[case]
    cls, action_space = given.pop("cls", PPO_Plus), given.pop("action_space", spaces.Discrete(3))
    observation_space, env_class = given.pop("observation_space", VECTOR), given.pop("env_class", RandomEnv)
    make_env = given.pop("make_env", partial(vec, action_space, observation_space, env_class=env_class))
    env = make_env(n_envs=n_envs)
    if given.pop("normalize", False):
        env = VecNormalize(env)
    return without_kinks(cls(given.pop("policy", "MlpPolicy"), env, seed=seed, device="cpu", **given))


def learned(model):
    """What an update has left."""
    logged = {name: value for name, value in model.logger.name_to_value.items() if name.startswith("train/")}
    return {"weights": model.policy.state_dict(), "logged": logged, "n_updates": model._n_updates}


def learn(case):
    """One rollout and one update; the transitions, in which order they were learned from, and what came of it."""
    compiled.compile_graph = compile_graph if case == "compiled" else by_operation
    model = make(case)
    buffer, taken = model.rollout_buffer, []
    minibatches, on_device = buffer.minibatches, buffer.on_device

    def noted(*arguments):
        epoch = list(minibatches(*arguments))
        taken.append([indices for _, indices in epoch])
        return iter(epoch)

    def kept():
        rollout = on_device()
        recorded["rollout"] = tree_map(th.clone, rollout)
        return rollout

    recorded = {"before": tree_map(th.clone, dict(model.policy.state_dict())), "minibatches": taken}
    buffer.minibatches, buffer.on_device = noted, kept
    size = model.ranks.size
    model.learn(N_ENVS * N_STEPS * size)
    del buffer.minibatches, buffer.on_device
    assert model.num_timesteps == N_ENVS * N_STEPS * size
    recorded |= learned(model) | {"values": th.from_numpy(buffer.values), "returns": th.from_numpy(buffer.returns)}
    statistics = model.get_vec_normalize_env()
    if statistics is not None:
        recorded["statistics"] = [[th.as_tensor(each.mean), th.as_tensor(each.var), each.count]
                                  for each in (statistics.obs_rms, statistics.ret_rms)]  # fmt: skip
    if model.compile is True:
        assert model.compiled and model.compilation.functions["the update"].is_compiled, (case, str(model.compiled))
    return recorded


def learned_by_one(case, parts):
    """What one process learns of the transitions of several, minibatch by minibatch."""
    model = make(case, n_envs=N_ENVS * len(parts))
    model.compile = False
    model._setup_learn(1)
    model.policy.load_state_dict(parts[0]["before"])
    rollout = tree_map(lambda *each: th.cat(each), *(part["rollout"] for part in parts))
    offsets = list(accumulate((len(part["rollout"].returns) for part in parts), initial=0))
    epochs = iter(zip(*(part["minibatches"] for part in parts), strict=True))
    buffer = model.rollout_buffer
    buffer.on_device = lambda: rollout
    buffer.normalize_advantages = lambda: None

    def minibatches(batch_size, data):
        assert batch_size == model.batch_size and data.returns is rollout.returns
        for pieces in zip(*next(epochs), strict=True):
            yield data, th.cat([piece + offset for piece, offset in zip(pieces, offsets, strict=False)])

    buffer.minibatches = minibatches
    buffer.values[:] = th.cat([part["values"] for part in parts], dim=1)
    buffer.returns[:] = th.cat([part["returns"] for part in parts], dim=1)
    model.train()
    return learned(model)


if __name__ == "__main__":
    th.distributed.init_process_group("gloo")
    rank, folder = th.distributed.get_rank(), Path(sys.argv[1])
    th.set_num_threads(1)
    for number, case in enumerate(CASES):
        th.save(learn(case), folder / f"{number}-{rank}.pt")
    # Also ends the group's threads, which must not outlive the interpreter.
    Ranks.present().leave()
