# The local stack, and what a developer needs. `make help` lists the targets.
# Nothing but make and Python (3.11 or newer) has to be there: the rest comes into .venv.

PYTHON ?= python3
DATA ?= .data
ARGS ?=
# For all recipes; run, up, chaos and rollback read them from the environment (spec section 15).
export DATA

.DEFAULT_GOAL := help
.PHONY: help run up chaos rollback test lint clean venv

help:
	@echo 'make run    the local stack with the sample day; stays up until Ctrl-C'
	@echo '            ONCE=1 ends after the table, SUMMARY=path writes it as JSON'
	@echo 'make up     the same stack without the sample; READY=path tells when all answers'
	@echo '            MORE=path adds sources and handlers of your own (TOML), for run too'
	@echo 'make chaos  the whole stack under random faults; exit 0 only with the proof that nothing is lost'
	@echo '            SEED=n repeats a run, MESSAGES=2000 KILLS=25 say how much, SUMMARY=path as JSON'
	@echo 'make rollback   the way to direct mode and back, rehearsed under traffic; exits 0 with the proof'
	@echo '            EACH=n messages of each sender in each step, SUMMARY=path writes the table as JSON'
	@echo 'make test   the whole test suite; ARGS= is given to pytest'
	@echo 'make lint   ruff and mypy'
	@echo 'make clean  removes .venv, caches and .data'
	@echo 'DATA=path chooses the data folder (default .data); DATABASE_URL and TEMPORAL_ADDRESS'
	@echo 'point at servers of your own; PYTHON=path chooses the Python that .venv is made with.'

# Looks at each call whether .venv is that of requirements.lock: cheap, and right after a checkout,
# where time stamps are not.
venv:
	@$(PYTHON) deploy/dev/venv.py

# exec: the shell must not stand between make and what gets the signals.
run up: venv
	@exec .venv/bin/python -m deploy.dev $@

chaos: venv
	@exec .venv/bin/python -m deploy.chaos

# In a folder of its own, unless one is named.
rollback: DATA := $(if $(filter file,$(origin DATA)),.data/rollback,$(DATA))
rollback: venv
	@exec .venv/bin/python -m deploy.rollback

# Tests wait more than they compute, so there are more workers than processors; a later -n in ARGS wins.
# A file is run by one worker, since its tests may share a stack, and files in the order of pyproject.toml.
test: venv
	@exec .venv/bin/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: venv
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/python -m mypy

clean:
	@$(PYTHON) deploy/dev/venv.py --clean
