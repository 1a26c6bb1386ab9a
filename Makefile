# Everything from a fresh clone: needs Python 3.11 or newer, pip and make, and builds .venv itself.
# `make PYTHON=python3.13 VENV=.venv-3.13 test` chooses another interpreter, beside the first one.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROCESSORS := $(shell getconf _NPROCESSORS_ONLN)
# Many tests wait for a claim, a timer or a process: two workers a processor keep it busy.
WORKERS := $(shell expr 2 \* $(PROCESSORS))
# Files, folders or options of pytest: `make test TESTS=tests/sandbox`.
TESTS ?=

# The build backend is pinned too: old pips read the first of these in isolated builds, new ones
# the second.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: check test demo lint format fix types bench chaos clean help
.DEFAULT_GOAL := test
.NOTPARALLEL:

help: ## Say what can be made.
	@sed -nE 's/^([a-z]+):.*## /\1\t/p' Makefile | expand -t 10

check: lint format types ## Lint, format, types, and what tests without a process or a sandbox: a minute.
	@echo "== tests that start nothing"
	@$(BIN)/python -m pytest --quick -n $(PROCESSORS) --maxprocesses=8 --dist worksteal $(TESTS)

test: $(VENV)/.ready-dev ## Every test, from nothing: some minutes.
	@echo "== tests"
	@$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses=8 --dist worksteal $(TESTS)

demo: $(VENV)/.ready ## A node, programs, tools, their facts as they arrive, the journal verified.
	@$(BIN)/python -m rookery.ops.demo

lint: $(VENV)/.ready-dev ## Look for mistakes (ruff).
	@echo "== lint"
	@$(BIN)/ruff check .

format: $(VENV)/.ready-dev ## Look whether files are formatted.
	@echo "== format"
	@$(BIN)/ruff format --check .

fix: $(VENV)/.ready-dev ## Mend and format what can be mended by itself.
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(VENV)/.ready-dev ## Check the types of the product (mypy).
	@echo "== types"
	@$(BIN)/python -m rookery.ops.check_types

bench: $(VENV)/.ready ## Measure on this machine.
	@$(BIN)/rookery bench

# How long nodes are cut off in `make chaos`. All cells take about 90 minutes; the next call goes on
# where one has ended.
CUT_MINUTES ?= 90

chaos: $(VENV)/.ready-dev ## The long forms of the kill tests and of the random ones: some minutes each.
	@echo "== the journal while the server is killed"
	@$(BIN)/python -m tests.bus.kill_campaign
	@echo "== a node and its clients while the server is killed"
	@$(BIN)/python -m tests.chaos.server_kills
	@echo "== a node killed at every failpoint"
	@$(BIN)/python -m tests.chaos.node_kills
	@echo "== a thousand simulated histories of nodes, on the virtual clock"
	@$(BIN)/python -m tests.kernel.simulation --seeds 1000
	@echo "== random histories of every machine, beside the model"
	@$(BIN)/python -m tests.machines.fuzzer
	@echo "== everything at once"
	@$(BIN)/python -m tests.chaos.mixed_faults
	@echo "== programs that call tools, their node killed at every failpoint"
	@$(BIN)/python -m tests.chaos.run_kills
	@echo "== parents and children on two nodes, one of them killed at every failpoint"
	@$(BIN)/python -m tests.chaos.child_kills
	@echo "== random rules, beside the parser that the present one replaced"
	@$(BIN)/python -m tests.policy.rule_campaign
	@echo "== a lease whose owner dies at every failpoint, on one, two and three nodes"
	@$(BIN)/python -m tests.chaos.lease_kills
	@echo "== a surface added and removed, its node killed at every failpoint"
	@$(BIN)/python -m tests.chaos.surface_kills
	@echo "== models that drive runs, their node killed at every failpoint, by each kind of provider"
	@$(BIN)/python -m tests.agents.model_kills 5
	@$(BIN)/python -m tests.agents.model_kills 2 openai
	@$(BIN)/python -m tests.agents.model_kills 2 anthropic
	@echo "== models that act in programs, their node killed at every failpoint, in both languages"
	@$(BIN)/python -m tests.agents.code_kills 5
	@echo "== peers over a link that misbehaves, each node killed once"
	@$(BIN)/python -m tests.chaos.mesh_faults
	@echo "== a gateway of A2A killed under fifty streams"
	@$(BIN)/python -m tests.chaos.gateway_kills
	@echo "== every spec of a hook, class of its answer and fault, against the table"
	@$(BIN)/python -m tests.hooks.hook_cells
	@echo "== hooks that change a run, their node killed at every place of an invocation"
	@$(BIN)/python -m tests.chaos.hook_kills
	@echo "== two peers, their node killed at every failpoint"
	@$(BIN)/python -m tests.chaos.peer_kills
	@echo "== a program asks an agent elsewhere, its node killed at every failpoint"
	@$(BIN)/python -m tests.chaos.agent_kills
	@echo "== a thousand runs, a till, and three kills"
	@$(BIN)/python -m tests.chaos.effect_audit
	@echo "== the same, and nodes that leave, are paused and die"
	@$(BIN)/python -m tests.chaos.effect_audit 3000 100 leave pause kill leave pause
	@echo "== the same with nodes of two processes, one of which dies"
	@$(BIN)/python -m tests.chaos.effect_audit 1000 100 part part kill part
	@echo "== two hundred sandbox sessions for a minute"
	@$(BIN)/python -m tests.sandbox.many_sessions
	@echo "== every probe of the sandbox, and how late it ended"
	@$(BIN)/python -m tests.sandbox.probes
	@$(BIN)/python -m tests.sandbox.probes --fallback
	@echo "== the packages that models use most, from the index of pip"
	@$(BIN)/python -m tests.sandbox.python.listed_packages
	@echo "== a node cut off at the very message that matters"
	@$(BIN)/python -m tests.chaos.cut_off all --times 10
	@echo "== nodes of one name, clocks that jump, another journal"
	@$(BIN)/python -m tests.chaos.odd_realms all --times 3
	@echo "== a cluster that loses its leader, killed, stopped, isolated, and restarted"
	@$(BIN)/python -m tests.chaos.cluster
	@echo "== a hundred thousand random messages on every subject of the bus"
	@$(BIN)/python -m tests.chaos.bus_fuzz
	@echo "== a node cut off in every way; goes on from build/cuts.jsonl"
	@$(BIN)/python -m tests.chaos.cuts --results build/cuts.jsonl --minutes $(CUT_MINUTES)

clean: ## Remove everything that was made.
	@rm -rf $(VENV) .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.ready: $(BIN)/python pyproject.toml constraints.txt
	@echo "== installing rookery into $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.ready-dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "== installing rookery and its test tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.ready

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "rookery needs Python 3.11 or newer, and $(PYTHON) is %d.%d: try make PYTHON=python3.11" \
	  % sys.version_info[:2])'
	@echo "== creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
