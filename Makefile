# make demo: MOON, FedAvg and training without federation on the same parties, with a report.
# make test: the whole suite.   make lint: style and types.
# make test-flower: real Flower processes on loopback, and Ray.
# make test-hostile: damaged and malicious inputs of every reader, in limited processes.
# make test-report: reports in a browser (installs Debian's chromium where there is none).
# make docs: the documentation into site/, read offline.   make pictures: draw its pictures again.
# make results: docs/results.md, and the tables in other pages, from the runs in results/.
# make overview: the presets, keys and datasets that moonfl list and --help show, from the code.
# make sanitize: the native kernels under the address and undefined-behaviour sanitizers (needs gcc).
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev
BIN = $(VENV)/bin

.PHONY: demo test test-flower test-hostile test-report lint docs pictures results overview sanitize clean

demo: $(if $(wildcard $(VENV)/installed),$(VENV)/installed,$(VENV)/installed-demo)
	$(BIN)/python examples/demo.py

test: $(VENV)/installed
	$(BIN)/pytest --numprocesses auto --dist worksteal --durations 25

test-flower: $(VENV)/installed
	$(BIN)/pytest -m flower

test-hostile: $(VENV)/installed
	$(BIN)/pytest -m hostile tests/hostile --numprocesses auto --dist worksteal

test-report: $(VENV)/installed
	$(BIN)/python -c 'import selenium' 2>/dev/null || \
	    $(BIN)/pip install --quiet --constraint constraints.txt --editable '.[browser]'
	{ command -v chromium && command -v chromedriver; } >/dev/null || \
	    $$([ "$$(id -u)" = 0 ] || echo sudo) sh -c 'apt-get update -q && apt-get install -qy chromium chromium-driver'
	$(BIN)/pytest -m browser

lint: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/installed
	$(BIN)/python -c 'import l2m4m, material, mkdocs, mkdocstrings_handlers.python' 2>/dev/null || \
	    $(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python docs/check_site.py site

results: $(VENV)/installed
	$(BIN)/python results/make.py

pictures: $(VENV)/installed
	$(BIN)/python docs/pictures/make.py

overview: $(VENV)/installed
	$(BIN)/python -c 'from moonfl.cli import overview; overview.write()'

sanitize:
	mkdir -p build
	gcc -g -O1 -pthread -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all \
	    -Isrc/moonfl/kernels src/moonfl/kernels/*.c tests/kernels/sanitize_kernels.c -lm -o build/sanitize_kernels
	build/sanitize_kernels

# The demo needs moonfl and its dependencies only; everything else needs the extras too.
SOURCES = pyproject.toml constraints.txt setup.py $(wildcard src/moonfl/kernels/*.[ch])

$(VENV)/installed-demo: $(SOURCES) | $(BIN)/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed: $(SOURCES) | $(BIN)/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 4) and "moonfl needs Python 3.11.4 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build site src/moonfl/kernels/_native*.so src/moonfl.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
