# make setup, demo, test, test-fast, check, bench, docs, pins: see CONTRIBUTING.md.
BIN := .venv/bin
BACKEND ?= memory

.PHONY: setup demo test test-fast check bench docs pins

setup:
	@requirements/install.sh

demo: setup
	@$(BIN)/cogr-train demo --backend $(BACKEND)

test: check
	@$(BIN)/python -m pytest

test-fast: setup
	@$(BIN)/python -m pytest -q -m "not server and not model and not slow"

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: setup
	@for benchmark in benchmarks/bench_*.py; do echo "== $$benchmark"; $(BIN)/python "$$benchmark" || exit 1; done

docs: setup
	@$(BIN)/python docs/reference.py
	@$(BIN)/mkdocs build --strict --quiet

# make pins keeps the versions that are pinned; make pins UPGRADE=1 takes the newest that fit.
pins:
	@requirements/compile.sh $(if $(UPGRADE),--upgrade)
