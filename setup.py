"""The packages of a distribution; all else is in setup.cfg."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["ppo_plus", "ppo_plus.*"]), "ppo_plus.hyperparams"],
    # The YAML files stay at the top of the repository, where they are easy to find and edit, and ship in the package.
    package_dir={"ppo_plus.hyperparams": "hyperparams"},
)
