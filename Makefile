# sparkguard. `make help` lists the targets. Everything is built out of tree, in build/ (or BUILD=...).
#
#   CC CFLAGS CPPFLAGS LDFLAGS   are respected;  V=1 shows commands;  WERROR=1 makes warnings errors
#   CUDA_HOME                    CUDA Toolkit 13 headers; default /usr/local/cuda, else what scripts/install-deps fetched
#   SAN=address|thread           sanitizer build of the core, the tools and the unit tests (in build-SAN)
#   CROSS=aarch64                cross build (in build/aarch64) with Debian's compiler

SHELL := /bin/bash
.DELETE_ON_ERROR:
.SUFFIXES:
.SECONDARY:

SAN ?=
CROSS ?=
BUILD ?= $(if $(CROSS),build/$(CROSS),$(if $(SAN),build/$(SAN),build))
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
MANDIR ?= $(PREFIX)/share/man
PYTHONDIR ?= $(PREFIX)/share/sparkguard
UNITDIR ?= $(PREFIX)/lib/systemd/system
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
V ?= 0
Q := $(if $(filter 1,$(V)),,@)
SAY = $(if $(filter 1,$(V)),@:,@printf '  %-7s %s\n')

ifneq ($(filter-out address thread,$(SAN)),)
$(error SAN is "address" or "thread", not "$(SAN)")
endif
ifneq ($(filter-out aarch64,$(CROSS)),)
$(error CROSS is "aarch64", not "$(CROSS)")
endif
ifneq ($(CROSS),)
CC = $(CROSS)-linux-gnu-gcc
AR = $(CROSS)-linux-gnu-ar
CROSS_FLAGS := -isystem .deps/$(CROSS)/include
CROSS_LDFLAGS := -L.deps/$(CROSS)/lib -Wl,-rpath-link,.deps/$(CROSS)/lib
endif

CUDA_HOME ?= $(shell scripts/install-deps --cuda-home 2>/dev/null)
MACHINE := $(shell $(CC) -dumpmachine)
IS_GCC := $(shell $(CC) --version 2>/dev/null | grep -qi clang || echo yes)

WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wstrict-prototypes -Wmissing-prototypes \
    -Wundef -Wvla -Wformat=2 -Wcast-qual -Wswitch-enum -Wnull-dereference \
    $(if $(IS_GCC),-Wlogical-op -Wduplicated-cond -Wduplicated-branches,-Wno-gnu-zero-variadic-macro-arguments) $(if $(filter 1,$(WERROR)),-Werror)
CFLAGS ?= -O2 -g
comma := ,
SG_CFLAGS := -std=gnu11 $(WARNINGS) $(CROSS_FLAGS)
SG_CPPFLAGS := -Iinclude -Ipreload
ifneq ($(SAN),)
SG_CFLAGS += -fsanitize=$(SAN)$(if $(filter address,$(SAN)),$(comma)undefined -fno-sanitize-recover=undefined) -fno-omit-frame-pointer
SAN_LDFLAGS := -fsanitize=$(SAN)$(if $(filter address,$(SAN)),$(comma)undefined)
endif
PRELOAD_CFLAGS := -D_GNU_SOURCE -fPIC -fvisibility=hidden -ftls-model=initial-exec -fno-semantic-interposition -fno-builtin-malloc -fno-plt \
    $(if $(findstring aarch64,$(MACHINE)),-mbranch-protection=standard $(if $(IS_GCC),-moutline-atomics))
# Cheap to start: code in one segment with the tables that the dynamic linker reads (two mappings and some page faults fewer), and
# no DT_SYMBOLIC, by which it would look for each function of the libc in this library first.
PRELOAD_LDFLAGS := -shared -nostartfiles -Wl,-soname,libsparkguard.so -Wl,-z,defs,-z,relro,-z,now,-z,nodelete,-z,noseparate-code \
    -Wl,-Bsymbolic-functions -Wl,--version-script=preload/exports.map -Wl,--build-id
