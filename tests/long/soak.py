"""Train for long with faults at random, and count what was lost: nothing should be.

    python tests/long/soak.py                                   # about an hour; Linux, a C compiler, mounting a tmpfs
    python tests/long/soak.py --json benchmarks/results/soak.json

Each run is ``ppo-plus train``. First it is left alone; then the same run, with the same seed, is interrupted again and
again and each time resumed with ``--resume``, and at its end compared with the first: weights, episodes and
evaluations, bit by bit. It is

- killed (-9), at any moment: also while it starts, writes a checkpoint, or is being resumed;
- ended by SIGTERM or SIGINT;
- trained on a small file system that fills up for a while: it warns, or ends with exit code 28, and is resumed;
- trained with a system clock that jumps by up to an hour, forwards and backwards.

Of runs of several processes a random one is killed, or torchrun, which started them, or all.

In some of the runs environments raise, return NaN or another shape, hang or die as a process, by chances drawn from
their generator, so that the same faults come again in the run that is interrupted.

After each interruption all files are looked through for damage. Growth of memory and descriptors is that of the run
that is left alone, from the second quarter of its life to the last: the other never lives for long.
"""

import argparse
import json
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch as th

from ppo_plus import PPO_Plus
from ppo_plus.saving.checkpoint import checkpoint
from ppo_plus.saving.files import UNFINISHED

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from machine import facts  # noqa: E402
from report.reliability import n_faults, soak_table  # noqa: E402
from report.results import write  # noqa: E402

#: How often each interruption comes.
WAYS = {"kill": 5, "kill while starting": 1, "SIGTERM": 1, "SIGINT": 1, "full disk": 2, "clock": 3}
#: Likewise, where there are several processes.
WAYS_OF_SEVERAL = {"kill a process": 3, "kill torchrun": 2, "kill while starting": 1, "SIGTERM": 1, "SIGINT": 1,
                   "full disk": 1}  # fmt: skip


class Kind(NamedTuple):
    """A kind of run.

    :param env_id: what is trained in
    :param timesteps: for how long
    :param further: further arguments of ``ppo-plus train``
    :param processes: how many train
    """

    env_id: str
    timesteps: int
    further: str
    processes: int = 1

    @property
    def ways(self) -> dict[str, int]:
        """How often each interruption comes."""
        return WAYS if self.processes == 1 else WAYS_OF_SEVERAL

    @property
    def starts(self) -> list[str]:
        """Arguments with which ``ppo-plus`` starts several processes itself."""
        return [] if self.processes == 1 else ["--processes", str(self.processes)]


COMMON = "--gym-packages soak_envs --no-progress --eval-episodes 2 --n-eval-envs 1 --restart-envs 1000"
TOGETHER = "-params n_envs:4 n_steps:64 n_epochs:2 batch_size:128 compile:False"
RUNS = {
    "uncompiled": Kind("SoakWhole-v0", 60_000, "-params n_envs:2 n_steps:128 n_epochs:4 compile:False"),
    "compiled, gSDE, VecNormalize": Kind(
        "SoakWhole-v0",
        60_000,
        "-params n_envs:2 n_steps:128 n_epochs:4 compile:True use_sde:True normalize:True",
    ),
    "LSTM": Kind(
        "SoakWhole-v0",
        16_000,
        "-params n_envs:2 n_steps:128 n_epochs:2 compile:False policy:'MlpLstmPolicy'",
    ),
    "environments fail": Kind("SoakFails-v0", 60_000, "-params n_envs:2 n_steps:128 n_epochs:4 compile:False"),
    "processes die and hang": Kind(
        "SoakDies-v0",
        30_000,
        "--vec-env subproc --env-timeout 10 -params n_envs:2 n_steps:128 n_epochs:4 compile:False",
    ),
    "two processes, VecNormalize": Kind("SoakWhole-v0", 30_000, f"{TOGETHER} normalize:True", 2),
}
#: What an environment did, by words of the line that reports its restart.
KINDS = {"raised": "raises", "not finite": "NaN", "of shape": "another shape", "died": "dies", "no answer": "hangs"}
#: What the exit code says where a run ends by itself before its time.
FULL_DISK = 28
#: Of the file system that fills up, in MiB.
SIZE = 200

