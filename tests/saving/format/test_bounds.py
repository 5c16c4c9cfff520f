"""What a file may build is bounded before it is built, by its weights."""

from functools import partial

import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn

from ppo_plus import PPO_Plus, register
from ppo_plus.saving.format import names
from ppo_plus.saving.format.bounds import MOST_NUMBERS, building, require_activation
from ppo_plus.saving.format.names import Damaged, Refused


class Squares(nn.Module):
    def forward(self, x):
        return x**2


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    monkeypatch.setattr(names, "_registered", {})


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.BatchNorm1d(600_000_000, affine=False),
        lambda: nn.Transformer(num_encoder_layers=150),
        lambda: nn.LSTM(1000, 1000, num_layers=10**9),
        lambda: th.zeros(1).expand(10**10).clone(),
        lambda: th.ones(100_000, 1) @ th.ones(1, 100_000),
        lambda: [nn.Parameter(th.empty(1)) for _ in range(10**9)],
    ],
)
def test_nothing_larger_than_its_weights_is_built(build):
    with pytest.raises(Damaged, match="larger than its weights"), building({"a": th.zeros(3)}):
        build()


def test_what_weights_explain_is_built_once():
    seen = []

    class Once(nn.Linear):
        def __init__(self):
            seen.append(self)
            super().__init__(MOST_NUMBERS // 4, 5)

    with building({"a": th.zeros(MOST_NUMBERS)}):
        before = th.get_rng_state()
        th.zeros(3).uniform_().sum().item()
        layer = Once()
    assert layer.weight.device.type == "cpu" and len(seen) == 1
    th.set_rng_state(before)
    th.zeros(3).uniform_()
    assert Once().weight.equal(layer.weight)


@pytest.mark.parametrize("activation", [nn.ReLU, partial(nn.LeakyReLU, 0.2), nn.Identity, nn.Softmax, Squares])
def test_activations_of_torch_and_of_the_program_are_allowed(activation):
    require_activation({"activation_fn": activation})


@pytest.mark.parametrize("activation", [nn.BatchNorm1d, nn.Upsample, partial(nn.Upsample, 9), NatureCNN])
def test_other_modules_are_registered_to_be_activations(activation):
    with pytest.raises(Refused, match="not one of torch's activations"):
        require_activation({"activation_fn": activation})
    register(nn.BatchNorm1d)
    require_activation({"activation_fn": nn.BatchNorm1d})


@pytest.mark.parametrize("cls", [PPO, PPO_Plus])
def test_a_file_does_not_choose_other_modules_as_activations(cls, tmp_path):
    model = cls("MlpPolicy", "CartPole-v1", device="cpu", policy_kwargs={"activation_fn": nn.Identity})
    model.policy_kwargs = {"activation_fn": nn.Flatten}
    model.save(tmp_path / "model")
    with pytest.raises(Refused, match="Flatten.*is not one of torch's activations"):
        PPO_Plus.load(tmp_path / "model")
    given = {"activation_fn": nn.Flatten}
    assert PPO_Plus.load(tmp_path / "model", policy_kwargs=given).policy_kwargs == given