# A process keeps shadow stacks, and one day branch targets, only if every library is marked for them. Shadow stacks ask nothing of
# code like ours, so the mark is always there. The linker would leave both out where libc_nonshared.a has none (Debian's): of
# that come pthread_atfork and at_quick_exit, which are called directly.
ifneq ($(findstring x86_64,$(MACHINE)),)
PRELOAD_LDFLAGS += -Wl,-z,shstk $(if $(filter -fcf-protection -fcf-protection=full,$(CFLAGS)),-Wl$(comma)-z$(comma)ibt)
endif

# ---- rooms ------------------------------------------------------------------------------------------------------------

# The core knows nothing of hooks: GROUND and CORE make a static library that interposes nothing.
GROUND := preload/text.c preload/log.c preload/lock.c preload/boot.c preload/process.c preload/symbols.c preload/loaded.c \
    preload/clock.c preload/sandbox.c
CORE := preload/table.c preload/ranges.c preload/pool_pieces.c preload/options.c preload/thread.c preload/directory.c preload/shared_file.c \
    preload/segment.c preload/told.c preload/reaper.c preload/ledger.c preload/job.c preload/phase.c preload/seats.c preload/seat_file.c preload/seat_sums.c \
    preload/tally.c preload/same_bytes.c preload/foreign.c preload/map_shape.c preload/files.c preload/sites.c preload/resident.c \
    preload/commits.c preload/index.c preload/pool.c preload/cgroup.c preload/room.c preload/returns.c preload/fit.c preload/context_cost.c \
    preload/job_summary.c preload/admission.c preload/patience.c preload/refusal.c preload/reclaim.c \
    preload/raw_thread.c preload/filler.c preload/driver_pages.c preload/managed_pages.c preload/rescue.c preload/fall.c preload/timeline.c
SEAM := preload/real.c preload/lifecycle.c preload/hook_table.c preload/hook_heap.c preload/hook_malloc.c \
    preload/glibc_heap.c preload/attached.c preload/map_change.c preload/map_fork.c preload/hook_map.c \
    preload/hook_protect.c preload/hook_brk.c preload/hook_pages.c preload/hook_shm.c preload/hook_process.c \
    preload/hook_identity.c preload/hook_dl.c preload/cuda_device.c \
    preload/cuda_call.c preload/open_call.c preload/context_list.c preload/context_memory.c preload/hook_cuda.c preload/array_format.c \
    preload/pool_memory.c preload/hook_pool.c preload/vmm_memory.c preload/hook_vmm.c preload/hook_graph.c \
    preload/hook_context.c preload/hook_meminfo.c preload/hook_nvml.c preload/helper.c preload/watchdog.c \
    preload/history.c preload/history_file.c preload/hook_proc_address.c preload/hook_runtime.c preload/api.c
SEAM_ASM := preload/doors.S
# What every start runs is linked first, behind those tables: on pages that the kernel maps along with theirs.
START := $(addprefix preload/,lifecycle.c log.c options.c text.c symbols.c real.c thread.c helper.c segment.c history.c)

