"""How long training takes where environments are in tensors: PPO_Plus beside rsl_rl, skrl and SB3.

    python benchmarks/benchmark_tensor_env.py                         # 4,096 environments, all that are installed
    python benchmarks/benchmark_tensor_env.py --device cuda --iterations 20
    python benchmarks/benchmark_tensor_env.py --only ppo_plus rsl_rl --hidden 256 128 64
    python benchmarks/benchmark_tensor_env.py --json benchmarks/results/tensor_env.json

The task is a cart-pole that swings up, written in torch; an iteration is a rollout and the update with it. All have the
same networks, rollouts, minibatches, epochs, learning rate, loss and bootstrap coefficients. Rounds are interleaved, so
that a busy machine disturbs all alike, and medians are given: seconds, and seconds of processor time, which hardly
depend on what else the machine does. What is not installed (``pip install rsl-rl-lib skrl``, best into a separate
environment) is left out with a message.
"""

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from machine import facts  # the modules beside this one
from report.results import write
from report.speed import iterations
from stable_baselines3 import PPO

from ppo_plus import PPO_Plus, TensorEnv, Transition, as_vec_env

#: Steps of an episode, of a rollout, and how a rollout is learned from.
LIMIT, ROLLOUT, MINIBATCHES, EPOCHS = 250, 24, 4, 5
LEARNING_RATE, GAMMA, LAMBDA, CLIP, VALUE, NORM = 1e-3, 0.99, 0.95, 0.2, 1.0, 1.0


