"""Some hostile files of each format do no harm, and the audit sees harm."""

import os
import subprocess
import sys

import hostile_files
import pytest
from hostile_files import FORMATS, Format, run
from hypothesis import strategies as st
from parametrization import sample


@pytest.mark.slow
@pytest.mark.parametrize("n_files", sample([10, 50], 2))
@pytest.mark.parametrize("name", FORMATS)
def test_hostile_files_do_no_harm(name, n_files, monkeypatch):
    # The largest size of a process that has run other tests is no measure.
    monkeypatch.setattr(hostile_files, "MOST_MEMORY", 2**30)
    tally = run(name, n_files)
    assert tally.violations == []
    assert tally.outcomes["refused"] >= n_files / 5 and sum(tally.outcomes.values()) == n_files


def change_a_class():
    hostile_files.MlpPolicy.harm = 1


def write(path):
    path.write_text("")


HARM = {
    "write: open": lambda folder: write(folder / "victims" / "ran"),
    "write: os.truncate": lambda folder: os.truncate(folder / "victims" / "precious.csv", 0),
    "write: os.remove": lambda folder: (folder / "victims" / "precious.csv").unlink(),
    "write: a file outside": lambda folder: write(folder / "run" / "linked" / "precious.csv"),
    "run: subprocess.Popen": lambda folder: subprocess.run([sys.executable, "-c", ""], check=True),
    "run: import canary": lambda folder: __import__("canary"),
    "change: environment": lambda folder: os.environ.update(HARM="1"),
    "change: classes": lambda folder: change_a_class(),
    "memory": lambda folder: bytearray(300 * 2**20).count(1),
    "bare: KeyError": lambda folder: {}["a"],
    "differ: it": lambda folder: "it is another",
}


@pytest.mark.parametrize("kind", HARM)
def test_the_audit_sees_harm(kind, monkeypatch):
    def harmful(folder, values):
        def play(value, path):
            result = HARM[kind](folder) if value else ""
            return result if isinstance(result, str) else ""

        return Format(st.just("harm"), "", lambda value, path: path.write_text(value), play)

    monkeypatch.setitem(FORMATS, "harmful", harmful)
    monkeypatch.delenv("HARM", raising=False)
    try:
        assert any(each.startswith(kind) for each in run("harmful", 1).violations)
    finally:
        sys.modules.pop("canary", None)
        os.environ.pop("HARM", None)
        if hasattr(hostile_files.MlpPolicy, "harm"):
            del hostile_files.MlpPolicy.harm


@pytest.mark.parametrize(("name", "message"), [("model", "arguments.gamma is 0.5"), ("sb3", "gamma")])
def test_a_model_that_is_another_is_seen(name, message, monkeypatch):
    model = hostile_files.small(gamma=0.5)
    monkeypatch.setattr(hostile_files.PPO_Plus, "load", lambda *args, **kwargs: model)
    with pytest.raises(RuntimeError, match=f"differ: .*{message}"):
        run(name, 1)
