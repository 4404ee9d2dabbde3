# Every target sets up what it needs, from python3, pip and make alone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
SUPPLY := .venv-supply
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# The development environment runs the source; a wheel is compiled where a C compiler is there (hatch_build.py).
export ISOCHRONE_COMPILE ?= 0
# Every process that a test, a demo or a bench starts reads our modules as bytecode, also where the caller's environment
# says that none is written: compiling them takes a third of a worker's start.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help setup demo demo-policies test test-system test-attacks test-compiled test-gpu test-peers test-long test-lowest compiled lint format docs bench bench-realistic bench-deadlines bench-connections bench-memory bench-autoscaling bench-trees bench-images bench-activation-cache bench-partitioning bench-python-models \
	bench-gateway bench-antagonists bench-overload bench-decisions bench-rollouts bench-faults bench-canaries bench-applies \
	bench-ray bench-ray-serve bench-gpu bench-gpu-serve bench-gpu-two-tower bench-gpu-memory bench-gpu-generation \
	bench-gpu-green-contexts bench-security soak peers models clean fuzz \
	setup-locked lock sbom audit

help:
	@echo "make demo         a fleet under load: versions change while it runs; ends with a summary of all requests"
	@echo "make demo-policies  a gateway and three workers: policies side by side, a worker killed"
	@echo "make test         unit and property tests; ARGS passes arguments to pytest"
	@echo "make test-system  real processes: workers, gateways and fleets, with stock tritonclient and every command of the docs"
	@echo "make test-attacks  attacks on real workers, gateways and controllers, with a table of what was tried"
	@echo "make test-peers   the same worker against real Triton, grpc-js, curl, nghttp and h2load"
	@echo "make test-long    the long tests: fleets under faults, divided models over bad links, ranks that die"
	@echo "make test-compiled  those of the parts with hot modules, compiled; needs a C compiler"
	@echo "make test-gpu     what needs a GPU, with PYTHON's own torch; fails where no GPU can be used"
	@echo "make test-lowest  the tests with the lowest version of every dependency that pyproject.toml allows"
	@echo "make fuzz         fuzzes the parsers of bytes that strangers send; ARGS='--seconds 60 TARGET', docs/fuzzing.md"
	@echo "make lint         ruff, mypy --strict, import-linter"
	@echo "make docs         the generated pages: references of fleet.yaml and the commands, tritonserver's flags, the schema;"
	@echo "                  the rendered examples in deploy/"
	@echo "make bench        our worker beside its peers in one alternating run; also bench-realistic, bench-deadlines,"
	@echo "                  bench-connections, bench-memory, bench-trees, bench-images, bench-activation-cache,"
	@echo "                  bench-partitioning, bench-python-models; of security bench-security; of the gateway"
	@echo "                  bench-gateway, bench-antagonists, bench-overload, bench-decisions; of the control plane"
	@echo "                  bench-rollouts, bench-faults, bench-canaries, bench-applies, bench-autoscaling; on Ray bench-ray,"
	@echo "                  bench-ray-serve; on a GPU bench-gpu, or its parts bench-gpu-serve, bench-gpu-two-tower,"
	@echo "                  bench-gpu-memory, bench-gpu-generation, bench-gpu-green-contexts: bench/README.md says what each shows"
	@echo "make soak         half an hour of large answers and requests; checks for hangs and bounded memory"
	@echo "make sbom         lists the packages of the images and of the development environment: CycloneDX, in build/sbom"
	@echo "make audit        known vulnerabilities of what locks/ names; ARGS='--database all.zip' asks a copy, without a network"
	@echo "make lock         writes locks/: exact versions with hashes; ARGS=--keep changes only what pyproject.toml requires"
	@echo "make setup-locked the development environment from locks/dev.txt, whose hashes pip checks"
	@echo "make setup        the development environment only;  make peers: the outside servers only"

# An old pip's resolver can search for minutes over the gRPC packages' pins: a current one takes seconds.
# Debian splits venv from python3; virtualenv from PyPI stands in where it is missing.
new_venv = $(PYTHON) -m venv $(1) || { rm -rf $(1); $(PYTHON) -m pip install --user --break-system-packages virtualenv && $(PYTHON) -m virtualenv $(1); }

$(BIN)/python:
	$(call new_venv,$(VENV))
	$(BIN)/python -m pip install -q --upgrade pip

# The demo needs the package alone, so its first run takes seconds, not minutes. Writing the sample models needs onnx, too.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -e .
	@touch $@

$(VENV)/.models: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -e '.[onnx]'
	@touch $@ $(VENV)/.demo

# torch is pinned by number: a bare "torch" may pull gigabytes of CUDA libraries.
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q torch==2.13.0 || $(BIN)/python -m pip install -q 'torch>=2.6'
	$(BIN)/python -m pip install -q -e '.[dev,torch,generation]'
	@touch $@ $(VENV)/.models $(VENV)/.demo

setup: $(VENV)/.dev

# Wheels alone: building a source distribution would run code that is in no lock.
LOCKED := -m pip install -q --no-deps --require-hashes --only-binary :all:

