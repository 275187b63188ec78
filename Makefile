# Two commands matter: `make tour` (the main job) and `make test`. Each makes the environment first.
PYTHON ?= python3
ENV    := .venv
BIN    := $(ENV)/bin
READY  := $(ENV)/.ready

.PHONY: tour test test-all attack kills lint types format ledger docs clean

tour: $(READY)
	$(BIN)/shoal tour

test: $(READY) lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal

# also what is long and rare: all negative controls, README's commands, kills, Dask, the browser
test-all: $(READY) lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or not slow"

# generated bad inputs, in process and as real processes; its figures belong into docs/reliability.md
attack: $(READY)
	PYTHONPATH=tests $(BIN)/python -m attack_inputs --count 2000 --processes 100
	PYTHONPATH=tests $(BIN)/python -m attack_inputs.surroundings

# commands killed at random moments and run again; half an hour
kills: $(READY)
	PYTHONPATH=tests $(BIN)/python -m kills --count 100

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The environment is made again only when what it is made from has changed.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "shoal needs Python 3.11 or newer: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(ENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs,text,cluster,lab]'
	touch $(READY)

ledger: $(READY)
	$(BIN)/shoal claims --until-decided --budget 45m --markdown docs/ledger.md --out ledger/pages

# the site, docs/_build/html/index.html; what did not change is not run again
docs: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -b html -d docs/_build/doctrees docs docs/_build/html

clean:
	rm -rf docs/_build $(ENV) .pytest_cache .mypy_cache .ruff_cache
