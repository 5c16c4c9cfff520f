"""Any optimizer of torch learns, packed or not."""

import pytest
import torch as th
from envs import ACTIONS, vec
from models import weights
from optimizers import OPTIONS
from parametrization import sample
from torch import nn
from training import make

from ppo_plus import MlpPolicy
from ppo_plus.update import minibatch


class EmptyGroup(th.optim.Adam):
    """Its first group has no parameters."""

    def __init__(self, params, **kwargs):
        super().__init__([{"params": []}, {"params": list(params)}], **kwargs)


def make_sgd(params, lr):
    return th.optim.SGD(params, lr=lr)


@pytest.mark.parametrize("optimizer_class", [EmptyGroup, make_sgd])
def test_whatever_makes_an_optimizer_is_accepted(optimizer_class):
    model = make(policy_kwargs={"optimizer_class": optimizer_class})
    before = weights(model)
    assert not th.equal(weights(model.learn(16)), before)


def test_a_class_that_is_not_an_optimizer_raises_an_error():
    with pytest.raises(TypeError, match="ReLU"):
        make(policy_kwargs={"optimizer_class": nn.ReLU})


@pytest.mark.parametrize("name", sample(OPTIONS, 4))
def test_an_optimizer_makes_the_same_weights_packed_or_not(name, monkeypatch):
    optimizer_class, optimizer_kwargs = OPTIONS[name]
    if optimizer_class is th.optim.Adam:  # SB3 chooses this eps itself, where no options are given
        optimizer_kwargs = optimizer_kwargs | {"eps": 1e-5}
    policy_kwargs = {"optimizer_class": optimizer_class, "optimizer_kwargs": optimizer_kwargs}
    results = []
    for elementwise in (minibatch.ELEMENTWISE, ()):
        monkeypatch.setattr(minibatch, "ELEMENTWISE", elementwise)
        model = make(env=vec(ACTIONS["box"]), policy_kwargs=policy_kwargs, learning_rate=1e-3)
        before = weights(model)
        # Two updates: state is packed, unpacked and packed again.
        results.append(weights(model.learn(32)))
    moved = (results[1] - before).abs().max()
    assert moved > 1e-5
    # Norms and fused kernels round differently; sixteen steps may carry that on, but not to where it matters.
    assert (results[0] - results[1]).abs().max() < 1e-3 * moved


def test_an_optimizer_may_have_several_parameter_groups():
    class TwoGroups(MlpPolicy):
        def _build(self, lr_schedule):
            super()._build(lr_schedule)
            actor = list(self.action_net.parameters())
            rest = [weight for weight in self.parameters() if all(weight is not each for each in actor)]
            groups = [{"params": actor, "weight_decay": 0.5}, {"params": rest}]
            self.optimizer = th.optim.AdamW(groups, lr=lr_schedule(1), weight_decay=0.0)

    model = make(policy=TwoGroups, learning_rate="lin_1e-2")
    before = weights(model)
    model.learn(32)
    assert not th.equal(weights(model), before)
    assert [group["weight_decay"] for group in model.policy.optimizer.param_groups] == [0.5, 0.0]
    assert [group["lr"] for group in model.policy.optimizer.param_groups] == [0.0, 0.0]
