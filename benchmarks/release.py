"""Measure the tables of the documentation again, with the code that is released.

    python benchmarks/release.py                  # what another minor version, or nothing, has measured
    python benchmarks/release.py speed workers    # these, whatever measured them
    python benchmarks/release.py --list           # which version measured what, and by which command
    python docs/tables.py                         # then write the tables into the pages

Some three hours on two quiet cores; a run that was stopped begins again with the measurement that it was stopped in.
For columns of SBX and EnvPool, ``pip install sbx-rl envpool`` first. Long learning runs are apart, each with its
version (``learning_returns.py``, ``learning_memory_kinds.py``), and so is what needs a GPU, which is not at hand for
every release.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from campaign import git  # the modules beside this one
from report.results import COMMANDS, ROOT, about, path, read, write


def version_of(name: str) -> str:
    """The version that has measured a file; empty, if there is no file."""
    return str(about(read(name)).get("ppo_plus", "")) if path(name).exists() else ""


def minor(number: str) -> str:
    """``"1.2"`` of ``"1.2.3"``."""
    return ".".join(number.split(".")[:2])


def is_current(name: str, now: str) -> bool:
    """Whether this minor version has measured a file."""
    return minor(version_of(name)) == minor(now)


def measure(name: str) -> int:
    """Measure a file again, and write the commit into it.

    :return: the exit code of its command
    """
    commit = git("describe", "--always", "--dirty", "--abbrev=40")
    with TemporaryDirectory() as folder:
        new = Path(folder) / "new.json"
        code = subprocess.run([sys.executable, *shlex.split(COMMANDS[name]), "--json", str(new)], cwd=ROOT).returncode
        if not code:
            measured = json.loads(new.read_text(encoding="utf-8"))
            about(measured)["commit"] = commit
            write(path(name), measured)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(COMMANDS)}")
    parser.add_argument("--list", action="store_true", help="print what is there, and measure nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(COMMANDS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(COMMANDS)}")
    now = version("ppo_plus")
    if arguments.list:
        for name, command in COMMANDS.items():
            print(f"{name}: version {version_of(name) or '-'}, python {command}")
        return 0
    names = arguments.names or [name for name in COMMANDS if not is_current(name, now)]
    failed = []
    for number, name in enumerate(names, 1):
        start = time.monotonic()
        print(f"{number} of {len(names)}: {name}", flush=True)
        if measure(name):
            failed.append(name)
        print(f"{name}: {(time.monotonic() - start) / 60:.1f} min", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
