"""Many agents: a parallel PettingZoo environment as a vector environment whose rows are agents.

A *game* with ``A`` possible agents is one environment, ``Team``, which has a row for each of them. Several copies
of it are stepped as all others are, in this process or in others, and ``AgentsVecEnv`` makes ``N = n A`` rows of
them. A row is a transition only if its agent was there before the step. For other rows ``dones[i]`` is true and
``infos[i] == {"VectorEnv.autoreset": True}``, as for a step that only resets (:mod:`ppo_plus.envs.vec_env`).
"""

import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias
from weakref import WeakSet

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from ppo_plus.envs.checks import AUTORESET, TIMEOUT, Info, as_reward, check_obs, row_of
from ppo_plus.envs.make_vec import make_vec
from ppo_plus.envs.supervised.shared_memory import write_row
from ppo_plus.envs.supervised.vec_env import RESTART
from ppo_plus.policy.masking import METHOD
from ppo_plus.policy.observations import as_dict, parts_of
from ppo_plus.trees import mapped

#: Entries of PettingZoo's observations with masks; a bare observation has the first name.
OBSERVATION, MASK = "observation", "action_mask"
#: The entry that only the critic may see.
STATE = "state"
#: Further entries of a ``Team``: what its agents are now, and their rewards.
STATUS, REWARD = "status of agents", "reward of agents"
#: The key of a Team's info with the infos of agents.
INFOS = "agents"
#: What an agent is after a step.
ABSENT, PRESENT, TERMINATED, TRUNCATED = range(4)
#: Packages of games whose course depends only on the seed of their reset and on actions.
REPLAYABLE = ("mpe2.", "pettingzoo.")
#: An environment of PettingZoo, which need not be installed.
Game: TypeAlias = Any
#: Games that are in an environment. A second one would play the same game, without an error.
PLAYED: WeakSet[Any] = WeakSet()
#: What an environment takes as an action.
Action = np.ndarray | int | tuple[Any, ...] | dict[str, Any]


def make_agents(
    env: Game,
    n_envs: int = 1,
    seed: int | None = None,
    env_kwargs: dict[str, Any] | None = None,
    vec_env: str = "dummy",
    *,
    indicate_agents: bool = False,
    state: bool = False,
    **supervision: object,
) -> VecEnv:
    """Make a vector environment of the agents of parallel PettingZoo environments, which share a policy::

        env = make_agents("mpe2.simple_spread_v3", n_envs=8, seed=0)
        PPO_Plus("MlpPolicy", env).learn(100_000)

    It has a row for each possible agent of each copy. Rows of agents that have died or are not there are excluded from
    training. Of observations ``{"observation": ..., "action_mask": ...}`` the policy sees the first entry, and masks
    are used. An AEC environment whose agents act at the same time is converted; for games with turns, use
    :class:`ppo_plus.SelfPlay`. Methods and attributes are those of the copies.

    :param env: a parallel environment, a function that makes one, or the name of a module with ``parallel_env``
    :param n_envs: how many copies, at least 1
    :param seed: of the first copy, the others follow, 0 to 2**32 - 1; ``None``: drawn at random
    :param env_kwargs: arguments of each copy, such as ``{"render_mode": "rgb_array"}``
    :param vec_env: ``"dummy"`` or ``"subproc"``, as in :func:`~ppo_plus.make_vec`
    :param indicate_agents: add the entry ``"agent"`` to observations, the agent's number, which networks see one-hot
    :param state: add the game's ``state()`` as the entry ``"state"``, which only the critic may see
    :param supervision: further arguments of :func:`~ppo_plus.make_vec`
    :return: environments for the policy and arguments that :func:`ppo_plus.policy_arguments` returns
    :raises ValueError: the spaces of agents differ
    :raises TypeError: ``env`` is something else
    :raises AssertionError: the game has turns
    :raises ImportError: there is no such module, or PettingZoo is not installed
    """
    if n_envs != 1 and not (isinstance(env, str) or callable(env)):
        raise ValueError(f"n_envs={n_envs!r} copies need a function: pass one that makes {env} instead of that")
    make = partial(Team, env, indicate_agents, state)
    return AgentsVecEnv(make_vec(make, n_envs, seed, env_kwargs, vec_env, **supervision))


