"""The notebooks of the docs run from top to bottom, and an interrupted cell keeps what was learned."""

import os
import re
import signal
import sys
from pathlib import Path
from threading import Timer

import pytest
from parametrization import part

nbformat = pytest.importorskip("nbformat", reason="needs the extra dev")
nbclient = pytest.importorskip("nbclient", reason="needs the extra dev")

DOCS = Path(__file__).parents[1] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.fixture
def path(monkeypatch):
    """Commands in cells are those of this Python."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def client(notebook, folder, **options):
    return nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}, **options)


def text_of(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


@pytest.mark.slow
@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("name", part([file.stem for file in NOTEBOOKS], ["custom_environment"]))
def test_a_notebook_runs(name, tmp_path):
    """With fewer timesteps, its cells raise no error, and no command in them: IPython does not look at exit codes."""
    text = (DOCS / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    text, n_shortened = re.subn(r"\.learn\(\d+_000", ".learn(2_048", text)
    notebook = nbformat.reads(text, 4)
    nbformat.validate(notebook)
    assert n_shortened or name == "tune"
    assert not any(cell.get("outputs") for cell in notebook.cells)
    client(notebook, tmp_path).execute()
    printed = "".join(text_of(cell) for cell in notebook.cells if cell.cell_type == "code")
    assert "error:" not in printed.replace("error: XDG_RUNTIME_DIR", "")
    assert "Traceback" not in printed


def test_every_notebook_is_on_the_page():
    page = (DOCS / "notebooks.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 5 and [file.name for file in NOTEBOOKS if f"(notebooks/{file.name})" not in page] == []


@pytest.mark.slow
def test_an_interrupted_cell_keeps_what_was_learned(tmp_path):
    cells = [
        "from ppo_plus import PPO_Plus\nmodel = PPO_Plus('MlpPolicy', 'CartPole-v1', n_steps=128, compile=False)",
        "print('learning', flush=True)\nmodel.learn(10_000_000)",
        "assert model.num_timesteps >= 128\nmodel.learn(128)\nprint(model.num_timesteps, model.evaluate(1))",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    running = client(notebook, tmp_path, allow_errors=True)
    with running.setup_kernel():
        running.execute_cell(notebook.cells[0], 0)
        timer = Timer(5.0, os.kill, (running.km.provisioner.pid, signal.SIGINT))  # as the button of Jupyter does
        timer.start()
        running.execute_cell(notebook.cells[1], 1)
        assert notebook.cells[1].outputs[-1].ename == "KeyboardInterrupt"
        running.execute_cell(notebook.cells[2], 2)
    assert [output.output_type for output in notebook.cells[2].outputs] == ["stream"]
