"""Who may do what to the policy between its steps."""

import pytest
from envs import ACTIONS, vec
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnNoModelImprovement,
)

from ppo_plus.rollout.acting import is_foreign
from ppo_plus.zoo.callbacks import ProgressDisplay


class Own(BaseCallback):
    def _on_step(self):
        return True


def evaluation(**kwargs):
    return EvalCallback(vec(ACTIONS["discrete"]), **kwargs)


KNOWN = {
    "none": lambda: ConvertCallback(None),
    "list": lambda: CallbackList([ProgressDisplay(bar=False), CheckpointCallback(10, "nowhere")]),
    "nested": lambda: evaluation(callback_after_eval=StopTrainingOnNoModelImprovement(3)),
    "every": lambda: EveryNTimesteps(10, ProgressDisplay(bar=False)),
}
FOREIGN = {
    "own": Own,
    "function": lambda: ConvertCallback(lambda *_: True),
    "list": lambda: CallbackList([CallbackList([Own()])]),
    "after evaluation": lambda: evaluation(callback_after_eval=Own()),
    "on new best": lambda: evaluation(callback_on_new_best=Own()),
    "every": lambda: EveryNTimesteps(10, Own()),
}


@pytest.mark.parametrize("case", KNOWN)
def test_callbacks_of_the_libraries_leave_the_policy_in_place(case):
    assert not is_foreign(KNOWN[case]())


@pytest.mark.parametrize("case", FOREIGN)
def test_custom_callbacks_may_change_the_policy(case):
    assert is_foreign(FOREIGN[case]())


def test_a_replaced_method_counts_as_custom():
    callback = ProgressDisplay(bar=False)
    callback._on_step = lambda: True
    assert is_foreign(callback)
