"""Policies with memory: sb3-contrib's networks and contract, and training on sequences."""

import copy
import io
from itertools import product

import gymnasium as gym
import numpy as np
import optree
import pytest
import torch as th
from envs import ACTIONS, OBSERVATIONS, MaskedEnv, RandomEnv, vec
from models import SMALL, STRUCTURES, NoTraining, make_recurrent
from parametrization import sample
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from training import At

from ppo_plus import Carry, PPO_Plus
from ppo_plus.formulas.losses import Coefficients, normalize
from ppo_plus.process import WORTH_THREADS

# --- networks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", STRUCTURES)
def test_initial_weights_and_first_rollout_are_recurrent_ppos(structure):
    models = []
    for algorithm in (RecurrentPPO, PPO_Plus):
        env = vec(ACTIONS["discrete"], n_envs=2)
        kwargs = dict(n_steps=16, batch_size=16, seed=3, device="cpu", policy_kwargs=STRUCTURES[structure])
        model = algorithm("MlpLstmPolicy", env, **kwargs)
        model.train = lambda: None
        models.append(model.learn(32))
        own = model.policy.state_dict() if algorithm is PPO_Plus else {}
    theirs = models[0].policy.state_dict()
    assert list(theirs) == list(own)
    assert all(th.equal(theirs[name], own[name]) for name in theirs)
    old, new = (model.rollout_buffer for model in models)
    np.testing.assert_array_equal(new.actions, old.actions.reshape(new.actions.shape))
    np.testing.assert_array_equal(new.episode_starts, old.episode_starts)
    assert old.episode_starts[1:].any()
    for name in ("rewards", "values", "log_probs", "advantages", "returns"):
        np.testing.assert_allclose(getattr(new, name), getattr(old, name), rtol=0, atol=2e-5, err_msg=name)


def test_a_saved_policy_remembers_its_arguments(tmp_path):
    model = make_recurrent(memory=STRUCTURES["shared"] | dict(lstm_kwargs=dict(bias=False)))
    model.policy.save(tmp_path / "policy")
    loaded = type(model.policy).load(tmp_path / "policy", device="cpu")
    assert all(
        th.equal(a, b) for a, b in zip(model.policy.state_dict().values(), loaded.state_dict().values(), strict=True)
    )


# --- predict -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("starts", [True, [True], [True] * 3, [[True, False]]])
def test_starts_of_another_length_raise_an_error(starts):
    model = make_recurrent()
    obs = np.stack([model.observation_space.sample() for _ in range(2)])
    with pytest.raises(ValueError, match="episode_start=.* must have one value for each of 2 observations"):
        model.predict(obs, None, starts)
    both = [model.predict(obs, None, kind)[1] for kind in (np.array([[True], [False]]), [True, False])]
    assert all(map(np.array_equal, *both))


def saved(model):
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    return file


