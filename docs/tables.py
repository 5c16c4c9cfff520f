"""The tables of the documentation, made from the measurements in ``benchmarks/results``.

    python docs/tables.py    # write them into README.md and the pages

Each table is between the comments ``<!-- table: NAME -->`` and ``<!-- end of table -->``. It is stored in the page, and
made again when the documentation is built; a test checks that both are equal. Rows and cells come from
``benchmarks/report``, so a table here equals the one that the measuring script prints.
"""

import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "benchmarks"))

from ppo_plus.zoo.results import iqm_interval  # noqa: E402
from report import (  # noqa: E402
    exploration,
    games,
    memory_kinds,
    processes,
    recommended,
    reliability,
    returns,
    scores,
    search,
    speed,
    streams,
    vec_envs,
    zoo,
)
from report.markdown import markdown  # noqa: E402
from report.plan import ARMS  # noqa: E402
from report.results import COMMANDS, path, read, read_lines  # noqa: E402
from report.results import about as facts_of  # noqa: E402

BEGIN, END = "<!-- table: {} -->", "<!-- end of table -->"
PATTERN = re.compile(r"<!-- table: (\S+) -->\n(.*?)<!-- end of table -->", re.DOTALL)

#: Names of the workloads of ``benchmarks/benchmark.py`` in the documentation.
WORKLOADS = {
    "CartPole-v1-x1": "CartPole-v1, 1 env",
    "CartPole-v1-x8": "CartPole-v1, 8 envs",
    "CartPole-v1-x64": "CartPole-v1, 64 envs",
    "HalfCheetah-v5-x1": "HalfCheetah-v5, 1 env",
    "HalfCheetah-v5-x8": "HalfCheetah-v5, 8 envs",
    "Pendulum-v1-gSDE-x4": "Pendulum-v1, gSDE, 4 envs",
    "Dict-x8": "Dict of two vectors, 8 envs",
    "CartPole-v1-masked-x8": "action masks (SB3: MaskablePPO), 8 envs",
    "Dict-image-x8": "Dict with a small image, 8 envs",
    "Atari-shapes-x8": "Atari-shaped images, 8 envs",
    "Atari-shapes-bfloat16-x8": "Atari-shaped images, 8 envs, PPO_Plus in bfloat16",
    "CartPole-v1-LSTM-x8": "two LSTMs of 256 units, minibatches of 64",
    "CartPole-v1-LSTM-x8-batch-256": "two LSTMs of 256 units, minibatches of 256",
    "CartPole-v1-small-LSTM-x8-batch-256": "two LSTMs of 64 units, minibatches of 256",
    "CartPole-v1-Lru-x8": "two LRUs of 256 units, minibatches of 64 (SB3: LSTMs)",
    "CartPole-v1-Lru-x8-batch-256": "two LRUs of 256 units, minibatches of 256 (SB3: LSTMs)",
    "CartPole-v1-Attention-x8": "attention with 256 units, minibatches of 64 (SB3: LSTMs)",
    "CartPole-v1-Attention-x8-batch-256": "attention with 256 units, minibatches of 256 (SB3: LSTMs)",
}
#: Rows of the README: several environments, one environment, memory, images.
README = {
    "CartPole-v1-x8": "CartPole-v1, 8 envs",
    "HalfCheetah-v5-x1": "HalfCheetah-v5, 1 env",
    "CartPole-v1-LSTM-x8": "CartPole-v1, LSTM, 8 envs (SB3: RecurrentPPO)",
    "Atari-shapes-x8": "Atari-shaped images, 8 envs",
}
WORKERS = {
    vec_envs.BASE: "`make_vec`, one process",
    **{name: f"`make_vec`, `n_workers={n}`" for n, name in vec_envs.WORKERS.items()},
    "SB3 DummyVecEnv": "SB3 `DummyVecEnv`",
    "SB3 SubprocVecEnv": "SB3 `SubprocVecEnv`",
    "Gymnasium async": "Gymnasium `AsyncVectorEnv`",
    "EnvPool": "EnvPool",
}
WORKERS_TRAINING = {
    kind: title.replace("SB3", "SB3's PPO,")
    for kind, title in WORKERS.items()
    if kind != "Gymnasium async"
}
SUPERVISED = {
    "SB3 DummyVecEnv": "SB3 `DummyVecEnv`",
    "SB3 SubprocVecEnv": "SB3 `SubprocVecEnv`",
    "Supervised, in processes": "`SupervisedVecEnv`",
    "Supervised, with a time limit": "`SupervisedVecEnv(timeout=60)`",
}


#: The tables are lines of Markdown.
Lines = list[str]


def about(name: str) -> Lines:
    """The machine and the versions with which a file was measured."""
    return described(facts_of(read(name)))


