"""Streams of a rollout are those of a plain loop over its steps; they train in every kind of rollout."""

import copy
from contextlib import nullcontext

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from compiled import assert_trained_alike, needs_compiler
from envs import ACTIONS, VECTOR, MaskedEnv, RandomEnv, vec
from faulty_envs import fine_and, supervised
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor
from stream_envs import COST, CURIOSITY, ENERGY, PROGRESS, STREAMS, Counting, counting, progress
from tensor_envs import TensorTwin

from ppo_plus import Carry, Cost, PPO_Plus, RandomNetworkDistillation, RolloutBuffer, Stream, as_vec_env
from ppo_plus.envs.supervised.vec_env import RESTART
from ppo_plus.envs.tensors.env import TensorEnv, Transition
from ppo_plus.rollout.streams import discounted_sums

T, N = 32, 3


class Giving(gym.Wrapper):
    """Has entries in its infos that are always the same."""

    def __init__(self, env, **entries):
        super().__init__(env)
        self.entries = entries

    def step(self, action):
        *rest, info = self.env.step(action)
        return *rest, info | self.entries


class Facts(BaseCallback):
    """What the environments gave, step by step, of each rollout."""

    def __init__(self):
        super().__init__()
        self.rollouts, self.logged = [], []

    def _on_rollout_start(self):
        self.rollouts.append([])

    def _on_step(self):
        names = ("rewards", "dones", "infos", "new_obs")
        self.rollouts[-1].append({name: copy.deepcopy(self.locals[name]) for name in names})
        return True

    def _on_rollout_end(self):
        self.logged.append(dict(self.model.logger.name_to_value))


def make(env=None, streams=STREAMS, policy="MlpPolicy", **kwargs):
    env = counting(N) if env is None else env
    kwargs = {"n_steps": T, "batch_size": T, "n_epochs": 2, "seed": 0, "device": "cpu", "compile": False} | kwargs
    return PPO_Plus(policy, env, streams=streams, **kwargs)


def table(steps, name):
    return np.array([step[name] for step in steps])


def limited(info):
    return info.get("TimeLimit.truncated", False)


def reference(model, steps, k, rewards, gamma, gae_lambda, episodic):
    """Advantages and returns by the definitions, backwards through the steps; ``k``: which of the values."""

    def value(obs):
        return model.policy.predict_values(th.as_tensor(np.asarray(obs)))[:, k].detach().numpy().astype(float)

    obs = model.rollout_buffer.observations
    values = np.array([value(row) for row in obs])
    advantages, following = np.zeros((T, N)), np.zeros(N)
    for t in reversed(range(T)):
        done = steps[t]["dones"]
        after = value(steps[t]["new_obs"])
        for i in range(N):
            info, next_value, carried = steps[t]["infos"][i], after[i], following[i]
            if episodic and done[i]:
                next_value = value(info["terminal_observation"][None])[0] if limited(info) else 0.0
                carried = 0.0
            error = rewards[t, i] + gamma * next_value - values[t, i]
            advantages[t, i] = error + gamma * gae_lambda * carried
        following = advantages[t].copy()
    return advantages, advantages + values


def test_advantages_are_those_of_a_plain_loop_and_add_up_by_their_weights():
    model, facts = make(streams=[COST, ENERGY, PROGRESS], learning_rate=0.0, normalize_advantage=False), Facts()
    model.learn(2 * T * N, facts)
    steps, buffer = facts.rollouts[-1], model.rollout_buffer
    infos = table(steps, "infos")
    assert any(map(limited, infos.flat)) and table(steps, "dones").sum() > sum(map(limited, infos.flat))
    rewards = {
        "": table(steps, "rewards"),
        "cost": np.vectorize(lambda info: float(info["cost"]))(infos),
        "energy": np.vectorize(lambda info: info["reward_terms"]["energy"])(infos),
        "progress": np.ones((T, N)),
    }
    gammas, lambdas, episodic = (0.99, 0.99, 0.9, 1.0), (0.95, 0.95, 0.8, 0.95), (True, True, False, True)
    estimates = [
        reference(model, steps, k, *each)
        for k, each in enumerate(zip(rewards.values(), gammas, lambdas, episodic, strict=True))
    ]
    for k in range(3):
        np.testing.assert_allclose(buffer.stream_buffers[k].returns, estimates[k + 1][1], atol=1e-4)
    np.testing.assert_allclose(buffer.returns, estimates[0][1], atol=1e-4)
    # The last update is at the end of training, where the schedule is 0.
    multiplier = -model.policy.streams.weights(0.0)[0]
    assert multiplier > 0
    (main, _), (cost, _), (energy, _), _ = estimates
    expected = (standardized(main + 0.3 * energy) - multiplier * standardized(cost)) / (1 + multiplier)
    np.testing.assert_allclose(buffer.advantages, expected, atol=1e-4)