class GameEnv(gym.Env):
    """A game of PettingZoo, a function that makes one, or the ``function`` of a module: ``"env"`` if agents take turns,
    ``"parallel_env"`` if all act."""

    #: The modes that a game of PettingZoo may have; an instance has those of its game.
    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array", "ansi"]}

    def __init__(self, env: Game, function: str, kwargs: dict[str, object]):
        if isinstance(env, str):
            try:
                env = getattr(import_module(env), function)
            except (ImportError, AttributeError, ValueError) as error:
                kinds = "ppo_plus.SelfPlay (selfplay:) for games with turns, make_agents (pettingzoo:) for others"
                remedy = f"correct the name, pip install 'ppo_plus[agents]', or use {kinds}"
                missing = error.name if isinstance(error, ImportError) else None
                if missing and not f"{env}.".startswith(f"{missing}."):
                    remedy = f"pip install {missing.partition('.')[0]}, which the game needs"
                problem = f"env={env!r} has no {function} ({error}): {remedy}"
                raise (ValueError if isinstance(error, AttributeError) else type(error))(problem) from error
        if kwargs and not callable(env):
            raise TypeError(f"env_kwargs={kwargs!r} need a function: pass one that makes {env} instead of that")
        game = env(**kwargs) if callable(env) else env
        if not getattr(game, "possible_agents", None):
            remedy = "give it its list of possible_agents, or use ppo_plus.make_vec for an environment of Gymnasium"
            raise TypeError(f"env={game!r} must be an environment of PettingZoo with possible agents: {remedy}")
        if game.unwrapped in PLAYED:
            raise ValueError(f"{game} is in another environment already: pass a function that makes a new one")
        if hasattr(game, "agent_iter") != (function == "env"):
            from pettingzoo.utils import conversions

            game = (conversions.parallel_to_aec if function == "env" else conversions.aec_to_parallel)(game)
        self.game, self.metadata, self.render_mode = game, game.metadata, getattr(game, "render_mode", None)
        for kind in ("observation_space", "action_space"):
            by_agent = {agent: getattr(game, kind)(agent) for agent in game.possible_agents}
            space = by_agent[game.possible_agents[0]]
            if any(other != space for other in by_agent.values()):
                remedy = "pad them in a wrapper, or train a model for each group (docs/capabilities/agents.md)"
                raise ValueError(f"{game} has agents with different {kind}s, {by_agent}: {remedy}")
            setattr(self, kind, space)
        PLAYED.add(game.unwrapped)

    def render(self) -> np.ndarray | None:
        return self.game.render()

    def close(self) -> None:
        self.game.close()
        PLAYED.discard(self.game.unwrapped)


def without_mask(whole: Any) -> tuple[Any, Any]:
    """What a policy sees of an agent's observation, and the mask in it; or the spaces of both."""
    parts = parts_of(whole)
    if MASK not in parts:
        return whole, None
    mask = parts.pop(MASK)
    # Pairs, not a dict: Gymnasium would sort its keys.
    rest = spaces.Dict([*parts.items()]) if isinstance(whole, spaces.Dict) else parts
    return (parts[OBSERVATION] if [*parts] == [OBSERVATION] else rest), mask