# In place of `make setup`: the same tools and the same tests, with the versions that the lock names.
setup-locked: locks/dev.txt
	$(call new_venv,$(VENV))
	$(BIN)/python $(LOCKED) -r locks/dev.txt
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $(VENV)/.dev $(VENV)/.models $(VENV)/.demo

# Tools for what is installed, apart from it: the lists that they write name only what they are asked for.
$(SUPPLY)/.ready: locks/tools.txt
	$(call new_venv,$(SUPPLY))
	$(SUPPLY)/bin/python $(LOCKED) -r locks/tools.txt
	@touch $@

lock: $(SUPPLY)/.ready
	$(SUPPLY)/bin/python scripts/lock.py $(ARGS)

# SBOM_OF: another interpreter whose packages are to be listed, such as that of an image.
SBOM_OF ?= $(BIN)/python
IMAGE_LOCKS := $(patsubst locks/%.txt,%,$(wildcard locks/image*.txt))
CYCLONEDX = $(SUPPLY)/bin/python -W ignore -m cyclonedx_py
sbom: $(SUPPLY)/.ready | $(VENV)/.demo
	@mkdir -p build/sbom
	$(CYCLONEDX) environment $(SBOM_OF) --pyproject pyproject.toml --output-reproducible --validate -o build/sbom/environment.cdx.json
	$(foreach lock,$(IMAGE_LOCKS),$(CYCLONEDX) requirements locks/$(lock).txt --pyproject pyproject.toml \
		--output-reproducible --validate -o build/sbom/$(lock).cdx.json &&) true

audit: $(SUPPLY)/.ready
	$(SUPPLY)/bin/python scripts/audit.py $(ARGS)

models: $(VENV)/.models
	$(BIN)/python examples/build_models.py

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

demo-policies: models
	$(BIN)/python examples/policies_demo.py

# Three test processes: on two cores, many tests wait for a lease, a restart or a process's start, and leave a core idle.
TEST_PROCESSES ?= 3
# Those that start whole processes.
SYSTEM_TESTS := tests/system tests/attacks tests/multiprocess tests/in_process tests/bench_command $(wildcard tests/tracing/test_traced_*.py)
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal -o faulthandler_timeout=420 \
		$(addprefix --ignore=,$(SYSTEM_TESTS)) -m "not peers and not long and not gpu" $(ARGS)

# Apart, so that `make test` stays under ten minutes on two cores.
test-system: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal -o faulthandler_timeout=420 \
		-m "not peers and not long and not gpu" $(SYSTEM_TESTS) $(ARGS)

# The same tests against the compiled hot modules. The second build takes no time while nothing has changed.
compiled: $(VENV)/.dev
	$(BIN)/python scripts/compile_hot_modules.py build/compiled

# Those of the parts that have compiled modules; COMPILED_TESTS=tests runs all of them, with whole processes.
COMPILED_TESTS ?= $(addprefix tests/,wire protocol gateway worker observe compiling)
test-compiled: compiled
	PYTHONPATH=$(CURDIR)/build/compiled ISOCHRONE_TEST_COMPILED=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal \
		-o faulthandler_timeout=420 -m "not interpreted and not peers and not long and not gpu" $(COMPILED_TESTS) $(ARGS)

# What strangers and rogue callers try, with a table of it at the end; a part of test-system.
test-attacks: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/attacks $(ARGS)

# In the environment that PYTHON names: torch with CUDA is too large to be installed for the other targets. Where no GPU
# can be used the tests fail and say why; none is skipped.
test-gpu:
	PYTHONPATH=$(CURDIR)/src:$(CURDIR) $(PYTHON) -m pytest -m gpu tests/gpu $(ARGS)

test-lowest:
	$(PYTHON) scripts/test_lowest.py .venv-lowest $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config import-contracts.toml

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Tests fail while one of these files is out of date.
docs: $(VENV)/.dev
	$(BIN)/python -m isochrone.control.fleet.settings.schema docs/fleet.schema.json
	$(BIN)/python -m isochrone.cli.triton.page > docs/triton-flags.md
	$(BIN)/python scripts/fleet_reference.py docs/reference/fleet.md
	$(BIN)/python scripts/cli_reference.py docs/reference/cli.md
	$(BIN)/python scripts/render_examples.py deploy

# The outside servers have their own environment: their pins conflict with ours.
peers: $(PEERS)/.ready

$(PEERS)/.ready: scripts/setup_peers.sh
	PYTHON=$(PYTHON) bash scripts/setup_peers.sh $(PEERS)
	@touch $@

# Each of these starts a whole Ray cluster: alone, since two cores have no room for two.
RAY_TESTS := tests/peers/test_ray_cut_off.py tests/peers/test_ray_fleet.py
test-peers: $(VENV)/.dev $(PEERS)/.ready
	$(BIN)/python -m pytest -n 2 --dist loadfile -m peers tests/peers $(addprefix --ignore=,$(RAY_TESTS)) $(ARGS)
	$(BIN)/python -m pytest -m peers $(RAY_TESTS) $(ARGS)

