"""Small environments that several test files share."""

import copy

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper

from ppo_plus.policy.observations import as_dict

VECTOR = spaces.Box(-3.0, 3.0, (5,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 36, 36), np.uint8)

ACTIONS = {
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "box_float64": spaces.Box(-1.0, 2.0, (2,), np.float64),
    "box_int": spaces.Box(-3, 5, (2,), np.int64),
    "discrete": spaces.Discrete(3),
    "discrete_start": spaces.Discrete(3, start=-4),
    "multidiscrete": spaces.MultiDiscrete([3, 2, 4]),
    "multidiscrete_2d": spaces.MultiDiscrete([[3, 2], [2, 4]]),
    "multibinary": spaces.MultiBinary(4),
    "multibinary_2d": spaces.MultiBinary((2, 3)),
    "tuple": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1.0, 2.0, (2,), np.float32)]),
    # Pairs, since Gymnasium would sort the keys of a dict.
    "mixed": spaces.Dict(
        [
            ("kind", spaces.Discrete(3, start=-1)),
            ("where", spaces.Box(-1.0, 2.0, (2,), np.float64)),
            (
                "how",
                spaces.Tuple(
                    [
                        spaces.MultiBinary(3),
                        spaces.Dict(far=spaces.Box(-3, 5, (), np.int64), deep=spaces.MultiDiscrete([[3, 2], [2, 4]])),
                    ]
                ),
            ),
        ]
    ),
}
OBSERVATIONS = {
    "box": VECTOR,
    "box_int": spaces.Box(-9, 9, (4,), np.int32),
    "image": IMAGE,
    "discrete_start": spaces.Discrete(6, start=2),
    "multidiscrete_2d": spaces.MultiDiscrete([[3, 2], [4, 5]]),
    "multibinary_2d": spaces.MultiBinary((2, 3)),
    "dict": spaces.Dict(
        choice=spaces.Discrete(4, start=1), choices=spaces.MultiDiscrete([[2, 3], [3, 2]]), image=IMAGE, vector=VECTOR
    ),
}
#: The policy that an observation of :data:`OBSERVATIONS` needs; ``"MlpPolicy"`` where nothing is said.
POLICIES = {"image": "CnnPolicy", "dict": "MultiInputPolicy"}


def own(space):
    """A space with a separate generator, which environments must not share; ``copy.deepcopy`` takes longer."""
    copied = copy.copy(space)
    copied._np_random = None
    if isinstance(space, spaces.Dict):
        copied.spaces = {key: own(sub) for key, sub in space.spaces.items()}
    elif isinstance(space, spaces.Tuple):
        copied.spaces = tuple(map(own, space.spaces))
    return copied


class RandomEnv(gym.Env):
    """Random observations, rewards that depend on the action, and episodes that end in both ways.

    Everything follows from the seed. An action that the space does not contain is an error.

    :param action_space: any
    :param observation_space: any
    :param max_steps: episodes are truncated here; ``None``: never
    :param p_end: probability of termination at each step
    """

    def __init__(self, action_space, observation_space=VECTOR, max_steps=7, p_end=0.1):
        self.action_space = own(action_space)
        self.observation_space = own(observation_space)
        self.max_steps = max_steps
        self.p_end = p_end
        #: Steps taken since the environment was made, over all episodes.
        self.n_steps = 0
        self.n_resets = 0
        self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        self.n_resets += 1
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.t += 1
        self.n_steps += 1
        reward = self.reward(action)
        terminated = bool(self.np_random.random() < self.p_end)
        return self.observe(), reward, terminated, self.t == self.max_steps, {}

    def observe(self):
        return self.observation_space.sample()

    def reward(self, action):
        return total(action) + float(self.np_random.normal())


class StillEnv(RandomEnv):
    """The observation never changes."""

    def observe(self):
        if not hasattr(self, "_observation"):
            self._observation = self.observation_space.sample()
        return copy.deepcopy(self._observation)


class FaultyEnv(RandomEnv):
    """Returns ``value`` at step ``at`` (0: at the first reset) in place of the observation or the reward.

    Its episodes have five steps.

    :param what: ``"observation"``, ``"reward"`` or ``"final"`` (the observation of the next truncated step)
    """

    def __init__(self, what, at, value=np.nan, observation_space=VECTOR):
        super().__init__(ACTIONS["discrete"], observation_space, max_steps=5, p_end=0.0)
        self.what, self.at, self.value = what, at, value

    def observe(self):
        due = self.n_steps == self.at and self.t == self.n_steps
        final = self.n_steps >= self.at and self.t == self.max_steps
        observation = super().observe()
        if (self.what == "observation" and due) or (self.what == "final" and final):
            for array in observation.values() if isinstance(observation, dict) else [observation]:
                array[-1] = self.value
        return observation

    def reward(self, action):
        return self.value if self.what == "reward" and self.n_steps == self.at else super().reward(action)


