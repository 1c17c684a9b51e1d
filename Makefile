# The words of this project: quickstart test test-slow lint typecheck docs bench clean.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest --durations=10 --numprocesses auto --dist loadfile --no-loadscope-reorder
AREAS := __init__.py durable_files.py environment.py text_tables.py configs pretrain decode kernels eval tools

.PHONY: quickstart test test-slow lint typecheck docs bench clean

quickstart: $(VENV)/quickstart
	$(BIN)/anchored quickstart

test: $(VENV)/dev
	$(PYTEST) -m "not gpu and not slow"

test-slow: $(VENV)/dev # another seven minutes: compilations, killed runs, whole programs
	$(PYTEST) -m "slow and not gpu"

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(VENV)/dev # mypy needs to see the folders under the name `anchored`
	@mkdir -p .cache/typing/anchored
	@for area in $(AREAS); do ln -sfn ../../../$$area .cache/typing/anchored/$$area; done
	MYPYPATH=.cache/typing $(BIN)/mypy -p anchored

docs: $(VENV)/dev # the public names, from their docstrings, into build/docs
	$(BIN)/python -m anchored.tools.reference

bench: $(VENV)/dev
	$(BIN)/anchored bench kernel

$(VENV)/quickstart: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[quickstart]"
	@touch $@

$(VENV)/dev: $(VENV)/quickstart
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
