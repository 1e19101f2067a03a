# `make train` and `make test` are the two commands of the README; `make help` lists the others.
#
#   make train ARGS="seed=3 total_timesteps=200000"    options of agents.train, as key=value
#   make test PYTHON=python3.13 VENV=.venv-3.13        another interpreter, in a folder of its own
#   make train TORCH_INDEX=URL                         take torch from this package index first, e.g.
#                                                      PyTorch's CPU builds (see setup below)

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV ?= .venv
ARGS ?=
# Two test processes suit the smallest machine that we support; more threads in each would compete.
TEST_PROCESSES ?= 2
# Fresh generated cases, of all kinds, on which `make engines` compares the two engines; without SEED they are new ones every time.
CASES ?= 10000
SEED ?=
# Busy loops beside `make test-busy`.
LOOPS ?= 8
PYTHON ?=
TORCH_INDEX ?=

BIN := $(VENV)/bin
READY := $(VENV)/.ready
EXTRAS := train,fit,forecast,plots,solver,tune,operator,onnx,multiagent,offline,ray,rllib,torchrl,docs,dev
SUPPORTED := Python 3.11, 3.12 or 3.13
# Everything comes as a wheel: a machine without a compiler is to fail with pip's message about
# the missing wheel and not in the middle of a build.
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check \
	--only-binary :all: --constraint constraints.txt

PROMETHEUS := .prometheus/usr/bin/prometheus

.PHONY: help setup train evaluate prometheus test test-busy test-slow engines checked lint format types docs docs-serve bench package clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## create the virtual environment with the pinned dependencies

# One rule does the whole set-up and leaves a stamp; until a dependency changes, a later call does nothing.
$(READY): pyproject.toml constraints.txt
	@usable='import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; \
	supported='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; \
	if ! $(BIN)/python -c "$$supported" >/dev/null 2>&1; then \
		found=''; without_venv=''; \
		for candidate in $(or $(PYTHON),python3.11 python3.12 python3.13 python3 python); do \
			if "$$candidate" -c "$$usable" >/dev/null 2>&1; then found="$$candidate"; break; fi; \
			if "$$candidate" -c "$$supported" >/dev/null 2>&1; then \
				without_venv="$${without_venv:-$$candidate}"; fi; \
		done; \
		if [ -z "$$found" ] && [ -n "$$without_venv" ]; then \
			echo "error: $$without_venv has no module venv or ensurepip; install it (on Debian and Ubuntu" \
				"the package python3-venv) or name another interpreter: make PYTHON=/path/to/python" >&2; \
			exit 2; \
		fi; \
		if [ -z "$$found" ]; then \
			echo "error: llmscale needs $(SUPPORTED); found none as" \
				"$(or $(PYTHON),python3.11, python3.12, python3.13, python3 or python)." \
				"Name one: make PYTHON=/path/to/python" >&2; \
			exit 2; \
		fi; \
		echo "setup: $$("$$found" --version), virtual environment in $(VENV)"; \
		"$$found" -m venv --clear $(VENV); \
	fi
	@echo "setup: installing the pinned dependencies (some minutes the first time)"
	@if [ -z "$(TORCH_INDEX)" ] && [ "$$(uname -s)" = Linux ]; then \
		echo "setup: for Linux, PyPI has torch with CUDA only (gigabytes, not needed here); if your pip knows" \
			"no other source, set TORCH_INDEX to the address of PyTorch's index of CPU builds"; \
	fi
	@# torch and the build back end first: the rest is then built and installed without asking for them.
	@$(PIP_INSTALL) $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") torch setuptools
	@$(PIP_INSTALL) --use-pep517 --no-build-isolation --config-settings editable_mode=compat \
		--editable '.[$(EXTRAS)]'
	@touch $@
	@echo "setup: done"

train: $(READY) ## train a PPO autoscaler on mixed-slo and compare it with the reference policies
	@$(BIN)/python -m agents.train env=mixed-slo $(ARGS)

evaluate: $(READY) ## compare policies on the same requests: make evaluate ARGS="policies=chiron,hpa"
	@$(BIN)/python -m agents.evaluate env=mixed-slo-hours $(ARGS)

prometheus: $(PROMETHEUS) ## fetch Debian's Prometheus server, which tests of `llmscale serve` start

# The package is unpacked and not installed, so nobody has to be root where its lists are there.
$(PROMETHEUS):
	@command -v apt-get dpkg >/dev/null || { echo "error: needs apt-get and dpkg; elsewhere put a" \
		"prometheus in PATH or name it in LLMSCALE_PROMETHEUS" >&2; exit 2; }
	@mkdir -p .prometheus
	@cd .prometheus && { apt-get download -qq prometheus >/dev/null 2>&1 || \
		{ apt-get update -qq && apt-get download -qq prometheus; }; }
	@dpkg -x .prometheus/prometheus_*.deb .prometheus
	@rm -f .prometheus/*.deb && touch $@

test: $(READY) ## run the tests
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) $(ARGS)

test-busy: $(READY) ## run the tests beside LOOPS busy loops: no test may wait for the clock
	@trap 'kill $$(jobs -p)' EXIT; for _ in $$(seq $(LOOPS)); do (while :; do :; done) & done; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) $(ARGS)

test-slow: $(READY) ## run the tests that are marked slow
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) -m slow $(ARGS)

engines: $(READY) ## compare the two engines on CASES fresh generated cases, or on those of SEED
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak cases=$(CASES) $(if $(SEED),seed=$(SEED)) \
		processes=$(TEST_PROCESSES) $(ARGS)

checked: export LLMSCALE_CHECKED = 1
checked: CASES = 800
checked: engines ## the same with every index and sum of the compiled code checked

lint: $(READY) ## check style and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(READY) ## mend what lint finds, where it can be mended by machine
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(READY) ## check types
	@$(BIN)/mypy

# The variable silences an announcement of the theme's authors.
docs docs-serve: export NO_MKDOCS_2_WARNING = 1
docs: $(READY) ## build the site in site/; a broken link, an anchor or a page outside the nav is an error
	@$(BIN)/python -m mkdocs build --strict --quiet $(ARGS)

docs-serve: $(READY) ## show the site while it is written
	@$(BIN)/python -m mkdocs serve $(ARGS)

bench: $(READY) ## measure the engines, the environments and training
	@$(BIN)/python -m experiments.bench $(ARGS)

# The wheel is built from the source distribution, so that the latter is known to be whole.
package: $(READY) ## build dist/*.tar.gz and dist/*.whl, and check both in an empty environment
	@rm -rf build dist llmscale.egg-info
	@$(BIN)/python -c 'import setuptools.build_meta as b; b.build_sdist("dist")' >/dev/null 2>&1 || \
		$(BIN)/python -c 'import setuptools.build_meta as b; b.build_sdist("dist")'
	@$(BIN)/python -m pip wheel dist/*.tar.gz -qq --disable-pip-version-check --no-deps --no-index \
		--no-build-isolation --wheel-dir dist
	@$(BIN)/python -m tests.installed dist $(ARGS)

clean: ## remove caches and builds, keep the virtual environment and the runs
	@rm -rf build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find llmscale_env agents baselines experiments tests -name __pycache__ -prune -exec rm -rf {} +
