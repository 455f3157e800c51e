# `make demo`, `make test`, `make check`: each sets itself up. Needs Python >= 3.10 (`make PYTHON=python3.12 demo`).
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
BIN := $(VENV)/bin

# Two processes, each of which takes neighbouring tests: they share compiled kernels. The processes that the tests start
# read compiled Python from the disk, whatever the environment says.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
FOREIGN := tests/programs tests/interop tests/distributed
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-long test-foreign test-site check coverage docs docs-serve format bench clean

demo: $(VENV)/.runtime
	@$(BIN)/warpwright flow
	@$(BIN)/warpwright ladder --levels 1-3 --size 512
	@echo
	@echo "Next: . $(BIN)/activate                       the command is then called warpwright"
	@echo "      warpwright ptx gemm --level 3           the PTX that just ran"
	@echo "      python examples/01_copy.py              the first of nine small kernels; then docs/guide.md"

test: $(VENV)/.dev
	@$(PYTEST) -m "not long" $(FOREIGN:%=--ignore=%)

test-long: $(VENV)/.dev
	@$(PYTEST) -m long $(FOREIGN:%=--ignore=%)

test-foreign: $(VENV)/.foreign
	@$(PYTEST) $(FOREIGN)

test-site: $(VENV)/.dev $(VENV)/.docs
	@$(BIN)/python -m pytest tests/test_site.py

check: $(VENV)/.dev
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(PYTEST) -m "not long" tests/test_layers.py tests/test_docs.py tests/test_prose.py

coverage: $(VENV)/.dev
	@$(BIN)/coverage run -m pytest --deselect tests/ptx/test_parser.py::test_a_hundred_thousand_lines_take_seconds \
		tests/isa tests/lang tests/layout tests/ptx
	@for folder in isa lang layout ptx; do \
		echo "$$folder: $$($(BIN)/coverage report --format=total --include='src/warpwright/'$$folder'/*') %"; done

docs: $(VENV)/.docs
	@$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going --conf-dir docs/site . build/site
	@$(BIN)/python docs/site/playground.py build/site/playground.html
	@echo "build/site/index.html"

docs-serve: docs
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000

format: $(VENV)/.dev
	@$(BIN)/ruff check --quiet --fix . && $(BIN)/ruff format --quiet .

bench: $(VENV)/.runtime
	@$(BIN)/python bench/vgpu.py

clean:
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "$(PYTHON) is older than Python 3.10: name a newer one, for example make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@echo "creating $(VENV) and installing (once, about a minute) ..."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.runtime: pyproject.toml | $(VENV)/.venv
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.venv
	@$(PIP) install --editable '.[dev]'
	@touch $@ $(VENV)/.runtime

$(VENV)/.docs: pyproject.toml | $(VENV)/.venv
	@$(PIP) install --editable '.[docs]'
	@touch $@ $(VENV)/.runtime

$(VENV)/.foreign: $(VENV)/.dev
	@$(PIP) install --editable '.[dev,foreign]'
	@touch $@
