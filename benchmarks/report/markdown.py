"""Tables as lines of Markdown."""

from collections.abc import Iterable


def markdown(header: list[str], rows: Iterable[list[str]]) -> list[str]:
    """The lines of a table."""
    return ["| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *rows]]
