"""Self-play: the learner's seat, its opponents, and the league of snapshots."""

import csv
import re
import traceback

import numpy as np
import pytest
import torch as th
from games import Crowd
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecNormalize

from ppo_plus import Checkpoints, League, PPO_Plus, SelfPlay, make_vec

pytest.importorskip("pettingzoo")
TICTACTOE = "pettingzoo.classic.tictactoe_v3"
ARGUMENTS = {"n_steps": 16, "n_epochs": 1, "batch_size": 32, "device": "cpu", "seed": 0}


def games(n=4, **options):
    return make_vec(lambda: SelfPlay(TICTACTOE, **options), n, seed=0)


def first_free(obs, mask):
    return int(np.flatnonzero(mask)[0])


def test_a_game_seen_from_both_seats():
    """The board is the learner's, rewards come with its last turn, and illegal moves are masked."""
    for seat, n_taken in (("player_1", 0), ("player_2", 1)):
        env = SelfPlay(TICTACTOE, {"first": first_free}, seat=seat)
        obs, _ = env.reset(seed=0)
        assert obs.shape == (3, 3, 2) and (obs[..., 0].sum(), obs[..., 1].sum()) == (0, n_taken)
        total, done, n = 0.0, False, 0
        while not done:
            assert env.action_masks().sum() == 9 - 2 * n - n_taken
            obs, reward, done, truncated, info = env.step(np.flatnonzero(env.action_masks())[-1])
            total, n = total + reward, n + 1
            assert not truncated and (done or reward == 0.0)
        assert info["game"] == {"result": (np.sign(total) + 1) / 2, "opponents": ["first"]}
        assert obs.shape == (3, 3, 2)  # the learner's, though the other may have moved last


def test_the_seat_and_the_opponents_are_drawn_at_each_reset():
    env = SelfPlay(TICTACTOE, {"first": first_free, "random": None})
    env.reset(seed=0)
    drawn = set()
    for _ in range(30):
        env.reset()
        drawn.add((env.learner, *env._seats.values()))
    assert drawn == {(seat, name) for seat in ("player_1", "player_2") for name in ("first", "random")}


def test_opponents_draw_no_numbers_of_training():
    model = PPO_Plus("MlpLstmPolicy", games(), **ARGUMENTS)
    env = SelfPlay(TICTACTOE, {"model": model})
    before = th.get_rng_state(), np.random.get_state()[1]
    runs = []
    for _ in range(2):
        env.reset(seed=3)
        seen = []
        for _ in range(3):
            obs, *_, info = env.step(np.flatnonzero(env.action_masks())[0])
            seen.append(obs)
            if "game" in info:
                break
        runs.append(np.concatenate(seen))
        assert th.equal(th.get_rng_state(), before[0])
        th.rand(1)
        before = th.get_rng_state(), before[1]
    np.testing.assert_array_equal(*runs)
    assert np.array_equal(before[1], np.random.get_state()[1])


def test_rewards_between_two_turns_are_added_up():
    """A parallel game in turns: the reward of a step comes with the next turn of the learner."""
    env = SelfPlay(lambda: Crowd(0.1, 0.0, names=("red_0", "red_1")), seat="red_0")
    for seed in range(20):
        env.reset(seed=seed)
        done, total, n = False, 0.0, 0
        while not done:
            _, reward, terminated, truncated, info = env.step(1)
            done, total, n = terminated or truncated, total + reward, n + 1
        (game,) = env.game.unwrapped.log["red_0"][-1:]
        assert total == pytest.approx(sum(step[2] for step in game[:-1])) and n == len(game) - 1
        assert terminated == game[-1][1] and info["game"]["result"] == float(total > 0)


def test_snapshots_are_copies_and_become_opponents(tmp_path):
    league = League(every=2, path=tmp_path / "table.csv")
    env = games(opponents={"first": first_free})
    model = PPO_Plus("MlpPolicy", env, **ARGUMENTS).learn(64 * 5, league)
    assert [*league.weights] == ["step_0", "step_128", "step_256"]
    shared = env.get_attr("snapshots")[0]
    for name, weights in league.weights.items():
        for key, own in model.policy.state_dict().items():
            assert th.equal(weights[key], shared[name].state_dict()[key])
            assert weights[key].data_ptr() != own.data_ptr() != shared[name].state_dict()[key].data_ptr()
    assert not th.equal(league.weights["step_0"]["action_net.weight"], model.policy.action_net.weight)
    with open(tmp_path / "table.csv", encoding="utf-8") as file:
        assert [row["name"] for row in csv.DictReader(file)] == [*("random", "first", "step_0", "step_128", "step_256")]
    assert sum(row["games"] for row in league.table()) > 10
    assert sum(league.chances().values()) == pytest.approx(1.0) and league.chances()["random"] == 0.1


@pytest.mark.parametrize(
    ("choose", "chances"),
    [("latest", [0, 0, 0.9]), ("uniform", [0.3, 0.3, 0.3]), ("prioritized", [0.0, 0.3, 0.6])],
)
def test_who_is_drawn(choose, chances):
    league = League(choose=choose)
    rates = {"random": 0.9, "a": 1.0, "b": 2 / 3, "c": 1 / 3}
    league.players = {name: {"win_rate": rate} for name, rate in rates.items()}
    league.weights = {"a": {}, "b": {}, "c": {}}
    found = league.chances()
    assert [found.get(name, 0) for name in "abc"] == pytest.approx(chances, abs=2e-3) and found["random"] == 0.1


