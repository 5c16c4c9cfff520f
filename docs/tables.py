"""The tables of the documentation, made from the measurements in ``benchmarks/results``.

    python docs/tables.py    # write them into README.md and the pages

A table stands between the comments ``<!-- table: NAME -->`` and ``<!-- end of table -->``. It is in the file, so that
the file can be read as it is; it is made again whenever the documentation is built, and a test holds the two equal.
Rows and cells come from the scripts that measured them, so a table here is what its script prints.
"""

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "benchmarks"))

import benchmark  # noqa: E402
import benchmark_processes  # noqa: E402
import determinism  # noqa: E402
import learning_exploration  # noqa: E402
import learning_returns  # noqa: E402
import results_returns  # noqa: E402
import runs  # noqa: E402
import scaling_model  # noqa: E402
import soak  # noqa: E402

BEGIN, END = "<!-- table: {} -->", "<!-- end of table -->"
PATTERN = re.compile(r"<!-- table: (\S+) -->\n(.*?)<!-- end of table -->", re.DOTALL)

#: How the documentation calls the workloads of ``benchmarks/benchmark.py``.
WORKLOADS = {
    "CartPole-v1-x1": "CartPole-v1, 1 env",
    "CartPole-v1-x8": "CartPole-v1, 8 envs",
    "CartPole-v1-x64": "CartPole-v1, 64 envs",
    "HalfCheetah-v5-x1": "HalfCheetah-v5, 1 env",
    "HalfCheetah-v5-x8": "HalfCheetah-v5, 8 envs",
    "Pendulum-v1-gSDE-x4": "Pendulum-v1, gSDE, 4 envs",
    "Dict-x8": "Dict of two vectors, 8 envs",
    "CartPole-v1-masked-x8": "action masks (beside MaskablePPO), 8 envs",
    "Dict-image-x8": "Dict with a small image, 8 envs",
    "Atari-shapes-x8": "Atari-shaped images, 8 envs",
    "Atari-shapes-bfloat16-x8": "the same, PPO_Plus in bfloat16",
    "CartPole-v1-LSTM-x8": "two LSTMs of 256 units, minibatches of 64",
    "CartPole-v1-LSTM-x8-batch-256": "the same, minibatches of 256",
    "CartPole-v1-small-LSTM-x8-batch-256": "two LSTMs of 64 units, minibatches of 256",
}
#: The rows of the README: the usual case, one environment, images, memory.
README = {
    "CartPole-v1-x8": "CartPole-v1, 8 envs",
    "HalfCheetah-v5-x1": "HalfCheetah-v5, 1 env",
    "CartPole-v1-LSTM-x8": "CartPole-v1, LSTM, 8 envs (SB3: RecurrentPPO)",
    "Atari-shapes-x8": "Atari-shaped images, 8 envs",
}
VEC_ENVS = {
    "SB3 DummyVecEnv": "SB3 `DummyVecEnv`",
    "SB3 SubprocVecEnv": "SB3 `SubprocVecEnv`",
    "Gymnasium sync": "Gymnasium, one after another",
    "Gymnasium async": "Gymnasium, in processes",
    "Gymnasium native": "Gymnasium, the environment's own vector form",
    "EnvPool, 1 thread": "EnvPool, one thread",
    "EnvPool, all threads": "EnvPool, a thread for each core",
}
SUPERVISED = {
    "SB3 DummyVecEnv": "SB3 `DummyVecEnv`",
    "Supervised, here": "`SupervisedVecEnv(processes=False)`",
    "SB3 SubprocVecEnv": "SB3 `SubprocVecEnv`",
    "Supervised, in processes": "`SupervisedVecEnv`",
    "Supervised, with a time limit": "`SupervisedVecEnv(timeout=60)`",
}


def path(name: str) -> Path:
    """A file of ``benchmarks/results``."""
    return DOCS.parent / "benchmarks" / "results" / f"{name}.json"


def read(name: str) -> dict[str, Any]:
    """The measurements in it."""
    measured: dict[str, Any] = json.loads(path(name).read_text(encoding="utf-8"))
    return measured


