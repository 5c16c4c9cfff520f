PYTHON ?= python$(if $(filter test-python,$(MAKECMDGOALS)),$(VERSION),3)
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints.txt
# Python compiles what is imported, which is less than half of what is installed.
INSTALL := $(BIN)/pip install --quiet --no-compile --constraint $(CONSTRAINTS)
# The stamp files say what is installed, so that a second run starts at once.
TORCH := $(VENV)/torch.stamp
RUNTIME := $(VENV)/runtime.stamp
DEV := $(VENV)/dev.stamp
DOCS := $(VENV)/docs.stamp
RELEASE := $(VENV)/release.stamp
ALL := $(VENV)/all.stamp
# Where the environments of other versions of Python and torch are: torch's builds bring gigabytes of GPU libraries.
VENVS ?= $(HOME)/.cache
TORCH_VENV = $(VENVS)/ppo_plus-torch-$(VERSION)
# The networks here are small: further threads only wait for each other, several times slower on a busy machine.
export OMP_NUM_THREADS := 1
# Tests start hundreds of processes, which begin sooner where bytecode is kept, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help train test test-all test-gpu test-python test-torch mutants hostile-files soak determinism lint check format docs dist clean

help:
	@echo "make train   train CartPole-v1, evaluate it, save the model and its learning curve"
	@echo "make test    run the fast tests, which check every package: some three minutes"
	@echo "make test-all   run all tests, with whole products of cases, as CI does every night"
	@echo "make test-gpu   run the tests on a GPU, or on a simulated one, which is compiled first: a minute"
	@echo "make test-python VERSION=3.13    run the fast tests with another Python"
	@echo "make test-torch VERSION=2.15.0   run all tests with another torch"
	@echo "make mutants, hostile-files, soak, determinism   run a test of many minutes (tests/long); ARGS are its options"
	@echo "make lint    check format, lint and types"
	@echo "make check   make lint, dist, test-gpu, and all tests but whole products of cases; builds the docs"
	@echo "make format  format the code"
	@echo "make docs    build the documentation: docs/_build/index.html"
	@echo "make dist    build the wheel and the source distribution, and check them: dist/"
	@echo "make clean   remove the virtual environment, caches and build output (trained models stay)"

train: $(RUNTIME)
	$(BIN)/ppo-plus train --env CartPole-v1
	@echo "or: source $(BIN)/activate, and then ppo-plus enjoy --env CartPole-v1 (ppo-plus --help lists all commands)"

# Many tests wait for processes, so that three of pytest's keep two cores busy.
test: $(DEV)
	$(BIN)/pytest -n 3 --dist worksteal -m "not slow" tests

# MARKS selects some of them.
test-all: $(DEV)
	$(BIN)/pytest -n 3 --dist worksteal $(MARKS) tests

# In a separate process, since the simulated GPU changes torch.
test-gpu: $(DEV)
	$(BIN)/pytest $(MARKS) tests/gpu

test-python:
	$(if $(VERSION),,$(error which Python? make $@ VERSION=3.13))
	$(MAKE) test PYTHON=$(PYTHON) VENV=$(VENVS)/ppo_plus-python-$(VERSION)

test-torch:
	$(if $(VERSION),,$(error which torch? make $@ VERSION=2.15.0))
	mkdir -p $(TORCH_VENV)
	sed 's/^torch==.*/torch==$(VERSION)/' constraints.txt > $(TORCH_VENV)/constraints.txt
	$(MAKE) test-all VENV=$(TORCH_VENV) CONSTRAINTS=$(TORCH_VENV)/constraints.txt

mutants hostile-files soak determinism: $(DEV)
	$(BIN)/python tests/long/$(subst -,_,$@).py $(ARGS)

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# With Sphinx, the tests build the docs, too. Lint and the GPU's tests keep one core busy, and run beside the other
# tests. The distribution is built before, since some tests read the folder that it is built in.
check: $(ALL)
	$(MAKE) dist
	$(MAKE) --jobs=2 test-all lint test-gpu MARKS='-m "not exhaustive"'

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(DOCS)
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs docs/_build
	@echo "docs/_build/index.html"

# Without separate environments, which would be made twice: setuptools is installed.
dist: $(RELEASE)
	rm -rf build dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf $(VENV) build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# PyTorch first and pinned: left to the resolver, a newer build with gigabytes of GPU libraries may be chosen.
# Python brings an older pip, which takes twice as long to find out what to install.
$(TORCH): constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip
	$(INSTALL) torch
	touch $@

$(RUNTIME): $(TORCH) setup.cfg setup.py pyproject.toml
	$(INSTALL) --editable .
	touch $@

$(DEV): $(RUNTIME)
	$(INSTALL) --editable '.[dev]'
	touch $@

$(DOCS): $(RUNTIME)
	$(INSTALL) --editable '.[docs]'
	touch $@

$(RELEASE): $(RUNTIME)
	$(INSTALL) --editable '.[release]'
	touch $@

# Together they are resolved once.
$(ALL): $(TORCH) setup.cfg setup.py pyproject.toml
	$(INSTALL) --editable '.[dev,docs,release]'
	touch $(RUNTIME) $(DEV) $(DOCS) $(RELEASE) $@
