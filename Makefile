# Two commands do everything, set-up included:  make demo   make test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD_OPTIONS := -DRANNC_TESTS=ON
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

# What MPI needs on a laptop or in a container (more ranks than cores, running as root) is set by
# pyrannc.launch for everything that starts ranks.

.PHONY: demo docs extension test test-one-process test-ranks test-all test-all-one-process test-all-ranks test-export test-export-one-process test-hosts sanitize build check warnings stubs golden compatibility zoo tuning gpu-status gpu-test gpu-bench gpu-bench-memory gpu-bundle bench wheel clean
.DEFAULT_GOAL := build

$(VENV)/system: third_party/system-packages.sh
	third_party/system-packages.sh
	$(PYTHON) -m venv $(VENV)
	touch $@

# torch first: without it, another package would pull in its newest release.
$(VENV)/torch: third_party/torch.txt $(VENV)/system
	$(BIN)/pip install --quiet --disable-pip-version-check -r third_party/torch.txt setuptools wheel
	touch $@

$(VENV)/installed: pyproject.toml setup.py $(VENV)/torch
	PYRANNC_CMAKE_OPTIONS="$(BUILD_OPTIONS)" $(BIN)/pip install --quiet --disable-pip-version-check \
	  --no-build-isolation -e '.[test]'
	touch $@

# What users need: the extension and the planner's program.
extension: $(VENV)/installed
	@mkdir -p build
	@cmake -S . -B build -G Ninja -DPython3_EXECUTABLE=$(CURDIR)/$(BIN)/python $(BUILD_OPTIONS) >build/configure.log \
	  || { cat build/configure.log; exit 1; }
	@cmake --build build --target _C rannc-plan

build: extension
	@cmake --build build

# For machines without a compiler: one for this Python and this torch, in $(WHEELS).
WHEELS := build/wheels
wheel: $(VENV)/torch
	PYRANNC_WHEEL=1 $(BIN)/pip wheel . --quiet --disable-pip-version-check --no-build-isolation --no-deps -w $(WHEELS)

demo: extension
	$(BIN)/rannc run -n 4 examples/train_gpt.py

# What starts ranks waits for them much of its time, so it runs beside the rest. Each shows its output when it ends.
# With CHANGED=<commit> only what can notice the difference from that commit to the working tree.
test: build
ifdef CHANGED
	@$(BIN)/python tests/support/affected.py $(CHANGED) --into build/affected
	@! test -s build/affected/core || ctest --test-dir build --output-on-failure -j2 --quiet
else
	ctest --test-dir build --output-on-failure -j2 --quiet
endif
	@$(MAKE) --no-print-directory -j2 --output-sync=target test-one-process test-ranks

ifdef CHANGED
ONE_PROCESS := @build/affected/one_process
RANKS := @build/affected/ranks
else
ONE_PROCESS := tests/repo tests/python tests/torch tests/zoo
RANKS := tests/dist tests/hosts
endif

test-one-process:
	$(BIN)/pytest -q $(ONE_PROCESS) -m "not all and not hosts"

# A selection may have no ranks, or none that run in `make test`, which pytest says by 5.
test-ranks:
	$(if $(CHANGED),@! test -s build/affected/ranks ||) $(BIN)/pytest -q $(RANKS) -m "not all and not hosts" \
	  $(if $(CHANGED),|| test $$? -eq 5)

# The tests that capture models, by torch.export in a RaNNC that lacks torch's tracer. Half an hour.
test-export: build
	@PYTHONPATH=$(CURDIR)/tests/support/without_tracer $(MAKE) --no-print-directory -j2 --output-sync=target \
	  test-export-one-process test-ranks

test-export-one-process:
	$(BIN)/pytest -q tests/torch -m "not all"

# Several hosts, which are namespaces of this machine (root, Linux, openssh-server): at most 12 minutes.
test-hosts: build
	$(BIN)/pytest -q tests/hosts tests/python/support/test_hosts.py

# A browser for the pages of plans, a library with a trainer of its own, and the schemas of Kubernetes.
$(VENV)/test-all: third_party/browser.sh $(VENV)/installed
	third_party/browser.sh
	$(BIN)/pip install --quiet --disable-pip-version-check selenium trl kubernetes-validate
	touch $@

test-all: test $(VENV)/test-all
	@$(MAKE) --no-print-directory -j2 --output-sync=target test-all-one-process test-all-ranks

test-all-one-process:
	$(BIN)/pytest -q $(ONE_PROCESS) -m all

