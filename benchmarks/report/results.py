"""Where results are kept, what measures them, and how files of them are read and written."""

import json
import lzma
from pathlib import Path
from typing import Any

from ppo_plus.saving.files import append_lines, is_whole, write_text

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
_BENCHMARK, _VEC_ENV = "benchmarks/benchmark.py", "benchmarks/benchmark_vec_env.py"
#: What measures a file of ``benchmarks/results``, in order: what README shows comes first.
COMMANDS = {
    "speed": f"{_BENCHMARK} --rounds 7 --only CartPole-v1-x1 CartPole-v1-x8 CartPole-v1-x64 HalfCheetah-v5-x1"
    " HalfCheetah-v5-x8 Pendulum-v1-gSDE-x4 Dict-x8 CartPole-v1-masked-x8",
    "memory_speed": f"{_BENCHMARK} --rounds 3 --only CartPole-v1-LSTM-x8 CartPole-v1-LSTM-x8-batch-256"
    " CartPole-v1-small-LSTM-x8-batch-256",
    "memory_kinds_speed": f"{_BENCHMARK} --rounds 3 --only CartPole-v1-Lru-x8 CartPole-v1-Lru-x8-batch-256"
    " CartPole-v1-Attention-x8 CartPole-v1-Attention-x8-batch-256",
    "speed_images": f"{_BENCHMARK} --rounds 3 --only Dict-image-x8 Atari-shapes-x8 Atari-shapes-bfloat16-x8",
    "learning_curves": "benchmarks/learning_curves.py",
    "workers": f"{_VEC_ENV} --workers",
    "supervised": f"{_VEC_ENV} --env CartPole-v1 --n-envs 8 --rounds 40 --kinds SB3 Supervised",
    "processes": "benchmarks/benchmark_processes.py",
    "threads": f"{_BENCHMARK} --threads --rounds 3",
    "determinism": "tests/long/determinism.py",
    "soak": "tests/long/soak.py",
    "learning_actions": "benchmarks/learning_actions.py",
    "learning_together": 'benchmarks/learning_together.py --without "RecurrentPPO (memory)"',
    "learning_memory": "benchmarks/learning_memory.py",
}


def path(name: str) -> Path:
    """The file of a measurement."""
    return RESULTS / f"{name}.json"


def read(name: str) -> dict[str, Any]:
    """A measurement that has one JSON file."""
    measured: dict[str, Any] = json.loads(path(name).read_text(encoding="utf-8"))
    return measured


def about(measured: dict[str, Any]) -> dict[str, Any]:
    """The versions and the machine of a measurement; scripts have two names for them."""
    found: dict[str, Any] = measured.get("about") or measured["versions"]
    return found


def write(path: Path, measured: dict[str, Any], **kwargs: Any) -> None:
    """Write a measurement to a JSON file.

    :param path: the file; missing folders are made
    :param measured: what JSON can express
    :param kwargs: further arguments of :func:`json.dumps`
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(measured, **{"indent": 1, **kwargs}) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON Lines file, one a line, after those of its compressed archive (``.xz`` beside it); none of
    a file that is not there.

    A process that is killed while it appends leaves a part of a line at the end, which does not count.

    :raises ValueError: another line is not valid JSON
    """
    archive = path.with_name(f"{path.name}.xz")
    records = _records(archive, lzma.decompress(archive.read_bytes())) if archive.exists() else []
    return records + (_records(path, path.read_bytes()) if path.exists() else [])


def _records(path: Path, content: bytes) -> list[dict[str, Any]]:
    """The records of a file with this content."""
    lines = content.split(b"\n")
    if not is_whole(lines[-1]):
        lines.pop()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except ValueError as error:  # also where the bytes are not text
            raise ValueError(f"{path}, line {number} is not valid JSON ({error}): mend or delete it") from None
    return records


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append a record to a JSON Lines file. Several processes may append to the same file at once.

    :param path: the file; missing folders are made
    :param record: what JSON can express; NaN and infinity raise an error
    """
    import fcntl  # Windows, which does not have it, can still read results

    line = json.dumps(record, allow_nan=False).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        # Held until the file is closed.
        fcntl.flock(file, fcntl.LOCK_EX)
        append_lines(file, line)
