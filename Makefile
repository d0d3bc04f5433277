# Everything a fresh machine needs is make and Python >= 3.12 (or uv). `make setup` fills .venv; the rest use it.

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
UV := $(shell uv --version >/dev/null 2>&1 && echo uv)
REQUIREMENTS ?= requirements.txt
CORES ?= $(shell getconf _NPROCESSORS_ONLN)

# Threads of several processes that spin for the same cores cost a hundredfold.
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
# Compiled modules are kept: without them every process compiles torch and lerobot anew, which takes longer than tests.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo test test-parity test-policies test-kill test-latest-torch lint format bench pins clean

setup: $(VENV)/.ready

# Without uv on the machine, one is put into the environment that it then fills.
$(VENV)/.ready: $(REQUIREMENTS) pyproject.toml
ifneq ($(UV),)
	test -x $(BIN)/python || uv venv --quiet --python ">=3.12" $(VENV)
else
	python3 -c 'import sys; sys.exit("Python >= 3.12 is needed" if sys.version_info < (3, 12) else 0)'
	test -x $(BIN)/python || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
endif
	$(or $(UV),$(BIN)/uv) pip install --quiet --python $(BIN)/python --requirement $(REQUIREMENTS)
	$(or $(UV),$(BIN)/uv) pip install --quiet --python $(BIN)/python --no-deps --editable .
	touch $@

demo: setup
	$(BIN)/snakemake --cores $(CORES)
	$(BIN)/snakemake --report results/report.html
	@echo
	@$(BIN)/python -c "print(open('results/tables/summary.md').read())"
	@echo "The report: results/report.html   The tables: results/tables/   The runs: results/"

test: setup
	$(BIN)/python -m pytest tests

# The whole matrices, of which `make test` runs a quick subset.
ALL := -m "long or not long"

test-parity: setup
	$(BIN)/python -m pytest $(ALL) tests/distributed

test-policies: setup
	$(BIN)/python -m pytest $(ALL) tests/policies

# The suite with the newest torch on the index, in an environment of its own: the pins, but for what comes with torch.
LATEST := .venv-latest-torch
TORCH_FAMILY := torch|torchvision|torchcodec|triton|nvidia-.*|cuda-.*|setuptools

test-latest-torch: setup
	rm -rf $(LATEST) && $(or $(UV),$(BIN)/uv) venv --quiet --python $(BIN)/python $(LATEST)
	grep -vE '^($(TORCH_FAMILY))==' $(REQUIREMENTS) >$(LATEST)/pins.txt
	printf '%s\n' torch torchvision torchcodec setuptools >$(LATEST)/newest.txt
	$(or $(UV),$(BIN)/uv) pip install --quiet --python $(LATEST)/bin/python --override $(LATEST)/newest.txt \
		--requirement $(LATEST)/pins.txt --requirement $(LATEST)/newest.txt
	$(or $(UV),$(BIN)/uv) pip install --quiet --python $(LATEST)/bin/python --no-deps --editable .
	$(LATEST)/bin/python -c "import torch; print('torch', torch.__version__)"
	$(LATEST)/bin/python -m pytest tests

test-kill: setup
	$(BIN)/python -m pytest $(ALL) tests/kill

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow

bench: setup
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/checkpoint.py
	$(BIN)/torchrun --nproc-per-node=2 benchmarks/checkpoint.py

# The pins, compiled from pyproject.toml: plain name==version lines, no addresses.
pins:
	uv pip compile --quiet --universal --python-version 3.12 --extra dev --extra slurm --no-emit-index-url \
		--no-emit-find-links --no-header --no-annotate --output-file requirements.txt pyproject.toml

clean:
	rm -rf $(VENV) $(LATEST) results logs outputs .snakemake
