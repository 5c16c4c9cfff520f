"""The seeded faults of ``mutants.py`` keep up with the package, and the tests of each exist."""

import ast
from pathlib import Path

import mutants
import pytest

PACKAGE = Path(__file__).parents[2] / "ppo_plus"


@pytest.mark.slow
def test_every_fault_can_still_be_put_in():
    for fault in mutants.FAULTS:
        text = (PACKAGE / fault.file).read_text(encoding="utf-8")
        assert text.count(fault.old) == 1, fault
        # A file that cannot be read any more would be caught by every test.
        ast.parse(text.replace(fault.old, fault.new))
        assert fault.new != fault.old, fault
    names = [fault.name for fault in mutants.FAULTS]
    assert len(set(names)) == len(names)


def test_a_fault_is_put_into_a_copy_alone():
    fault = mutants.FAULTS[0]
    before = (PACKAGE / fault.file).read_text(encoding="utf-8")
    with mutants.copied() as folder:
        fault.put_into(folder)
        assert (folder / "ppo_plus" / fault.file).read_text(encoding="utf-8") == before.replace(fault.old, fault.new)
        with pytest.raises(ValueError, match=f"^{fault.name}: .* is 0 times in"):
            fault.put_into(folder)
    assert (PACKAGE / fault.file).read_text(encoding="utf-8") == before and not folder.exists()


def test_every_room_has_faults_and_their_tests_exist():
    rooms = {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if path.stat().st_size}
    assert {str(Path(fault.file).parent) for fault in mutants.FAULTS} == rooms
    tests = {path for fault in mutants.FAULTS for path in fault.tests.split()}
    assert not [path for path in tests if not (PACKAGE.parent / path).exists()]
