"""What memory, action masks and gSDE bring to a task that asks for all three at once, over several seeds.

    python benchmarks/learning_together.py --json benchmarks/results/learning_together.json
    python benchmarks/learning_together.py --without "RecurrentPPO (memory)"

:class:`Vault` is learned by a policy with memory and masks that explores its discrete actions by gSDE, and with each of
the three left out in turn; and by sb3-contrib's algorithms, which have one of the three each. All get the same
hyperparameters; the score is the mean return of 200 deterministic episodes: at best 0.65, without memory on average
-0.225.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from learning_actions import Unmasked  # the modules beside this one
from report.scores import COLUMNS, SPEED, Result, rows
from runs import learn, parser, run
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from ppo_plus import PPO_Plus, linear


class Vault(gym.Env[np.ndarray, Any]):
    """Walk along a corridor, read on the way which of eight keys is the right one, and use it at the vault at its end.

    The sign can be read in one cell only, some steps before the vault. Walking ahead ends at the vault, walking back at
    the entrance, and keys fit nowhere but at the vault: :meth:`action_masks` says what is possible. What is impossible
    only takes time. The right key is worth 1, a wrong one nothing, and either ends the episode, as does the time limit;
    each step costs an equal part of 1 in all. So exploration has to walk in one direction for long, and a policy
    that does not remember the sign has the right key once in eight times: the vault looks the same whatever it said.
    """

    N_KEYS = 8
    LENGTH = 20
    SIGN = LENGTH - 3
    MAX_STEPS = 3 * LENGTH
    #: Actions; the keys come after them.
    BACK, AHEAD, KEYS = 0, 1, 2

    #: The part of the way that is walked, and what the sign says: one 1, or nothing.
    observation_space = spaces.Box(0.0, 1.0, (1 + N_KEYS,), np.float32)
    action_space = spaces.Discrete(KEYS + N_KEYS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.right_key = int(self.np_random.integers(self.N_KEYS))
        self.position = 0
        self.n_steps = 0
        return self._observe(), {}

    def action_masks(self) -> np.ndarray:
        at_vault = self.position == self.LENGTH
        return np.array([self.position > 0, not at_vault] + [at_vault] * self.N_KEYS)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        is_possible = bool(self.action_masks()[action])
        is_key_used = is_possible and action >= self.KEYS
        if is_possible and not is_key_used:
            self.position += 1 if action == self.AHEAD else -1
        self.n_steps += 1
        is_open = is_key_used and action == self.KEYS + self.right_key
        return self._observe(), is_open - 1 / self.MAX_STEPS, bool(is_key_used), self.n_steps == self.MAX_STEPS, {}

    def _observe(self) -> np.ndarray:
        observation = np.zeros(1 + self.N_KEYS, np.float32)
        observation[0] = self.position / self.LENGTH
        if self.position == self.SIGN:
            observation[1 + self.right_key] = 1.0
        return observation


@dataclass(frozen=True)
class Contender:
    """An algorithm, whether it is given memory and masks, and its further arguments."""

    algorithm: type[Any]
    memory: bool = True
    masks: bool = True
    own: dict[str, Any] = field(default_factory=dict)


#: Noise held for an episode; sequences long enough to hold sign and vault.
GSDE: dict[str, Any] = dict(use_sde=True, sde_sample_freq="episode")
SEQUENCES: dict[str, Any] = dict(sequence_length=16)
CONTENDERS = {
    "PPO_Plus: memory, masks, gSDE": Contender(PPO_Plus, own=GSDE | SEQUENCES),
    "PPO_Plus without gSDE": Contender(PPO_Plus, own=SEQUENCES),
    "PPO_Plus without masks": Contender(PPO_Plus, masks=False, own=GSDE | SEQUENCES),
    "PPO_Plus without memory": Contender(PPO_Plus, memory=False, own=GSDE),
    "MaskablePPO (masks)": Contender(MaskablePPO, memory=False),
    "RecurrentPPO (memory)": Contender(RecurrentPPO, masks=False),
}
ARGUMENTS: dict[str, Any] = dict(n_steps=256, batch_size=512, learning_rate=linear(1e-3), ent_coef=0.03)
NETWORK: dict[str, Any] = dict(net_arch=[64], activation_fn=nn.ReLU, ortho_init=False)
MEMORY: dict[str, Any] = dict(lstm_hidden_size=64)
STEPS, N_ENVS, N_EPISODES, N_SEEDS = 200_000, 16, 200, 3


def make_env(name: str, seed: int) -> VecEnv:
    return make_vec_env(Vault, N_ENVS, seed=seed, wrapper_class=None if CONTENDERS[name].masks else Unmasked)


def make_model(name: str, seed: int) -> Any:
    contender = CONTENDERS[name]
    policy, policy_kwargs = ("MlpLstmPolicy", NETWORK | MEMORY) if contender.memory else ("MlpPolicy", NETWORK)
    return contender.algorithm(
        policy,
        make_env(name, 1000 * seed),
        seed=seed,
        device="cpu",
        policy_kwargs=policy_kwargs,
        **ARGUMENTS,
        **contender.own,
    )


def learn_task(name: str, seed: int) -> Result:
    model = make_model(name, seed)
    speed = learn(model, STEPS)
    eval_env = make_env(name, 1000 * seed + 500)
    if isinstance(model, PPO_Plus):
        # With masks and memory: SB3's and sb3-contrib's evaluation have either.
        score, _ = model.evaluate(N_EPISODES, eval_env)
    else:
        evaluate: Any = evaluate_masked if CONTENDERS[name].masks else evaluate_policy
        score, _ = evaluate(model, eval_env, N_EPISODES)
    return Result("Vault", name, seed, model.num_timesteps, speed, float(score))


def main() -> None:
    arguments = parser(__doc__, ["Vault"], N_SEEDS, CONTENDERS).parse_args()
    jobs = [
        partial(learn_task, name, seed)
        for name in CONTENDERS
        if name not in arguments.without
        for seed in range(arguments.seeds)
    ]
    print("\n" + "\n".join(rows(run(jobs, arguments), COLUMNS | SPEED)))


if __name__ == "__main__":
    main()
