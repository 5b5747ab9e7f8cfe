# Two commands do everything: `make demo` and `make test`. Either makes .venv first, once.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test check lint types nightly bench docs wheel format clean

demo: $(STAMP)  ## fresh machine to personalized models and a table of who gained
	$(BIN)/pgfed run

test: lint types  ## fresh machine to a green test suite
	scripts/system-packages
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

check: test  ## the quality gate: lint, format, types, tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(STAMP)
	$(BIN)/mypy

nightly: $(STAMP)  ## the slow checks too
	$(BIN)/python -m pytest -m "nightly or not nightly"

bench: $(STAMP)  ## speed and scale, as ratios measured in one run
	$(BIN)/python -m benchmarks --write

docs: $(STAMP)  ## the documentation site, in site/
	$(BIN)/python scripts/docs.py

wheel: $(STAMP)  ## the package, in dist/
	$(BIN)/python -m build --wheel

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--editable ".[ray,flower,report,onnx,privacy,tabular,tensorboard,docs,dev]"
	touch $(STAMP)

clean:
	rm -rf .venv runs build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
