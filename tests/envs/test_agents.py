"""Many agents as rows of a vector environment: as if each had been recorded alone."""

import math
from functools import partial

import numpy as np
import pytest
import torch as th
from games import Crowd
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from parametrization import SLOW, part
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from ppo_plus import Cost, EvalAfterUpdates, PPO_Plus, RandomNetworkDistillation, make_agents, policy_arguments
from ppo_plus.envs.checks import AUTORESET
from ppo_plus.policy.observations import as_dict, parts_of
from ppo_plus.policy.policies import Carry
from ppo_plus.zoo.cli import main

ARGUMENTS = {"n_epochs": 1, "batch_size": 16, "device": "cpu", "seed": 0}


def games(env):
    return [single.unwrapped.game for single in env.unwrapped.envs]


def rollout(model):
    """The model's buffer after one rollout, before it learns from it."""
    model.train = lambda: None
    model.learn(model.n_steps * model.n_envs)
    return model.rollout_buffer


def values_alone(policy, observations):
    """The critic's values of one agent's observations in order, from an empty memory."""
    carry, values = Carry(policy.init_memory(1)), []
    for i, obs in enumerate(observations):
        starts = th.tensor([i == 0])
        with th.no_grad():
            values.append(float(policy.predict_values(th.tensor(obs[None]), carry, starts)))
            _, memory = policy.encode_step(th.tensor(obs[None]), carry.memory, starts)
        carry = Carry(memory)
    return values


