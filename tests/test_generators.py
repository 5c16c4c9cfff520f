"""Random generators are made from their states, and states that are not valid raise an error."""

import numpy as np
import pytest

from ppo_plus.generators import derived_seed, make_bit_generator


def generator_of(kind):
    """A generator that has drawn numbers of both kinds: half a word of the last one is left."""
    generator = np.random.Generator(getattr(np.random, kind)(3))
    generator.random(3)
    generator.integers(5, dtype=np.uint32)
    return generator


@pytest.mark.parametrize("kind", ["MT19937", "PCG64"])
def test_a_generator_made_from_a_state_draws_the_same(kind):
    generator = generator_of(kind)
    again = np.random.Generator(make_bit_generator(generator.bit_generator.state))
    for draw in (lambda each: each.integers(9, size=7, dtype=np.uint32), lambda each: each.normal(size=700)):
        np.testing.assert_array_equal(draw(generator), draw(again))


def test_a_random_state_keeps_its_second_normal_number():
    generator = np.random.RandomState(3)
    generator.normal()
    facts = generator.get_state(legacy=False)
    again = np.random.RandomState(make_bit_generator(facts))
    again.set_state(facts)
    np.testing.assert_array_equal(generator.normal(size=5), again.normal(size=5))


INVALID = [
    ({"state": {"key": np.zeros(3, np.uint32), "pos": 5}}, "not a valid state"),
    ({"state": {"key": np.zeros(624), "pos": 5}}, "not a valid state"),
    ({"state": {"key": np.zeros(624, np.uint32), "pos": 625}}, "not a valid state"),
    ({"bit_generator": "Dice"}, "bit_generator='Dice'"),
]


@pytest.mark.parametrize(("changed", "text"), INVALID)
def test_a_state_that_is_not_valid_raises_an_error(changed, text):
    with pytest.raises(ValueError, match=text):
        make_bit_generator(generator_of("MT19937").bit_generator.state | changed)


def test_derived_seeds_are_those_of_their_numbers():
    assert derived_seed([1, 2]) == derived_seed([1, 2]) != derived_seed([2, 1])
    assert derived_seed(None) != derived_seed(None)
