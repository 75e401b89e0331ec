# Needs python3.11 and make; everything else goes into .venv on the first call.
PYTHON ?= python3.11
SEED ?=
SEEDS ?= 5000
FRAMES ?= 1000000
TRIALS ?= 300
SCRIPTS ?= 2000
AT_ONCE ?= 1
MINUTES ?= 10
# Where torch comes from, if not from the default index. On a machine without a GPU this is smaller:
#   make test TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# make test WITHIN=2700 runs as much of the rest, too, as begins within so many seconds.
WITHIN ?=

BIN := .venv/bin
INSTALLED := .venv/.installed
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check check-code check-units format readme sim sim-soak chaos kills hangs fuzz bench matrix torture exact compat hunt dist clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

# Torch first and alone: the second command finds it in place and never looks for another one.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt \
		$(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable '.[dev]'
	touch $@

demo: $(INSTALLED)  ## a training run with and without a killed replica, side by side
	$(BIN)/recoverrun demo

test: $(INSTALLED)  ## a sample of every kind of test: 15 minutes on two cores
	$(PYTEST) $(if $(WITHIN),--within $(WITHIN),--warm --numprocesses 2 --dist loadfile)

test-all: $(INSTALLED)  ## every test, and a sample of the matrix: an hour
	$(PYTEST) --all

check: $(INSTALLED)  ## what a commit must pass: format, lint, types, house rules, unit tests; a minute
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target check-code check-units

check-code: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) --quiet tests/test_tidy.py tests/test_structure.py tests/scenarios

check-units: $(INSTALLED)
	$(PYTEST) --quiet --within 30 tests/unit

format: $(INSTALLED)  ## let ruff lay out the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

readme: $(INSTALLED)  ## write the real --help into README.md, and the layers into docs
	RECOVERRUN_REWRITE=1 $(PYTEST) --quiet tests/test_tidy.py tests/test_structure.py -k "help or page"

sim: $(INSTALLED)  ## 5,000 simulated histories; make sim SEED=53 replays one, with its trace
	$(BIN)/python -m tests.sim $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))
	$(if $(SEED),,$(BIN)/python -m tests.sim.standstill --seeds 300)

sim-soak: $(INSTALLED)  ## 10,000 histories of the view register, and a longer search
	$(BIN)/python -m tests.sim.views --seeds 10000 --chaos 40 --search 300000
	$(BIN)/python -m tests.sim.views --seeds 10000 --chaos 40 --witness
	$(BIN)/python -m tests.sim.views --seeds 10000 --chaos 40 --etcd
	$(BIN)/python -m tests.sim.views --seeds 10000 --chaos 40 --in-turn
	$(BIN)/python -m tests.sim.coordinators --seeds 10000

chaos: $(INSTALLED)  ## launchers killed, stopped, cut off (as root); ranks killed in every strategy
	$(BIN)/python -m tests.chaos --trials $(TRIALS) --at-once $(AT_ONCE)
	$(BIN)/python -m tests.chaos --strategies

kills: $(INSTALLED)  ## the only replica killed at random points (as root: whole hosts), back to its snapshots
	$(BIN)/python -m tests.chaos.snapshots --trials $(TRIALS)

hangs: $(INSTALLED)  ## every way to hang in every place of a step: make hangs TRIALS=10
	$(BIN)/python -m tests.e2e.hangs --trials $(TRIALS)

fuzz: $(INSTALLED)  ## a million damaged frames: make fuzz FRAMES=1000000 SEED=7
	$(BIN)/python -m tests.security.fuzz --frames $(FRAMES) --seed $(or $(SEED),0)

bench: $(INSTALLED)  ## measure what recovery and a step without losses cost
	$(BIN)/python -m tests.bench

matrix: $(INSTALLED)  ## every phase of a step times every kind of loss, with real processes
	$(PYTEST) --warm -m matrix tests/e2e tests/truth

torture: $(INSTALLED)  ## a run that loses replicas all the time, which come back: make torture MINUTES=10
	$(BIN)/python -m tests.e2e.torture --minutes $(MINUTES)

exact: $(INSTALLED)  ## 50 random schedules of losses with --exact, up to 8 replicas, compared bit by bit
	$(BIN)/python -m tests.e2e.exactness

compat: $(INSTALLED)  ## try every script and framework that is served, and write the table of the docs
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable '.[dev,compat]'
	$(BIN)/python -m tests.compat

hunt: $(INSTALLED)  ## 2,000 scripts made by chance, with and without a loss; make hunt SEED=53 replays one, RETURN=1: lost ranks come back
	$(BIN)/python -m tests.hunt --at-once $(AT_ONCE) $(if $(RETURN),--return) \
		$(if $(SEED),--once $(SEED),--scripts $(SCRIPTS))

dist: $(INSTALLED)  ## build wheel and sdist
	$(BIN)/python -m build

clean:  ## remove what was built or run here, also .venv
	rm -rf .venv build dist runs .hypothesis .mypy_cache .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
