"""Self-play: the learner's seat, its opponents, and the league of snapshots."""

import copy

import numpy as np
import pytest
import torch as th
from games import Crowd
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from parametrization import SLOW, part
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from ppo_plus import Checkpoints, League, PPO_Plus, SelfPlay, make_vec
from ppo_plus.league import GAME

pytest.importorskip("pettingzoo")
TICTACTOE = "pettingzoo.classic.tictactoe_v3"
ARGUMENTS = {"n_steps": 16, "n_epochs": 1, "batch_size": 32, "device": "cpu", "seed": 0}


def games(n=4, **options):
    return make_vec(lambda: SelfPlay(TICTACTOE, **options), n, seed=0)


def games_of(game):
    return make_vec(lambda: SelfPlay(game), 2)


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
        assert info[GAME] == {"result": (np.sign(total) + 1) / 2, "opponents": ["first"]}
        assert obs.shape == (3, 3, 2)  # the learner's, though the other may have moved last


def test_those_who_are_not_there_neither_learn_nor_count():
    env = SelfPlay(lambda: Crowd(0.0, 0.0, first=0.4))
    seats = set()
    for seed in range(30):
        env.reset(seed=seed)
        there, done = [*env.game.agents], False
        assert env.learner in there
        seats.add(env.learner)
        while not done:
            *_, done, info = env.step(0)
        assert info[GAME]["opponents"] == ["random"] * (len(there) - 1)
    assert len(seats) == 3


def test_a_seat_may_be_a_number():
    env = SelfPlay(lambda: Crowd(0.2, 0.0, names=(0, 1, 2)), seat=0)
    assert {env.reset(seed=seed) and env.learner for seed in range(9)} == {0}


def test_a_model_that_learns_is_a_frozen_opponent():
    model = PPO_Plus("MlpPolicy", games(), **ARGUMENTS)
    env = SelfPlay(TICTACTOE, {"itself": model})
    before = [weight.clone() for weight in model.policy.parameters()]
    model.learn(64)
    assert not th.equal(before[0], [*model.policy.parameters()][0])
    for one, other in zip(before, env.opponents["itself"].parameters(), strict=True):
        assert th.equal(one, other) and not other.requires_grad


def test_copies_have_masks_of_their_own():
    twin = copy.deepcopy(PPO_Plus("MlpPolicy", games(), **ARGUMENTS)).learn(64)
    for env in twin.env.unwrapped.envs:
        np.testing.assert_array_equal(env.unwrapped.action_masks(), env.unwrapped.game.last()[0]["action_mask"])


def test_a_file_as_an_opponent_draws_no_numbers_and_names_statistics(tmp_path):
    env = VecNormalize(games())
    PPO_Plus("MlpPolicy", env, **ARGUMENTS).learn(64).save(tmp_path / "model.zip")
    numbers = []
    for _ in range(2):
        with pytest.warns(UserWarning, match="was trained on observations that were normalized"):
            SelfPlay(TICTACTOE, {"old": tmp_path / "model.zip"})
        numbers.append((np.random.random(), float(th.rand(()))))
    assert numbers[0] != numbers[1]


class Reborn:
    """A game with turns in which the second player dies with its second turn, and then comes back."""

    metadata: dict[str, object] = {"name": "reborn"}  # noqa: RUF012
    possible_agents = ("red", "blue")

    def __init__(self):
        self.unwrapped = self

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (2,))

    def action_space(self, agent):
        return spaces.Discrete(2)

    def agent_iter(self):
        raise NotImplementedError

    def reset(self, seed=None, options=None):
        self.agents, self.n_steps = [*self.possible_agents], 0
        self._select()

    def _select(self):
        #: Red and blue in turns; the sixth turn is the death of blue.
        self.agent_selection = self.possible_agents[self.n_steps % 2]
        self.terminations = {"red": self.n_steps == 10, "blue": self.n_steps == 5}
        self.truncations = dict.fromkeys(self.possible_agents, False)

    def last(self):
        return np.ones(2, np.float32), 0.0, self.terminations[self.agent_selection], False, {}

    def step(self, action):
        assert (action is None) == self.terminations[self.agent_selection]
        self.n_steps += 1
        self._select()


class Leaving(Reborn):
    def step(self, action):
        self.agents = []