class SwingUp(TensorEnv):
    """Cart-poles that begin with the pole down; Barto, Sutton and Anderson's equations (1983), as Gymnasium has them.

    :param num_envs: how many
    :param device: where
    """

    def __init__(self, num_envs: int, device: str) -> None:
        super().__init__(num_envs, spaces.Box(-np.inf, np.inf, (5,)), spaces.Box(-1.0, 1.0, (1,)), device)
        self.state = th.zeros(num_envs, 4, device=device)
        self.t = th.zeros(num_envs, dtype=th.long, device=device)
        self.running = th.zeros(num_envs, device=device)
        #: Of the episodes that have ended since it was asked: the sum of their returns, and how many they are.
        self.ended = th.zeros(2, device=device)

    def reset(self, seed: int | None = None) -> th.Tensor:
        # Not all at once later.
        self.state, self.t = self._fresh(), th.randint_like(self.t, LIMIT)
        self.running = th.zeros_like(self.running)
        return observed(self.state)

    def step(self, actions: th.Tensor) -> Transition:
        x, v, angle, w = self.state.unbind(1)
        sin, cos = angle.sin(), angle.cos()
        push = (10.0 * actions[:, 0].clamp(-1, 1) + 0.05 * w * w * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
        v, w = v + 0.02 * (push - 0.05 * turn * cos / 1.1), w + 0.02 * turn
        state = th.stack([x + 0.02 * v, v, angle + 0.02 * w, w], dim=1)
        self.t = self.t + 1
        terminated, truncated = state[:, 0].abs() > 2.4, self.t >= LIMIT
        rewards = state[:, 2].cos() - 0.01 * w.abs() - 10.0 * terminated
        ended = terminated | truncated
        running = self.running + rewards
        self.ended = self.ended + th.stack([(running * ended).sum(), ended.sum()])
        self.running, self.t = running.masked_fill(ended, 0.0), self.t.masked_fill(ended, 0)
        self.state = self._fresh().where(ended[:, None], state)
        return Transition(observed(self.state), rewards, terminated, truncated, observed(state))

    def _fresh(self) -> th.Tensor:
        state = 0.1 * th.randn_like(self.state)
        state[:, 2] += math.pi
        return state

    def mean_return(self) -> float:
        """Of the episodes that have ended since it was last asked."""
        total, n = self.ended.tolist()
        self.ended = th.zeros_like(self.ended)
        return total / n if n else float("nan")


def observed(state: th.Tensor) -> th.Tensor:
    x, v, angle, w = state.unbind(1)
    return th.stack([x, v, angle.cos(), angle.sin(), w], dim=1)


#: Trains for so many iterations.
Train = Callable[[int], Any]


def with_sb3s_names(cls: Any, env: Any, hidden: list[int], seed: int, **kwargs: Any) -> Train:
    n_envs = env.num_envs
    model = cls(
        "MlpPolicy",
        env,
        n_steps=ROLLOUT,
        batch_size=ROLLOUT * n_envs // MINIBATCHES,
        n_epochs=EPOCHS,
        learning_rate=LEARNING_RATE,
        gamma=GAMMA,
        gae_lambda=LAMBDA,
        clip_range=CLIP,
        vf_coef=VALUE,
        max_grad_norm=NORM,
        policy_kwargs=dict(net_arch=hidden, activation_fn=th.nn.ELU),
        seed=seed,
        **kwargs,
    )
    return lambda n: model.learn(n * ROLLOUT * n_envs, reset_num_timesteps=False, log_interval=None)


def make_ppo_plus(env: SwingUp, hidden: list[int], seed: int, compile: bool) -> Train:
    return with_sb3s_names(PPO_Plus, env, hidden, seed, compile=compile, n_threads=th.get_num_threads())


def make_sb3(env: SwingUp, hidden: list[int], seed: int) -> Train:
    """SB3's own, through the host."""
    return with_sb3s_names(PPO, as_vec_env(env), hidden, seed, device=env.device)


def make_rsl_rl(env: SwingUp, hidden: list[int], seed: int) -> Train:
    from rsl_rl.runners import OnPolicyRunner
    from tensordict import TensorDict

    class Wrapped:
        num_envs, num_actions, max_episode_length, device, cfg = (
            env.num_envs,
            1,
            LIMIT,
            str(env.device),
            SimpleNamespace(),
        )
        episode_length_buf = env.t

        def get_observations(self) -> Any:
            return TensorDict({"policy": observed(env.state)}, batch_size=[env.num_envs])

        def step(self, actions: th.Tensor) -> Any:
            step = env.step(actions)
            extras = {"time_outs": step.truncated & ~step.terminated}
            obs = TensorDict({"policy": step.obs}, batch_size=[env.num_envs])
            return obs, step.rewards, step.terminated | step.truncated, extras

    th.manual_seed(seed)
    env.reset()
    network = {"class_name": "MLPModel", "hidden_dims": hidden, "activation": "elu"}
    noise = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "log"}
    config = {
        "num_steps_per_env": ROLLOUT,
        "save_interval": 10**9,
        "check_for_nan": False,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": network | {"distribution_cfg": noise},
        "critic": network,
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": EPOCHS,
            "num_mini_batches": MINIBATCHES,
            "clip_param": CLIP,
            "gamma": GAMMA,
            "lam": LAMBDA,
            "value_loss_coef": VALUE,
            "entropy_coef": 0.0,
            "learning_rate": LEARNING_RATE,
            "max_grad_norm": NORM,
            "use_clipped_value_loss": False,
            "schedule": "fixed",
        },
    }
    runner = OnPolicyRunner(Wrapped(), config, log_dir=None, device=str(env.device))  # type: ignore[arg-type]
    return partial(runner.learn)


def make_skrl(env: SwingUp, hidden: list[int], seed: int) -> Train:
    from skrl import logger
    from skrl.agents.torch.ppo import PPO as Agent
    from skrl.agents.torch.ppo import PPO_CFG
    from skrl.envs.wrappers.torch import Wrapper
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
    from skrl.trainers.torch import SequentialTrainer

    logger.setLevel("ERROR")

    class Wrapped(Wrapper):
        def reset(self) -> Any:
            return env.reset(), {}

        def step(self, actions: th.Tensor) -> Any:
            step = env.step(actions)
            flags = (each[:, None] for each in (step.rewards, step.terminated, step.truncated))
            return step.obs, *flags, {}

        def state(self) -> None:
            return None

        def render(self) -> None:
            return None

        def close(self) -> None:
            return None

    def layers(outputs: int) -> th.nn.Module:
        sizes = [5, *hidden]
        pairs = [part for a, b in zip(sizes, sizes[1:], strict=False) for part in (th.nn.Linear(a, b), th.nn.ELU())]
        return th.nn.Sequential(*pairs, th.nn.Linear(hidden[-1], outputs))

    spaces = dict(observation_space=env.observation_space, action_space=env.action_space, device=env.device)

    class Actor(GaussianMixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, **spaces)
            GaussianMixin.__init__(self)
            self.net, self.log_std = layers(1), th.nn.Parameter(th.zeros(1))

        def compute(self, inputs: Any, role: str = "") -> Any:
            return self.net(inputs["observations"]), {"log_std": self.log_std}

    class Critic(DeterministicMixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, **spaces)
            DeterministicMixin.__init__(self)
            self.net = layers(1)

        def compute(self, inputs: Any, role: str = "") -> Any:
            return self.net(inputs["observations"]), {}

    th.manual_seed(seed)
    config = PPO_CFG(
        rollouts=ROLLOUT,
        learning_epochs=EPOCHS,
        mini_batches=MINIBATCHES,
        discount_factor=GAMMA,
        gae_lambda=LAMBDA,
        learning_rate=LEARNING_RATE,
        grad_norm_clip=NORM,
        ratio_clip=CLIP,
        value_clip=0.0,
        value_loss_scale=VALUE,
        time_limit_bootstrap=True,
    )
    config.experiment.write_interval = config.experiment.checkpoint_interval = 0
    wrapped = Wrapped(env)
    models = {"policy": Actor().to(env.device), "value": Critic().to(env.device)}
    memory = RandomMemory(memory_size=ROLLOUT, num_envs=env.num_envs, device=env.device)
    agent = Agent(models=models, memory=memory, cfg=config, **spaces)

    def train(n: int) -> None:
        options = dict(timesteps=n * ROLLOUT, headless=True, disable_progressbar=True, close_environment_at_exit=False)
        SequentialTrainer(env=wrapped, agents=agent, cfg=options).train()

    return train


