# `make help` lists the targets that people use (##), `make help-all` all (##, #:) below their headings (####). Everything runs in
# .venv: `make setup` makes it from the parts of requirements.lock that running Tessera needs; targets for work on it add the rest.

# The interpreter of .venv; none named: the fastest on the path (deploy/make_venv.py).
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
MAKE_VENV := $(or $(PYTHON),python3) deploy/make_venv.py
USER_READY := $(VENV)/.user-ready
USER_PARTS := service placement kubernetes client build local
READY := $(VENV)/.ready
CLIENTS_READY := build/clients/.ready
SEEDS ?= 100
# One more than there are processors, since many tests wait for servers.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# Those of whole platforms wait most of the time: for leases, alarms, restarts.
PLATFORM_WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 2)
FIRST ?= 1
CODE := schemas services tests docs deploy
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
IMAGES := admission queueing scheduler preemption reclamation binder projection notifier gateway gateway-logs client steps
IMAGE_FLAGS ?=
# Where `make steps` puts tessera-steps, in a folder per architecture; none named: this machine's, without a folder.
STEPS ?= build/steps
STEPS_ARCHITECTURES ?= amd64 arm64
GO := CGO_ENABLED=0 GOTOOLCHAIN=local GOWORK=off go
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
SERVICES := admission queueing scheduler preemption reclamation binder projection notifier gateway
export COMPOSE_PROFILES ?= sim

.DEFAULT_GOAL := help
.PHONY: help help-all setup fmt lint lint-steps types layers schemas figures docs steps check alerts prometheus chromium mpi dashboards dashboard-pictures screenshots unit test test-steps test-changed test-platforms test-kubernetes test-clients slurm test-slurm sim nightly damage mutants chaos oracle overload bad-input demo bench bench-engine bench-growth bench-kubernetes bench-steps bench-page up down logs images image-report container-engine test-containers compose-up compose-down compose-identities scale lock clean

#### Begin

help: ## list the targets that people use most
	@grep -hE '^[a-z-]+:.* ## ' $(MAKEFILE_LIST) | awk -F ':.* ## ' '{printf "  %-15s %s\n", $$1, $$2}'
	@echo; echo "The rest: make help-all"

help-all: #: list every target, by purpose
	@awk -F ':.* #[#:] ' '/^#### /{printf "\n%s\n", substr($$0, 6)} /^[a-z-]+( [a-z-]+)*:.* #[#:] /{printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(USER_READY) ## make .venv with what running Tessera needs, pinned by hash; targets for tests and tools add theirs

$(USER_READY): requirements.lock deploy/parts.toml pyproject.toml schemas/pyproject.toml
	@$(MAKE_VENV) $(VENV) $(PYTHON)
	@$(BIN)/python deploy/lock_of.py requirements.lock deploy/parts.toml $(USER_PARTS) > $(VENV)/user.lock
	@$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r $(VENV)/user.lock
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e schemas -e .
	@touch $(USER_READY)

$(READY): requirements.lock $(USER_READY)
	@echo "adding to $(VENV) what tests and tools need"
	@$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $(READY)

#### Code

fmt: $(READY) ## format the code and sort imports
	@$(BIN)/ruff check -q --fix $(CODE)
	@$(BIN)/ruff format -q $(CODE)

lint: $(READY) #: ruff: rules, banned calls, format
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: $(READY) #: mypy, strict
	$(BIN)/mypy

layers: $(READY) #: import contracts: who may import whom
	$(BIN)/lint-imports

schemas: $(READY) #: write what is generated: schemas/generated, the data of the chart, the tables of docs
	$(BIN)/python -m tessera_schemas.documents.generate schemas/generated
	$(BIN)/python deploy/make_chart.py
	$(BIN)/python -m docs.make_tables
	$(BIN)/python -m docs.make_openapi

figures: $(READY) #: how the code stands, as figures that may only get better
	@$(BIN)/python -m tests.project.house_figures

check: lint types layers figures lint-steps ## everything that needs no server: what CI runs first
	$(BIN)/python -m tessera_schemas.documents.generate --check schemas/generated
	$(BIN)/python deploy/make_chart.py --check
	$(BIN)/python -m docs.make_tables --check
	$(BIN)/python -m docs.make_openapi --check
	$(BIN)/pytest -q -n0 tests/unit/docs  # links, commands, settings and paths that the pages name

