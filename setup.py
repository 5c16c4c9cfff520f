"""What a distribution holds, and its long description; all else is in setup.cfg."""

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup


def long_description() -> str:
    """README.md. With an address, links to files lead there, because PyPI shows the text without the files."""
    config = ConfigParser()
    config.read("setup.cfg", encoding="utf-8")
    address, tag = config["metadata"]["url"], f"v{config['metadata']['version']}"

    def whole(link: re.Match) -> str:
        return f"{link[1]}{address}/{'raw' if link[1].startswith('!') else 'blob'}/{tag}/"

    text = Path("README.md").read_text(encoding="utf-8")
    return re.sub(r"(!?\[[^]]*\]\()(?!https?:|#)", whole, text) if address else text


setup(
    long_description=long_description(),
    packages=[*find_packages(include=["ppo_plus", "ppo_plus.*"]), "ppo_plus.hyperparams"],
    # The YAML files stay at the top of the repository, where they are easy to find and edit, and ship in the package.
    package_dir={"ppo_plus.hyperparams": "hyperparams"},
)
