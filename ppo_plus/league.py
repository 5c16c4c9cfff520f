"""Self-play: games against other policies, and a league of frozen ones to play against."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import unwrap_vec_normalize

from ppo_plus.envs.agents import Action, Game, GameEnv, without_mask
from ppo_plus.envs.checks import Info, as_reward
from ppo_plus.envs.normalization import warn_of_statistics
from ppo_plus.envs.resumable.attributes import NotResumableError, State, differ, plain
from ppo_plus.envs.tensors.vec_env import ObservationLayout
from ppo_plus.policy.arguments import frozen
from ppo_plus.policy.masking import METHOD
from ppo_plus.policy.policies import ActorCriticPolicy, Carry
from ppo_plus.ppo import PPO_Plus
from ppo_plus.require import require_int, require_number, require_one_of, same_space
from ppo_plus.saving.checkpoint.process_state import generators_kept
from ppo_plus.trees import tree_map

#: The player that draws its actions at random, whose rating is 0.
RANDOM = "random"
#: The key of an info with what a game was.
GAME = "SelfPlay.game"
#: How much a game changes a rating, at most, and an estimate of a rate of winning.
K, STEP = 16.0, 0.05


class SelfPlay(GameEnv):
    """A game of PettingZoo in which the learner has one seat, drawn at each reset, and opponents have the others::

        env = make_vec(lambda: SelfPlay("pettingzoo.classic.tictactoe_v3"), n_envs=16, seed=0)
        PPO_Plus("MlpPolicy", env).learn(200_000, League())

    A step lasts until the learner's next turn: rewards until then are added up, and the last observation is that of the
    learner. Of observations ``{"observation": ..., "action_mask": ...}`` it sees the first entry, and masks are used.
    The info of a game's last step has ``"SelfPlay.game"``: the result (1: the learner's return was above 0, 0.5: it was
    0, or 0) and the names of its opponents. Opponents sample their actions, and change no random numbers but those of
    ``np_random``.

    :param env: a turn-based or parallel environment, a function that makes one, or the name of a module with ``env``
    :param opponents: who plays the other seats, each drawn for each game, by name: a function of an observation and an
        action mask that returns an action, a model or its file, or ``None``, random actions, which is the default
    :param seat: the learner's seat, one of the possible agents; ``None``: drawn at each reset
    :param kwargs: arguments of the function that makes the game
    :raises ValueError: the spaces of agents differ
    :raises TypeError: ``env`` or an opponent is something else
    """

    def __init__(
        self, env: Game, opponents: Mapping[str, Any] | None = None, seat: str | int | None = None, **kwargs: object
    ):
        super().__init__(env, "env", kwargs)
        if not isinstance(opponents or {}, Mapping):
            raise TypeError(f"opponents={opponents!r:.80} must be a dict of names and players")
        if (opponents or {}).get(RANDOM) is not None:
            raise ValueError(f"opponents: {RANDOM!r} draws its actions at random: give that player another name")
        if seat is not None:
            require_one_of("seat", seat, self.game.possible_agents)
        self.seat, (self.observation_space, mask) = seat, without_mask(self.observation_space)
        self.opponents = {name: _as_player(name, player) for name, player in (opponents or {RANDOM: None}).items()}
        self.opponent_names = [*self.opponents]  # functions cannot be sent from processes
        #: Further opponents by name, and how often each is drawn; empty: those above, equally often.
        self.snapshots: dict[str, ActorCriticPolicy] = {}
        self.chances: dict[str, float] = {}
        for name, player in self.opponents.items():
            if isinstance(player, ActorCriticPolicy):
                # As training sees them: a tuple as a dict, images with their channels first.
                seen = ObservationLayout(self.observation_space).space
                for kind, own in (("observation_space", seen), ("action_space", self.action_space)):
                    if not same_space(own, other := getattr(player, kind)):
                        raise ValueError(f"opponents: {name!r} has {kind}={other}, and the game {own}: let it learn it")
        if mask is not None:
            # Not a function, of which copies would have the masks of the original.
            setattr(self, METHOD, self._present_mask)

    def _present_mask(self) -> np.ndarray | None:
        return self._mask

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self._start = {"seed": int(self.np_random.integers(2**31)) if seed is None else seed, "options": options}
        self.game.reset(**self._start)
        # Not all possible agents need to be there.
        present = self.game.agents
        self.learner = present[self.np_random.integers(len(present))] if self.seat is None else self.seat
        #: Who plays the other seats, what they remember, all actions so far, and the learner's return.
        self._seats: dict[str, str] = {}
        self._carries: dict[str, Carry] = {}
        self._actions: list[Action | None] = []
        # Rewards before the learner's first turn count in the result.
        obs, self._returned, terminated, truncated, info = self._advance()
        # A game may be over before the learner's turn.
        return self.reset(options=options) if terminated or truncated else (obs, info)

    def step(self, action: Action) -> tuple[Any, float, bool, bool, Info]:
        self._actions.append(action)
        self.game.step(action)
        obs, reward, terminated, truncated, info = self._advance()
        self._returned += reward
        if terminated or truncated:
            info[GAME] = {"result": float(np.sign(self._returned) + 1) / 2, "opponents": [*self._seats.values()]}
        return obs, reward, terminated, truncated, info

    def _advance(self) -> tuple[Any, float, bool, bool, Info]:
        """Have opponents play until it is the learner's turn, or its game is over."""
        game = self.game
        while game.agents and (agent := game.agent_selection) != self.learner:
            if over := game.terminations[agent] or game.truncations[agent]:
                self._carries.pop(agent, None)
            self._actions.append(None if over else self._reply(agent))
            game.step(self._actions[-1])
        if not game.agents:
            raise ValueError(f"{game} has removed {self.learner!r} without a last turn: give it one, as AEC asks")
        return self._look()

    def _look(self) -> tuple[Any, float, bool, bool, Info]:
        """What the next agent sees, and the results of its last action."""
        obs, reward, terminated, truncated, info = self.game.last()
        self._obs, mask = without_mask(obs)
        self._mask = None if mask is None else np.asarray(mask)
        return self._obs, as_reward(reward), bool(terminated), bool(truncated), dict(info)

    def _reply(self, agent: str) -> Any:
        """The action of an opponent.

        :raises ValueError: it is not in the action space, or masked
        """
        if agent not in self._seats:
            chances = self.chances or dict.fromkeys(self.opponents, 1 / len(self.opponents))
            self._seats[agent] = str(self.np_random.choice([*chances], p=[*chances.values()]))
        name, seed = self._seats[agent], int(self.np_random.integers(2**31))
        (obs, *_), mask = self._look(), self._mask
        player, space = self.snapshots.get(name, self.opponents.get(name)), cast(Any, self.action_space)
        if isinstance(player, ActorCriticPolicy):
            masks = None if mask is None else th.from_numpy(mask[None].astype(bool))
            with th.random.fork_rng([]), th.inference_mode():
                th.default_generator.manual_seed(seed)
                # A third of what `predict` takes.
                carry = self._carries.get(agent) or player.init_carry(1)
                output, self._carries[agent] = player.act(player.obs_to_tensor(obs)[0], carry, masks=masks)
            return player.distribution.to_env(output.actions.numpy())[0]
        by_choice = [] if mask is None else np.split(mask, np.cumsum(np.ravel(getattr(space, "nvec", mask.size)))[:-1])
        if player is not None:
            chosen = player(obs, mask)
            fits = space.contains(np.asarray(chosen, space.dtype) if isinstance(space, spaces.Box) else chosen)
            if fits and by_choice:
                fits = all(part[i] for part, i in zip(by_choice, np.ravel(chosen - space.start), strict=True))
            if not fits:
                allowed = f"{space}, with the mask {mask}" if mask is not None else space
                raise ValueError(f"opponents: {name!r} has chosen {chosen!r:.80}: let it choose from {allowed}")
            return chosen
        if by_choice:
            chosen = [self.np_random.choice(np.flatnonzero(part)) for part in by_choice]
            return (np.reshape(chosen, space.shape) + space.start).astype(space.dtype)[()]
        space.seed(seed)
        return space.sample()

    def set_of_game(self, name: str, value: object) -> None:
        """Set an attribute of this environment, not of a wrapper."""
        setattr(self, name, value)

    def get_state(self) -> State:
        """The present game, for :mod:`ppo_plus.envs.resumable.state`."""
        carries = {agent: tuple(tree_map(th.Tensor.numpy, carry)) for agent, carry in self._carries.items()}
        parts = (self._start, self.learner, self._seats, carries, self._actions, self._returned, self._obs)
        return {"game": plain(parts)}

    def set_state(self, state: State) -> None:
        """Play a game again to where it was."""
        self._start, self.learner, self._seats, carries, self._actions, self._returned, seen = state["game"]
        self._carries = {agent: Carry(*tree_map(th.tensor, carry)) for agent, carry in carries.items()}
        self.game.reset(**self._start)
        for action in self._actions:
            self.game.step(action)
        if differ(plain(self._look()[0]), seen):
            raise NotResumableError(f"the same actions led {self.game} elsewhere: it depends on more than its seed")


