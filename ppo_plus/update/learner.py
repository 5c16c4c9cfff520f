"""Learning from rollout after rollout: what lasts from one update to the next, and what is logged of each."""

from collections.abc import Iterable
from typing import Any

import torch as th

from ppo_plus.formulas.kl_control import KLControl, KLState, same_control
from ppo_plus.update.update import Minibatch, Progress, Skipped, run_epochs


class Learner:
    """The state of learning, besides weights and optimizer."""

    def __init__(self) -> None:
        #: The KL control of the last update, and what it remembers (running, beta, lr_scale).
        self.kl_memory: tuple[KLControl, tuple[float, ...]] | None = None
        self.skipped = Skipped()

    def kl_state(self, control: KLControl) -> KLState:
        """What a control remembers as an update begins: running, and otherwise what the last update left.

        :param control: the present control, which begins anew where it is another one
        """
        state = control.init()
        if self.kl_memory is not None and same_control(self.kl_memory[0], control):
            state = KLState(*map(th.tensor, self.kl_memory[1]))
        return state._replace(running=th.tensor(True))

    def learn(
        self,
        minibatch: Minibatch,
        epochs: Iterable[Iterable[tuple[Any, th.Tensor | None]]],
        control: KLControl,
        state: KLState,
        target_kl: th.Tensor,
    ) -> Progress:
        """One update.

        :param minibatch: makes one minibatch
        :param epochs: for each epoch its minibatches, as pairs of the rollout and the rows of it
        :param control: the KL control
        :param state: its state (:meth:`kl_state`)
        :param target_kl: its target, 0-d
        :raises FloatingPointError: too many minibatches in a row had a non-finite loss or gradient
        """
        state = KLState(*(value.to(target_kl.device) for value in state))
        done = run_epochs(minibatch, epochs, control, state, target_kl, self.skipped)
        self.kl_memory = control, tuple(float(value) for value in done.state)
        return done


def metrics(done: Progress, control: KLControl, explained: float, policy: Any) -> dict[str, float]:
    """What is logged of an update, as ``train/<name>``.

    :param done: the update
    :param control: its KL control
    :param explained: how much of the variance of returns the critic has predicted
    :param policy: the policy
    """
    found = done.records.means() | {"explained_variance": explained}
    if hasattr(policy, "log_std"):
        found["std"] = policy.log_std.detach().exp().mean().item()
    skipped = done.records.finite().count(False)
    if skipped:
        found["skipped_minibatches"] = skipped
    if type(control) is not KLControl:
        found["kl_early_stop"] = float(not done.state.running)
        found["kl_coef"], found["lr_scale"] = done.state.beta.item(), done.state.lr_scale.item()
    return found
