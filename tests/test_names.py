"""Names of tests are short enough to read in a list of failures."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LONGEST = 60


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_names_of_tests_are_short(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    assert [name for name in names if name.startswith("test_") and len(name) > LONGEST] == []
