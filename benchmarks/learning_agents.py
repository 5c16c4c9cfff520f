"""Many agents: returns on simple_spread, and self-play on Connect Four and tic-tac-toe.

    python benchmarks/learning_agents.py tictactoe --seed 0
    python benchmarks/learning_agents.py connect_four --seed 0
    python benchmarks/learning_agents.py spread --arm central_critic --seed 0

Each appends a line to ``benchmarks/results/agents.jsonl``. The arm ``supersuit`` needs SuperSuit.
"""

import argparse
import io
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch as th
from campaign import versions  # the modules beside this one
from gymnasium import spaces
from report.games import FILE
from report.results import append_line
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from ppo_plus import League, PPO_Plus, SelfPlay, make_agents, make_vec, policy_arguments
from ppo_plus.league import GAME

#: Opponents as functions of an observation and an action mask.
Move = Callable[[Any, Any], int]


class Board(BaseFeaturesExtractor):
    """What surrounds the square on which a piece would land, for each column of a board ``(rows, columns, 2)``; the
    same layers look at all of them."""

    AROUND, HIDDEN, FEATURES = 3, 128, 32

    def __init__(self, observation_space: spaces.Box):
        _, n_columns, n_players = observation_space.shape
        super().__init__(observation_space, n_columns * self.FEATURES)
        n_inputs = (n_players + 1) * (2 * self.AROUND + 1) ** 2
        layers = [nn.Linear(n_inputs, self.HIDDEN), nn.ReLU(), nn.Linear(self.HIDDEN, self.FEATURES), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Flatten())

    def forward(self, boards: th.Tensor) -> th.Tensor:
        around, width = self.AROUND, 2 * self.AROUND + 1
        # A third plane is 1 on the board, and 0 beyond it.
        squares = nn.functional.pad(boards, (0, 1), value=1.0)
        squares = nn.functional.pad(squares, (0, 0, around, around, around, around))
        patches = squares.unfold(1, width, 1).unfold(2, width, 1).flatten(3)
        row = (boards.shape[1] - 1 - boards.sum(dim=(1, 3)).long()).clamp(min=0)
        chosen = patches.gather(1, row[:, None, :, None].expand(-1, -1, -1, patches.shape[3]))
        return self.layers(chosen.squeeze(1))  # type: ignore[no-any-return]


class ConnectFour:
    """Connect Four as an AEC environment of PettingZoo, with the spaces and rewards of the one there.

    ``board[row, column, player]`` is 1 where a player has a piece; the lowest row is the last.
    """

    metadata = {"name": "connect_four"}
    possible_agents = ["player_0", "player_1"]
    N_ROWS, N_COLUMNS = 6, 7

    unwrapped = property(lambda self: self)

    def __str__(self) -> str:
        return self.metadata["name"]

    def observation_space(self, agent: str) -> spaces.Dict:
        board = spaces.Box(0, 1, (self.N_ROWS, self.N_COLUMNS, 2), np.int8)
        return spaces.Dict({"observation": board, "action_mask": spaces.Box(0, 1, (self.N_COLUMNS,), np.int8)})

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(self.N_COLUMNS)

    def agent_iter(self) -> None:
        """What says that it has turns."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents, self.agent_selection = [*self.possible_agents], self.possible_agents[0]
        self.board = np.zeros((self.N_ROWS, self.N_COLUMNS, 2), np.int8)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations, self.rewards = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, 0.0)

    def observe(self, agent: str) -> dict[str, np.ndarray]:
        first = self.possible_agents.index(agent)
        mask = (self.board[0].sum(axis=1) == 0).astype(np.int8)
        return {"observation": self.board[:, :, [first, 1 - first]], "action_mask": mask}

    def last(self, observe: bool = True) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        agent = self.agent_selection
        obs = self.observe(agent) if observe else None
        return obs, self.rewards[agent], self.terminations[agent], self.truncations[agent], {}

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        player = self.possible_agents.index(agent)
        other = self.possible_agents[1 - player]
        self.agent_selection = other
        if self.terminations[agent]:
            self.agents.remove(agent)
            return
        row = lowest_free(self.board, int(action))  # type: ignore[arg-type]
        self.board[row, action, player] = 1
        won = wins(self.board[:, :, player], row, int(action))  # type: ignore[arg-type]
        if won or self.board.sum() == self.N_ROWS * self.N_COLUMNS:
            self.terminations = dict.fromkeys(self.agents, True)
            self.rewards = {agent: float(won), other: -float(won)}

    def close(self) -> None:
        """Nothing is open."""


def lowest_free(board: np.ndarray, column: int) -> int:
    """The row in which a piece that is dropped into a column stays."""
    return len(board) - 1 - int(board[:, column].sum())


def wins(pieces: np.ndarray, row: int, column: int) -> bool:
    """Whether the piece at a place is one of four of its player in a line."""
    n_rows, n_columns = pieces.shape
    for step_row, step_column in ((0, 1), (1, 0), (1, 1), (1, -1)):
        n = 1
        for sign in (1, -1):
            r, c = row + sign * step_row, column + sign * step_column
            while 0 <= r < n_rows and 0 <= c < n_columns and pieces[r, c]:
                n, r, c = n + 1, r + sign * step_row, c + sign * step_column
        if n >= 4:
            return True
    return False


def lookahead(rng: np.random.Generator, obs: np.ndarray, mask: np.ndarray) -> int:
    """Win if you can, block if you must, and else any move."""
    columns = np.flatnonzero(mask).tolist()
    for player in (0, 1):
        for column in columns:
            row = lowest_free(obs, column)
            pieces = obs[:, :, player].copy()
            pieces[row, column] = 1
            if wins(pieces, row, column):
                return int(column)
    return int(rng.choice(columns))


def tictactoe() -> Any:
    """PettingZoo's, without the wrappers that check its use."""
    from pettingzoo.classic import tictactoe_v3

    return tictactoe_v3.raw_env()


