"""The house: imports point down only, and importing the package loads nothing that it does not need."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ppo_plus

PACKAGE = Path(ppo_plus.__file__).parent

#: Floor of each module; all of ``zoo`` is one room.
FLOORS = {
    "losses": 0,
    "advantages": 0,
    "kl_control": 0,
    "exploration": 0,
    "memory": 0,
    "arguments": 0,
    "schedules": 0,
    "observations": 0,
    "distributions": 1,
    "masking": 1,
    "buffers": 1,
    "policies": 2,
    "recurrent": 3,
    "fused": 1,
    "inductor": 0,
    "kernels": 0,
    "vec_env": 0,
    "engine": 3,
    "recurrent_update": 4,
    "checks": 3,
    "migration": 3,
    "evaluation": 3,
    "ppo_plus": 5,
    "__init__": 6,
    "zoo": 7,
}
MODULES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}


def imports(tree):
    """Absolute names of what a module imports at run time, wherever the statement stands."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node = ast.Module(node.orelse, [])
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imports(node)


def room(name):
    """The room that an imported name belongs to: ``ppo_plus.losses.policy_loss`` to ``losses``."""
    package, *rest = name.split(".")
    if package != "ppo_plus":
        return None
    return rest[0] if rest and rest[0] in {module.split(".")[0] for module in MODULES} else "__init__"


def imports_of(module):
    return list(imports(ast.parse(MODULES[module].read_text(encoding="utf-8"))))


def test_every_room_has_a_floor():
    assert {module.split(".")[0] for module in MODULES} == FLOORS.keys()


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down_only(module):
    own = module.split(".")[0]
    rooms = {room(name) for name in imports_of(module)} - {None}
    if own == "zoo":
        rooms -= {"zoo"}
    assert {name: FLOORS[name] for name in rooms if FLOORS[name] >= FLOORS[own]} == {}


def test_the_import_reader_sees_nested_imports_and_skips_type_checking():
    source = """
import ppo_plus.losses as l
from ppo_plus import buffers, PPO_Plus
if TYPE_CHECKING:
    from ppo_plus.engine import update
else:
    from ppo_plus.policies import MlpPolicy
def late():
    try:
        from ppo_plus.zoo.plot import x
    except ImportError:
        import numpy
"""
    rooms = [room(name) for name in imports(ast.parse(source))]
    assert rooms == ["losses", "buffers", "__init__", "policies", "zoo", None]


@pytest.mark.parametrize("module", ["losses", "advantages", "kl_control", "exploration", "schedules"])
def test_formulas_know_of_nothing_but_torch(module):
    foreign = {name.split(".")[0] for name in imports_of(module)} - sys.stdlib_module_names
    assert foreign <= {"torch"}


def test_importing_the_package_loads_no_experiments_and_no_plotting():
    # What SB3's PPO loads by itself (it tries matplotlib, pandas and others) is not ours to judge.
    code = """
import sys, stable_baselines3
before = set(sys.modules)
import ppo_plus
print(*sorted(set(sys.modules) - before))
print(*sorted(set(sys.modules)))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600, cwd=PACKAGE.parent
    )
    added, loaded = (set(line.split()) for line in run.stdout.splitlines())
    assert "ppo_plus.losses" in added
    assert not {name for name in loaded if name.startswith("ppo_plus.zoo")}
    assert not loaded & {"optuna", "sb3_contrib"}
    assert not {name.split(".")[0] for name in added} & {"matplotlib", "pandas", "yaml", "rich", "tqdm", "tensorboard"}
