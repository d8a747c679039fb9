# Two commands on a machine that has Python 3.11+ and make:  make demo   make test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# By file, since its tests share compiled programs; in the order of tests/conftest.py, which starts the longest first.
# A worker that crashes ends the run: xdist would wait for what it should have done.
PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

.PHONY: demo test test-all test-neighbours test-gpu docs bench dist versions fuzz clean

demo: $(VENV)/.ready
	@rm -rf demo
	$(BIN)/demosift demo --out demo

test: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(PYTEST) -m 'not long'

# What `make test` runs, and then the tests that take minutes.
test-all: test
	$(PYTEST) -m long

# A link that leads nowhere is an error. The pages open from disk: site/index.html.
docs: $(VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.ready
	$(BIN)/demosift bench

# The wheel and the source archive.
dist: $(VENV)/.ready
	@rm -rf dist
	$(BIN)/python -m hatchling build

# Environments with other versions of Python and of the dependencies, which it installs, and the quick tests in each.
PYTHONS ?= python3.11 python3.12 python3.13
versions: $(VENV)/.ready
	$(BIN)/python benchmarks/versions.py $(PYTHONS)

# The real lerobot and robomimic, each in an environment of its own below .neighbours, open what demosift writes and train
# a step on it. Gigabytes are installed, mostly CUDA: with TORCH='torch torchvision --index-url ADDRESS' PyTorch comes from
# an index of builds for processors alone. The newest lerobot needs Python 3.12; NEIGHBOURS='--only robomimic' asks some.
TORCH ?=
NEIGHBOUR_PYTHON ?= python3.12
OLD_NEIGHBOUR_PYTHON ?= python3.11
NEIGHBOURS ?=
test-neighbours: $(VENV)/.ready
	$(BIN)/python tests/neighbours/check.py --torch "$(TORCH)" --python $(NEIGHBOUR_PYTHON) --old-python $(OLD_NEIGHBOUR_PYTHON) $(NEIGHBOURS)

# On a machine with an NVIDIA GPU: gives the environment JAX for it, and asks whether the GPU is right.
test-gpu: $(VENV)/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[cuda]'
	$(BIN)/python tests/gpu.py

FUZZ_SECONDS ?= 300
# Damaged and hostile files of every format; what fails is kept as a test. FUZZ_SECONDS says for how long.
fuzz: $(VENV)/.ready
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python tests/fuzz.py --keep

# What is tested with is pinned in constraints.txt; pyproject.toml has the ranges that should work.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "demosift needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@# Meta-World asks for another MuJoCo, which it does not need: see simulation/scripted/metaworld.py.
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps metaworld
	@touch $@

clean:
	rm -rf $(VENV) demo site build dist .neighbours
