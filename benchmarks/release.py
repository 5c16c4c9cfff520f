"""Measure the tables of the documentation again, with the code that is released.

    python benchmarks/release.py                  # what another minor version, or nothing, has measured
    python benchmarks/release.py speed workers    # these, whatever measured them
    python benchmarks/release.py --list           # which version measured what, and by which command
    python docs/tables.py                         # then write the tables into the pages

Some two hours on two quiet cores; a run that was stopped continues with the measurement that it was stopped in. For
columns of SBX and EnvPool, ``pip install sbx-rl envpool`` first. Learning runs are apart: ``learning_*.py``; and so are
those on a GPU, which is not at hand for every release.
"""

import argparse
import subprocess
import sys
import time
from importlib.metadata import version

from campaign import git  # the modules beside this one
from report.results import ROOT, about, path, read, write

BENCHMARK, VEC_ENV = "benchmarks/benchmark.py", "benchmarks/benchmark_vec_env.py"
#: What measures a file of ``benchmarks/results``, in order: what README shows comes first.
COMMANDS = {
    "speed": f"{BENCHMARK} --rounds 7 --only CartPole-v1-x1 CartPole-v1-x8 CartPole-v1-x64 HalfCheetah-v5-x1"
    " HalfCheetah-v5-x8 Pendulum-v1-gSDE-x4 Dict-x8 CartPole-v1-masked-x8",
    "memory_speed": f"{BENCHMARK} --rounds 3 --only CartPole-v1-LSTM-x8 CartPole-v1-LSTM-x8-batch-256"
    " CartPole-v1-small-LSTM-x8-batch-256",
    "memory_kinds_speed": f"{BENCHMARK} --rounds 3 --only CartPole-v1-Lru-x8 CartPole-v1-Lru-x8-batch-256"
    " CartPole-v1-Attention-x8 CartPole-v1-Attention-x8-batch-256",
    "speed_images": f"{BENCHMARK} --rounds 3 --only Dict-image-x8 Atari-shapes-x8 Atari-shapes-bfloat16-x8",
    "learning_curves": "benchmarks/learning_curves.py",
    "workers": f"{VEC_ENV} --workers",
    "supervised": f"{VEC_ENV} --env CartPole-v1 --n-envs 8 --rounds 40 --kinds SB3 Supervised",
    "processes": "benchmarks/benchmark_processes.py",
    "threads": f"{BENCHMARK} --threads --rounds 3",
    "determinism": "tests/long/determinism.py",
    "soak": "tests/long/soak.py",
}


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
    code = subprocess.run([sys.executable, *COMMANDS[name].split(), "--json", str(path(name))], cwd=ROOT).returncode
    if not code:
        measured = read(name)
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
