# make demo | test | test-quick | test-long | test-cluster | test-lowest | verdicts | coverage | fuzz | drill | soak | lock | relock | audit | lint | format | docs | workflows | release-check — each sets up its environment by itself. Needs Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN_STAMP := $(VENV)/.installed-run
# Two workers: the machine the suite is sized for has two cores.
WORKERS ?= 2
# Hundreds of interpreters start in the tests: without bytecode files each of them compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-quick test-long test-cluster test-lowest verdicts coverage fuzz drill soak lock relock audit lint format docs workflows release-check clean

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
ifeq ($(LOCKED),1)
	$(BIN)/pip install --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
else
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
endif
	@touch $@

# What the demo needs and no tool of development; pip shows how far it is.
$(RUN_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	@echo 'setting up $(VENV): torch and what it needs, once; pip shows how far it is'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[run]'
	@touch $@

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(RUN_STAMP))
	$(BIN)/llm-perf profile experiment=demo
	@echo "more: $(BIN)/llm-perf --help, or put it on PATH: . $(BIN)/activate"

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

# The rest of the exhaustive tests; CI runs them after `make test`.
test-long: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m long $(PYTEST_ARGS)

# Ray's launcher wants an older cloudpickle than joblib, so it has its own environment; no torch is in it.
RAY_STAMP := $(VENV)-ray/.installed
$(RAY_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-ray
	$(VENV)-ray/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	@touch $@

# Sweeps on a real Slurm of one node on loopback (needs slurm-wlm and munge, and root) and on a real Ray.
test-cluster: $(STAMP) $(RAY_STAMP)
	LLM_PERF_TEST_RAY=$(abspath $(VENV)-ray/bin/python) $(BIN)/python -m pytest -m cluster tests/system/test_cluster.py $(PYTEST_ARGS)

# Compare the verdicts of all available captures with the agreed table; `VERDICTS=--write` updates the table.
verdicts: $(STAMP)
	$(BIN)/python -m tests.support.verdicts $(VERDICTS)

# A program with the oldest transformers serving images carry. The rest of the environment is that of the other tests; the
# oldest torch comes to Linux from PyPI with gigabytes of CUDA alone, so the job `lowest` of GitHub takes it from PyTorch's index.
test-lowest: $(STAMP)
	$(PYTHON) -m venv $(VENV)-lowest
	$(BIN)/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' > $$(echo $(VENV)-lowest/lib/python*/site-packages)/tested.pth
	$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check transformers==4.48.0
	$(VENV)-lowest/bin/python -m pytest -o addopts=--strict-markers tests/system/test_lowest.py $(PYTEST_ARGS)

# Without what starts the orchestrator, a real tool or a browser, or runs a model: under a minute.
test-quick: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow and not long and not cluster" $(PYTEST_ARGS)

# What children of a stage run is not counted: they get an allow-listed environment.
coverage: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --cov --cov-report=term:skip-covered $(PYTEST_ARGS)

# The parsers and the configuration with made-up input: 2,000 cases belong to `make test`, this many are for a night.
FUZZ_CASES ?= 100000
fuzz: $(STAMP)
	LLM_PERF_FUZZ_CASES=$(FUZZ_CASES) $(BIN)/python -m pytest -n $(WORKERS) tests/fuzz $(PYTEST_ARGS)

# Every fault of a tool in every combination of stages, and a kill at thirty moments: about half an hour.
drill: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -o addopts=--strict-markers -m "drill and not soak" tests/drill $(PYTEST_ARGS)

# The workload, analyze and bench, each for an hour in one process: memory, files and threads must stay flat.
SOAK_S ?= 3600
soak: $(STAMP)
	LLM_PERF_SOAK_S=$(SOAK_S) $(BIN)/python -m pytest -o addopts=--strict-markers -s -m soak tests/drill $(PYTEST_ARGS)

# What is installed fits together and is what constraints.txt says.
lock: $(STAMP)
	$(BIN)/pip check
	$(BIN)/python scripts/check_lock.py

# Every dependency, by its hash: for CI (LOCKED=1), and the release. Needs uv.
relock:
	uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-annotate --no-header --no-emit-index-url -c constraints.txt --extra dev pyproject.toml -o requirements/dev.txt
	uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-annotate --no-header --no-emit-index-url requirements/release.in -o requirements/release.txt

# And has no known hole. Where no database can be queried that is a failure, unless: make audit AUDIT_ARGS=--may-skip
audit: lock
	-$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt pip-audit
	$(BIN)/python scripts/check_holes.py $(AUDIT_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Its own environment: the site needs none of what the package needs.
docs:
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/pip install --quiet --disable-pip-version-check -c constraints.txt mkdocs
	$(VENV)-docs/bin/mkdocs build --strict --site-dir site

RELEASE_STAMP := $(VENV)-release/.installed
$(RELEASE_STAMP): requirements/release.txt
	$(PYTHON) -m venv $(VENV)-release
	$(VENV)-release/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/release.txt
	@touch $@

# The workflows: pinned actions, least rights, no untrusted input in a shell.
workflows: $(RELEASE_STAMP)
	$(VENV)-release/bin/zizmor --offline --min-severity medium .github

# What a release does, as far as it can be done here: see RELEASING.md.
release-check: $(RELEASE_STAMP)
	$(VENV)-release/bin/python scripts/release.py check

clean:
	rm -rf $(VENV) $(VENV)-release $(VENV)-docs $(VENV)-lowest $(VENV)-ray build dist site .pytest_cache .mypy_cache .ruff_cache