def _as_player(name: str, player: Any) -> Any:
    """What plays a seat: a frozen policy, a function, or ``None``, which draws actions at random."""
    if isinstance(player, (str, Path)):
        with generators_kept():
            player = PPO_Plus.load(player, device="cpu")
    warn_of_statistics(getattr(player, "_trained_normalized", None), None)
    player = getattr(player, "policy", player)
    if isinstance(player, ActorCriticPolicy):
        return frozen(player)
    if player is not None and (not callable(player) or isinstance(player, th.nn.Module)):
        remedy = "pass a function of observation and mask, a model of PPO_Plus or its file, or None"
        raise TypeError(f"opponents: {name!r} is {player!r:.80}: {remedy}")
    return player


class League(BaseCallback):
    """Frozen snapshots of the learner as opponents in :class:`SelfPlay` environments, and their ratings.

    The learner plays random actions, the opponents of the environments, and its snapshots, the first of which is taken
    at the beginning. Ratings are Elo's, with 0 for random actions; a snapshot keeps the learner's rating at that time,
    with which opponents of the environments begin. Checkpoints keep snapshots and ratings. Logged as ``league/…``: the
    learner's rating, the number of snapshots, and recent rates of winning (a draw is half) against random actions, the
    first snapshot and the latest.

    :param every: rollouts from one snapshot to the next, at least 1
    :param choose: ``"latest"`` snapshot; ``"uniform"``: any; ``"prioritized"``: more often those that win more often,
        with chances ∝ ``1 - rate of winning`` (Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z)
    :param share_random: share of the opponents that draw actions at random, which anchors ratings, in ``[0, 1]``
    :raises ValueError: an argument is out of its range; when training starts: ``VecNormalize`` normalizes observations
    :raises TypeError: when training starts: the policy overrides SB3's methods
    :raises AttributeError: when training starts: the environments are not ``SelfPlay``
    """

    #: Each process has its own games, and tells them the opponents.
    in_all_processes = True

    def __init__(
        self,
        every: int = 10,
        choose: Literal["latest", "uniform", "prioritized"] = "prioritized",
        share_random: float = 0.1,
    ):
        super().__init__()
        require_int("every", every, 1)
        require_number("share_random", share_random, 0, 1)
        require_one_of("choose", choose, ("latest", "uniform", "prioritized"))
        self.every, self.choose, self.share_random = every, choose, share_random
        self.rating, self.n_rollouts = 0.0, 0
        #: Of each opponent: timesteps of the snapshot, rating, games, and the learner's recent rate of winning.
        self.players: dict[str, dict[str, float]] = {}
        self.snapshots: dict[str, ActorCriticPolicy] = {}

    def table(self) -> list[dict[str, str | float]]:
        """A row for each opponent: name, timesteps, rating, games, and the learner's rate of winning against it."""
        return [{"name": name, **player} for name, player in self.players.items()]

    def _on_training_start(self) -> None:
        normalize = unwrap_vec_normalize(self.training_env)
        if normalize is not None and normalize.norm_obs:
            remedy = "pass normalize_observations=True to PPO_Plus and norm_obs=False to it"
            raise ValueError(f"opponents see observations that VecNormalize has not normalized: {remedy}")
        if not self.training_env.has_attr("opponents"):
            raise AttributeError("a League needs SelfPlay games: make_vec(lambda: SelfPlay(game)), or selfplay:game")
        if not isinstance(self.model.policy, ActorCriticPolicy):
            remedy = "derive it from ppo_plus.ActorCriticPolicy"
            raise TypeError(f"a League cannot play against a policy that overrides SB3's methods: {remedy}")
        for name in (RANDOM, *self.training_env.get_attr("opponent_names", [0])[0]):
            self._add(name)
        self._tell("snapshots", self.snapshots)

    def _on_rollout_start(self) -> None:
        if self.n_rollouts % self.every == 0:
            name = f"step_{self.num_timesteps}"
            name += f"_{len(self.players)}" if name in self.players else ""  # after another call of learn
            self.snapshots[name] = frozen(self.model.policy)  # type: ignore[assignment]
            self._add(name)
            self._tell("snapshots", self.snapshots)
        self.n_rollouts += 1
        self._tell("chances", self.chances())

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if GAME in info:
                self._record(**info[GAME])
        return True

    def _on_rollout_end(self) -> None:
        self.logger.record("league/rating", self.rating)
        self.logger.record("league/snapshots", len(self.snapshots))
        names = [*self.snapshots]
        for role, name in ((RANDOM, RANDOM), ("first", names[0]), ("latest", names[-1])):
            self.logger.record(f"league/win_rate_{role}", self.players[name]["win_rate"])

    def chances(self) -> dict[str, float]:
        """How often each opponent is drawn."""
        names = [*self.snapshots][-1:] if self.choose == "latest" else [name for name in self.players if name != RANDOM]
        lost = {name: 1.001 - self.players[name]["win_rate"] for name in names}
        weights = lost if self.choose == "prioritized" else dict.fromkeys(names, 1.0)
        shares = {name: weight / sum(weights.values()) * (1 - self.share_random) for name, weight in weights.items()}
        return {RANDOM: self.share_random, **shares}

    def _add(self, name: str) -> None:
        new = {"timesteps": self.num_timesteps, "rating": self.rating, "games": 0, "win_rate": 0.5}
        self.players.setdefault(name, new)

    def _record(self, result: float, opponents: list[str]) -> None:
        """Count a game, unless it began against opponents of another league."""
        met = [self.players[name] for name in opponents if name in self.players]
        if not met or len(met) < len(opponents):
            return
        expected = 1.0 / (1.0 + 10.0 ** ((np.mean([player["rating"] for player in met]) - self.rating) / 400.0))
        change = K * (result - float(expected))
        self.rating += change
        for name, player in zip(opponents, met, strict=True):
            # The first rating of the environments' opponents is a guess; those of the others are known.
            player["rating"] -= 0.0 if name in {RANDOM, *self.snapshots} else change / len(met)
            player["games"] += 1
            player["win_rate"] += STEP * (result - player["win_rate"])

    def _tell(self, name: str, value: object) -> None:
        """Set an attribute of the games, also of those in processes that are started again (``set_attr``), and within
        wrappers, of which SB3's ``set_attr`` sets the outermost."""
        self.training_env.set_attr(name, value)
        self.training_env.env_method("set_of_game", name, value)

    def get_state(self) -> dict[str, Any]:
        weights = {name: {**snapshot.state_dict()} for name, snapshot in self.snapshots.items()}
        return {"rating": self.rating, "n_rollouts": self.n_rollouts, "players": self.players, "weights": weights}

    def set_state(self, state: dict[str, Any]) -> None:
        self.rating, self.n_rollouts, self.players = state["rating"], state["n_rollouts"], state["players"]
        self.snapshots = {name: frozen(self.model.policy) for name in state["weights"]}  # type: ignore[misc]
        for name, weights in state["weights"].items():
            self.snapshots[name].load_state_dict(weights)
        self._tell("snapshots", self.snapshots)