@pytest.mark.parametrize(("structure", "observation"), sample(product(STRUCTURES, ["box", "image", "dict"]), 4))
def test_a_taken_over_recurrent_ppo_acts_alike(structure, observation):
    policy = {"box": "MlpLstmPolicy", "image": "CnnLstmPolicy", "dict": "MultiInputLstmPolicy"}[observation]
    # sb3-contrib cannot take n-dimensional choices.
    space = OBSERVATIONS[observation]
    if observation == "dict":
        space = gym.spaces.Dict({key: space[key] for key in ("image", "vector")})
    kwargs = dict(n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu")
    policy_kwargs = STRUCTURES[structure] | dict(lstm_hidden_size=8, ortho_init=False)
    source = RecurrentPPO(policy, vec(ACTIONS["box"], space), policy_kwargs=policy_kwargs, **kwargs).learn(32)
    file, env = saved(source), vec(ACTIONS["box"], space)
    for model in (PPO_Plus.from_sb3(file), PPO_Plus.from_sb3(file, env=env, sequence_length=4)):
        assert type(model.policy).__name__ == policy
        states = [None, None]
        for starts in ([True, True], [False, False], [False, True]):
            obs = env.reset()
            (theirs, states[0]), (ours, states[1]) = (
                each.predict(obs, state, np.array(starts), deterministic=True)
                for each, state in zip((source, model), states, strict=True)
            )
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
            for a, b in zip(*states, strict=True):
                assert a.shape == b.shape
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    before = model.num_timesteps
    model.learn(32, reset_num_timesteps=False)
    assert model.num_timesteps == before + 32


def test_a_custom_recurrent_policy_raises_an_error():
    class Own(RecurrentPPO.policy_aliases["MlpLstmPolicy"]):
        pass

    with pytest.raises(ValueError, match="RecurrentActorCriticPolicy: derive it from ppo_plus.MlpLstmPolicy"):
        PPO_Plus.from_sb3(saved(RecurrentPPO(Own, "CartPole-v1", n_steps=16)), trust_pickle=True)


@pytest.mark.parametrize(("policy", "n_parts"), [("MlpLstmPolicy", 2), ("MlpGruPolicy", 1)])
def test_predict_remembers_through_its_state_only(policy, n_parts):
    model = make_recurrent(policy=policy, memory=dict(n_lstm_layers=3))
    first, second = (np.stack([model.observation_space.sample() for _ in range(4)]) for _ in range(2))
    _, state = model.predict(first, deterministic=True)
    assert [part.shape for part in state] == [(3, 4, 12)] * n_parts
    _, after = model.predict(second, state, np.array([False, True, False, False]))
    _, alone = model.predict(second)
    for a, b in zip(after, alone, strict=True):
        np.testing.assert_allclose(a[:, 1], b[:, 1], atol=1e-6)
        assert not np.allclose(a[:, 0], b[:, 0], atol=1e-3)
    # One observation, not a batch.
    action, state = model.predict(first[0])
    assert np.shape(action) == () and state[0].shape == (3, 1, 12)
    with pytest.raises(ValueError, match=r"state has arrays of shapes .*, but 4 observations need"):
        model.predict(first, state)


# --- sequences -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "structure"), [("MlpLstmPolicy", "shared"), ("MlpLstmPolicy", "none"), ("MlpGruPolicy", "two layers")]
)
def test_the_loss_is_that_of_each_episode_by_itself(policy, structure):
    """Values and log-probabilities, computed episode by episode with torch's own layers, and the loss from them."""
    model = make_recurrent(policy=policy, memory=STRUCTURES[structure], n_envs=3, n_steps=24, ent_coef=0.01)
    model.train = lambda: None
    model.learn(72)
    del model.train
    # Other weights than those of the rollout, so that ratios are not 1.
    with th.no_grad():
        for weight in model.policy.parameters():
            weight.add_(0.02 * th.randn_like(weight))
    (batch,) = model.rollout_buffer.get()
    coefficients = Coefficients(th.tensor(0.2), None, th.tensor(0.01), th.tensor(0.5))
    loss = model.compute_loss(batch, coefficients).total
    grads = th.autograd.grad(loss, list(model.policy.parameters()), allow_unused=True)

    values, log_probs = [], []
    for i in range(9):
        rows = slice(8 * i, 8 * i + 8)
        memory = {owner: tuple(part[i] for part in state) for owner, state in batch.carry.memory.items()}
        one = by_episode(model.policy, batch.observations[rows], memory, batch.episode_starts[rows])
        for latent_pi, latent_vf in one:
            params = model.policy.action_dist.params(model.policy.action_net(latent_pi), None)
            values.append(model.policy.value_net(latent_vf).flatten())
            log_probs.append(params)
    values, params = th.cat(values), th.cat(log_probs)
    dist = model.policy.action_dist
    ratio = (dist.log_prob(params, batch.actions) - batch.old_log_prob).exp()
    advantages = normalize(batch.advantages)
    surrogate = th.min(advantages * ratio, advantages * ratio.clamp(0.8, 1.2)).mean()
    reference = -surrogate - 0.01 * dist.entropy(params).mean() + 0.5 * (batch.returns - values).square().mean()
    assert batch.episode_starts.any() and (ratio - 1).abs().max() > 1e-3
    th.testing.assert_close(loss, reference, rtol=1e-5, atol=1e-5)
    expected = th.autograd.grad(reference, list(model.policy.parameters()), allow_unused=True)
    for ours, theirs in zip(grads, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            th.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def by_episode(policy, observations, memory, starts):
    """The latent layers of one sequence, each episode in it run on its own."""
    firsts = sorted({0, *starts.nonzero().flatten().tolist()})
    features = policy.extract_features(observations)
    for first, end in zip(firsts, [*firsts[1:], len(starts)], strict=True):
        piece, outputs = features[first:end, None], {}
        for owner, layer in policy._layers.items():
            state = [(part[None] * (not starts[first])).transpose(0, 1).contiguous() for part in memory[owner]]
            own = layer.forward(piece, tuple(state) if len(state) == 2 else state[0])
            outputs[owner] = own[0][:, 0]
            memory = memory | {owner: tuple(th.zeros_like(part) for part in memory[owner])}
        if not policy.enable_critic_lstm:
            critic = outputs["actor"].detach() if policy.shared_lstm else policy.critic(features[first:end])
            outputs["critic"] = critic
        networks = policy.mlp_extractor
        yield networks.forward_actor(outputs["actor"]), networks.forward_critic(outputs["critic"])


# --- collecting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_steps", "sequence_length", "batch_size"), [(16, 4, 16), (16, 16, 32), (12, 1, 6)])
def test_an_epoch_has_every_sequence_once(n_steps, sequence_length, batch_size):
    model = make_recurrent(n_envs=3, n_steps=n_steps, sequence_length=sequence_length, batch_size=batch_size)
    model.train = lambda: None
    model.learn(3 * n_steps)
    buffer, seen = model.rollout_buffer, []
    for batch in buffer.get(batch_size):
        n_sequences = len(batch.carry.memory["actor"][0])
        assert len(batch.returns) == n_sequences * sequence_length <= batch_size
        for returns in batch.returns.view(n_sequences, -1):
            (env,), (step,) = np.where(buffer.returns.T == returns[0].item())
            assert step % sequence_length == 0
            np.testing.assert_array_equal(returns, buffer.returns[step : step + sequence_length, env])
            seen.append((env, step))
    assert len(set(seen)) == len(seen) == 3 * n_steps // sequence_length


def test_memory_is_kept_between_rollouts_and_noise_renewals():
    together = NoTraining("MlpLstmPolicy", vec(ACTIONS["box"]), n_steps=16, batch_size=16, seed=0, policy_kwargs=SMALL)
    apart = NoTraining("MlpLstmPolicy", vec(ACTIONS["box"]), n_steps=4, batch_size=4, seed=0, policy_kwargs=SMALL)
    for model in (together, apart):
        model.learn(32)
    for a, b in zip(together.position.carry.memory["actor"], apart.position.carry.memory["actor"], strict=True):
        th.testing.assert_close(a, b)
    model = make_recurrent("box", use_sde=True, sde_sample_freq=-1)
    carries = []

    class Watch(BaseCallback):
        def _on_rollout_end(self):
            carries.append(self.model.position.carry)

        def _on_step(self):
            if self.n_calls % 16 == 1:
                memory = {"actor": self.model.rollout_buffer.memories[0]["actor"]}
                carries.append(self.model.position.carry._replace(memory=memory))
            return True

    model.learn(64, Watch())
    first_end, second_start = carries[1:3]
    assert not th.equal(first_end.noise["theta"], second_start.noise["theta"])
    assert all(th.equal(a, b) for a, b in zip(first_end.memory["actor"], second_start.memory["actor"], strict=True))


def test_timeouts_and_the_last_value_see_what_is_remembered():
    """The value of an episode's final observation is that under the memory of this episode."""
    env = vec(ACTIONS["discrete"], max_steps=5, p_end=0.0)
    model = make_recurrent(env=env, n_steps=8, batch_size=8)
    model.train = lambda: None
    finals, rewards, observations = {}, [], []

    class Watch(BaseCallback):
        def _on_step(self):
            observations.append(self.locals["obs_tensor"])
            rewards.append(self.locals["rewards"].copy())
            for i in np.flatnonzero(self.locals["dones"]):
                finals[self.n_calls - 1, i] = self.locals["infos"][i]["terminal_observation"]
            return True

    model.learn(16, Watch())
    assert sorted(finals) == [(4, 0), (4, 1)]
    buffer = model.rollout_buffer
    for (step, env), final in finals.items():
        episode = th.stack([*(obs[env] for obs in observations[: step + 1]), th.as_tensor(final)])
        value = replayed_value(model.policy, episode)
        assert buffer.rewards[step, env] == pytest.approx(rewards[step][env] + model.gamma * value, abs=1e-5)
        assert abs(value - replayed_value(model.policy, episode[-1:])) > 1e-3
    # What GAE took for the value after the rollout: the advantage of the last step is its TD error.
    for env in range(2):
        last = th.stack([*(obs[env] for obs in observations[5:]), th.as_tensor(model._last_obs[env])])
        error = buffer.rewards[7, env] + model.gamma * replayed_value(model.policy, last) - buffer.values[7, env]
        assert buffer.advantages[7, env] == pytest.approx(error, abs=1e-5)


def replayed_value(policy, episode):
    """The value of the last observation of an episode."""
    memory = policy.init_memory(1)
    with th.no_grad():
        for obs in episode:
            values = policy.predict_values(obs[None], Carry(memory))
            memory = policy.encode_step(obs[None], memory)[1]
    return values.item()


@pytest.mark.parametrize("policy", ["MlpLstmPolicy", "MlpGruPolicy"])
def test_a_checkpoint_resumes_within_its_episodes(policy, tmp_path):
    model = make_recurrent("box", policy, use_sde=True, sde_sample_freq="episode").learn(32)
    model.save(tmp_path / "model")
    env = copy.deepcopy(model.env)
    loaded = PPO_Plus.load(tmp_path / "model", env=env, device="cpu", force_reset=False)
    for a, b in zip(*(optree.tree_leaves(each.position.carry) for each in (model, loaded)), strict=True):
        assert th.equal(a, b) and a.any()
    for each in (model, loaded):
        th.manual_seed(5)
        np.random.seed(5)
        each.learn(32, reset_num_timesteps=False)
    for a, b in zip(model.policy.parameters(), loaded.policy.parameters(), strict=True):
        assert th.equal(a, b)
    fresh = PPO_Plus.load(tmp_path / "model", env=vec(ACTIONS["box"]), device="cpu")
    fresh.learn(32)


# --- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (dict(sequence_length=5), r"sequence_length=5 must divide n_steps=16 and batch_size=16: use a divisor of 16"),
        (dict(sequence_length=8, batch_size=12), r"must divide n_steps=16 and batch_size=12: use a divisor of 4"),
        (dict(sequence_length=0), "sequence_length"),
        (dict(sequence_length="auto", n_steps=17), r"n_steps=17 and batch_size=16 have no common divisor"),
        (dict(memory=dict(lstm_hidden_size=0)), "lstm_hidden_size=0"),
        (dict(memory=dict(n_lstm_layers=0)), "n_lstm_layers=0"),
        (dict(memory=dict(shared_lstm=True)), "shared_lstm=True needs enable_critic_lstm=False"),
        (
            dict(memory=STRUCTURES["shared"] | dict(share_features_extractor=False)),
            "shared_lstm=True needs share_features_extractor=True",
        ),
        (dict(memory=dict(lstm_kwargs=dict(bidirectional=True))), "may only set bias and dropout"),
    ],
)
def test_arguments_are_checked(kwargs, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make_recurrent(**kwargs)


def test_arguments_of_memory_without_it_raise_an_error():
    env = gym.make("CartPole-v1")
    with pytest.raises(ValueError, match="sequence_length=8 has no effect on a policy without memory"):
        PPO_Plus("MlpPolicy", env, sequence_length=8)


@pytest.mark.parametrize(
    ("n_steps", "batch_size", "expected"), [(2048, 64, 16), (100, 50, 10), (12, 64, 4), (7, 14, 7), (1, 8, 1)]
)
def test_automatic_length_of_sequences(n_steps, batch_size, expected):
    model = make_recurrent(n_steps=n_steps, batch_size=batch_size, sequence_length="auto", n_envs=8)
    assert model.settings.steps_per_sequence == expected


def test_small_steps_use_one_thread(monkeypatch):
    # 64 transitions of this many weights would be worth several threads, 4 of them are not.
    model = make_recurrent(n_steps=64, batch_size=64, sequence_length=16, memory=dict(lstm_hidden_size=256))
    n_weights = sum(weight.numel() for weight in model.policy.parameters())
    assert 4 * n_weights < WORTH_THREADS < 64 * n_weights
    assert model.settings.threads(model.policy, model.device) == 1
    # A scan computes with all transitions at once.
    scan = make_recurrent(
        policy="MlpLruPolicy", n_steps=64, batch_size=64, sequence_length=16, memory=dict(lstm_hidden_size=4096)
    )
    assert 64 * sum(weight.numel() for weight in scan.policy.parameters()) > WORTH_THREADS
    monkeypatch.setattr(th, "get_num_threads", lambda: 7)
    assert (
        scan.settings.threads(scan.policy, scan.device) == 7 and model.settings.threads(model.policy, model.device) == 1
    )


def test_evaluation_passes_masks_and_memory():
    """Environments that raise on forbidden actions, and a policy that depends on its state."""
    model = make_recurrent(
        env=vec(ACTIONS["discrete"], env_class=MaskedEnv), use_sde=True, sde_sample_freq="episode"
    ).learn(32)
    states = []
    predict = model.policy.predict

    def spy(observation, state, *rest, **kwargs):
        states.append(state)
        return predict(observation, state, *rest, **kwargs)

    model.policy.predict = spy
    for by_sb3 in (False, True):
        states.clear()
        env = vec(ACTIONS["discrete"], env_class=RandomEnv if by_sb3 else MaskedEnv)
        mean, _ = evaluate_policy(model, env, 4, warn=False) if by_sb3 else model.evaluate(4, env)
        assert np.isfinite(mean)
        assert states[0] is None and all(part.any() for state in states[1:] for part in state)


@pytest.mark.parametrize(
    ("at", "sizes"),
    [("end", {"batch_size": size}) for size in (8, 24, 40)]
    + [("start", {"n_steps": 24}), ("start", {"n_steps": 36, "batch_size": 36})],
    ids=str,
)
def test_sizes_that_a_callback_assigns_leave_memories_with_their_sequences(at, sizes):
    """Weights that stay predict in the update what they predicted in the rollout."""

    class Compared(PPO_Plus):
        largest = 0.0

        def compute_loss(self, batch, coefficients):
            values, _ = self.policy.evaluate(batch.observations, batch.carry, batch.episode_starts, batch.masks)
            self.largest = max(self.largest, (values - batch.old_values).abs().max().item())
            return super().compute_loss(batch, coefficients)

    env, small = vec(ACTIONS["discrete"], n_envs=2), {"n_epochs": 1, "policy_kwargs": {"lstm_hidden_size": 8}}
    model = Compared("MlpLstmPolicy", env, n_steps=64, batch_size=64, learning_rate=0.0, seed=0, device="cpu", **small)
    model.learn(200, At(lambda model: vars(model).update(sizes), hooks=[f"rollout_{at}"]))
    assert model.largest < 1e-5
    assert {name: getattr(model, name) for name in sizes} == sizes
