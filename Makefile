# The two commands are `make demo` and `make test`; everything else is for those who change the code.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: screenshots help setup demo test test-pythons test-trainers images kind kind-parity kind-down test-kind check lint types imports generated generate bench clean up down status

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements.lock pyproject.toml clients/python/pyproject.toml
	@$(PYTHON) -c 'import sys; v=sys.version_info; sys.exit(0 if v>=(3,11) else f"evalstop needs Python 3.11 or newer, {sys.executable} is {v[0]}.{v[1]}: make PYTHON=python3.11 …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@# compat: two plain paths. The usual import hooks cost each Python that starts as much as its own start.
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --config-settings editable_mode=compat -e . -e clients/python
	@touch $@

setup: $(STAMP)  ## the virtual environment with the pinned packages

demo: $(STAMP)  ## the main job, on a real control plane of its own (KEEP=1 leaves it up, FRESH=1 ends one that was left up, QUEUE=kueue: under Kueue; STORY=elastic: rollout actors, STORY=shared: worker groups, of JOBS=3 jobs)
	$(BIN)/python -m deploy.local.demo$(if $(STORY),.$(STORY)) $(if $(KEEP),--keep) $(if $(FRESH),--fresh) $(if $(QUEUE),--queue $(QUEUE)) $(if $(filter shared,$(STORY)),$(if $(JOBS),--jobs $(JOBS)))

test: $(STAMP)  ## all tests, those on a real control plane among them
	$(BIN)/python -m tests.whole

test-pythons: $(STAMP)  ## what may differ between Python 3.11, 3.12 and 3.13, on each found (VERSIONS=3.13 for one)
	$(BIN)/python -m tests.pythons $(VERSIONS)

test-trainers: $(STAMP)  ## real TRL runs, in an environment of 5 GB of their own (KILLS=50: so many kills of each kind)
	$(BIN)/python -m tests.real_trainers

images: $(STAMP)  ## the container images, by docker (BASE_IMAGE=NAME@sha256:…, or TRIAL=1)
	$(BIN)/python -m deploy.images.build

kind: $(STAMP)  ## the main job on a kind cluster with the chart installed (KIND_NODE_IMAGE=…, BASE_IMAGE=…; STORY=elastic or shared, with ACTS=… for its options)
	$(BIN)/python -m deploy.kind $(if $(KEEP_IMAGES),--keep-images) $(or $(STORY),demo)$(if $(ACTS), -- $(ACTS))

test-kind: $(STAMP)  ## the cluster tests on kind (takes the chart away from it first)
	$(BIN)/python -m deploy.kind $(if $(KEEP_IMAGES),--keep-images) test

kind-parity: $(STAMP)  ## a trace on kind's kubelets and in the simulator (PARITY=… for options of evalstop parity)
	$(BIN)/python -m deploy.kind $(if $(KEEP_IMAGES),--keep-images) parity -- $(PARITY)

kind-down: $(STAMP)  ## delete that cluster
	$(BIN)/python -m deploy.kind down

check: $(STAMP)  ## format, lint, types, layers, generated files (each alone: make lint, types, imports, generated)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m controller.api.generate --check
	$(BIN)/python -m deploy.helm.generate --check
	$(BIN)/python -m deploy.grafana --check

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

generated: $(STAMP)
	$(BIN)/python -m controller.api.generate --check
	$(BIN)/python -m deploy.helm.generate --check
	$(BIN)/python -m deploy.grafana --check

generate: $(STAMP)  ## rewrite the generated files
	$(BIN)/python -m controller.api.generate
	$(BIN)/python -m deploy.helm.generate
	$(BIN)/python -m deploy.grafana

bench: $(STAMP)  ## benchmarks: a table, and build/bench.json
	$(BIN)/python -m tests.bench

screenshots: $(STAMP)  ## the pictures of docs/use/dashboard.md, by a headless Chromium
	$(BIN)/python -m tests.browser.screenshots

# deploy/uv.txt pins uv itself; another version: `echo uv==… | uv pip compile - --universal --generate-hashes
# --no-header --no-emit-index-url --no-annotate -o deploy/uv.txt`.
lock: $(STAMP)  ## resolve requirements.lock anew from pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r deploy/uv.txt
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --no-emit-index-url --no-annotate --extra dev -p 3.11 pyproject.toml -o requirements.lock --quiet

up: $(STAMP)  ## a local control plane (deploy/local)
	$(BIN)/python -m deploy.local up

status: $(STAMP)  ## what of it runs
	$(BIN)/python -m deploy.local status

down: $(STAMP)
	$(BIN)/python -m deploy.local down

clean:  ## everything that was made here (not the tools under ~/.cache)
	-test ! -x $(BIN)/python || $(BIN)/python -m deploy.local down
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
