# `make demo` and `make test` are all a newcomer needs; both make their own environment in .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help venv demo test test-quick test-slow test-soak test-gpu sanitize-gpu gpu-packages waits lint docs train lab dashboard constraints clean

help:
	@echo "make demo        a real Triton, real users, three cache modes side by side (about 4 minutes after downloads)"
	@echo "make test        lint, types, every test but the slow ones (about 11 minutes on 2 cores)"
	@echo "make test-quick  the same without the tests that start a server (about 5 minutes)"
	@echo "make test-slow   the long searches for counter-examples (an hour)"
	@echo "make test-soak   a server under random traffic for 20 minutes, or MTSERVE_SOAK_SECONDS"
	@echo "make test-gpu    kernels, engine, races and memory on the GPU of this machine (GPU_PYTHON=python3: see docs/kernels.md)"
	@echo "make waits       take every ordering of two streams away and see which test notices (5 minutes); writes docs/waits.md"
	@echo "make lab         every table and figure of the paper, then one page of them (PRESET=cpu: an hour; PRESET=smoke: minutes)"
	@echo "make train       train the committed model again (about 3 minutes)"
	@echo "make dashboard   write deploy/grafana/mtserve.json again, after a change of its build.py"
	@echo "make docs        the documentation's site in build/site; fails where a link leads nowhere"
	@echo "make venv        only the environment; PYTHON=python3.12 chooses the interpreter"

venv: $(VENV)/installed

$(VENV)/installed: pyproject.toml client/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; ok = (3, 10) <= v <= (3, 12); sys.exit(0 if ok else \
		f"mtserve runs on Python 3.10 to 3.12, this is {v[0]}.{v[1]}: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable ./client --editable '.[server,perf,dev]'
	@touch $@

demo: venv
	$(BIN)/python -m perf.demo

test: lint test-quick
	$(BIN)/python -m pytest tests/server

test-quick: venv
	$(BIN)/python -m pytest tests --ignore=tests/server

test-slow: venv
	$(BIN)/python -m pytest tests -m slow

test-soak: venv
	$(BIN)/python -m pytest tests/server/test_soak.py -m soak -s

# On a machine with a GPU that has its own torch and triton, GPU_PYTHON is its Python.
GPU_PYTHON ?= $(BIN)/python

test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),venv)
	PYTHONPATH=client:$(GPU_PACKAGES) $(GPU_PYTHON) -m pytest -p no:cacheprovider tests/gpu tests/transfer

sanitize-gpu:
	PYTHONPATH=client:$(GPU_PACKAGES) compute-sanitizer --tool memcheck --error-exitcode 1 \
		$(GPU_PYTHON) -m pytest -p no:cacheprovider -x tests/gpu/test_kernels.py

# What the suite needs beside torch, triton and numpy, for another machine's Python, to be carried there.
GPU_PACKAGES := .gpu-packages
GPU_PYTHON_VERSION ?= 3.12
gpu-packages: venv
	$(BIN)/python -m pip install --quiet --target $(GPU_PACKAGES) --upgrade --no-deps --only-binary=:all: \
		--python-version $(GPU_PYTHON_VERSION) --constraint constraints.txt pytest pytest-timeout iniconfig pluggy packaging \
		pygments hypothesis sortedcontainers pydantic pydantic-core annotated-types typing-inspection typing-extensions \
		safetensors tqdm

waits: venv
	$(BIN)/python -m tests.races.mutate_waits

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

PRESET ?= cpu
RESULTS ?= results/$(PRESET)
LAB := core paradigms steps scale chunks capacity hitratio intervals memory tokens load

lab: venv
	for command in $(LAB); do $(BIN)/python -m perf.$$command --preset $(PRESET) --json $(RESULTS)/$$command.json || exit; done
	$(BIN)/python -m perf.report $(RESULTS) --png $(RESULTS)/png

train: venv
	$(BIN)/python -m perf.train --data ml-100k --out model_repository/hstu/1/weights

# torch is held back to the release that the tests ran with; uv comes from `pip install uv`.
constraints:
	echo 'torch==2.13.0' | uv pip compile --quiet --universal --python-version 3.10 --no-emit-index-url --no-header \
		--no-emit-package mtserve-client --extra server --extra gpu --extra perf --extra dev \
		pyproject.toml client/pyproject.toml - -o constraints.txt

dashboard: venv
	$(BIN)/python deploy/grafana/build.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info client/*.egg-info
