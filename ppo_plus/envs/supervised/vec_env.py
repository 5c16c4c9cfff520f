"""Environments that may fail: each fault is named, and training can go on with a fresh environment in its place.

A *fault* is what an environment does that training cannot go on from: ``step``, ``reset`` or ``action_masks`` raises;
an observation or a reward is not finite, or an observation is of another shape or kind of number than its space; its
process dies; it gives no answer in time. :class:`SupervisedVecEnv` finds it where it happens, before anything has
counted or learned from it.

Where a restart is left, a fresh environment takes the place of the faulty one, and nothing changes for the others. If
the fault was in a step, that step has led nowhere: its row has the last good observation as ``terminal_observation``,
``TimeLimit.truncated``, a reward of 0, and under ``info["env_restart"]`` the reason. ``PPO_Plus`` bootstraps the step
before it from the value of that observation, and leaves the row itself out of training: what the environment would have
answered is not known, and any reward in its place would be praise or blame of an action. If the fault was in the reset
behind the end of an episode, the step is whole, and there is no such row.

``N`` is the number of environments.
"""

import copy
import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from ppo_plus.envs.errors import described
from ppo_plus.envs.supervised.faults import EnvFault, Fault
from ppo_plus.envs.supervised.guarded import Refusal
from ppo_plus.envs.supervised.workers import Local, Process, closing_deadline, context
from ppo_plus.envs.vec_env import mapped, row_of
from ppo_plus.generators import derived_seed
from ppo_plus.require import require_int, require_number

#: Info key of a row in which an environment was replaced: the reason.
RESTART = "env_restart"
#: Seconds that, beyond the time limit, a process may take to start and to make its environment.
STARTING = 60.0


