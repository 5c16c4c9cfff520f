"""The README and the pages of ``docs`` say what is: examples run, commands exist, tables and metrics are true.

The blocks of a page run in order in an empty folder: ``python`` in one namespace, ``yaml`` whose first line is a
comment with a file's name is written there, and each line of ``bash`` is checked for what it calls. A comment before a
block may say what it takes:

``<!-- test: long -->``
    Training stops after its first update, uncompiled, and the rest of the block runs. The slow tests run it unchanged,
    unless the README has the same.
``<!-- test: slow -->``
    The block runs only where slow tests run.
"""

import argparse
import importlib
import inspect
import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from parametrization import EXHAUSTIVE, SLOW
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from training import LogDumps, shorten_rollouts

import ppo_plus
from ppo_plus import PPO_Plus

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *(path for path in sorted(DOCS.rglob("*.md")) if "_build" not in path.parts)]
BLOCK = re.compile(r"^(?:<!-- test: (\w+) -->\n)?```(python|bash|yaml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line it starts at, and ``long``, ``slow`` or nothing."""

    language: str
    text: str
    line: int
    mark: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(found[2], found[3], text[: found.start(3)].count("\n"), found[1]) for found in BLOCK.finditer(text)]


EXAMPLES = [page for page in PAGES if any(block.language != "yaml" for block in blocks(page))]
IDS = [str(page.relative_to(ROOT)) for page in EXAMPLES]
#: What these pages show has tests; they take longest.
LONGEST = [ROOT / f"docs/{name}.md" for name in ("deploying", "customizing", "migrating", "learning", "zoo")]
LONGEST += [ROOT / f"docs/capabilities/{name}.md" for name in ("demonstrations", "faults")]


def mark_of(page):
    """What every user reads first is tested first."""
    return EXHAUSTIVE if page in LONGEST else () if page.stem in ("README", "quickstart") else SLOW


class StopAfterUpdate(BaseCallback):
    """Ends training at the first step after an update."""

    def _on_training_start(self) -> None:
        self.updates = self.model._n_updates

    def _on_step(self) -> bool:
        return self.model._n_updates == self.updates


def stop_early(patch: pytest.MonkeyPatch) -> None:
    """Let ``learn`` stop after its first update, which is short, and compile nothing that did not ask for it."""
    learn = PPO_Plus.learn

    def learn_shortly(self, total_timesteps, callback=None, *args, **kwargs):
        given = [] if callback is None else callback if isinstance(callback, list) else [callback]
        given = [part if isinstance(part, BaseCallback) else ConvertCallback(part) for part in given]
        self.n_epochs = 1
        return learn(self, total_timesteps, CallbackList([*given, StopAfterUpdate()]), *args, **kwargs)

    patch.setattr(PPO_Plus, "learn", learn_shortly)
    shorten_rollouts(patch, 256)
    patch.setitem(inspect.unwrap(PPO_Plus.__init__).__kwdefaults__, "compile", False)


def run_page(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, slow: bool) -> None:
    if page.name == "deploying.md":
        pytest.importorskip("onnxruntime", reason="needs the extra export")
    monkeypatch.chdir(folder)
    namespace = {"__name__": "__main__"}
    for block in blocks(page):
        if block.mark == "slow" and not slow:
            continue
        with monkeypatch.context() as patch:
            repeated = page != README and block.text in README.read_text(encoding="utf-8")
            if block.mark == "long" and (repeated or not slow):
                stop_early(patch)
            if block.language == "python":
                # Empty lines before it, so that a traceback shows the page's own line.
                exec(compile("\n" * block.line + block.text, str(page), "exec"), namespace)
            elif block.language == "yaml" and block.text.startswith("# "):
                Path(block.text.splitlines()[0].removeprefix("# ")).write_text(block.text)
            elif block.language == "bash":
                for line in block.text.splitlines():
                    run_line(line, patch)


@pytest.mark.parametrize("page", [pytest.param(page, marks=mark_of(page)) for page in EXAMPLES], ids=IDS)
def test_examples_run(page, request, monkeypatch, tmp_path):
    """To their end where slow tests run, too, which is without ``-m``."""
    run_page(page, tmp_path, monkeypatch, slow=not request.config.getoption("markexpr"))


