"""The house: imports point down only, and importing the package loads nothing that it does not need."""

import ast
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

import ppo_plus

PACKAGE = Path(ppo_plus.__file__).parent

#: The rooms, from the ground floor up. A room imports from lower ones only; inside a room there are no circles.
ROOMS = [
    "generators",
    "process",
    "public",
    "require",
    "trees",
    "formulas",
    "policy",
    "compiling",
    "update",
    "envs",
    "distributed",
    "rollout",
    "saving",
    "settings",
    "call",
    "ppo",
    "__init__",
    "zoo",
    "__main__",
]
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


@pytest.mark.parametrize("module", SOURCES)
def test_imports_point_down_only(module):
    assert [other for other in ours(module) if floor(other) > floor(module)] == []


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
    from ppo_plus.update.flat import packed
def late():
    try:
        from ppo_plus.zoo.results import x
    except ImportError:
        import numpy
"""
    found = {module_of(name) for name in imports(ast.parse(source))}
    assert found == {"formulas.losses", "__init__", "update.flat", "zoo.results", None}


@pytest.mark.parametrize("module", [name for name in SOURCES if name.startswith("formulas.")])
def test_formulas_import_nothing_but_torch(module):
    foreign = {name.split(".")[0] for name in imports_of(module)} - sys.stdlib_module_names - {"ppo_plus"}
    assert foreign <= {"torch"}
    assert all(other.startswith("formulas.") for other in ours(module))


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
        if name.startswith("torch.") and any(part.startswith("_") for part in name.split("."))
    }
    assert named == set()


#: Libraries whose private names may be used only where :data:`PRIVATE` says so.
LIBRARIES = ("gymnasium", "optuna", "sb3_contrib", "stable_baselines3")
#: Modules of SB3 whose classes ours derive from: their private names are theirs even where our class defines them.
BASES = tuple(
    f"stable_baselines3.common.{name}"
    for name in ("base_class", "buffers", "callbacks", "on_policy_algorithm", "policies", "vec_env.base_vec_env")
)
#: Methods that SB3 documents as hooks of callbacks, and those of named tuples, which are public.
PUBLIC = {"_on_step", "_on_training_start", "_on_rollout_start", "_on_rollout_end", "_on_training_end", "_on_event"}
PUBLIC |= {"_asdict", "_fields", "_make", "_replace"}
#: Private names of these libraries, and the modules that use them. Make it shorter, not longer.
PRIVATE: dict[str, set[str]] = {
    "_build": {"policy.policies"},
    "_build_mlp_extractor": {"policy.memory", "policy.policies"},
    "_current_progress_remaining": {"ppo", "saving.model"},
    "_current_step": {"envs.resumable.attributes"},
    "_custom_logger": {"saving.checkpoint.checkpoint"},
    "_destroy": {"envs.resumable.state"},
    "_elapsed_steps": {"envs.resumable.attributes"},
    "_episode_num": {"saving.model"},
    "_excluded_save_params": {"ppo", "saving.model"},
    "_get_action_dist_from_latent": {"policy.adapter"},
    "_get_constructor_parameters": {"policy.policies", "policy.recurrent"},
    "_get_indices": {"envs.vec_env", "envs.supervised.vec_env", "envs.tensors.vec_env"},
    "_get_policy_from_name": {"ppo"},
    "_get_torch_save_params": {"ppo", "saving.model"},
    "_init_callback": {"ppo", "zoo.callbacks"},
    "_is_success_buffer": {"zoo.callbacks"},
    "_last_episode_starts": {"ppo"},
    "_last_obs": {"ppo", "rollout.evaluation", "saving.checkpoint.checkpoint", "saving.model"},
    "_last_original_obs": {"saving.model"},
    "_log_success_callback": {"zoo.callbacks"},
    "_maybe_recommend_cpu": {"ppo"},
    "_modules": {"compiling.constants", "saving.format.values"},
    "_n_updates": {"ppo", "saving.model", "zoo.callbacks"},
    "_num_timesteps_at_start": {"saving.model"},
    "_obs_buffer": {"envs.resumable.attributes"},
    "_options": {"envs.checks", "envs.resumable.attributes", "envs.supervised.vec_env", "envs.vec_env"},
    "_patch_env": {"envs.supervised.workers"},
    "_predict": {"policy.policies", "saving.export.deployed"},
    "_reset_options": {"envs.checks", "envs.supervised.vec_env", "envs.tensors.vec_env", "envs.vec_env"},
    "_reset_seeds": {"envs.checks", "envs.supervised.vec_env", "envs.tensors.vec_env", "envs.vec_env"},
    "_save_obs": {"envs.checks"},
    "_seeds": {
        "envs.checks",
        "envs.resumable.attributes",
        "envs.supervised.vec_env",
        "envs.tensors.vec_env",
        "envs.vec_env",
    },
    "_setup_learn": {"ppo"},
    "_setup_lr_schedule": {"ppo"},
    "_setup_model": {"ppo", "saving.model", "saving.sb3.to_sb3"},
    "_stats_window_size": {"ppo", "require"},
    "_sticky_action": {"envs.resumable.attributes"},
    "_target_xp": {"envs.make_vec"},
    "_total_timesteps": {"ppo", "saving.checkpoint.checkpoint", "saving.model", "zoo.train"},
    "_trial_id": {"zoo.tune.jobs", "zoo.tune.study"},
    "_update_current_progress_remaining": {"ppo"},
    "_update_info_buffer": {"ppo"},
    "_update_running_mean": {"envs.resumable.attributes"},
    "_user_warned": {"envs.resumable.attributes"},
    "_wrap_env": {"ppo", "rollout.evaluation", "saving.model", "zoo.callbacks", "zoo.experiment"},
}


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name.isidentifier() and name != "_"


def private_definitions(tree):
    """Private names that a module defines: functions, classes, and attributes that are assigned."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and is_private(node.name):
            yield node.name
        elif isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if is_private(name):
                yield name


