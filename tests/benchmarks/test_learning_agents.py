"""Connect Four, its one-move lookahead, and the tables of games and teams."""

import json

import numpy as np
from learning_agents import ConnectFour, lookahead
from report import games

from ppo_plus import SelfPlay
from ppo_plus.league import GAME


def test_four_in_a_line_win_and_full_columns_are_masked():
    for moves in ([0, 1] * 3, [0, 0, 1, 1, 2, 2], [0, 1, 1, 2, 3, 2, 2, 3, 6, 3]):
        game = ConnectFour()
        game.reset()
        for move in moves:
            game.step(move)
        assert not any(game.terminations.values())
        player, action = game.agent_selection, lookahead(np.random.default_rng(0), *game.last()[0].values())
        game.step(action)
        assert game.rewards[player] == 1.0 and all(game.terminations.values())
    game.reset()
    for _ in range(6):
        game.step(3)
    assert game.last()[0]["action_mask"].tolist() == [1, 1, 1, 0, 1, 1, 1]


def test_lookahead_blocks_and_beats_random_moves():
    game = ConnectFour()
    game.reset()
    for move in (0, 6, 0, 6, 0):
        game.step(move)
    rng = np.random.default_rng(0)
    assert lookahead(rng, *game.last()[0].values()) == 0
    env = SelfPlay(ConnectFour)
    results = []
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        over = False
        while not over:
            obs, _, over, _, info = env.step(lookahead(rng, obs, env.action_masks()))
        results.append(info[GAME]["result"])
    assert np.mean(results) > 0.8


def test_tables(tmp_path):
    file = tmp_path / "agents.jsonl"
    ratings = [[step, 10 * step] for step in (0, 1, 2, 3, 4)]
    same = {"task": "tictactoe", "timesteps": 9, "cpu_seconds": 60, "ratings": ratings}
    runs = [same | {"scores": {"random": {"won": [won, 1], "lost": [0, 0]}}} for won in (0.9, 1.0)]
    runs += [{"task": "spread", "arm": "shared", "timesteps": 9, "cpu_seconds": 1, "return": r} for r in (-20, -22)]
    file.write_text("".join(json.dumps(run) + "\n" for run in runs))
    assert games.self_play(file)[2:] == [
        "| tic-tac-toe | 9 | 1 | 2 | random | 95.0 / 100.0 | 0.0 / 0.0 | 10, 20, 30, 40 |"
    ]
    assert games.spread(file)[2:] == ["| `PPO_Plus` | 9 | 2 | -21.0 [-22.0, -20.0] | 1.0 [1.0, 1.0] |"]
