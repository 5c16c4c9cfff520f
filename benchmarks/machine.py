"""What machine this is. Imports little, so that a benchmark's processes hold no more than what they measure."""

import platform
from pathlib import Path


def processor() -> str:
    """The CPU's model; ``platform`` does not know it on Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
