"""Draw the pictures of results that the documentation shows.

python benchmarks/pictures.py                                # all, into docs/pictures
python benchmarks/pictures.py --results trial --to trial     # those whose results are in another folder
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import curves, exploration, returns, scores, speed
from report.results import RESULTS, ROOT


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def runs(file: Path) -> returns.Runs:
    """The runs that the tables show."""
    return returns.grouped(returns.results(file, returns.REPORTED))


def draw_speed(file: Path, picture: Path) -> None:
    found = speed.parse(read(file)["results"])
    speed.draw({name: found[name] for name in speed.PICTURED}, picture)


#: For each picture, the file of its results, and what draws it.
PICTURES: dict[str, tuple[str, Callable[[Path, Path], None]]] = {
    "learning.svg": ("learning_curves.json", lambda file, picture: curves.draw(read(file), picture)),
    "deep_sea.svg": ("exploration_deep_sea.json", lambda file, picture: exploration.draw(scores.read(file), picture)),
    "mujoco_curves.svg": (returns.FILE.name, lambda file, picture: returns.draw_curves(runs(file), picture)),
    "mujoco_profile.svg": (returns.FILE.name, lambda file, picture: returns.draw_profile(runs(file), picture)),
    "speed.png": ("speed.json", draw_speed),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of results (default: %(default)s)")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "pictures", help="folder (default: %(default)s)")
    arguments = parser.parse_args()
    # Also an archive of earlier results.
    found = {name: each for name, each in PICTURES.items() if any(arguments.results.glob(f"{each[0]}*"))}
    if not found:
        names = ", ".join(dict.fromkeys(name for name, _ in PICTURES.values()))
        parser.error(f"--results {arguments.results}: none of {names} is there")
    arguments.to.mkdir(parents=True, exist_ok=True)
    for name, (file, draw) in found.items():
        draw(arguments.results / file, arguments.to / name)
        print(arguments.to / name)


if __name__ == "__main__":
    main()