#: A run that ends by itself so often is given up.
MANY = 5

#: Functions that replace those of the C library: the system clock is off by the number in a file.
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile long long *offset;

__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("SOAK_CLOCK"), O_RDONLY);
    void *map = file < 0 ? MAP_FAILED : mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    offset = map == MAP_FAILED ? 0 : map;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (offset && clock == CLOCK_REALTIME) now->tv_sec += *offset;
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    int result = clock_gettime(CLOCK_REALTIME, &exact);
    (void)zone;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return result;
}

time_t time(time_t *now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
"""


class Clock:
    """The system clock that the runs read.

    :param folder: for a library and a file
    """

    def __init__(self, folder: Path):
        source, library, file = folder / "clock.c", folder / "clock.so", folder / "clock"
        source.write_text(CLOCK)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        file.write_bytes(struct.pack("q", 0))
        self.variables = {"LD_PRELOAD": str(library), "SOAK_CLOCK": str(file)}
        with file.open("r+b") as opened:
            self.map = mmap.mmap(opened.fileno(), 8)

    def jump(self, seconds: int) -> None:
        """Set how many seconds it is off the true time."""
        self.map[:] = struct.pack("q", seconds)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A separate, small file system."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}m", "soak", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Fill it up for the duration of the block."""
    filler = disk / "filler"
    try:
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        yield
    finally:
        filler.unlink(missing_ok=True)


@dataclass
class Usage:
    """Memory and descriptors of a process, sampled five times a second."""

    memory: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def watch(self, process: "subprocess.Popen[str]") -> None:
        """Sample until the process ends."""
        while process.poll() is None:
            with suppress(OSError, IndexError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                self.memory.append(int(status.split("VmRSS:")[1].split()[0]) / 1024)
                self.descriptors.append(len(os.listdir(f"/proc/{process.pid}/fd")))
            time.sleep(0.2)

    def growth(self) -> dict[str, float]:
        """How much they grew from the second quarter of the process's life to the last."""
        quarter = max(len(self.memory) // 4, 1)
        parts: dict[str, list[Any]] = {"memory_MiB": self.memory, "descriptors": self.descriptors}
        return {
            name: round(median(values[-quarter:]) - median(values[quarter : 2 * quarter] or values), 2)
            for name, values in parts.items()
        }


class Soak:
    """One kind of run, left alone and interrupted.

    :param name: of :data:`RUNS`
    :param seed: of the run, and of its interruptions
    :param folder: for files
    :param clock: which jumps
    """

    def __init__(self, name: str, seed: int, folder: Path, clock: Clock):
        self.kind = RUNS[name]
        self.folder, self.clock, self.seed = folder, clock, seed
        self.random = random.Random(seed)
        self.injected: Counter[str] = Counter()
        self.exit_codes: Counter[int] = Counter()
        #: How it ended when it should not have.
        self.fatal: list[str] = []
        self.corrupted: list[str] = []
        self.usage = Usage()

    def new(self, logs: Path) -> list[str]:
        """The arguments of a run from its beginning."""
        n, kind = self.kind.timesteps, self.kind
        more = f"-n {n} --seed {self.seed} --eval-freq {n // 10} --save-freq 2000 -f {logs}"
        return [*f"--env {kind.env_id} {COMMON} {more} {kind.further}".replace("'", "").split(), *kind.starts]

    def start(self, arguments: list[str], output: Path) -> "subprocess.Popen[str]":
        """Start ``ppo-plus train``."""
        environment = {**os.environ, **self.clock.variables, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = str(Path(__file__).parent)
        with output.open("a") as file:
            command = [sys.executable, "-m", "ppo_plus", "train", *arguments]
            return subprocess.Popen(
                command, env=environment, stdout=file, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )

    def run(self) -> dict[str, Any]:
        """Do both runs, and return their result."""
        whole, output = self.folder / "whole", self.folder / "whole.txt"
        process = self.start(self.new(whole), output)
        self.usage.watch(process)
        if process.wait() != 0:
            raise RuntimeError(f"the run that was left alone ended with {process.returncode}:\n{output.read_text()}")
        lines = [line for line in output.read_text().splitlines() if ": restarted (" in line]
        restarts = Counter(map(_kind_of_fault, lines))
        with small_disk(self.folder / "disk") as disk:
            output = self.folder / "interrupted.txt"
            self.interrupt_to_the_end(disk, output)
            differing = different(self.run_folder(whole), self.run_folder(disk))
            lost = updates(self.run_folder(whole)) - updates(self.run_folder(disk))
        return {
            "injected": dict(self.injected),
            "exit_codes": dict(self.exit_codes),
            "env_faults": dict(restarts),
            "fatal": self.fatal,
            "updates_lost": lost,
            "files_corrupted": self.corrupted,
            "differing": differing,
            # That of torchrun would mean nothing.
            "growth": self.usage.growth() if self.kind.processes == 1 else None,
        }

    def run_folder(self, logs: Path) -> Path:
        return logs / "ppo_plus" / f"{self.kind.env_id}_1"

    def interrupt_to_the_end(self, disk: Path, output: Path) -> None:
        """Train, interrupt and resume until training has reached its end."""
        arguments, folder = self.new(disk), self.run_folder(disk)
        while True:
            process = self.start(arguments, output)
            way, ended = self.interrupt_until_it_ends(process, disk)
            code = process.wait()
            self.exit_codes[code] += 1
            self.look_through(disk)
            if code == 0 or (_last_model(folder).exists() and not _names(folder / "checkpoints")):
                # In the second case it was killed after its end.
                return
            allowed = {-signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGINT, FULL_DISK}
            if self.kind.processes > 1:
                # torchrun's own, whatever has ended them.
                allowed |= {1, 128 + signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}
            if code not in allowed or ended:
                self.fatal.append(f"{way}: exit code {code}")
                print(f"{self.fatal[-1]}\n{output.read_text()[-2000:]}", file=sys.stderr)
                if len(self.fatal) == MANY:
                    raise RuntimeError(f"{self.kind.env_id}: ended by itself {MANY} times")
            if checkpoint.files(folder / "checkpoints"):
                arguments = ["--resume", str(folder), "--no-progress", "--gym-packages", "soak_envs", *self.kind.starts]
            elif folder.exists():
                # Killed before there was anything to resume: start again, as a user would.
                shutil.rmtree(folder)
                arguments = self.new(disk)

    def interrupt_until_it_ends(self, process: "subprocess.Popen[str]", disk: Path) -> tuple[str, bool]:
        """Interrupt one life of it; torchrun may outlive that.

        :return: what has ended it, or was about to when it ended by itself; and whether it did
        """
        checkpoints = self.run_folder(disk) / "checkpoints"
        while True:
            before = _names(checkpoints)
            way = self.random.choices(list(self.kind.ways), list(self.kind.ways.values()))[0]
            if way != "kill while starting":
                # So that it gets further each time.
                while process.poll() is None and _names(checkpoints) <= before:
                    time.sleep(0.01)
            longest = 2 if way != "kill while starting" else 4 * self.kind.processes
            time.sleep(self.random.uniform(0, longest))
            if process.poll() is not None:
                return way, True
            workers = _workers(process.pid)
            self.interrupt(process, way, disk)
            self.await_end(process, workers)
            return way, False

    def await_end(self, process: "subprocess.Popen[str]", workers: list[int]) -> None:
        """Wait until a run has ended, and all its processes have."""
        process.wait()
        until = time.monotonic() + 60
        while any(map(_lives, workers)) and time.monotonic() < until:
            time.sleep(0.1)
        for pid in filter(_lives, workers):
            self.fatal.append(f"process {pid} still runs without torchrun")
            os.kill(pid, signal.SIGKILL)

    def interrupt(self, process: "subprocess.Popen[str]", way: str, disk: Path) -> None:
        self.injected[way] += 1
        if way == "clock":
            self.clock.jump(self.random.randint(-3600, 3600))
            # Others come in the same life.
            time.sleep(self.random.uniform(0, 1))
            way = "kill"
            self.injected[way] += 1
        if way == "full disk":
            with full(disk):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(self.random.uniform(1, 4))
            if process.poll() is None:
                time.sleep(self.random.uniform(0, 1))
            if process.poll() is not None:
                return
            way = "kill"
            self.injected[way] += 1
        number = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}.get(way)
        workers = _workers(process.pid)
        if number is not None or way == "kill torchrun":
            process.send_signal(number or signal.SIGKILL)
        elif way == "kill a process" and workers:
            os.kill(self.random.choice(workers), signal.SIGKILL)
        else:
            # Each has a separate session.
            for pid in (process.pid, *workers):
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def look_through(self, disk: Path) -> None:
        """Whether all files that count are whole. Those that were being written have other names."""
        for path in sorted([*disk.rglob("*.zip"), *disk.rglob("*.npz")]):
            try:
                if path.parent.name == "checkpoints":
                    checkpoint.read(path)
                with zipfile.ZipFile(path) as file:
                    damaged = file.testzip()
            except Exception as error:
                damaged = repr(error)
            if damaged:
                self.corrupted.append(f"{path.name}: {damaged}")


def _workers(torchrun: int) -> list[int]:
    """The processes that torchrun has started to train; none, if it is another program."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == torchrun and b"\0RANK=" in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return sorted(found)


def _lives(pid: int) -> bool:
    """Whether a process is still running."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _kind_of_fault(line: str) -> str:
    """What an environment did, by the line that reports its restart."""
    return next((kind for words, kind in KINDS.items() if words in line), line)


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.zip")}


def updates(folder: Path) -> int:
    """How many updates the last model has had."""
    return int(PPO_Plus.load(_last_model(folder))._n_updates)


def _last_model(folder: Path) -> Path:
    return folder / f"{folder.name.rsplit('_', 1)[0]}.zip"


def different(whole: Path, interrupted: Path) -> list[str]:
    """What of two runs' results is not the same, bit by bit."""
    found = []
    ours, theirs = (PPO_Plus.load(_last_model(folder)).get_parameters() for folder in (interrupted, whole))
    if not _same(ours, theirs):
        found.append("weights")
    for path in sorted(whole.glob("*.monitor.csv")):
        if _episodes(path) != _episodes(interrupted / path.name):
            found.append(path.name)
    with np.load(whole / "evaluations.npz") as old, np.load(interrupted / "evaluations.npz") as new:
        if not all(np.array_equal(old[name], new[name]) for name in old):
            found.append("evaluations.npz")
    names = [{path.name for path in folder.rglob("*") if path.name != ".lock"} for folder in (whole, interrupted)]
    found += sorted(names[0] ^ names[1])
    found += [str(path) for path in interrupted.rglob(UNFINISHED)]
    return found


def _same(ours: Any, theirs: Any) -> bool:
    """Whether nestings of tensors are the same."""
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return bool(th.equal(ours, theirs)) if isinstance(theirs, th.Tensor) else bool(ours == theirs)


def _episodes(path: Path) -> list[str]:
    """Returns and lengths; when they ended is another matter."""
    return [line.rsplit(",", 1)[0] for line in path.read_text().splitlines()[2:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200, help="stop after so many (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), help="which runs")
    parser.add_argument("--seed", type=int, default=0, help="of the first runs; later ones get the next")
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(Path(folder))
        seed = arguments.seed
        while sum(map(n_faults, results)) < arguments.faults:
            for name in arguments.only:
                place = Path(folder) / f"{len(results)}"
                place.mkdir()
                start = time.monotonic()
                result = {"run": name, "seed": seed, **Soak(name, seed, place, clock).run()}
                results.append({**result, "seconds": round(time.monotonic() - start)})
                print(json.dumps(results[-1]), flush=True)
            seed += 1
    print("\n".join(soak_table(results)))
    if arguments.json:
        write(arguments.json, {"versions": facts(), "results": results})


if __name__ == "__main__":
    main()
