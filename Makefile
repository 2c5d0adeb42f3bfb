# Everything runs inside .venv, which the first target that needs it makes. `make demo` and `make test` are all a newcomer needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOWEST := .venv-lowest
PYTEST := $(BIN)/python -m pytest

.PHONY: demo test test-thorough test-slow test-gpu test-lowest coverage lint format clean

demo: $(STAMP)  ## answer a prompt with the model that ships in the package, and say what was reused
	@$(BIN)/promptcache run examples/travel/miami.xml
	@$(BIN)/promptcache run examples/travel/paris.xml
	@$(BIN)/promptcache run examples/travel/left-out.xml

test: lint  ## the suite of every change: offline, CPU, about five minutes on two cores
	$(PYTEST) -n 2 -m "not slow and not gpu and not network"

test-thorough: $(STAMP)  ## more examples of every law
	PROMPTCACHE_EXAMPLES=thorough $(PYTEST) -n 2 -m "law and not slow and not gpu and not network"

test-slow: $(STAMP)  ## for whoever works on the code; figures go to docs/
	PROMPTCACHE_EXAMPLES=slow $(PYTEST) -n 2 -m "(law or slow) and not gpu and not network"

test-gpu: $(STAMP)  ## what needs a CUDA device: backends, requests from end to end, the host tier
	$(PYTEST) -m gpu

test-lowest: $(LOWEST)/.installed  ## the runtime against the oldest supported transformers
	$(LOWEST)/bin/python -m pytest -n 2 -m "not slow and not gpu and not network" tests/runtime tests/engine

# Counting takes time: caps on time may fail here, which ends nothing. That all tests pass is for `make test` to say.
coverage: $(STAMP)  ## which branches the suite of every change takes, for the whole and for each room
	-$(PYTEST) -n 2 -m "not slow and not gpu and not network" --cov --cov-branch --cov-report=
	@for room in language layout kv; do $(BIN)/coverage report --include="promptcache/$$room/*" | tail -1 | sed "s/TOTAL/$$room/"; done
	$(BIN)/coverage report --skip-covered

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

$(LOWEST)/.installed: pyproject.toml constraints.txt
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	grep -v -e '^transformers==' -e '^huggingface_hub==' -e '^tokenizers==' constraints.txt > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LOWEST)/constraints.txt torch
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LOWEST)/constraints.txt \
		"transformers==5.4.0" "huggingface_hub==1.5.0" --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) .pytest_cache .mypy_cache .ruff_cache .hypothesis
