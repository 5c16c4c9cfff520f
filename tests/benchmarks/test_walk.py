"""The walk from the environment to the weights stays as short as the page of the house says."""

from pathlib import Path

from walk import walk

PAGE = Path(__file__).parents[2] / "docs" / "house.md"


def test_files_and_types_of_the_walk_are_few_and_those_of_the_page():
    files, types = walk()
    assert len(files) <= 16 and len(types) <= 22
    text = PAGE.read_text()
    section = text[text.index("## Files and types of one step") :].split("\n## ")[0]
    assert f"{len(files)} files" in section and f"{len(types)} types" in section
    assert [name for name in files if f"`{name}`" not in section] == []
    assert [name for name in types if f"`{name}`" not in section] == []
