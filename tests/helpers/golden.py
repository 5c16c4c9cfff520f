"""Files of each kind that are in ``tests/data/golden``: how they are made, and what each of them must give.

They are read after every change, so that a change of the format is not made by accident. After one on purpose, which
raises the format's version once there has been a release, write new ones: ``python tests/helpers/golden.py``.
"""

import hashlib
import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize

import ppo_plus
from ppo_plus import AdaptivePenalty, Checkpoints, ColoredNoise, KLControl, MlpPolicy, PPO_Plus, Resumable
from ppo_plus.saving.statistics import write_statistics

FOLDER = Path(__file__).parents[1] / "data" / "golden"
TOTAL = 256
#: One that many processors compute alike: sums and products alone.
ACTION = spaces.Box(-1.0, 1.0, (1,), np.float32)


class Walk(gym.Env):
    """A walk on a line to a goal, for a given action space; observations are numbers, or a dict of them.

    :param action_space: a ``Box`` of one number, or a ``MultiDiscrete`` of two choices, whose second half is masked
    :param as_dict: whether observations are a dict
    """

    replayable = True

    def __init__(self, action_space=ACTION, as_dict=False):
        self.action_space, self.as_dict = action_space, as_dict
        number = spaces.Box(-100.0, 100.0, (1,), np.float32)
        self.observation_space = (
            spaces.Dict(goal=number, place=number) if as_dict else spaces.Box(-100.0, 100.0, (2,), np.float32)
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal, self.place, self.t = np.float32(self.np_random.integers(-8, 9) / 4), np.float32(0), 0
        return self.observation(), {}

    def step(self, action):
        step = np.asarray(action, np.float32).reshape(-1)
        self.place += np.float32(0.25) * (step[0] if len(step) == 1 else step[0] - step[1])
        self.t += 1
        return self.observation(), -abs(float(self.place - self.goal)), False, self.t == 11, {}

    def observation(self):
        place, goal = np.array([self.place], np.float32), np.array([self.goal], np.float32)
        return {"goal": goal, "place": place} if self.as_dict else np.concatenate([place, goal])


class MaskedWalk(Walk):
    """One that allows only small steps."""

    def action_masks(self):
        return np.array([True, True, self.t % 2 == 0, True, True, False])


def envs(n_envs=2, env=Walk, **kwargs):
    """Environments that can be resumed."""
    return make_vec_env(env, n_envs, seed=5, wrapper_class=Resumable, env_kwargs=kwargs)


class Widened(BaseFeaturesExtractor):
    """Features that are learned."""

    def __init__(self, observation_space, features_dim=4):
        super().__init__(observation_space, features_dim)
        self.layer = th.nn.Linear(2, features_dim)

    def forward(self, observations):
        return th.tanh(self.layer(observations))


class OwnPolicy(MlpPolicy):
    """A policy of the user's."""


class OwnControl(KLControl):
    """A control of the user's."""


class OwnPPO(PPO_Plus):
    """Has further attributes."""

    def __init__(self, *args, lagrange=0.5, **kwargs):
        self.lagrange = lagrange
        self.teacher = th.nn.Sequential(th.nn.Linear(2, 3), th.nn.Tanh())
        super().__init__(*args, **kwargs)


def half(progress):
    """A schedule of the user's."""
    return 5e-4 * (1 + progress)


CUSTOM = (Widened, OwnPolicy, OwnControl, half)
SETTINGS = dict(n_steps=16, batch_size=16, n_epochs=2, seed=3, device="cpu", compile=False)
SMALL = dict(net_arch=[8])
#: The models: the environments, the class, and the arguments.
MODELS = {
    "box": (
        lambda: VecNormalize(envs()),
        PPO_Plus,
        dict(
            policy="MlpPolicy",
            use_sde=True,
            sde_sample_freq=4,
            learning_rate="lin_1e-3",
            clip_range="cos_0.2",
            ent_coef=ppo_plus.linear(0.01, 0.001),
            vf_coef=ppo_plus.constant(0.4),
            kl_control=AdaptivePenalty(band=1.4),
            target_kl=0.01,
            stats_window_size=7,
            policy_kwargs=dict(**SMALL, activation_fn=th.nn.ReLU, optimizer_class=th.optim.AdamW),
        ),
    ),
    "lstm": (
        lambda: envs(as_dict=True),
        PPO_Plus,
        dict(
            policy="MultiInputLstmPolicy",
            exploration=ColoredNoise(0.5, 8),
            sequence_length=8,
            kl_control="adaptive_lr",
            target_kl="lin_0.05",
            policy_kwargs=dict(**SMALL, lstm_hidden_size=4, actor_keys=["place", "goal"]),
        ),
    ),
    "masks": (
        lambda: envs(env=MaskedWalk, action_space=spaces.MultiDiscrete([3, 3])),
        PPO_Plus,
        dict(policy="MlpPolicy", policy_kwargs=dict(net_arch=dict(pi=[8], vf=[6]))),
    ),
    "custom": (
        envs,
        OwnPPO,
        dict(
            policy=OwnPolicy,
            learning_rate=half,
            kl_control=OwnControl(),
            lagrange=0.25,
            policy_kwargs=dict(
                **SMALL, features_extractor_class=Widened, features_extractor_kwargs=dict(features_dim=3)
            ),
        ),
    ),
}


class Counter(BaseCallback):
    """Counts rewards."""

    total = 0.0

    def _on_step(self):
        self.total += float(self.locals["rewards"].sum())
        return True


class Stop(Exception):
    """Interrupts training."""


class Interrupt(BaseCallback):
    """Raises after so many calls."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def _on_step(self):
        if self.n_calls == self.after:
            raise Stop
        return True


def make_model(name):
    """A model before training."""
    make_envs, cls, arguments = MODELS[name]
    return cls(env=make_envs(), **SETTINGS | arguments)


def checkpointed_model():
    """The model of the checkpoint, before training."""
    arguments = dict(kl_control="adaptive_lr", target_kl=0.01, learning_rate="lin_1e-3", policy_kwargs=SMALL)
    return PPO_Plus("MlpPolicy", VecNormalize(envs()), **SETTINGS | arguments)


def callbacks(folder, after=-1):
    """The callbacks of the checkpoint's run, which is interrupted after so many steps."""
    evaluation = EvalCallback(VecNormalize(envs(1), training=False), n_eval_episodes=1, eval_freq=30, verbose=0)
    return [Checkpoints(folder, save_freq=64, keep=1), Counter(), evaluation, Interrupt(after)]


def train(model, folder, after=-1):
    """Train to the end or the interruption; the callbacks."""
    found = callbacks(folder, after)
    try:
        model.learn(TOTAL, found)
    except Stop:
        pass
    return found


def train_on(model):
    """Train a loaded model for some updates more."""
    th.manual_seed(0)
    np.random.seed(0)
    model.env.seed(0)
    return model.learn(64, reset_num_timesteps=False)


def digest(model):
    """Equal for equal weights and optimizer states, bit by bit."""
    found = hashlib.sha256()

    def add(value):
        if isinstance(value, dict):
            for key, each in value.items():
                found.update(str(key).encode())
                add(each)
        elif isinstance(value, (list, tuple)):
            for each in value:
                add(each)
        elif isinstance(value, th.Tensor):
            found.update(value.detach().cpu().contiguous().numpy().tobytes())
        else:
            found.update(repr(value).encode())

    add(model.get_parameters())
    return found.hexdigest()


def weights(model):
    """Some weights, as numbers."""
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach()[::5].tolist()


def predictions(model):
    """Deterministic actions and values for some observations, in the numbers that files of JSON have."""
    found = []
    for place, goal in [(0.0, 0.5), (-1.25, 2.0), (3.0, -0.75)]:
        rows = {"goal": np.array([[goal]], np.float32), "place": np.array([[place]], np.float32)}
        obs = rows if model.policy.remembers else np.concatenate([rows["place"], rows["goal"]], axis=1)
        actions = model.predict(
            obs, deterministic=True, action_masks=np.ones((1, 6), bool) if model._expects_masks else None
        )[0]
        found.append(np.asarray(actions, float).reshape(-1).tolist())
    return found


def counts(model):
    """What a model has counted."""
    episodes = [[float(each["r"]), int(each["l"])] for each in model.ep_info_buffer]
    return [model.num_timesteps, model._n_updates, model._episode_num, model._total_timesteps, episodes]


def facts(model):
    """All that a file of a model must give again."""
    return dict(digest=digest(model), counts=counts(model), weights=weights(model), predictions=predictions(model))


def moments(found):
    """Statistics as numbers."""
    return {
        name: [found[name].mean.tolist(), found[name].var.tolist(), found[name].count]
        for name in ("obs_rms", "ret_rms")
    }


def make_all():
    """Write all files, and what is expected of them."""
    expected = {}
    ppo_plus.register(*CUSTOM)
    for old in FOLDER.iterdir():
        old.unlink()
    for name in MODELS:
        model = make_model(name).learn(64)
        model.save(FOLDER / f"{name}.zip")
        expected[name] = facts(model)
        if name == "box":
            write_statistics(model.get_env(), FOLDER / "statistics.zip")
            expected["statistics"] = moments(vars(model.get_env()))
        loaded = load(name)
        expected[name]["trained_on"] = weights(train_on(loaded))
    model = checkpointed_model()
    train(model, FOLDER, after=75)
    (path,) = FOLDER.glob("checkpoint_*.zip")
    whole = checkpointed_model()
    found = train(whole, FOLDER / "unused")
    for each in (FOLDER / "unused").iterdir():
        each.unlink()
    (FOLDER / "unused").rmdir()
    expected["checkpoint"] = {
        "file": path.name,
        "weights": weights(whole),
        "total": found[1].total,
        "evaluations": float(found[2].last_mean_reward),
        "counts": counts(whole),
        "statistics": moments(vars(whole.get_env())),
    }
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def load(name, **kwargs):
    """A model of a file, with environments."""
    if name == "custom":
        ppo_plus.register(*CUSTOM)
    make_envs, cls, _ = MODELS[name]
    env = make_envs()
    if isinstance(env, VecNormalize):
        env = ppo_plus.load_statistics(FOLDER / "statistics.zip", env.venv)
    return cls.load(FOLDER / f"{name}.zip", env=env, device="cpu", **kwargs)


if __name__ == "__main__":
    import golden  # classes are written by the name of their module

    golden.make_all()