def private_uses(tree):
    """Private names that a module reads: attributes, names in strings, methods that it overrides, and imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node.attr
        elif isinstance(node, ast.ClassDef):
            yield from (each.name for each in node.body if isinstance(each, ast.FunctionDef) and is_private(each.name))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and is_private(node.value):
            yield node.value
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in LIBRARIES:
            yield from (part for alias in node.names for part in (node.module, alias.name) if "._" in f".{part}")


@cache
def definitions_of(library):
    spec = find_spec(library)
    if spec is None:
        return frozenset()
    files = [Path(spec.origin)] if Path(spec.origin).stem != "__init__" else Path(spec.origin).parent.rglob("*.py")
    return frozenset(name for file in files for name in private_definitions(ast.parse(file.read_text("utf-8"))))


@cache
def names_of_libraries():
    ours = {name for source in SOURCES.values() for name in private_definitions(ast.parse(source))}
    theirs, inherited = (frozenset().union(*map(definitions_of, names)) for names in (LIBRARIES, BASES))
    return (theirs - ours | inherited) - PUBLIC


def foreign_names(module):
    """Private names of the libraries that a module of ours uses."""
    return {name for name in private_uses(ast.parse(SOURCES[module])) if name in names_of_libraries() or "." in name}


def test_private_names_of_libraries_are_used_where_listed():
    found: dict[str, set[str]] = {}
    for module in SOURCES:
        for name in foreign_names(module):
            found.setdefault(name, set()).add(module)
    assert {(name, module) for name, modules in found.items() for module in modules} == {
        (name, module) for name, modules in PRIVATE.items() for module in modules
    }


def test_the_reader_of_private_names_sees_every_use():
    source = """
from optuna.storages._rdb import models
class Ours(Theirs):
    def _setup_model(self):
        getattr(self.env, "_elapsed_steps")
        return self.model._last_obs
"""
    found = set(private_uses(ast.parse(source)))
    assert found == {"optuna.storages._rdb", "_setup_model", "_elapsed_steps", "_last_obs"}


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
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600, cwd=PACKAGE.parent
    )
    added, loaded = (set(line.split()) for line in run.stdout.splitlines())
    assert "ppo_plus.formulas.losses" in added
    assert not {name for name in loaded if name.startswith("ppo_plus.zoo")}
    assert not loaded & {"optuna", "sb3_contrib"}
    assert not {name.split(".")[0] for name in added} & {"matplotlib", "pandas", "yaml", "rich", "tqdm", "tensorboard"}
