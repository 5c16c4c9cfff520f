"""Self-play: games against other policies, and a league of frozen ones to play against."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import unwrap_vec_normalize

from ppo_plus.envs.agents import MASK, OBSERVATION, Action, Source, common_spaces, open_game, without_mask
from ppo_plus.envs.checks import Info
from ppo_plus.envs.resumable.attributes import NotResumableError, State, differ, plain
from ppo_plus.policy.masking import METHOD
from ppo_plus.policy.policies import ActorCriticPolicy, Carry
from ppo_plus.ppo import PPO_Plus
from ppo_plus.require import require_int, require_kind, require_number, require_one_of
from ppo_plus.saving.files import replacing
from ppo_plus.trees import tree_map

#: What plays a seat: a policy, or a function of its observation and action mask (``None``: there are none) that returns
#: an action; ``None`` draws actions at random.
Player = ActorCriticPolicy | Callable[[Any, np.ndarray | None], Any] | None
#: The player that draws its actions at random, whose rating is 0.
RANDOM = "random"
#: The key of an info with what a game was.
GAME = "game"
#: Memory is empty at the start of a game, and kept in it.
NO_START = th.zeros(1, dtype=th.bool)
#: How much a game changes a rating, at most, and an estimate of a rate of winning.
K, STEP = 16.0, 0.05


class SelfPlay(gym.Env):
    """A game of PettingZoo in which the learner has one seat, drawn at each reset, and opponents have the others::

        env = make_vec(lambda: SelfPlay("pettingzoo.classic.tictactoe_v3"), n_envs=16, seed=0)
        PPO_Plus("MlpPolicy", env).learn(200_000, League())

    A step lasts until the learner's next turn: rewards until then are added up, and the last observation is that of the
    learner. Of observations ``{"observation": ..., "action_mask": ...}`` it sees the first entry, and masks are used.
    The info of a game's last step has ``"game"``: the result (1: the learner's return was above 0, 0.5: it was 0, or 0)
    and the names of its opponents. Opponents sample their actions, and change no random numbers but those of
    ``np_random``.

    :param env: a turn-based or parallel environment, a function that makes one, or the name of a module with ``env``
    :param opponents: who plays the other seats, each drawn at each reset, by name: a function of an observation and an
        action mask that returns an action, a model or its file, or ``None``, random actions, which is the default
    :param seat: the learner's seat, one of the possible agents; ``None``: drawn at each reset
    :param kwargs: arguments of the function that makes the game
    :raises ValueError: the spaces of agents differ, or there is no such seat
    :raises TypeError: ``env`` or an opponent is something else
    """

    def __init__(
        self, env: Source, opponents: Mapping[str, Any] | None = None, seat: str | None = None, **kwargs: object
    ):
        require_kind("opponents", opponents, (Mapping, NoneType), "a dict of names and opponents")
        game = open_game(env, "env", kwargs)
        if not hasattr(game, "agent_iter"):
            from pettingzoo.utils.conversions import parallel_to_aec

            game = parallel_to_aec(game)
        self.game, self.seat, self.metadata = game, seat, game.metadata
        self.render_mode = getattr(game, "render_mode", None)
        whole, self.action_space = common_spaces(game)
        self.observation_space, mask = without_mask(whole)
        if seat is not None:
            require_one_of("seat", seat, game.possible_agents)
        self.opponents = {name: _as_player(name, player) for name, player in (opponents or {RANDOM: None}).items()}
        #: Further opponents by name, and how often each is drawn; empty: those above, equally often.
        self.snapshots: dict[str, ActorCriticPolicy] = {}
        self.chances: dict[str, float] = {}
        if mask is not None:
            setattr(self, METHOD, lambda: self._seen()[1])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self._begin(int(self.np_random.integers(2**31)) if seed is None else seed, options)
        obs, _, terminated, truncated, info = self._advance()
        # A game may be over before the learner's turn.
        return self.reset(options=options) if terminated or truncated else (obs, info)

    def step(self, action: Action) -> tuple[Any, float, bool, bool, Info]:
        self._act(action)
        obs, reward, terminated, truncated, info = self._advance()
        self._returned += reward
        if terminated or truncated:
            result = (np.sign(self._returned) + 1) / 2
            info = {**info, GAME: {"result": float(result), "opponents": [*self._seats.values()]}}
        return obs, reward, terminated, truncated, info

    def render(self) -> np.ndarray | None:
        return self.game.render()

    def close(self) -> None:
        self.game.close()

    def _begin(self, seed: int, options: dict[str, Any] | None) -> None:
        agents, chances = self.game.possible_agents, self.chances or dict.fromkeys(self.opponents, 1.0)
        self.learner = self.seat or agents[self.np_random.integers(len(agents))]
        names, weights = [*chances], np.array([*chances.values()])
        drawn = self.np_random.choice(len(names), len(agents), p=weights / weights.sum())
        self._start = {"seed": seed, "options": options}
        self.game.reset(**self._start)
        #: Who plays the other seats, what they remember, all actions so far, and the learner's return.
        self._seats = {agent: names[i] for agent, i in zip(agents, drawn, strict=True) if agent != self.learner}
        self._carries: dict[str, Carry] = {}
        self._actions: list[Action | None] = []
        self._returned = 0.0

    def _act(self, action: Action | None) -> None:
        self._actions.append(action)
        self.game.step(action)

    def _advance(self) -> tuple[Any, float, bool, bool, Info]:
        """Have opponents play until it is the learner's turn, or its game is over."""
        game = self.game
        while game.agents and (agent := game.agent_selection) != self.learner:
            self._act(None if game.terminations[agent] or game.truncations[agent] else self._reply(agent))
        if not game.agents:
            raise ValueError(f"{game} has removed {self.learner!r} without a last turn: give it one, as AEC asks")
        _, reward, terminated, truncated, info = game.last(observe=False)
        return self._seen()[0], float(reward), bool(terminated), bool(truncated), dict(info)

    def _seen(self) -> tuple[Any, np.ndarray | None]:
        """The observation and the action mask of whose turn it is."""
        obs, _, terminated, truncated, _ = self.game.last()
        if not isinstance(obs, Mapping) or MASK not in obs:
            return obs, None
        rest = {key: part for key, part in obs.items() if key != MASK}
        mask = np.asarray(obs[MASK]) if not (terminated or truncated) else np.ones_like(obs[MASK])
        return rest[OBSERVATION] if [*rest] == [OBSERVATION] else rest, mask

    def _reply(self, agent: str) -> Action:
        """The action of an opponent.

        :raises ValueError: it is not in the action space, or masked
        """
        name, (obs, mask), seed = self._seats[agent], self._seen(), int(self.np_random.integers(2**31))
        player = self.snapshots.get(name, self.opponents.get(name))
        space = self.action_space
        if player is None:
            space.seed(seed)
            # Gymnasium's masks are of this type.
            is_masked = mask is not None and isinstance(space, spaces.Discrete)
            return space.sample(mask.astype(np.int8)) if is_masked else space.sample()  # type: ignore[union-attr]
        try:
            action = self._chosen(player, agent, obs, mask, seed)
        except Exception as error:
            error.add_note(f"It was raised by the opponent {name!r}.")
            raise
        fits = space.contains(np.asarray(action, space.dtype) if isinstance(space, spaces.Box) else action)
        if fits and mask is not None and isinstance(space, spaces.Discrete):
            fits = bool(mask[action - space.start])
        if not fits:
            allowed = f"{space}, with the mask {mask}" if mask is not None else space
            raise ValueError(f"opponents: {name!r} has chosen {action!r:.80}: let it choose from {allowed}")
        return action  # type: ignore[no-any-return]

    def _chosen(self, player: Any, agent: str, obs: Any, mask: np.ndarray | None, seed: int) -> Any:
        if isinstance(player, ActorCriticPolicy):
            generator, masks = th.default_generator, None if mask is None else th.from_numpy(mask[None].astype(bool))
            before = generator.get_state()
            generator.manual_seed(seed)
            with th.no_grad():
                # A third of what `predict` takes.
                carry = self._carries.get(agent) or player.init_carry(1)
                output, self._carries[agent] = player.act(player.obs_to_tensor(obs)[0], carry, NO_START, masks)
            generator.set_state(before)
            return player.distribution.to_env(output.actions.numpy(force=True))[0]
        return player(obs, mask)

    def get_state(self) -> State:
        """The present game, for :mod:`ppo_plus.envs.resumable.state`."""
        carries = {agent: tuple(tree_map(th.Tensor.numpy, carry)) for agent, carry in self._carries.items()}
        parts = (self._start, self.learner, self._seats, carries, self._actions, self._returned, self._seen()[0])
        return {"game": plain(parts)}

    def set_state(self, state: State) -> None:
        """Play a game again to where it was."""
        self._start, self.learner, self._seats, carries, actions, self._returned, seen = state["game"]
        self._carries = {agent: Carry(*tree_map(th.tensor, carry)) for agent, carry in carries.items()}
        self._actions = []
        self.game.reset(**self._start)
        for action in actions:
            self._act(action)
        if differ(plain(self._seen()[0]), seen):
            raise NotResumableError(f"the same actions led {self.game} elsewhere: it depends on more than its seed")


