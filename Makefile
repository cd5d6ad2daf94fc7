# The commands of the project. `make demo` and `make test` need nothing but Python 3.11 to 3.13 and a C++ compiler.
.DEFAULT_GOAL := help
.PHONY: help demo emulation test quick verify check format twins docs examples evidence clean

PYTHON := .venv/bin/python
DEMO_DATA ?=
DEMO_OPTIONS ?=
PYTEST_OPTIONS ?=
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

demo: ## install, compare both frameworks at 1 and 2 workers on this machine, write the report, print the answer
	@environment/install.sh
	@slurm/demo.sh "$(DEMO_DATA)" $(DEMO_OPTIONS)

emulation: ## both frameworks from 1 to 14 workers on this machine: emulated, on a slowed virtual cluster; needs root, half an hour
	@environment/install.sh
	@slurm/emulation.sh

test: ## install what the tests need and run everything but verify
	@environment/install.sh --tests
	$(PYTHON) -m pytest -m "not verify and not timing" $(IN_PROCESSES) --durations=30 $(PYTEST_OPTIONS)

quick: ## the tests that start no training and no cluster and make few reports
	@environment/install.sh --tests
	$(PYTHON) -m pytest -m "not slow and not verify and not timing" $(IN_PROCESSES) \
		$(LONG:%=--ignore=tests/test_%.py) $(PYTEST_OPTIONS)

verify: ## the long part: comparisons of times, then faults on a virtual cluster, which needs root
	@environment/install.sh --tests
	@failed=0; \
	$(PYTHON) -m pytest -m timing $(IN_ONE_PROCESS) $(PYTEST_OPTIONS) || failed=1; \
	$(PYTHON) -m pytest -m "verify and not timing" $(IN_PROCESSES) $(PYTEST_OPTIONS) || failed=1; \
	exit $$failed

check: ## ruff, shellcheck, mypy on every file, and the lines of every folder
	@environment/install.sh --tests
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m tests.line_budget
	.venv/bin/shellcheck $$(git ls-files '*.sh') slurm/virtual_cluster .ci/run
	$(PYTHON) -m mypy unet_scaling analysis slurm tests benchmarks environment
	$(PYTHON) -m mypy pytorch_native/train.py
	$(PYTHON) -m mypy horovod/train.py
	$(PYTHON) -m mypy lightning/train.py
	$(PYTHON) -m mypy accelerate/train.py

format: ## let ruff lay out the code
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

twins: ## what changes from one framework to the other, also into README.md and docs/leaving_horovod.md
	@$(PYTHON) -m tests.readme --write

docs: ## write the column lists of docs/columns.md, the keys of docs/study.md and the schemas for editors
	@$(PYTHON) -m analysis.columns --write
	@$(PYTHON) -m slurm.reference --write

evidence: ## unpack the committed records that pages rest on into build/evidence
	@mkdir -p build/evidence
	@for each in logs/evidence/*.tar.xz; do tar -xf $$each -C build/evidence; done
	@cp -r logs/evidence/*/ build/evidence

examples: evidence ## write the example reports of docs/examples and two pictures of the pages
	@docs/examples/make.sh

clean: ## remove the environment and what runs left; logs stay
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis
