# `make demo` runs the embedded experiment, `make test` the tests; both set up what they need in .venv first.
# The set-up uses uv when it is there and pip otherwise; nothing is installed outside this folder.
PYTHON ?= python3
CONFIG ?= config/config.yaml
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
RESULTS := $(or $(shell sed -n "s/^results: *\([^ \#]*\).*/\1/p" $(CONFIG) 2> /dev/null),results)
HOW_MADE := $(RESULTS)/snakemake-report.html

SNAKEMAKE := $(BIN)/snakemake --profile profiles/local --configfile $(CONFIG)

.PHONY: demo test gpu-check lint lock clean

demo: $(READY)
	@$(BIN)/multicard runs --config $(CONFIG) > /dev/null
	@$(SNAKEMAKE)
	@$(MAKE) --no-print-directory $(HOW_MADE)
	@$(BIN)/multicard status --config $(CONFIG)
	@echo "Report: $(RESULTS)/report.html  Figures: $(RESULTS)/figures/  How each file was made: $(HOW_MADE)"

# Snakemake's own report shows what the scenarios' files hold, so it is as new as the newest of them.
$(HOW_MADE): $(CONFIG) $(wildcard $(RESULTS)/scenarios/*/*.csv $(RESULTS)/figures/*/*.png)
	$(SNAKEMAKE) --report $@

test: $(READY)
	$(BIN)/python -m pytest

gpu-check: $(READY)
	$(BIN)/python tests/gpu/check.py

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

$(READY): envs/requirements.lock pyproject.toml
	envs/make-venv.sh $(VENV) $(PYTHON)
	@touch $@

# Resolve the dependencies anew (needs uv); commit the result. `make lock UPGRADE=--upgrade` takes newer versions.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --all-extras --group dev --generate-hashes --no-annotate \
	    --custom-compile-command "make lock" $(UPGRADE) --output-file envs/requirements.lock pyproject.toml
	$(PYTHON) envs/conda_from_lock.py > envs/conda.yaml

clean:
	rm -rf results data .snakemake
