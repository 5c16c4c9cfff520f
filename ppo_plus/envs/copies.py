"""Copies of vector environments, which ``copy`` and ``pickle`` cannot make."""

from inspect import getmembers

from gymnasium.vector import AsyncVectorEnv
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper, VecNormalize, unwrap_vec_normalize

from ppo_plus.envs.layers import layers
from ppo_plus.envs.supervised.vec_env import SupervisedVecEnv

#: A wrapper as its class and its attributes.
Wrapper = tuple[type[VecEnvWrapper], dict[str, object]]


class CopiedEnv:
    """An environment whose copies have wrappers, too: SB3's contain a table of their class, which cannot be copied, and
    ``VecNormalize`` leaves what it wraps out of copies.

    :param env: the environment of a model; copies of those in other processes are ``None``
    """

    def __init__(self, env: VecEnv | None):
        self.env = env
        #: The ``VecNormalize`` among the wrappers, which copies have in any case.
        self.normalize = None if env is None else unwrap_vec_normalize(env)

    def __getstate__(self) -> tuple[list[Wrapper], VecEnv | None]:
        wrappers, layer = [], self.env
        while isinstance(layer, VecEnvWrapper):
            own = {name: value for name, value in vars(layer).items() if name not in ("venv", "class_attributes")}
            wrappers.append((type(layer), own))
            layer = layer.venv
        in_processes = (SubprocVecEnv, SupervisedVecEnv, AsyncVectorEnv)
        return wrappers, None if any(isinstance(each, in_processes) for each in layers(layer)) else layer

    def __setstate__(self, state: tuple[list[Wrapper], VecEnv | None]) -> None:
        wrappers, innermost = state
        env, self.normalize = innermost, None
        for kind, own in reversed(wrappers):
            wrapper = object.__new__(kind)
            vars(wrapper).update(own, venv=env, class_attributes=dict(getmembers(kind)))
            if isinstance(wrapper, VecNormalize):
                self.normalize = wrapper
            env = wrapper
        self.env = None if innermost is None else env
