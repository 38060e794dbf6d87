# What the tests are built of, and how they are run. Included by the Makefile.

# Sources are in folders of a layer (tests/unit) or a family (tests/programs); what is built of them is in one folder.
unit_sources := $(wildcard tests/unit/*/test_*.c)
program_sources := $(wildcard tests/programs/*/*.c)
unit_names := $(basename $(notdir $(unit_sources)))
# These look at the tools, which have one thread: TSan has nothing to find there.
tool_unit_names := test_timeline $(basename $(notdir $(wildcard tests/unit/tools/test_*.c)))
program_names := $(basename $(notdir $(program_sources)))
$(foreach folder,$(sort $(dir $(unit_sources))),$(eval EXTRA_$(folder:/=) := $$(EXTRA_preload) -D_GNU_SOURCE -Itools -Itests/unit))

# ---- simulated CUDA ---------------------------------------------------------------------------------------------------

SIM := $(BUILD)/sim
sim_includes := $(addprefix -Itests/sim/,driver state nvml selftest)
sim_flags = -include tests/lib/old_libc.h $(SG_CFLAGS) $(CFLAGS) $(CPPFLAGS) $(sim_includes) -isystem $(CUDA_HOME)/include -fPIC -pthread
sim_sources := $(wildcard tests/sim/driver/*.c tests/sim/state/*.c)
sim_headers := $(wildcard $(foreach kind,h def map,tests/sim/*/*.$(kind)))

$(SIM)/libcuda.so.1: $(sim_sources) $(sim_headers) | headers
	$(SAY) SIM $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(sim_flags) -shared -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -Wl,-z,defs \
	    -Wl,--version-script=tests/sim/driver/cuda_sim.map -o $@ $(sim_sources)

$(SIM)/libcudart.so.13: tests/sim/runtime/cudart_sim.c $(sim_headers) | headers
	$(SAY) SIM $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(sim_flags) -shared -Wl,-soname,libcudart.so.13 -Wl,-z,defs \
	    -Wl,--version-script=tests/sim/runtime/cudart_sim.map -o $@ $< -ldl

$(SIM)/libcudart_static.a: tests/sim/runtime/cudart_sim.c $(sim_headers) | headers
	$(SAY) SIM $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(sim_flags) -c -o $(SIM)/cudart_sim.o $< && rm -f $@ && $(AR) rcs $@ $(SIM)/cudart_sim.o

$(SIM)/libnvidia-ml.so.1: tests/sim/nvml/nvml_sim.c tests/sim/nvml/nvml_sim.h tests/sim/nvml/nvml_sim.map
	$(SAY) SIM $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(sim_flags) -shared -Wl,-soname,libnvidia-ml.so.1 -Wl,-Bsymbolic -Wl,-z,defs \
	    -Wl,--version-script=tests/sim/nvml/nvml_sim.map -o $@ $< -ldl

$(SIM)/liballocating.so: tests/sim/selftest/allocating.c $(SIM)/libcuda.so.1
	$(SAY) SIM $@
	$(Q)$(CC) $(sim_flags) -shared -o $@ $^

$(SIM)/selftest: tests/sim/selftest/selftest.c $(SIM)/libcudart.so.13 $(SIM)/libcuda.so.1
	$(SAY) LINK $@
	$(Q)$(CC) $(sim_flags) -o $@ $^ '-Wl,-rpath,$$ORIGIN' -ldl

$(SIM)/selftest_static: tests/sim/selftest/selftest.c $(SIM)/libcudart_static.a $(SIM)/libcuda.so.1
	$(SAY) LINK $@
	$(Q)$(CC) $(sim_flags) -o $@ $^ '-Wl,-rpath,$$ORIGIN' -ldl

$(BUILD)/demo/memory_stress: scripts/examples/memory_stress.c $(SIM)/libcudart.so.13 | headers
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(sim_flags) -o $@ $^

$(BUILD)/demo/canary: tests/lab/programs/canary.c
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(SG_CFLAGS) $(CFLAGS) -D_GNU_SOURCE -o $@ $<

demo-programs: $(BUILD)/demo/memory_stress $(BUILD)/demo/canary $(SIM)/libcuda.so.1 $(SIM)/libcudart.so.13
.PHONY: demo-programs

sim: $(SIM)/libcuda.so.1 $(SIM)/libcudart.so.13 $(SIM)/libcudart_static.a $(SIM)/libnvidia-ml.so.1 $(SIM)/liballocating.so $(SIM)/selftest $(SIM)/selftest_static
.PHONY: sim

