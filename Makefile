# Each target is complete from nothing: it makes its own environment in .venv, installs, and runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The checkout's own folder may have any name; a link in here gives the package the name that it is imported by.
LINKED := $(VENV)/typecheck

.PHONY: help install demo test lint types unit pages docs bench campaign oldest strict clean

help:
	@echo "make demo    record real Atari play, serve it from a local Google Cloud Storage, download, inspect, verify, sample"
	@echo "make test    lint (style and imports), types, pages of the site, and tests"
	@echo "make docs    the site, in build/docs (open build/docs/index.html); warnings are errors"
	@echo "make bench   the benchmarks at a size that takes a few minutes"
	@echo "make campaign  kills and damaged inputs for an hour (SCALE=0.1: minutes)"
	@echo "make strict  the public types in pyright's strict mode"
	@echo "make oldest  the tests on the oldest versions of all packages, over the built wheel"

install: $(STAMP)

# Packages are compiled once, in all processors: tests start hundreds of processes, and Python may not be allowed to write bytecode.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rbdata needs Python 3.11 or newer; try: make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m compileall -qq -j 2 $(VENV)/lib || true  # some files are for newer Pythons
	@mkdir -p $(LINKED) && ln -sfn ../.. $(LINKED)/rbdata
	@touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# Style is checked first, in seconds. Types and pages keep one core busy for a minute, beside the tests.
test: $(STAMP)
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory -j 3 types pages unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd $(LINKED) && ../bin/lint-imports --config rbdata/pyproject.toml --no-cache --no-logo

types: $(STAMP)
	cd $(LINKED) && ../bin/mypy --config-file rbdata/pyproject.toml -p rbdata
	cd $(LINKED) && ../bin/mypy --config-file rbdata/pyproject.toml rbdata/benchmarks/*.py rbdata/examples/*.py

# Pyright fetches its own program from the npm registry: not part of `test`.
strict: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check pyright
	$(BIN)/pyright -p .

# Tests write tens of thousands of small files and sync them, which takes half of the time on a disk: they are in memory, where
# there is enough. A process more than there are cores, as some tests wait for processes that they started. By file, as tests of
# one module share fixtures; in order, as the longest files are not those with the most tests. The package is compiled for the
# hundreds of processes that tests start. What other packages warn of is left out, so that a log fits on a few screens.
IN_MEMORY := $(shell test -w /dev/shm && df -Pm /dev/shm | awk 'NR == 2 && $$4 >= 6000 {print "yes"}')
unit: $(STAMP)
	@$(BIN)/python -m compileall -qq *.py cli datasets preprocess storage tests/support
	@$(if $(IN_MEMORY),export TMPDIR=$$(mktemp -d /dev/shm/rb-XXXXXX); trap 'rm -rf $$TMPDIR' EXIT INT TERM;) \
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $$($(BIN)/python -c 'import os; print(os.cpu_count() + 1)') --dist loadfile --no-loadscope-reorder \
	--disable-warnings

# Reads every page and docstring as `docs` does, without writing HTML.
pages: $(STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going -b dummy -d build/pages docs build/pages

docs: $(STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going docs build/docs

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

SCALE ?= 1
SEED ?= 0

campaign: $(STAMP)
	$(BIN)/python benchmarks/campaign/kills.py --rounds $$($(BIN)/python -c 'print(round(300 * $(SCALE)))') --seed $(SEED)
	$(BIN)/python benchmarks/campaign/inputs.py --rounds $$($(BIN)/python -c 'print(round(3000 * $(SCALE)))') --seed $(SEED)

# The tests on the least versions that pyproject.toml states, over the built wheel instead of the checkout; not part of `test`.
# The independent reader of Minari datasets wants a newer NumPy, and does without; it needs Python 3.11. Tests beside
# TorchRL need a newer tensordict, and are left out. TESTS chooses. aiobotocore's extra states the boto3 that goes with it;
# without that pip tries hundreds of versions.
OLDEST := build/oldest
TESTS ?= --ignore tests/examples --ignore tests/campaign --ignore tests/test_house.py
oldest:
	rm -rf $(OLDEST) && mkdir -p $(OLDEST)/suite
	$(PYTHON) -m venv $(OLDEST)/venv
	$(OLDEST)/venv/bin/python -m pip wheel -q --no-deps -w $(OLDEST) .
	$(OLDEST)/venv/bin/python -m pip install -q -c constraints-oldest.txt "$$(ls $(OLDEST)/rbdata-*.whl)[atari,fast,parquet,plot,ray,remote]" 'pytest>=9' hypothesis gcp-storage-emulator psutil scikit-learn 'moto[s3]>=5' 'aiobotocore[boto3]' flask flask-cors setuptools
	-$(OLDEST)/venv/bin/python -m pip install -q --no-deps 'minari>=0.5.4'
	cp -r tests examples benchmarks docs pyproject.toml README.md $(OLDEST)/suite
	cd $(OLDEST)/suite && OMP_NUM_THREADS=1 ../venv/bin/python -m pytest -W ignore $$(grep -rlE '^ *(import|from) torchrl' tests | sed 's/^/--ignore=/') $(TESTS)

clean:
	rm -rf $(VENV) .demo .bench build *.egg-info
