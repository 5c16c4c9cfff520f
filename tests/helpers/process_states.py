"""States of processes, as Linux reports them."""

from pathlib import Path


def state(pid):
    """The letter of a process's state: T if it is stopped, Z if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def is_alive(pid):
    return state(pid) != "Z"