class SupervisedVecEnv(VecEnv):
    """Steps environments as ``DummyVecEnv`` does, in processes of their own or in this one, and sees to it that none
    of them ends training: see :mod:`ppo_plus.envs.supervised.vec_env`::

        make_vec_env("CartPole-v1", 8, vec_env_cls=SupervisedVecEnv, vec_env_kwargs=dict(restarts=10, timeout=60))

    Observations have their space's dtype and rewards are float32, wherever the environments are. Processes ignore
    Ctrl-C, which is for the one that trains.

    :param env_fns: functions that make the environments; called again for each restart, when a ``Monitor`` goes on with
        the file that is there
    :param restarts: how many times a fresh environment may take the place of one that failed, over all of them, at
        least 0. Attributes that were set are set again; what methods have changed is lost
    :param timeout: seconds that an environment may take for a step or a reset, above 0; ``None``: any
    :param processes: a process for each environment; else all are in this one, where there is no way to end one that
        hangs, or to outlive one that crashes
    :param start_method: how processes are started, as for SB3's ``SubprocVecEnv``
    :param report: what is told of each restart, in one line; ``None``: ``warnings.warn``
    :raises EnvFault: an environment failed, and no restart is left; from each method
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env]],
        restarts: int = 0,
        timeout: float | None = None,
        processes: bool = True,
        start_method: str | None = None,
        report: Callable[[str], None] | None = None,
    ):
        require_int("restarts", restarts, 0)
        if timeout is not None:
            require_number("timeout", timeout, 0, 1e6, above=True, or_none=True)
            if not processes:
                raise ValueError(f"timeout={timeout}: only a process can be ended that hangs: use processes=True")
        self.restarts, self.timeout = restarts, timeout
        self.report = report or partial(warnings.warn, stacklevel=2)
        #: Restarts so far.
        self.n_restarts = 0
        #: Steps that each environment has taken.
        self.n_steps = 0
        #: The seed that each environment was last reset with; ``None``: with none.
        self.env_seeds: list[int | None] = [None] * len(env_fns)
        #: What was set in each, to be set in a fresh one.
        self._attributes: list[dict[str, Any]] = [{} for _ in env_fns]
        #: Environments replaced between two steps: the reason, and what the reset of the fresh one returned.
        self._replaced: dict[int, tuple[str, Any]] = {}
        #: The last observations, ``N`` rows.
        self._last_obs: Any = None
        self.waiting = self.closed = False
        self._names = ["it"] * len(env_fns)
        self._places: list[Local | Process] = []
        try:
            for env_fn in env_fns:
                self._places.append(Process(env_fn, context(start_method)) if processes else Local(env_fn))
            made = self._collect(range(len(env_fns)), self._to_start)
            for i, answer in made.items():
                if isinstance(answer, Fault):
                    raise self._error(i, answer)
        except BaseException:
            self.close()
            raise
        self._names = [name for name, _ in made.values()]
        self._spaces = made[0][1]
        super().__init__(len(env_fns), *self._spaces)

    # --- stepping --------------------------------------------------------------------------------------------------

    def reset(self) -> VecEnvObs:
        """Reset all environments, with the seeds and options that were set since the last reset."""
        options = [{"options": each} if each else {} for each in self._options]
        for i, seed in enumerate(self._seeds):
            if seed is not None:
                self.env_seeds[i] = seed
        self._replaced = {}
        answers = self._exchange({i: ("reset", {"seed": self._seeds[i], **options[i]}) for i in range(self.num_envs)})
        rows = []
        for i, answer in answers.items():
            first = self._renew(i, answer, options[i]) if isinstance(answer, Fault) else answer
            obs, self.reset_infos[i] = first
            rows.append(obs)
        self._reset_seeds()
        self._reset_options()
        return self._stacked(rows)

    def step_async(self, actions: Any) -> None:
        """Begin a step.

        :param actions: one for each environment, ``N`` of them
        """
        for i, action in enumerate(actions):
            if i not in self._replaced:
                self._places[i].send(("step", action))
        self.waiting = True

    def step_wait(self) -> VecEnvStepReturn:
        """End the step.

        :return: observations, rewards (float32) and dones, each with ``N`` rows, and a list of ``N`` dicts
        """
        # All of them first, so that none is left unread whatever the others did.
        answers = self._collect([i for i in range(self.num_envs) if i not in self._replaced])
        self.waiting = False
        self.n_steps += 1
        rows = [self._row(i, answers.get(i)) for i in range(self.num_envs)]
        obs, rewards, dones, infos = zip(*rows, strict=True)
        return self._stacked(obs), np.array(rewards, np.float32), np.array(dones), list(infos)

    def _row(self, i: int, answer: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        """What environment ``i`` returns, given what it has answered."""
        if i not in self._replaced and not isinstance(answer, Fault):
            obs, reward, done, info, first = answer
            if done:
                obs, self.reset_infos[i] = self._renew(i, first) if isinstance(first, Fault) else first
            return obs, reward, done, info
        reason, first = self._replaced.pop(i, None) or (answer.reason, self._renew(i, answer))
        obs, self.reset_infos[i] = first
        last = row_of(self._last_obs, i)
        return obs, 0.0, True, {RESTART: reason, "TimeLimit.truncated": True, "terminal_observation": last}

    def _stacked(self, rows: Sequence[Any]) -> VecEnvObs:
        self._last_obs = _stack(rows, self.observation_space)
        # Copied, since wrappers may write into what they are given.
        return mapped(np.array, self._last_obs)  # type: ignore[no-any-return]

    # --- faults ----------------------------------------------------------------------------------------------------

    def _renew(self, i: int, fault: Fault, options: dict[str, Any] | None = None) -> Any:
        """Put a fresh environment into place ``i``.

        :param fault: what the old one did
        :param options: arguments of the first reset, besides the seed
        :return: what its first reset has returned
        :raises EnvFault: no restart is left
        """
        while True:
            if self.n_restarts >= self.restarts:
                if fault.hangs:
                    self._places[i].stop(time.monotonic())
                raise self._error(i, fault)
            self.n_restarts += 1
            self.report(f"{self._who(i)} {fault.reason}: restarted ({self.n_restarts} of {self.restarts} restarts)")
            seed = self.env_seeds[i]
            if seed is not None:
                self.env_seeds[i] = _next_seed(seed)
            answer = self._begin(i, fault.hangs, {"seed": self.env_seeds[i], **(options or {})})
            if not isinstance(answer, Fault):
                return answer
            fault = answer

    def _begin(self, i: int, hangs: bool, arguments: dict[str, Any]) -> Any:
        """Make an environment in place ``i``, and reset it; what it answers."""
        place = self._places[i]
        place.stop(time.monotonic() if hangs else closing_deadline())
        place.start(again=True)
        answer = self._collect([i], self._to_start)[i]
        if isinstance(answer, Fault):
            return answer
        if answer[1] != self._spaces:
            return Fault(f"came back with the spaces {answer[1]} in place of {self._spaces}")
        messages = [("set_attr", *each) for each in self._attributes[i].items()]
        for message in (*messages, ("reset", arguments)):
            answer = self._exchange({i: message})[i]
            if isinstance(answer, Fault):
                break
        return answer

    def _error(self, i: int, fault: Fault) -> EnvFault:
        remedy = "With restarts=N (--restart-envs N) training goes on with a fresh environment, up to N times"
        if self.restarts:
            remedy = f"All restarts={self.restarts} are used up"
        error = fault.error(f"{self._who(i)} {fault.reason}. {remedy}")
        error.__cause__ = fault.cause
        return error

    def _who(self, i: int) -> str:
        return f"{described(i, self._names[i], self.env_seeds[i], self.n_steps)}:"

    # --- asking ----------------------------------------------------------------------------------------------------

    def _exchange(self, messages: dict[int, tuple[Any, ...]], seconds: float | None = None) -> dict[int, Any]:
        """The answers to messages, of all places at once; the rest is as for :meth:`_collect`."""
        for i, message in messages.items():
            self._places[i].send(message)
        return self._collect(messages, seconds)

    def _collect(self, places: Iterable[int], seconds: float | None = None) -> dict[int, Any]:
        """The answers of places.

        :param places: which have been sent something
        :param seconds: how long to wait, for all together; ``None``: for :attr:`timeout`
        :raises MemoryError, OSError: there is too little memory, or a disk is full
        """
        seconds = seconds or self.timeout
        deadline = None if seconds is None or seconds == math.inf else time.monotonic() + seconds
        answers = {i: self._places[i].receive(deadline, seconds) for i in places}
        for answer in answers.values():
            if isinstance(answer, Refusal):
                raise answer.error
        return answers

    @property
    def _to_start(self) -> float | None:
        return None if self.timeout is None else self.timeout + STARTING

    def call(self, messages: dict[int, tuple[Any, ...]], seconds: float | None = None) -> list[Any]:
        """Ask environments between two steps.

        :param messages: to each that is asked
        :param seconds: how long to wait; infinite: without end; ``None``: for :attr:`timeout`
        :return: the answers; one that fails is replaced, and asked again
        """
        answers = self._exchange(messages, seconds)
        for i, message in messages.items():
            while isinstance(answers[i], Fault):
                self._replaced[i] = answers[i].reason, self._renew(i, answers[i])
                answers[i] = self._exchange({i: message}, seconds)[i]
        return list(answers.values())

    def _ask(self, message: tuple[Any, ...], indices: VecEnvIndices = None) -> list[Any]:
        return self.call(dict.fromkeys(self._get_indices(indices), message))

    def has_attr(self, attr_name: str) -> bool:
        return all(self._ask(("has_attr", attr_name)))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute of the single environments.

        :raises AttributeError: they have none of that name
        """
        return self._ask(("get_attr", attr_name), indices)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the single environments, and of those that take their places."""
        for i in self._get_indices(indices):
            self._attributes[i][attr_name] = value
        self._ask(("set_attr", attr_name, value), indices)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of the single environments. An error in it is raised here, but for that of ``action_masks``,
        which is a fault of the environment."""
        return self._ask(("env_method", method_name, method_args, method_kwargs), indices)

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        return self._ask(("is_wrapped", wrapper_class), indices)

    def get_images(self) -> Sequence[np.ndarray | None]:
        """One RGB image ``(H, W, 3)`` per environment; ``None`` unless ``render_mode`` is ``"rgb_array"``."""
        if self.render_mode != "rgb_array":
            warnings.warn(f"render_mode={self.render_mode!r} gives no images: use 'rgb_array'", stacklevel=2)
            return [None] * self.num_envs
        return self._ask(("render",))

    # --- going on in another process -------------------------------------------------------------------------------

    def get_supervision(self) -> dict[str, Any]:
        """What :func:`ppo_plus.envs.resumable.state.get_state` keeps besides the single environments: plain values, and
        under ``"attributes"`` and ``"replaced"`` what environments were given and have returned."""
        return {
            "n_restarts": self.n_restarts,
            "n_steps": self.n_steps,
            "env_seeds": list(self.env_seeds),
            "last_obs": copy.deepcopy(self._last_obs),
            "attributes": [dict(each) for each in self._attributes],
            "replaced": {i: [reason, list(first)] for i, (reason, first) in self._replaced.items()},
        }

    def set_supervision(self, state: dict[str, Any]) -> None:
        """Put back what :meth:`get_supervision` returned."""
        self.n_restarts, self.n_steps, self.env_seeds = state["n_restarts"], state["n_steps"], list(state["env_seeds"])
        self._last_obs, self._attributes = copy.deepcopy((state["last_obs"], state["attributes"]))
        self._replaced = {i: (reason, tuple(first)) for i, (reason, first) in copy.deepcopy(state["replaced"]).items()}

    def close(self) -> None:
        """Close the environments. A process that does not end by itself within seconds is killed."""
        if self.closed:
            return
        for place in self._places:
            place.end()
        deadline = closing_deadline()
        for place in self._places:
            place.stop(deadline)
        self.closed = True


def _next_seed(seed: int) -> int:
    """The seed of the environment that takes the place of one with this seed."""
    return derived_seed([seed, 1])


def _stack(rows: Sequence[Any], space: spaces.Space) -> Any:
    """Observations as arrays with a row for each, of their space's dtype."""
    if isinstance(space, spaces.Dict):
        return {key: _stack([row[key] for row in rows], sub) for key, sub in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_stack([row[i] for row in rows], sub) for i, sub in enumerate(space))
    shape = space.shape or ()
    if math.prod(shape) == 1:
        # A single number may come as an array of one, and the reverse.
        rows = [np.reshape(row, shape) for row in rows]
    return np.array(rows, space.dtype)
