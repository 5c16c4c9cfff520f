"""The random generators of a process are restored."""

import random

import numpy as np
import pytest
import torch as th

from ppo_plus.saving.checkpoint import random_state


def draw():
    return random.random(), random.gauss(0, 1), np.random.random(), np.random.standard_normal(), th.rand(2).tolist()


def test_they_draw_the_same_again():
    draw()  # so that the second numbers of normal pairs are waiting
    states = random_state.get_states()
    expected = [draw() for _ in range(3)]
    random_state.set_states(states)
    assert [draw() for _ in range(3)] == expected


@pytest.mark.parametrize(("part", "value"), [("pos", 10**6), ("pos", -1), ("key", np.zeros(1, np.uint32))])
def test_numpys_does_not_read_beyond_its_state(part, value):
    states = random_state.get_states()
    damaged = {**states["numpy"], "state": {**states["numpy"]["state"], part: value}}
    with pytest.raises(ValueError, match="not a valid state of a random generator"):
        random_state.set_states({**states, "python": random.Random(0).getstate(), "numpy": damaged})
    found = draw()
    random_state.set_states(states)
    assert draw() == found