def gae_alone(rewards, values, after, gamma, lam):
    """The textbook's recursion over one trajectory; ``after``: the value of what follows it, or 0."""
    advantages, running = [], 0.0
    for reward, value, following in reversed([*zip(rewards, values, [*values[1:], after], strict=True)]):
        running = reward + gamma * following - value + gamma * lam * running
        advantages.insert(0, running)
    return advantages


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    end=st.sampled_from([0.0, 0.15, 0.5]),
    back=st.sampled_from([0.0, 0.3, 1.0]),
    first=st.sampled_from([0.3, 1.0]),
    limit=st.integers(2, 9),
    policy=st.sampled_from(["MlpPolicy", "MlpGruPolicy", "MlpLruPolicy"]),
)
def test_rows_are_what_each_agent_recorded_alone(seed, end, back, first, limit, policy):
    """Observations, rewards, values, advantages and returns are those of trajectories agent by agent."""
    env = make_agents(lambda: Crowd(end, back, limit, first=first), 2, seed=seed)
    kwargs = {} if policy == "MlpPolicy" else {"sequence_length": 8}
    model = PPO_Plus(policy, env, n_steps=24, gamma=0.9, gae_lambda=0.8, **ARGUMENTS, **kwargs)
    buffer = rollout(model)
    valid = np.ones((24, 6), bool) if buffer.valid is None else buffer.valid
    columns = [(game, agent) for game in games(env) for agent in game.possible_agents]
    for i, (game, agent) in enumerate(columns):
        stored = {name: getattr(buffer, name)[valid[:, i], i] for name in ("observations", "advantages", "returns")}
        at = 0
        for trajectory in game.log[agent]:
            steps = [step for step in trajectory if len(step) == 3]
            if not steps:  # it has come back with the last step of the rollout, or is about to
                continue
            observations, _, rewards = zip(*steps, strict=True)
            ends = trajectory[-1] if len(trajectory[-1]) == 2 else (game.seen.get(agent), False)
            *values, after = values_alone(model.policy, [*observations, ends[0]])
            advantages = gae_alone(rewards, values, 0.0 if ends[1] else after, 0.9, 0.8)
            rows = slice(at, at := at + len(steps))
            np.testing.assert_array_equal(stored["observations"][rows], observations)
            np.testing.assert_allclose(stored["advantages"][rows], advantages, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(stored["returns"][rows], np.add(advantages, values), rtol=1e-4, atol=1e-4)
        assert at == valid[:, i].sum()


def test_moments_count_no_rows_of_the_absent():
    """Those of VecNormalize and those in the policy are the moments of what agents saw, and of their returns."""
    make = lambda: make_agents(lambda: Crowd(0.4, 0.3, first=0.5), 2, seed=0)  # noqa: E731
    normalize = VecNormalize(make())
    rollout(PPO_Plus("MlpPolicy", normalize, n_steps=32, **ARGUMENTS))
    logs = [trajectory for game in games(normalize) for log in game.log.values() for trajectory in log]
    acted = sum(len(step) == 3 for trajectory in logs for step in trajectory)
    waiting = int(normalize.observed.sum())
    assert acted < 32 * 6  # rows were absent
    assert normalize.ret_rms.count == pytest.approx(acted, abs=1e-3)
    assert normalize.obs_rms.count == pytest.approx(acted + waiting, abs=1e-3)
    seen = [step[0] for trajectory in logs for step in trajectory if len(step) == 3]
    np.testing.assert_allclose(normalize.obs_rms.mean, np.mean(seen, axis=0), atol=0.2)
    model = PPO_Plus("MlpPolicy", make(), n_steps=32, normalize_observations=True, **ARGUMENTS).learn(1)
    assert float(model.policy.observation_normalizer.count) == acted


class Costly(Crowd):
    def step(self, actions):
        obs, rewards, *ends, _ = super().step(actions)
        return (
            obs,
            rewards,
            *ends,
            {agent: {"cost": abs(reward)} for agent, reward in rewards.items()} | {"red_9": {1: 2}},
        )


@pytest.mark.parametrize(
    ("policy", "arguments"),
    [
        ("MlpPolicy", {"streams": [Cost("cost", limit=1.0)], "recompute_advantages": True}),
        ("MlpPolicy", {"streams": [RandomNetworkDistillation()], "normalize_observations": True}),
        ("MlpLstmPolicy", {"streams": [Cost("cost", limit=1.0)], "normalize_values": True}),
    ],
)
def test_nothing_is_learned_from_what_rows_of_the_absent_show(policy, arguments):
    """Other numbers in them leave all weights, moments and multipliers unchanged."""
    states = []
    for shown in (0.0, 50.0):
        env = make_agents(lambda: Costly(0.3, 0.3, first=0.5), 2, seed=3)
        for single in env.unwrapped.envs:
            single.unwrapped._empty["observation"][:] = shown
        model = PPO_Plus(policy, env, n_steps=16, **ARGUMENTS, **arguments).learn(96 * 3)
        assert model.rollout_buffer.valid.sum() < 96
        states.append(model.policy.state_dict())
    for name, value in states[0].items():
        assert th.equal(value, states[1][name]), name


def test_masks_are_used_and_no_word_is_needed():
    env = make_agents(lambda: Crowd(masks=True), 3, seed=0)
    assert env.observation_space == spaces.Box(-np.inf, np.inf, (3,)) and policy_arguments(env) == {
        "policy": "MlpPolicy"
    }
    model = PPO_Plus("MlpPolicy", env, n_steps=32, **ARGUMENTS).learn(600)
    model.evaluate(3)
    steps = [step for game in games(env) for log in game.log.values() for one in log for step in one if len(step) == 3]
    assert len(steps) > 300 and all(obs["action_mask"][action] for obs, action, _ in steps)


def test_masks_are_of_rows():
    env = make_agents(lambda: Crowd(masks=True), 2, seed=0)
    env.reset()
    every = env.env_method("action_masks")
    np.testing.assert_array_equal(env.env_method("action_masks", indices=[1, 4]), [every[1], every[4]])


def test_a_game_that_was_closed_can_be_used_again():
    game = Crowd()
    for _ in range(2):
        make_agents(game, 1).close()


def test_games_with_deaths_train_compiled(traced):
    env = make_agents(lambda: Crowd(masks=True), 3, seed=0)
    model = PPO_Plus("MlpPolicy", env, n_steps=32, compile=True, **ARGUMENTS).learn(600)
    assert model.rollout_buffer.valid is not None and model.compiled


def test_the_state_is_for_the_critic():
    env = make_agents(Crowd, 2, seed=0, state=True, indicate_agents=True)
    assert [*env.observation_space] == ["observation", "agent", "state"]
    first = env.reset()
    assert first["agent"].tolist() == [0, 1, 2, 0, 1, 2] and first["state"].shape == (6, 2)
    for policy, kwargs in (
        ("MlpPolicy", {}),
        ("MultiInputPolicy", {}),
        ("MultiInputPolicy", {"actor_keys": ["state"]}),
    ):
        with pytest.raises(
            ValueError, match=r"'state' .* is for the critic only: .*actor_keys=\['observation', 'agent'\]"
        ):
            PPO_Plus(policy, env, policy_kwargs=kwargs)
    model = PPO_Plus(env=env, n_steps=16, **policy_arguments(env), **ARGUMENTS).learn(200)
    model.predict({"observation": np.zeros((2, 3)), "agent": np.arange(2)})


@pytest.mark.parametrize(
    ("space", "seen"),
    [
        (spaces.MultiDiscrete([3, 4], start=[1, 1]), np.array([3, 4])),
        (spaces.Discrete(3, start=2), 4),
        (spaces.Discrete(3, start=2), np.array([4])),
        (spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(2)]), (np.zeros(2, np.float32), 1)),
    ],
)
def test_observations_of_other_spaces(space, seen):
    class Other(Crowd):
        def observation_space(self, agent):
            return space

        def observe(self):
            return seen

    env = make_agents(lambda: Other(first=0.5), 2, seed=0)
    rows = env.reset()
    for key, value in parts_of(as_dict(seen)).items():
        shown = (rows[key] if isinstance(rows, dict) else rows)[env.observed]
        np.testing.assert_array_equal(shown, np.broadcast_to(value, shown.shape))
    PPO_Plus(env=env, n_steps=16, **policy_arguments(env), **ARGUMENTS).learn(96)


