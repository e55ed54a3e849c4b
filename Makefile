# What a person or a machine does with this tree. Needs make, Python 3.11 or newer, and Java 17 or newer for Kafka and
# Spark. Every target brings up the virtual environment .venv first, again only when pyproject.toml changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := test,dev,spark,s3,gcs,azure,msk,demo,bench,check,docs
# Options for pytest: make test ARGS='-k fold'.
ARGS ?=
# Processes of `make test`: half of the time a test waits for a broker or for Spark, so that four keep two cores busy.
# `make test PROCESSES=0` is one, in order.
PROCESSES ?= 4
# What tests write is synced thousands of times. It lies in memory where that has 4 GB for it, so that nobody waits for a
# disk; the files of a test that passed go at once. `make test IN_MEMORY=` keeps to the disk.
IN_MEMORY = $(shell free=$$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1); \
  [ "$${free:-0}" -gt 4000000 ] && [ -w /dev/shm ] && echo TMPDIR=/dev/shm)

# Spark's workers would otherwise be whatever python3 is on the path.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
# The tests start hundreds of Python processes: each would compile all that it imports where the environment forbids to keep it.
unexport PYTHONDONTWRITEBYTECODE

STAMP := $(VENV)/.made-of-$(shell { cat pyproject.toml; echo '$(EXTRAS)'; } | cksum | cut -d' ' -f1)

.PHONY: help venv java demo test check bench soak docs constraints clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo    a Spark job on a real Kafka, killed and recovered (no other command needed)'
	@echo 'make test    all tests, about twenty minutes on two cores'
	@echo 'make check   style, types and the import contract'
	@echo 'make bench   the figures of bench/; a run of all writes docs/figures.md, the figures of the README, and their picture'
	@echo 'make soak    long random runs'
	@echo 'make docs    the documentation as a site, in build/docs; fails on a broken link'
	@echo 'make constraints  constraints.txt anew, from what is installed in .venv'
	@echo 'make clean   remove what these targets made'

demo: venv java
	$(BIN)/python -m demo $(ARGS)

test: venv java
	$(IN_MEMORY) $(BIN)/python -m pytest -n $(PROCESSES) --max-worker-restart 0 --dist loadscope --no-loadscope-reorder \
	  -o tmp_path_retention_policy=failed --durations=10 -m 'not soak' tests $(ARGS)

soak: venv java
	$(BIN)/python -m pytest -m soak --timeout=7200 -o faulthandler_timeout=7190 tests $(ARGS)

bench: venv java
	$(BIN)/python -m bench --page docs/figures.md $(ARGS)
	$(BIN)/python -m bench.quote
	$(BIN)/python docs/pictures.py

check: venv
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/unit/test_style.py tests/unit/test_voice.py
	$(BIN)/python -m tests.support.voice

docs: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build $(ARGS)

# The newest versions that these ranges allow: make clean first. PIP_CONSTRAINT=constraints.txt make ... installs those named.
constraints: venv
	$(BIN)/python -m tests.support.constraints

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

venv: $(STAMP)

# The new stamp is written last, so that an interrupted installation is done again.
$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo 'statelog needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$$($(PYTHON) --version) cannot make virtual environments: install its venv package" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version); the first time takes a few minutes"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/.made-of-*
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

java:
	@version=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | \
	  sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1); \
	[ "$${version:-0}" -ge 17 ] || \
	  { echo "statelog needs Java 17 or newer for Kafka and Spark; found: $${version:-none}" >&2; exit 1; }
