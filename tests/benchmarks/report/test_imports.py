"""Tables and pictures need the extra ``docs`` alone: they load no script that measures, and no other extra."""

import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: Makes every table, and loads what draws every picture.
CODE = """
import sys
sys.path[:0] = ["docs", "benchmarks"]
import tables
for make in tables.TABLES.values():
    make()
import pictures
print(*{name.split(".")[0] for name in sys.modules})
"""


@pytest.mark.exhaustive
def test_tables_and_pictures_need_the_extra_docs_alone():
    config = ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = dict(config["options.extras_require"])
    names = {key: {re.split(r"[<>=\[]", word)[0] for word in text.split()} for key, text in extras.items()}
    required = {re.split(r"[<>=\[]", word)[0] for word in config["options"]["install_requires"].split()}
    # SB3 imports TensorBoard where it is installed.
    others = set().union(*names.values()) - names["docs"] - required - {"tensorboard"}
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert loaded & {name.replace("-", "_").lower() for name in others} == set()
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"pictures"}
    assert loaded & scripts == set()
