"""What the source distribution holds, what the metadata says, and that the version comes from one place."""

import re
import shutil
import subprocess
import sys
import tarfile
from configparser import ConfigParser
from email import message_from_string
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

import ppo_plus

ROOT = Path(__file__).parents[1]
#: Of a checkout, what an installation needs, and what its users and developers need.
FILES = [
    *("setup.cfg", "setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md", "CHANGELOG.md"),
    *("CITATION.cff", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "constraints.txt"),
]
FOLDERS = ["ppo_plus", "hyperparams", "agents", "benchmarks", "docs", "scripts", "tests"]
WORKFLOWS = ROOT / ".github" / "workflows"
#: What is made, and so not shipped.
MADE = shutil.ignore_patterns("__pycache__", "_build", ".*")


def setup() -> ConfigParser:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return config


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The source distribution, built from a copy, because a build leaves files behind."""
    copy = tmp_path_factory.mktemp("source")
    for name in FILES:
        shutil.copy(ROOT / name, copy)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=MADE)
    code = "from setuptools.build_meta import build_sdist; print(build_sdist('dist'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=copy, check=True, capture_output=True, text=True, timeout=300
    )
    return copy, copy / "dist" / done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_the_source_distribution_is_a_checkout(sdist):
    """Everything that `make test` and `make docs` read is in it, and nothing else."""
    copy, path = sdist
    with tarfile.open(path) as archive:
        names = [member.name for member in archive.getmembers() if member.isfile()]
    shipped = {Path(*Path(name).parts[1:]) for name in names}
    expected = {Path(name) for name in FILES}
    expected |= {file.relative_to(copy) for name in FOLDERS for file in (copy / name).rglob("*") if file.is_file()}
    assert expected <= shipped
    made = {name for name in shipped - expected if name.parts[0] == "ppo_plus.egg-info"} | {Path("PKG-INFO")}
    assert shipped - expected == made


def test_every_result_that_ships_is_shown():
    """Tables and pictures name it, or the pages do."""
    readers = [*(ROOT / "docs").glob("*.py"), *(ROOT / "benchmarks" / "report").glob("*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in [*readers, ROOT / "benchmarks" / "pictures.py"])
    results = [path.relative_to(ROOT) for path in (ROOT / "benchmarks" / "results").glob("*.json*")]
    shown = {path for path in results if f'"{path.stem}"' in text or path.name in text or "exploration_" in path.name}
    assert set(results) == shown


@pytest.mark.slow
def test_the_metadata_is_complete(sdist):
    _, path = sdist
    with tarfile.open(path) as archive:
        (name,) = (name for name in archive.getnames() if name.count("/") == 1 and name.endswith("PKG-INFO"))
        metadata = message_from_string(archive.extractfile(name).read().decode())
    assert metadata["Name"].replace("-", "_") == "ppo_plus"
    assert metadata["Version"] == setup()["metadata"]["version"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["License-Expression"] or metadata["License"]
    assert metadata.get_payload().startswith("# ppo_plus")
    extras = set(setup()["options.extras_require"])
    assert set(metadata.get_all("Provides-Extra")) == extras


def test_the_same_versions_of_python_are_named_everywhere():
    config = setup()
    start = "Programming Language :: Python :: 3."
    versions = [line.split()[-1] for line in config["metadata"]["classifiers"].splitlines() if line.startswith(start)]
    first, last = versions[0], versions[-1]
    assert config["options"]["python_requires"] == f">={first}"
    assert f"Python {first} to {last}." in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"Python {first} to {last} and" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    ruff = f'target-version = "py{first.replace(".", "")}"'
    assert ruff in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f">{first} to {last}<" in (ROOT / "docs" / "pictures" / "python.svg").read_text(encoding="utf-8")
    if WORKFLOWS.exists():  # not in a source distribution
        for file, job in (("tests.yml", "linux"), ("release.yml", "install")):
            jobs = yaml.safe_load((WORKFLOWS / file).read_text(encoding="utf-8"))["jobs"]
            assert jobs[job]["strategy"]["matrix"]["python"] == versions


def test_the_license_of_the_picture_is_that_of_the_metadata():
    license = setup()["metadata"]["license"]
    assert f">{license}<" in (ROOT / "docs" / "pictures" / "license.svg").read_text(encoding="utf-8")
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").startswith(f"{license} License")


@pytest.mark.slow
def test_with_an_address_the_description_has_whole_links(sdist, tmp_path):
    """PyPI shows it without the files of the repository."""
    copy, _ = sdist
    for name in ("setup.py", "README.md", "LICENSE", "pyproject.toml"):
        shutil.copy(copy / name, tmp_path)
    shutil.copytree(copy / "hyperparams", tmp_path / "hyperparams")
    text = (copy / "setup.cfg").read_text(encoding="utf-8")
    assert "\nurl =" in text
    (tmp_path / "setup.cfg").write_text(re.sub("\nurl =.*", "\nurl = https://host/ppo_plus", text), encoding="utf-8")
    code = "from setuptools.build_meta import prepare_metadata_for_build_wheel as make; print(make('.'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    folder = tmp_path / done.stdout.decode().splitlines()[-1]
    metadata = message_from_string((folder / "METADATA").read_text(encoding="utf-8"))
    assert metadata["Home-page"] == "https://host/ppo_plus"
    links = re.findall(r"\]\(([^)]*)\)", metadata.get_payload())
    start = f"https://host/ppo_plus/{{}}/v{ppo_plus.__version__}/"
    assert start.format("raw") + "docs/pictures/learning.svg" in links
    assert start.format("blob") + "docs/quickstart.md" in links
    assert all(link.startswith(("https://", "http://", "#")) for link in links)


def test_the_address_has_one_place():
    address = setup()["metadata"]["url"]
    assert address == "" or re.fullmatch("https://.*[^/]", address)
    files = [*ROOT.glob("*.md"), *ROOT.glob("*.cff"), *(ROOT / "docs").rglob("*.md"), *WORKFLOWS.glob("*.yml")]
    assert [file for file in files if address and address in file.read_text(encoding="utf-8")] == []


@pytest.mark.skipif(not WORKFLOWS.exists(), reason="not in a source distribution")
def test_workflows_call_what_there_is():
    """Targets of make, files, and workflows; and pre-commit has the linter that is pinned."""
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for path in WORKFLOWS.glob("*.yml"):
        text = path.read_text(encoding="utf-8")
        jobs = yaml.safe_load(text)["jobs"]
        assert set(re.findall(r"run: make (\w+)", text)) <= set(targets)
        used = [job["uses"] for job in jobs.values() if "uses" in job]
        used += re.findall(r"run: (\.ci/\S+)", text)
        assert [file for file in used if not (ROOT / file).is_file()] == []
    (ruff,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert f"ruff=={ruff['rev'].removeprefix('v')}" in (ROOT / "constraints.txt").read_text().splitlines()


def test_the_version_has_one_place():
    """setup.cfg. What is installed, the package, the documentation and the citation say the same."""
    number = setup()["metadata"]["version"]
    assert version("ppo_plus") == ppo_plus.__version__ == number
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == number
    assert f"## [{number}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for path in [*(ROOT / "ppo_plus").rglob("*.py"), ROOT / "docs" / "conf.py", ROOT / "pyproject.toml"]:
        assert number not in path.read_text(encoding="utf-8"), f"{path} repeats the version"


def test_each_version_fits_on_a_screen_of_the_changelog():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.split(r"^## (?=\[)", text, flags=re.MULTILINE)[1:]
    assert versions
    assert [version.splitlines()[0] for version in versions if version.count("\n") > 60] == []


def test_the_citation_can_be_read():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= set(citation)
    assert citation["license"] == setup()["metadata"]["license"]
    assert all({"type", "title", "authors"} <= set(reference) for reference in citation["references"])


def test_every_pin_is_a_dependency():
    """What constraints.txt pins for an extra is in it, and the tools that make and check what is shipped are pinned."""
    pins = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    for extra in ("docs", "release"):
        required = setup()["options.extras_require"][extra].split()
        assert {re.split("[<>=]", name)[0] for name in required} <= pins
