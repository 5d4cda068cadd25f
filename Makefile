# Two commands for newcomers, each from nothing:
#   make demo    the main job on real data (scikit-learn's digits): report in demo/report.html
#   make test    the whole gate: format, lint, types, tests, README and docs examples
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
OUT ?= demo

.PHONY: demo test check format figure clean help study-budget-small
help:
	@sed -n 's/^#  //p' Makefile

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "setting up $(VENV) (PyTorch is large: a minute or more)"
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.base
	rm -rf $(OUT)
	$(BIN)/temperance train digits --out $(OUT) --epochs 20 --seeds 3

test: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

# The study of the training budget in small: eight data sets, 64 settings, 1,408 trainings, about a quarter of an hour of one
# core after the data. Fetches the data with apt-get download (Debian or a relative of it).
CACHE ?= build/study-data
SMALL ?= build/study-budget-small
study-budget-small: $(VENV)/.dev
	$(BIN)/python studies/data/prepare.py $(CACHE) --only letter shuttle diamonds spam ames-neighborhood income hpc-jobs
	$(BIN)/python studies/budget/design.py $(SMALL)/plans
	TEMPERANCE_DATA=$(CACHE) $(BIN)/temperance sweep $(SMALL)/plans/small.toml --out $(SMALL)/runs/law --no-statistics
	$(BIN)/python studies/budget/fit_law.py $(SMALL)/runs/law $(SMALL)/budget.json $(SMALL)

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(OUT) build dist