def _as_player(name: str, player: object) -> Player:
    if isinstance(player, (str, Path)):
        player = PPO_Plus.load(player, device="cpu")
    player = getattr(player, "policy", player)
    if isinstance(player, ActorCriticPolicy):
        player.set_training_mode(False)
    elif player is not None and (not callable(player) or isinstance(player, th.nn.Module)):
        remedy = "pass a function of observation and mask, a model of PPO_Plus or its file, or None"
        raise TypeError(f"opponents: {name!r} is {player!r:.80}: {remedy}")
    return player  # type: ignore[no-any-return]


class League(BaseCallback):
    """Frozen snapshots of the learner as opponents in :class:`SelfPlay` environments, and their ratings.

    The learner plays random actions, the opponents of the environments, and its snapshots, the first of which is taken
    at the beginning. Ratings are Elo's, with 0 for random actions; a snapshot keeps the rating that the learner had.
    Checkpoints keep snapshots and ratings. Logged as ``league/…``: the learner's rating, the number of snapshots, and
    recent rates of winning (a draw is half) against random actions, the first snapshot and the latest.

    :param every: rollouts from one snapshot to the next, at least 1
    :param choose: ``"latest"`` snapshot; ``"uniform"``: any; ``"prioritized"``: more often those that win more often,
        with chances ∝ ``(1 - rate of winning) ** power`` (Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z)
    :param power: of that, at least 0
    :param share_random: share of the opponents that draw actions at random, which anchors ratings, in ``[0, 1]``
    :param path: file for :meth:`table` as CSV, written at each snapshot; ``None``: none
    :raises ValueError: an argument is out of range, or ``path`` is a folder; when training starts: not made of
        ``SelfPlay``, or normalized
    """

    def __init__(
        self,
        every: int = 10,
        choose: Literal["latest", "uniform", "prioritized"] = "prioritized",
        power: float = 1.0,
        share_random: float = 0.1,
        path: str | Path | None = None,
    ):
        super().__init__()
        require_int("every", every, 1)
        require_one_of("choose", choose, ("latest", "uniform", "prioritized"))
        require_number("power", power, 0)
        require_number("share_random", share_random, 0, 1)
        if path is not None and Path(path).is_dir():
            raise ValueError(f"path={str(path)!r} is a folder: name a file in it, such as {Path(path) / 'ratings.csv'}")
        self.every, self.choose, self.power, self.share_random = every, choose, power, share_random
        self.path = path
        self.rating, self.n_rollouts = 0.0, 0
        #: Of each opponent: timesteps of the snapshot, rating, games, and the learner's recent rate of winning.
        self.players: dict[str, dict[str, float]] = {}
        #: The weights of snapshots by name.
        self.weights: dict[str, dict[str, th.Tensor]] = {}

    def table(self) -> list[dict[str, str | float]]:
        """A row for each opponent: name, timesteps, rating, games, and the learner's rate of winning against it."""
        return [{"name": name, **player} for name, player in self.players.items()]

    def _on_training_start(self) -> None:
        env = self.training_env
        if not env.has_attr("snapshots"):
            raise ValueError(f"env={env!r} has no opponents for a League: make it of ppo_plus.SelfPlay")
        normalize = unwrap_vec_normalize(env)
        if normalize is not None and normalize.norm_obs:
            remedy = "pass normalize_observations=True to PPO_Plus and norm_obs=False to it"
            raise ValueError(f"opponents see observations that VecNormalize has not normalized: {remedy}")
        for name in (RANDOM, *env.get_attr("opponents", [0])[0]):
            self.players.setdefault(name, {"timesteps": 0, "rating": 0.0, "games": 0, "win_rate": 0.5})
        if self.weights:
            self._share()
        else:
            self._take()

    def _on_rollout_start(self) -> None:
        if self.n_rollouts == 0:
            # Training starts new games: those of its environments may be against others.
            self.model._last_obs = None
        elif self.n_rollouts % self.every == 0:
            self._take()
        self.n_rollouts += 1
        self.training_env.set_attr("chances", self.chances())

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if GAME in info:
                self._record(**info[GAME])
        return True

    def _on_rollout_end(self) -> None:
        first, latest = [*self.weights][0], [*self.weights][-1]
        self.logger.record("league/rating", self.rating)
        self.logger.record("league/snapshots", len(self.weights))
        for role, name in ((RANDOM, RANDOM), ("first", first), ("latest", latest)):
            self.logger.record(f"league/win_rate_{role}", self.players[name]["win_rate"])

    def chances(self) -> dict[str, float]:
        """How often each opponent is drawn."""
        names = [name for name in self.players if name != RANDOM]
        if self.choose == "latest":
            names = [*self.weights][-1:]
        power = self.power if self.choose == "prioritized" else 0.0
        weights = {name: (1.0 - self.players[name]["win_rate"] + 1e-3) ** power for name in names}
        shares = {name: weight / sum(weights.values()) * (1 - self.share_random) for name, weight in weights.items()}
        return {RANDOM: self.share_random, **shares}

    def _record(self, result: float, opponents: list[str]) -> None:
        """Count a game, unless it began against opponents of another league."""
        if not self.players.keys() >= {*opponents}:
            return
        met = [self.players[name] for name in opponents]
        expected = 1.0 / (1.0 + 10.0 ** ((np.mean([player["rating"] for player in met]) - self.rating) / 400.0))
        self.rating += K * (result - float(expected))
        for player in met:
            player["games"] += 1
            player["win_rate"] += STEP * (result - player["win_rate"])

    def _take(self) -> None:
        """Take a snapshot of the learner."""
        name = f"step_{self.num_timesteps}"
        self.weights[name] = {key: part.detach().cpu().clone() for key, part in self.model.policy.state_dict().items()}
        self.players[name] = {"timesteps": self.num_timesteps, "rating": self.rating, "games": 0, "win_rate": 0.5}
        self._share()
        if self.path is not None:
            lines = [",".join(self.table()[0]), *(",".join(map(str, row.values())) for row in self.table())]
            with replacing(self.path) as file:
                file.write("\n".join([*lines, ""]).encode())

    def _share(self) -> None:
        """Give the environments the snapshots."""
        snapshots, policy = {}, self.model.policy
        for name, weights in self.weights.items():
            # Without the optimizer.
            snapshot = copy.deepcopy(policy, {id(policy.optimizer): None}).to("cpu").requires_grad_(False)
            snapshot.load_state_dict(weights)
            snapshot.set_training_mode(False)
            snapshots[name] = snapshot
        self.training_env.set_attr("snapshots", snapshots)

    def get_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("rating", "n_rollouts", "players", "weights")}

    def set_state(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._share()
