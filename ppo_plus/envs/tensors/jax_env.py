"""Environments that are functions of their state in JAX, many at once: Brax's, MuJoCo Playground's and gymnax's.

Tensors pass between JAX and torch by DLPack, without a copy. JAX is imported when the first one is made.
"""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import torch as th
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from ppo_plus.envs.outputs import mapped
from ppo_plus.envs.tensors.env import Obs, TensorEnv, Transition, box, gym_space, select_groups
from ppo_plus.generators import derived_seed
from ppo_plus.require import require_int

#: Brax's default for the steps of an episode, for Brax and Playground environments that do not define their own.
EPISODE_LENGTH = 1000
#: One environment as functions: of a key, which returns state and observation; and of state, action and key, which
#: returns state, observation, reward, whether it is terminated, and whether truncated.
_Functions = tuple[Callable[..., Any], Callable[..., Any]]


def is_functional(env: Any) -> bool:
    """Whether an environment is of Brax, MuJoCo Playground or gymnax."""
    # Some of Gymnasium's environments answer to every name.
    return not isinstance(env, (type, TensorEnv, gym.Env, VectorEnv)) and (_is_brax(env) or _is_gymnax(env))


class JaxEnv(TensorEnv):
    """``num_envs`` environments of Brax, MuJoCo Playground or gymnax, from the functions of one.

    The step that ends an episode starts the next one, and returns the last observation as ``final_obs``. As in the
    libraries, episodes of gymnax start in newly drawn states, those of the others in the environment's first state.

    :param env: the bare environment: without wrappers that count steps, reset, or vectorize it
    :param num_envs: the number of environments
    :param params: gymnax: the environment's parameters; ``None``: its default
    :param episode_length: an episode is truncated after this number of steps. ``None``: the environment's own, or
        :data:`ppo_plus.envs.tensors.jax_env.EPISODE_LENGTH`
    :param groups: the groups of observations to use; ``None``: only ``"state"``, if it exists
    :raises ValueError: it is not such an environment, or it is in wrappers
    """

    def __init__(
        self,
        env: Any,
        num_envs: int,
        params: Any = None,
        episode_length: int | None = None,
        groups: list[str] | None = None,
    ) -> None:
        if not is_functional(env):
            raise ValueError(f"env={env!r} must be a functional environment of Brax, MuJoCo Playground or gymnax")
        require_int("num_envs", num_envs, 1)
        import jax

        self.env, self._jax = env, jax
        gymnax = _is_gymnax(env)
        if gymnax:
            params = env.default_params if params is None else params
            functions = _gymnax_functions(env, params)
            space, action_space = env.observation_space(params), env.action_space(params)
        else:
            _require_bare(env)
            # Playground keeps the length of episodes in the configuration.
            own = getattr(getattr(env, "_config", None), "episode_length", None)
            episode_length = episode_length or own or EPISODE_LENGTH
            functions = _brax_functions(env)
            size, action_space = env.observation_size, box(env.action_size, 1.0)
            space = spaces.Dict([(key, box(size[key])) for key in size]) if isinstance(size, Mapping) else box(size)
        space, self._select = select_groups(gym_space(space), groups)
        self._reset, self._step = _batched(jax, functions, num_envs, episode_length, fresh=gymnax)
        found = jax.devices()[0]
        device = th.device("cpu") if found.platform == "cpu" else th.device("cuda", found.id)
        super().__init__(num_envs, space, action_space, device)
        self._state: Any = None

    def reset(self, seed: int | None = None) -> Obs:
        if seed is None and self._state is not None:
            key = self._state[2]
        else:
            key = self._jax.random.key((derived_seed(None) if seed is None else seed) % 2**31)
        self._state, obs = self._reset(key)
        return self._taken(obs)

    def step(self, actions: Any) -> Transition:
        # JAX has no long integers by default.
        actions = mapped(lambda part: (part.int() if part.dtype == th.int64 else part).contiguous(), actions)
        actions = mapped(self._jax.dlpack.from_dlpack, actions)
        self._state, obs, rewards, terminated, truncated, final = self._step(self._state, actions)
        rewards, terminated, truncated = map(th.from_dlpack, (rewards, terminated, truncated))
        return Transition(self._taken(obs), rewards, terminated, truncated, self._taken(final))

    def _taken(self, obs: Any) -> Obs:
        return mapped(th.from_dlpack, self._select(obs))


def _is_brax(env: Any) -> bool:
    return all(hasattr(env, name) for name in ("reset", "step", "observation_size", "action_size"))


def _is_gymnax(env: Any) -> bool:
    return all(hasattr(env, name) for name in ("step_env", "reset_env", "default_params"))


def _require_bare(env: Any) -> None:
    """:raises ValueError: it is in a wrapper that counts steps, resets or vectorizes"""
    layer = env
    while layer is not None:
        name = type(layer).__name__
        if any(part in name for part in ("Vmap", "EpisodeWrapper", "AutoReset")):
            raise ValueError(
                f"env={env!r} is in a {name}: pass the bare environment, as brax.envs.get_environment(name)"
            )
        layer = getattr(layer, "__dict__", {}).get("env")


def _brax_functions(env: Any) -> _Functions:
    def reset(key: Any) -> Any:
        state = env.reset(key)
        return state, state.obs

    def step(state: Any, action: Any, key: Any) -> Any:
        state = env.step(state, action)
        ended = state.done > 0.5
        return state, state.obs, state.reward, ended, ended & False

    return reset, step


def _gymnax_functions(env: Any, params: Any) -> _Functions:
    def reset(key: Any) -> Any:
        obs, state = env.reset_env(key, params)
        return state, obs

    def step(state: Any, action: Any, key: Any) -> Any:
        obs, state, reward, done, _ = env.step_env(key, state, action, params)
        if hasattr(env, "is_truncated"):
            return state, obs, reward, done, env.is_truncated(state, params)
        # Before version 1, `done` includes the time limit: it is the cause if the state is not terminal without it.
        unlimited = params.replace(max_steps_in_episode=2**31 - 1)
        timed = (state.time >= params.max_steps_in_episode) & ~env.is_terminal(state, unlimited)
        return state, obs, reward, done & ~timed, done & timed

    return reset, step


def _batched(
    jax: Any, functions: _Functions, n: int, episode_length: int | None, fresh: bool
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Compiled functions of ``n`` environments that reset themselves, from the functions of one."""
    jp, (reset_one, step_one) = jax.numpy, functions

    def reset(key: Any) -> Any:
        key, resetting = jax.random.split(key)
        inner, obs = jax.vmap(reset_one)(jax.random.split(resetting, n))
        first = () if fresh else (inner, obs)
        return (inner, jp.zeros(n, jp.int32), key, first), obs

    def step(state: Any, actions: Any) -> Any:
        inner, times, key, first = state
        key, acting, resetting = jax.random.split(key, 3)
        keys = jax.random.split(acting, n)
        inner, final, rewards, terminated, truncated = jax.vmap(step_one)(inner, actions, keys)
        times = times + 1
        if episode_length is not None:
            truncated = truncated | (times >= episode_length)
        ended = terminated | truncated
        begun = jax.vmap(reset_one)(jax.random.split(resetting, n)) if fresh else first

        def chosen(new: Any, old: Any) -> Any:
            return jp.where(ended.reshape(n, *[1] * (old.ndim - 1)), new, old)

        inner, obs = jax.tree.map(chosen, begun, (inner, final))
        times = jp.where(ended, 0, times)
        return (inner, times, key, first), obs, rewards, terminated, truncated, final

    return jax.jit(reset), jax.jit(step)
