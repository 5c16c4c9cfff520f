"""Environments that may fail: each fault is reported, and training can continue with a fresh environment.

After a *fault*, training cannot continue with an environment: ``step``, ``reset`` or ``action_masks`` raises; an
observation or a reward is not finite, or an observation has another shape or kind of number than its space; the process
dies; there is no answer in time. :class:`SupervisedVecEnv` detects it before anything was learned from it.

If a restart is left, a fresh environment replaces the faulty one, and the others are not affected. A step in which an
environment failed has no result: its row has the last good observation as ``terminal_observation``,
``TimeLimit.truncated``, a reward of 0, and the reason as ``info["env_restart"]``. ``PPO_Plus`` bootstraps the step
before it from the value of that observation, and leaves the row itself out of training, since any reward would credit
or blame the action. If the reset after the end of an episode failed, the step is complete, and there is no such row.

``N`` is the number of environments.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from ppo_plus.envs.checks import TIMEOUT, described, row_of
from ppo_plus.envs.supervised import workers
from ppo_plus.envs.supervised.workers import CallerError, Fault, Worker
from ppo_plus.generators import derived_seed
from ppo_plus.policy.masking import METHOD
from ppo_plus.require import require_int, require_number
from ppo_plus.trees import mapped

#: Info key of a row in which an environment was replaced: the reason.
RESTART = "env_restart"
#: Seconds beyond the time limit that a process may take to start and to make its environment.
STARTING = 60.0


class EnvFault(RuntimeError):
    """An environment failed, and training cannot continue with it.

    The message names the environment, its index, its seed and the step; the environment's own error, if there was one,
    is the ``__cause__``.
    """


class NotFiniteFault(EnvFault, FloatingPointError):
    """An environment returned NaN or infinity, which is a ``FloatingPointError`` without supervision, too."""


class SupervisedVecEnv(VecEnv):
    """Steps environments like SB3's ``SubprocVecEnv``, each in its own process, and replaces those that fail: see
    :mod:`ppo_plus.envs.supervised.vec_env`::

        make_vec_env("CartPole-v1", 8, vec_env_cls=SupervisedVecEnv, vec_env_kwargs=dict(restarts=10, timeout=60))

    Observations have their space's dtype and rewards are float32. Worker processes ignore Ctrl-C, which the process
    that trains handles.

    :param env_fns: functions that make environments, called again at each restart; a ``Monitor`` appends to its file
    :param restarts: how many times a fresh environment may replace one that failed, over all environments, at least 0.
        Attributes that were set are set again; what methods have changed is lost
    :param timeout: seconds that an environment may take for a step or a reset, above 0; ``None``: no limit
    :param start_method: how processes are started, as for SB3's ``SubprocVecEnv``
    :param report: called with a line about each restart; ``None``: ``warnings.warn``
    :raises EnvFault: an environment failed, and no restart is left; from each method
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env]],
        restarts: int = 0,
        timeout: float | None = None,
        start_method: str | None = None,
        report: Callable[[str], None] | None = None,
    ):
        require_int("restarts", restarts, 0)
        require_number("timeout", timeout, 0, 1e6, above=True, or_none=True)
        self.restarts, self.timeout = restarts, timeout
        self._to_start = None if timeout is None else timeout + STARTING
        self.report = report or partial(warnings.warn, stacklevel=2)
        #: Restarts over all environments, and steps that each has taken.
        self.n_restarts = self.n_steps = 0
        #: The seed that each environment was last reset with; ``None``: without a seed.
        self.env_seeds: list[int | None] = [None] * len(env_fns)
        #: Attributes that were set in each, to be set in a fresh one.
        self._attributes: list[dict[str, Any]] = [{} for _ in env_fns]
        #: Environments replaced between two steps: the reason, and what the reset of the fresh one returned.
        self._replaced: dict[int, tuple[str, Any]] = {}
        #: The last observations, ``N`` rows.
        self.last_obs: Any = None
        self.closed = False
        self._names = ["it"] * len(env_fns)
        self._workers: list[Worker] = []
        try:
            for i, env_fn in enumerate(env_fns):
                self._workers.append(Worker(env_fn, start_method, i))
            made = self._collect(range(len(env_fns)), self._to_start)
            for i, answer in made.items():
                if isinstance(answer, Fault):
                    self._fail(i, answer)
        except BaseException:
            self.close()
            raise
        self._names = [name for name, _ in made.values()]
        super().__init__(len(env_fns), *made[0][1])

    def reset(self) -> VecEnvObs:
        """Reset all environments, with the seeds and options that were set since the last reset."""
        options = [{"options": options} if options else {} for options in self._options]
        pairs = zip(self._seeds, self.env_seeds, strict=True)
        self.env_seeds = [last if seed is None else seed for seed, last in pairs]
        self._replaced = {}
        answers = self._exchange({i: ("reset", {"seed": self._seeds[i], **options[i]}) for i in range(self.num_envs)})
        rows = []
        for i, answer in answers.items():
            obs, self.reset_infos[i] = self._first(i, answer, options[i])
            rows.append(obs)
        self._reset_seeds()
        self._reset_options()
        return self._stacked(rows)

    def step_async(self, actions: Any) -> None:
        for i, action in enumerate(actions):
            if i not in self._replaced:
                self._workers[i].send(("step", action))

    def step_wait(self) -> VecEnvStepReturn:
        # All answers first, so that none is left unread if an environment failed.
        answers = self._collect([i for i in range(self.num_envs) if i not in self._replaced])
        self.n_steps += 1
        rows = [self._row(i, answers.get(i)) for i in range(self.num_envs)]
        obs, rewards, dones, infos = zip(*rows, strict=True)
        return self._stacked(obs), np.array(rewards, np.float32), np.array(dones), list(infos)

    def _row(self, i: int, answer: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        """What environment ``i`` returns, given its answer."""
        if i not in self._replaced and not isinstance(answer, Fault):
            obs, reward, done, info, first = answer
            if done:
                obs, self.reset_infos[i] = self._first(i, first)
            return obs, reward, done, info
        reason, first = self._replaced.pop(i, None) or (answer.reason, self._first(i, answer))
        obs, self.reset_infos[i] = first
        last = row_of(self.last_obs, i)
        return obs, 0.0, True, {RESTART: reason, TIMEOUT: True, "terminal_observation": last}

    def _stacked(self, rows: Sequence[Any]) -> VecEnvObs:
        self.last_obs = _stack(rows, self.observation_space)
        # Copied, since wrappers may write into observations.
        return mapped(np.array, self.last_obs)  # type: ignore[no-any-return]

    def _first(self, i: int, answer: Any, options: dict[str, Any] | None = None) -> Any:
        """The answer to a reset of environment ``i``, which is replaced as long as the answer is a fault."""
        while isinstance(answer, Fault):
            worker = self._workers[i]
            if self.n_restarts >= self.restarts:
                if answer.hangs:
                    worker.stop(time.monotonic())
                self._fail(i, answer)
            self.n_restarts += 1
            self.report(f"{self._who(i)} {answer.reason}: restarted ({self.n_restarts} of {self.restarts} restarts)")
            seed = self.env_seeds[i]
            if seed is not None:
                self.env_seeds[i] = derived_seed([seed, 1])
            worker.stop(time.monotonic() + (0 if answer.hangs else workers.CLOSING))
            worker.start(again=True)
            answer = self._collect([i], self._to_start)[i]
            messages = [("set_attr", name, value) for name, value in self._attributes[i].items()]
            for message in (*messages, ("reset", {"seed": self.env_seeds[i], **(options or {})})):
                if not isinstance(answer, Fault):
                    answer = self._exchange({i: message})[i]
        return answer

    def _fail(self, i: int, fault: Fault) -> NoReturn:
        remedy = "With restarts=N (--restart-envs N) training continues with a fresh environment, up to N times"
        if self.restarts:
            remedy = f"All restarts={self.restarts} are used up"
        kind = NotFiniteFault if fault.not_finite else EnvFault
        raise kind(f"{self._who(i)} {fault.reason}. {fault.remedy or remedy}") from fault.cause

    def _who(self, i: int) -> str:
        return f"{described(i, self._names[i], self.env_seeds[i], self.n_steps)}:"

    def _exchange(self, messages: dict[int, tuple[Any, ...]], seconds: float | None = None) -> dict[int, Any]:
        for i, message in messages.items():
            self._workers[i].send(message)
        return self._collect(messages, seconds)

    def _collect(self, indices: Iterable[int], seconds: float | None = None) -> dict[int, Any]:
        """The answers of environments; waits for all together :attr:`timeout`, or so many seconds."""
        seconds = seconds or self.timeout
        deadline = None if seconds is None or seconds == math.inf else time.monotonic() + seconds
        answers = {i: self._workers[i].receive(deadline, seconds) for i in indices}
        for answer in answers.values():
            if isinstance(answer, CallerError):
                raise answer.error
        return answers

    def _call(self, message: tuple[Any, ...], indices: VecEnvIndices = None, seconds: float | None = None) -> list[Any]:
        """Call environments between two steps; one that fails is replaced, and called again."""
        messages = dict.fromkeys(self._get_indices(indices), message)
        answers = self._exchange(messages, seconds)
        for i in messages:
            while isinstance(answers[i], Fault):
                self._replaced[i] = answers[i].reason, self._first(i, answers[i])
                answers[i] = self._exchange({i: message}, seconds)[i]
        return list(answers.values())

    def has_attr(self, attr_name: str) -> bool:
        return all(self._call(("env_method", "has_wrapper_attr", (attr_name,), {})))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        return self._call(("env_method", "get_wrapper_attr", (attr_name,), {}), indices)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the single environments, and of those that replace them."""
        for i in self._get_indices(indices):
            self._attributes[i][attr_name] = value
        self._call(("set_attr", attr_name, value), indices)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of the single environments, without a limit of time unless it is ``action_masks``. An error in
        it is raised here, except in ``action_masks``, where it is a fault of the environment."""
        message = ("env_method", method_name, method_args, method_kwargs)
        return self._call(message, indices, None if method_name == METHOD else math.inf)

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        return self._call(("is_wrapped", wrapper_class), indices)

    def get_images(self) -> Sequence[np.ndarray | None]:
        return self.env_method("render")

    def close(self) -> None:
        """Close the environments. A process that does not end within seconds is killed."""
        if self.closed:
            return
        for worker in self._workers:
            worker.end()
        deadline = time.monotonic() + workers.CLOSING
        for worker in self._workers:
            worker.stop(deadline)
        self.closed = True


def _stack(rows: Sequence[Any], space: spaces.Space) -> Any:
    """Observations as arrays with a row for each, in their space's dtype."""
    if isinstance(space, spaces.Dict):
        return {key: _stack([row[key] for row in rows], sub) for key, sub in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_stack([row[i] for row in rows], sub) for i, sub in enumerate(space))
    shape = space.shape or ()
    if math.prod(shape) == 1:
        # A single number may come as an array of one, and the reverse.
        rows = [np.reshape(row, shape) for row in rows]
    return np.array(rows, space.dtype)