def test_there_are_examples_to_run():
    assert sum(block.language == "python" for page in PAGES for block in blocks(page)) >= 35
    assert sum(block.language == "bash" for page in PAGES for block in blocks(page)) >= 15


def test_every_code_block_is_collected():
    fences = {found for page in PAGES for found in re.findall(r"^```(\w+)", page.read_text("utf-8"), re.MULTILINE)}
    assert fences <= {"python", "bash", "yaml", "text"}


@pytest.mark.slow
def test_the_pages_build_without_a_warning(tmp_path):
    pytest.importorskip("sphinx", reason="needs the extra docs")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert f'<div class="brand">ppo_plus {ppo_plus.__version__}' in page
    assert "theme-toggle" in page and "sidebar-search" in page


# --- what stands in a shell ------------------------------------------------------------------------------------------


class Parsed(Exception):
    """The arguments are valid."""


def run_line(line: str, patch: pytest.MonkeyPatch) -> None:
    """Check every command of a line of a shell."""
    words = shlex.split(line, comments=True)
    while words:
        end = words.index("&&") if "&&" in words else len(words)
        command, words = words[:end], words[end + 1 :]
        program, *arguments = command
        assert program in COMMANDS, f"{line}: a test for {program} is missing"
        COMMANDS[program](arguments, patch)


def check_make(arguments: list[str], patch: pytest.MonkeyPatch) -> None:
    rules = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {word for word in arguments if "=" not in word} <= {target for rule in rules for target in rule.split()}