def joined(measurements: Iterable[dict[str, Any]]) -> dict[str, str]:
    """What several measurements depend on: of each fact all values that are known."""
    seen: dict[str, set[str]] = {}
    for facts in measurements:
        for name, value in facts.items():
            if value != "unknown":
                seen.setdefault(name, set()).add(str(value))
    return {name: " and ".join(sorted(found)) for name, found in seen.items()}


def release_about() -> Lines:
    """The machine and the versions of a release's measurements, and the load before each."""
    measurements = {name: facts_of(read(name)) for name in COMMANDS}
    of_each = ("load before", "rounds")
    shared = joined(
        {key: value for key, value in facts.items() if key not in of_each}
        for facts in measurements.values()
    )
    loads = ", ".join(
        f"{name} {facts['load before']}"
        for name, facts in measurements.items()
        if "load before" in facts
    )
    return [*described(shared), "", f"Load at the start: {loads}."]


def described(facts: dict[str, Any]) -> Lines:
    """The machine, and the versions of all packages."""
    machine = ", ".join(facts[key] for key in ("machine", "processor") if key in facts)
    packages = {
        key: value
        for key, value in facts.items()
        if key not in NO_PACKAGES and "unknown" not in str(value)
    }
    rounds = f", {facts['rounds']} rounds" if "rounds" in facts else ""
    device = f", {facts['device']}" if facts.get("device", "cpu") != "cpu" else ""
    load = (
        f", load {facts['load before']} at the start" if "load before" in facts else ""
    )
    versions = ", ".join(f"{key} {value}" for key, value in packages.items())
    return [f"{machine}{device}{load}{rounds}; {versions}."]