class Stated(Crowd):
    def observation_space(self, agent):
        return spaces.Dict({"state": spaces.Box(-9, 9, (3,)), "x": spaces.Discrete(2)})


class OtherState(Crowd):
    def state(self):
        return np.zeros(1, np.float32)


def test_states_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="observations of crowd have the entries {'state'} already: rename them"):
        make_agents(Stated, state=True)
    with pytest.raises(ValueError, match=r"returned state\(\) of shape \(1,\), but its space .* has \(2,\)"):
        make_agents(OtherState, state=True).reset()


def test_a_group_does_not_have_the_name_of_a_whole_game():
    env = make_agents(lambda: Crowd(0.1, names=("team_0", "team_1", "ep_0")), 2, seed=0)
    rollout(PPO_Plus("MlpPolicy", env, n_steps=32, **ARGUMENTS))
    assert {*env.last_returns} == {"team", "team_agent", "ep_agent"}


def test_returns_are_logged_of_teams_and_groups():
    env = make_agents(lambda: Crowd(0.1), 2, seed=0)
    model = PPO_Plus("MlpPolicy", env, n_steps=32, **ARGUMENTS)
    rollout(model)
    logs = {agent: [one for game in games(env) for one in game.log[agent]] for agent in games(env)[0].possible_agents}
    ended = {agent: [one for one in log if one and len(one[-1]) == 2] for agent, log in logs.items()}
    returns = {agent: [sum(step[2] for step in one[:-1]) for one in each] for agent, each in ended.items()}
    logged = env.rollout_log()
    assert logged["rollout/blue_rew_mean"] == pytest.approx(np.mean(returns["blue_0"]))
    assert logged["rollout/red_rew_mean"] == pytest.approx(np.mean(returns["red_0"] + returns["red_1"]))
    teams = [single.get_wrapper_attr("get_episode_rewards")() for single in env.unwrapped.envs]
    assert logged["rollout/team_rew_mean"] == pytest.approx(np.mean(sum(teams, [])))
    assert np.mean([info["r"] for info in model.ep_info_buffer]) == pytest.approx(np.mean(sum(returns.values(), [])))


def test_evaluations_play_episodes_of_agents(tmp_path):
    callback = EvalAfterUpdates(make_agents(Crowd, 2, seed=1), eval_freq=100, n_eval_episodes=12, log_path=tmp_path)
    PPO_Plus("MlpPolicy", make_agents(Crowd, 2, seed=0), n_steps=16, **ARGUMENTS).learn(200, callback)
    assert np.load(tmp_path / "evaluations.npz")["results"].shape[1] == 12


