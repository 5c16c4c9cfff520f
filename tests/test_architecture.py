"""The house: imports point down only, and importing the package loads nothing that it does not need."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import ppo_plus

PACKAGE = Path(ppo_plus.__file__).parent
ROOT = PACKAGE.parent

#: The rooms, from the ground floor up. A room imports from lower ones only; inside a room there are no circles.
ROOMS = """
generators process public require trees formulas policy compiling update envs recommendations distributed model rollout
settings demonstrations call saving ppo callbacks league __init__ zoo __main__
""".split()
#: The rooms of the zoo, likewise; its other modules are one room, below these.
ZOO = ["", "tune", "cli"]

MODULES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
#: What is a namespace alone says nothing of floors: the lazy names of the package, and empty files.
SOURCES = {name: path.read_text(encoding="utf-8") for name, path in MODULES.items() if name != "__init__"}


def imports(tree):
    """Absolute names of what a module imports, wherever the statement stands, for type checkers too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(name):
    """The module of ours that an imported name belongs to, or ``None``."""
    package, *rest = name.split(".")
    if package != "ppo_plus":
        return None
    for end in range(len(rest), 0, -1):
        found = ".".join(rest[:end])
        if found in MODULES:
            return found
        if f"{found}.__init__" in MODULES:
            return f"{found}.__init__"
    return "__init__"


def floor(module):
    room, *rest = module.split(".")
    inner = ZOO.index(rest[0]) if room == "zoo" and rest and rest[0] in ZOO else 0
    return ROOMS.index(room), inner


def imports_of(module):
    return list(imports(ast.parse(SOURCES[module])))


def ours(module):
    return {module_of(name) for name in imports_of(module)} - {None, module}


def test_every_room_has_a_floor():
    assert {module.split(".")[0] for module in MODULES} == set(ROOMS)


def test_imports_point_down_only():
    upwards = {(module, other) for module in SOURCES for other in ours(module) if floor(other) > floor(module)}
    assert upwards == set()


def test_nothing_needs_the_zoo_but_the_command_line():
    importers = {module for module in SOURCES if any(other.startswith("zoo.") for other in ours(module))}
    assert {module for module in importers if not module.startswith("zoo.")} == {"__main__"}
    assert not [name for name in ppo_plus.public.MODULES.values() if name.startswith("ppo_plus.zoo")]


def test_no_files_import_each_other_in_a_circle():
    below, reached = {module: ours(module) for module in SOURCES}, set()

    def visit(module, path):
        assert module not in path, f"circle: {' -> '.join([*path, module])}"
        if module not in reached:
            for other in sorted(below.get(module, ())):
                visit(other, [*path, module])
            reached.add(module)

    for module in below:
        visit(module, [])


def test_the_import_reader_sees_every_import():
    source = """
import ppo_plus.formulas.losses as l
from ppo_plus import PPO_Plus
if TYPE_CHECKING:
    from ppo_plus.update.minibatch import packed
def late():
    try:
        from ppo_plus.zoo.results import x
    except ImportError:
        import numpy
"""
    found = {module_of(name) for name in imports(ast.parse(source))}
    assert found == {"formulas.losses", "__init__", "update.minibatch", "zoo.results", None}


@pytest.mark.parametrize("module", [name for name in SOURCES if name.startswith("formulas.")])
def test_formulas_import_nothing_but_torch_and_checks_of_arguments(module):
    foreign = {name.split(".")[0] for name in imports_of(module)} - sys.stdlib_module_names - {"ppo_plus"}
    assert foreign <= {"torch"}
    assert all(other == "require" or other.startswith("formulas.") for other in ours(module))


#: What torch's page on extending it says to import.
DOCUMENTED = {"torch.utils._python_dispatch.TorchDispatchMode"}


@pytest.mark.slow
def test_private_names_of_torch_are_in_one_module():
    """No other module names them: ``torch._x``, or an attribute of torch's objects that begins with ``_``."""
    found = {
        f"{module}: {node.attr}"
        for module, source in SOURCES.items()
        if module not in ("compiling.torch_private", "compiling.constants")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("th._", "torch._"))
    }
    assert found == set()
    named = {
        (module, name)
        for module in SOURCES
        if module != "compiling.torch_private"
        for name in imports_of(module)
        if name.startswith("torch.")
        and any(part.startswith("_") for part in name.split("."))
        and name not in DOCUMENTED
    }
    assert named == set()


def test_no_class_name_is_defined_twice():
    nodes = [node for source in SOURCES.values() for node in ast.walk(ast.parse(source))]
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, n in names.items() if n > 1] == []


def n_lines(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def tracked(pattern):
    """Files that are tracked, but for those that only tests read."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a repository")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if re.search(pattern, name) and not name.startswith("tests/data/")]


#: How large the house may be, so that it can be walked through.
LIMITS = {
    "modules that are not empty": (98, lambda: sum(map(bool, map(n_lines, MODULES.values())))),
    "lines of a module": (700, lambda: max(map(n_lines, MODULES.values()))),
    "values of any type": (300, lambda: sum(len(re.findall(r"(?::|->) Any\b", text)) for text in SOURCES.values())),
    "lines of the README": (150, lambda: n_lines(ROOT / "README.md")),
    "scripts": (8, lambda: len(tracked(r"^scripts/"))),
    "files of data": (40, lambda: len(tracked(r"\.(json|jsonl|csv|npz)$"))),
}


@pytest.mark.parametrize(("limit", "count"), LIMITS.values(), ids=LIMITS)
def test_the_house_stays_small(limit, count):
    assert 0 < count() <= limit


@pytest.mark.slow
def test_importing_the_package_loads_no_experiments():
    # What SB3's PPO loads by itself (it tries matplotlib, pandas and others) is not ours to judge.
    code = """
import sys, stable_baselines3
before = set(sys.modules)
import ppo_plus
ppo_plus.PPO_Plus
print(*sorted(set(sys.modules) - before))
print(*sorted(set(sys.modules)))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600, cwd=ROOT
    )
    added, loaded = (set(line.split()) for line in run.stdout.splitlines())
    assert "ppo_plus.formulas.losses" in added
    assert not {name for name in loaded if name.startswith("ppo_plus.zoo")}
    assert not loaded & {"optuna", "sb3_contrib"}
    assert not {name.split(".")[0] for name in added} & {"matplotlib", "pandas", "yaml", "rich", "tqdm", "tensorboard"}
