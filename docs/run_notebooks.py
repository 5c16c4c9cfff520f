"""Run the notebooks of this folder and keep their outputs, without progress bars and warnings of this machine::

python docs/run_notebooks.py   # after pip install '.[dev]'
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

WIDGET = "application/vnd.jupyter.widget-view+json"


def is_kept(output: nbformat.NotebookNode) -> bool:
    """Whether a reader of the notebook wants to see an output."""
    if output.output_type == "stream":
        return output.name == "stdout"
    # The final state of a progress bar is an empty text, and the text of an object names its address.
    return WIDGET not in output.data and (
        len(output.data) > 1 or " at 0x" not in output.data["text/plain"]
    )


def run(file: Path) -> None:
    """Run a notebook in an empty folder, and write it with its outputs."""
    notebook = nbformat.read(file, 4)
    # Commands in cells are those of this Python.
    os.environ["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    with TemporaryDirectory() as folder:
        NotebookClient(
            notebook, timeout=1200, resources={"metadata": {"path": folder}}
        ).execute()
    notebook.metadata.pop("widgets", None)  # of progress bars
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times
        if cell.cell_type == "code":
            kept = filter(is_kept, cell.outputs)
            cell.outputs = [
                each for each in kept if each.get("data", {}).get("text/plain") != ""
            ]
    nbformat.write(notebook, file)


if __name__ == "__main__":
    for each in sorted((Path(__file__).parent / "notebooks").glob("*.ipynb")):
        print(each.name, flush=True)
        run(each)
