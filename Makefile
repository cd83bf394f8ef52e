# Everything runs in .venv, which the targets make and fill by themselves. `make help` lists them.

VENV ?= .venv
PYTHON ?=
ARGS ?=
DIR ?=
SECONDS ?= 60
INPUT ?=
# Processes that the tests which measure nothing are spread over: one more than cores, for half of the time they wait.
JOBS ?= $(shell n=$$(nproc); echo $$((n < 8 ? n + 1 : 8)))

PY := $(VENV)/bin/python
CORE := $(wildcard omq/_core/*.p[yx][xd] omq/_core/*.h omq/_core/*/*.p[yx][xd])
# What a copy of the tree needs to be built and tested apart from this one.
COPIED := pyproject.toml setup.py MANIFEST.in README.md LICENSE Makefile .ci omq tests bench docs

# Whatever environment is active outside has no say here. Nor has one that keeps no bytecode: the tests start Python a
# thousand times, and each would compile the package anew.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE
export DIR INPUT PIP_NO_INPUT := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP := $(PY) -m pip --require-virtualenv install --quiet

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo demo-broker demo-goby demo-pzq demo-spark test test-all test-faults test-pythons test-lowest lint bench bench-broker soak test-sanitize test-races test-debug coverage fuzz protobuf clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.demo $(VENV)/.core  ## stream files through worker processes, beside pyzmq (DIR=... for your own)
	@$(PY) docs/examples/demo.py $${DIR:+--dir "$$DIR"} $(ARGS)

demo-broker: $(VENV)/.broker $(VENV)/.core  ## a feed into a topic, replayed while its broker is killed (DIR=... for your own files)
	@$(PY) docs/examples/demo_broker.py $${DIR:+--dir "$$DIR"} $(ARGS)

demo-goby: $(VENV)/.goby $(VENV)/.core  ## a vehicle, a logger and a live view on a Goby bus, played once more from the log
	@$(PY) docs/examples/demo_goby.py $(ARGS)

demo-pzq: $(VENV)/.broker $(VENV)/.core  ## files through three nodes that replicate, their owner killed in the middle (DIR=... for your own files)
	@$(PY) docs/examples/demo_pzq.py $${DIR:+--dir "$$DIR"} $(ARGS)

demo-spark: java $(VENV)/.spark $(VENV)/.core  ## ticks of a topic into bars of another one while a worker is killed, then files (INPUT=ticks.csv, DIR=...)
	@$(PY) docs/examples/demo_spark.py $${INPUT:+--input "$$INPUT"} $${DIR:+--dir "$$DIR"} $(ARGS)

test: $(VENV)/.test $(VENV)/.core  ## lint, types, the core with its bounds checked, every test that is not slow (ARGS=... for pytest)
	@checked=0; $(if $(ARGS),,{ $(checked-core); } || checked=$$?;) \
	( $(call lint-and-pytest,not slow and not fault) ) && test $$checked = 0

test-all: $(VENV)/.test $(VENV)/.core  ## the same with the slow tests and more examples, then other Pythons, then the lowest dependencies
	@$(call lint-and-pytest,not fault,--hypothesis-profile=long)
	@$(MAKE) --no-print-directory test-pythons
	@$(MAKE) --no-print-directory test-lowest

# In a copy of the tree with an environment of its own, which stays for the next time.
test-lowest: $(VENV)/.test  ## make test with the lowest version of each dependency that pyproject.toml allows
	@mkdir -p build/lowest && \
	tar -cf - --exclude='*.so' --exclude='omq/_core/*.c' --exclude='__pycache__' $(COPIED) | tar -xf - -C build/lowest && \
	$(PY) .ci/lowest_versions.py > build/lowest/constraints.txt && cat build/lowest/constraints.txt && \
	PIP_CONSTRAINT="$(CURDIR)/build/lowest/constraints.txt" $(MAKE) --no-print-directory -C build/lowest test