def about(name: str) -> str:
    """With which versions and where a file was measured."""
    return described(read(name).get("about") or read(name)["versions"])


def described(facts: dict[str, Any]) -> str:
    """The machine, and the versions of all packages."""
    facts = dict(facts)
    machine = facts.pop(
        "machine", None
    ) or "{system}, {processor}, {cores} cores".format(**facts)
    packages = {
        key: value
        for key, value in facts.items()
        if key not in NO_PACKAGES and "unknown" not in str(value)
    }
    rounds = f", {facts['rounds']} rounds" if "rounds" in facts else ""
    load = (
        f", load {facts['load before']} at the start" if "load before" in facts else ""
    )
    return (
        f"{machine}{load}{rounds}; "
        + ", ".join(f"{key} {value}" for key, value in packages.items())
        + ".\n"
    )


NO_PACKAGES = (
    "system",
    "processor",
    "cores",
    "load before",
    "device",
    "threads",
    "seeds",
    "rounds",
    "quick",
    "seed",
    "commit",
    "package",
)


def measured(*names: str) -> benchmark.Results:
    """What ``benchmarks/benchmark.py`` has measured, by workload and contender."""
    return {
        workload: {
            contender: benchmark.Measured(**values)
            for contender, values in by_contender.items()
        }
        for name in names
        for workload, by_contender in read(name)["results"].items()
    }


def speed(
    titles: dict[str, str],
    *names: str,
    corner: str = "time per environment step",
    others: bool = True,
) -> str:
    """Time per environment step of these workloads.

    :param titles: what they are called
    :param names: the files with measurements
    :param corner: what stands above the titles
    :param others: whether contenders from elsewhere have a column
    """
    results = measured(*names)
    chosen = {
        title: {
            contender: value
            for contender, value in results[workload].items()
            if others or contender != benchmark.SBX
        }
        for workload, title in titles.items()
        if workload in results
    }
    return benchmark.comparison(chosen, corner, benchmark.time_cell)


def speed_details(*names: str) -> str:
    """Start-up and memory."""
    header = [
        "workload",
        "contender",
        "start-up, s",
        "with empty cache, s",
        "peak memory, MB",
        "added by training, MB",
    ]
    rows = []
    for workload, by_contender in measured(*names).items():
        for contender, value in by_contender.items():
            if not value.error:
                seconds = [
                    "" if s is None else f"{s:.1f}"
                    for s in (value.start_up, value.start_up_empty)
                ]
                memory = [f"{value.memory[key]:.0f}" for key in ("peak", "added")]
                rows.append([WORKLOADS[workload], contender, *seconds, *memory])
    return benchmark.table(header, rows)


def scaling(axis: str, name: str = "scaling") -> str:
    """Time per step against one quantity."""
    points = read(name)[axis]["results"]
    results = {
        at: {who: benchmark.Measured(**values) for who, values in by.items()}
        for at, by in points.items()
    }
    return benchmark.comparison(results, axis, benchmark.time_cell)


def memory_scaling(axis: str) -> str:
    """Memory against one quantity."""
    points = read("scaling")[axis]["results"]
    results = {
        at: {who: benchmark.Measured(**values) for who, values in by.items()}
        for at, by in points.items()
    }
    return benchmark.comparison(
        results, f"{axis}: buffer, added by training", benchmark.memory_cell
    )


def learning_check() -> str:
    """Returns beside SB3's."""
    titles = {
        name: f"{WORKLOADS[name]}, {rollouts * workload.n_envs * workload.n_steps:,} steps"
        for name, rollouts in benchmark.LEARNING.items()
        for workload in [benchmark.WORKLOADS[name]]
    }
    rows = [
        benchmark.learning_row(titles[name], by_contender)
        for name, by_contender in read("learning_check")["returns"].items()
    ]
    header = [
        "return, IQM of 5 seeds [95 %]",
        benchmark.REFERENCE,
        benchmark.COMPILED,
        "intervals overlap",
    ]
    return benchmark.table(header, rows)


def results(*names: str) -> list[runs.Result]:
    """What the learning scripts have found."""
    return [result for name in names for result in runs.read(path(name))]