# ---- test programs ----------------------------------------------------------------------------------------------------

$(foreach source,$(unit_sources),$(eval $(BUILD)/tests/unit/$(basename $(notdir $(source))): $(BUILD)/obj/$(source:.c=.o)))
$(unit_names:%=$(BUILD)/tests/unit/%): $(BUILD)/libsparkguard-core.a
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(SAN_LDFLAGS) $(CROSS_LDFLAGS) -pthread -o $@ $(filter %.o,$^) \
	    -Wl,--start-group $(filter %.a,$^) -Wl,--end-group -lcmocka $(UNIT_LIBS)
$(patsubst %,$(BUILD)/tests/unit/%,$(basename $(notdir $(wildcard tests/unit/watch/test_*.c)))): $(BUILD)/libsparkguard-watch.a
$(BUILD)/tests/unit/test_segment $(BUILD)/tests/unit/test_timeline: $(BUILD)/libsparkguard-watch.a
# Parts of the hooks that interpose nothing are tested alone.
$(BUILD)/tests/unit/test_bootstrap_alloc: $(BUILD)/obj/preload/guard/hooks/heap/bootstrap_alloc.o
$(BUILD)/tests/unit/test_pieces: $(BUILD)/obj/preload/guard/hooks/pool/pool_pieces.o
$(BUILD)/tests/unit/test_context_estimate: $(BUILD)/obj/preload/guard/hooks/measure/context_estimate.o
$(BUILD)/tests/unit/test_ledger: $(BUILD)/obj/preload/guard/hooks/cuda/mark.o
$(BUILD)/tests/unit/test_snapshot: $(BUILD)/obj/preload/guard/hooks/mmap/mapping_kind.o
$(tool_unit_names:%=$(BUILD)/tests/unit/%): $(BUILD)/libtools.a
$(tool_unit_names:%=$(BUILD)/tests/unit/%): UNIT_LIBS = $(TOOL_LIBS)

