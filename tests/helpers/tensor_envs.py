"""Environments in tensors for the tests: a task in NumPy and the same one in tensors, bit for bit; and a stand-in with
the interface of a simulator that needs a GPU."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import torch as th
from envs import choices, subspaces
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from ppo_plus.envs.tensors.env import TensorEnv, Transition

VECTOR = spaces.Box(-3.0, 3.0, (3,), np.float32)
LIMIT = 5


def obs_space(action_space, masked=False, is_dict=False):
    """A vector, or a Dict of it and a number, with the mask or not."""
    if not is_dict:
        return VECTOR
    parts = [("vector", VECTOR), ("phase", spaces.Discrete(LIMIT + 1))]
    if masked:
        parts.append(("mask", spaces.MultiBinary(sum(choices(action_space)))))
    return spaces.Dict(parts)


def following(seeds):
    """Other seeds, below 2**31."""
    return (seeds * 1103515245 + 12345) % 2**31


def total(space, action):
    """The sum of an action's numbers in single precision, of one action in NumPy or a batch in tensors."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = [total(sub, action[key]) for key, sub in subspaces(space).items()]
    elif isinstance(action, th.Tensor):
        parts = action.reshape(len(action), -1).float().unbind(1)
    else:
        parts = list(np.asarray(action, np.float32).reshape(-1))
    return sum(parts[1:], start=parts[0])


def begun(seeds):
    """First states, three columns; the same of arrays and tensors."""
    return [((seeds // 7**k) % 1000) / 1000 for k in range(3)]


def moved(columns, force):
    """The states after a step."""
    return [column * 0.5 + force * 0.25 for column in columns]


def allowed(space, seeds):
    """Masks as columns: of each choice some alternatives, at least one."""
    return [((seeds + j) % 3 != 0) | (seeds % n == j) for n in choices(space) for j in range(n)]


class Twin(gym.Env):
    """One environment in NumPy.

    :param action_space: any
    :param masks: ``None``, ``"method"`` or ``"key"``
    :param is_dict: whether observations are a Dict
    :param limit: steps of an episode
    :param falls: whether episodes also come to an end of their own, about each thirteenth step
    """

    def __init__(self, action_space, masks=None, is_dict=False, limit=LIMIT, falls=True):
        self.action_space, self.masks, self.limit, self.falls = action_space, masks, limit, falls
        self.observation_space = obs_space(action_space, masks == "key", is_dict or masks == "key")
        self.seed = np.int64(0)
        if masks != "method":
            self.action_masks = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed = following(np.int64(seed) if seed is not None else self.seed)
        self.state, self.t = [np.float32(column) for column in begun(self.seed)], 0
        return self.observe(), {}

    def step(self, action):
        assert action in self.action_space
        self.t += 1
        self.state = moved(self.state, np.float32(total(self.action_space, action)))
        reward = self.state[0] - self.state[1] * np.float32(0.5)
        self.seed = following(self.seed)
        return self.observe(), reward, self.falls and bool(self.seed % 13 == 0), self.t == self.limit, {}

    def observe(self):
        vector = np.stack(self.state)
        if isinstance(self.observation_space, spaces.Box):
            return vector
        found = {"vector": vector, "phase": np.int64(self.t)}
        if self.masks == "key":
            found["mask"] = self._mask().astype(np.int8)
        return found

    def _mask(self):
        return np.stack(allowed(self.action_space, self.seed))

    def action_masks(self):
        return self._mask()


class TensorTwin(TensorEnv):
    """``n`` of them in tensors, which are written into again at every step.

    :param final: whether final observations are told
    """

    remedy = "ask for them"

    def __init__(self, n, action_space, masks=None, is_dict=False, limit=LIMIT, falls=True, final=True, device="cpu"):
        self.masks, self.limit, self.falls, self.final = masks, limit, falls, final
        is_dict = is_dict or masks == "key"
        super().__init__(n, obs_space(action_space, masks == "key", is_dict), action_space, device)
        self.seeds, self.t = (th.zeros(n, dtype=th.long, device=device) for _ in range(2))
        self.state = th.zeros(n, 3, device=device)
        self.allowed = th.stack(allowed(action_space, self.seeds), dim=1) if masks else None
        self.buffers = self._made()
        self.rewards = th.zeros(n, device=device)

    @property
    def has_masks(self):
        return self.masks == "method"

    def reset(self, seed=None):
        if seed is not None:
            self.seeds = seed + th.arange(self.num_envs, device=self.device)
        self.seeds = following(self.seeds)
        self.state, self.t = th.stack(begun(self.seeds), dim=1), th.zeros_like(self.t)
        return self.observe()

    def step(self, actions):
        self.t = self.t + 1
        self.state = th.stack(moved(self.state.unbind(1), total(self.action_space, actions)), dim=1)
        self.rewards.copy_(self.state[:, 0] - self.state[:, 1] * 0.5)
        self.seeds = following(self.seeds)
        terminated, truncated = (self.seeds % 13 == 0) & self.falls, self.t == self.limit
        final = self._made() if self.final else None
        ended = terminated | truncated
        self.seeds = following(self.seeds).where(ended, self.seeds)
        self.state = th.stack(begun(self.seeds), dim=1).where(ended[:, None], self.state)
        self.t = self.t.where(~ended, 0)
        if self.masks:
            self.action_masks()
        return Transition(self.observe(), self.rewards, terminated, truncated, final, {"speed": self.state.mean()})

    def observe(self):
        made = self._made()
        if isinstance(made, dict):
            for key, part in made.items():
                self.buffers[key].copy_(part)
        else:
            self.buffers.copy_(made)
        return self.buffers

    def _made(self):
        if isinstance(self.observation_space, spaces.Box):
            return self.state.clone()
        found = {"vector": self.state.clone(), "phase": self.t.clone()}
        return found | ({"mask": self.action_masks().to(th.int8)} if self.masks == "key" else {})

    def action_masks(self):
        return th.stack(allowed(self.action_space, self.seeds), dim=1, out=self.allowed)


def twins(action_space, n=3, **kwargs):
    """The task in NumPy, and in tensors."""
    return DummyVecEnv([lambda: Monitor(Twin(action_space, **kwargs))] * n), TensorTwin(n, action_space, **kwargs)


class Managed:
    """The interface of Isaac Lab's ``ManagerBasedRLEnv``.

    Every environment counts its steps, and is cut after ``limit`` of them; environment 0 falls at the same step. All
    buffers are used again.
    """

    metadata = {"autoreset_mode": "SameStep"}

    def __init__(self, n=4, limit=4, device="cpu", render_mode=None, **cfg):
        self.num_envs, self.device, self.render_mode, self.max_episode_length = n, device, render_mode, limit
        self.cfg = SimpleNamespace(**cfg)
        self.single_observation_space = spaces.Dict(
            [(group, spaces.Box(-np.inf, np.inf, (size,))) for group, size in (("policy", 2), ("critic", 3))]
        )
        self.single_action_space = spaces.Box(-np.inf, np.inf, (2,))
        self.episode_length_buf = th.zeros(n, dtype=th.long)
        self.obs_buf = {key: th.zeros(n, *space.shape) for key, space in self.single_observation_space.items()}
        self.reward_buf = th.zeros(n)
        self.reset_terminated = th.zeros(n, dtype=th.bool)
        self.reset_time_outs = th.zeros(n, dtype=th.bool)
        self.extras = {}
        self.seeds, self.actions, self.closed = [], [], False

    @property
    def unwrapped(self):
        return self

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.seeds.append(seed)
        self._reset_idx(slice(None))
        return self._observe(), self.extras

    def step(self, action):
        self.actions.append(action)
        self.episode_length_buf += 1
        self.reset_time_outs[:] = self.episode_length_buf >= self.max_episode_length
        self.reset_terminated[:] = False
        self.reset_terminated[0] = self.reset_time_outs[0]
        self.reward_buf[:] = self.episode_length_buf
        ended = (self.reset_terminated | self.reset_time_outs).nonzero().squeeze(-1)
        if len(ended):
            if getattr(self.cfg, "compute_final_obs", False):
                self.extras["final_obs"] = {key: part.clone() for key, part in self._observe().items()}
            self._reset_idx(ended)
        return self._observe(), self.reward_buf, self.reset_terminated, self.reset_time_outs, self.extras

    def _reset_idx(self, ids):
        self.extras["log"] = {
            "Episode_Reward/alive": self.reward_buf[ids].mean(),
            "Episode_Termination/time_out": int(self.reset_time_outs[ids].sum()),
        }
        self.episode_length_buf[ids] = 0
        self.reset_terminated[ids] = self.reset_terminated[ids]

    def _observe(self):
        for part in self.obs_buf.values():
            part[:] = self.episode_length_buf[:, None] / 10
        return self.obs_buf

    def close(self):
        self.closed = True
