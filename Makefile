# Every target does its own set-up in .venv; only Python 3.11-3.13 and make must be installed.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
CODE := $(wildcard src tests benchmarks examples paper)

.PHONY: help venv demo paper test quick test-slow test-oldest test-newest test-core test-extras check mutants bench arena docs examples clean
help:            ## what can be made
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:[^#]*##/\t/'

# Set-up happens in steps, so that each target installs only what it needs. pyproject.toml lists what each step installs:
# extras are for users, dependency groups for developers. A stamp file skips a step until pyproject.toml changes.
FOR_DEMO := $(VENV)/.for-demo
FOR_TEST := $(VENV)/.for-test
FOR_BENCH := $(VENV)/.for-bench
FOR_ARENA := $(VENV)/.for-arena
FOR_DOCS := $(VENV)/.for-docs

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(FOR_DEMO): pyproject.toml | $(BIN)/python
	$(call install,--editable '.[demo]')
	@touch $@

$(FOR_TEST): pyproject.toml | $(BIN)/python
	$(call install,--upgrade pip)
	$(call install,--editable '.[all]' --group test --group tools)
	@touch $(FOR_DEMO) $@

$(FOR_DOCS): $(FOR_TEST)
	$(call install,--group docs)
	@touch $@

$(FOR_BENCH): $(FOR_TEST)
	$(call install,--editable '.[all]' --group test --group peers)
	@touch $@

$(FOR_ARENA): $(FOR_BENCH)
	$(call install,--group arena)
	@touch $@

# Use uv if it is installed. Otherwise, or if uv cannot find a package that pip is configured to find, use pip.
# Both leave compiling to the first import, because most installed modules are never imported.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
define install
	@echo "Installing $(1)"
	@{ command -v uv >/dev/null && uv pip install --quiet --python $(BIN)/python $(1); } || \
		$(BIN)/python -m pip install --quiet --quiet --no-compile $(1)
endef

venv: $(FOR_TEST) ## set up .venv with all that the tests need

demo: $(FOR_DEMO) ## the main job, end to end, on real images
	$(BIN)/recal demo --out demo-output --force

DATA ?= data
DATASET ?= cifar10
NETWORKS ?= lenet5
paper: $(FOR_TEST) ## the paper's experiments: make paper DATA=folder DATASET=cifar10 NETWORKS=lenet5 (hours; see paper/README.md)
	$(BIN)/python -m paper all --data-dir $(DATA) --dataset $(DATASET) --networks $(NETWORKS) --out paper-output

# Three processes for two cores, because some tests wait for other processes; one thread each, so that threads do not
# wait for each other. Compiled files are kept, because the tests start hundreds of processes.
QUICK := env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
test: $(FOR_TEST) ## lint, types and all quick tests
	@$(MAKE) --no-print-directory --jobs 2 check quick

quick: $(FOR_TEST) ## all quick tests
	$(QUICK) $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

test-slow: $(FOR_TEST) ## what takes minutes
	$(BIN)/python -m pytest -m slow

# Separate environments, created again when pyproject.toml changes. torch is installed first, on its own; otherwise pip
# would try its version against every other package. Tests that need a missing package (aeon, for the oldest) are skipped.
# TESTS='tests/unit/files tests/unit/cli' runs some of the tests.
PYTEST_APART = -m pytest -p no:cacheprovider --numprocesses 2 --skip-missing $(TESTS)
TESTS ?=

test-oldest: .venv-oldest/.ready ## all quick tests with the oldest versions that pyproject.toml admits (Python 3.11)
	PYTHONPATH=src .venv-oldest/bin/python $(PYTEST_APART)

test-newest: .venv-newest/.ready ## all quick tests with the newest versions there are
	PYTHONPATH=src .venv-newest/bin/python $(PYTEST_APART)

.venv-%/.ready: pyproject.toml tests/install/oldest.py
	$(PYTHON) -m venv --clear .venv-$*
	$(PYTHON) tests/install/oldest.py $* > .venv-$*/constraints.txt
	.venv-$*/bin/python -m pip install --quiet --quiet --upgrade pip
	.venv-$*/bin/python -m pip install --quiet --quiet --no-compile torch \
		--constraint .venv-$*/constraints.txt
	.venv-$*/bin/python -m pip install --quiet --quiet --no-compile --upgrade --upgrade-strategy eager \
		--constraint .venv-$*/constraints.txt '.[all]' --group runner polars
	@touch $@

test-core:       ## what needs no extra, with any Python: make test-core PYTHON=python3.13
	$(PYTHON) -m venv --clear .venv-core
	.venv-core/bin/python -m pip install --quiet --quiet --upgrade pip
	.venv-core/bin/python -m pip install --quiet --quiet --no-compile . --group runner
	PYTHONPATH=src .venv-core/bin/python $(PYTEST_APART)

test-extras:     ## build wheel and sdist; in empty environments: types, the wheel alone, each extra alone
	$(PYTHON) tests/install/extras.py $(EXTRAS)

check: $(FOR_TEST) ## lint and types only
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/mypy tests/typing/user.py

mutants: $(FOR_TEST) ## small wrong changes to the statistics: which of them do the tests notice?
	$(BIN)/python -m tests.mutants

bench: $(FOR_BENCH) ## speed, beside the peers and the physical limit: make bench VIEWS="real.npz ..."
	$(BIN)/python -m benchmarks.run --out docs/results --disk $(if $(VIEWS),--views $(VIEWS))

PROBLEMS := $(VENV)/arena
DEBIAN ?= /
AGAIN ?=
arena: $(FOR_ARENA) ## every method beside the peers on many small real problems; can be resumed; writes docs/results/arena.md
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.arena --problems $(PROBLEMS) --debian $(DEBIAN) $(if $(AGAIN),--again $(AGAIN)) --out docs/results

docs: $(FOR_DOCS) ## build the documentation site without network; `make test` runs its examples
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html docs docs/_build/html
	@! grep -rlE '<(script|link)[^>]*(src|href)="(https?:)?//' docs/_build/html --include='*.html' || \
		{ echo "These pages load something from the network."; exit 1; }
	@echo "Open docs/_build/html/index.html"

EXAMPLES := images texts tables series language_models panels
examples: $(FOR_TEST) ## one notebook-style script per kind of input, each ending in a decision
	@set -e; for name in $(EXAMPLES); do echo; echo "== examples/$$name.py"; $(BIN)/python examples/$$name.py; done

clean:
	rm -rf $(VENV) .venv-* demo-output paper-output .pytest_cache .mypy_cache .ruff_cache docs/_build docs/api docs/reference.rst