#### Docs

docs: $(READY) ## the documentation as a site in build/docs; links and anchors are checked, nothing loads from the network
	$(BIN)/sphinx-build -q -E -W --keep-going -c docs/site -b html . build/docs
	@echo "build/docs/index.html"

steps: ## build tessera-steps, which starts processes in the other pods of a run, for amd64 and arm64 (needs Go)
	@for architecture in $(or $(STEPS_ARCHITECTURES),""); do \
	  GOOS=linux GOARCH=$$architecture $(GO) build -C services/tessera_steps -buildvcs=false -trimpath -ldflags "-s -w" \
	    -o "$(abspath $(STEPS))/$$architecture/tessera-steps" . || exit 1; done

lint-steps: #: gofmt and go vet of tessera-steps, where there is Go
	@if ! command -v go >/dev/null; then echo "no go: services/tessera_steps is not looked at"; \
	elif [ -n "$$(gofmt -l services/tessera_steps)" ]; then gofmt -d services/tessera_steps; exit 1; else $(GO) vet -C services/tessera_steps ./...; fi

test-steps: #: tests of tessera-steps under Go's race detector (needs Go and a C compiler; minutes the first time)
	CGO_ENABLED=1 GOTOOLCHAIN=local GOWORK=off go test -C services/tessera_steps -race -count=1 ./...

alerts: $(READY) prometheus #: the alarms: promtool reads and tests deploy/alerts.yaml, and the docs' table says the same
	$(BIN)/pytest -q tests/unit/project/test_alerts.py

dashboards: $(READY) #: write Grafana's dashboards, deploy/dashboards/*.json, anew
	@$(BIN)/python deploy/make_dashboards.py

dashboard-pictures: $(READY) prometheus #: run a platform under load and draw the dashboards from it, docs/dashboards/*.svg (three minutes)
	@$(BIN)/python -m tests.e2e.dashboards docs/dashboards

#### Tests