def test_an_evaluation_in_the_training_environment_is_not_logged_as_training():
    model = PPO_Plus("MlpPolicy", make_agents(Crowd, 2, seed=0), n_steps=16, **ARGUMENTS).learn(200)
    before = model.env.rollout_log()
    model.evaluate(10)
    assert model.env.rollout_log() == before and before


def test_evaluations_count_no_rows_of_the_absent():
    """Which are episodes of a step to SB3's VecMonitor."""
    env = VecMonitor(make_agents(lambda: Crowd(0.3, 0.2, first=0.5), 2, seed=3))
    episodes = PPO_Plus("MlpPolicy", make_agents(Crowd), **ARGUMENTS).evaluate(40, env, return_episodes=True)
    logs = [one for game in games(env) for log in game.log.values() for one in log if one and len(one[-1]) == 2]
    returns = [round(sum(step[2] for step in one[:-1]), 3) for one in logs]
    assert len(episodes) == 42 and {round(float(episode["return"]), 3) for episode in episodes} <= {*returns}


def test_each_agent_counts_as_often_in_an_evaluation():
    class Ranked(Crowd):
        def step(self, actions):
            obs, _, *ends = super().step(actions)
            return obs, {agent: float(self.possible_agents.index(agent)) for agent in actions}, *ends

    env = make_agents(lambda: Ranked(end=0.0, limit=1, names=tuple("abcdefghij")), 3)
    assert PPO_Plus("MlpPolicy", env, **ARGUMENTS).evaluate(5)[0] == 4.5


@pytest.mark.parametrize("vec_env", part(["dummy", "subproc"], ["dummy"], SLOW))
def test_a_run_resumes_exactly(vec_env, tmp_path):
    from ppo_plus import Checkpoints

    def make():
        return VecNormalize(make_agents(Crowd, 2, 0, vec_env=vec_env))

    options = {"n_steps": 16, "policy_kwargs": {"lstm_hidden_size": 8}, **ARGUMENTS}
    whole = PPO_Plus("MlpGruPolicy", make(), **options).learn(400, Checkpoints(tmp_path, save_freq=96, keep=9))
    resumed = PPO_Plus.resume(sorted(tmp_path.glob("*.zip"))[2], make(), device="cpu")
    resumed.learn(400, Checkpoints(tmp_path / "again"))
    for one, other in zip(whole.policy.parameters(), resumed.policy.parameters(), strict=True):
        assert th.equal(one, other)
    assert [*whole.ep_info_buffer][-1]["r"] == [*resumed.ep_info_buffer][-1]["r"]


class Failing(Crowd):
    """Fails in the third step of each game."""

    def step(self, actions):
        if self.n_steps == 2:
            raise RuntimeError("it fell over")
        return super().step(actions)


def test_a_game_that_fails_is_a_time_limit_for_those_who_are_there():
    # A class of a test can be found by a process that is forked alone.
    options = {"vec_env": "subproc", "restarts": 99, "report": print, "n_workers": 1, "start_method": "fork"}
    env = make_agents(partial(Failing, 0.2, 0.0), 2, seed=0, **options)
    last = env.reset()
    failed, alive = [], env.observed.copy()
    for _ in range(12):
        obs, rewards, dones, infos = env.step(np.zeros(6, dtype=np.int64))
        for i, info in enumerate(infos):
            if "env_restart" in info:
                failed.append(i)
                assert alive[i] and dones[i] and info["TimeLimit.truncated"] and rewards[i] == 0.0
                np.testing.assert_array_equal(info["terminal_observation"], last[i])
                assert "episode" not in info
            assert alive[i] or info == {AUTORESET: True}
        alive, last = env.observed.copy(), obs
    assert len(failed) > 3
    model = PPO_Plus("MlpPolicy", env, n_steps=16, **ARGUMENTS)
    assert np.isfinite(rollout(model).advantages).all()
    env.close()


