# make demo: set up and run the main job on the embedded model. make test: set up and run all CPU tests.
# make bars: the long seeded checks, figures into bars.json. make check: lint and types only. make gpu-test: needs a CUDA device.
# Only Python 3.11 to 3.13, make and pip are needed.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# On a machine whose package index serves torch with CUDA only, TORCH_INDEX=https://download.pytorch.org/whl/cpu takes the small wheel.
PIP_INSTALL := $(BIN)/pip install --disable-pip-version-check -q -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# The machine's cores are used by running test files side by side; inside a test one thread does the arithmetic.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: demo test check bars gpu-test clean

demo: $(VENV)/.serve
	$(BIN)/flide-agent demo

test: check
	$(PYTEST) -n 2 --dist loadfile -m "not bars and not gpu"

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bars: $(VENV)/.dev
	rm -f bars.json
	$(PYTEST) -m bars -s

gpu-test: $(VENV)/.dev
	$(BIN)/python -m pytest -m gpu tests/gpu

$(VENV)/.serve: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info[:2] <= (3, 13), "Python 3.11 to 3.13 is needed; set PYTHON="'
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[serve]'
	touch $@

$(VENV)/.dev: $(VENV)/.serve
	$(PIP_INSTALL) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) bars.json