TOOL_NAMES := sparkguard sparkguard-report sparkguard-sweep sparkguard-doctor
TOOL_SHARED := $(filter-out $(TOOL_NAMES:%=tools/%.c),$(wildcard tools/*.c))

core_objects := $(patsubst %.c,$(BUILD)/obj/%.o,$(GROUND) $(CORE))
seam_objects := $(patsubst %.c,$(BUILD)/obj/%.o,$(SEAM)) $(patsubst %.S,$(BUILD)/obj/%.o,$(SEAM_ASM))
preload_objects := $(patsubst %.c,$(BUILD)/obj/%.o,$(START))
preload_objects += $(filter-out $(preload_objects),$(seam_objects) $(core_objects))
tool_objects := $(patsubst %.c,$(BUILD)/obj/%.o,$(TOOL_SHARED))
unit_names := $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/test_*.c))
program_names := $(patsubst tests/preload/programs/%.c,%,$(wildcard tests/preload/programs/*.c))

##@ Building
all: library tools manual ## build everything into build/
library: $(BUILD)/libsparkguard.so ## the library alone
tools: $(TOOL_NAMES:%=$(BUILD)/%) ## the tools alone
manual: $(BUILD)/man/libsparkguard.7
.PHONY: all library tools manual

$(BUILD)/obj/%.o: %.c | headers
	$(SAY) CC $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(SG_CPPFLAGS) $(CPPFLAGS) $(SG_CFLAGS) $(if $(filter preload/%,$<),$(PRELOAD_CFLAGS)) $(EXTRA_$(<D)) \
	    $(CFLAGS) -isystem $(CUDA_HOME)/include -MMD -MP -c -o $@ $<

$(BUILD)/obj/%.o: %.S
	$(SAY) AS $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -c -o $@ $<

EXTRA_tests/unit := -D_GNU_SOURCE -Itools
EXTRA_tools := -Itools -DSG_LIBDIR='"$(LIBDIR)"'

# The launcher knows where the library is installed: another LIBDIR makes another launcher.
$(BUILD)/libdir.stamp: force
	@mkdir -p $(@D) && echo '$(LIBDIR)' | cmp -s - $@ || echo '$(LIBDIR)' >$@
$(BUILD)/obj/tools/launch_library.o $(BUILD)/obj/tools/doctor_library.o: $(BUILD)/libdir.stamp
force:
.PHONY: force

$(BUILD)/libsparkguard-core.a: $(core_objects)
	$(SAY) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/libsparkguard.so: $(preload_objects) preload/exports.map
	$(SAY) LINK $@
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(PRELOAD_LDFLAGS) -o $@ $(preload_objects)

$(BUILD)/libtools.a: $(tool_objects)
	$(SAY) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(TOOL_NAMES:%=$(BUILD)/%): $(BUILD)/%: $(BUILD)/obj/tools/%.o $(BUILD)/libtools.a
	$(SAY) LINK $@
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(SAN_LDFLAGS) $(CROSS_LDFLAGS) -o $@ $^ -lsmartcols -lm

# Its list of variables grows from the table of options: name, kind, default, example and help of each in a line.
$(BUILD)/man/libsparkguard.7: tools/libsparkguard.7.in include/options.def
	$(SAY) MAN $@
	@mkdir -p $(@D)
	$(Q)$(CC) -E -P -x c '-DSG_OPTION(ID,f,n,kind,fallback,example,help)=SPARKGUARD_##ID kind fallback example help' include/options.def | \
	    awk -F '"' 'BEGIN {value["SIZE"] = "Ar SIZE"; value["SECONDS"] = "Ar SECONDS"; value["NUMBER"] = "Ar NUMBER"; \
	            value["TEXT"] = "Ar NAME"; value["PATH"] = "Ar DIR"} \
	        {split($$1, word, " "); choice = $$4; gsub(/\|/, " | ", choice); value["CHOICE"] = "Cm " choice; \
	            print ".It Ev " word[1] " Ns = Ns " value[word[2]]; print $$6; if ($$2 != "") print ".Pq default: " $$2}' >$@.list
	$(Q)sed -e '/^@ENVIRONMENT@$$/{r $@.list' -e 'd}' $< >$@

# The hooks need CUDA's types: one sentence if the headers are not there.
headers:
	@test -e "$(CUDA_HOME)/include/cuda.h" || { \
	    echo "CUDA Toolkit 13 headers not found: set CUDA_HOME, or run scripts/install-deps build" >&2; exit 1; }
.PHONY: headers

# ---- simulated CUDA ---------------------------------------------------------------------------------------------------

SIM := $(BUILD)/sim
sim_flags = $(SG_CFLAGS) $(CFLAGS) $(CPPFLAGS) -isystem $(CUDA_HOME)/include -fPIC -pthread
sim_sources := tests/sim/cuda_sim.c $(wildcard tests/sim/sim_*.c)
sim_headers := $(wildcard tests/sim/*.h tests/sim/*.def tests/sim/*.map)

$(SIM)/libcuda.so.1: $(sim_sources) $(sim_headers) | headers
	$(SAY) SIM $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(sim_flags) -shared -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -Wl,-z,defs \
	    -Wl,--version-script=tests/sim/cuda_sim.map -o $@ $(sim_sources)

$(SIM)/libcudart.so.13: tests/sim/cudart_sim.c $(sim_headers) | headers
	$(SAY) SIM $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(sim_flags) -shared -Wl,-soname,libcudart.so.13 -Wl,-z,defs \
	    -Wl,--version-script=tests/sim/cudart_sim.map -o $@ $<

$(SIM)/libcudart_static.a: tests/sim/cudart_sim.c $(sim_headers) | headers
	$(SAY) SIM $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(sim_flags) -c -o $(SIM)/cudart_sim.o $< && rm -f $@ && $(AR) rcs $@ $(SIM)/cudart_sim.o

$(SIM)/libnvidia-ml.so.1: tests/sim/nvml_sim.c tests/sim/nvml_sim.h tests/sim/nvml_sim.map
	$(SAY) SIM $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(sim_flags) -shared -Wl,-soname,libnvidia-ml.so.1 -Wl,-Bsymbolic -Wl,-z,defs \
	    -Wl,--version-script=tests/sim/nvml_sim.map -o $@ $< -ldl

$(SIM)/selftest: tests/sim/selftest.c $(SIM)/libcudart.so.13 $(SIM)/libcuda.so.1
	$(SAY) LINK $@
	$(Q)$(CC) $(sim_flags) -o $@ $^ '-Wl,-rpath,$$ORIGIN'

$(SIM)/selftest_static: tests/sim/selftest.c $(SIM)/libcudart_static.a $(SIM)/libcuda.so.1
	$(SAY) LINK $@
	$(Q)$(CC) $(sim_flags) -o $@ $^ '-Wl,-rpath,$$ORIGIN'

sim: $(SIM)/libcuda.so.1 $(SIM)/libcudart.so.13 $(SIM)/libcudart_static.a $(SIM)/libnvidia-ml.so.1 $(SIM)/selftest $(SIM)/selftest_static
.PHONY: sim

# ---- demo -------------------------------------------------------------------------------------------------------------

$(BUILD)/demo/memory_stress: scripts/examples/memory_stress.c $(SIM)/libcudart.so.13 | headers
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(sim_flags) -o $@ $^

demo: ## install what is missing, build, drive a CUDA program into its limit, show the report
	$(Q)scripts/install-deps build demo
	$(Q)$(MAKE) --no-print-directory all sim $(BUILD)/demo/memory_stress
	$(Q)scripts/demo
.PHONY: demo

# ---- tests ------------------------------------------------------------------------------------------------------------

$(BUILD)/tests/unit/%: $(BUILD)/obj/tests/unit/%.o $(BUILD)/libsparkguard-core.a
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(SAN_LDFLAGS) $(CROSS_LDFLAGS) -pthread -o $@ $^ -lcmocka $(UNIT_LIBS)
$(BUILD)/tests/unit/test_since $(BUILD)/tests/unit/test_timeline $(BUILD)/tests/unit/test_watch: $(BUILD)/libtools.a
$(BUILD)/tests/unit/test_watch: UNIT_LIBS := -lsmartcols

# Small programs the preload tests run: plain C; one that needs CUDA is named cuda_* and is built three ways.
program_flags = -std=gnu11 -D_GNU_SOURCE -O1 -g -Wall -Wextra -fno-builtin -Iinclude -pthread
program_headers := $(wildcard tests/*.h tests/preload/programs/*.h include/*.h include/*.def)
cuda_programs := $(filter cuda_%,$(program_names))
plain_programs := $(filter-out cuda_%,$(program_names))

$(plain_programs:%=$(BUILD)/tests/programs/%): $(BUILD)/tests/programs/%: tests/preload/programs/%.c $(program_headers)
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(program_flags) -o $@ $< -ldl

$(cuda_programs:%=$(BUILD)/tests/programs/%): $(BUILD)/tests/programs/%: tests/preload/programs/%.c $(program_headers) sim
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(program_flags) -isystem $(CUDA_HOME)/include -Itests/sim -o $@ $< $(SIM)/libcudart.so.13 \
	    $(SIM)/libcuda.so.1 -ldl
	$(Q)$(CC) $(program_flags) -isystem $(CUDA_HOME)/include -Itests/sim -o $@_static $< $(SIM)/libcudart_static.a \
	    $(SIM)/libcuda.so.1 -ldl

# The library with every system call of its own made to fail on demand.
fault_objects := $(patsubst $(BUILD)/obj/%,$(BUILD)/fault/obj/%,$(preload_objects)) \
    $(BUILD)/fault/obj/tests/preload/fault.o
$(BUILD)/fault/obj/%.o: %.c | headers
	@mkdir -p $(@D)
	$(Q)$(CC) $(SG_CPPFLAGS) -DSG_FAULT_INJECTION $(CPPFLAGS) $(SG_CFLAGS) $(PRELOAD_CFLAGS) $(CFLAGS) \
	    -isystem $(CUDA_HOME)/include -MMD -MP -c -o $@ $<
$(BUILD)/fault/obj/%.o: %.S
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -c -o $@ $<
$(BUILD)/fault/libsparkguard.so: $(fault_objects)
	$(SAY) LINK $@
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(PRELOAD_LDFLAGS) -o $@ $^

# Fuzz targets: with replay.c they run stored inputs, with libFuzzer (clang) they make new ones.
fuzz_names := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
EXTRA_tests/fuzz := -D_GNU_SOURCE -Itools
fuzz_main := $(if $(filter build/fuzzers,$(BUILD)),-fsanitize=fuzzer,$(BUILD)/obj/tests/fuzz/replay.o)
$(fuzz_names:%=$(BUILD)/fuzz/%): $(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(filter %.o,$(fuzz_main)) \
        $(BUILD)/libtools.a $(BUILD)/libsparkguard-core.a
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(SAN_LDFLAGS) $(CROSS_LDFLAGS) -o $@ $^ $(filter -%,$(fuzz_main)) -lsmartcols -lm
fuzz: $(fuzz_names:%=$(BUILD)/fuzz/%)
fuzzers:
	$(Q)$(MAKE) --no-print-directory BUILD=build/fuzzers SAN=address CC=clang CFLAGS='-O1 -g -fsanitize=fuzzer-no-link' fuzz
.PHONY: fuzz fuzzers

unit: $(unit_names:%=$(BUILD)/tests/unit/%)
programs: $(program_names:%=$(BUILD)/tests/programs/%) $(BUILD)/fault/libsparkguard.so
.PHONY: unit programs

##@ Testing
test: ## install what is missing, build, run every test
	$(Q)scripts/install-deps build test
	$(Q)$(MAKE) --no-print-directory all sim unit programs fuzz bench-programs
	$(Q)BUILD=$(BUILD) tests/run

check: ## formatter, linters, shell checks, structure rules
	$(Q)scripts/install-deps build check
	$(Q)$(MAKE) --no-print-directory WERROR=1 BUILD=build/werror all unit
	$(Q)$(MAKE) --no-print-directory WERROR=1 BUILD=build/werror-clang CC=clang CFLAGS=-O0 all
	$(Q)$(MAKE) --no-print-directory all $(BUILD)/libsparkguard-core.a
	$(Q)CUDA_HOME=$(CUDA_HOME) scripts/check

ifeq ($(shell uname -m),aarch64)
cross: test
else
EMULATE := BUILD=build/aarch64 CC=aarch64-linux-gnu-gcc GUARDED_PYTHON=$(CURDIR)/.deps/aarch64/python/bin/python3 tests/emulate
# The longest first: they mostly wait, and so several run at a time. Of some of it make trust runs more (tests/target.py).
EMULATED_FIRST := $(addprefix tests/,preload/test_machine.py preload/test_memory_files.py sim/test_counting.py sim/test_reserve.py \
    preload/test_options.py sim/test_context_race.py)
# Files that were changed since all of them last ran under the emulator: until they do, they run on the machine itself only.
NOT_EMULATED := $(addprefix tests/,preload/test_heap.py preload/test_machine.py preload/test_memory_files.py \
    preload/test_memory_kinds.py preload/test_options.py preload/test_protection.py preload/test_same_bytes.py \
    preload/test_storm.py preload/test_write_paths.py sim/test_chunks.py sim/test_counting.py \
    sim/test_gpu_programs.py sim/test_interrupted.py sim/test_kept_pages.py sim/test_loader.py sim/test_managed.py \
    sim/test_meminfo.py sim/test_pool_threads.py sim/test_pools.py sim/test_refusal.py sim/test_reserve.py \
    sim/test_spark.py sim/test_uncounted.py)
EMULATED := $(filter-out $(NOT_EMULATED),$(EMULATED_FIRST) $(filter-out $(EMULATED_FIRST),$(wildcard tests/preload/test_*.py tests/sim/test_*.py))) \
    tests/trust/test_signals.py
cross: ## build for aarch64 with warnings as errors; its unit, preload and simulator tests under qemu-user
	$(Q)scripts/install-deps build test cross
	$(Q)$(MAKE) --no-print-directory CROSS=aarch64 WERROR=1 all unit sim programs
	$(Q)$(MAKE) --no-print-directory sim
	$(Q)scripts/check-structure build/aarch64/libsparkguard.so
	$(Q)tests/run tests/trust/test_aarch64.py
	$(Q)$(EMULATE) tests/run --unit
	$(Q)JOBS=4 $(EMULATE) tests/run $(EMULATED)
endif

sanitize: ## core and tools under ASan+UBSan, the core under TSan
	$(Q)scripts/install-deps build test
	$(Q)$(MAKE) --no-print-directory library
	$(Q)$(MAKE) --no-print-directory SAN=address tools unit fuzz
	$(Q)cp build/libsparkguard.so build/address/
	$(Q)BUILD=build/address tests/run --unit
	$(Q)BUILD=build/address tests/run tests/cli
	$(Q)BUILD=build/address tests/run tests/trust/test_fuzz.py
	$(Q)$(MAKE) --no-print-directory SAN=thread unit
	$(Q)BUILD=build/thread tests/run --unit
.PHONY: test check cross sanitize

test-ecosystem: ## packages, clusters and dashboards: installs Debian's debhelper, Slurm, Prometheus and more
	$(Q)scripts/install-deps build test ecosystem
	$(Q)$(MAKE) --no-print-directory all sim programs
	$(Q)BUILD=$(BUILD) tests/run tests/ecosystem
.PHONY: test-ecosystem

trust: ## the long form of the tests of trust, all points or POINTS="1 7"; writes tests/TRUST.md
	$(Q)scripts/install-deps build test cross trust $(if $(filter 4,$(or $(POINTS),4)),ecosystem browser) \
	    $(if $(filter 5,$(or $(POINTS),5)),guest64k) $(if $(filter 9,$(or $(POINTS),9)),foreign)
	$(Q)$(MAKE) --no-print-directory all sim unit programs fuzz fuzzers
	$(Q)$(if $(EMULATE),$(MAKE) --no-print-directory CROSS=aarch64 all unit sim programs)
	$(Q)BUILD=$(BUILD) EMULATE='$(EMULATE)' tests/trust/run $(POINTS)
.PHONY: trust

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

test-drivers: ## the hooks against later CUDA headers and real drivers' exports: downloads both into .deps
	$(Q)scripts/install-deps build test drivers
	$(Q)$(MAKE) --no-print-directory all sim
	$(Q)BUILD=$(BUILD) tests/run tests/sim/test_hooks.py
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
	$(Q)$(CC) $(bench_flags) -Ipreload -pthread -o $@ $^
$(BUILD)/bench/%.so: tests/bench/%.c
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(bench_flags) -D_GNU_SOURCE -fPIC -shared -o $@ $<
bench-programs: $(BUILD)/bench/pairs $(BUILD)/bench/table $(BUILD)/bench/empty.so $(BUILD)/bench/passthrough.so

##@ Installing
VERSION := $(shell sed -n 's/^#define SG_VERSION_TEXT "\(.*\)"/\1/p' include/sparkguard_abi.h)

UNITS := $(notdir $(wildcard scripts/systemd/*))

# MODE:FILE:PLACE: what install puts in its place, uninstall takes from there.
installed := 755:$(BUILD)/libsparkguard.so:$(LIBDIR)/libsparkguard.so \
    $(foreach tool,$(TOOL_NAMES),755:$(BUILD)/$(tool):$(PREFIX)/bin/$(tool) \
        644:tools/$(tool).1:$(MANDIR)/man1/$(tool).1 644:tools/sparkguard.bash:$(BASHDIR)/$(tool)) \
    644:$(BUILD)/install/sparkguard.3:$(MANDIR)/man3/sparkguard.3 \
    644:$(BUILD)/man/libsparkguard.7:$(MANDIR)/man7/libsparkguard.7 \
    644:$(BUILD)/install/sparkguard.pc:$(LIBDIR)/pkgconfig/sparkguard.pc \
    644:include/sparkguard.h:$(PREFIX)/include/sparkguard.h \
    644:tools/sparkguard.py:$(PYTHONDIR)/sparkguard.py \
    $(foreach unit,$(UNITS),644:$(BUILD)/install/$(unit):$(UNITDIR)/$(unit))

# They name the places of others.
$(BUILD)/install/sparkguard.3: tools/sparkguard.3 force
	@mkdir -p $(@D)
	$(Q)sed 's,/usr/local/share/sparkguard,$(PYTHONDIR),' $< >$@
$(BUILD)/install/%: scripts/systemd/% force
	@mkdir -p $(@D)
	$(Q)sed 's,^ExecStart=,&$(PREFIX)/bin/,' $< >$@
$(BUILD)/install/sparkguard.pc: tools/sparkguard.pc.in force
	@mkdir -p $(@D)
	$(Q)sed 's,@PREFIX@,$(PREFIX),;s,@LIBDIR@,$(LIBDIR),;s,@VERSION@,$(VERSION),' $< >$@

install: all $(BUILD)/install/sparkguard.3 $(BUILD)/install/sparkguard.pc $(UNITS:%=$(BUILD)/install/%) ## PREFIX, DESTDIR, LIBDIR, MANDIR; PYTHONDIR, BASHDIR, UNITDIR
	$(Q)for each in $(installed); do \
	    IFS=: read -r mode file place <<<"$$each"; \
	    install -D -m $$mode $$file "$(DESTDIR)$$place" || exit; \
	done

uninstall: ## removes exactly that
	rm -f $(foreach each,$(installed),"$(DESTDIR)$(lastword $(subst :, ,$(each)))")
	rmdir "$(DESTDIR)$(PREFIX)/share/sparkguard" 2>/dev/null || true

deb: ## a Debian package for this machine, or for CROSS=aarch64, in build/deb
	$(Q)scripts/install-deps build deb $(if $(CROSS),cross)
	$(Q)BUILD=$(BUILD) CROSS=$(CROSS) VERSION=$(VERSION) CUDA_HOME=$(CUDA_HOME) scripts/deb
.PHONY: install uninstall deb

##@ Other
clean: ## remove build/
	rm -rf build

# What libsparkguard.so must export, one name a line: the check compares.
print-exports:
	@sed -n 's/^SG_HOOK_[A-Z]*(\([A-Za-z0-9_]*\).*/\1/p' preload/hooks.def
	@sed -n 's/^int \(sparkguard_[a-z_]*\)(.*/\1/p' include/sparkguard.h

help: ## this text
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	    /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile
.PHONY: clean help print-exports

-include $(shell find $(BUILD)/obj $(BUILD)/fault/obj -name '*.d' 2>/dev/null)