class Wrong(Crowd):
    """A game with a mistake, by its number."""

    def __init__(self, mistake):
        self.mistake = mistake
        super().__init__(0.0, 0.0, names=("red_0", "red_1", 7)[: 2 if mistake != "names" else 3])

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (2 + int(self.mistake == "spaces" and agent == "red_1"),))

    def observe(self):
        return np.zeros(2 if self.mistake != "shape" else 1, dtype=np.float32)

    def step(self, actions):
        obs, rewards, terminated, truncated, infos = super().step(actions)
        if self.mistake == "dead":
            self.agents, terminated["red_1"] = ["red_0"], True
            self.mistake = "dead now"
        elif self.mistake == "dead now":
            obs["red_1"] = self.observe()
        elif self.mistake == "stays":
            truncated["red_1"] = True
        elif self.mistake == "vanishes":
            self.agents = ["red_0"]
        elif self.mistake == "unknown":
            self.agents = ["red_0", "red_1", "green"]
            obs["green"] = self.observe()
        elif self.mistake in ("rewards", "terminations", "truncations", "observation"):
            del {"rewards": rewards, "terminations": terminated, "truncations": truncated, "observation": obs}[
                self.mistake
            ]["red_1"]
        elif self.mistake == "two rewards":
            rewards["red_1"] = np.ones(2)
        elif self.mistake == "not finite":
            obs["red_1"] = obs["red_1"] + np.nan
        return obs, rewards, terminated, truncated, infos


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("spaces", r"different observation_spaces, {'red_0': Box.*\(2,\).* 'red_1': Box.*\(3,\).*: pad them"),
        ("shape", r"the observation of 'red_0' of shape \(1,\), but its space .* has \(2,\): fix one of them"),
        ("dead", r"crowd has \['red_1'\] among its observations, but not in agents=\['red_0'\]: correct"),
        ("stays", r"'red_1' of crowd has ended, but is still among agents=\['red_0', 'red_1'\]: correct"),
        ("vanishes", r"'red_1' of crowd has not ended, but is not among agents=\['red_0'\]: correct"),
        (
            "unknown",
            r"crowd has \['green'\] among its agents, but not in possible_agents=\['red_0', 'red_1'\]: correct",
        ),
        ("rewards", r"has \['red_1'\] among its agents, but not in rewards={'red_0': [^r]*}: correct"),
        ("terminations", r"has \['red_1'\] among its agents, but not in terminations={'red_0': [^r]*}: correct"),
        ("truncations", r"has \['red_1'\] among its agents, but not in truncations={'red_0': [^r]*}: correct"),
        ("observation", r"has \['red_1'\] among its agents, but not in observations={'red_0': .*}: correct"),
        ("two rewards", r"returned array\(\[1., 1.\]\) as reward: return one number"),
        ("not finite", "the observation that the environment returned is not finite"),
    ],
)
def test_mistakes_of_games_are_named(mistake, message):
    with pytest.raises(ValueError, match=message):
        env = make_agents(lambda: Wrong(mistake), 2, seed=0)
        PPO_Plus("MlpPolicy", env, n_steps=8, **ARGUMENTS).learn(32)


@pytest.mark.parametrize(
    ("env", "options", "error", "message"),
    [
        ("no_such.game", {}, ModuleNotFoundError, r"env='no_such.game' has no parallel_env .*pip install"),
        ("math", {}, ValueError, "env=.* has no parallel_env .*SelfPlay.*selfplay:"),
        (Crowd(), {"n_envs": 2}, ValueError, "n_envs=2 copies need a function: pass one that makes crowd"),
        (Crowd(), {"env_kwargs": {"end": 1}}, TypeError, "env_kwargs={'end': 1} need a function"),
        (lambda: 3, {}, TypeError, "env=3 must be an environment of PettingZoo with possible agents: .*make_vec"),
        (Crowd, {"n_envs": 0}, ValueError, "n_envs=0 must be at least 1"),
        ("", {}, ValueError, "env='' has no parallel_env .*correct the name"),
        (math, {}, TypeError, "env=<module 'math'.*> must be an environment of PettingZoo"),
        (Crowd, {"indicate_agent": True}, TypeError, "unexpected keyword argument 'indicate_agent'"),
        (Crowd, {"restarts": 3}, TypeError, "unexpected keyword argument 'restarts'"),
    ],
)
def test_wrong_arguments_are_named(env, options, error, message):
    with pytest.raises(error, match=message):
        make_agents(env, **options)


