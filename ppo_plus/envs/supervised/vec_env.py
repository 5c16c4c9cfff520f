"""Environments that may fail: each fault is reported, and training can continue with a fresh environment.

After a *fault*, training cannot continue with an environment: ``step``, ``reset`` or ``action_masks`` raises; an
observation or a reward is not finite, or an observation has another shape or kind of number than its space; the process
dies; there is no answer in time. :class:`SupervisedVecEnv` detects it before anything was learned from it.

If a restart is left, a fresh environment replaces the faulty one, and the others are not affected. A step in which an
environment failed has no result: its row has the last good observation as ``terminal_observation``,
``TimeLimit.truncated``, a reward of 0, and the reason as ``info["env_restart"]``. For ``PPO_Plus`` it is an ordinary
time limit. If the reset after the end of an episode failed, the step is complete, and there is no such row.

``N`` is the number of environments.

Each environment has a process, unless ``n_workers`` asks for fewer: then those of a process share its modules, working
folder and ``os.environ``. An error restarts only the environment that raised it. If one dies or hangs, all environments
of its process are replaced, which counts as one restart.
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import create_empty_array
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from ppo_plus.envs.checks import TIMEOUT, described, row_of
from ppo_plus.envs.resumable.attributes import State
from ppo_plus.envs.supervised import workers
from ppo_plus.envs.supervised.shared_memory import SharedArrays, write_row
from ppo_plus.envs.supervised.workers import Fault, Worker
from ppo_plus.generators import derived_seed
from ppo_plus.policy.masking import METHOD
from ppo_plus.process import usable_cores
from ppo_plus.require import NotFinite, require_int, require_number
from ppo_plus.trees import mapped, tree_map

#: Info key of a row in which an environment was replaced: the reason.
RESTART = "env_restart"


class EnvFault(RuntimeError):
    """An environment failed, and training cannot continue with it.

    The message names the environment, its index, its seed and the step; the ``__cause__`` shows its own error, if any.
    """


class NotFiniteFault(EnvFault, NotFinite):
    """An environment returned NaN or infinity, a :class:`~ppo_plus.require.NotFinite` without supervision, too."""


class SupervisedVecEnv(VecEnv):
    """Steps environments in processes, as SB3's ``SubprocVecEnv`` does, and replaces those that fail: see
    :mod:`ppo_plus.envs.supervised.vec_env`::

        make_vec_env("CartPole-v1", 8, vec_env_cls=SupervisedVecEnv, vec_env_kwargs=dict(restarts=10, timeout=60))

    Observations have their space's dtype and rewards are float32. Only the process that trains handles Ctrl-C.

    :param env_fns: functions that make environments, called again at each restart; a ``Monitor`` appends to its file
    :param restarts: how many times environments that failed may be replaced, in total, at least 0. Attributes that
        were set are set again; what methods have changed is lost
    :param timeout: seconds that an environment may take for a step or a reset, above 0, and those of one process
        together so many times as much; ``None``: no limit
    :param start_method: how processes are started, as for SB3's ``SubprocVecEnv``
    :param report: called with a line about each restart; ``None``: ``warnings.warn``
    :param n_workers: number of processes, each with about as many environments, at least 1; ``None``: one for each
        environment, ``"auto"``: one for each core that this process may use
    :raises EnvFault: an environment failed, and no restart is left; from each method
    :raises ValueError: the spaces are not supported, or there is no such ``start_method``
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env]],
        restarts: int = 0,
        timeout: float | None = None,
        start_method: str | None = None,
        report: Callable[[str], None] | None = None,
        n_workers: int | Literal["auto"] | None = None,
    ):
        require_int("restarts", restarts, 0)
        require_number("timeout", timeout, 0, 1e6, above=True, or_none=True)
        n = len(env_fns)
        if n_workers is None or n_workers == "auto":
            n_workers = n if n_workers is None else usable_cores()
        require_int('n_workers (or "auto", or None)', n_workers, 1)
        self.restarts, self.timeout, self.n_workers = restarts, timeout, min(n_workers, n)
        self.report = report or partial(warnings.warn, stacklevel=2)
        #: Restarts over all environments, and steps that each has taken.
        self.n_restarts = self.n_steps = 0
        #: The seed that each environment was last reset with; ``None``: without a seed.
        self.env_seeds: list[int | None] = [None] * n
        #: The last observations, ``N`` rows; ``None``: unknown, also after the state of unsupervised environments.
        self.last_obs: Any = None
        #: Attributes that were set in each, to be set in a fresh one.
        self._attributes: list[dict[str, Any]] = [{} for _ in env_fns]
        #: Environments replaced between two steps: the reason, and what the reset of the fresh one returned.
        self._replaced: dict[int, tuple[str, Any]] = {}
        #: Action masks after the last step, unless something else was called since.
        self._masks: np.ndarray | None = None
        self.closed = False
        self._names = ["not made yet"] * n
        self._workers: list[Worker] = []
        try:
            for part in np.array_split(np.arange(n), self.n_workers):
                makes = [env_fns[i] for i in part]
                self._workers.append(Worker(makes, start_method, int(part[0]), timeout))
            made = self._collect(self._workers)
            for i, fault in _faults(made).items():
                self._fail(i, fault)
            self._names = [name for name, _ in made.values()]
            super().__init__(n, *made[0][1])
            for worker in self._workers:
                worker.share(self.observation_space, self.action_space)
            self.metadata = self.get_attr("metadata", 0)[0]
        except BaseException:
            self.close()
            raise

    def reset(self) -> VecEnvObs:
        """Reset all environments, with the seeds and options that were set since the last reset."""
        options = [{"options": options} if options else {} for options in self._options]
        pairs = zip(self._seeds, self.env_seeds, strict=True)
        self.env_seeds = [last if seed is None else seed for seed, last in pairs]
        self._replaced = {}
        answers = self._exchange("reset", {i: ({"seed": self._seeds[i], **own},) for i, own in enumerate(options)})
        answers |= {i: first for i, (_, first) in self._replace(_faults(answers), options).items()}
        rows = [answers[i] for i in range(self.num_envs)]
        self.reset_infos = [info for _, info in rows]
        self._reset_seeds()
        self._reset_options()
        self.last_obs = create_empty_array(self.observation_space, self.num_envs)
        for i, (obs, _) in enumerate(rows):
            write_row(self.last_obs, i, obs)
        # Copied, since wrappers may write into observations.
        return mapped(np.array, self.last_obs)  # type: ignore[no-any-return]

    def step_async(self, actions: Any) -> None:
        if len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions for {self.num_envs} environments: pass one for each")
        space, arrays, self._masks = self.action_space, self._workers[0].arrays, None
        shared = isinstance(actions, np.ndarray) and arrays is not None and arrays.actions is not None
        # The bits of another dtype would change.
        shared = shared and (actions.shape, actions.dtype) == ((self.num_envs, *(space.shape or ())), space.dtype)
        for worker in self._workers:
            members = worker.members
            if shared and self._replaced.keys().isdisjoint(members):
                worker.step(actions[members.start : members.stop])
            elif own := {i: (actions[i],) for i in members if i not in self._replaced}:
                worker.send("step", own)

    def step_wait(self) -> VecEnvStepReturn:
        # All answers first, so that none is left unread if an environment failed.
        stepping = [worker for worker in self._workers if not self._replaced.keys() >= {*worker.members}]
        rest = self._collect(stepping)
        if any(worker.arrays is None for worker in self._workers):  # a process was ended before the step
            self._replaced |= self._replace(_faults(rest))
            rest = {i: answer for i, answer in rest.items() if i not in self._replaced}
        self.n_steps += 1
        # Read before environments are replaced, which clears them.
        arrays = [worker.arrays for worker in self._workers]
        obs = _rows(arrays, "obs")
        rewards, flags = _rows(arrays, "rewards"), _rows(arrays, "flags")
        dones, limits = flags[:, 0].copy(), flags[:, 1].tolist()
        infos: list[dict[str, Any]] = [{TIMEOUT: limit} for limit in limits]
        faults = _faults(rest)
        #: Environments whose step is complete, but not the reset after it.
        unreset = {}
        for i, answer in rest.items():
            if i not in faults:
                infos[i], first = answer
                if isinstance(first, Fault):
                    unreset[i] = first
                elif dones[i]:
                    self.reset_infos[i] = first
        failed = self._replaced | self._replace(faults | unreset)
        for i, (reason, (first_obs, self.reset_infos[i])) in failed.items():
            write_row(obs, i, first_obs)
            if i not in unreset:
                rewards[i], dones[i] = 0.0, True
                last = row_of(obs if self.last_obs is None else self.last_obs, i)
                infos[i] = {RESTART: reason, TIMEOUT: True, "terminal_observation": last}
        if flags[:, 2].all() and not failed:
            self._masks = flags[:, 3:]
        self._replaced = {}
        self.last_obs = obs
        # Copied, since wrappers may write into observations.
        return mapped(np.array, obs), rewards, dones, infos

    def _replace(
        self, faults: dict[int, Fault], options: Sequence[dict[str, Any]] | None = None
    ) -> dict[int, tuple[str, Any]]:
        """Replace environments until none fails: by number, the reason, and what the reset of the fresh one returned.

        :param options: of the resets
        """
        firsts: dict[int, tuple[str, Any]] = {}
        while faults:
            i, fault = next(iter(faults.items()))
            worker = next(worker for worker in self._workers if i in worker.members)
            if self.n_restarts >= self.restarts:
                self._fail(i, fault)
            self.n_restarts += 1
            group = list(worker.members) if fault.loses_process else [i]
            beside = f" with the {len(group) - 1} others of its process" if len(group) > 1 else ""
            line = f"{self._who(i)} {fault.reason}: restarted{beside} ({self.n_restarts} of {self.restarts} restarts)"
            self.report(line)
            for j in group:
                seed = self.env_seeds[j]
                self.env_seeds[j] = None if seed is None else derived_seed([seed, 1])
            if fault.loses_process:
                worker.stop(time.monotonic() + workers.CLOSING)
                worker.start(again=True)
                answers = self._collect([worker])
                if not any(fault.loses_process for fault in _faults(answers).values()):
                    worker.share(self.observation_space, self.action_space)
            else:
                answers = self._exchange("make", {i: (True,)})
            made = [j for j in group if not isinstance(answers.get(j), Fault)]
            for j in made:
                for name, value in self._attributes[j].items():
                    answers |= self._exchange("env_method", {j: ("set_wrapper_attr", (name, value), {})})
            resets = {j: ({"seed": self.env_seeds[j], **(options[j] if options else {})},) for j in made}
            answers |= self._exchange("reset", resets)
            faults = {j: other for j, other in faults.items() if j not in group} | _faults(answers)
            firsts |= {j: (firsts.get(j, (fault.reason,))[0], answers.get(j)) for j in group}
        return firsts

    def _fail(self, i: int, fault: Fault) -> NoReturn:
        remedy = "With restarts=N (--restart-envs N) training continues with a fresh environment, up to N times"
        if self.restarts:
            remedy = f"All restarts={self.restarts} are used up"
        if self.n_workers < len(self._names):
            remedy += f". Environments share processes (n_workers={self.n_workers}, --env-workers)"
        kind = NotFiniteFault if fault.not_finite else EnvFault
        raise kind(f"{self._who(i)} {fault.reason}. {remedy}") from fault.cause

    def _who(self, i: int) -> str:
        return f"{described(i, self._names[i], self.env_seeds[i], self.n_steps)}:"

    def _exchange(self, command: str, arguments: dict[int, tuple[Any, ...]]) -> dict[int, Any]:
        """The answers of environments to a command, given the arguments of each."""
        called, self._masks = [], None
        for worker in self._workers:
            if own := {i: arguments[i] for i in worker.members if i in arguments}:
                worker.send(command, own)
                called.append(worker)
        return self._collect(called)

    def _collect(self, called: Sequence[Worker]) -> dict[int, Any]:
        """The answers of environments, by number."""
        if self.closed:
            raise ValueError("the environments are closed: make new ones")
        answers: dict[int, Any] = {}
        for worker in called:
            answers |= worker.receive()
        for answer in answers.values():
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _call(self, command: str, arguments: tuple[Any, ...], indices: VecEnvIndices = None) -> list[Any]:
        """Call environments between two steps; one that fails is replaced, and called again."""
        # Numbers from the end, as of a list.
        called = [range(self.num_envs)[i] for i in self._get_indices(indices)]
        answers = self._exchange(command, dict.fromkeys(called, arguments))
        while failed := self._replace(_faults(answers)):
            self._replaced |= failed
            answers = {i: answer for i, answer in answers.items() if i not in failed}
            again = [i for i in called if i in failed or i not in answers]
            answers |= self._exchange(command, dict.fromkeys(again, arguments))
        return [answers[i] for i in called]

    def has_attr(self, attr_name: str) -> bool:
        return all(self._call("env_method", ("has_wrapper_attr", (attr_name,), {})))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        return self._call("env_method", ("get_wrapper_attr", (attr_name,), {}), indices)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the single environments, and of those that replace them."""
        self._call("env_method", ("set_wrapper_attr", (attr_name, value), {}), indices)
        for i in self._get_indices(indices):
            self._attributes[i][attr_name] = value

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        """Call a method of the single environments, without a limit of time unless it is ``action_masks``. An error in
        it is raised here, except in ``action_masks``, where it is a fault of the environment."""
        if (method_name, args, kwargs) != (METHOD, (), {}):
            return self._call("env_method", (method_name, args, kwargs), indices)
        if indices is None and self._masks is not None:
            return [*self._masks.copy()]
        return self._call(METHOD, (), indices)

    def resumable_method(self, name: str, *args: State, indices: VecEnvIndices = None) -> list[Any]:
        """Call a method of the :class:`~ppo_plus.Resumable` that records each environment."""
        return self._call("resumable_method", (name, args), indices)

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        return self._call("is_wrapped", (wrapper_class,), indices)

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


def _faults(answers: Mapping[int, Any]) -> dict[int, Fault]:
    return {i: answer for i, answer in answers.items() if isinstance(answer, Fault)}


def _rows(arrays: Sequence[SharedArrays | None], name: str) -> Any:
    """New arrays of the rows of all workers."""
    return tree_map(lambda *parts: np.concatenate(parts), *(getattr(part, name) for part in arrays))