def standardized(advantages):
    return (advantages - advantages.mean()) / advantages.std(ddof=1)


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 3)),
    gamma=st.floats(0.0, 1.0),
    weights=st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=3),
)
def test_sums_and_combinations_are_those_of_their_formulas(seed, shape, gamma, weights):
    rng = np.random.default_rng(seed)
    rewards, before, starts = rng.normal(size=shape), rng.normal(size=shape[1]), rng.random(shape) < 0.4
    for valid in (None, rng.random(shape) < 0.5):
        counted = np.ones(shape, bool) if valid is None else valid
        tables = (th.as_tensor(part).float() for part in (rewards * counted, before, starts))
        found = discounted_sums(*tables, gamma, None if valid is None else th.from_numpy(valid))
        sums = before
        for t, row in enumerate(found.numpy()):
            sums = np.where(counted[t], rewards[t] + gamma * np.where(starts[t], 0.0, sums), sums)
            np.testing.assert_allclose(row, sums, atol=1e-5)
    space = gym.spaces.Discrete(2)
    buffer = RolloutBuffer(shape[0], space, space, n_envs=shape[1])
    parts = rng.normal(size=(1 + len(weights), *shape)).astype(np.float32)
    buffer.stream_buffers = [buffer.twin() for _ in weights]
    for each, part in zip((buffer, *buffer.stream_buffers), parts, strict=True):
        each.advantages = part
    for _ in range(2):
        buffer.combine_advantages(
            lambda own, others: own + sum(w * each for w, each in zip(weights, others, strict=True))
        )
        np.testing.assert_allclose(buffer.advantages, np.tensordot([1, *weights], parts, 1), atol=1e-5)


def test_a_second_update_on_a_rollout_learns_from_the_same_advantages():
    model = make(learning_rate=0.0)
    model.learn(T * N)
    before = model.rollout_buffer.advantages.copy()
    model.train()
    np.testing.assert_array_equal(model.rollout_buffer.advantages, before)


def test_sums_of_episodes_go_on_over_rollouts_and_move_the_multiplier():
    model, facts = make(), Facts()
    model.learn(4 * T * N, facts)
    sums, integral, expected = np.zeros(N), 0.0, []
    for steps in facts.rollouts:
        ended = []
        for step in steps:
            sums += [info["cost"] for info in step["infos"]]
            ended += sums[step["dones"]].tolist()
            sums[step["dones"]] = 0.0
        violation = (np.mean(ended) - 2.0) / 2.0
        integral = max(integral + COST.k_i * min(violation, 1.0), 0.0)
        expected.append((np.mean(ended), max(COST.k_p * violation + integral, 0.0)))
    assert [logged["rollout/ep_cost_mean"] for logged in facts.logged] == pytest.approx([mean for mean, _ in expected])
    assert model.logger.name_to_value["train/cost_weight"] == pytest.approx(-expected[-1][1])
    lengths = [logged["rollout/ep_progress_mean"] for logged in facts.logged]
    assert lengths[-1] == pytest.approx(
        np.mean([i["episode"]["l"] for i in table(steps, "infos").flat if "episode" in i])
    )


@pytest.mark.parametrize("error", [None, KeyboardInterrupt], ids=["callback", "ctrl-c"])
def test_episodes_under_way_in_a_rollout_that_was_stopped_are_not_counted(error):
    model = make(streams=[PROGRESS], n_steps=4).learn(4 * N)

    class Stop(BaseCallback):
        def _on_step(self):
            if self.n_calls == 3 and error:
                raise error
            return self.n_calls < 3

    with pytest.raises(error) if error else nullcontext():
        model.learn(4 * N, Stop(), reset_num_timesteps=False)
    assert model.position.stream_sums is None
    facts = Facts()
    model.learn(40 * N, facts, reset_num_timesteps=False)
    lengths = [i["episode"]["l"] for steps in facts.rollouts for i in table(steps, "infos").flat if "episode" in i]
    sums = [logged["rollout/ep_progress_mean"] for logged in facts.logged if "rollout/ep_progress_mean" in logged]
    # Of the first episodes, some began before: what is counted is whole.
    assert max(sums) <= max(lengths) and min(sums) >= 1


