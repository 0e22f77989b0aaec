# `make demo` and `make test` need nothing but Python 3.11 or later, pip and make. `make study` is all
# that `make demo` is a part of, and goes on from it.
PYTHON ?= python3
BIN = .venv/bin
WORKDIR ?= workdirs/quickstart

.PHONY: demo study test test-fast test-device test-slow bench notebooks docs lint lock clean

demo: .venv/.installed
	$(BIN)/python -m launch.sweep --config=configs/grids/quickstart.py:demo --workdir=$(WORKDIR)

study: .venv/.installed
	$(BIN)/python -m launch.sweep --config=configs/grids/quickstart.py --workdir=$(WORKDIR)

# Tests start many processes; what Python compiles for one is kept for the next.
test test-fast test-slow: export PYTHONDONTWRITEBYTECODE =
test: .venv/.installed
	$(BIN)/python -m pytest -n auto --dist=loadfile

# The tests nearest to what git says is changed, for a minute at most (tests/nearest.py).
test-fast: .venv/.installed
	$(BIN)/python -m pytest -p tests.nearest -n 2 --dist=load --maxschedchunk=2

# The suite on whatever device JAX finds. Its tolerances are for sums in float32, so products are not
# to be shortened, and many tests are of floats that are the same each time. Tests that need several
# devices or processes have those of the CPU.
TESTS ?= tests
WORKERS ?= 4
test-device: export XLA_FLAGS = --xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0
test-device: export JAX_DEFAULT_MATMUL_PRECISION = highest
test-device: export XLA_PYTHON_CLIENT_PREALLOCATE = false
test-device: .venv/.installed
	$(BIN)/python -c 'import jax; print("on", *jax.devices())'
	$(BIN)/python -m pytest -n $(WORKERS) --dist=loadfile $(TESTS)

test-slow: .venv/.installed
	XLA_FLAGS= $(BIN)/python -m pytest -m slow --timeout=3600

bench: .venv/.installed
	$(BIN)/python -m analysis.benchmarks.step_time

# Runs them in place; what has been run before lies in workdirs/notebooks/.
notebooks: .venv/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[notebooks]'
	$(BIN)/python -m nbconvert --execute --inplace --to notebook \
	  --ExecutePreprocessor.record_timing=False analysis/notebooks/*.ipynb

# One site of all pages and docstrings: open workdirs/docs/index.html. A broken link, or a public name
# without a docstring, ends the build.
docs: .venv/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The reproducible set-up: every package at one version, for every platform and Python from 3.11 on.
.venv/.installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

lock:
	$(PYTHON) -m venv .venv-lock && .venv-lock/bin/pip install --quiet uv
	.venv-lock/bin/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 \
	  --no-annotate --quiet --output-file requirements.lock
	rm -rf .venv-lock

clean:
	rm -rf .venv .venv-lock
