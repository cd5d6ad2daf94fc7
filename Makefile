# The commands of the project. `make demo` and `make test` need nothing but Python 3.11 to 3.13 and a C++ compiler.
.DEFAULT_GOAL := help
.PHONY: help demo emulation test quick oldest verify gpu check format twins docs site examples evidence clean

# Not PYTHON: that is the user's, for environment/install.sh, and make would hand this one on instead.
VENV_PYTHON := .venv/bin/python
DEMO_DATA ?=
DEMO_OPTIONS ?=
PYTEST_OPTIONS ?=
# Such as --stages facts,tests --seconds 120, or --dry on CPUs.
GPU_OPTIONS ?=
# Tests wait for most of their time. All tests of a file run in one process, which makes their fixtures once.
TEST_PROCESSES ?= 2
IN_PROCESSES := -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
# Files whose tests make reports by the dozen, or wait for processes: some 5 minutes of `make test`.
LONG := answers asked_and_read attacks compare contradictions damaged_files data_loading evidence facts \
	golden_studies interruption more_repeats older_logs outputs overhead pages prediction refusals report \
	report_of_kinds report_of_maps report_of_played saliency slurm_peer statistics task wheel
# Nothing else runs beside a comparison of measured times.
IN_ONE_PROCESS := -n 0

help: ## list these commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1|/' | awk -F'|' '{printf "  make %-8s %s\n", $$1, $$2}'

demo: ## install, compare both frameworks at 1 and 2 workers on this machine (on one GPU at 1), write the report, print the answer
	@environment/install.sh
	@slurm/demo.sh "$(DEMO_DATA)" $(DEMO_OPTIONS)

emulation: ## both frameworks from 1 to 14 workers on this machine: emulated, on a slowed virtual cluster; needs root, half an hour
	@environment/install.sh
	@slurm/emulation.sh

test: ## install what the tests need and run everything but verify
	@environment/install.sh --tests
	$(VENV_PYTHON) -m pytest -m "not verify and not timing" $(IN_PROCESSES) --durations=30 $(PYTEST_OPTIONS)

quick: ## the tests that start no training and no cluster and make few reports
	@environment/install.sh --tests
	$(VENV_PYTHON) -m pytest -m "not slow and not verify and not timing" $(IN_PROCESSES) \
		$(LONG:%=--ignore=tests/test_%.py) $(PYTEST_OPTIONS)

# A clone of what is committed, on processors alone: Horovod is then built for these.
OLDEST_ENVIRONMENT ?= $(HOME)/.cache/unet-scaling/oldest
OLDEST_PYTHON = $(or $(PYTHON),$(shell python3.12 -c 'print("python3.12")' 2>/dev/null || echo python3))
# Or a CPU build, or a wheel's path.
OLDEST_TORCH ?= torch==$(shell sed -n 's/.*"torch>=\([0-9.]*\)\.dev0,.*/\1/p' pyproject.toml).0

oldest: ## the tests of `make quick` on the oldest torch that is allowed, in OLDEST_ENVIRONMENT: 2.7 GB with a CUDA build
	@test -d "$(OLDEST_ENVIRONMENT)/.git" || git clone --quiet --no-checkout . "$(OLDEST_ENVIRONMENT)"
	@git -C "$(OLDEST_ENVIRONMENT)" fetch --quiet "$(CURDIR)" HEAD
	@git -C "$(OLDEST_ENVIRONMENT)" checkout --quiet --force --detach FETCH_HEAD
	@CUDA_VISIBLE_DEVICES= PYTHON="$(OLDEST_PYTHON)" TORCH_SPEC="$(OLDEST_TORCH)" \
		$(MAKE) --no-print-directory -C "$(OLDEST_ENVIRONMENT)" quick

verify: ## the long part: comparisons of times, then faults on a virtual cluster, which needs root
	@environment/install.sh --tests
	@failed=0; \
	$(VENV_PYTHON) -m pytest -m timing $(IN_ONE_PROCESS) $(PYTEST_OPTIONS) || failed=1; \
	$(VENV_PYTHON) -m pytest -m "verify and not timing" $(IN_PROCESSES) $(PYTEST_OPTIONS) || failed=1; \
	exit $$failed

gpu: ## on a GPU node: all that shows the GPU path works, in 8 minutes; results in build/gpu
	@environment/install.sh --tests
	$(VENV_PYTHON) -m benchmarks.gpu $(GPU_OPTIONS)

check: ## ruff, shellcheck, mypy on every file, the lines of every folder, and the links of every page
	@environment/install.sh --tests
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m tests.line_budget
	.venv/bin/shellcheck $$(git ls-files '*.sh') slurm/virtual_cluster .ci/run
	$(VENV_PYTHON) -m mypy unet_scaling analysis slurm tests benchmarks environment
	for twin in */train.py; do $(VENV_PYTHON) -m mypy $$twin || exit; done
	@$(MAKE) --no-print-directory site

format: ## let ruff lay out the code
	$(VENV_PYTHON) -m ruff format .
	$(VENV_PYTHON) -m ruff check --fix .

twins: ## what changes from native DDP to Horovod, also into README.md
	@$(VENV_PYTHON) -m tests.readme --write

docs: ## write the column lists of docs/columns.md, the keys of docs/study.md and the schemas for editors
	@$(VENV_PYTHON) -m analysis.report.columns --write
	@$(VENV_PYTHON) -m slurm.reference --write

# Links between pages and to files stay as they are in the repository: the site is built from the same folders.
site: ## the pages as a site with search, build/site/index.html; fails where a link or an anchor leads nowhere
	@rm -rf build/pages
	@mkdir -p build/pages
	@git ls-files '*.md' docs 'slurm/*.toml' | grep -v '^tests/' | xargs cp --parents -t build/pages
	@$(VENV_PYTHON) -m mkdocs build --strict

evidence: ## unpack the committed records that pages rest on into build/evidence
	@mkdir -p build/evidence
	@for each in logs/evidence/*.tar.xz; do tar -xf $$each -C build/evidence; done
	@cp -r logs/evidence/*/ build/evidence

examples: evidence ## write the example reports of docs/examples and two pictures of the pages
	@docs/examples/make.sh

clean: ## remove the environment and what runs left; logs stay
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis
