# Every target sets up what it needs; a machine with Python 3.11, git and make is enough.
#
#   make demo         the main job: where would these pods go?
#   make demo-cluster the whole system on fake GPUs, in a real Kubernetes (Linux, root)
#   make test         quick tests, then everything this machine can run
#   make test-quick   under 3 minutes, any system
#   make test-long    the same with the full number of repetitions
#   make lint         ruff, mypy --strict, the import rules
#   make bench        figures: speed and how it grows
#   make cluster      a real Kubernetes on loopback, with the extender (make cluster-down ends it)

.DEFAULT_GOAL := help
# How often repeated tests repeat: nothing (each test's own few), a number, or full.
ROUNDS ?=
PYTEST ?= .venv/bin/pytest
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help setup demo demo-cluster test test-quick test-long lint native bench cluster cluster-down lock clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -10

setup:
	@scripts/setup

demo: setup
	@scripts/demo

demo-cluster: setup
	@gpushare-testcluster demo

lint: setup
	ruff check .
	ruff format --check .
	mypy
	lint-imports

test-quick: setup lint
	$(PYTEST) -m "not cluster and not node and not native_slow"

test: setup lint
	ROUNDS=$(ROUNDS) $(PYTEST) $(PYTEST_ARGS)

test-long: setup lint
	ROUNDS=full $(PYTEST) $(PYTEST_ARGS)

# The library that holds a container to its share, and the hook: into build/native
native: setup
	$(MAKE) -C native PYTHON=$(CURDIR)/.venv/bin/python

bench: setup
	python -m bench

cluster: setup
	gpushare-testcluster up

cluster-down: setup
	gpushare-testcluster down

lock: setup
	scripts/lock

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
