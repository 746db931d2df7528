# What one does in a checkout. `make help` lists the targets; `make` alone is check and test.

PYTHON ?= python3
MODEL := $(or $(LOCALMEM_MODEL),qwen2.5-coder-1.5b-instruct)
MODELS ?= smollm2-135m-instruct qwen2.5-coder-0.5b-instruct qwen2.5-coder-1.5b-instruct
BIN := .venv/bin
LOG := .venv/install.log

.DEFAULT_GOAL := all
.PHONY: all help chat test install fix check transcript bench-speed bench-reliability bench-bfcl bench-letta bench-injections bench-faults build

all: check test

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

chat: install ## set up everything, the default model included, and talk with the agent
	@$(call need_model,$(MODEL))
	@$(BIN)/localmem chat

test: install ## set up everything and run the tests; ARGS='-k name' for some of them
	@$(call need_model,smollm2-135m-instruct)
	$(BIN)/python -m pytest $(ARGS)

install: .venv/installed ## make .venv with the tested versions of everything

fix: install ## put right what the linters can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: install ## run the linters and the type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

transcript: install ## hold the long conversation of docs/transcript.md with the default model
	@$(call need_model,$(MODEL))
	$(BIN)/python -m benchmarks.long_conversation --model $(MODEL) --transcript docs/transcript.md

bench-speed: install ## measure what a turn, a call, a search cost (an hour); MODEL=NAME for another model
	@$(call need_model,$(MODEL))
	$(BIN)/python -m benchmarks.speed --model $(MODEL)

bench-reliability: install ## measure function calls: four arms on the test cases (an hour); MODELS='NAME...' for others
	@$(foreach model,$(MODELS),$(call need_model,$(model)) &&) true
	$(BIN)/localmem bench reliability $(foreach model,$(MODELS),-m $(model)) --out benchmarks/results $(ARGS)

bench-bfcl: install ## BFCL with its own checker, fetched on the way (hours); MODEL=NAME, ARGS='--limit 100 --arm free'
	@$(call need_model,$(MODEL))
	$(BIN)/python -m benchmarks.bfcl --model $(MODEL) $(ARGS)

bench-faults: install ## kill it, cut its power, fill its disk, fuzz it, soak it (an hour and more); ARGS='--kills 2000'
	@$(call need_model,smollm2-135m-instruct)
	$(BIN)/python -m benchmarks.faults $(ARGS)
	$(BIN)/python -m benchmarks.faults.fuzz
	$(BIN)/python -m benchmarks.faults.soak

bench-letta: install ## Letta's core-memory sets; MODEL=NAME, ARGS='--data FOLDER --limit 20'
	@$(call need_model,$(MODEL))
	$(BIN)/python -m benchmarks.letta --model $(MODEL) $(ARGS)

bench-injections: install ## orders hidden in documents: what a model does; MODEL=NAME, ARGS='--limit 20'
	@$(call need_model,$(MODEL))
	$(BIN)/python -m benchmarks.injections -m $(MODEL) $(ARGS)

build: install ## make the wheel in dist/
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . >$(LOG) 2>&1 || { tail -n 20 $(LOG) >&2; exit 1; }
	@ls dist/*.whl

# A model is fetched where it is missing. Standard input belongs to the chat, so nothing here may read it.
need_model = $(BIN)/localmem models path $(1) </dev/null >/dev/null 2>&1 \
	|| $(BIN)/localmem models pull $(1) </dev/null >/dev/null

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "localmem needs Python 3.11 or newer; try make PYTHON=python3.11")'
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@echo "Installing into .venv. The first time, llama.cpp is built: about five minutes on two cores." >&2
	@$(pip_install)
	@touch $@

# pip says much: it goes to a log, and a line is shown every 15 seconds. A job in the background is deaf to Ctrl-C,
# so the trap passes it on.
define pip_install
$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]' </dev/null >$(LOG) 2>&1 & \
pip=$$!; trap 'kill $$pip; exit 130' INT TERM; seconds=0; \
while kill -0 $$pip 2>/dev/null; do \
	sleep 1; seconds=$$((seconds + 1)); \
	test $$((seconds % 15)) -ne 0 || \
		printf '%5d s  %s\n' $$seconds "$$(grep -v WARNING $(LOG) | tail -n 1 | cut -c 1-90)" >&2; \
done; \
wait $$pip || { tail -n 20 $(LOG) >&2; echo "It failed; the whole log is $(LOG)." >&2; exit 1; }
endef
