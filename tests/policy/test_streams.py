"""Streams as arguments, in files, and as parts of policies."""

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy as SB3Policy
from stable_baselines3.common.vec_env import VecNormalize
from stream_envs import COST, CURIOSITY, ENERGY, STREAMS, counting, progress

from ppo_plus import Cost, PPO_Plus, RandomNetworkDistillation, Stream, register
from ppo_plus.policy.streams import StreamPart
from ppo_plus.saving.export import Deployed


class Overriding(SB3Policy):
    """Written for SB3."""

    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


def make(streams, policy="MlpPolicy", **kwargs):
    return PPO_Plus(policy, counting(2), streams=streams, n_steps=16, batch_size=16, seed=0, device="cpu", **kwargs)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: make(COST), TypeError, "streams=Cost.* must be a list of streams, such as"),
        (lambda: make(["cost"]), TypeError, r"streams='cost' must be a list of streams"),
        (lambda: make([COST, Stream("cost")]), ValueError, r"have the names \['cost', 'cost'\]: give each another"),
        (lambda: Stream(3), TypeError, "Stream: source=3 must be a key of info, a tuple of keys, or a function"),
        (lambda: Stream(()), TypeError, r"Stream: source=\(\) must be a key"),
        (lambda: Stream("a", gamma=1.5), ValueError, r"Stream: gamma=1.5 must be a number in \[0, 1\]"),
        (lambda: Stream("a", weight="often"), ValueError, "Stream: weight='often' is not a valid schedule"),
        (lambda: Cost("cost", limit=-1), ValueError, r"Cost: limit=-1 must be a number in \[0, 3.4"),
        (lambda: Cost("cost", limit=float("inf")), ValueError, r"Cost: limit=inf must be a number in \[0, 3.4"),
        (lambda: Stream("a", name=""), ValueError, "Stream: name='' is a part of names in logs: pass name="),
        (lambda: Stream(("a", "b/c")), ValueError, "Stream: name='b/c' is a part of names in logs: pass name="),
        (lambda: make([Stream("a", name="value")]), ValueError, r"have the names \['value'\]: .* none of \('value'"),
        (lambda: make([Stream("rew")]), ValueError, r"have the names \['rew'\]"),
        (lambda: make([Cost("c", limit=1, name="return")]), ValueError, r"have the names \['return'\]"),
        (lambda: RandomNetworkDistillation(gamma=-1), ValueError, r"RandomNetworkDistillation: gamma=-1 must be"),
        (
            lambda: make(
                [COST], policy_kwargs={"critic": lambda n, m: th.nn.Sequential(th.nn.Linear(n, m), th.nn.Tanh())}
            ),
            ValueError,
            "streams: each needs a head beside the critic's last layer, but Tanh.* is not a torch.nn.Linear",
        ),
        (lambda: make([COST], policy_kwargs={"streams": []}), TypeError, r"PPO_Plus\(..., streams="),
        (lambda: make([COST], Overriding), ValueError, "streams=.* does not reach a policy class that overrides SB3's"),
    ],
)
def test_wrong_arguments_are_named(wrong, error, message):
    with pytest.raises(error, match=message):
        wrong()


def test_names_may_be_long(capsys):
    name = "of a collision with one of many obstacles"
    make([Stream("cost", name=name)], verbose=1).learn(64)
    assert f"{name}_explained_variance" in capsys.readouterr().out


def test_names_and_places_of_streams():
    assert [stream.name for stream in STREAMS] == ["cost", "energy", "progress", "curiosity"]
    assert ENERGY.find({"reward_terms": {"energy": 2.0}}) == 2.0
    assert COST.path == ("cost",) and not CURIOSITY.path and CURIOSITY.is_computed


def test_the_weights_of_the_reward_are_those_of_a_model_without_streams():
    with_streams, without = make(STREAMS).policy, make([]).policy
    for name, weight in without.state_dict().items():
        assert th.equal(with_streams.state_dict()[name], weight), name
    obs = th.randn(5, 2)
    assert with_streams.predict_values(obs).shape == (5, 5) and without.predict_values(obs).shape == (5, 1)
    th.testing.assert_close(with_streams.predict_values(obs)[:, :1], without.predict_values(obs))
    # SB3's interface has the values of the reward.
    assert with_streams.forward(obs)[1].shape == with_streams.evaluate_actions(obs, th.zeros(5, 1))[0].shape == (5, 1)


def test_normalized_values_stay_the_same_when_moments_are_added():
    model = make([COST, ENERGY], normalize_values=True)
    model.learn(32)
    obs = th.randn(20, 2)
    before = model.policy.predict_values(obs)
    model.rollout_buffer.returns[:] += 100.0
    model.policy.before_update(model.rollout_buffer.transitions, model.shared.total)
    th.testing.assert_close(model.policy.predict_values(obs), before, rtol=1e-3, atol=1e-3)
    normalizer = model.policy.value_normalizer
    assert normalizer.mean[0] > 10 > normalizer.mean[1:].abs().max()
    scaled = normalizer.in_units_of_values({"vf_coef": 0.5, "clip_range_vf": 0.2})
    assert scaled["vf_coef"] == pytest.approx((0.5 / normalizer.std**2).tolist())
    assert scaled["clip_range_vf"] == pytest.approx((0.2 * normalizer.std).tolist())