# Each in a copy of the tree with an environment of its own, which stay for the next time.
test-pythons: $(VENV)/.test  ## make test with every other Python that is installed (3.11 or newer)
	@failed=; ours=$$($(PY) -c '$(version)'); \
	for python in $$(sh .ci/find-python all); do \
	  version=$$("$$python" -c '$(version)'); test "$$version" != "$$ours" || continue; \
	  mkdir -p build/python$$version && \
	  tar -cf - --exclude='*.so' --exclude='omq/_core/*.c' --exclude='__pycache__' $(COPIED) | tar -xf - -C build/python$$version && \
	  echo "Python $$version in build/python$$version" && \
	  $(MAKE) --no-print-directory -C build/python$$version PYTHON="$$python" test || failed="$$failed $$version"; \
	done; \
	test -z "$$failed" || { echo "the tests failed with Python$$failed" >&2; exit 1; }
version := import sys; print("%d.%d" % sys.version_info[:2])

lint: $(VENV)/.test $(VENV)/.core  ## ruff and mypy
	@failed=0; \
	$(PY) -m ruff check . || failed=1; \
	$(PY) -m ruff format --check . || failed=1; \
	$(PY) -m mypy || failed=1; \
	exit $$failed

bench: $(VENV)/.test $(VENV)/.core  ## measure omq and its peers (ARGS=... for what and how)
	@$(PY) -m bench $(ARGS)

bench-broker: $(VENV)/.test $(VENV)/.core  ## omq's broker beside NATS, Redis and RabbitMQ (ARGS=... for what and how)
	@$(PY) -m bench.broker.install
	@$(PY) -m bench.broker $(ARGS)

# Kills at random, SEEDS times, and at each call that writes; strace spoils the calls, and must be there for that.
test-faults: $(VENV)/.test $(VENV)/.core  ## what is acknowledged outlives kills and failing disks (SEEDS=200)
	@OMQ_FAULT_SEEDS=$(or $(SEEDS),200) $(PY) -m pytest -n $(JOBS) -m fault tests $(ARGS)

soak: $(VENV)/.test $(VENV)/.core  ## peers come and go for a long time; memory and descriptors stay flat (MINUTES=10)
	@$(PY) -m tests.soak.soak --minutes $(or $(MINUTES),10) $(ARGS)

