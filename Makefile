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
SYSTEMDIR ?= $(PREFIX)/share/sparkguard/system
PAMDIR ?= /usr/share/pam-configs
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

CUDA_HOME ?= $(eval CUDA_HOME := $(shell scripts/install-deps --cuda-home 2>/dev/null))$(CUDA_HOME)
MACHINE := $(shell $(CC) -dumpmachine 2>/dev/null)
IS_GCC := $(shell $(CC) --version 2>/dev/null | grep -qi clang || echo yes)

WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wstrict-prototypes -Wmissing-prototypes \
    -Wundef -Wvla -Wformat=2 -Wcast-qual -Wswitch-enum -Wnull-dereference \
    $(if $(IS_GCC),-Wlogical-op -Wduplicated-cond -Wduplicated-branches,-Wno-gnu-zero-variadic-macro-arguments) $(if $(filter 1,$(WERROR)),-Werror)
CFLAGS ?= -O2 -g
comma := ,
SG_CFLAGS := -std=gnu11 $(WARNINGS) $(CROSS_FLAGS)
SG_CPPFLAGS := -Iinclude -Ipreload/core -Ipreload/guard
ifneq ($(SAN),)
SG_CFLAGS += -fsanitize=$(SAN)$(if $(filter address,$(SAN)),$(comma)undefined -fno-sanitize-recover=undefined) -fno-omit-frame-pointer
SAN_LDFLAGS := -fsanitize=$(SAN)$(if $(filter address,$(SAN)),$(comma)undefined)
endif
PRELOAD_CFLAGS := -D_GNU_SOURCE -fPIC -fvisibility=hidden -ftls-model=initial-exec -fno-semantic-interposition -fno-builtin-malloc -fno-plt \
    $(if $(findstring aarch64,$(MACHINE)),-mbranch-protection=standard $(if $(IS_GCC),-moutline-atomics))
# Cheap to start: code in one segment with the tables that the dynamic linker reads (two mappings and some page faults fewer), and
# no DT_SYMBOLIC, by which it would look for each function of the libc in this library first.
PRELOAD_LDFLAGS := -shared -nostartfiles -Wl,-soname,libsparkguard.so -Wl,-z,defs,-z,relro,-z,now,-z,noexecstack,-z,nodelete,-z,noseparate-code \
    -Wl,-Bsymbolic-functions -Wl,--version-script=preload/guard/hooks/exports.map -Wl,--build-id
# A process keeps shadow stacks and branch targets only if every library is marked for them. Ours have what both ask for.
ifneq ($(findstring x86_64,$(MACHINE)),)
PRELOAD_LDFLAGS += -Wl,-z,shstk $(if $(filter -fcf-protection -fcf-protection=full,$(CFLAGS)),-Wl$(comma)-z$(comma)ibt)
endif

# ---- layers -----------------------------------------------------------------------------------------------------------

# The library's layers are the folders of preload/core and preload/guard. A file uses its own layer and those to the left (docs/architecture.md).
# Those of core make a static library that interposes nothing: the tools and the unit tests link it. The observer is for the tools alone.
LAYERS := core/base core/shared core/account core/admit core/observer guard/watch guard/hooks
CORE := $(foreach layer,$(filter core/%,$(LAYERS)),$(wildcard preload/$(layer)/*.c preload/$(layer)/*/*.c))
WATCH := $(wildcard preload/guard/watch/*.c)
HOOKS := $(wildcard preload/guard/hooks/*.c preload/guard/hooks/*/*.c)
# What every start runs is linked first, behind those tables: on pages that the kernel maps along with theirs.
START := $(addprefix preload/guard/,hooks/lifecycle.c hooks/real.c watch/service_thread.c watch/history.c) \
    $(addprefix preload/core/,base/log.c base/options.c base/text.c base/elf_symbols.c account/thread_record.c shared/segment.c)

TOOL_NAMES := sparkguard sparkguard-report sparkguard-sweep sparkguard-doctor
# The OCI runtime is no tool for people: an engine calls it, and its page is in section 8.
RUNTIME := sparkguard-runtime
# Each tool is linked to those of these libraries that it uses.
TOOL_LIBS := -Wl,--as-needed -lsmartcols -ljansson -lm
TOOL_SHARED := $(filter-out $(wildcard tools/*/main.c),$(wildcard tools/*/*.c tools/*/*/*.c))

core_objects := $(CORE:%.c=$(BUILD)/obj/%.o)
# TRACED=1: each basic block notes that it ran (tests/mutation/trace.c).
ifneq ($(TRACED),)
EXTRA_preload := -fsanitize-coverage=trace-pc
EXTRA_tests/mutation := $(PRELOAD_CFLAGS)
LDFLAGS += -Wl,--build-id
core_objects += $(BUILD)/obj/tests/mutation/trace.o
endif
preload_objects := $(START:%.c=$(BUILD)/obj/%.o)
preload_objects += $(filter-out $(preload_objects),$(HOOKS:%.c=$(BUILD)/obj/%.o) $(BUILD)/obj/preload/guard/hooks/entry_points.o $(WATCH:%.c=$(BUILD)/obj/%.o) \
    $(filter-out $(BUILD)/obj/preload/core/observer/%,$(core_objects)))
