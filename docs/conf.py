"""How Sphinx builds the documentation (`make docs`)."""

import sys
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
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"ppo_plus {release}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
#: A reference that leads nowhere is a warning, but for what other packages document.
nitpicky = True
nitpick_ignore_regex = [
    (
        "py:.*",
        r"(collections|gymnasium|io|numpy|pathlib|stable_baselines3|torch)\..*",
    ),
    (
        "py:class",
        r"ppo_plus\.ppo\.SelfPPO_Plus|VecEnv",
    ),
    # What a model is made of inside.
    ("py:class", r"ppo_plus\.(rollout\.(collector|anew)|update\.learner|ranks)\.\w+"),
]
#: Long signatures get a line per argument, which fits on a phone.
maximum_signature_line_length = 72


def make_tables(app: Sphinx, name: str, source: list[str]) -> None:
    """Tables are what the measurements say, whatever stands in the page."""
    source[0] = tables.fill(source[0])


def skip_fields(
    app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """The fields of named tuples are described by the class, not by Python's "Alias for field number 0"."""
    return (
        True
        if (getattr(member, "__doc__", None) or "").startswith("Alias for field number")
        else None
    )


def setup(app: Sphinx) -> None:
    app.connect("source-read", make_tables)
    app.connect("autodoc-skip-member", skip_fields)