# AddressSanitizer's reports go to files, so that no captured or discarded output hides one of a child process.
# UBSan of gcc only knows standard error: hence --capture=sys, and a look at what came out.
test-sanitize: $(VENV)/.test $(VENV)/.core  ## unit and property tests under AddressSanitizer and UBSan
	@$(call copied-build,sanitize,OMQ_SANITIZE)
	@$(call in-copy,sanitize) && \
	asan=$$(gcc -print-file-name=libasan.so) && cxx=$$(gcc -print-file-name=libstdc++.so.6) && \
	case $$asan in /*) ;; *) echo "make: gcc has no AddressSanitizer here (libasan.so is missing)" >&2; exit 1;; esac; \
	case $$cxx in /*) ;; *) cxx=;; esac; \
	{ LD_PRELOAD="$$asan $$cxx" PYTHONMALLOC=malloc UBSAN_OPTIONS=print_stacktrace=1 \
	  ASAN_OPTIONS="detect_leaks=0:log_path=$$PWD/report" \
	  $$python -m pytest -p no:cacheprovider --capture=sys -o timeout=300 tests/unit tests/property $(ARGS); \
	  echo $$? > status; } 2>&1 | tee log; \
	failed=$$(cat status); \
	for report in report.*; do \
	  if test -e "$$report"; then cat "$$report" >&2; failed=1; fi; \
	done; \
	if grep -q "runtime error: " log; then failed=1; fi; \
	test "$$failed" = 0 || echo "make: test-sanitize failed; the output is in $$PWD/log, reports beside it" >&2; \
	exit $$failed

# Python's own locks are seen; what libraries do that were not built so is not. Everything takes ten times as long, so
# that nothing can be said about tails; and an owner so slow is taken to be away, so that frames are read ahead of it.
test-races: $(VENV)/.test $(VENV)/.core  ## the tests with threads under ThreadSanitizer
	@$(call copied-build,races,OMQ_RACES)
	@$(call in-copy,races) && \
	tsan=$$(gcc -print-file-name=libtsan.so) && \
	case $$tsan in /*) ;; *) echo "make: gcc has no ThreadSanitizer here (libtsan.so is missing)" >&2; exit 1;; esac; \
	failed=0; \
	LD_PRELOAD="$$tsan" TSAN_OPTIONS="suppressions=$$PWD/tests/races.txt history_size=4 log_path=$$PWD/report" \
	  $$python -m pytest -p no:cacheprovider -o timeout=300 -m "not slow" -k 'not tails and not most_frames_take_no_memory' $(or $(ARGS),tests/unit/blocking) || failed=1; \
	for report in report.*; do \
	  if test -e "$$report"; then cat "$$report" >&2; failed=1; fi; \
	done; \
	exit $$failed

# With clang: the core is built for libFuzzer, with sanitizers, and atheris brings their runtime. Half of the time Python
# is looked at too, half the core alone, which is much quicker. Without clang: guided by coverage in the usual build, then
# varied by chance in the one of gcc's sanitizers. Findings are left in build/, counts in build/fuzz-count.json.
fuzz: $(VENV)/.test $(VENV)/.core  ## fuzz the parsers under sanitizers, guided by coverage (SECONDS=60)
	@$(PIP) 'atheris>=3' && mkdir -p build/found
	@if printf 'int main(void){return 0;}' | clang -fsanitize=address,undefined -xc -o build/probe - 2>build/probe.log; \
	  then $(call fuzz-guided); \
	  else cat build/probe.log >&2; \
	    echo "make: no clang with sanitizers here (apt-get install clang libclang-rt-dev): C is fuzzed without guidance" >&2; \
	    $(call fuzz-apart); \
	  fi

test-debug: $(VENV)/.test $(VENV)/.core  ## unit tests with the core's invariants checked
	@$(kept-build)
	@$(call in-copy,debug) && $$python -m pytest -p no:cacheprovider tests/unit $(ARGS)

# Left out are tests that end tracing, or whose signal handlers raise, which in the midst of coverage.py ends it, too; those
# that leave it no memory; and some that say how fast something is. Others may fail for that: here only the lines count, and
# a run that dies has none. The floor is 2 % below what was measured.
UNTRACED := core/test_atomic core/test_memory engine/test_iothread engine/test_shortage blocking/test_blocking_handlers

coverage: $(VENV)/.test $(VENV)/.core  ## the lines that unit and property tests reach, the core's too (FLOOR=90 percent)
	@$(PIP) 'coverage>=7.10'
	@$(call copied-build,coverage,OMQ_COVERAGE)
	@$(call in-copy,coverage) && \
	{ $$python -m coverage run -m pytest -p no:cacheprovider -o timeout=300 -m "not slow and not alone" \
	    -k "not tails and not short and not few_system_calls" $(UNTRACED:%=--ignore=tests/unit/%.py) \
	    tests/unit tests/property $(ARGS) || true; } && \
	$$python -m coverage html --quiet && echo "line by line: $$PWD/html/index.html" && \
	$$python -m coverage report --skip-covered --fail-under=$(or $(FLOOR),90)

# Most of what AddressSanitizer does by default for each allocation helps to understand a finding, not to find it: a finding
# is run again without these options.
define fuzz-guided
( $(call copied-build,fuzz,OMQ_FUZZ) ) && \
$(call in-copy,fuzz) && \
site=$$($$python -c 'import atheris; print(atheris.path())') && \
for guide in all core; do \
  FUZZ_GUIDE=$$guide FUZZ_COUNT=../fuzz-count.json PYTHONMALLOC=malloc UBSAN_OPTIONS=print_stacktrace=1 \
  LD_PRELOAD="$$site/asan_with_fuzzer.so $$(gcc -print-file-name=libstdc++.so.6)" \
  ASAN_OPTIONS=detect_leaks=0:malloc_context_size=1:quarantine_size_mb=1:thread_local_quarantine_size_kb=64:max_malloc_fill_size=0 \
  $$python tests/fuzz/fuzz_zmtp.py ../found $(CURDIR)/tests/fuzz/corpus -max_total_time=$$(( ($(SECONDS) + 1) / 2 )) \
    -max_len=1024 -timeout=5 -rss_limit_mb=2048 -detect_leaks=0 -trace_malloc=0 -malloc_limit_mb=0 \
    -entropic_scale_per_exec_time=1 -artifact_prefix=../ -verbosity=1 || exit 1; \
done; \
echo "inputs for each parser:" && cat ../fuzz-count.json
endef

define fuzz-apart
PYTHONPATH=. $(PY) tests/fuzz/fuzz_zmtp.py build/found tests/fuzz/corpus -timeout=5 -rss_limit_mb=2048 \
  -max_total_time=$$(( ($(SECONDS) + 1) / 2 )) -artifact_prefix=build/ -verbosity=1 && \
( $(call copied-build,sanitize,OMQ_SANITIZE) ) && \
$(call in-copy,sanitize) && \
LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" PYTHONMALLOC=malloc \
  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
  $$python tests/fuzz/mutate.py tests/fuzz/corpus $$(( ($(SECONDS) + 1) / 2 ))
endef

# The compiler is an old one: what it makes can be loaded by every protobuf from 4.22 on.
protobuf: venv  ## make the modules of omq/goby/protobuf and docs/examples anew from their definitions
	@$(PY) -m venv build/protobuf && build/protobuf/bin/pip install --quiet 'grpcio-tools==1.62.3' 'setuptools<81'
	@build/protobuf/bin/python omq/goby/protobuf/generate.py
	@build/protobuf/bin/python -m grpc_tools.protoc -Idocs/examples --python_out=docs/examples --pyi_out=docs/examples navigation.proto

clean:  ## remove everything that was built, .venv too
	rm -rf $(VENV) build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks *.egg-info
	find omq tests bench docs -name __pycache__ -type d -prune -exec rm -rf {} +
	find omq/_core -name '*.c' -o -name '*.so' -o -name '*.html' -o -name '*.pyi' | xargs rm -f

# A failing lint does not hide what the tests say; either fails the target. What measures time, or counts what the whole
# machine has, runs alone, after all the rest. ARGS may choose anything: that runs in one process.
define lint-and-pytest
lint=0; $(MAKE) --no-print-directory lint || lint=$$?; \
test $$lint = 0 || echo "lint failed, see above; the tests run all the same"; \
tests=0; beside=0; unsteady=0; \
$(if $(ARGS), \
  $(PY) -m pytest $(2) -m "$(1)" $(ARGS) || tests=$$?;, \
  $(PY) -m pytest $(2) -n $(JOBS) -m "($(1)) and not alone" || beside=$$?; \
  if grep -qs '^threads' .cache/crash-*; then $(PY) -m tests.crash_report >&2; \
  elif test $$beside = 1; then \
    echo "what failed beside others is tried once more, by itself:"; \
    $(PY) -m pytest $(2) -m "($(1)) and not alone" --last-failed --last-failed-no-failures none --maxfail 1 && \
    { beside=0; unsteady=1; }; fi; \
  $(PY) -m pytest $(2) -m "($(1)) and alone" || tests=$$?;) \
if test $$tests -ge 128; then \
  echo "the interpreter died of signal $$((tests - 128)):" >&2; $(PY) -m tests.crash_report >&2; fi; \
test $$beside = 0 || echo "tests that ran beside others failed, see above" >&2; \
test $$unsteady = 0 || echo "UNSTEADY: tests failed beside others and passed by themselves, see above; they want mending" >&2; \
test $$lint = 0 || echo "lint failed, see the top" >&2; \
exit $$((lint ? lint : beside ? beside : tests))
endef

CHECKED := -m "not slow and not alone" tests/unit/core tests/unit/routing tests/unit/blocking

# Indexes of the core are checked in this build, and its invariants: what writes beyond an end elsewhere raises here.
define checked-core
( $(kept-build) ) && \
( $(call in-copy,debug) && { $$python -m pytest -q -n $(JOBS) $(CHECKED) || \
  { test $$? = 1 && ! grep -qs '^threads' .cache/crash-* && \
    echo "what failed beside others is tried once more, by itself:" && \
    $$python -m pytest -q --last-failed --last-failed-no-failures none --maxfail 1 $(CHECKED) && \
    echo "UNSTEADY: tests failed beside others and passed by themselves, see above; they want mending" >&2; }; } ) || \
{ echo "the core with its bounds checked failed, see above; the other tests run all the same" >&2; false; }
endef

# A build with other switches happens in build/<name>, so that its modules never stand among the usual ones.
define copied-build
rm -rf build/$(1) && mkdir -p build/$(1) && \
tar -cf - --exclude='*.so' --exclude='omq/_core/*.c' --exclude='__pycache__' $(wildcard $(COPIED)) | tar -xf - -C build/$(1) && \
echo "building with $(2)=1 in build/$(1)" && \
cd build/$(1) && $(2)=1 "$(abspath $(PY))" setup.py --quiet build_ext --inplace
endef

# The build with the core's invariants checked; what was compiled stays for as long as that would come out the same.
define kept-build
made=$$( { $(PY) -VV; $${CC:-cc} --version; echo "$$CFLAGS"; $(PY) -m pip freeze --exclude-editable | grep -i '^cython='; \
  sha256sum Makefile setup.py $(CORE); } 2>&1 | sha256sum) && \
if test "$$made" = "$$(cat build/debug/.made 2>/dev/null)"; then \
  find build/debug -type f ! -name '*.so' ! -name '*.pyc' ! -name .made -delete && \
  tar -cf - --exclude='*.so' --exclude='omq/_core/*.c' --exclude='__pycache__' $(wildcard $(COPIED)) | tar -xf - -C build/debug; \
else \
  ( $(call copied-build,debug,OMQ_DEBUG) ) && echo "$$made" > build/debug/.made; \
fi
endef

define in-copy
cd build/$(1) && python="$(abspath $(PY))" && export PYTHONPATH="$$PWD" && \
$$python -c 'import importlib.util, os; at = os.path.abspath(importlib.util.find_spec("omq").origin); assert at == os.path.join(os.getcwd(), "omq", "__init__.py"), at'
endef

# Before anything is installed for it.
.PHONY: java
java:
	@python=$$(PYTHON="$(PYTHON)" sh .ci/find-python) && "$$python" omq/spark/java.py

# The environment. One that was moved, or whose interpreter is gone, is made anew; one that a hand made is taken.
MADE := $(shell $(PY) -c 'import pip' 2>/dev/null && cat $(VENV)/.made 2>/dev/null)
NEW := $(if $(MADE),$(if $(filter-out $(CURDIR),$(MADE)),venv),venv)

.PHONY: venv
venv:
	@if test ! -e $(VENV)/.made && \
	  $(PY) -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	  echo "using the $(VENV) that is here"; \
	else \
	  python=$$(PYTHON="$(PYTHON)" sh .ci/find-python) || exit 1; \
	  echo "making $(VENV) with $$python"; \
	  rm -f $(VENV)/.made; \
	  "$$python" -m venv --clear $(VENV) || exit 1; \
	fi; \
	echo "$(CURDIR)" > $(VENV)/.made

# $(1): the extra. setup.py may have changed how the core is compiled, which Cython's own check does not see.
define install
	@echo "installing omq with its dependencies ([$(1)]) into $(VENV)"
	@find omq/_core -name '*.c' -delete
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  > $(VENV)/build-requires.txt
	@$(PIP) -r $(VENV)/build-requires.txt
	@$(PIP) --no-build-isolation --editable ".[$(1)]"
endef

$(VENV)/.demo: pyproject.toml setup.py $(NEW)
	$(call install,demo)
	@touch $@

COMMA := ,
$(VENV)/.broker: pyproject.toml setup.py $(NEW)
	$(call install,broker$(COMMA)cli)
	@touch $@

$(VENV)/.goby: pyproject.toml setup.py $(NEW)
	$(call install,goby$(COMMA)cli)
	@touch $@

$(VENV)/.spark: pyproject.toml setup.py $(NEW)
	$(call install,spark$(COMMA)broker)
	@touch $@

$(VENV)/.test: pyproject.toml setup.py $(NEW)
	$(call install,test)
	@touch $(VENV)/.demo $(VENV)/.broker $(VENV)/.goby $(VENV)/.spark $@

$(VENV)/.core: $(CORE) omq/_core/stubs.py $(NEW) | $(if $(filter demo,$(MAKECMDGOALS)),$(VENV)/.demo,$(if $(filter demo-broker demo-pzq,$(MAKECMDGOALS)),$(VENV)/.broker,$(if $(filter demo-goby,$(MAKECMDGOALS)),$(VENV)/.goby,$(if $(filter demo-spark,$(MAKECMDGOALS)),$(VENV)/.spark,$(VENV)/.test))))
	@$(PY) setup.py --quiet build_ext --inplace
	@touch $@