class Gift(Reborn):
    """Pays blue for red's first turn."""

    def last(self):
        obs, _, *rest = super().last()
        return obs, float(self.n_steps == 1), *rest


def test_rewards_before_the_first_turn_count_in_the_result_alone():
    env = SelfPlay(Gift, seat="blue")
    env.reset(seed=0)
    _, first, *_ = env.step(0)
    _, second, terminated, _, info = env.step(0)
    assert first == second == 0.0 and terminated and info[GAME] == {"result": 1.0, "opponents": ["random"]}


def test_an_opponent_that_comes_back_remembers_nothing():
    model = PPO_Plus("MlpGruPolicy", SelfPlay(Reborn), **ARGUMENTS)
    env = SelfPlay(Reborn, {"model": model}, seat="red")
    env.reset(seed=0)
    remembered = []
    while not env.step(0)[2]:
        carry = env._carries.get("blue")
        remembered.append(None if carry is None else th.cat([*map(th.flatten, th.utils._pytree.tree_leaves(carry))]))
    first, second, dead, again = remembered
    assert dead is None and th.equal(first, again) and not th.equal(first, second)


def test_the_seat_and_the_opponents_are_drawn_for_each_game():
    env = SelfPlay(TICTACTOE, {"first": first_free, "random": None})
    env.reset(seed=0)
    drawn = set()
    for _ in range(30):
        env.reset()
        env.step(np.flatnonzero(env.action_masks())[0])
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
            if GAME in info:
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
        assert terminated == game[-1][1] and info[GAME]["result"] == float(total > 0)


def test_snapshots_are_copies_and_become_opponents():
    league = League(every=2)
    env = games(opponents={"first": first_free})
    model = PPO_Plus("MlpPolicy", env, **ARGUMENTS).learn(64 * 5, league)
    assert [*league.snapshots] == ["step_0", "step_128", "step_256"]
    shared = env.get_attr("snapshots")[0]
    for name, snapshot in league.snapshots.items():
        for key, own in model.policy.state_dict().items():
            weights = snapshot.state_dict()[key]
            assert th.equal(weights, shared[name].state_dict()[key]) and weights.data_ptr() != own.data_ptr()
    assert not th.equal(league.snapshots["step_0"].action_net.weight, model.policy.action_net.weight)
    names = ["random", "first", "step_0", "step_128", "step_256"]
    assert [row["name"] for row in league.table()] == names == [*league.chances()]
    assert sum(row["games"] for row in league.table()) > 10
    assert sum(league.chances().values()) == pytest.approx(1.0) and league.chances()["random"] == 0.1


@pytest.mark.parametrize(
    ("choose", "chances"), [("latest", [0, 0, 0.9]), ("uniform", [0.3, 0.3, 0.3]), ("prioritized", [0.0, 0.3, 0.6])]
)
def test_who_is_drawn(choose, chances):
    league = League(choose=choose)
    rates = {"random": 0.9, "a": 1.0, "b": 2 / 3, "c": 1 / 3}
    league.players = {name: {"win_rate": rate} for name, rate in rates.items()}
    league.snapshots = {"a": {}, "b": {}, "c": {}}
    found = league.chances()
    assert [found.get(name, 0) for name in "abc"] == pytest.approx(chances, abs=2e-3) and found["random"] == 0.1


def test_ratings_are_elos():
    league = League()
    league.players = {name: {"rating": 400.0, "games": 0, "win_rate": 0.5} for name in ("a", "own")}
    league.snapshots = {"a": None}
    league._record(1.0, ["a"])
    assert league.rating == pytest.approx(16 * 10 / 11) and league.players["a"]["win_rate"] == 0.525
    league._record(0.0, ["a"])
    assert league.rating < 16 * 10 / 11 and league.players["a"] == {"rating": 400.0, "games": 2, "win_rate": 0.49875}
    before = league.rating
    league._record(1.0, ["own", "own"])  # whose strength nobody knows
    assert league.players["own"]["rating"] == pytest.approx(400.0 + before - league.rating)


@pytest.mark.parametrize("vec_env", part([DummyVecEnv, SubprocVecEnv], [DummyVecEnv], SLOW))
def test_snapshots_play_within_wrappers_of_sb3s_environments(vec_env):
    league = League(every=1)
    env = make_vec_env(lambda: TimeLimit(SelfPlay(TICTACTOE), 20), 2, seed=0, vec_env_cls=vec_env)
    PPO_Plus("MlpPolicy", env, **ARGUMENTS).learn(128, league)
    assert sum(row["games"] for row in league.table() if row["name"] != "random") > 10
    env.close()


