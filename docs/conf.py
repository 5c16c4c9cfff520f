"""How Sphinx builds the documentation (`make docs`)."""

import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from ppo_plus import __version__
from sphinx.application import Sphinx

import tables

project = "ppo_plus"
author = copyright = "The ppo_plus authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
exclude_patterns = ["_build"]
#: ``attrs_block`` gives the lists of the landing page their class.
myst_enable_extensions = ["attrs_block", "dollarmath"]
myst_heading_anchors = 3

html_theme = "furo"
config = ConfigParser()
config.read(Path(__file__).parents[1] / "setup.cfg", encoding="utf-8")
if address := config["metadata"]["url"]:
    html_theme_options = {
        "source_repository": address,
        "source_branch": "main",
        "source_directory": "docs/",
    }
html_title = f"ppo_plus {release}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
#: Warn of references without a target, except those to other packages.
nitpicky = True
nitpick_ignore_regex = [
    (
        "py:.*",
        r"(collections|gymnasium|io|numpy|pathlib|stable_baselines3|torch)\..*",
    ),
    (
        "py:class",
        r"VecEnv|MaskLayout|Game|ppo_plus\.formulas\.(schedules\.\w+|losses\.Distribution)",
    ),
    # Internal parts of a model.
    (
        "py:class",
        r"ppo_plus\.(rollout\.\w*collector|update\.update|distributed\.ranks)\.\w+",
    ),
]
#: Split longer signatures into a line per argument, so that they fit on a phone.
maximum_signature_line_length = 72


def make_tables(app: Sphinx, name: str, source: list[str]) -> None:
    """Fill the tables of a page from the measurements, and add the buttons of notebooks."""
    source[0] = tables.with_buttons(tables.fill(source[0]), address)


def skip_fields(
    app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Skip fields of named tuples: the class describes them, and Python's text is "Alias for field number 0"."""
    return (
        True
        if (getattr(member, "__doc__", None) or "").startswith("Alias for field number")
        else None
    )


def setup(app: Sphinx) -> None:
    app.connect("source-read", make_tables)
    app.connect("autodoc-skip-member", skip_fields)
