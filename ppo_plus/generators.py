"""NumPy's random generators from their states, which are checked: NumPy would read beyond invalid ones."""

from typing import Any

import numpy as np

#: NumPy's default, and that of its global generator.
_BIT_GENERATORS: dict[str, Any] = {"MT19937": np.random.MT19937, "PCG64": np.random.PCG64}


def make_bit_generator(facts: dict[str, Any]) -> Any:
    """The bit generator of a generator from its state; raises as :func:`check_facts`."""
    check_facts(facts)
    bits: Any = _BIT_GENERATORS[facts["bit_generator"]](0)
    bits.state = facts
    return bits


def check_facts(facts: dict[str, Any]) -> None:
    """:raises ValueError: they are not a valid state of one of NumPy's generators"""
    if facts["bit_generator"] not in _BIT_GENERATORS:
        raise ValueError(f"bit_generator={facts['bit_generator']!r} must be one of {', '.join(_BIT_GENERATORS)}")
    if facts["bit_generator"] == "MT19937":
        key, position = facts["state"]["key"], facts["state"]["pos"]
        is_key = isinstance(key, np.ndarray) and key.dtype == np.uint32 and key.shape == (624,)
        if not is_key or not 0 <= position <= 624:
            raise ValueError("this is not a valid state of a random generator")


def derived_seed(entropy: list[int] | None) -> int:
    """A seed of 32 bits that is derived from other numbers; ``None``: the operating system draws them."""
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])
