"""One minibatch as a pure function, in place, and by parts: the same step."""

import copy

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, vec
from models import SMALL
from optimizers import coefficients_at
from torch import optim

from ppo_plus import PPO_Plus
from ppo_plus.update.flat import moments, packed, trainable
from ppo_plus.update.gradient import others_of
from ppo_plus.update.minibatch import UpdateRule

CASES = {
    "discrete": ("discrete", "MlpPolicy", {}),
    "penalty": ("box", "MlpPolicy", dict(kl_control="penalty", target_kl=0.01, use_sde=True, ent_coef=0.01)),
    "stop": ("mixed", "MlpPolicy", dict(target_kl=1e-6)),
    "memory": ("multidiscrete", "MlpGruPolicy", dict(policy_kwargs=SMALL)),
    "RMSprop": ("box", "MlpPolicy", dict(policy_kwargs=dict(optimizer_class=optim.RMSprop))),
}


def trained(case):
    action, policy, arguments = CASES[case]
    sizes = dict(n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu", compile=False)
    return PPO_Plus(policy, vec(ACTIONS[action]), **sizes | arguments).learn(64)


def arguments_of(model):
    return coefficients_at(model)._replace(learning_rate=th.tensor(1e-3))


@pytest.mark.parametrize("case", CASES)
def test_the_pure_function_and_the_step_in_place_agree(case):
    model = trained(case)
    twin = copy.deepcopy(model)
    results = []
    for each, pure in ((model, True), (twin, False)):
        control = each.settings.control
        rule = UpdateRule(each.policy, each.compute_loss, control, 0.5)
        state, settled = control.init(), arguments_of(each)
        data = each.rollout_buffer.on_device()
        with packed(each.policy.optimizer) as lent:
            for seed in range(3):
                th.manual_seed(seed)
                np.random.seed(seed)
                _, indices = next(each.rollout_buffer.minibatches(16, data))
                if pure:
                    # On copies, which it changes; the policy's weights stay unchanged meanwhile.
                    real, kept = trainable(lent)[0].data, moments(lent)
                    vector, copies = real.clone(), {name: moment.clone() for name, moment in kept.items()}
                    others = [tensor.clone() for tensor in others_of(each.policy)()]
                    before = real.clone()
                    state, names, record = rule(vector, copies, others, settled, data, state, indices)
                    assert th.equal(real, before)
                    real.copy_(vector)
                    for name, moment in kept.items():
                        moment.copy_(copies[name])
                else:
                    state, names, record = rule.in_place(lent, settled, rule.eager_gradient, data, state, indices)
            results.append((trainable(lent)[0].detach().clone(), dict(moments(lent)), names, record, state))
    (vector, kept, names, record, state), (other, others, same_names, numbers, final) = results
    th.testing.assert_close(vector, other, rtol=0, atol=2e-6)
    for name in kept:
        th.testing.assert_close(kept[name], others[name], rtol=1e-4, atol=1e-6)
    assert names == same_names
    th.testing.assert_close(record, numbers, rtol=1e-4, atol=1e-6)
    assert state.running == final.running == (case != "stop")