tool_objects := $(TOOL_SHARED:%.c=$(BUILD)/obj/%.o)

##@ Building
all: library tools manual ## build everything into build/
library: $(BUILD)/libsparkguard.so ## the library alone
tools: $(TOOL_NAMES:%=$(BUILD)/%) $(BUILD)/$(RUNTIME) system-files ## the tools alone
MAN_PAGES := $(notdir $(wildcard docs/man/*.[1-8])) libsparkguard.7
manual: $(MAN_PAGES:%=$(BUILD)/man/%) ## the manual pages alone
.PHONY: all library tools manual system-files

$(BUILD)/obj/%.o: %.c | headers
	$(SAY) CC $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(SG_CPPFLAGS) $(CPPFLAGS) $(SG_CFLAGS) $(if $(filter preload/%,$<),$(PRELOAD_CFLAGS)) \
	    $(EXTRA_$(firstword $(subst /, ,$<))) $(EXTRA_$(<D)) $(CFLAGS) -isystem $(CUDA_HOME)/include -MMD -MP -c -o $@ $<

# What a tool prints as it is, a script or a style sheet, is a file of its own that its linters read. Each line becomes a string.
$(BUILD)/embedded/%.inc: Makefile include/sparkguard_abi.h
	@mkdir -p $(@D)
	$(Q)sed 's/@VERSION@/$(VERSION)/; s/["\\]/\\&/g; s/.*/"&\\n"/' $(filter %/$*,$^) >$@
$(BUILD)/embedded/fix_script.sh.inc: tools/doctor/fix_script.sh
$(BUILD)/embedded/style.css.inc: tools/report/html/style.css
$(BUILD)/obj/tools/doctor/fix_script.o: $(BUILD)/embedded/fix_script.sh.inc
$(BUILD)/obj/tools/report/html/style.o: $(BUILD)/embedded/style.css.inc

$(BUILD)/obj/%.o: %.S
	$(SAY) AS $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -c -o $@ $<

# Tools read what strangers wrote. _FORTIFY_SOURCE needs an optimizing compiler, and sanitizers have checks of their own.
HARDENED := -fPIE -fstack-protector-strong $(if $(SAN)$(findstring _FORTIFY_SOURCE,$(CPPFLAGS) $(CFLAGS)),,$(if \
    $(filter -O1 -O2 -O3 -Os,$(CFLAGS)),-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2))
TOOL_LDFLAGS := -pie -Wl,-z,relro,-z,now,-z,noexecstack
EXTRA_tools := $(EXTRA_preload) -D_GNU_SOURCE -Itools -I$(BUILD)/embedded -DSG_LIBDIR='"$(LIBDIR)"' -DSG_SYSTEMDIR='"$(SYSTEMDIR)"' $(HARDENED)

# The launcher knows where the library is installed: another LIBDIR makes another launcher.
$(BUILD)/libdir.stamp: force
	@mkdir -p $(@D) && echo '$(LIBDIR) $(SYSTEMDIR)' | cmp -s - $@ || echo '$(LIBDIR) $(SYSTEMDIR)' >$@
$(BUILD)/obj/tools/launch/library.o $(BUILD)/obj/tools/doctor/library.o $(BUILD)/obj/tools/doctor/setup/setup.o $(BUILD)/obj/tools/runtime/settings.o: $(BUILD)/libdir.stamp
force:
.PHONY: force

$(BUILD)/libsparkguard-core.a: $(core_objects)
$(BUILD)/libsparkguard-watch.a: $(WATCH:%.c=$(BUILD)/obj/%.o)
$(BUILD)/libsparkguard-core.a $(BUILD)/libsparkguard-watch.a:
	$(SAY) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

# The linker leaves the mark out for libgcc's atomic functions where these have none (Debian's), though they begin with a place to
# branch to. A copy is marked. That nothing else of libgcc is in the library, tests/qualification/test_aarch64.py shows.
ifneq ($(findstring aarch64,$(MACHINE)),)
MARKED := $(if $(shell readelf -n $$($(CC) -print-libgcc-file-name 2>/dev/null) 2>/dev/null | grep -m1 BTI),,$(BUILD)/libgcc-marked.a)
endif
OBJCOPY = $(if $(CROSS),$(CROSS)-linux-gnu-)objcopy
$(BUILD)/libgcc-marked.a: $(BUILD)/obj/preload/guard/hooks/entry_points.o
	$(SAY) AR $@
	$(Q)$(OBJCOPY) -O binary --only-section=.note.gnu.property $< $@.note
	$(Q)$(OBJCOPY) --add-section .note.gnu.property=$@.note --set-section-flags .note.gnu.property=alloc,readonly,data \
	    --set-section-alignment .note.gnu.property=8 $$($(CC) -print-libgcc-file-name) $@

$(BUILD)/libsparkguard.so: $(preload_objects) $(MARKED) preload/guard/hooks/exports.map
	$(SAY) LINK $@
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(PRELOAD_LDFLAGS) -o $@ $(preload_objects) $(MARKED)

$(BUILD)/libtools.a: $(tool_objects)
	$(SAY) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/sparkguard: $(BUILD)/obj/tools/launch/main.o
$(BUILD)/sparkguard-sweep: $(BUILD)/obj/tools/sweep/main.o
# A check of the doctor's registers itself: nothing names it, so the archive alone would not bring it. A page of the report has
# the doctor's findings as well.
doctor_checks := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard tools/doctor/check_*.c))
$(BUILD)/sparkguard-report: $(BUILD)/obj/tools/report/main.o $(doctor_checks)
$(BUILD)/sparkguard-doctor: $(BUILD)/obj/tools/doctor/main.o $(doctor_checks)
$(BUILD)/$(RUNTIME): $(BUILD)/obj/tools/runtime/main.o
$(TOOL_NAMES:%=$(BUILD)/%) $(BUILD)/$(RUNTIME): $(BUILD)/libtools.a $(BUILD)/libsparkguard-core.a
	$(SAY) LINK $@
	$(Q)$(CC) $(CFLAGS) $(TOOL_LDFLAGS) $(LDFLAGS) $(SAN_LDFLAGS) $(CROSS_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(TOOL_LIBS)
# No container starts without the runtime: it loads the C library and nothing else.
$(BUILD)/$(RUNTIME): TOOL_LIBS := -Wl,--as-needed -Wl,-Bstatic -ljansson -Wl,-Bdynamic

# A page's foot names the program and its version.
MAN_FOOT = 's/^\.Os sparkguard$$/& $(VERSION)/'
$(BUILD)/man/%: docs/man/% include/sparkguard_abi.h Makefile
	@mkdir -p $(@D)
	$(Q)sed -e $(MAN_FOOT) $< >$@

# Its list of variables grows from the table of options: name, kind, default, example and help of each in a line.
$(BUILD)/man/libsparkguard.7: docs/man/libsparkguard.7.in include/options.def include/sparkguard_abi.h Makefile
	$(SAY) MAN $@
	@mkdir -p $(@D)
	$(Q)$(CC) -E -P -x c '-DSG_OPTION(ID,f,n,kind,fallback,example,help)=SPARKGUARD_##ID kind fallback example help' include/options.def | \
	    awk -F '"' 'BEGIN {value["SIZE"] = "Ar SIZE"; value["TIME"] = "Ar TIME"; value["NUMBER"] = "Ar NUMBER"; \
	            value["TEXT"] = "Ar NAME"; value["PATH"] = "Ar DIR"} \
	        {split($$1, word, " "); choice = $$4; gsub(/\|/, " | ", choice); value["CHOICE"] = "Cm " choice; \
	            print ".It Ev " word[1] " Ns = Ns " value[word[2]]; print $$6; if ($$2 != "") print ".Pq default: " $$2}' >$@.list
	$(Q)sed -e '/^@ENVIRONMENT@$$/{r $@.list' -e 'd}' -e $(MAN_FOOT) $< >$@ && rm $@.list

# The hooks need CUDA's types: one sentence if the headers are not there.
headers:
	@test -e "$(CUDA_HOME)/include/cuda.h" || { \
	    echo "CUDA Toolkit 13 headers not found: set CUDA_HOME, or run scripts/install-deps build" >&2; exit 1; }
.PHONY: headers

demo: ## install what is missing, build, show two jobs survive that want more memory than there is
	$(Q)scripts/install-deps build demo
	$(Q)V=$(V) MAKE='$(MAKE)' scripts/build-quietly BUILD=$(BUILD) all demo-programs
	$(Q)BUILD=$(BUILD) scripts/demo
.PHONY: demo

picture: ## docs/reserve.svg, what the report draws of the demo's training job; docs/page.png and page-narrow.png, the page of a small one
	$(Q)scripts/install-deps build demo browser
	$(Q)V=$(V) MAKE='$(MAKE)' scripts/build-quietly BUILD=$(BUILD) all demo-programs
	$(Q)BUILD=$(BUILD) scripts/demo --simulated
	$(Q)sed 's|python3 [^ ]*/scripts/demo_job|python3 scripts/demo_job|' $(BUILD)/demo/training.svg >docs/reserve.svg
	$(Q)PYTHONPATH=tests /usr/bin/python3 tests/browser/picture.py $(BUILD) docs
.PHONY: picture

include tests/tests.mk
include scripts/package.mk

##@ Other
clean: ## remove build/
	rm -rf build

# What libsparkguard.so must export, one name a line: the check compares.
print-exports:
	@sed -n 's/^SG_HOOK_[A-Z]*(\([A-Za-z0-9_]*\).*/\1/p' preload/guard/hooks/hooks.def
	@sed -n 's/^int \(sparkguard_[a-z_]*\)(.*/\1/p' include/sparkguard.h include/sparkguard_abi.h
	@echo __asan_default_options # sanitizer.c

help: ## this text
	@sed -e '/^include tests/r tests/tests.mk' -e '/^include scripts/r scripts/package.mk' Makefile | awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	    /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}'
.PHONY: clean help print-exports

-include $(shell find $(BUILD)/obj $(BUILD)/fault/obj -name '*.d' 2>/dev/null)