# Small programs the tests run: plain C; those of the folder cuda need CUDA and are built three ways.
program_flags = -std=gnu11 -D_GNU_SOURCE -include tests/lib/old_libc.h -O1 -g -Wall -Wextra -fno-builtin -Iinclude -Itests/programs -pthread
program_headers := preload/guard/hooks/hooks.def \
    $(wildcard tests/programs/*.h tests/programs/*/*.h tests/lib/*.h include/*.h include/*.def)
cuda_programs := $(basename $(notdir $(wildcard tests/programs/cuda/*.c)))
plain_programs := $(filter-out $(cuda_programs),$(program_names))

$(foreach source,$(program_sources),$(eval $(BUILD)/tests/programs/$(basename $(notdir $(source))): $(source)))
$(plain_programs:%=$(BUILD)/tests/programs/%): $(program_headers)
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(program_flags) -o $@ $(filter %.c,$^) -ldl -lrt

$(cuda_programs:%=$(BUILD)/tests/programs/%): $(program_headers) sim
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(program_flags) -isystem $(CUDA_HOME)/include $(sim_includes) -o $@ $(filter %.c,$^) $(SIM)/libcudart.so.13 \
	    $(SIM)/libcuda.so.1 -ldl
	$(Q)$(CC) $(program_flags) -isystem $(CUDA_HOME)/include $(sim_includes) -o $@_static $(filter %.c,$^) $(SIM)/libcudart_static.a \
	    $(SIM)/libcuda.so.1 -ldl

# The library with every system call of its own made to fail on demand. On x86-64 it is marked for branch targets, as libraries of
# distributions are: test_protection.py looks for the mark in each object.
FAULT_CFLAGS := $(if $(findstring x86_64,$(MACHINE)),-fcf-protection)
fault_objects := $(patsubst $(BUILD)/obj/%,$(BUILD)/fault/obj/%,$(preload_objects)) \
    $(BUILD)/fault/obj/tests/preload/process/fault.o
$(BUILD)/fault/obj/%.o: %.c tests/tests.mk | headers
	@mkdir -p $(@D)
	$(Q)$(CC) $(SG_CPPFLAGS) -DSG_FAULT_INJECTION $(CPPFLAGS) $(SG_CFLAGS) $(PRELOAD_CFLAGS) $(FAULT_CFLAGS) $(CFLAGS) \
	    -isystem $(CUDA_HOME)/include -MMD -MP -c -o $@ $<
$(BUILD)/fault/obj/%.o: %.S tests/tests.mk
	@mkdir -p $(@D)
	$(Q)$(CC) $(FAULT_CFLAGS) $(CFLAGS) -c -o $@ $<
$(BUILD)/fault/libsparkguard.so: $(fault_objects) $(MARKED)
	$(SAY) LINK $@
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(PRELOAD_LDFLAGS) $(if $(FAULT_CFLAGS),-Wl$(comma)-z$(comma)ibt) -o $@ $^

# Fuzz targets: with replay.c they run stored inputs, with libFuzzer (clang) they make new ones.
fuzz_names := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
EXTRA_tests/fuzz := $(EXTRA_preload) -D_GNU_SOURCE -Itools
$(BUILD)/fuzz/doctor: $(doctor_checks)
fuzz_main := $(if $(filter build/fuzzers,$(BUILD)),-fsanitize=fuzzer,$(BUILD)/obj/tests/fuzz/replay.o)
$(fuzz_names:%=$(BUILD)/fuzz/%): $(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(filter %.o,$(fuzz_main)) \
        $(BUILD)/libtools.a $(BUILD)/libsparkguard-watch.a $(BUILD)/libsparkguard-core.a
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(SAN_LDFLAGS) $(CROSS_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(filter -%,$(fuzz_main)) $(TOOL_LIBS)
fuzz: $(fuzz_names:%=$(BUILD)/fuzz/%)
fuzzers:
	$(Q)$(MAKE) --no-print-directory BUILD=build/fuzzers SAN=address CC=clang CFLAGS='-O1 -g -fsanitize=fuzzer-no-link' fuzz
.PHONY: fuzz fuzzers

unit: $(unit_names:%=$(BUILD)/tests/unit/%)
core-unit: $(patsubst %,$(BUILD)/tests/unit/%,$(filter-out $(tool_unit_names),$(unit_names)))
programs: $(program_names:%=$(BUILD)/tests/programs/%) $(BUILD)/fault/libsparkguard.so
.PHONY: unit core-unit programs

##@ Testing
test: ## install what is missing, build, run every test
	$(Q)scripts/install-deps build test
	$(Q)$(MAKE) --no-print-directory all sim demo-programs unit programs fuzz bench-programs
	$(Q)BUILD=$(BUILD) tests/run

steady: ## tests beside a load and on one processor, once or N=20 times, all of unit, preload, sim and cli or TESTS="tests/preload/mmap"
	$(Q)scripts/install-deps build test steady
	$(Q)$(MAKE) --no-print-directory all sim demo-programs unit programs
	$(Q)BUILD=$(BUILD) N=$(or $(N),1) tests/steady $(TESTS)
.PHONY: steady

# CI, which has built all with warnings as errors by then, names that folder.
CHECKED ?= build/werror
check: ## formatter, linters, shell checks, structure rules
	$(Q)scripts/install-deps build check
	$(Q)$(MAKE) --no-print-directory WERROR=1 BUILD=$(CHECKED) all unit
	$(Q)$(MAKE) --no-print-directory WERROR=1 BUILD=build/werror-clang CC=clang CFLAGS=-O0 all
	$(Q)$(MAKE) --no-print-directory all $(BUILD)/libsparkguard-core.a
	$(Q)CUDA_HOME=$(CUDA_HOME) scripts/check

# CI runs of the emulator's and the sanitizers' tests those that the change since the last whole run touched; make qualify runs all.
TOUCHED_OF := tests/touched $(if $(filter 1,$(TOUCHED)),,--all)
ifeq ($(shell uname -m),aarch64)
cross: test
else
EMULATE := BUILD=build/aarch64 CC=aarch64-linux-gnu-gcc GUARDED_PYTHON=$(CURDIR)/.deps/aarch64/python/bin/python3 tests/emulate
# Files that take minutes or tens of seconds there (seconds of two processors, alone): CI leaves them to make qualify POINTS=5, which
# runs all. machine, machine_limit and machine_registry 328, memory_files 201, sanitizers 143, fork 120, uncounted 103, spark 93, options 93,
# gpu_programs 88, heap 87, helpers 79, stress 73, faults 73, reserve 69, meminfo 66, every_call 66, counting 57,
# pool_threads 53, pools 46, refusal 38, many_files some hundred.
NOT_EMULATED := $(addprefix tests/,preload/heap/test_heap.py preload/heap/test_stress.py preload/mmap/test_memory_files.py preload/mmap/test_many_files.py \
    $(addprefix preload/machine/,test_bounds.py test_claims.py test_pressure.py test_set.py test_machine.py test_machine_limit.py test_machine_registry.py test_options.py) \
    $(addprefix preload/process/,test_fork.py test_helpers.py test_faults.py test_sanitizers.py) \
    $(addprefix sim/counting/,test_counting.py test_pool_forerunners.py test_pool_room.py test_pool_threads.py test_pools.py test_uncounted.py) \
    $(addprefix sim/limits/,test_meminfo.py test_refusal.py test_reserve.py test_spark.py) $(addprefix sim/calls/,test_every_call.py test_gpu_programs.py))
# Files that cannot run there: the kernel's figures for a process, which bound its promises, have qemu's own memory in them; other users may
# not read the emulator; a claim and a helper are the launcher's, which is this machine's.
NOT_EMULATED += $(addprefix tests/preload/,machine/test_promises.py machine/test_container_promises.py machine/test_job_users.py machine/test_claim_loss.py machine/test_claims_named.py \
    machine/test_on_refusal.py mmap/test_commits.py)
# Of some of them make qualify runs more (tests/lib/target.py).
EMULATED := $(filter-out $(NOT_EMULATED),$(wildcard tests/preload/*/test_*.py tests/sim/*/test_*.py)) tests/qualification/test_signals.py
cross: ## build for aarch64 with warnings as errors; its unit, preload and simulator tests under qemu-user (TOUCHED=1: what a change touched)
	$(Q)scripts/install-deps build test cross
	$(Q)$(MAKE) --no-print-directory CROSS=aarch64 WERROR=1 all unit sim programs
	$(Q)$(MAKE) --no-print-directory sim
	$(Q)scripts/check-structure build/aarch64/libsparkguard.so
	$(Q)tests/run tests/qualification/test_aarch64.py
	$(Q)$(EMULATE) tests/run --unit
	$(foreach file,$(NOT_EMULATED),$(if $(wildcard $(file)),,$(error $(file) of NOT_EMULATED is missing)))
	$(if $(EMULATED),,$(error EMULATED names no tests: tests/run would run all of them, for hours))
	$(Q)targets="$$(ALL='$(EMULATED)' $(TOUCHED_OF) cross)" && if [ -n "$$targets" ]; then JOBS=4 $(EMULATE) tests/run $$targets; fi
endif

sanitize: ## core and tools under ASan+UBSan, the core under TSan (TOUCHED=1: of the tools' tests those that a change touched)
	$(Q)scripts/install-deps build test
	$(Q)$(MAKE) --no-print-directory library
	$(Q)$(MAKE) --no-print-directory SAN=address tools manual unit fuzz build/address/tests/programs/host_deny
	$(Q)cp build/libsparkguard.so build/address/
	$(Q)BUILD=build/address tests/run --unit
	$(Q)targets="$$($(TOUCHED_OF) sanitize)" && if [ -n "$$targets" ]; then BUILD=build/address tests/run $$targets; fi
	$(Q)$(MAKE) --no-print-directory SAN=thread core-unit
	$(Q)BUILD=build/thread tests/run --unit
.PHONY: test check cross sanitize

test-ecosystem: ## packages, clusters and dashboards: installs Debian's debhelper, Slurm, Prometheus and more
	$(Q)scripts/install-deps build test ecosystem
	$(Q)$(MAKE) --no-print-directory all sim programs
	$(Q)BUILD=$(BUILD) tests/run tests/ecosystem
.PHONY: test-ecosystem

test-containers: ## sparkguard-runtime with podman, dockerd and containerd, and images of Debian 11, 12 and 13: writes tests/containers/RESULTS.md
	$(Q)scripts/install-deps build test ecosystem containers
	$(Q)$(MAKE) --no-print-directory all programs
	$(Q)BUILD=$(BUILD) RESULTS=tests/containers/RESULTS.md tests/run tests/containers
.PHONY: test-containers

qualify: ## the long form of the qualification tests, all points or POINTS="1 7", or some rows of one, POINTS=6:driver; writes tests/QUALIFICATION.md
	$(Q)scripts/install-deps build test cross qualify $(if $(filter 4 4:%,$(or $(POINTS),4)),ecosystem browser) \
	    $(if $(filter 5 5:%,$(or $(POINTS),5)),guest64k) $(if $(filter 9 9:%,$(or $(POINTS),9)),foreign) $(if $(filter 10 10:%,$(or $(POINTS),10)),judges) \
	    $(if $(filter 11 11:%,$(or $(POINTS),11)),release ecosystem)
	$(Q)$(MAKE) --no-print-directory all sim unit programs fuzz fuzzers
	$(Q)$(if $(EMULATE),$(MAKE) --no-print-directory CROSS=aarch64 all unit sim programs)
	$(Q)$(if $(filter 11 11:%,$(or $(POINTS),11)),$(MAKE) --no-print-directory release)
	$(Q)BUILD=$(BUILD) EMULATE='$(EMULATE)' tests/qualification/run $(POINTS)
.PHONY: qualify

test-browser: ## the page of --html in Chromium; leaves pictures of it in build/browser
	$(Q)scripts/install-deps build test browser
	$(Q)$(MAKE) --no-print-directory tools
	$(Q)BUILD=$(BUILD) tests/run tests/browser
.PHONY: test-browser

test-frameworks: ## client libraries from PyPI under the guard, or FRAMEWORKS="ray torch"; tests/frameworks/RESULTS.md
	$(Q)scripts/install-deps build test frameworks
	$(Q)$(MAKE) --no-print-directory all sim
	$(Q)BUILD=$(BUILD) tests/frameworks/run $(FRAMEWORKS)
.PHONY: test-frameworks

RELEASE ?= bullseye
test-release: $(BUILD)/fault/libsparkguard.so ## the library under the C library of Debian 11 (glibc 2.31) or RELEASE=trixie: tests/release makes a root file system
	$(Q)scripts/install-deps build test ecosystem
	$(Q)$(MAKE) --no-print-directory all
	$(Q)BUILD=$(BUILD) tests/release $(RELEASE)
.PHONY: test-release

mutate: ## small mistakes in the product, and which of them the tests notice: N=50, SEED=1, or SITES="FILE:LINE:KIND:NUMBER" again
	$(Q)scripts/install-deps build test
	$(Q)N=$(N) SEED=$(SEED) tests/mutate $(SITES)
.PHONY: mutate

test-anywhere: ## make demo and make test on fresh Debian 12 and 13, as root and as a user: tests/anywhere makes root file systems of them
	$(Q)tests/anywhere || [[ $$? -eq 77 ]]
.PHONY: test-anywhere

test-dist: ## what make release left in dist/: another clone makes the same bytes; apt and pip install it in fresh systems, arm64 under qemu-user
	$(Q)scripts/install-deps build release ecosystem
	$(Q)tests/dist || [[ $$? -eq 77 && -z "$${CI-}" ]] # publishing depends on it there
.PHONY: test-dist

test-drivers: ## the hooks against later CUDA headers and real drivers' exports: downloads both into .deps
	$(Q)scripts/install-deps build test drivers
	$(Q)$(MAKE) --no-print-directory all sim
	$(Q)BUILD=$(BUILD) tests/run tests/sim/calls/test_hooks.py
.PHONY: test-drivers

test-gpu: ## CUDA, PyTorch and CuPy on this machine's GPU under the guard; writes tests/gpu/RESULTS.md
	$(Q)scripts/install-deps build test
	$(Q)$(MAKE) --no-print-directory all
	$(Q)BUILD=$(BUILD) tests/gpu/run
.PHONY: test-gpu

bench: ## what the guard costs, in pairs, against the targets; PEERS=1 adds other preloads
	$(Q)scripts/install-deps build test bench
	$(Q)$(MAKE) --no-print-directory all sim bench-programs
	$(Q)BUILD=$(BUILD) scripts/bench
.PHONY: bench bench-programs

bench_flags := -std=gnu11 -O2 -fno-builtin -Wall -Wextra
$(BUILD)/bench/pairs: tests/bench/pairs.c
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(bench_flags) -pthread -o $@ $< -ldl
$(BUILD)/bench/table: tests/bench/table.c $(BUILD)/libsparkguard-core.a
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(bench_flags) -Ipreload/core -pthread -o $@ $^
$(BUILD)/bench/%.so: tests/bench/%.c
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(bench_flags) -D_GNU_SOURCE -fPIC -shared -o $@ $<
bench-programs: $(BUILD)/bench/pairs $(BUILD)/bench/table $(BUILD)/bench/empty.so $(BUILD)/bench/passthrough.so
