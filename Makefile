# One virtual environment per checkout, made on demand; every target below works in a fresh clone.
#
#   make reproduce                        the flagship claim, from installation to verdict
#   make test lint                        what a change has to pass
#   make test ARGS="tests/test_masks.py"  flags and files for the program a target runs
#   make test JOBS=4                      as many test processes (2; each takes up to 2 GB)
#   make test PYTHON=python3.13           another interpreter (the environment is made anew)

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
JOBS ?= 2

BIN := $(VENV)/bin
PYTHON_VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
FOUND := $(if $(PYTHON_VERSION),Python $(PYTHON_VERSION),not a Python)
INSTALLED := $(VENV)/.installed-python$(PYTHON_VERSION)

.PHONY: help install reproduce test test-slow test-faults test-slurm lint format clean

help:
	@sed -n '3,7s/^# *//p' $(firstword $(MAKEFILE_LIST))

install: $(INSTALLED)

reproduce: $(INSTALLED)
	@$(BIN)/attnlab reproduce nope $(ARGS)

# A file stays in one process, so what its tests compiled for each other is compiled once.
test: $(INSTALLED)
	@$(BIN)/pytest -n $(JOBS) --dist loadfile $(ARGS)

test-slow: $(INSTALLED)
	@$(BIN)/pytest -m slow $(ARGS)

# Kills, full disks, broken checkpoints and the like at every point of a sweep; ends with a table.
test-faults: $(INSTALLED)
	@$(BIN)/pytest -m faults -n $(JOBS) tests/faults $(ARGS)

# A real SLURM of one node, started for the test: needs root, and Debian's packages or a way to install them.
test-slurm: $(INSTALLED)
	@$(BIN)/pytest -m slurm -s tests/launch $(ARGS)

lint: $(INSTALLED)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(INSTALLED)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Everything that can be made again. Results in runs/ cannot, and stay.
clean:
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp names the Python, so that a venv of another one is not used in silence.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "attnlab needs Python 3.11 or newer; '$(PYTHON)' is $(FOUND)." \
	       "Name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "Installing attnlab and its pinned dependencies into $(VENV) (Python $(PYTHON_VERSION))"
	@test -d $(VENV)/lib/python$(PYTHON_VERSION) || ! test -f $(VENV)/pyvenv.cfg || rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check \
	  -c constraints.txt -e '.[shakespeare,tokenizers,datasets,slurm,dashboards,dev]'
	@rm -f $(VENV)/.installed-python* && touch $@