def test_a_package_that_a_game_needs_is_named(tmp_path, monkeypatch):
    (tmp_path / "needy_game.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="pip install no_such_package, which the game needs"):
        make_agents("needy_game")


# --- PettingZoo's own ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_spread_trains_alone_in_processes_and_converted():
    pytest.importorskip("mpe2")
    from mpe2 import simple_spread_v3

    lean, others, converted = (
        make_agents(env, 2, seed=0, **options)
        for env, options in (
            ("mpe2.simple_spread_v3", {}),
            ("mpe2.simple_spread_v3", {"vec_env": "subproc"}),
            (simple_spread_v3.env, {}),
        )
    )
    models = [PPO_Plus("MlpPolicy", env, n_steps=32, **ARGUMENTS).learn(300) for env in (lean, others, converted)]
    weights = [th.nn.utils.parameters_to_vector(model.policy.parameters()) for model in models]
    assert th.equal(weights[0], weights[1]) and th.equal(weights[0], weights[2])
    others.close()


def test_knights_die_and_are_excluded():
    pytest.importorskip("pygame")
    module = pytest.importorskip("pettingzoo.butterfly.knights_archers_zombies_v11")
    env = make_agents(module.__name__, 2, seed=0, env_kwargs={"spawn_delay": 1, "line_death": True})
    assert policy_arguments(env)["policy"] == "MlpPolicy"
    model = PPO_Plus("MlpPolicy", env, n_steps=256, **ARGUMENTS | {"batch_size": 512}).learn(1)
    valid = model.rollout_buffer.valid
    assert valid is not None and 0 < valid.sum() < valid.size
    assert np.isfinite(model.rollout_buffer.advantages[valid]).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mpe2.simple_tag_v3", "different observation_spaces, {'adversary_0': .* 'agent_0': .*: pad them"),
        ("pettingzoo.classic.tictactoe_v3", "has no parallel_env .* use ppo_plus.SelfPlay .* for games with turns"),
    ],
)
def test_games_of_another_kind_are_named(name, message):
    pytest.importorskip(name)
    with pytest.raises(ValueError, match=message):
        make_agents(name)


@pytest.mark.slow
def test_the_shell_trains_and_plays(tmp_path, capsys):
    pytest.importorskip("mpe2")
    train = [
        "-f",
        str(tmp_path),
        "-n",
        "128",
        "-params",
        "n_steps:32",
        "batch_size:32",
        "n_epochs:1",
        "--eval-freq",
        "0",
    ]
    play = ["-f", str(tmp_path), "--no-render", "-n", "60"]
    for name in ("pettingzoo:mpe2.simple_spread_v3", "selfplay:pettingzoo.classic.tictactoe_v3"):
        main(["train", "--env", name, "--n-envs", "2", *train])
        main(["enjoy", "--env", name, *play])
        assert "mean return" in capsys.readouterr().out
    # None of whole games, whose steps and returns are not those of agents.
    assert all("tictactoe" in str(path) for path in tmp_path.rglob("*monitor.csv"))
    (model,) = tmp_path.rglob("*tictactoe_v3.zip")
    main(["enjoy", "--env", name, *play, "--env-kwargs", f"opponents:dict(itself={str(model)!r})"])
    assert "mean return" in capsys.readouterr().out


@pytest.mark.parametrize("batch_size", [16, 64])
def test_sequences_of_agents_that_are_away_are_not_learned_from(batch_size):
    """One of four agents stays: most sequences have no transition, and a minibatch of them would have no loss."""

    class Alone(Crowd):
        def step(self, actions):
            *facts, truncated, infos = super().step(actions)
            if self.n_steps == 3:
                truncated, self.agents = {agent: agent != "a" for agent in truncated}, ["a"]
            return *facts, truncated, infos

    env = make_agents(partial(Alone, end=0.0, back=0.0, limit=100, names=("a", "b", "c", "d")), 1, seed=0)
    model = PPO_Plus("MlpLstmPolicy", env, n_steps=128, **ARGUMENTS | {"batch_size": batch_size})
    model.learn(1024)
    assert model.rollout_buffer.valid.mean() < 0.5
    assert "train/skipped_minibatches" not in model.logger.name_to_value
