"""Environments by id, classes by dotted name, drawing with and without a screen, and printed commands."""

import os
import shutil
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import pytest
from stable_baselines3.common.atari_wrappers import AtariWrapper

from ppo_plus.zoo import installation
from ppo_plus.zoo.installation import ALLOWED_PACKAGES, find_env, import_class, import_packages, is_atari


def test_environments_by_id():
    assert find_env("CartPole-v1").id == "CartPole-v1" and not is_atari("CartPole-v1")
    with pytest.raises(gym.error.Error, match="Did you mean"):
        find_env("CartPol-v1")
    with pytest.raises(ImportError, match="No module named 'no_such_module'"):
        find_env("no_such_module:Foo-v0")
    if find_spec("ale_py"):
        assert is_atari("PongNoFrameskip-v4")
    if find_spec("minigrid"):
        assert find_env("MiniGrid-Unlock-v0").id == "MiniGrid-Unlock-v0"  # rl_zoo3's: tests/zoo/test_rl_zoo3.py


def test_imports_the_module_in_front(tmp_path, monkeypatch):
    (tmp_path / "registers.py").write_text(
        "import gymnasium\ngymnasium.register('Mine-v0', 'gymnasium.envs.classic_control:CartPoleEnv')"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        assert find_env("registers:Mine-v0").id == "Mine-v0"
    finally:
        gym.registry.pop("Mine-v0", None)
        sys.modules.pop("registers", None)


#: Classes that settings may not name, the packages that they may import from, and what the message says.
NOT_IMPORTED = [
    *((name, ALLOWED_PACKAGES, "in none of the packages .* --trust-config") for name in ("os.system", "Wrapper", "")),
    *((name, ALLOWED_PACKAGES, "in none of the packages .* --trust") for name in ("builtins.exec", "gymnasium_evil.X")),
    *((f"gymnasium.{name}", None, "is not a subclass of gymnasium.core.Wrapper") for name in ("make", "core.TypeVar")),
    ("ppo_plus.zoo.experiment.PPO_Plus", ["ppo_plus.zoo"], "comes from ppo_plus.ppo, which settings may not import"),
    ("gymnasium.nope.X", None, "cannot be imported .*: is its package installed"),
    ("gymnasium.wrappers.Nope", None, "cannot be imported .*: is its name right"),
    ("minigrid_is_not_here.X", None, "cannot be imported .*: is its package installed"),
]


@pytest.mark.parametrize(("name", "packages", "message"), NOT_IMPORTED)
def test_classes_by_name(name, packages, message):
    assert import_class("stable_baselines3.common.atari_wrappers.AtariWrapper", gym.Wrapper) is AtariWrapper
    before = set(sys.modules)
    with pytest.raises(ValueError, match=message):
        import_class(name, object if "PPO_Plus" in name else gym.Wrapper, packages)
    assert "none of" not in message or set(sys.modules) == before


def test_modules_in_the_current_folder_hide_no_packages(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("value = 5")
    (tmp_path / "gymnasium.py").write_text("raise AssertionError")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    with monkeypatch.context() as modules:
        modules.setattr(sys, "modules", dict(sys.modules))
        import_packages(["only_here", "gymnasium"])
        assert sys.modules["only_here"].value == 5
    assert sys.path[-1] == str(tmp_path)


@pytest.mark.parametrize(
    ("env_id", "module", "package"),
    [
        ("MiniGrid-Unlock-v0", "minigrid", "minigrid"),
        ("CartPoleNoVel-v1", "rl_zoo3.import_envs", "rl_zoo3"),
        *((name, "ale_py", "ale-py opencv-python") for name in ("ALE/Pong-v5", "PongNoFrameskip-v4", "Pong-ram-v4")),
    ],
)
def test_an_environment_of_a_missing_package_is_an_error_that_names_it(monkeypatch, env_id, module, package):
    monkeypatch.setattr(installation, "find_spec", lambda _: None)
    monkeypatch.delitem(gym.registry, env_id, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(gym.error.Error, match=f"{env_id} needs .*pip install {package}"):
        find_env(env_id)


SCREENS = "DISPLAY", "WAYLAND_DISPLAY"


@pytest.fixture
def no_screen(monkeypatch):
    """A process on Linux without a screen, which has chosen nothing to draw with."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setitem(sys.modules, "mujoco", installation)
    for name in (*SCREENS, "MUJOCO_GL"):
        # Set before it is taken away, so that it is taken away again at the end, where a test sets it.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_a_window_needs_a_screen(no_screen, monkeypatch):
    with pytest.raises(ValueError, match=r"no screen to show Ant-v5 on .*--no-render, .*record instead of enjoy"):
        installation.require_drawing("Ant-v5", window=True)
    for name in SCREENS:
        with monkeypatch.context() as screen:
            screen.setenv(name, ":0")
            installation.require_drawing("Ant-v5", window=True)
    monkeypatch.delitem(sys.modules, "mujoco")
    installation.require_drawing("CartPole-v1", window=True)


@pytest.mark.parametrize(
    "libraries, chosen", [(["EGL", "OSMesa"], "egl"), (["OSMesa"], "osmesa"), (["GL"], None)], ids=str
)
def test_without_a_screen_an_installed_library_draws(no_screen, monkeypatch, libraries, chosen):
    monkeypatch.setattr(installation, "find_library", lambda name: name if name in libraries else None)
    installation.draw_without_screen()
    assert os.environ.get("MUJOCO_GL") == chosen
    expected = nullcontext() if chosen else pytest.raises(ValueError, match="to draw Ant-v5 .* libegl1")
    with expected:
        installation.require_drawing("Ant-v5", window=False)


def test_a_choice_is_kept(no_screen, monkeypatch):
    monkeypatch.setattr(installation, "find_library", lambda name: name)
    with monkeypatch.context() as choice:
        choice.setenv("MUJOCO_GL", "osmesa")
        installation.draw_without_screen()
        assert os.environ["MUJOCO_GL"] == "osmesa"
    with monkeypatch.context() as screen:
        screen.setenv("DISPLAY", ":0")
        installation.draw_without_screen()
        assert "MUJOCO_GL" not in os.environ


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("postgresql+psycopg://me:secret@server/studies", "postgresql+psycopg://me:***@server/studies"),
        ("--storage=postgresql://me@server/x?user=a&password=secret", "--storage=postgresql://me@server/x?user=a&password=***"),
        ("sqlite:////tmp/a:b@c.db", "sqlite:////tmp/a:b@c.db"),
        ("gamma:0.99", "gamma:0.99"),
    ],
)  # fmt: skip
def test_passwords_are_not_printed(word, shown):
    assert installation.without_password(word) == shown


def test_the_command_is_the_one_that_was_given(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/ppo-plus", "tune", "--study-name", "my study"])
    monkeypatch.setattr(shutil, "which", lambda name: str(Path(sys.executable).with_name(name)))
    assert installation.this_command() == "ppo-plus tune --study-name 'my study'"
    monkeypatch.setattr(sys, "argv", ["scripts/tune.py", "--env", "x"])
    monkeypatch.setattr(sys, "orig_argv", ["python3", "scripts/tune.py", "--env", "x"])
    assert installation.this_command() == "python3 scripts/tune.py --env x"


def test_pasted_commands_work_whatever_the_path(monkeypatch):
    here = Path(sys.executable).parent
    monkeypatch.setattr(shutil, "which", lambda name: str(here / name))
    assert installation.command("enjoy", "-f", "my logs") == "ppo-plus enjoy -f 'my logs'"
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert installation.command("enjoy") == f"{sys.executable} -m ppo_plus enjoy"


def test_an_environment_without_render_modes_is_an_error_with_the_remedy(monkeypatch):
    class Plain(gym.Env):
        pass

    monkeypatch.setitem(gym.registry, "Plain-v0", gym.envs.registration.EnvSpec("Plain-v0", Plain))
    with pytest.raises(ValueError, match="Plain-v0 has no render modes: its class needs metadata = .*--no-render"):
        installation.require_render_modes("Plain-v0")
    installation.require_render_modes("CartPole-v1")
    installation.require_render_modes("pettingzoo:some_game_v0")
