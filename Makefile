# Each target is complete from nothing: it makes its own environment in .venv, installs, and runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The checkout's own folder may have any name; a link in here gives the package the name that it is imported by.
LINKED := $(VENV)/typecheck

.PHONY: help install demo test lint types unit pages docs wheel bench campaign oldest strict clean

help:
	@echo "make demo    record real Atari play, serve it from a local Google Cloud Storage, download, inspect, verify, sample"
	@echo "make test    lint (style and imports), types, pages of the site, and tests"
	@echo "make docs    the site, in build/docs (open build/docs/index.html); warnings are errors"
	@echo "make wheel   source archive and wheel, checked, and the demo from the wheel in an environment of its own"
	@echo "make bench   the benchmarks at a size that takes a few minutes"
	@echo "make campaign  more examples of property tests, then kills and damaged inputs for an hour (SCALE=0.1: minutes)"
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
	cd $(LINKED) && ../bin/mypy --config-file rbdata/pyproject.toml -p rbdata -m rbdata.tests.public_types
	cd $(LINKED) && ../bin/mypy --config-file rbdata/pyproject.toml rbdata/benchmarks/*.py rbdata/examples/*.py

# Pyright fetches its own program from the npm registry: not part of `test`.
strict: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check pyright
	$(BIN)/pyright -p .

# Tests write tens of thousands of small files and sync them, which takes half of the time on a disk: they are in memory, where
# there is enough. Two processes more than there are cores, as some tests wait for processes that they started. Each begins with a
# stretch of the tests, in order, as those of one module share fixtures; who is done takes half of what another has left. The
# package is compiled for the hundreds of processes that tests start, and pytest keeps the tests that it has compiled, of six
# seconds in each worker, whatever the environment says of bytecode. What other packages warn of is left out, so that a log fits
# on a few screens. ONLY chooses files or folders.
ONLY ?=
IN_MEMORY := $(shell test -w /dev/shm && df -Pm /dev/shm | awk 'NR == 2 && $$4 >= 6000 {print "yes"}')
unit: $(STAMP)
	@$(BIN)/python -m compileall -qq *.py cli datasets preprocess storage tests/support
	@unset PYTHONDONTWRITEBYTECODE; $(if $(IN_MEMORY),export TMPDIR=$$(mktemp -d /dev/shm/rb-XXXXXX); trap 'rm -rf $$TMPDIR' EXIT INT TERM;) \
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $$($(BIN)/python -c 'import os; print(os.cpu_count() + 2)') --dist worksteal \
	--disable-warnings $(ONLY)

# Reads every page and docstring as `docs` does, without writing HTML.
pages: $(STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going -b dummy -d build/pages docs build/pages

docs: $(STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going docs build/docs

# What users get: the wheel is installed without extras first, where nothing else is, and used outside of the checkout.
WHEEL := build/wheel
wheel:
	rm -rf dist $(WHEEL)
	$(PYTHON) -m venv $(WHEEL)/tools && $(WHEEL)/tools/bin/python -m pip install -q build twine
	$(WHEEL)/tools/bin/python -m build
	$(WHEEL)/tools/bin/python -m twine check --strict dist/*
	$(PYTHON) -m venv $(WHEEL)/clean && $(WHEEL)/clean/bin/python -m pip install -q -c constraints.txt dist/*.whl
	cd $(WHEEL) && export RBDATA_ROOT=$$PWD/root && clean/bin/rbdata download gymnasium/CartPole-v1 --steps 500 && \
	clean/bin/rbdata sample CartPole-v1 && clean/bin/rbdata verify CartPole-v1 && clean/bin/rbdata export CartPole-v1 own.npz --to npz && \
	for name in $$(clean/bin/python -c "from rbdata.cli.group import COMMANDS; print(*COMMANDS)"); do clean/bin/rbdata $$name --help > /dev/null || exit 1; done
	$(WHEEL)/clean/bin/python -m pip install -q -c constraints.txt "$$(ls dist/*.whl)[atari]" gcp-storage-emulator
	cd $(WHEEL) && clean/bin/python "$$(clean/bin/python -c 'import rbdata; print(rbdata.__path__[0])')"/examples/demo.py

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

SCALE ?= 1
SEED ?= 0

# Property tests look at four times as many examples as in `test`.
campaign: $(STAMP)
	RBDATA_TEST_EFFORT=4 OMP_NUM_THREADS=1 $(BIN)/pytest -m hypothesis --disable-warnings
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
	$(OLDEST)/venv/bin/python -m pip install -q -c constraints-oldest.txt "$$(ls $(OLDEST)/rbdata-*.whl)[atari,parquet,plot,ray,remote]" 'pytest>=9' hypothesis gcp-storage-emulator psutil scikit-learn 'moto[s3]>=5' 'aiobotocore[boto3]' flask flask-cors setuptools
	-$(OLDEST)/venv/bin/python -m pip install -q --no-deps 'minari>=0.5.4'
	cp -r tests examples benchmarks docs pyproject.toml README.md $(OLDEST)/suite
	cd $(OLDEST)/suite && OMP_NUM_THREADS=1 ../venv/bin/python -m pytest -W ignore $$(grep -rlE '^ *(import|from) torchrl' tests | sed 's/^/--ignore=/') $(TESTS)

clean:
	rm -rf $(VENV) .demo .bench build dist *.egg-info
