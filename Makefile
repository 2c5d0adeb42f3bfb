# Each target makes .venv if it is missing, and runs inside it. tools/maintenance.mk has the targets for maintainers.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGE := $(VENV)/.package
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest
WORKERS := -n 2 --dist worksteal
USUAL := not slow and not gpu and not network
# pytest rewrites every test, and tests start processes: without stored bytecode each worker and process compiles all again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo docs test test-thorough test-gpu lint format clean

demo: $(PACKAGE)  ## answer prompts with the demo model and report what was reused
	@$(BIN)/promptcache run examples/travel/miami.xml
	@$(BIN)/promptcache run examples/travel/paris.xml
	@$(BIN)/promptcache run examples/travel/left-out.xml

docs: $(STAMP)  ## the documentation as a site, in site/; a link without a target fails
	$(BIN)/python -m tools.site

test: lint  ## the tests of every change: offline, on the CPU, five to ten minutes on two cores
	$(PYTEST) $(WORKERS) -m "$(USUAL)"

test-thorough: $(STAMP)  ## more examples of every law
	PROMPTCACHE_EXAMPLES=thorough $(PYTEST) $(WORKERS) -m "law and $(USUAL)"

test-gpu: $(STAMP)  ## tests that need CUDA: backends, requests end to end, the host tier
	TRITON_INTERPRET=0 $(PYTEST) -m gpu

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(PACKAGE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable .
	touch $@

$(STAMP): $(PACKAGE)
	$(PIP) --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) site .clients .torchao .pytest_cache .mypy_cache .ruff_cache .hypothesis

include tools/maintenance.mk