#: How to make each contender, and the distribution it needs.
CONTENDERS: dict[str, tuple[str, Callable[..., Train]]] = {
    "PPO_Plus, compiled": ("ppo_plus", partial(make_ppo_plus, compile=True)),
    "PPO_Plus": ("ppo_plus", partial(make_ppo_plus, compile=False)),
    "rsl_rl": ("rsl-rl-lib", make_rsl_rl),
    "skrl": ("skrl", make_skrl),
    "SB3, through NumPy": ("stable_baselines3", make_sb3),
}
MODULES = {"rsl-rl-lib": "rsl_rl"}


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        th.cuda.synchronize()


def benchmark(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """For each contender that is installed: seconds per iteration, and of processor time, by round; final returns."""
    contenders = {}
    for name, (package, make) in CONTENDERS.items():
        if arguments.only and package.split("-")[0].replace("rsl", "rsl_rl") not in arguments.only:
            continue
        if find_spec(MODULES.get(package, package)) is None:
            print(f"{name} is left out: it is not installed (pip install {package})")
            continue
        env = SwingUp(arguments.n_envs, arguments.device)
        contenders[name] = env, make(env, arguments.hidden, arguments.seed)
    results: dict[str, dict[str, Any]] = {name: {"seconds": [], "cpu": []} for name in contenders}
    for _, train in contenders.values():
        train(1)
    for _ in range(arguments.rounds):
        for name, (env, train) in contenders.items():
            env.mean_return()
            synchronize(arguments.device)
            start, cpu = time.perf_counter(), time.process_time()
            train(arguments.iterations)
            synchronize(arguments.device)
            results[name]["seconds"].append((time.perf_counter() - start) / arguments.iterations)
            results[name]["cpu"].append((time.process_time() - cpu) / arguments.iterations)
            results[name]["return"] = env.mean_return()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-envs", type=int, default=4096, help="environments")
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64], help="sizes of hidden layers")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument("--iterations", type=int, default=5, help="iterations per round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[], help="ppo_plus, rsl_rl, skrl, stable_baselines3")
    parser.add_argument("--json", type=Path, help="file for all results")
    arguments = parser.parse_args()
    th.set_num_threads(arguments.threads)

    about = facts("rsl-rl-lib", "skrl") | {"threads": str(th.get_num_threads()), "seed": str(arguments.seed)}
    if arguments.device.startswith("cuda"):
        about["device"] = th.cuda.get_device_name()
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    results = benchmark(arguments)
    print(
        f"\n{arguments.n_envs} environments, {ROLLOUT} steps, {MINIBATCHES} minibatches, {EPOCHS} epochs, "
        f"networks {arguments.hidden}\n\n" + "\n".join(iterations(results))
    )
    if arguments.json:
        content = {"versions": about, "n_envs": arguments.n_envs, "hidden": arguments.hidden, "results": results}
        write(arguments.json, content)


if __name__ == "__main__":
    main()
