# make demo: MOON learns digits.   make test: the whole suite.   make lint: style and types.
# make sanitize: the native kernels under the address and undefined-behaviour sanitizers (needs gcc).
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test lint sanitize clean

demo: $(VENV)/installed
	$(BIN)/moonfl run

test: $(VENV)/installed
	$(BIN)/pytest --numprocesses auto

lint: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

sanitize:
	mkdir -p build
	gcc -g -O1 -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all \
	    src/moonfl/kernels/*.c tests/sanitize_kernels.c -o build/sanitize_kernels
	build/sanitize_kernels

$(VENV)/installed: pyproject.toml constraints.txt setup.py $(wildcard src/moonfl/kernels/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "moonfl needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build src/moonfl/kernels/_native*.so src/moonfl.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
