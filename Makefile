# Two commands on a fresh machine: `make demo` and `make test`. Both do all set-up first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The lower bounds of pyproject.toml have wheels for this Python; newer ones lack some.
OLDEST_PYTHON ?= python3.11
OLDEST := .venv-oldest
# Every tool here is a child of make; one that starts more threads than cores only slows the others.
export TOKENIZERS_PARALLELISM := false

.PHONY: help setup demo test slow lint types check bench docs dist oldest clean

help:            ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP)  ## virtual environment with the tested versions

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[all,dev]"
	touch $@

demo: setup      ## turned digits: which method keeps most at the same learning, and a page
	$(BIN)/rise run demo --out out
	$(BIN)/rise report out/demo --out out/demo/report.html
	@echo "The page is out/demo/report.html"

# A process per core, up to eight. Each begins with its own share of the files, whose tests share
# what is slow to make, and takes some of another's when it is done.
test: setup      ## the default test suite
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal --durations=25

slow: setup      ## the slow tail: what the default suite leaves out
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile --durations=25 -m slow

lint: setup      ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup     ## mypy, strict
	$(BIN)/mypy

check: lint types test  ## what every commit passes

bench: setup     ## ratios against references and peers, measured in one run
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[bench]"
	$(BIN)/python -m benchmarks

docs: setup      ## build the documentation strictly into site/
	PYTHONPATH=docs $(BIN)/zensical build --strict --clean

dist: setup      ## wheel and sdist in dist/, checked as the package index would
	$(BIN)/python -m pip install --quiet build twine
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

oldest:          ## the default suite with the oldest supported versions, in its own environment
	test -x $(OLDEST)/bin/python || $(OLDEST_PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet -c constraints-oldest.txt -e ".[all,lightning,test]"
	$(OLDEST)/bin/python -m pytest

clean:           ## remove the environments and everything built
	rm -rf $(VENV) $(OLDEST) site .cache build dist out .mypy_cache .ruff_cache .pytest_cache
