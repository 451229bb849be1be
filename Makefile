# make setup, demo, test, test-all, check, bench, docs, pins: see CONTRIBUTING.md.
BIN := .venv/bin
BACKEND ?= memory
# Python keeps what it compiled, also where containers say not to: else every process of a test or a
# stage of training compiles all of PyTorch's and TRL's modules again, 12 s.
export PYTHONDONTWRITEBYTECODE :=

# make drill: long fault drills, a table at the end (DRILL_KILLS=1000, DRILL_CUT=60 seconds).
.PHONY: setup demo test test-all test-fast test-lowest clients-test drill audit sbom check bench \
  bench-learning bench-scale reproduce docs pictures pins images chart-test chart-lint chart-readme

setup:
	@requirements/install.sh

START_OPENSEARCH = COGR_OPENSEARCH__URL=$$($(BIN)/cogr-ops opensearch start --json | \
  $(BIN)/python -c "import json, sys; print(json.load(sys.stdin)['url'])")

# The embedded demo needs less than the suite: a smaller environment, unless there is the whole one.
demo:
	@requirements/install.sh $(if $(filter memory,$(BACKEND)),demo)
	@$(if $(filter opensearch,$(BACKEND)),$(START_OPENSEARCH)) \
	  $(BIN)/cogr-train demo --backend $(BACKEND)

# Compiles PyTorch and TRL once, beside the checks: otherwise each process of the tests would.
COMPILE = $(BIN)/python -c "import peft, trl.trainer.grpo_trainer, trl.trainer.sft_trainer" \
  >/dev/null 2>&1

# Three processes at once, a file of tests in one of them, files of long tests first. Tests wait for
# servers half of the time, so three keep two cores busy (332 s, two 397 s). A thread each, since
# threads that spin take another's core. They share the servers that tests need.
PROCESSES ?= 3
test: setup
	@$(COMPILE) & $(MAKE) --no-print-directory check && wait
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not drill and not clients" -n $(PROCESSES) \
	  --dist loadfile --no-loadscope-reorder

# Everything that is tested before a release: the suite, which has a short sample of each kind, then
# the drills, the chart on a real API server, the clients, and static checks of chart and images.
test-all: test drill chart-lint chart-test clients-test

drill: setup
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m drill

# The inner loop. Where there is no environment it makes a small one, without PyTorch, in which
# `make check` runs too.
test-fast:
	@requirements/install.sh fast
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(PROCESSES) --dist loadfile \
	  -m "not server and not model and not slow and not torch and not drill and not clients"

# Every client with its own tools: needs node, npm, Maven, curl and jq, and the network the first
# time.
clients-test: setup
	@$(BIN)/python -m pytest tests/ops/clients/test_clients.py tests/ops/clients/test_client_docs.py

# The tests that need no server and no model, with the lowest versions that pyproject.toml declares.
test-lowest: setup
	@OMP_NUM_THREADS=1 requirements/lowest.sh -n $(PROCESSES) \
	  tests/cogr tests/indexers tests/ops tests/trainers

# Known vulnerabilities, asked of the advisory services of PyPI and npm; fails where they can't be
# reached.
audit: setup
	@$(BIN)/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r requirements/dev.txt
	@npm --prefix ops/clients/javascript audit

# CycloneDX: what is installed here, and what the clients bring along.
sbom: setup
	@mkdir -p dist/sbom
	@$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  -o dist/sbom/python.json .venv
	@npm --prefix ops/clients/javascript sbom --package-lock-only --omit dev \
	  --sbom-format cyclonedx >dist/sbom/javascript.json
	@mvn -q -B -f ops/clients/java org.cyclonedx:cyclonedx-maven-plugin:2.9.1:makeBom \
	  -DoutputFormat=json -DoutputDirectory=$(CURDIR)/dist/sbom -DoutputName=java
	@ls -l dist/sbom

check:
	@requirements/install.sh fast
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy -m benchmarks.reproduce -m benchmarks.published \
	  $(patsubst benchmarks/%.py,-m %,$(wildcard benchmarks/bench_*.py))
	@$(BIN)/lint-imports

LONG := %/bench_learning.py %/bench_scale.py
bench: setup
	@for benchmark in $(filter-out $(LONG),$(wildcard benchmarks/bench_*.py)); do \
	  echo "== $$benchmark"; $(BIN)/python "$$benchmark" || exit 1; done

bench-learning: setup
	@$(BIN)/python benchmarks/bench_learning.py

bench-scale: setup
	@$(BIN)/python benchmarks/bench_scale.py

docs: setup
	@$(BIN)/python docs/reference.py
	@PYTHONPATH=. $(BIN)/python charts/schema.py
	@$(BIN)/mkdocs build --strict --quiet

# The comparison of docs/benchmarks.md again, without a GPU: most of an hour on two cores; needs
# COGR_DATA_DIR.
reproduce: setup
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/reproduce.py

# The pictures in docs/pictures: needs chromium.
pictures: setup
	@PYTHONPATH=. $(BIN)/python docs/pictures.py

# Static checks of the chart, the images and the alerts; the first time it builds two of the
# programs (minutes; needs go).
chart-lint: setup
	@PYTHON=$(CURDIR)/$(BIN)/python tests/charts/kube/lint.sh

# The chart's README from values.yaml, by helm-docs, which is built the first time (needs go).
chart-readme:
	@PATH="$$(tests/charts/kube/binaries.sh lint):$$PATH" \
	  helm-docs --chart-search-root charts/cogr --log-level warning

# Real Helm on a real API server; the first time it builds one (minutes; needs go).
chart-test: setup
	@PYTHON=$(CURDIR)/$(BIN)/python tests/charts/kube/chart-test.sh

# Builds, lists and tries the images. Needs root, buildah and debootstrap. IMAGES names the folder
# of the image store; TORCH=cuda builds the jobs' image for GPUs.
IMAGES ?= .cache/images
TORCH ?= cpu
images: setup
	@test -d $(IMAGES)/store || ops/images/images.sh base $(IMAGES)
	@for name in expander worker jobs; do \
	  began=$$(date +%s); \
	  ops/images/images.sh build $(IMAGES) $$name --build-arg TORCH=$(TORCH) || exit 1; \
	  ops/images/images.sh sbom $(IMAGES) $$name || exit 1; \
	  size=$$(ops/images/images.sh size $(IMAGES) $$name); \
	  seconds=$$(($$(date +%s) - began)); \
	  echo "cogr-$$name: adds $$size MB to its base, built in $$seconds s"; \
	done
	@DRILL_IMAGES=$(abspath $(IMAGES)) $(BIN)/python -m pytest --durations 0 \
	  tests/charts/test_images.py tests/charts/test_processes.py

# make pins keeps the versions that are pinned; make pins UPGRADE=1 takes the newest that fit.
pins:
	@requirements/compile.sh $(if $(UPGRADE),--upgrade)