class MaskedEnv(RandomEnv):
    """Every state forbids alternatives at random, though never all of a choice; to take one of them is an error.

    :param key: put the mask under this name into the (Dict) observations as well
    """

    def __init__(self, action_space, observation_space=VECTOR, key=None, **kwargs):
        super().__init__(action_space, observation_space, **kwargs)
        self.key = key
        if key is not None:
            mask = spaces.MultiBinary(sum(choices(action_space)))
            self.observation_space = spaces.Dict([*self.observation_space.items(), (key, mask)])

    def observe(self):
        observation = super().observe()
        self.allowed = []
        for n in choices(self.action_space):
            mask = self.np_random.random(n) < 0.5
            mask[self.np_random.integers(n)] = True
            self.allowed.append(mask)
        if self.key is not None:
            observation[self.key] = np.concatenate(self.allowed).astype(np.int8)
        return observation

    def action_masks(self):
        return np.concatenate(self.allowed)

    def step(self, action):
        for mask, choice in zip(self.allowed, chosen(self.action_space, action), strict=True):
            assert mask[choice], f"{action!r} is forbidden by {self.allowed!r}"
        return super().step(action)


class KeyMaskedEnv(MaskedEnv):
    """A :class:`MaskedEnv` whose mask is in the observations only."""

    action_masks = property()

    def __init__(self, action_space, observation_space=OBSERVATIONS["dict"], **kwargs):
        super().__init__(action_space, observation_space, key="mask", **kwargs)


def choices(space):
    """The numbers of alternatives that a mask has entries for."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return [n for sub in subspaces(space).values() for n in choices(sub)]
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.flatten().tolist()
    return [2] * int(np.prod(space.shape)) if isinstance(space, spaces.MultiBinary) else []


def structured(space, mask):
    """A flat mask ``(..., M)`` in the structure of the action space, dicts in another order; ``None`` for a Box."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return mask if choices(space) else None
    parts, start = {}, 0
    for key, sub in subspaces(space).items():
        size = sum(choices(sub))
        parts[key], start = structured(sub, mask[..., start : start + size]), start + size
    return tuple(parts.values()) if isinstance(space, spaces.Tuple) else dict(reversed(parts.items()))


def chosen(space, action):
    """Which alternative an action takes of each of the :func:`choices`, counted from 0."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return [choice for key, sub in subspaces(space).items() for choice in chosen(sub, action[key])]
    return [] if isinstance(space, spaces.Box) else np.ravel(action - getattr(space, "start", 0)).tolist()


def total(action):
    """The sum of all numbers in an action."""
    if isinstance(action, (dict, tuple)):
        return sum(map(total, action.values() if isinstance(action, dict) else action))
    return float(np.sum(action))


def equal_actions(one, other):
    """Whether two batches of actions, structured or not, are the same."""
    try:
        np.testing.assert_equal(one, other)
    except AssertionError:
        return False
    return True


def subspaces(space):
    return space.spaces if isinstance(space, spaces.Dict) else dict(enumerate(space))


def vec(action_space, observation_space=VECTOR, n_envs=2, env_class=RandomEnv, **kwargs):
    """``n_envs`` environments in a ``DummyVecEnv``."""
    return DummyVecEnv([lambda: env_class(action_space, observation_space, **kwargs) for _ in range(n_envs)])


class Edited(VecEnvWrapper):
    """Returns in each step what ``edit(obs, rewards, dones, infos)`` makes of its results."""

    def __init__(self, venv, edit=lambda *results: results):
        super().__init__(venv)
        self.edit = edit

    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        return self.edit(*self.venv.step_wait())


#: Parts of Tuple observations.
PARTS = [VECTOR, spaces.Discrete(4, start=1), spaces.MultiDiscrete([[2, 3], [3, 2]])]


class TupleEnv(RandomEnv):
    """Observations are tuples; with ``by_number`` dicts of the same parts."""

    def __init__(self, by_number=False, parts=PARTS):
        space = spaces.Tuple(parts)
        super().__init__(ACTIONS["discrete"], as_dict(space) if by_number else space, max_steps=5)
        self._tuple, self._by_number = own(space), by_number

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self._tuple.seed(seed)
        return super().reset(seed=seed)

    def observe(self):
        parts = self._tuple.sample()
        return as_dict(parts) if self._by_number else parts


class TwoNumbers(RandomEnv):
    """The old gym's ``reset``, with an observation that can be unpacked."""

    def reset(self, **kwargs):
        return super().reset(**kwargs)[0][:2]
