# make demo | test | test-quick | coverage | lint | format | docs — each sets up its environment by itself. Needs Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Two workers: the machine the suite is sized for has two cores.
WORKERS ?= 2

.PHONY: demo test test-quick coverage lint format docs clean

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/llm-perf profile experiment=demo

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

# Without what starts the orchestrator, a real tool or a browser, or runs a model: under a minute.
test-quick: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow" $(PYTEST_ARGS)

# What children of a stage run is not counted: they get an allow-listed environment.
coverage: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --cov --cov-report=term:skip-covered $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# An environment of its own: the site needs none of what the package needs.
docs:
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/pip install --quiet --disable-pip-version-check -c constraints.txt mkdocs
	$(VENV)-docs/bin/mkdocs build --strict --site-dir site

clean:
	rm -rf $(VENV) $(VENV)-docs build dist site .pytest_cache .mypy_cache .ruff_cache