def learned(*names: str, speed: bool = False, only: str = "") -> str:
    """Returns by task and contender, where ``only`` is in the task's name."""
    columns = runs.COLUMNS | (runs.SPEED if speed else {})
    chosen = [result for result in results(*names) if only in result.task]
    return "\n".join(runs.rows(chosen, columns)) + "\n"


def more_seeds() -> str:
    """The seeds of both files together, of the contenders that are in both."""
    first, more = results("learning_memory"), results("learning_memory_more_seeds")
    names = {result.contender for result in more}
    first = [
        result
        for result in first
        if result.task == "Pendulum-v1" and result.contender in names
    ]
    columns = {name: cell for name, cell in runs.COLUMNS.items() if name != "returns"}
    columns["seeds"] = lambda group: str(len(group))
    return "\n".join(runs.rows([*first, *more], columns)) + "\n"


def tuning() -> str:
    """The confirmation in the report of the study on Pendulum-v1, without the single returns."""
    report = (DOCS / "tuning" / "pendulum" / "report.md").read_text(encoding="utf-8")
    lines = report.split("## Confirmation")[1].split("\n## ")[0].splitlines()
    rows = [line.strip("|").split("|")[:4] for line in lines if line.startswith("|")]
    return "".join("|" + "|".join(row) + "|\n" for row in rows)


def vec_envs(name: str, titles: dict[str, str]) -> str:
    """What a step of all environments costs: a table for each task.

    :param name: the file with measurements
    :param titles: what the kinds of vector environments are called; those that a task does not have make no row
    """
    tables = []
    for task, times in read(name)["us_per_step"].items():
        numbers = [f"{n} env{'s' * (n != '1')}" for n in times]
        rows = [
            [title, *(f"{median(by_kind[kind]):,.0f}" for by_kind in times.values())]
            for kind, title in titles.items()
            if all(kind in by_kind for by_kind in times.values())
        ]
        tables.append(benchmark.table([f"µs per step of {task}", *numbers], rows))
    return "\n".join(tables)


def effects(name: str) -> str:
    """What a screening says of each setting."""
    runs = learning_returns.results(stages=[name])
    return "\n".join(learning_returns.effects_table(runs, name)) + "\n"


def returns(stage: str) -> str:
    """What the contenders of one part of the campaign reached."""
    runs = learning_returns.results(stages=[stage])
    return "\n".join(learning_returns.table(runs)) + "\n"


def reported() -> list[dict[str, Any]]:
    """The runs that contenders are compared by."""
    return learning_returns.results(stages=results_returns.REPORTED)


def goals(arm: str) -> str:
    """What runs of a contender reach, and what they were meant to."""
    return "\n".join(results_returns.goals(learning_returns.results(), arm)) + "\n"


def explored_in(kind: str) -> str:
    """The file with what ``benchmarks/learning_exploration.py`` found of some tasks."""
    return f"exploration_{kind.replace('-', '_')}"


def explored(kind: str) -> str:
    """What they came to, by exploration."""
    return (
        "\n".join(learning_exploration.table(kind, results(explored_in(kind)))) + "\n"
    )


def returns_about() -> str:
    """With which versions all of the campaign ran."""
    seen: dict[str, set[str]] = {}
    for result in learning_returns.results():
        for name, version in result["versions"].items():
            seen.setdefault(name, set()).add(str(version))
    versions = {name: " and ".join(sorted(found)) for name, found in seen.items()}
    return f"{described(versions).rstrip()} {len(seen['package'])} states of the package; each file names its own.\n"


