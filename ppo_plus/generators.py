"""NumPy's random generators from their states, which are checked: NumPy would read beyond invalid ones."""

from typing import Any

import numpy as np

_BIT_GENERATORS = {
    each.__name__: each
    for each in (np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)
}


def generator_facts(generator: np.random.Generator | np.random.RandomState) -> dict[str, Any]:
    """The state of a generator, without the seed that it was made from, which only ``spawn`` needs."""
    if isinstance(generator, np.random.RandomState):
        return dict(generator.get_state(legacy=False))
    return dict(generator.bit_generator.state)


def make_generator(cls: type, facts: dict[str, Any]) -> Any:
    """Make a generator from its state.

    :param cls: ``Generator`` or ``RandomState``
    :param facts: what :func:`generator_facts` returned
    :raises ValueError: they are not a valid state
    """
    bits = make_bit_generator(facts)
    if cls is np.random.Generator:
        return np.random.Generator(bits)
    generator = np.random.RandomState(bits)
    generator.set_state(facts)
    return generator


def make_bit_generator(facts: dict[str, Any]) -> Any:
    """Make the bit generator of a generator from its state.

    :param facts: its state, from :func:`generator_facts` or NumPy
    :raises ValueError: they are not a valid state
    """
    check_facts(facts)
    bits: Any = _BIT_GENERATORS[facts["bit_generator"]](0)
    bits.state = facts
    return bits


def check_facts(facts: dict[str, Any]) -> None:
    """:raises ValueError: they are not a valid state of one of NumPy's generators"""
    if facts["bit_generator"] not in _BIT_GENERATORS:
        raise ValueError(f"bit_generator={facts['bit_generator']!r} is not one of NumPy's")
    state = facts["state"]
    if facts["bit_generator"] == "MT19937":
        _require(_is_array(state["key"], np.uint32, 624) and 0 <= state["pos"] <= 624)
    if facts["bit_generator"] == "Philox":
        _require(_is_array(state["counter"], np.uint64, 4) and _is_array(state["key"], np.uint64, 2))
        _require(_is_array(facts["buffer"], np.uint64, 4) and 0 <= facts["buffer_pos"] <= 4)
    if facts["bit_generator"] == "SFC64":
        _require(_is_array(state["state"], np.uint64, 4))


def _is_array(value: Any, dtype: Any, n: int) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == dtype and value.shape == (n,)


def _require(valid: bool) -> None:
    if not valid:
        raise ValueError("this is not a valid state of a random generator")


def derived_seed(entropy: list[int] | None) -> int:
    """A seed of 32 bits that is derived from other numbers.

    :param entropy: these numbers; ``None``: the operating system draws them
    """
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])