def test_ratings_are_elos():
    league = League()
    league.players = {"a": {"rating": 400.0, "games": 0, "win_rate": 0.5}}
    league._record(1.0, ["a"])
    assert league.rating == pytest.approx(16 * 10 / 11) and league.players["a"]["win_rate"] == 0.525
    league._record(0.0, ["a"])
    assert league.rating < 16 * 10 / 11 and league.players["a"] == {"rating": 400.0, "games": 2, "win_rate": 0.49875}


def test_a_new_league_begins_with_new_games():
    env = games()
    PPO_Plus("MlpGruPolicy", env, **ARGUMENTS).learn(256, League(every=1))
    model = PPO_Plus("MlpPolicy", env, **ARGUMENTS)
    first, second = League(every=1), League(every=1)
    for league in (first, second, first):
        before = sum(row["games"] for row in league.table())
        model.ep_info_buffer = None
        model.learn(128, league, reset_num_timesteps=False)
        assert {*env.get_attr("snapshots")[0]} == {*league.weights}
        n_games = sum(row["games"] for row in league.table()) - before
        # A league that comes back does not count the games that began against others.
        assert (n_games == len(model.ep_info_buffer)) == (before == 0)
    assert [*first.weights] == ["step_0", "step_64", "step_256", "step_320"]
    assert [*second.weights] == ["step_128", "step_192"]


@pytest.mark.parametrize(
    ("choose", "error", "message"),
    [
        (lambda obs, mask: None, ValueError, r"opponents: 'x' has chosen None: .* from Discrete\(9\)"),
        (lambda obs, mask: 9, ValueError, r"opponents: 'x' has chosen 9: .* from Discrete\(9\)"),
        (lambda obs, mask: int(mask.argmin()), ValueError, r"'x' has chosen 0: .*, with the mask \[0 1"),
        (lambda obs, mask: mask[99], IndexError, "raised by the opponent 'x'"),
    ],
)
def test_opponents_that_fail_or_break_rules_are_named(choose, error, message):
    env = SelfPlay(TICTACTOE, {"x": choose}, seat="player_1")
    env.reset(seed=0)
    with pytest.raises(error) as found:
        env.step(0)
    assert re.search(message, "".join(traceback.format_exception_only(found.value)))


@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpGruPolicy"])
@pytest.mark.parametrize("vec_env", ["dummy", "subproc"])
def test_a_league_resumes_exactly(policy, vec_env, tmp_path):
    def make():
        return make_vec(SelfPlay, 3, 0, {"env": TICTACTOE}, vec_env=vec_env)

    total = 48 * 7
    whole = League(every=2)
    trained = PPO_Plus(policy, make(), **ARGUMENTS).learn(total, [whole, Checkpoints(tmp_path, 48, keep=9)])
    again = League(every=2)
    resumed = PPO_Plus.resume(sorted(tmp_path.glob("*.zip"))[5], make(), device="cpu")
    resumed.learn(total, [again, Checkpoints(tmp_path / "again")])
    assert whole.table() == again.table() and whole.rating == again.rating
    for one, other in zip(trained.policy.parameters(), resumed.policy.parameters(), strict=True):
        assert th.equal(one, other)
    for env in (trained.env, resumed.env):
        env.close()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: League(every=0), ValueError, "every=0 must be at least 1"),
        (lambda: League(choose="best"), ValueError, "choose='best' must be one of 'latest', 'uniform'"),
        (lambda: League(share_random=2), ValueError, r"share_random=2 must be a number in \[0, 1\]"),
        (lambda: SelfPlay(TICTACTOE, seat="x"), ValueError, "seat='x' must be one of 'player_1', 'player_2'"),
        (lambda: SelfPlay(TICTACTOE, {"a": 3}), TypeError, "opponents: 'a' is 3: pass a function"),
        (lambda: SelfPlay(TICTACTOE, {"a": PPO("MlpPolicy", "CartPole-v1")}), TypeError, "opponents: 'a' is ActorCr"),
        (lambda: SelfPlay(TICTACTOE, "random"), TypeError, "opponents='random' must be a dict of names and opponents"),
        (lambda: League(path="."), ValueError, "path='.' is a folder: name a file in it, such as ratings.csv"),
        (lambda: SelfPlay("math"), TypeError, "env='math' has no env: use ppo_plus.SelfPlay for games with turns"),
        (lambda: PPO_Plus("MlpPolicy", "CartPole-v1").learn(1, League()), ValueError, "no opponents for a League"),
        (
            lambda: PPO_Plus("MlpPolicy", VecNormalize(games()), n_steps=8).learn(1, League()),
            ValueError,
            "VecNormalize has not normalized: pass normalize_observations=True",
        ),
    ],
)
def test_mistakes_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_games_of_several_players_and_other_spaces():
    class Numbers(Crowd):
        def action_space(self, agent):
            return spaces.Box(-1, 1, (2,))

        def step(self, actions):
            return super().step({agent: float(action[0]) for agent, action in actions.items()})

    env = make_vec(lambda: SelfPlay(lambda: Numbers(back=0.0)), 2, seed=0)
    league = League(every=1)
    PPO_Plus("MlpPolicy", env, use_sde=True, **ARGUMENTS).learn(96, league)
    assert sum(row["games"] for row in league.table()) > 4