IMAGES = {
    name: title
    for name, title in WORKLOADS.items()
    if "Atari" in name or "image" in name
}
LSTM = "CartPole-v1, 8 envs (SB3: RecurrentPPO)"
EXPLORED = [
    kind for kind in learning_exploration.TASKS if path(explored_in(kind)).exists()
]
TABLES: dict[str, Callable[[], str]] = {
    "readme-speed": lambda: speed(
        README, "speed", "speed_images", "memory_speed", others=False
    ),
    "speed": lambda: speed(WORKLOADS, "speed", "speed_images"),
    "speed-about": lambda: about("speed"),
    "speed-details": lambda: speed_details("speed", "speed_images"),
    "images": lambda: speed(IMAGES, "speed_images"),
    "images-about": lambda: about("speed_images"),
    "memory-speed": lambda: speed(WORKLOADS, "memory_speed", corner=LSTM, others=False),
    "memory-speed-about": lambda: about("memory_speed"),
    "scaling-environments": lambda: scaling("environments"),
    "scaling-batch-size": lambda: scaling("batch-size"),
    "scaling-width": lambda: scaling("width"),
    "scaling-image-size": lambda: scaling("image-size"),
    "memory-environments": lambda: memory_scaling("environments"),
    "memory-image-size": lambda: memory_scaling("image-size"),
    "scaling-about": lambda: about("scaling"),
    "threads": lambda: scaling("threads", "threads"),
    "threads-about": lambda: about("threads"),
    "learning-check": learning_check,
    "learning-check-about": lambda: about("learning_check"),
    "returns": lambda: "\n".join(results_returns.contenders(reported())) + "\n",
    "returns-over-tasks": lambda: (
        "\n".join(results_returns.comparison(reported())) + "\n"
    ),
    "returns-each-task": lambda: (
        "\n".join(results_returns.each_task(reported())) + "\n"
    ),
    **{
        f"returns-{stage}": partial(returns, stage)
        for stage in ("beside-sb3", "looks", "deciders", "own", "own-entry", "atari")
    },
    "returns-overrides": lambda: (
        "\n".join(results_returns.gains(learning_returns.results(stages=["overrides"])))
        + "\n"
    ),
    **{
        f"returns-effects-{name}": partial(effects, name)
        for name in ("screen", "survivors", "again", "finalists", "kl")
    },
    "returns-about": returns_about,
    **{f"returns-goals-{arm}": partial(goals, arm) for arm in results_returns.GOALS},
    **{f"exploration-{kind}": partial(explored, kind) for kind in EXPLORED},
    **{
        f"exploration-{kind}-about": partial(about, explored_in(kind))
        for kind in EXPLORED
    },
    "actions-courier": lambda: learned("learning_actions", only="Courier"),
    "actions-invalid": lambda: learned("learning_actions", only="invalid"),
    "actions-about": lambda: about("learning_actions"),
    "memory": lambda: learned("learning_memory", speed=True),
    "memory-about": lambda: about("learning_memory"),
    "memory-seeds": more_seeds,
    "together": lambda: learned("learning_together", speed=True),
    "together-about": lambda: about("learning_together"),
    "tuning": tuning,
    "determinism": lambda: (
        "\n".join(determinism.table(read("determinism")["results"])) + "\n"
    ),
    "determinism-about": lambda: about("determinism"),
    "soak": lambda: "\n".join(soak.table(read("soak")["results"])) + "\n",
    "soak-about": lambda: about("soak"),
    "vec-envs": lambda: vec_envs("vec_env", VEC_ENVS),
    "supervised": lambda: vec_envs("supervised", SUPERVISED),
    "supervised-about": lambda: about("supervised"),
    "vec-envs-about": lambda: about("vec_env"),
    "all-cores": lambda: benchmark.all_cores_table(measured("all_cores")),
    "all-cores-about": lambda: about("all_cores"),
    "processes-training": lambda: benchmark_processes.training_table(read("processes")),
    "processes-updates": lambda: benchmark_processes.updates_table(read("processes")),
    "processes-messages": lambda: benchmark_processes.messages_table(read("processes")),
    "processes-about": lambda: about("processes"),
    "processes-scaling": lambda: scaling_model.assumed_table(read("processes")),
}


def fill(text: str) -> str:
    """The text with its tables made anew."""
    return PATTERN.sub(
        lambda found: f"{BEGIN.format(found[1])}\n\n{TABLES[found[1]]()}\n{END}", text
    )


def pages() -> list[Path]:
    """All files that may have tables."""
    return [
        DOCS.parent / "README.md",
        *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts),
    ]


def main() -> None:
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = fill(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(page)


if __name__ == "__main__":
    main()