def test_a_saved_model_has_its_streams(tmp_path):
    register(progress)
    model = make(STREAMS).learn(64)
    model.save(tmp_path / "model")
    loaded = PPO_Plus.load(tmp_path / "model", env=counting(2), device="cpu")
    assert loaded.streams == model.streams
    for name, value in model.policy.state_dict().items():
        assert th.equal(loaded.policy.state_dict()[name], value), name
    assert loaded.policy.streams.weights(0.5) == model.policy.streams.weights(0.5)
    assert not loaded.policy.streams.parts[3].target[1].weight.requires_grad
    loaded.learn(32)


def test_a_stream_that_no_file_can_describe_is_asked_for(tmp_path):
    streams = [Stream(lambda obs, *_: obs[:, 0], name="first")]
    with pytest.warns(UserWarning, match="saved without streams"):
        make(streams).save(tmp_path / "model")
    with pytest.raises(ValueError, match="Pass streams="):
        PPO_Plus.load(tmp_path / "model")
    assert PPO_Plus.load(tmp_path / "model", streams=streams).policy.streams.parts[0].stream is streams[0]


@pytest.mark.parametrize("names", ["", "a", "ba", "abc"])
def test_other_streams_than_in_the_file_raise_an_error(names, tmp_path):
    make([Stream("a"), Stream("b")]).save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"must have the names of those in the file: \['a', 'b'\]"):
        PPO_Plus.load(tmp_path / "model", streams=[Stream(name) for name in names])


def test_statistics_do_not_move_into_a_policy_whose_streams_saw_normalized_observations():
    model = PPO_Plus("MlpPolicy", VecNormalize(counting(2)), n_steps=16, streams=[RandomNetworkDistillation()])
    with pytest.raises(ValueError, match="computed from observations would now get raw ones: keep VecNormalize"):
        model.absorb_normalization()
    assert Deployed(model, "environment").policy.streams is None


@pytest.mark.exhaustive
def test_an_exported_policy_acts_as_predict_does(tmp_path):
    pytest.importorskip("onnxruntime")
    make(STREAMS, normalize_values=True).learn(32).export(tmp_path / "policy.onnx")


@pytest.mark.parametrize("kwargs", [{}, {"normalize_values": True}])
def test_demonstrations_teach_the_value_of_the_reward_alone(kwargs):
    model = make(STREAMS, gamma=0.5, **kwargs)
    before = {name: value.clone() for name, value in model.policy.streams.state_dict().items()}
    rng = np.random.default_rng(0)
    data = {
        "observations": rng.normal(size=(256, 2)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (256, 1)).astype(np.float32),
        "rewards": np.ones(256),
        "terminations": np.arange(256) % 4 == 3,
    }
    model.pretrain(data, n_epochs=20)
    assert all(th.equal(value, before[name]) for name, value in model.policy.streams.state_dict().items())
    values = model.policy.predict_values(th.from_numpy(data["observations"]))
    assert values.shape == (256, 5) and values[:, 0].mean().item() == pytest.approx(1.53, abs=0.4)
    model.learn(32)


def test_demonstrations_scale_the_value_of_the_reward_once():
    model = make(STREAMS, gamma=0.5, normalize_values=True)
    observations = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    data = {
        "observations": observations,
        "actions": np.zeros((64, 1), np.float32),
        "rewards": np.full(64, 1e4),
        "terminations": np.arange(64) % 4 == 3,
    }
    model.pretrain(data, n_epochs=1)
    assert model.policy.predict_values(th.from_numpy(observations))[:, 0].mean().item() == pytest.approx(1.5e4, rel=0.3)
    normalizer = model.learn(32).policy.value_normalizer
    before = {name: moments.clone() for name, moments in normalizer.state_dict().items()}
    model.pretrain(data, n_epochs=1)
    assert all(th.equal(moments, before[name]) for name, moments in normalizer.state_dict().items())


def test_sb3_has_no_streams(tmp_path):
    with pytest.raises(ValueError, match="cannot read this model: it does not support streams"):
        make([COST]).to_sb3(tmp_path / "sb3")


def test_a_stream_of_ones_own_may_learn():
    """A loss of its own, and weights that the optimizer has."""

    class Habit(StreamPart):
        """Rewards what a layer predicts of the observation, which it learns to be 1."""

        def __init__(self, stream, policy):
            super().__init__(stream)
            self.layer = th.nn.Linear(policy.observation_space.shape[0], 1)

        def rewards(self, observations, actions, next_observations):
            return self.layer(next_observations).squeeze(1)

        def loss(self, observations, actions, next_observations):
            return (self.layer(next_observations) - 1).square().mean()

    class Habits(Stream):
        is_computed = True

        def part(self, policy):
            return Habit(self, policy)

    model = make([Habits(None, name="habit")], learning_rate=0.01)
    model.learn(32)
    first = model.logger.name_to_value["train/habit_loss"]
    model.learn(320)
    assert model.logger.name_to_value["train/habit_loss"] < first / 2
