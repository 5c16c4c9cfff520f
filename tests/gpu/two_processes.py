"""What two processes do on two GPUs: ``torchrun --nproc-per-node 2 tests/gpu/two_processes.py``."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import nccl_by_gloo
import simulated_device
import torch as th
from envs import ACTIONS, OBSERVATIONS, vec
from tensor_envs import TensorTwin

from ppo_plus import PPO_Plus, as_vec_env
from ppo_plus.distributed.ranks import Ranks


class Counting(PPO_Plus):
    def train(self):
        with simulated_device.waits() as found:
            super().train()
        self.n_waits = len(found)


def trained(policy, env, **given):
    settings = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "seed": 1, "compile": False, "device": "cuda"} | given
    model = Counting(policy, env, **settings)
    for _ in range(2):
        # The second call begins with an optimizer that has counted its steps, on the CPU.
        model.learn(2 * 16 * env.num_envs * 2, reset_num_timesteps=False)
    assert {p.device.index for p in model.policy.parameters()} == {int(os.environ["LOCAL_RANK"])}
    first, second = Ranks.present().gather_values([p.tolist() for p in model.policy.parameters()])
    assert first == second
    return model


def vectors():
    """No minibatch waits: more of them wait no more often."""
    few, many = (trained("MlpPolicy", vec(ACTIONS["multidiscrete"]), batch_size=n).n_waits for n in (32, 4))
    assert few == many, (few, many)
    trained("MultiInputPolicy", vec(ACTIONS["box"], OBSERVATIONS["dict"]))
    trained("MlpLstmPolicy", vec(ACTIONS["discrete"]), policy_kwargs={"lstm_hidden_size": 8})


def tensors():
    """Environments in tensors, on the GPU of each process."""
    device = th.device("cuda", int(os.environ["LOCAL_RANK"]))
    env = as_vec_env(TensorTwin(4, ACTIONS["box"], device=device))
    inside = {"normalize_observations": True, "normalize_values": True}
    trained("MlpPolicy", env, normalize_advantage="rollout", device="auto", **inside)


if __name__ == "__main__":
    is_simulated = simulated_device.install() == "simulated"
    join = nccl_by_gloo.join if is_simulated else th.distributed.init_process_group
    if is_simulated:
        nccl_by_gloo.install()
    store, rank, size = next(th.distributed.rendezvous("env://"))
    for backend, checks in {"nccl": (vectors, tensors), "cpu:gloo,cuda:nccl": (tensors,)}.items():
        for check in checks:
            own = th.distributed.PrefixStore(f"{backend} {check.__name__}", store)
            join(
                backend,
                store=own,
                **({"rank": rank, "size": size} if is_simulated else {"rank": rank, "world_size": size}),
            )
            present = Ranks.present()
            try:
                check()
            finally:
                present.leave()
                # As at the start of a process.
                th.cuda.set_device(0)