class Team(GameEnv):
    """A game of PettingZoo as one environment: its observations and actions have a row for each possible agent, and its
    reward is the sum of theirs. It resets the game with seeds drawn from ``np_random``. For arguments see
    :func:`make_agents`.
    """

    def __init__(self, env: Game, indicate_agents: bool = False, state: bool = False, **kwargs: object):
        super().__init__(env, "parallel_env", kwargs)
        game, self._space, action_space = self.game, self.observation_space, self.action_space
        self._index = {agent: i for i, agent in enumerate(game.possible_agents)}
        kind = type(game.unwrapped)
        #: For :mod:`ppo_plus.envs.resumable.state`.
        self.replayable = getattr(kind, "replayable", kind.__module__.startswith(REPLAYABLE))
        seen, mask = without_mask(self._space)
        n, entries = len(self._index), {key or OBSERVATION: space for key, space in parts_of(as_dict(seen)).items()}
        self._seen = [*entries]
        added = {"agent": spaces.Discrete(n)} if indicate_agents else {}
        added |= {STATE: game.state_space} if state else {}
        if twice := entries.keys() & added.keys():
            raise ValueError(f"observations of {game} have the entries {twice} already: rename them in a wrapper")
        entries |= added
        row_space = entries[OBSERVATION] if [*entries] == [OBSERVATION] else spaces.Dict([*entries.items()])
        #: The spaces of a row, which entries of its observations only the critic may see, and the row of each agent.
        self.row = row_space, action_space, (STATE,) if state else (), self._index
        rows: dict[str, Any] = {key: batch_space(space, n) for key, space in entries.items()}
        rows[STATUS], rows[REWARD] = spaces.Box(ABSENT, TRUNCATED, (n,), np.int8), spaces.Box(-np.inf, np.inf, (n,))
        self.observation_space = spaces.Dict([*rows.items()])
        self.action_space = spaces.Tuple([action_space] * n)
        # Choices may begin above 0.
        starts = {key: getattr(entries.get(key), "start", 0) for key in rows}
        self._empty = {key: np.full(space.shape, starts[key], space.dtype) for key, space in rows.items()}
        if indicate_agents:
            self._empty["agent"] = np.arange(n)
        if mask is not None:
            self._masks = np.ones((n, *(mask.shape or ())), dtype=bool)
            # Not a function, of which copies would have the masks of the original.
            setattr(self, METHOD, self._present_masks)

    def _present_masks(self) -> np.ndarray:
        return self._masks.reshape(-1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        obs, _ = self.game.reset(seed=seed, options=options)
        return self._rows(obs, {}), {}

    def step(self, action: tuple[Action, ...]) -> tuple[Any, float, bool, bool, Info]:
        before = [*self.game.agents]
        results = self.game.step({agent: action[self._index[agent]] for agent in before})
        obs, rewards, terminated, truncated, infos = results
        for what, given in zip(("rewards", "terminations", "truncations"), results[1:4], strict=True):
            self._require("agents", before, what, given)
        ended, present = {}, self.game.agents
        for agent in before:
            if terminated[agent] or truncated[agent]:
                ended[agent] = TERMINATED if terminated[agent] else TRUNCATED
            if (agent in ended) == (agent in present):
                what = "has ended, but is still" if agent in ended else "has not ended, but is not"
                raise ValueError(f"{agent!r} of {self.game} {what} among agents={[*present]}: correct one of them")
        rows = self._rows(obs, ended)
        rows[REWARD][[self._index[agent] for agent in before]] = [as_reward(rewards[agent]) for agent in before]
        own = {agent: infos[agent] for agent in before if infos.get(agent)}
        return rows, float(rows[REWARD].sum()), not present, False, {INFOS: own} if own else {}

    def _rows(self, observations: Mapping[str, Any], ended: Mapping[str, int]) -> dict[str, Any]:
        """A row for each possible agent, from the observations of those that are there, or have just ``ended``."""
        status = dict(ended) | dict.fromkeys(self.game.agents, PRESENT)
        self._require("agents", status, "possible_agents", [*self._index])
        self._require("agents", status, "observations", observations)
        self._require("observations", observations, "agents", [*status])
        rows = {key: empty.copy() for key, empty in self._empty.items()}
        if METHOD in vars(self):
            self._masks = np.ones_like(self._masks)
        for agent, now in status.items():
            seen = check_obs(observations[agent], self._space, values=False, name=f"the observation of {agent!r}")
            i, parts = self._index[agent], parts_of(as_dict(seen))
            for key in self._seen:
                rows[key][i] = parts[key if key in parts else ""]
            rows[STATUS][i] = now
            if METHOD in vars(self) and now == PRESENT:
                self._masks[i] = parts[MASK]
        if STATE in self.row[2]:
            rows[STATE][...] = check_obs(self.game.state(), self.game.state_space, values=False, name="state()")
        return rows

    def _require(self, having: str, agents: Iterable[str], what: str, values: Collection[str]) -> None:
        """:raises ValueError: ``values`` lack an agent"""
        if lacking := [agent for agent in agents if agent not in values]:
            problem = f"has {lacking} among its {having}, but not in {what}={values!r:.200}"
            raise ValueError(f"{self.game} {problem}: correct one of them")


class AgentsVecEnv(VecEnvWrapper):
    """The agents of several ``Team`` environments as rows: those of the first copy, in the order of its possible
    agents, then those of the second, and so on. An episode is an agent's, from when it appears until it has ended.

    :param venv: the copies
    """

    def __init__(self, venv: VecEnv):
        ((observation_space, action_space, self.critic_only, self.agents),) = venv.get_attr("row", [0])
        super().__init__(venv, observation_space, action_space)
        self.num_envs = venv.num_envs * len(self.agents)
        self.reset_infos: list[Info] = [{} for _ in range(self.num_envs)]
        #: Which rows are of agents that are there now, and which were transitions in the last step, ``(N,)``.
        self.observed = self.stepped = np.zeros(self.num_envs, dtype=bool)
        #: The group of each agent: its name without the number at the end.
        groups = [re.sub(r"_?\d+$", "", str(agent)) or "agent" for agent in self.agents]
        # `team` is the name of whole games, and `ep` that of all episodes.
        self._groups = [f"{group}_agent" if group in ("team", "ep") else group for group in groups]
        #: The last returns of whole games, and of the agents of each group.
        self.last_returns: dict[str, deque[float]] = {}

    def reset(self) -> VecEnvObs:
        obs = self.venv.reset()
        assert isinstance(obs, dict)
        self.observed = obs[STATUS].reshape(-1) == PRESENT
        self.stepped = np.zeros_like(self.observed)
        #: Return and length of the present episode of each agent.
        self.returns, self.lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.int64)
        rows = self._rows(obs)
        #: The last observation of each absent agent, to estimate returns that go on beyond episodes.
        self.last_seen = [row_of(rows, row) for row in range(self.num_envs)]
        return rows

    def step_async(self, actions: np.ndarray | list[Action]) -> None:
        n = len(self.agents)
        self.venv.step_async([tuple(actions[i : i + n]) for i in range(0, self.num_envs, n)])  # type: ignore[arg-type]

    def step_wait(self) -> VecEnvStepReturn:
        obs, _, over, game_infos = self.venv.step_wait()
        assert isinstance(obs, dict)
        # What games saw last: in those that go on, what they see now.
        n_agents, new_obs, last = len(self.agents), self._rows(obs), mapped(np.array, obs)
        self.stepped, self.observed = self.observed, obs[STATUS].reshape(-1) == PRESENT
        for i in np.flatnonzero(over).tolist():
            write_row(last, i, game_infos[i]["terminal_observation"])
            last[STATUS][i, last[STATUS][i] == PRESENT] = TRUNCATED
            if RESTART in game_infos[i]:  # its agents are still there, with the rewards of the step before
                last[REWARD][i] = 0.0
            else:
                self._record("team", game_infos[i]["episode"]["r"])
        finals, status, rewards = self._rows(last), last[STATUS].reshape(-1), last[REWARD].reshape(-1)
        np.add(self.returns, rewards, out=self.returns, where=self.stepped)
        self.lengths += self.stepped
        infos: list[Info] = [{} if stepped else {AUTORESET: True} for stepped in self.stepped.tolist()]
        for i, info in enumerate(game_infos):
            for agent, own in info.get(INFOS, {}).items():
                infos[i * n_agents + self.agents[agent]] |= own
        ended = self.stepped & (status >= TERMINATED)
        for row in np.flatnonzero(ended).tolist():
            (i, agent), info = divmod(row, n_agents), infos[row]
            info[TIMEOUT] = bool(status[row] == TRUNCATED)
            info["terminal_observation"] = row_of(finals, row)
            if RESTART in game_infos[i]:
                info[RESTART] = game_infos[i][RESTART]
            else:
                info["episode"] = {"r": float(self.returns[row]), "l": int(self.lengths[row])}
                self._record(self._groups[agent], info["episode"]["r"])
        self.returns[ended], self.lengths[ended] = 0.0, 0
        for row in np.flatnonzero(~self.observed).tolist():
            self.last_seen[row] = infos[row].get("terminal_observation", self.last_seen[row])
            write_row(new_obs, row, self.last_seen[row])
        return new_obs, rewards, ended | ~self.stepped, infos

    def _rows(self, obs: dict[str, np.ndarray]) -> VecEnvObs:
        """The observations of rows, from those of copies."""
        parts = {key: rows.reshape(-1, *rows.shape[2:]) for key, rows in obs.items() if key not in (STATUS, REWARD)}
        return parts[OBSERVATION] if [*parts] == [OBSERVATION] else parts

    def _record(self, name: str, returned: float) -> None:
        self.last_returns.setdefault(name, deque(maxlen=100)).append(returned)

    def rollout_log(self) -> dict[str, float]:
        """The mean returns of the last 100 games, and of the last episodes of the agents of each group."""
        return {f"rollout/{name}_rew_mean": float(np.mean(last)) for name, last in self.last_returns.items()}

    def env_method(self, method_name: str, *args: object, indices: VecEnvIndices = None, **kwargs: object) -> list[Any]:
        """Call a method of the copies; action masks are those of agents, whose rows ``indices`` are then."""
        if method_name != METHOD:
            return self.venv.env_method(method_name, *args, indices=indices, **kwargs)
        masks = np.reshape(self.venv.env_method(METHOD), (self.num_envs, -1))
        return [masks[i] for i in self._get_indices(indices)]
