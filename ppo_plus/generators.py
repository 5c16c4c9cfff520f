"""NumPy's random generators from their states, which are checked: NumPy would read beyond invalid ones."""

from typing import Any

import numpy as np

_BIT_GENERATORS = {
    each.__name__: each
    for each in (np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)
}


def make_bit_generator(facts: dict[str, Any]) -> Any:
    """The bit generator of a generator from its state; raises as :func:`check_facts`."""
    check_facts(facts)
    bits: Any = _BIT_GENERATORS[facts["bit_generator"]](0)
    bits.state = facts
    return bits


def check_facts(facts: dict[str, Any]) -> None:
    """:raises ValueError: they are not a valid state of one of NumPy's generators"""
    if facts["bit_generator"] not in _BIT_GENERATORS:
        raise ValueError(f"bit_generator={facts['bit_generator']!r} is not one of NumPy's")
    kind, state, valid = facts["bit_generator"], facts["state"], True
    if kind == "MT19937":
        valid = _is_array(state["key"], np.uint32, 624) and 0 <= state["pos"] <= 624
    elif kind == "Philox":
        arrays = (state["counter"], 4), (state["key"], 2), (facts["buffer"], 4)
        valid = all(_is_array(array, np.uint64, n) for array, n in arrays) and 0 <= facts["buffer_pos"] <= 4
    elif kind == "SFC64":
        valid = _is_array(state["state"], np.uint64, 4)
    if not valid:
        raise ValueError("this is not a valid state of a random generator")


def _is_array(value: Any, dtype: Any, n: int) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == dtype and value.shape == (n,)


def derived_seed(entropy: list[int] | None) -> int:
    """A seed of 32 bits that is derived from other numbers; ``None``: the operating system draws them."""
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])
