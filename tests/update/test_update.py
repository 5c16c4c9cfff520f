"""One minibatch as a pure function, in place, and by parts: the same step."""

import copy

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, vec
from memories import SMALL
from torch import optim

from ppo_plus import KLControl, PPO_Plus
from ppo_plus.settings import make_coefficients
from ppo_plus.update.flat import packed
from ppo_plus.update.gradient import others_of
from ppo_plus.update.update import MAX_SKIPPED, Skipped, Update, run_epochs

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
    coefficients = make_coefficients(model.settings.values(1.0), th.device("cpu"))
    target = model.settings.values(1.0)["target_kl"]
    return coefficients, th.tensor(1e-3), th.tensor(float("nan") if target is None else target)


@pytest.mark.parametrize("case", CASES)
def test_the_pure_function_and_the_step_in_place_agree(case):
    model = trained(case)
    twin = copy.deepcopy(model)
    results = []
    for each, pure in ((model, True), (twin, False)):
        control = each.settings.control
        update = Update(each.policy, each.compute_loss, control, 0.5)
        state, settled = control.init(), arguments_of(each)
        data = each.rollout_buffer.on_device()
        with packed(each.policy.optimizer) as weights:
            for seed in range(3):
                th.manual_seed(seed)
                np.random.seed(seed)
                _, indices = next(each.rollout_buffer.minibatches(16, data))
                if pure:
                    # On copies, which it changes; the policy's own weights stay as they are meanwhile.
                    vector, moments = weights.vector.clone(), {k: v.clone() for k, v in weights.moments.items()}
                    others = [tensor.clone() for tensor in others_of(each.policy)()]
                    before = weights.vector.clone()
                    state, columns, record = update(vector, moments, others, *settled, data, state, indices)
                    assert th.equal(weights.vector, before)
                    weights.vector.copy_(vector)
                    for name, moment in weights.moments.items():
                        moment.copy_(moments[name])
                else:
                    state, columns, record = update.plain(weights, *settled)(data, state, indices)
            results.append((weights.vector.clone(), dict(weights.moments), columns, record, state))
    (vector, moments, columns, record, state), (other, others, names, numbers, final) = results
    th.testing.assert_close(vector, other, rtol=0, atol=2e-6)
    for name in moments:
        th.testing.assert_close(moments[name], others[name], rtol=1e-4, atol=1e-6)
    assert columns == names
    th.testing.assert_close(record, numbers, rtol=1e-4, atol=1e-6)
    assert state.running == final.running == (case != "stop")


def test_bad_minibatches_are_counted_in_a_row():
    skipped = Skipped()
    skipped.count([False] * (MAX_SKIPPED - 1))
    skipped.count([True] + [False] * (MAX_SKIPPED - 1))
    with pytest.raises(FloatingPointError, match=f"not finite in {MAX_SKIPPED} minibatches in a row"):
        skipped.count([False])


class UntilSecondEpoch(KLControl):
    """Ends the update after the second epoch."""

    def after_epoch(self, state, kl, target):
        return state._replace(running=state.running & (kl < 2))


def test_a_control_may_end_the_update_after_an_epoch():
    model = trained("discrete")
    made = []

    def minibatch(data, state, indices):
        made.append(data)
        _, columns, record = real(data, state, indices)
        record[columns.names.index("approx_kl")] = float(data)
        return state, columns, record

    with packed(model.policy.optimizer) as weights:
        plain = Update(model.policy, model.compute_loss, KLControl(), 0.5).plain(weights, *arguments_of(model))
        rollout = model.rollout_buffer.on_device()
        real = lambda data, state, indices: plain(rollout, state, indices)  # noqa: E731
        epochs = [[(epoch, None)] * 2 for epoch in (1, 2, 3)]
        control = UntilSecondEpoch()
        done = run_epochs(minibatch, epochs, control, control.init(), th.tensor(0.0), Skipped())
    assert made == [1, 1, 2, 2] and done.n_epochs == 2 and done.kl == 2 and not done.state.running