NO_PACKAGES = (
    "machine",
    "processor",
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


def measured(*names: str) -> speed.Results:
    """Measurements of ``benchmarks/benchmark.py``, by workload and contender."""
    found: speed.Results = {}
    for name in names:
        found |= speed.parse(read(name)["results"])
    return found


def speeds(
    titles: dict[str, str],
    *names: str,
    corner: str = "time per environment step",
    others: bool = True,
    cell: Callable[[speed.Measured, speed.Measured], str] = speed.time_cell,
) -> Lines:
    """Time per environment step of these workloads.

    :param titles: names of the workloads
    :param names: the files with measurements
    :param corner: header of the first column
    :param others: whether other contenders (SBX) have a column
    :param cell: what a cell shows of a contender and the reference
    """
    results = measured(*names)
    chosen = {
        title: {
            contender: value
            for contender, value in results[workload].items()
            if others or contender != speed.SBX
        }
        for workload, title in titles.items()
        if workload in results
    }
    return speed.comparison(chosen, corner, cell)


def speed_details(*names: str) -> Lines:
    """Start-up and memory."""
    header = [
        "workload",
        "trained with",
        "start-up, s",
        "with empty cache, s",
        "peak memory, MB",
        "added by training, MB",
    ]
    rows = []
    for workload, by_contender in measured(*names).items():
        if workload not in README:
            continue
        for contender, value in by_contender.items():
            if not value.error:
                seconds = [
                    "" if s is None else f"{s:.1f}"
                    for s in (value.start_up, value.start_up_empty)
                ]
                memory = [f"{value.memory[key]:.0f}" for key in ("peak", "added")]
                rows.append([WORKLOADS[workload], contender, *seconds, *memory])
    return markdown(header, rows)


def threads() -> Lines:
    """Time per step with one thread and with more."""
    return speed.comparison(measured("threads"), "threads", speed.time_cell)


def results(*names: str) -> list[scores.Result]:
    """Results of the learning scripts."""
    return [result for name in names for result in scores.read(path(name))]


def learned(*names: str, timed: bool = False, only: str = "") -> Lines:
    """Returns by task and contender, where ``only`` is in the task's name."""
    columns = scores.COLUMNS | (scores.SPEED if timed else {})
    chosen = [result for result in results(*names) if only in result.task]
    return scores.rows(chosen, columns)


def compared() -> Lines:
    """The comparisons of the README, each with the command that measures it."""

    def times_as_fast(file: str, workload: str) -> str:
        times = measured(file)[workload]
        ratios = times[speed.COMPILED].speed_ups(times[speed.REFERENCE])
        return f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"

    def number(rows: Lines, settings: str, column: int) -> str:
        ours = f"| {settings} | "
        (line,) = (row for row in rows if row.startswith(ours))
        return line.split(" | ")[column]

    mujoco_rows = returns.comparison(reported())
    unseen_rows = recommended.over_tasks(returns.results(stages=["unseen"]))

    def mujoco(arm: str, where: str = "") -> str:
        return number(mujoco_rows, ARMS[arm].name + where, 5)

    def unseen(arm: str) -> str:
        return number(unseen_rows, ARMS[arm].name, 3)

    def score(file: str, task: str, contender: str) -> float:
        runs = results(file)
        found = [r.score for r in runs if (r.task, r.contender) == (task, contender)]
        return iqm_interval(found).value

    def courier(contender: str) -> str:
        return f"{score('learning_actions', 'Courier', contender):.2f}"

    rows = [
        [
            "[speed of training](docs/benchmarks.md), CartPole-v1, 8 environments, SB3 = 1",
            "1",
            times_as_fast("speed", "CartPole-v1-x8") + " (compiled)",
            "`python benchmarks/benchmark.py`",
        ],
        [
            "[speed of training with memory](docs/capabilities/memory.md#speed), two networks of 256 units, "
            "minibatches of 256, sequences of 16 steps, `RecurrentPPO` (whole minibatches) = 1",
            "1 (LSTM)",
            times_as_fast("memory_speed", "CartPole-v1-LSTM-x8-batch-256")
            + " (LSTM), "
            + times_as_fast("memory_kinds_speed", "CartPole-v1-Lru-x8-batch-256")
            + " (LRU)",
            "`python benchmarks/benchmark.py`",
        ],
        [
            "[return on six MuJoCo tasks](docs/results.md), SB3's defaults = 1",
            f"1 (SB3's), {mujoco('rl_zoo3')} (rl_zoo3's)",
            f"{mujoco('mujoco-shared')} (shared settings; {mujoco('mujoco-shared', ', elsewhere')} on the three tasks "
            f"that did not choose them), {mujoco('mujoco')} (own settings for four tasks)",
            "`python benchmarks/learning_returns.py --report`",
        ],
        [
            f"[score on {number(unseen_rows, ARMS['recommended'].name, 1)} tasks]"
            "(docs/results.md#settings-for-an-environment-that-nobody-has-tuned) that were not searched, tuned "
            "settings = 1",
            f"{unseen('untuned')} (defaults), {unseen('untuned-normalized')} (normalized)",
            f"{unseen('recommended')} (recommended)",
            "`python benchmarks/learning_returns.py --queue --stage unseen --results FILE`",
        ],
        [
            "[return on Courier](docs/capabilities/spaces.md#dict-and-tuple-actions), a mixed action space",
            courier("SB3's PPO, as a Box") + " (`Box`)",
            courier("PPO_Plus, Dict") + " (`Dict`)",
            "`python benchmarks/learning_actions.py --only mixed`",
        ],
    ]
    return markdown(["", "SB3", "PPO_Plus", "measured by"], rows)


def tuning() -> Lines:
    """The confirmation in the report of the example's study, without the single returns."""
    report = (DOCS / "tuning" / "lunarlander" / "report.md").read_text(encoding="utf-8")
    lines = report.split("## Confirmation")[1].split("\n## ")[0].splitlines()
    rows = [line.strip("|").split("|")[:4] for line in lines if line.startswith("|")]
    return ["|" + "|".join(row) + "|" for row in rows]


def by_task(name: str, titles: dict[str, str]) -> Lines:
    """Time of a step of all environments: a table per task.

    :param name: the file with measurements
    :param titles: names of the vector environments; those without a measurement for the task have no row
    """
    lines: Lines = []
    for task, times in read(name)["us_per_step"].items():
        numbers = [f"{n} env{'s' * (n != '1')}" for n in times]
        rows = [
            [title, *(f"{median(by_kind[kind]):,.0f}" for by_kind in times.values())]
            for kind, title in titles.items()
            if all(kind in by_kind for by_kind in times.values())
        ]
        lines += [*markdown([f"µs per step of {task}", *numbers], rows), ""]
    return lines[:-1]


def reported() -> list[dict[str, Any]]:
    """The runs in the comparison of contenders."""
    return returns.results(stages=returns.REPORTED)


def goals(arm: str) -> Lines:
    """Returns of a contender, and the goals."""
    return returns.goals(returns.results(), arm)


def explored(kind: str) -> Lines:
    """Results of ``benchmarks/learning_exploration.py`` for some tasks, by exploration."""
    return exploration.table(kind, results(f"exploration_{kind}"))


def agents() -> Lines:
    """The trained agents, with pictures of those that can be drawn."""

    def row(agent: dict[str, Any]) -> list[str]:
        picture = Path("pictures", "agents", f"{agent['env']}.gif")
        return [
            agent["env"],
            f"![{agent['env']}]({picture})" if (DOCS / picture).exists() else "",
            f"{agent['return']:,.0f} ± {agent['std']:,.0f}",
            f"{agent['seed']}, median of {agent['of_seeds']}",
            f"{agent['steps'] / 1e6:.2g}M",
        ]

    lines = read_lines(DOCS.parent / "agents" / "agents.jsonl")
    header = ["environment", "picture", "return", "seed", "timesteps"]
    return markdown(header, map(row, sorted(lines, key=lambda agent: agent["env"])))


def returns_about() -> Lines:
    """The versions of all runs."""
    facts = [result["versions"] for result in returns.results()]
    (line,) = described(joined(facts))
    states = [each["package"] for each in facts]
    unknown = states.count(None)
    return [
        f"{line} {len({*states} - {None})} states of the package; {unknown} runs name none, since it was not committed."
    ]


IMAGES = {
    name: title
    for name, title in WORKLOADS.items()
    if "Atari" in name or "image" in name
}
LSTM = "CartPole-v1, 8 envs (SB3: RecurrentPPO)"
TABLES: dict[str, Callable[[], Lines]] = {
    "release-about": release_about,
    "readme-compared": compared,
    "readme-speed": lambda: speeds(
        README,
        "speed",
        "speed_images",
        "memory_speed",
        corner="whole training, one thread",
        others=False,
        cell=speed.ratio_cell,
    ),
    "speed": lambda: speeds(WORKLOADS, "speed", "speed_images"),
    "speed-details": lambda: speed_details("speed", "speed_images"),
    "gpu-images": lambda: speeds(IMAGES, "gpu_images"),
    "gpu-images-about": lambda: about("gpu_images"),
    "gpu-tensors": lambda: speed.iterations(read("gpu_tensor_env")["results"]),
    "gpu-tensors-about": lambda: about("gpu_tensor_env"),
    "memory-speed": lambda: speeds(
        WORKLOADS, "memory_speed", "memory_kinds_speed", corner=LSTM, others=False
    ),
    "threads": threads,
    "returns": lambda: returns.contenders(reported()),
    "recommended-search": lambda: search.effects(read_lines(search.FILE)),
    "recommended-in-other-units": lambda: recommended.in_other_units(
        returns.results(stages=["robust"])
    ),
    "recommended-over-tasks": lambda: recommended.over_tasks(
        returns.results(stages=["unseen"])
    ),
    "recommended": lambda: recommended.by_task(returns.results(stages=["unseen"])),
    "zoo": zoo.table,
    "zoo-not-run": zoo.not_run,
    "memory-kinds": memory_kinds.table,
    "streams": streams.table,
    "self-play": games.self_play,
    "spread": games.spread,
    "returns-over-tasks": lambda: returns.comparison(reported()),
    "returns-about": returns_about,
    **{
        f"returns-goals-{arm}": partial(goals, arm)
        for arm in returns.GOALS
        if arm != "entry"
    },
    "exploration-classic": lambda: explored("classic"),
    "exploration-minatar": lambda: explored("minatar"),
    "exploration-about": lambda: about("exploration_classic"),
    "actions-courier": lambda: learned("learning_actions", only="Courier"),
    "actions-invalid": lambda: learned("learning_actions", only="invalid"),
    "actions-about": lambda: about("learning_actions"),
    "demonstrations": lambda: learned("learning_demonstrations"),
    "demonstrations-about": lambda: about("learning_demonstrations"),
    "memory": lambda: learned("learning_memory", timed=True),
    "together": lambda: learned("learning_together", timed=True),
    "tuning": tuning,
    "determinism": lambda: reliability.determinism_table(
        read("determinism")["results"]
    ),
    "determinism-about": lambda: about("determinism"),
    "soak": lambda: reliability.soak_table(read("soak")["results"]),
    "workers": lambda: vec_envs.table(
        read("workers")["us_per_step"],
        vec_envs.BASE,
        "µs per step of all environments",
        WORKERS,
    ),
    "workers-training": lambda: vec_envs.table(
        read("workers")["training_us_per_step"],
        vec_envs.BASE,
        "µs per step of one environment",
        WORKERS_TRAINING,
    ),
    "supervised": lambda: by_task("supervised", SUPERVISED),
    "agents": agents,
    "processes-training": lambda: processes.training_table(read("processes")),
    "processes-updates": lambda: processes.updates_table(read("processes")),
}


def fill(text: str) -> str:
    """Fill the tables of a text from the measurements."""

    def table(found: re.Match[str]) -> str:
        lines = "\n".join(TABLES[found[1]]())
        return f"{BEGIN.format(found[1])}\n\n{lines}\n\n{END}"

    return PATTERN.sub(table, text)


def with_buttons(text: str, address: str) -> str:
    """A page with a button at each notebook that opens it in Colab, if the address of the repository is on GitHub."""
    _, _, repository = address.partition("github.com/")
    if not repository:
        return text
    folder = f"https://colab.research.google.com/github/{repository}/blob/main/docs/notebooks/"
    badge = "![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)"
    return re.sub(r"\]\(notebooks/(\S+?)\)", rf"\g<0> [{badge}]({folder}\1)", text)


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
    (DOCS.parent / "hyperparams" / "returns.yml").write_text(zoo.shipped(), "utf-8")


if __name__ == "__main__":
    main()