def test_a_loaded_model_learns_with_another_number_of_environments(tmp_path):
    make(streams=[COST, ENERGY]).learn(T * N).save(tmp_path / "model")
    model = PPO_Plus.load(tmp_path / "model", env=counting(N + 1), device="cpu").learn(1)
    assert model.position.stream_sums.shape[-1] == N + 1


@pytest.mark.parametrize("mode", [gym.vector.AutoresetMode.SAME_STEP, gym.vector.AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpLruPolicy"])
def test_in_every_autoreset_mode_only_transitions_count(mode, policy):
    """Estimates, sums and moments are those of the trajectory without the other rows, also with memory."""
    make_envs = [lambda: Giving(RandomEnv(ACTIONS["discrete"], max_steps=None, p_end=0.3), one=1.0)] * N
    env = as_vec_env(gym.vector.SyncVectorEnv(make_envs, autoreset_mode=mode))
    going_on = Stream("one", gamma=0.9, gae_lambda=1.0, episodic=False, normalize=True, name="going on")
    curiosity = RandomNetworkDistillation(normalize=False)
    model = make(env, [going_on, Stream("one", name="ending"), curiosity], policy, learning_rate=0.0)
    model.learn(T * N)
    buffer, position = model.rollout_buffer, model.position
    valid = np.ones((T, N), bool) if buffer.valid is None else buffer.valid
    assert valid.all() == (mode == gym.vector.AutoresetMode.SAME_STEP)
    parts, sums = model.policy.streams.parts, []
    assert parts[0].count == parts[2].normalizer.count == valid.sum()
    for i in range(N):
        rows = np.flatnonzero(valid[:, i])
        obs = np.append(buffer.observations[rows, i], position.obs[i : i + 1], axis=0)
        starts = np.append(buffer.episode_starts[rows, i], position.starts[i]).astype(bool)
        carry = Carry(model.policy.init_memory(1))
        with th.no_grad():
            values = model.policy.predict_values(th.from_numpy(obs), carry, th.from_numpy(starts)).numpy()
        for k, (part, gamma, gae_lambda) in enumerate(
            zip((buffer, *buffer.stream_buffers), (0.99, 0.9, 0.99, 0.99), (0.95, 1.0, 0.95, 0.95), strict=True)
        ):
            ends = starts if k in (0, 2) else np.zeros_like(starts)
            advantage = 0.0
            for j, t in reversed([*enumerate(rows)]):
                error = part.rewards[t, i] + gamma * values[j + 1, k] * ~ends[j + 1] - values[j, k]
                advantage = error + gamma * gae_lambda * advantage * ~ends[j + 1]
                assert part.returns[t, i] == pytest.approx(advantage + values[j, k], abs=1e-4)
        sums += [sum(0.9**age for age in range(n)) for n in range(1, len(rows) + 1)]
    assert parts[0].mean.item() == pytest.approx(np.mean(sums), rel=1e-4)


def test_in_steps_that_only_reset_there_are_no_rewards():
    gym.register("Counting-v0", entry_point=Counting)
    try:
        env = as_vec_env(gym.make_vec("Counting-v0", N, vectorization_mode="sync"))
    finally:
        del gym.registry["Counting-v0"]
    streams = [*STREAMS[:-1], Stream(progress, normalize=True, name="scaled"), STREAMS[-1]]
    model, facts = make(env, streams, n_epochs=1), Facts()
    model.learn(2 * T * N, facts)
    buffer = model.rollout_buffer
    assert buffer.valid is not None and not buffer.valid.all()
    assert all((stream.rewards[~buffer.valid] == 0).all() for stream in buffer.stream_buffers)
    assert model.policy.streams.parts[-2].count < 2 * T * N
    steps = facts.rollouts[-1]
    # Values of final observations are added at time limits.
    is_cut = np.vectorize(limited)(table(steps, "infos"))
    assert (buffer.stream_buffers[2].rewards[buffer.valid & ~is_cut] == 1).all() and is_cut.any()
    ended = [i["episode"]["l"] for i in table(steps, "infos").flat if "episode" in i]
    assert facts.logged[-1]["rollout/ep_progress_mean"] == pytest.approx(np.mean(ended))


@pytest.mark.parametrize(
    "kwargs",
    [
        {"policy": "MlpLstmPolicy", "policy_kwargs": {"lstm_hidden_size": 8}, "sequence_length": 8},
        {"recompute_advantages": True, "normalize_advantage": "rollout"},
        {"normalize_values": True, "normalize_observations": True, "clip_range_vf": 0.2},
        {"clip_range_vf": 0.2, "value_clip": "plain", "target_kl": 0.01, "kl_control": "penalty"},
        {"policy_kwargs": {"net_arch": [8]}, "use_sde": True},
    ],
    ids=["memory", "recomputed", "normalized values", "clipped values", "shared layers"],
)
def test_every_kind_of_training_has_streams(kwargs):
    model = make(**kwargs)
    before = [part.clone() for part in (*model.policy.streams.parameters(), *model.policy.parameters())]
    model.learn(2 * T * N)
    after = [*model.policy.streams.parameters(), *model.policy.parameters()]
    moved = [not th.equal(a, b) for a, b in zip(before, after, strict=True) if b.requires_grad]
    assert all(moved)
    logged = model.logger.name_to_value
    names = [stream.name for stream in STREAMS]
    wanted = [f"train/{name}_{what}" for name in names for what in ("value_loss", "explained_variance", "weight")]
    assert all(np.isfinite(logged[name]) for name in [*wanted, "train/curiosity_loss", "rollout/ep_energy_mean"])


def test_diagnostics_keep_no_graph():
    class Keeping(PPO_Plus):
        def compute_loss(self, batch, coefficients):
            losses = super().compute_loss(batch, coefficients)
            self.kept = [value.requires_grad for value in losses.diagnostics.values()]
            return losses

    model = Keeping("MlpPolicy", counting(N), streams=STREAMS, n_steps=T, batch_size=T, device="cpu")
    assert not any(model.learn(T * N).kept)


def test_recomputed_advantages_are_the_same_while_weights_are():
    seen = []
    for again in (False, True):
        model, batches = make(learning_rate=0.0, recompute_advantages=again, n_epochs=3), []
        model.compute_loss = lambda batch, coefficients, m=model, b=batches: (
            b.append(batch) or PPO_Plus.compute_loss(m, batch, coefficients)
        )
        model.learn(T * N)
        seen.append(batches)
    for one, other in zip(*seen, strict=True):
        th.testing.assert_close(one.advantages, other.advantages, rtol=1e-4, atol=1e-5)
        th.testing.assert_close(one.returns, other.returns, rtol=1e-4, atol=1e-5)
        assert one.returns.shape == (T, 1 + len(STREAMS))


@needs_compiler
@pytest.mark.parametrize("memory", ["", pytest.param("Gru", marks=pytest.mark.exhaustive)])
def test_compiled_training_is_the_same(memory, traced):
    kwargs = {"policy_kwargs": {"lstm_hidden_size": 8}, "sequence_length": 8} if memory else {}
    kwargs |= {"policy": f"Mlp{memory}Policy", "kl_control": "adaptive_lr", "target_kl": 0.01, "normalize_values": True}
    models = [make(compile=compile, **kwargs).learn(2 * T * N) for compile in (False, True)]
    assert_trained_alike(*models)
    for name, buffer in models[0].policy.named_buffers():
        th.testing.assert_close(dict(models[1].policy.named_buffers())[name], buffer, rtol=1e-3, atol=1e-4)


def test_with_masks_and_choices():
    curiosity = [CURIOSITY, Stream(progress)]
    env = vec(ACTIONS["mixed"], n_envs=2, env_class=MaskedEnv)
    model = make(env, streams=curiosity, n_steps=16, batch_size=16).learn(64)
    assert model.logger.name_to_value["train/curiosity_loss"] > 0


def test_a_fault_is_a_time_limit_of_streams():
    costly = [lambda make=make: Giving(make(), cost=1.0) for make in fine_and("kill", at=5)]
    env = supervised(*costly, restarts=3)
    ones = Stream(lambda observations, *_: observations[:, 0] * 0 + 1, episodic=False, name="computed")
    streams = [Cost("cost", limit=1.0), Stream("cost", episodic=False, name="all"), ones]
    model, facts = make(env, streams=streams, n_steps=16, batch_size=16, n_epochs=1), Facts()
    model.learn(48, facts)
    buffer = model.rollout_buffer
    ended, continues, ones = buffer.stream_buffers
    faults = np.vectorize(lambda info: RESTART in info)(table(facts.rollouts[0], "infos"))
    assert buffer.valid is None and faults.sum() == 1
    # Its info has no entry: there is no reward but the value of the final observation, which the step began with.
    np.testing.assert_allclose(ended.rewards[faults], 0.99 * ended.values[faults], rtol=1e-5)
    assert continues.rewards[faults] == 0 and (continues.rewards[~faults] == 1).all() and (ones.rewards == 1).all()
    assert facts.logged[0]["rollout/ep_cost_mean"] == pytest.approx((8 + 8 + 4 + 8 + 8 + 8) / 6)
    env.close()


# --- in tensors -------------------------------------------------------------------------------------------------------


class CountingTensors(TensorEnv):
    """Counts steps; episodes end after four and five of them, by a time limit and by themselves."""

    def __init__(self):
        super().__init__(2, gym.spaces.Box(-10, 10, (1,)), gym.spaces.Box(-1, 1, (1,)))
        self.ends = th.tensor([4, 5])

    def reset(self, seed=None):
        self.t = th.zeros(2)
        return self.t[:, None]

    def step(self, actions):
        self.t = self.t + 1
        ended, final, infos = self.t == self.ends, self.t[:, None].clone(), {"terms": {"cost": self.t.clone()}}
        self.t = self.t.where(~ended, 0.0)
        cut = th.tensor([True, False])
        return Transition(self.t[:, None], actions[:, 0], ended & ~cut, ended & cut, final, infos=infos)


def test_a_simulator_without_final_observations_gives_a_warning():
    env = TensorTwin(3, ACTIONS["discrete"], limit=1000, final=False)
    with pytest.warns(UserWarning, match="streams are computed from the first observation of the next episode"):
        make(as_vec_env(env), streams=[CURIOSITY], n_steps=20, batch_size=20).learn(120)


def test_environments_in_tensors_have_streams():
    streams = [Cost(("terms", "cost"), limit=3.0, gamma=1.0), PROGRESS, CURIOSITY]
    model, facts = make(as_vec_env(CountingTensors()), streams=streams, n_steps=20, batch_size=20), Facts()
    model.learn(80, facts)
    cost, progressed, curiosity = model.rollout_buffer.stream_buffers
    steps, cut = np.arange(20), np.arange(20) % 4 == 3
    np.testing.assert_array_equal(cost.rewards[:, 1], steps % 5 + 1)
    np.testing.assert_array_equal(progressed.rewards[:, 1], 1)
    # At time limits, the values of final observations are added.
    np.testing.assert_array_equal(cost.rewards[~cut, 0], steps[~cut] % 4 + 1)
    np.testing.assert_array_equal(progressed.rewards[~cut, 0], 1)
    final = model.policy.predict_values(th.tensor([[4.0]]))[0]
    assert cost.rewards[cut, 0] != pytest.approx(4) and progressed.rewards[cut, 0] != pytest.approx(1)
    assert final.shape == (4,) and np.isfinite(curiosity.rewards).all()
    # Five episodes of 1 + 2 + 3 + 4 and four of 15.
    assert facts.logged[-1]["rollout/ep_cost_mean"] == pytest.approx((5 * 10 + 4 * 15) / 9)
    assert facts.logged[-1]["rollout/ep_progress_mean"] == pytest.approx((5 * 4 + 4 * 5) / 9)


@pytest.mark.parametrize("given", [{"cost": each} for each in (th.tensor(1.0), None, th.ones(3), th.ones(2, 2))] + [{}])
def test_what_a_simulator_gives_is_checked(given):
    class Wrong(CountingTensors):
        def step(self, actions):
            return super().step(actions)._replace(infos=given and {"terms": given})

    error, message = ValueError, "is .* in infos: return 2 numbers"
    if not given:
        error, message = KeyError, r"needs info\['terms'\]\['cost'\], but info has \[\]: have the env"
    with pytest.raises(error, match=f"(?s)the stream 'cost' {message}"):
        make(as_vec_env(Wrong()), streams=[Stream(("terms", "cost"))]).learn(T * N)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", [np.array([0.5]), [0.5], th.tensor(0.5)])
def test_one_number_in_any_form_is_a_reward(cost):
    model = make(Giving(Counting(), cost=cost), streams=[Stream("cost")]).learn(T)
    assert (model.rollout_buffer.stored("stream_rewards") == 0.5).all()


@pytest.mark.parametrize("cost", [{"a": 1.0}, "0.5", None, [1.0, 2.0]])
def test_what_is_not_a_number_is_named_with_its_environment(cost):
    with pytest.raises(ValueError, match="the stream 'cost' is .* in the info of environment 0: it must be one number"):
        make(Giving(Counting(), cost=cost), streams=[Stream("cost")]).learn(T)


def test_normalized_rewards_are_clipped_as_by_vec_normalize():
    model = make(Giving(Counting(), cost=1.0), streams=[Stream("cost", gamma=0.0, normalize=True)]).learn(T)
    assert (model.rollout_buffer.stream_buffers[0].rewards == 10.0).all()


def test_a_missing_key_is_named_with_its_environment():
    class Forgetful(Counting):
        def step(self, action):
            *rest, info = super().step(action)
            return *rest, ({} if self.t == 3 else {"cost": 1.0, "reward_terms": 2.0})

    env = counting(2)
    env.envs[1] = Forgetful()
    with pytest.raises(
        KeyError, match=r"the stream 'cost' needs info\['cost'\], but info of environment 1 has .*set it"
    ):
        make(env, streams=[COST]).learn(T)
    with pytest.raises(
        KeyError, match=r"needs info\['reward_terms'\]\['energy'\], but info of environment 1 has \['cost'"
    ):
        make(env, streams=[ENERGY]).learn(T)


def test_what_a_function_returns_is_checked():
    for wrong in (lambda obs, *_: obs, lambda obs, *_: obs.mean(), lambda obs, *_: obs[:, 0].numpy()):
        with pytest.raises(
            ValueError, match=rf"(?s)the stream 'f' is .* for {T * N} .* of shape \({T * N},\) from its fun"
        ):
            make(streams=[Stream(wrong, name="f")]).learn(T * N)
    with pytest.raises(FloatingPointError, match="the stream 'f' is not finite in step 0 of environment 0"):
        make(streams=[Stream(lambda obs, *_: obs[:, 0] / 0.0 * 0.0, name="f")]).learn(T * N)


class Diverging(Counting):
    """The last observation of an episode is not finite once, where nothing but curiosity uses it."""

    n_steps = 0

    def step(self, action):
        obs, reward, *_, info = super().step(action)
        self.n_steps += 1
        return obs * (np.nan if self.n_steps == T + 2 else 1.0), reward, self.n_steps % (T + 2) == 0, False, info


def test_a_last_observation_that_is_not_finite_changes_no_moments():
    model = make(DummyVecEnv([Diverging]), streams=[CURIOSITY])
    with pytest.raises(FloatingPointError, match=f"observation .*environment 0.* {T + 2}|step {T + 2}"):
        model.learn(2 * T)
    model.learn(2 * T)


class Talkative(RandomEnv):
    """Its observations have an entry that its space does not have."""

    def step(self, action):
        obs, *rest = super().step(action)
        return obs | {"more": np.zeros(2)}, *rest


def test_observations_may_have_more_than_their_space():
    space = spaces.Dict(a=VECTOR, b=VECTOR)
    env = VecMonitor(DummyVecEnv([lambda: TimeLimit(Talkative(ACTIONS["box"], space), 3)]))
    streams = [RandomNetworkDistillation()]
    model = PPO_Plus("MultiInputPolicy", env, n_steps=16, batch_size=16, n_epochs=1, streams=streams, device="cpu")
    assert model.learn(32)._n_updates == 2
