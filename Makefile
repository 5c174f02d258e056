# Each target sets up .venv by itself; a second run starts at once.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

.venv/docs: .venv/ready
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

setup: .venv/ready  ## install everything into .venv

demo: .venv/ready  ## train char-lstm for a minute or two: the plain loop, then two waves
	$(BIN)/wavelet bench char-lstm --against plain --demo

test: .venv/ready  ## the tests
	$(BIN)/pytest

check: .venv/ready  ## style and strict types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready  ## the five jobs against the plain loop and DDP, both allocators
	$(BIN)/wavelet bench char-lstm char-gpt digits-cnn digits-mobile mlp-small-ops --against plain,ddp \
		--json benchmarks/single/results.json --force

bench-overhead: .venv/ready  ## what the engine itself costs a step
	$(BIN)/python benchmarks/overhead.py

docs: .venv/docs  ## build the documentation into site/
	$(BIN)/mkdocs build --strict

.PHONY: help setup demo test check bench bench-overhead docs