def test_snapshots_are_kept_when_timesteps_are_counted_again():
    """Further calls of learn, and opponents with such a name, replace none."""
    league = League(every=1)
    model = PPO_Plus("MlpPolicy", games(opponents={"step_64": None}), **ARGUMENTS).learn(128, league)
    before = {name: snapshot.action_net.weight.clone() for name, snapshot in league.snapshots.items()}
    model.learn(128, league)
    assert len(before) == 2 and len(league.snapshots) == 4 and len(league.table()) == 6
    for name, weight in before.items():
        assert th.equal(weight, league.snapshots[name].action_net.weight)


def test_games_that_began_against_others_are_not_counted():
    env = games()
    model = PPO_Plus("MlpPolicy", env, **ARGUMENTS).learn(128, League(every=1))
    league = League(every=1)
    league._record(1.0, ["step_0"])
    assert league.rating == 0.0
    model.learn(128, league, reset_num_timesteps=False)
    assert [*league.snapshots] == [*env.get_attr("snapshots")[0]] == ["step_128", "step_192"]


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda obs, mask: None, r"opponents: 'x' has chosen None: .* from Discrete\(9\)"),
        (lambda obs, mask: 9, r"opponents: 'x' has chosen 9: .* from Discrete\(9\)"),
        (lambda obs, mask: int(mask.argmin()), r"'x' has chosen 0: .*, with the mask \[0 1"),
    ],
)
def test_opponents_that_break_rules_are_named(choose, message):
    env = SelfPlay(TICTACTOE, {"x": choose}, seat="player_1")
    env.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        env.step(0)


class Pairs(Crowd):
    """Masks of two choices, which begin at 1: of three and of two."""

    def __init__(self):
        super().__init__(0.1, 0.0, names=("red_0", "red_1"))

    def observation_space(self, agent):
        return spaces.Dict({"observation": super().observation_space(agent), "action_mask": spaces.MultiBinary(5)})

    def action_space(self, agent):
        return spaces.MultiDiscrete([3, 2], start=[1, 1])

    def observe(self):
        return {"observation": super().observe(), "action_mask": np.array([1, 0, 1, 0, 1], np.int8)}

    def step(self, actions):
        for first, second in actions.values():
            assert first in (1, 3) and second == 2
        return super().step({agent: float(action.sum()) for agent, action in actions.items()})


def test_functions_are_opponents_in_processes():
    opponents = {"first": lambda obs, mask: int(mask.argmax())}
    env = make_vec(SelfPlay, 2, 0, {"env": TICTACTOE, "opponents": opponents}, vec_env="subproc")
    networks = {"actor": lambda n_inputs, n_outputs: th.nn.Linear(n_inputs, n_outputs)}
    PPO_Plus("MlpPolicy", env, policy_kwargs=networks, **ARGUMENTS).learn(96, League(every=1)).env.close()


@pytest.mark.parametrize("opponents", [{"random": None}, {"first": lambda obs, mask: np.array([1, 2])}])
def test_masks_of_several_choices(opponents):
    env = make_vec(lambda: SelfPlay(Pairs, opponents), 2, seed=0)
    PPO_Plus("MlpPolicy", env, **ARGUMENTS).learn(96, League(every=1))
    with pytest.raises(ValueError, match="'x' has chosen"):
        PPO_Plus("MlpPolicy", SelfPlay(Pairs, {"x": lambda obs, mask: np.array([2, 2])}), **ARGUMENTS).learn(16)


@pytest.mark.parametrize(
    ("policy", "vec_env"), [("MlpPolicy", "dummy"), pytest.param("MlpGruPolicy", "subproc", marks=SLOW)]
)
def test_a_league_resumes_exactly(policy, vec_env, tmp_path):
    def make():
        return make_vec(SelfPlay, 3, 0, {"env": TICTACTOE}, vec_env=vec_env)

    total, small = 48 * 7, {} if policy == "MlpPolicy" else {"lstm_hidden_size": 8}
    whole, model = League(every=2), PPO_Plus(policy, make(), policy_kwargs=small, **ARGUMENTS)
    trained = model.learn(total, [whole, Checkpoints(tmp_path, 48, keep=9)])
    again = League(every=2)
    resumed = PPO_Plus.resume(sorted(tmp_path.glob("*.zip"))[5], make(), device="cpu")
    resumed.learn(total, [again, Checkpoints(tmp_path / "again")])
    assert whole.table() == again.table() and whole.rating == again.rating
    for one, other in zip(trained.policy.parameters(), resumed.policy.parameters(), strict=True):
        assert th.equal(one, other)
    for env in (trained.env, resumed.env):
        env.close()


