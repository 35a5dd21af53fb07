# `make demo` runs the embedded experiment, `make test` the tests; both set up what they need in .venv first.
# The set-up uses uv when it is there and pip otherwise; nothing is installed outside this folder.
PYTHON ?= python3
CONFIG ?= config/config.yaml
# As one word for the shell, and as one for make.
QUOTED := '$(subst ','\'',$(CONFIG))'
EMPTY :=
NEEDED := $(subst $(EMPTY) $(EMPTY),\ ,$(CONFIG))
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
# A name that a shell or make would take for more than a name is passed over here; multicard refuses it.
RESULTS := $(or $(shell LC_ALL=C sed -n "s/^results: *[\"']\{0,1\}\([^][:space:][\"'\\\\;&|<>(){}\$$\`*?!\#~%:^]*\)[\"']\{0,1\} *\(\#.*\)\{0,1\}$$/\1/p" $(QUOTED) 2> /dev/null),results)
HOW_MADE := $(RESULTS)/snakemake-report.html

SNAKEMAKE := $(BIN)/snakemake --profile profiles/local --configfile $(QUOTED)

.PHONY: demo test test-fast gpu-check lint docs lock clean

demo: $(READY)
	@$(BIN)/multicard runs --config $(QUOTED) > /dev/null
	@$(SNAKEMAKE)
	@$(MAKE) --no-print-directory $(HOW_MADE)
	@$(BIN)/multicard status --config $(QUOTED)
	@echo "Report: $(RESULTS)/report.html  Figures: $(RESULTS)/figures/  How each file was made: $(HOW_MADE)"

# Snakemake's own report shows what the scenarios' files hold, so it is as new as the newest of them.
$(HOW_MADE): $(NEEDED) $(wildcard $(RESULTS)/scenarios/*/*.csv $(RESULTS)/figures/*/*.png)
	$(SNAKEMAKE) --report $@

test: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# The daily round: what trains nothing and takes no seconds.
test-fast: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "not slow"

gpu-check: $(READY)
	$(BIN)/python tests/gpu/check.py

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

# Into site/. The variable silences a notice that the theme prints about its successor.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(READY): envs/requirements.lock pyproject.toml
	envs/make-venv.sh $(VENV) $(PYTHON)
	@touch $@

# Resolve the dependencies anew (needs uv); commit the result. `make lock UPGRADE=--upgrade` takes newer versions.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --all-extras --group dev --group docs \
	    --generate-hashes --no-annotate --custom-compile-command "make lock" $(UPGRADE) --output-file envs/requirements.lock pyproject.toml
	$(PYTHON) envs/conda_from_lock.py > envs/conda.yaml

clean:
	rm -rf results data site .snakemake
