# make app opens the course; make test shows that it holds. Everything else is listed by `make`.

PORT ?= 8501
ADDRESS ?=
ARGS ?=
PY := .venv/bin/python
# The browser that tests and the page benchmark drive; empty, with a message, where there is none.
WITH_CHROMIUM = CHROMIUM="$$($(PY) -m tools.chromium --install)"

.PHONY: help setup setup-dev app test bench lint clean

help:
	@echo "make app    open the course (PORT=$(PORT), ADDRESS=… to listen on one address only)"
	@echo "make test   run the tests (ARGS=… goes to pytest)"
	@echo "make bench  measure the engine and the page"
	@echo "make lint   ruff, and mypy --strict on the core and the pure parts of the lessons"
	@echo "make setup  make or mend .venv; the four above do it themselves (PYTHON=… picks the interpreter)"
	@echo "make clean  remove .venv and caches"

setup:
	@PYTHON="$(PYTHON)" tools/setup.sh run

setup-dev: setup
	@PYTHON="$(PYTHON)" tools/setup.sh dev

app: setup
	$(PY) -m streamlit run app.py --server.port $(PORT) $(if $(ADDRESS),--server.address $(ADDRESS))

test: setup-dev
	$(WITH_CHROMIUM) $(PY) -m pytest -n 2 --dist worksteal $(ARGS)

bench: setup-dev
	$(PY) -m bench engine
	$(WITH_CHROMIUM) $(PY) -m bench ui

lint: setup-dev
	$(PY) -m ruff check .
	$(PY) -m mypy

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
