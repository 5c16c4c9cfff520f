"""The notebooks of the docs run from top to bottom, and an interrupted cell keeps what was learned."""

import os
import re
import sys
from pathlib import Path

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


def text_of(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


#: Cells that follow one of them, in the same kernel; the second one gets the signal of Jupyter's button.
INTERRUPTED = [
    "from ppo_plus import PPO_Plus\nmodel = PPO_Plus('MlpPolicy', 'CartPole-v1', n_steps=128, compile=False)",
    "import os, signal\n"
    "model.learn(10_000_000, lambda *_: model.num_timesteps < 200 or os.kill(os.getpid(), signal.SIGINT) or True)",
    "assert model.num_timesteps >= 128\nmodel.learn(128)\nprint(model.num_timesteps, model.evaluate(1))",
]


@pytest.mark.slow
@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("name", part([file.stem for file in NOTEBOOKS], ["custom_environment"]))
def test_a_notebook_runs_and_an_interrupted_cell_keeps_what_was_learned(name, tmp_path):
    """With fewer timesteps, its cells raise no error, and no command in them: IPython does not look at exit codes."""
    text = (DOCS / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    text, n_shortened = re.subn(r"\.learn\(\d+_000", ".learn(2_048", text)
    notebook = nbformat.reads(text, 4)
    nbformat.validate(notebook)
    assert n_shortened or name == "tune"
    notebook.cells += map(nbformat.v4.new_code_cell, INTERRUPTED)
    running = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    first, interrupted, last = range(len(notebook.cells) - 3, len(notebook.cells))
    with running.setup_kernel():
        for i in range(first + 1):
            running.execute_cell(notebook.cells[i], i)
        with pytest.raises(nbclient.exceptions.CellExecutionError, match="KeyboardInterrupt"):
            running.execute_cell(notebook.cells[interrupted], interrupted)
        running.execute_cell(notebook.cells[last], last)
    assert [output.output_type for output in notebook.cells[last].outputs] == ["stream"]
    printed = "".join(text_of(cell) for cell in notebook.cells if cell.cell_type == "code")
    assert "error:" not in printed.replace("error: XDG_RUNTIME_DIR", "")
    assert "Traceback" not in printed


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebooks_keep_what_their_cells_print_and_nothing_of_the_machine(file):
    text = file.read_text(encoding="utf-8")
    cells = [cell for cell in nbformat.reads(text, 4).cells if cell.cell_type == "code"]
    kept = [output for cell in cells for output in cell.outputs]
    assert len(kept) >= 3 and not any(output.output_type == "error" for output in kept)
    assert not any(output.get("name") == "stderr" for output in kept)
    assert str(Path.home()) not in text and "/tmp/" not in text


def test_every_notebook_is_on_the_page():
    page = (DOCS / "notebooks.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 6 and [file.name for file in NOTEBOOKS if f"(notebooks/{file.name})" not in page] == []
