# Every target does its own set-up in .venv; nothing else needs to be installed but Python 3.11-3.13 and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CODE := $(wildcard src tests benchmarks examples)

.PHONY: help venv demo test test-slow check bench docs clean
help:            ## what can be made
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:[^#]*##/\t/'

# The stamp makes set-up a no-op until the list of dependencies changes.
$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $(STAMP)

venv: $(STAMP)   ## set up .venv with all that the tests need

demo: $(STAMP)   ## the main job, end to end, on real images
	$(BIN)/recal demo --out demo-output

test: $(STAMP)   ## lint, types and all quick tests
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test-slow: $(STAMP) ## what takes minutes
	$(BIN)/python -m pytest -m slow

check: $(STAMP)  ## lint and types only
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

bench: $(STAMP)  ## speed, beside the peers and the physical limit
	$(BIN)/python -m pip install --quiet --editable '.[test,peers]'
	$(BIN)/python -m benchmarks.run --out docs/benchmarks --disk

docs: $(STAMP)   ## run every example in the documentation
	$(BIN)/python -m pytest tests/docs

clean:
	rm -rf $(VENV) demo-output .pytest_cache .mypy_cache .ruff_cache