# $(call debian,PACKAGES,PROGRAMS): the distribution's packages, unless all that they are asked for is there.
debian = @if [ -z "$$(for each in $(2); do command -v $$each >/dev/null || echo $$each; done)" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing the distribution's packages $(1), for tests"; \
	  install="apt-get install -y -qq --no-install-recommends $(1)"; export RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive; \
	  { $$install || { apt-get update -qq && $$install; }; } >/dev/null 2>&1 || echo "they could not be installed: tests that need them are skipped"; \
	else echo "no $(2), and no right to install them: tests that need them are skipped"; fi

prometheus chromium: #: Debian's package of that name, which tests of alarms or of the page run, where root may install it
	$(call debian,$@,$@)

mpi: $(USER_READY) #: Debian's packages of OpenMPI and MPICH, where root may install them, and on amd64 Intel's MPI of PyPI, for tests of launchers
	$(call debian,openmpi-bin libopenmpi-dev mpich libmpich-dev,mpicc.openmpi mpirun.openmpi mpicc.mpich mpirun.mpich)
	@[ "$$(uname -m)" != x86_64 ] || [ build/intel-mpi/.ready -nt tests/steps/intel_mpi.lock ] || { rm -rf build/intel-mpi && \
	  $(BIN)/pip install -q --disable-pip-version-check --ignore-installed --no-deps --require-hashes -r tests/steps/intel_mpi.lock \
	    --prefix build/intel-mpi && touch build/intel-mpi/.ready; } || echo "it could not be installed: tests that need it are skipped"

screenshots: $(READY) #: pictures of the page in a browser, into screenshots/ (needs `make chromium`)
	$(BIN)/python -m tests.e2e.screenshots screenshots

unit: $(READY) #: fast tests, no servers, about a minute
	$(BIN)/pytest -q -n auto tests/unit tests/property

test: $(READY) ## all tests but the heavier suites: real nats-server and Redis, some simulated seeds
	$(BIN)/pytest -q -n $(WORKERS) --no-loadscope-reorder --ignore=tests/kubernetes --ignore=tests/containers --ignore=tests/operations --ignore=tests/e2e --ignore=tests/clients --ignore=tests/beside_slurm tests

test-changed: $(READY) ## the tests that a change can break, by imports and names; since origin/main, or BASE=COMMIT
	@$(BIN)/python -m tests.changed --base "$(BASE)" --workers $(WORKERS)

test-platforms: $(READY) #: whole platforms of processes: kills, the page in a browser, alarms, runbooks, an upgrade (minutes)
	$(BIN)/pytest -q -n $(PLATFORM_WORKERS) --no-loadscope-reorder tests/operations tests/e2e

test-kubernetes: $(READY) #: the same on a real Kubernetes API server, built once from Go modules (minutes)
	@$(BIN)/python -m tests.kubernetes.binaries
	$(BIN)/pytest -q -n $(WORKERS) tests/kubernetes

$(CLIENTS_READY): tests/clients/requirements.lock
	@$(MAKE_VENV) build/clients $(PYTHON)
	@build/clients/bin/pip install -q --disable-pip-version-check --require-hashes -r tests/clients/requirements.lock
	@touch $(CLIENTS_READY)

SLURM := slurmctld slurmd slurm-client munge
slurm: #: Debian's packages of a real Slurm, unpacked into build/slurm and not installed, where root may download them
	@if [ -e build/slurm/root ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "unpacking the distribution's packages $(SLURM), for tests"; mkdir -p build/slurm/packages/partial; \
	  get="apt-get install -y -qq --download-only --no-install-recommends -o Dir::Cache::archives=$(abspath build/slurm/packages) $(SLURM)"; \
	  { $$get || { apt-get update -qq && $$get; }; } >/dev/null 2>&1 && \
	  for package in build/slurm/packages/*.deb; do dpkg -x "$$package" build/slurm/root || exit 1; done || echo "they are not to be had: tests that need them are skipped"; \
	else echo "no apt-get, or no right to use it: tests beside a real Slurm are skipped"; fi

test-slurm: $(READY) slurm #: short scripts by a real Slurm and by ours, with programs that note how they are called (a minute; needs Go)
	$(BIN)/pytest -q -rs -n0 tests/beside_slurm

test-clients: $(READY) $(CLIENTS_READY) #: six libraries that call sbatch, squeue and sacct, against a platform, and a Jupyter server (four minutes)
	$(BIN)/pytest -q -n0 tests/clients

sim: $(READY) #: simulate SEEDS seeds from FIRST on (make sim SEEDS=1000 FIRST=1)
	$(BIN)/python -m tessera.testkit.sim --seeds $(SEEDS) --first $(FIRST)

damage: $(READY) #: every kind of damage to a ledger, each mended by the commands of docs/operations.md (minutes)
	EVERY_TEST=1 $(BIN)/pytest -q -n0 tests/operations/test_runbooks.py

nightly: $(READY) ## all that explores (new seeds and faults, mutants, bad input, damage), with a report; PARTS="seeds chaos" MINUTES=30
	@$(BIN)/python -m tests.nightly --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED)) $(PARTS)

mutants: $(READY) #: break one promise after the other in a copy; the tests that must notice (minutes)
	@$(BIN)/python -m tests.mutants $(MUTANTS)

chaos: $(READY) #: real processes under load and faults for MINUTES (15), LAYOUT=single|compact, everything accounted for after each phase
	@$(if $(LAYOUT),TEST_LAYOUT=$(LAYOUT) )$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),15) $(if $(SEED),--seed $(SEED))

oracle: $(READY) #: 300 generated worlds of devices and claims for kube-scheduler and for Tessera (six minutes; WORLDS=, FIRST=)
	@$(BIN)/python -m tests.kubernetes.oracle --worlds $(or $(WORLDS),300) --first $(FIRST)

overload: $(READY) #: five times what a platform sustains, for MINUTES (5): goodput, back-pressure, memory, others' waits
	@$(BIN)/python -m tests.overload --minutes $(or $(MINUTES),5)

bad-input: $(READY) #: 100,000 spoilt cases of each command, 2,000 of each HTTP operation, flipped bytes of all that is stored (minutes)
	@$(BIN)/python -m tests.bad_input $(if $(SEED),--seed $(SEED))

#### Demo and benches

demo: $(USER_READY) ## the whole platform on this machine: 200 jobs, a kill in the middle, a verdict
	$(BIN)/tessera demo

bench: $(READY) ## latency, throughput, fold and restart, each beside its own floor
	$(BIN)/python -m tessera_lab.bench

bench-engine: $(READY) #: how well and how fast the engine packs, beside what was published (needs the trace)
	$(BIN)/python -m tessera_lab.bench_engine

bench-growth: $(READY) #: what a decision costs before hundreds of kinds of jobs, 1,000 to 50,000 nodes (half an hour)
	$(BIN)/python -m tessera_lab.bench --only kinds orders
	$(BIN)/python -m tessera_lab.bench --only live-kinds --nodes 1000
	$(BIN)/python -m tessera_lab.bench --only live-kinds --nodes 10000
	$(BIN)/python -m tessera_lab.bench --only live-kinds --nodes 50000 --kinds 100 --waiting 1000

bench-kubernetes: $(READY) #: from create to bound on a real API server, beside kube-scheduler and a bare client (minutes)
	$(BIN)/python -m tests.kubernetes.bench

bench-steps: $(READY) #: a step over 2 and 64 pods beside fork and exec, a runner's memory, the program's size (needs Go)
	@$(BIN)/python -m tests.steps.bench

bench-page: $(READY) #: the page on 1,000 nodes and 10,000 jobs in a browser: paint, updates, memory (needs `make chromium`)
	@$(BIN)/python -m tests.e2e.page_bench

#### Run and deploy

up: $(USER_READY) ## run the local platform in the foreground; Ctrl-C ends it
	$(BIN)/tessera up

down: ## end the platform that `make up` started in this directory
	@$(BIN)/python -m tessera_local.down

logs: #: follow the logs of the local platform
	@tail -n 20 -F .tessera/logs/*.log

images: ## build the container image of each service, `client` and `steps` (IMAGE_FLAGS go to docker build)
	@for name in $(IMAGES); do echo "tessera-$$name:$(VERSION)"; \
	  docker build -q $(IMAGE_FLAGS) -f deploy/Dockerfile --target $$name -t tessera-$$name:$(VERSION) \
	    --build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown) . >/dev/null || exit 1; done

digests: $(READY) #: pin images: deploy/digests.yaml for the chart, deploy/digests.env for compose; needs docker and the registries
	$(BIN)/python deploy/pin_images.py $(VERSION) $(IMAGES)

image-report: $(READY) #: sizes and contents of the images that were built, and an SBOM of each in build/sbom
	@$(BIN)/python deploy/image_report.py $(addsuffix :$(VERSION),$(addprefix tessera-,$(IMAGES)))

container-engine: #: Debian's packages that test-containers runs (docker.io and others), where root may install them
	$(call debian,docker.io docker-compose mmdebstrap containernetworking-plugins busybox-static,dockerd docker-compose mmdebstrap busybox /usr/lib/cni/bridge)

test-containers: $(READY) container-engine prometheus mpi #: images, docker-compose.yml, servers' permissions, jobs in real pods on real container engines (minutes)
	$(BIN)/python -m tests.containers.engine $(BIN)/pytest -q -rs -n 2 --no-loadscope-reorder tests/containers

compose-up: ## run docker-compose.yml in the background, with the simulated cluster (COMPOSE_PROFILES=sim,watch adds more)
	@$(COMPOSE) up -d

compose-down: ## end what compose-up started; its data stays
	@COMPOSE_PROFILES=sim,watch,cli $(COMPOSE) down

compose-identities: #: after `apply` or `token`: every part gets its credentials anew, and NATS reads its users again
	@$(COMPOSE) run --rm identities
	@$(COMPOSE) kill -s HUP nats && sleep 1 && $(COMPOSE) kill -s HUP nats  # what a new account imports comes with the second

scale: #: so many replicas of services: make scale admission=3 binder=2
	@$(COMPOSE) up -d --no-recreate $(foreach name,$(SERVICES) followers,$(if $($(name)),--scale $(name)=$($(name))))

#### Care

lock: $(READY) #: pin what requirements.in asks for, with hashes
	$(BIN)/pip-compile -q --generate-hashes --strip-extras --no-emit-index-url --no-emit-find-links --allow-unsafe -o requirements.lock requirements.in
	$(BIN)/pip-compile -q --generate-hashes --strip-extras --no-emit-index-url --no-emit-find-links --allow-unsafe -o tests/clients/requirements.lock tests/clients/requirements.in

clean: #: remove .venv, caches and the local platform's data
	rm -rf $(VENV) .tessera .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
