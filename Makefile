# Yamchi's commands. `make` alone lists them; every one of them can be run again at any time.

.DEFAULT_GOAL := help
SHELL := /bin/bash

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
INSTALL := $(PIP) install -c constraints.txt

# The first Python on the path that is new enough; `make PYTHON=/path/to/python3.13 up` names another one.
PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(shell \
    $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(p))))

# The tests start hundreds of processes; where nothing is kept of what was compiled, each of them compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

# make test ARGS="tests/unit -k settings" runs a part; PYTEST_FLAGS= runs it in one process.
PYTEST_FLAGS ?= -n auto --dist loadfile --no-loadscope-reorder
ARGS ?=

.PHONY: help up test lint format bench mutants services install constraints clean $(VENV)

help: ## List these commands
	@grep -hE '^[$$.a-zA-Z_()-]+:.*## ' $(MAKEFILE_LIST) | sed 's/^$$(VENV)/$(VENV)/' \
	    | awk -F ':.*## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'

up: $(VENV) ## Start Yamchi on the embedded default: board, API and workers at http://localhost:3030
	@exec $(BIN)/yamchi up $(ARGS)

test: lint ## Check everything: lint, types, layers, tests (a part: ARGS="tests/unit -k settings")
	$(BIN)/python -m tests.services install
	$(BIN)/pytest $(PYTEST_FLAGS) $(ARGS)

lint: install ## Check style, types and the direction of imports, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: install ## Rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv-bench/.installed ## Measure Yamchi beside its peers on the same servers (options: ARGS)
	.venv-bench/bin/python -m bench.run $(ARGS)

mutants: install ## Plant faults in the code and see whether the tests notice (ARGS="--number 200 --seed 1")
	$(BIN)/python -m tests.mutants $(ARGS)

services: install ## Start the test servers (Redis, PostgreSQL, Kafka) and keep them until Ctrl-C
	@exec $(BIN)/python -m tests.services $(ARGS)

$(VENV): $(VENV)/.base ## Make the virtual environment with what `make up` needs

install: $(VENV)/.full ## Make the virtual environment with every extra and the development tools

constraints: | $(VENV)/bin/python ## Pin the newest allowed version of every package in constraints.txt
	rm -rf .venv-pins && $(BIN)/python -m venv .venv-pins
	.venv-pins/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	.venv-pins/bin/python -m pip install --quiet --disable-pip-version-check -e '.[all]' --group dev
	{ echo '# Written by `make constraints`.'; .venv-pins/bin/python -m pip freeze --exclude-editable; } > .venv-pins/constraints.txt
	mv .venv-pins/constraints.txt constraints.txt && rm -rf .venv-pins

.env.example: src/yamchi/settings.py src/yamchi/settingtypes.py src/yamchi/envfile.py $(wildcard src/yamchi/*/settings.py) $(VENV)/.base ## Write the example of all settings anew
	@$(BIN)/python -m yamchi.envfile > $@.new && mv $@.new $@

clean: ## Remove the environments, caches and builds; var/ and uploads stay
	rm -rf $(VENV) .venv-bench .venv-bench-arq .venv-pins bench/node/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is younger than what it was made from, so a second run does nothing.
$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Yamchi needs Python 3.11 or newer, and none is on the path: install one, or name it with make PYTHON=/path/to/python3."; exit 1; }
	@echo "Making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Yamchi into $(VENV)"
	@$(INSTALL) -e '.[media,reports,payments]'
	@touch $@

$(VENV)/.full: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Yamchi with every extra and the development tools into $(VENV)"
	@$(PIP) install --upgrade 'pip>=25.1'  # the first that knows dependency groups
	@$(INSTALL) -e '.[all]' --group dev
	@touch $(VENV)/.base $@

.venv-bench/.installed: pyproject.toml constraints.txt bench/requirements.txt bench/requirements-arq.txt bench/node/package-lock.json | $(VENV)/bin/python
	@echo "Installing Yamchi and its peers into .venv-bench"
	@$(BIN)/python -m venv .venv-bench && $(BIN)/python -m venv .venv-bench-arq
	@.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -e '.[all]' -r bench/requirements.txt
	@.venv-bench-arq/bin/python -m pip install --quiet --disable-pip-version-check -r bench/requirements-arq.txt
	@.venv-bench/bin/python -m bench.install
	@npm ci --silent --prefix bench/node || echo "npm is not here: Node's BullMQ will not be measured"
	@touch $@