test-all-ranks:
	$(BIN)/pytest -q tests/dist -m all

# Builds the core and the extension with sanitizers: runs the core's tests, and looks for races in what runs a plan.
# Half an hour.
sanitize: build
	$(BIN)/pytest -q tests/repo/test_builds.py -m all -k sanitizer

# Layout and lint are tests: tests/repo/test_format.py.
check: warnings

# The pages of docs/ as a site, in build-docs/index.html; a warning, such as a link to no page, is an error.
docs: extension
	$(BIN)/pip install --quiet --disable-pip-version-check -r third_party/docs.txt
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build-docs

# Everything is built anew, because what is up to date does not repeat its warnings; the compiler cache
# does. The flags are those of `build`, so nearly all of it comes from there.
warnings: build
	@rm -rf build-check && mkdir build-check
	@cmake -S . -B build-check -G Ninja -DPython3_EXECUTABLE=$(CURDIR)/$(BIN)/python $(BUILD_OPTIONS) \
	  -DRANNC_BENCHMARKS=ON -DRANNC_PACKAGE=$(CURDIR)/build-check/package >build-check/configure.log \
	  || { cat build-check/configure.log; exit 1; }
	@cmake --build build-check >build-check/log 2>&1 || { cat build-check/log; exit 1; }
	@! grep --after-context=6 'warning:' build-check/log
	@rm -rf build-check

# Accepts the extension's signatures as they are now.
stubs: build
	$(BIN)/python tests/support/stubs.py

# Accepts the captured graphs of the models of the zoo as they are now.
golden: build
	PYTHONPATH=$(CURDIR) $(BIN)/python tests/support/golden_graphs.py

# Writes docs/zoo.md anew: every architecture under both front ends, for half an hour.
zoo: build
	rm -f build/zoo.jsonl
	PYTHONPATH=$(CURDIR):$(CURDIR)/tests/support $(BIN)/python tests/zoo/zoo.py build/zoo.jsonl
	PYTHONPATH=$(CURDIR):$(CURDIR)/tests/support $(BIN)/python tests/zoo/zoo.py build/zoo.jsonl --train
	PYTHONPATH=$(CURDIR):$(CURDIR)/tests/support $(BIN)/python tests/zoo/zoo.py build/zoo.jsonl --page

# Writes docs/compatibility.md anew from what two ranks report.
compatibility: build
	PYTHONPATH=$(CURDIR):$(CURDIR)/tests/support $(BIN)/python tests/support/compatibility.py

# Writes docs/tuning.md anew from the comments beside the numbers.
tuning:
	$(PYTHON) tests/support/tuning.py

# On a machine with a GPU, each within eight minutes, the first one first: leaves a file in docs/gpu, and the page
# docs/gpu-status.md written anew.
gpu-test gpu-bench gpu-bench-memory: build
	-$(BIN)/python tests/gpu/run.py $(if $(filter gpu-bench-memory,$@),memory,$(subst gpu-,,$@))
	$(BIN)/python tests/support/gpu_status.py

# A folder for a machine with a GPU and no network or MPI: the same tests, and what they need beside Python and torch.
gpu-bundle: build
	$(BIN)/python tests/gpu/bundle.py build-bundle

# Writes docs/gpu-status.md anew from the results in docs/gpu.
gpu-status:
	$(PYTHON) tests/support/gpu_status.py

# The planner's benchmarks need no torch. Those of the runtime compare with its peers, in about half an hour; their
# figures are also left in build-bench/*.json.
bench: build
	@cmake -S . -B build-bench -G Ninja -DRANNC_TORCH=OFF -DRANNC_BENCHMARKS=ON >/dev/null
	@cmake --build build-bench --target planner_bench stages_bench lower_bench
	build-bench/benchmarks/planner_bench
	build-bench/benchmarks/stages_bench
	build-bench/benchmarks/lower_bench
	$(BIN)/python benchmarks/plan_large_gpt.py
	@for model in tiny gpt head_heavy cnn; do \
	  $(BIN)/rannc run -n 1 benchmarks/runtime/peers.py --model $$model --json build-bench/$$model-1.json || exit 1; \
	done
	@for model in gpt head_heavy cnn; do \
	  $(BIN)/rannc run -n 2 benchmarks/runtime/peers.py --model $$model --json build-bench/$$model-2.json || exit 1; \
	done

clean:
	rm -rf build build-* pyrannc/_C*.so pyrannc/_build_info.py pyrannc/rannc-plan
