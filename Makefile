# `make demo` runs the embedded experiment, `make test` the tests; both set up what they need in .venv first.
# The set-up uses uv, or pip where uv fails; nothing is installed outside this folder.
PYTHON ?= python3
CONFIG ?= config/config.yaml
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
# What only the developers of multicard need beside that; and two environments within it, and gone with it.
DEV := $(VENV)/dev-ready
TORCHTUNE := $(VENV)/torchtune/ready
DEEPSPEED := $(VENV)/deepspeed/ready
# A worker for each of two cores, and one for while tests wait, as those on Slurm do. Files run in the order of
# tests/conftest.py, where the plugin would put those with the most tests first.
# A worker has one thread for numbers: those of more would wait for each other in a loop, on cores that others need.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
OPTIONS := -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder
PYTEST := $(ONE_THREAD) $(BIN)/python $(OPTIONS)
# Tests that import torchtune, by the interpreter that has it.
PYTEST_TORCHTUNE := $(ONE_THREAD) $(VENV)/torchtune/bin/python $(OPTIONS) tests/emulated tests/llm tests/script

# Byte code is kept, whatever the caller's environment says: the many processes would compile the same sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo torchtune snakemake-report test test-all test-fast test-rare emulated-gpu gpu-check lint docs doc-figures bundle lock clean

demo: $(READY)
	@$(BIN)/multicard run '$(CONFIG)'

# Snakemake's own report, after the demo: how each file was made.
snakemake-report: $(READY)
	@$(BIN)/snakemake --profile profiles/local --configfile '$(CONFIG)' --report snakemake-report.html

# For language models by torchtune (`library: torchtune`), which needs an older torch: 6 GB more.
torchtune: $(TORCHTUNE)

# Everything that a user can break.
test: $(DEV) $(TORCHTUNE)
	$(PYTEST_TORCHTUNE) -m "torchtune and not rare"
	$(PYTEST) -m "not torchtune and not rare"

# What only rarely changes: emulated GPUs, how jobs end under Slurm, the browser, DeepSpeed, many more random inputs.
test-rare: $(DEV) $(TORCHTUNE) $(DEEPSPEED)
	$(PYTEST_TORCHTUNE) -m "torchtune and rare"
	$(PYTEST) -m "not torchtune and rare"

test-all: $(DEV) $(TORCHTUNE) $(DEEPSPEED)
	$(PYTEST_TORCHTUNE) -m torchtune
	$(PYTEST) -m "not torchtune"

# The daily round: what trains nothing and takes no seconds.
test-fast: $(DEV)
	$(PYTEST) -m "not slow and not rare"

# The GPU path on emulated GPUs, which need g++ and no GPU: tests/emulated_gpu/README.md.
emulated-gpu: $(DEV) $(TORCHTUNE)
	$(PYTEST_TORCHTUNE) -m "torchtune and emulated"
	$(PYTEST) -m "not torchtune and emulated"

gpu-check: $(DEV) $(TORCHTUNE)
	$(BIN)/python tests/gpu/check.py

lint: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow

# Into site/. The variable silences a notice that the theme prints about its successor.
# The pictures of README.md and docs/, from new measurements on CPUs: the demo, and the script of docs/own-training.md with
# 100 steps and five repeats (a quarter of an hour on an idle machine). Those of other people's captures need these:
# make doc-figures TRACES=FOLDER, whose contents benchmarks/public_captures.py states.
doc-figures: demo
	cp results/figures/scaling/speedup.png docs/speedup.png
	PATH="$(abspath $(BIN)):$$PATH" benchmarks/own_training.sh
ifdef TRACES
	$(BIN)/python benchmarks/public_captures.py --traces '$(TRACES)'
endif

docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Into bundle/, for machines without a network: make bundle PYTHON=3.12 EXTRAS=vision,search WITHOUT=torch,torchvision
bundle:
	envs/make-bundle.sh bundle '$(PYTHON)' '$(EXTRAS)' '$(WITHOUT)'

$(READY): envs/requirements.lock pyproject.toml
	envs/make-venv.sh $(VENV) $(PYTHON)
	@touch $@

$(DEV): envs/dev.lock $(READY)
	envs/install-lock.sh $(VENV) envs/dev.lock
	@touch $@

$(TORCHTUNE): envs/torchtune.lock pyproject.toml | $(READY)
	envs/make-venv.sh $(VENV)/torchtune $(PYTHON) envs/torchtune.lock
	@touch $@

$(DEEPSPEED): envs/deepspeed.lock $(DEV)
	envs/install-deepspeed.sh $(VENV)

# Resolve the dependencies again (needs uv); commit the result. `make lock UPGRADE=--upgrade` takes newer versions.
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
    --custom-compile-command "make lock" $(UPGRADE)
# Extras of the environment that multicard runs in.
EXTRAS := --extra vision --extra dali --extra llm --extra search

lock:
	$(COMPILE) $(EXTRAS) --group dev --group docs --output-file envs/dev.lock pyproject.toml
	$(COMPILE) $(EXTRAS) --constraint envs/dev.lock --output-file envs/requirements.lock pyproject.toml
	$(COMPILE) --extra torchtune --extra vision --group test-torchtune --output-file envs/torchtune.lock pyproject.toml
	$(COMPILE) --no-deps --output-file envs/deepspeed.lock envs/deepspeed.in
	$(COMPILE) --no-deps --output-file envs/uv.lock envs/uv.in

# What was made here, and nothing that you put beside it: data/raw and any other file in data or results stays.
RESULT_FOLDERS := runs scenarios figures logs benchmarks machine search
RESULT_FILES := report.html recommendations.md claims.csv claims_tests.csv
DIGEST := [0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]

clean:
	rm -rf site bundle .snakemake .emulated
	rm -rf $(addprefix results/,$(RESULT_FOLDERS) $(RESULT_FILES))
	@# Preparing leaves log.txt first and provenance.json last; what has neither is not ours, whatever its name.
	@for folder in data/*-$(DIGEST) data/models/*-$(DIGEST); do \
	    if [ -e "$$folder/log.txt" ] || [ -e "$$folder/provenance.json" ]; then \
	        echo "rm -rf $$folder"; rm -rf "$$folder"; \
	    fi; \
	done
	@for folder in data/models data results; do \
	    if [ -d "$$folder" ] && [ ! -L "$$folder" ]; then rmdir --ignore-fail-on-non-empty "$$folder"; fi; \
	done