# Whole fleets, restarts and leases: most of them wait. Before a release, and after a change to what they test.
test-long: $(VENV)/.dev $(SUPPLY)/.ready
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "long and not peers and not gpu" $(ARGS)

# atheris has no wheel for every platform; without it, fuzzing is plain mutation, which says so.
$(VENV)/.fuzz: pyproject.toml | $(VENV)/.dev
	$(BIN)/python -m pip install -q -e '.[fuzz]' || echo "atheris cannot be installed here"
	@touch $@

# ARGS='--seconds 60 TARGET …'; docs/fuzzing.md lists the targets.
fuzz: $(VENV)/.fuzz
	$(BIN)/python -m fuzz $(ARGS)

bench: $(VENV)/.dev $(PEERS)/.ready
	$(BIN)/python -m bench.worker $(ARGS)

bench-realistic: $(VENV)/.dev $(PEERS)/.ready
	$(BIN)/python -m bench.realistic $(ARGS)

# Half an hour: flow control as a model over 200,000 steps, then large bodies on real processes.
soak: $(VENV)/.dev
	$(BIN)/python -m pytest --hypothesis-profile=soak --timeout 1200 -s tests/wire/test_flow_model.py \
		tests/control/leader/test_planned_pools_come_to_rest.py
	$(BIN)/python -m bench.wire.large_bodies $(ARGS)

bench-deadlines: $(VENV)/.dev $(PEERS)/.ready
	$(BIN)/python -m bench.worker.deadlines $(ARGS)

bench-connections: $(VENV)/.dev
	$(BIN)/python -m bench.worker.connections $(ARGS)

bench-memory: $(VENV)/.dev
	$(BIN)/python -m bench.worker.memory $(ARGS)

bench-autoscaling: $(VENV)/.dev
	$(BIN)/python -m bench.autoscaling $(ARGS)

bench-trees: $(VENV)/.dev
	$(BIN)/python -m bench.worker.trees $(ARGS)

bench-images: $(VENV)/.dev
	$(BIN)/python -m bench.worker.image_pipeline $(ARGS)

bench-activation-cache: $(VENV)/.dev
	$(BIN)/python -m bench.activation_cache $(ARGS)

bench-partitioning: $(VENV)/.dev
	$(BIN)/python -m bench.partitioning $(ARGS)

bench-python-models: $(VENV)/.dev $(PEERS)/.ready
	$(BIN)/python -m bench.worker.python_models $(ARGS)

bench-gateway: $(VENV)/.dev $(PEERS)/.ready
	$(BIN)/python -m bench.gateway.hop $(ARGS)

bench-antagonists: $(VENV)/.dev $(PEERS)/.ready
	$(BIN)/python -m bench.gateway.antagonists $(ARGS)

bench-overload: $(VENV)/.dev
	$(BIN)/python -m bench.gateway.overload $(ARGS)

bench-decisions: $(VENV)/.dev
	$(BIN)/python -m bench.gateway.decisions $(ARGS)

bench-security: $(VENV)/.dev
	$(BIN)/python -m bench.security $(ARGS)

bench-rollouts: $(VENV)/.dev
	$(BIN)/python -m bench.control.rollouts $(ARGS)

bench-canaries: $(VENV)/.dev
	$(BIN)/python -m bench.control.canaries $(ARGS)

bench-applies: $(VENV)/.dev
	$(BIN)/python -m bench.control.applies $(ARGS)

bench-faults: $(VENV)/.dev $(PEERS)/.ready
	$(BIN)/python -m bench.control.faults --store sqlite $(ARGS)
	$(BIN)/python -m bench.control.faults --store etcd $(ARGS)

bench-ray: $(VENV)/.dev $(PEERS)/.ready
	$(BIN)/python -m bench.engines.ray_failures $(ARGS)

bench-ray-serve: $(VENV)/.dev $(PEERS)/.ready
	$(BIN)/python -m bench.engines.ray_serve $(ARGS)

# The interpreter that has torch with CUDA: not that of the development environment, which has torch for CPUs.
GPU_PYTHON ?= $(PYTHON)
# GPU_SOURCE=build/compiled: the compiled worker, built by "$(GPU_PYTHON) scripts/compile_hot_modules.py build/compiled".
GPU_SOURCE ?= src
GPU_BENCH = PYTHONPATH=$(CURDIR)/$(GPU_SOURCE):$(CURDIR) $(GPU_PYTHON) -m bench.gpu

bench-gpu:
	$(GPU_BENCH) $(ARGS)

bench-gpu-serve:
	$(GPU_BENCH).serve $(ARGS)

bench-gpu-two-tower:
	$(GPU_BENCH).two_tower $(ARGS)

bench-gpu-memory:
	$(GPU_BENCH).memory $(ARGS)

bench-gpu-generation:
	$(GPU_BENCH).generation $(ARGS)

bench-gpu-green-contexts:
	$(GPU_BENCH).green_contexts $(ARGS)

clean:
	rm -rf $(VENV) $(PEERS) $(SUPPLY) .venv-lowest build dist bench/results examples/models
