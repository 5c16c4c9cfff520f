"""What a measurement depends on. It imports little: a benchmark's processes load no more than what they measure."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: Packages that every measurement depends on.
PACKAGES = ("torch", "stable_baselines3", "ppo_plus")


def facts(*packages: str) -> dict[str, str]:
    """The versions of Python and of packages, and the machine.

    :param packages: further packages than :data:`PACKAGES`; those that are not installed are left out
    """
    found = {"python": platform.python_version()}
    for package in (*PACKAGES, *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return found | {"machine": machine, "processor": processor()}


def processor() -> str:
    """The CPU's model; ``platform`` does not know it on Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