def check_pip(arguments: list[str], patch: pytest.MonkeyPatch) -> None:
    """What is installed is an extra that there is, the version that the tests use, or a package of an extra."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = dict(setup["options.extras_require"])
    known = {re.split(r"[<>=]", word)[0] for text in extras.values() for word in text.split()}
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    install, *packages = arguments
    assert install == "install"
    for package in packages:
        if package.startswith((".[", "ppo-plus[")):
            assert set(package.partition("[")[2][:-1].split(",")) <= set(extras), package
        elif package.startswith("dist/"):
            assert package == "dist/ppo_plus-*.whl"
        elif "==" in package:
            assert package in pins
        else:
            # Of OpenCV and MLflow, the tests use smaller packages, without windows and without a server.
            assert package in (".", "ppo-plus", "opencv-python", "mlflow") or package in known, package


def check_python(arguments: list[str], patch: pytest.MonkeyPatch) -> None:
    """A script that takes these arguments, or a module that is there."""
    if arguments[0] == "-m":
        assert find_spec(arguments[1])
        return
    script, *arguments = arguments
    assert (ROOT / script).is_file(), script
    patch.syspath_prepend(str((ROOT / script).parent))
    patch.setattr(sys, "argv", [script, *arguments])
    spec = spec_from_file_location("script", ROOT / script)
    module = module_from_spec(spec)
    # Dataclasses look their module up.
    patch.setitem(sys.modules, "script", module)
    spec.loader.exec_module(module)
    if hasattr(module, "parse_arguments"):
        module.parse_arguments()
    else:
        only_parse(module.main, patch)


def only_parse(main, patch: pytest.MonkeyPatch) -> None:
    parse_args = argparse.ArgumentParser.parse_args

    def parse(self, *args):
        parse_args(self, *args)
        raise Parsed

    with patch.context() as inner, pytest.raises(Parsed):
        inner.setattr(argparse.ArgumentParser, "parse_args", parse)
        main()


#: What is added to a command that works, so that it is short; the last of several values counts.
SHORTLY = {
    "train": ["-n", "256", "--eval-episodes", "1", "--n-envs", "1", "--no-progress"],
    "enjoy": ["-n", "5", "--no-render"],
    "record": ["-n", "3"],
    "export": [],
    "plot": [],
}


def run_ppo_plus(arguments: list[str], patch: pytest.MonkeyPatch) -> None:
    """Train, enjoy, record, export and plot shortly; of `tune`, read the arguments."""
    (command,) = entry_points(group="console_scripts", name="ppo-plus")
    main = command.load()
    # What is not interrupted cannot be resumed.
    if arguments[0] in SHORTLY and "--resume" not in arguments:
        # A setting that an option gives is not given twice.
        given = [*(word for word in arguments if not word.startswith("n_envs:")), *SHORTLY[arguments[0]]]
        if {"--repo", "--track"} & {*arguments}:  # they need a network
            only_parse(lambda: main(given), patch)
        elif arguments[0] == "enjoy" and not list(Path("logs").glob(f"*/{arguments[arguments.index('--env') + 1]}_*")):
            only_parse(lambda: main(given), patch)
        else:
            patch.setattr("ppo_plus.zoo.callbacks.LAST_EPISODES", 1)
            main(given)
    else:
        only_parse(lambda: main(arguments), patch)


def check_installed(arguments: list[str], patch: pytest.MonkeyPatch) -> None:
    assert shutil.which("optuna-dashboard", path=str(Path(sys.executable).parent))


COMMANDS = {
    "cd": lambda arguments, patch: None,
    "git": lambda arguments, patch: None,
    "make": check_make,
    "optuna-dashboard": check_installed,
    "pip": check_pip,
    "ppo-plus": run_ppo_plus,
    "sbatch": lambda arguments, patch: None,
    "python": check_python,
}


COMMAND = re.compile(
    r"`(python (?:benchmarks|scripts|tests/long)/[^`]+|ppo-plus (?:train|tune|enjoy|record|plot) -[^`]+|make \w+)`"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_within_sentences_exist(page, monkeypatch):
    """Such as those that reproduce a table."""
    for command in COMMAND.findall(page.read_text(encoding="utf-8")):
        program, *arguments = shlex.split(command)
        if program == "ppo-plus":
            # `--help`, or an option alone.
            continue
        with monkeypatch.context() as patch:
            COMMANDS[program](arguments, patch)


# --- what is said ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables():
    sys.path.insert(0, str(DOCS))
    yield importlib.import_module("tables")
    sys.path.remove(str(DOCS))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_show_the_measurements(page, tables):
    text = page.read_text(encoding="utf-8")
    assert tables.fill(text) == text, "write the tables again: python docs/tables.py"


def test_notebooks_have_a_button_once_there_is_an_address(tables):
    page = (DOCS / "notebooks.md").read_text(encoding="utf-8")
    assert tables.with_buttons(page, "") == page
    filled = tables.with_buttons(page, "https://github.com/someone/ppo_plus")
    start = "](https://colab.research.google.com/github/someone/ppo_plus/blob/main/docs/notebooks/"
    assert filled.count(start) == page.count("](notebooks/") == 6 and f"{start}deploy.ipynb)" in filled


def test_a_table_is_made_of_its_file(tables):
    """A figure in its cell, counted here without the scripts."""
    rounds = tables.read("speed")["results"]["CartPole-v1-x8"]
    ratios = sorted(
        a / b for a, b in zip(*(rounds[who]["us_per_step"] for who in ("SB3", "PPO_Plus compiled")), strict=True)
    )
    cell = f"**{ratios[len(ratios) // 2]:.2f}×** [{ratios[0]:.2f}, {ratios[-1]:.2f}]"
    (row,) = (row for row in tables.TABLES["speed"]() if row.startswith("| CartPole-v1, 8 envs"))
    assert cell in row


def test_every_table_is_shown(tables):
    shown = {name for page in PAGES for name, _ in tables.PATTERN.findall(page.read_text(encoding="utf-8"))}
    assert shown == set(tables.TABLES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    missing = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    # What belongs to an included file is relative to that.
    assert not missing


@pytest.mark.parametrize("page", EXAMPLES, ids=IDS)
def test_examples_fit_on_the_page(page):
    """The built pages have room for 88 characters."""
    lines = [line for block in blocks(page) if block.language == "python" for line in block.text.splitlines()]
    assert [line for line in lines if len(line) > 88] == []


def test_the_page_of_the_house_and_its_picture_show_every_room():
    package = Path(ppo_plus.__file__).parent
    rooms = {f"{path.name}/" for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    rooms |= {path.name for path in package.glob("[!_]*.py")}
    text = (DOCS / "house.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text.partition("## The packages")[2].partition("\n## ")[0], re.MULTILINE)
    assert {name for row in rows for name in re.findall("`(.*?)`", row)} == rooms
    picture = (DOCS / "pictures" / "rooms.svg").read_text(encoding="utf-8")
    names = re.findall(r'class="name".*?>(.*?)<', picture)
    ground = re.findall(r'class="what".*?>(.*?)<', picture)[-1].split(", ")
    assert {*names, *ground} - {"for all"} == rooms


def test_names_on_the_page_of_the_house_are_in_the_code():
    sources = [path.read_text(encoding="utf-8") for path in Path(ppo_plus.__file__).parent.rglob("*.py")]
    words = {word for source in sources for word in re.findall(r"\w+", source)} | {"py"}
    text = (DOCS / "house.md").read_text(encoding="utf-8")
    named = re.findall(r"`([A-Za-z_]\w*(?:\.\w+)*)(?:\([^`]*\))?`", text)
    assert "Collector.store" in named
    assert [name for name in named if not words.issuperset(name.split("."))] == []


def test_implementation_details_are_in_the_code():
    """Each row names what is in its file, and quotes effects as the screenings have them."""
    text, package = (DOCS / "details.md").read_text(encoding="utf-8"), Path(ppo_plus.__file__).parent
    tables = [re.findall(r"^\| \d+ \|.*\|$", part, re.MULTILINE) for part in text.split("\n## ")[1:]]
    assert [len(rows) for rows in tables] == [13, 9, 9, 5, 1, 4]
    for row in sum(tables, []):
        _, detail, where, default, measured = cells = row.strip("| ").split(" | ")
        assert all(cells), row
        for file, names in re.findall(r"\(\.\./ppo_plus/([^)]+)\)(?:: ([^;]*))?", where):
            words = set(re.findall(r"\w+", (package / file).read_text(encoding="utf-8")))
            assert words.issuperset(re.findall(r"\w+", names)), row
    effects = re.findall(r"[+-]\d+% \[[^]]+\]", text)
    screenings = (DOCS / "screenings.md").read_text(encoding="utf-8")
    assert len(effects) > 15 and [effect for effect in effects if effect not in screenings] == []


def test_every_page_is_in_the_contents():
    listed = {
        entry
        for page in PAGES
        for toctree in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        for entry in toctree.split()
    }
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in PAGES if page.is_relative_to(DOCS)}
    assert pages - {"index"} <= listed


def test_the_first_pages_are_read_in_an_hour():
    """Five, of at most 9,000 words: 150 a minute."""
    first = re.search(r"```\{toctree\}\n(.*?)```", (DOCS / "index.md").read_text(encoding="utf-8"), re.DOTALL)
    pages = [f"{line}.md" for line in first[1].splitlines() if line and not line.startswith(":")]
    assert pages == ["quickstart.md", "environments.md", "learning.md", "tuning.md", "deploying.md"]
    texts = [(DOCS / page).read_text(encoding="utf-8") for page in pages]
    assert sum(len(text.split()) for text in texts) <= 9_000
    # Each leads to the next.
    assert [page for page, text in zip(pages[1:], texts, strict=False) if f"({page})" not in text] == []


def test_the_reference_has_all_that_can_be_imported():
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\.\. auto(?:class|function):: (\w+)$", text, re.MULTILINE))
    assert described == set(ppo_plus.__all__)


def test_every_metric_is_described():
    """All that is logged is on the page, and all that is on the page is logged."""
    text = (DOCS / "metrics.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\| .*?(?= \|)", text, re.MULTILINE))
    described = {name for cell in described for name in re.findall(r"`((?:rollout|time|train|eval|faults)/\w+)`", cell)}
    log = LogDumps()
    model = PPO_Plus(
        "MlpPolicy", "Pendulum-v1", n_steps=256, n_epochs=1, use_sde=True, clip_range_vf=0.2, target_kl=0.1
    )
    evaluation = EvalCallback(make_vec_env("Pendulum-v1"), eval_freq=300, n_eval_episodes=1, verbose=0)
    model.learn(512, callback=[log, evaluation])
    # Only some environments, broken losses, several processes and restarted environments have these.
    rare = {"rollout/success_rate", "eval/success_rate", "train/skipped_minibatches", "time/wait"}
    assert described == {"faults/env_restarts"}.union(rare, *log.dumps)


def test_migrating_lists_the_new_arguments():
    parameters = inspect.signature(PPO_Plus).parameters.values()
    new = {each.name: repr(each.default).replace("'", '"') for each in parameters if each.kind is each.KEYWORD_ONLY}
    section = (DOCS / "migrating.md").read_text().split("### New arguments")[1].split("###")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", section, re.MULTILINE)) == new
