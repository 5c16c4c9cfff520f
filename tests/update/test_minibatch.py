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
from ppo_plus.update.flat import packed
from ppo_plus.update.gradient import others_of
from ppo_plus.update.minibatch import EagerMinibatch, UpdateRule

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
        with packed(each.policy.optimizer) as weights:
            for seed in range(3):
                th.manual_seed(seed)
                np.random.seed(seed)
                _, indices = next(each.rollout_buffer.minibatches(16, data))
                if pure:
                    # On copies, which it changes; the policy's weights stay unchanged meanwhile.
                    vector, moments = weights.vector.clone(), {k: v.clone() for k, v in weights.moments.items()}
                    others = [tensor.clone() for tensor in others_of(each.policy)()]
                    before = weights.vector.clone()
                    state, columns, record = rule(vector, moments, others, settled, data, state, indices)
                    assert th.equal(weights.vector, before)
                    weights.vector.copy_(vector)
                    for name, moment in weights.moments.items():
                        moment.copy_(moments[name])
                else:
                    state, columns, record = EagerMinibatch(rule, weights, settled)(data, state, indices)
            results.append((weights.vector.clone(), dict(weights.moments), columns, record, state))
    (vector, moments, columns, record, state), (other, others, names, numbers, final) = results
    th.testing.assert_close(vector, other, rtol=0, atol=2e-6)
    for name in moments:
        th.testing.assert_close(moments[name], others[name], rtol=1e-4, atol=1e-6)
    assert columns == names
    th.testing.assert_close(record, numbers, rtol=1e-4, atol=1e-6)
    assert state.running == final.running == (case != "stop")
