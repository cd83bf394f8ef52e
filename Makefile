# Everything runs in .venv, which each target creates and fills by itself. `make help` lists the targets.
VENV ?= .venv
PY := $(VENV)/bin/python
TOOL := $(PY) -m tests.tools
USABLE := import sys; assert sys.version_info >= (3, 11); print(sys.executable)
JOBS_OPTION = $(if $(JOBS),--jobs $(JOBS))

# No environment that is active outside decides what runs here. Tests start Python often, and need its bytecode cache.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE
export DIR INPUT
.NOTPARALLEL:
.PHONY: help demo demo-broker demo-goby demo-pzq demo-replicated demo-spark test test-all test-lowest test-pythons \
  test-pyzmq lint bench bench-broker bench-replicated test-faults soak test-sanitize test-races fuzz test-debug \
  coverage docs wheels protobuf clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

# The environment with what a kind of target needs, and the compiled core. Its own Python does this once it has one.
READY := ready-venv ready-demo ready-broker ready-goby ready-replicated ready-spark ready-test
.PHONY: $(READY)
$(READY): ready-%:
	@python=$$($(PY) -c '$(USABLE)' 2>/dev/null || PYTHON="$(PYTHON)" sh .ci/find-python) && \
	PYTHON="$(PYTHON)" "$$python" tests/tools/environment.py --venv "$(VENV)" $*

demo: ready-demo  ## stream files through worker processes, next to pyzmq (DIR=... for your own)
demo-broker: ready-broker  ## a feed into a topic, replayed while its broker is killed (DIR=... for your own files)
demo-goby: ready-goby  ## a vehicle, a logger and a live view on a Goby bus, replayed from the log
demo-pzq: ready-broker  ## files through three nodes that replicate, their owner killed in the middle (DIR=... for your own files)
demo-replicated: ready-replicated  ## three brokers and three NATS servers; the machine of the leader is lost and replaced
demo-spark: ready-spark  ## ticks of a topic into bars of another one while a worker is killed, then files (INPUT=ticks.csv, DIR=..., ARGS=--replicated)

demo demo-broker demo-goby demo-pzq demo-replicated demo-spark:
	@$(PY) docs/examples/$(subst -,_,$@).py $${INPUT:+--input "$$INPUT"} $${DIR:+--dir "$$DIR"} $(ARGS)

test: ready-test  ## lint, types, the core with its bounds checked, every test that is not slow (ARGS=... for pytest, JOBS=...)
	@$(TOOL).run_tests $(JOBS_OPTION) -- $(ARGS)

test-all: ready-test  ## the same with the slow tests and more examples, then other Pythons, then the lowest dependencies
	@$(TOOL).run_tests --slow $(JOBS_OPTION) -- $(ARGS)
	@$(TOOL).other_pythons -- $(ARGS)
	@$(TOOL).lowest_versions -- $(ARGS)

test-lowest: ready-test  ## make test with the lowest version of each dependency that pyproject.toml allows
	@$(TOOL).lowest_versions -- $(ARGS)

test-pyzmq: ready-test  ## pyzmq's own tests with pyzmq, and with omq.zmq; a table of both (ARGS="test_poll.py -k NAME")
	@$(TOOL).pyzmq_tests --check $(ARGS)

test-pythons: ready-test  ## make test with every other Python that is installed (3.11 or newer)
	@$(TOOL).other_pythons -- $(ARGS)

lint: ready-test  ## ruff and mypy
	@$(TOOL).run_tests --only lint types

bench: ready-test  ## measure omq and its peers (ARGS=... for what and how)
	@$(PY) -m bench $(ARGS)

bench-broker: ready-test  ## omq's broker next to NATS, Redis and RabbitMQ (ARGS=... for what and how)
	@$(PY) -m bench.broker.install
	@$(PY) -m bench.broker $(ARGS)

bench-replicated: ready-test  ## a cluster of brokers next to nats-py on the same servers (ARGS=... for what and how)
	@$(PY) -m bench.replicated $(ARGS)

test-faults: ready-test  ## acknowledged messages outlive kills and failing disks; strace fails the calls (SEEDS=200)
	@OMQ_FAULT_SEEDS=$(or $(SEEDS),200) $(TOOL).run_tests --only fault $(JOBS_OPTION) -- $(ARGS)

soak: ready-test  ## peers come and go for a long time; memory and descriptors stay flat (MINUTES=10)
	@$(PY) -m tests.soak.soak --minutes $(or $(MINUTES),10) $(ARGS)

test-sanitize: ready-test  ## unit and property tests under AddressSanitizer and UBSan
	@$(TOOL).sanitize -- $(ARGS)

test-races: ready-test  ## the tests with threads under ThreadSanitizer
	@$(TOOL).thread_sanitizer -- $(ARGS)

fuzz: ready-test  ## fuzz the parsers under sanitizers, guided by coverage (SECONDS=60)
	@$(TOOL).fuzz --seconds $(or $(SECONDS),60)

test-debug: ready-test  ## unit tests with the core's invariants checked
	@$(TOOL).run_tests --only debug -- $(ARGS)

coverage: ready-test  ## the lines that unit and property tests reach, the core's too (FLOOR=90 percent)
	@$(TOOL).measure_coverage --floor $(or $(FLOOR),90) -- $(ARGS)

docs: ready-test  ## build the site in build/site, check its links, run every code block and example (ARGS=--external for links to other hosts)
	@$(TOOL).build_site $(ARGS)

wheels: ready-test  ## the archives of a release, and their checks, with each Python that is installed (ARGS="--python python3.12")
	@$(TOOL).wheels $(ARGS)

protobuf: ready-venv  ## generate the modules of omq/goby/protobuf and docs/examples from their definitions
	@$(TOOL).generate_protobuf

clean:  ## remove everything that was built, .venv too
	rm -rf $(VENV) build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks *.egg-info
	find omq tests bench docs -name __pycache__ -type d -prune -exec rm -rf {} +
	find omq/_core -name '*.c' -o -name '*.so' -o -name '*.html' -o -name '*.pyi' | xargs rm -f
