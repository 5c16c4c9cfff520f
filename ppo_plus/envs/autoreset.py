"""When vector environments begin the next episode (https://farama.org/Vector-Autoreset-Mode)."""

from typing import Any

#: Values of ``gymnasium.vector.AutoresetMode``, which Gymnasium has from 1.1 on.
NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"

#: Info key that marks a row as a reset instead of a transition (``NEXT_STEP`` only).
AUTORESET = "autoreset"


def is_reset(info: dict[str, Any]) -> bool:
    """Whether a step only began an episode, and so is no transition."""
    return bool(info.get(AUTORESET))