def results(model: PPO_Plus, env: VecEnv, n_games: int) -> list[float]:
    """The results of games of a model that takes its most likely actions: 1 for a win, 0.5 for a draw, 0 for a loss."""
    found: list[float] = []
    obs = env.reset()
    while len(found) < n_games:
        masks = env.env_method("action_masks")
        actions, _ = model.predict(obs, deterministic=True, action_masks=masks)
        obs, _, _, infos = env.step(actions)
        found += [info[GAME]["result"] for info in infos if GAME in info]
    return found


#: Steps, share of random opponents, and arguments, by game.
SETTINGS: dict[str, tuple[int, float, dict[str, Any]]] = {
    "tictactoe": (
        300_000,
        0.4,
        {
            "n_steps": 64,
            "batch_size": 128,
            "learning_rate": "lin_1e-3",
            "ent_coef": "lin_0.1",
            "policy_kwargs": {"net_arch": [128, 128], "activation_fn": nn.ReLU},
        },
    ),
    "connect_four": (
        1_600_000,
        0.1,
        {
            "n_steps": 128,
            "batch_size": 128,
            "n_epochs": 8,
            "learning_rate": "lin_1e-3",
            "ent_coef": "lin_0.03",
            "policy_kwargs": {"features_extractor_class": Board, "net_arch": [128], "activation_fn": nn.ReLU},
        },
    ),
}


def play_itself(task: str, opponents: dict[str, Move | None], seed: int, n_games: int) -> dict[str, Any]:
    """Train by self-play, and play against ``opponents`` from both seats."""
    game: Any = {"tictactoe": tictactoe, "connect_four": ConnectFour}[task]
    timesteps, share_random, arguments = SETTINGS[task]
    league = League(every=10, share_random=share_random)
    env = make_vec(partial(SelfPlay, game), 16, seed)
    model = PPO_Plus("MlpPolicy", env, seed=seed, device="cpu", **arguments)
    start = time.process_time()
    model.learn(timesteps, league)
    seconds = time.process_time() - start
    scores: dict[str, dict[str, list[float]]] = {}
    for name, opponent in opponents.items():
        scores[name] = {"won": [], "lost": []}
        for seat in env.get_attr("game", [0])[0].possible_agents:
            found = results(model, make_vec(partial(SelfPlay, game, {name: opponent}, seat), 8, 10**6 + seed), n_games)
            scores[name]["won"].append(float(np.mean(np.equal(found, 1))))
            scores[name]["lost"].append(float(np.mean(np.equal(found, 0))))
    ratings = [(int(player["timesteps"]), round(float(player["rating"]))) for player in league.table()]
    return {"timesteps": model.num_timesteps, "cpu_seconds": seconds, "scores": scores, "ratings": ratings}


def supersuit_rows(n_envs: int) -> VecEnv:
    """simple_spread as SB3's users make it."""
    import supersuit
    from mpe2 import simple_spread_v3

    env = supersuit.pettingzoo_env_to_vec_env_v1(simple_spread_v3.parallel_env())
    return supersuit.concat_vec_envs_v1(env, n_envs, num_cpus=1, base_class="stable_baselines3")  # type: ignore[no-any-return]


def spread(arm: str, seed: int, timesteps: int = 100_000, n_envs: int = 8) -> dict[str, Any]:
    """The return of an agent of simple_spread in 200 episodes after training."""
    arguments: dict[str, Any] = {
        "n_steps": 32,
        "batch_size": 256,
        "n_epochs": 10,
        "ent_coef": 0.01,
        "seed": seed,
        "device": "cpu",
    }
    evaluated = make_agents("mpe2.simple_spread_v3", 4, 10**6 + seed, state=arm == "central_critic")
    start = time.process_time()
    if arm == "supersuit":
        # Its environments cannot be seeded by SB3.
        set_random_seed(seed)
        model: Any = PPO("MlpPolicy", supersuit_rows(n_envs), **arguments | {"seed": None}).learn(timesteps)
        file = io.BytesIO()
        model.save(file)
        player = PPO_Plus.from_sb3(file)
    else:
        env = make_agents("mpe2.simple_spread_v3", n_envs, seed, state=arm == "central_critic")
        player = model = PPO_Plus(env=env, **policy_arguments(env), **arguments).learn(timesteps)
    seconds = time.process_time() - start
    return {"timesteps": model.num_timesteps, "cpu_seconds": seconds, "return": player.evaluate(600, evaluated)[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["connect_four", "tictactoe", "spread"])
    parser.add_argument("--arm", choices=["shared", "central_critic", "supersuit"], default="shared")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    th.set_num_threads(1)
    if args.task == "connect_four":
        blocks = partial(lookahead, np.random.default_rng(args.seed))
        found = play_itself(args.task, {"random": None, "lookahead": blocks}, args.seed, 500)
    elif args.task == "tictactoe":
        found = play_itself(args.task, {"random": None}, args.seed, 1000)
    else:
        found = spread(args.arm, args.seed)
    run = {"task": args.task, "arm": args.arm, "seed": args.seed, **found, "versions": versions("pettingzoo", "mpe2")}
    append_line(FILE, run)
    print(run, flush=True)


if __name__ == "__main__":
    main()