class Seen(Crowd):
    """Observations that training sees in another form."""

    def __init__(self, space):
        super().__init__()
        self.space = space

    def observation_space(self, agent):
        return self.space

    def observe(self):
        return self.space.sample()


@pytest.mark.parametrize("space", [spaces.Box(0, 255, (36, 36, 3), np.uint8), spaces.Tuple([spaces.Discrete(3)] * 2)])
def test_models_of_images_and_tuples_are_opponents(space):
    policy = "CnnPolicy" if isinstance(space, spaces.Box) else "MultiInputPolicy"
    model = PPO_Plus(policy, games_of(lambda: Seen(space)), **ARGUMENTS)
    env = SelfPlay(lambda: Seen(space), {"itself": model})
    env.reset(seed=0)
    while not env.step(0)[3]:
        pass


class OverridesForward(ActorCriticPolicy):
    def forward(self, obs, deterministic=False):
        return super().forward(obs, deterministic)


class Boxes(Crowd):
    def action_space(self, agent):
        return spaces.Box(-1, 1, (2,))

    def step(self, actions):
        return super().step({agent: float(action[0]) for agent, action in actions.items()})


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: League(every=0), ValueError, "every=0 must be at least 1"),
        (lambda: League(share_random=2), ValueError, "share_random=2 must be"),
        (lambda: League(choose="best"), ValueError, "choose='best' must be one of 'latest', 'uniform'"),
        (lambda: SelfPlay(TICTACTOE, seat="x"), ValueError, "seat='x' must be one of 'player_1', 'player_2'"),
        (lambda: SelfPlay(Leaving, seat="blue").reset(), ValueError, "has removed 'blue' without a last turn"),
        (lambda: SelfPlay(TICTACTOE, {"random": first_free}), ValueError, "'random' draws its actions at random: give"),
        (
            lambda: SelfPlay(TICTACTOE, {"a": PPO_Plus("MlpPolicy", "CartPole-v1")}),
            ValueError,
            r"opponents: 'a' has observation_space=Box\(.*\), and the game Box\(0, 1, \(3, 3, 2\), int8\)",
        ),
        (lambda: games_of(Crowd(back=0.0)), ValueError, "crowd is in another environment already: pass a function"),
        (lambda: SelfPlay(TICTACTOE, {"a": 3}), TypeError, "opponents: 'a' is 3: pass a function"),
        (lambda: SelfPlay(TICTACTOE, {"a": PPO("MlpPolicy", "CartPole-v1")}), TypeError, "opponents: 'a' is ActorCr"),
        (lambda: SelfPlay("math"), ValueError, "env='math' has no env .* use ppo_plus.SelfPlay .* games with turns"),
        (lambda: PPO_Plus("MlpPolicy", "CartPole-v1").learn(1, League()), AttributeError, "a League needs SelfPlay"),
        (lambda: SelfPlay(TICTACTOE, first_free), TypeError, "opponents=<function .* must be a dict of names"),
        (
            lambda: PPO_Plus("MlpPolicy", VecNormalize(games()), n_steps=8).learn(1, League()),
            ValueError,
            "VecNormalize has not normalized: pass normalize_observations=True",
        ),
        (
            lambda: PPO_Plus(OverridesForward, games(), n_steps=8).learn(1, League()),
            TypeError,
            "overrides SB3's methods: derive it from ppo_plus",
        ),
    ],
)
def test_mistakes_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_games_of_several_players_and_other_spaces():
    env = make_vec(lambda: SelfPlay(lambda: Boxes(back=0.0)), 2, seed=0)
    league = League(every=1)
    PPO_Plus("MlpPolicy", env, use_sde=True, **ARGUMENTS).learn(96, league)
    assert sum(row["games"] for row in league.table()) > 4


def test_a_game_without_opponents_has_no_rating():
    league = League()
    league._record(1.0, [])
    assert league.rating == 0.0
