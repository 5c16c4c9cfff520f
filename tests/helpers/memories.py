"""Models with memory that several test files share."""

from envs import ACTIONS, OBSERVATIONS, vec

from ppo_plus import PPO_Plus

STRUCTURES = {
    "own": {},
    "shared": dict(shared_lstm=True, enable_critic_lstm=False),
    "none": dict(enable_critic_lstm=False),
    "two layers": dict(n_lstm_layers=2),
}
SMALL = dict(lstm_hidden_size=12, ortho_init=False)


def make(kind="discrete", policy="MlpLstmPolicy", env=None, observation="box", memory=None, n_envs=2, **kwargs):
    env = env or vec(ACTIONS[kind], OBSERVATIONS[observation], n_envs)
    defaults = dict(n_steps=16, batch_size=16, n_epochs=2, sequence_length=8, seed=0, device="cpu", compile=False)
    return PPO_Plus(policy, env, policy_kwargs=SMALL | (memory or {}), **defaults | kwargs)


class NoTraining(PPO_Plus):
    """Collects rollouts only."""

    def train(self):
        pass
