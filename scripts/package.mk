# Installation, the Debian package, the Python wheel and the manual as HTML. Included by the Makefile.

##@ Installing
VERSION := $(shell sed -n 's/^#define SG_VERSION_TEXT "\(.*\)"/\1/p' include/sparkguard_abi.h)

# The version of the source tree gives way to the program's.
MODULE := $(filter-out _version.py,$(notdir $(wildcard tools/python/sparkguard/*.py tools/python/sparkguard/py.typed)))
UNITS := $(notdir $(wildcard scripts/systemd/*))

# MODE:FILE:PLACE of each installed file; uninstall removes the same files.
installed := 755:$(BUILD)/libsparkguard.so:$(LIBDIR)/libsparkguard.so \
    $(foreach tool,$(TOOL_NAMES),755:$(BUILD)/$(tool):$(PREFIX)/bin/$(tool) \
        644:$(BUILD)/man/$(tool).1:$(MANDIR)/man1/$(tool).1 644:tools/install/completion.bash:$(BASHDIR)/$(tool)) \
    755:$(BUILD)/$(RUNTIME):$(PREFIX)/bin/$(RUNTIME) 644:$(BUILD)/man/$(RUNTIME).8:$(MANDIR)/man8/$(RUNTIME).8 \
    644:$(BUILD)/install/sparkguard.3:$(MANDIR)/man3/sparkguard.3 \
    644:$(BUILD)/man/libsparkguard.7:$(MANDIR)/man7/libsparkguard.7 \
    644:$(BUILD)/install/sparkguard.pc:$(LIBDIR)/pkgconfig/sparkguard.pc \
    644:include/sparkguard.h:$(PREFIX)/include/sparkguard.h \
    644:$(BUILD)/install/_version.py:$(PYTHONDIR)/sparkguard/_version.py \
    $(foreach file,$(MODULE),644:tools/python/sparkguard/$(file):$(PYTHONDIR)/sparkguard/$(file)) \
    $(foreach unit,$(UNITS),644:$(BUILD)/install/$(unit):$(UNITDIR)/$(unit))

# What sparkguard-doctor --setup switches on: inert where they are. In the build folder it finds them beside itself.
SYSTEM := $(notdir $(wildcard tools/install/system/*))
installed_system := $(foreach file,$(SYSTEM),$(if $(filter user-generator.sh,$(file)),755,644):$(BUILD)/install/system/$(file):$(SYSTEMDIR)/$(file)) \
    644:$(BUILD)/install/system/pam-config:$(PAMDIR)/sparkguard

# These files contain the paths of other installed files.
$(BUILD)/system/%: tools/install/system/%
	@mkdir -p $(@D)
	$(Q)cp $< $@
$(BUILD)/install/system/%: tools/install/system/% force
	@mkdir -p $(@D)
	$(Q)sed 's,@LIBDIR@,$(LIBDIR),g;s,@SYSTEMDIR@,$(SYSTEMDIR),g' $< >$@
$(BUILD)/install/sparkguard.3: $(BUILD)/man/sparkguard.3 force
	@mkdir -p $(@D)
	$(Q)sed 's,/usr/local/share/sparkguard,$(PYTHONDIR),' $< >$@
$(BUILD)/install/%: scripts/systemd/% force
	@mkdir -p $(@D)
	$(Q)sed 's,^ExecStart=,&$(PREFIX)/bin/,' $< >$@
$(BUILD)/install/sparkguard.pc: tools/install/sparkguard.pc.in force
	@mkdir -p $(@D)
	$(Q)sed 's,@PREFIX@,$(PREFIX),;s,@LIBDIR@,$(LIBDIR),;s,@VERSION@,$(VERSION),' $< >$@
$(BUILD)/install/_version.py: force
	@mkdir -p $(@D)
	$(Q)printf '"""The version, as include/sparkguard_abi.h has it."""\n\n__version__ = "%s"\n' $(VERSION) >$@

install: all $(addprefix $(BUILD)/install/,sparkguard.3 sparkguard.pc _version.py) $(UNITS:%=$(BUILD)/install/%) ## PREFIX, DESTDIR, LIBDIR, MANDIR; PYTHONDIR, BASHDIR, UNITDIR
	$(Q)for each in $(installed); do \
	    IFS=: read -r mode file place <<<"$$each"; \
	    install -D -m $$mode $$file "$(DESTDIR)$$place" || exit; \
	done
	$(if $(DESTDIR),,@printf 'install: %s\n' \
	    '$(PREFIX)/bin/sparkguard finds the library by itself' \
	    'without it: LD_PRELOAD=$(LIBDIR)/libsparkguard.so, or the name alone once ldconfig knows $(LIBDIR)' \
	    'Python finds the module with PYTHONPATH=$(PYTHONDIR)')

system-files: $(addprefix $(BUILD)/system/,$(SYSTEM))
install-system: $(addprefix $(BUILD)/install/system/,$(SYSTEM)) ## what sparkguard-doctor --setup switches on; SYSTEMDIR, PAMDIR
	$(Q)for each in $(installed_system); do \
	    IFS=: read -r mode file place <<<"$$each"; \
	    install -D -m $$mode $$file "$(DESTDIR)$$place" || exit; \
	done

uninstall: ## removes exactly what both installed
	rm -f $(foreach each,$(installed) $(installed_system),"$(DESTDIR)$(lastword $(subst :, ,$(each)))")
	rm -rf "$(DESTDIR)$(PYTHONDIR)/sparkguard/__pycache__"
	rmdir "$(DESTDIR)$(PYTHONDIR)/sparkguard" "$(DESTDIR)$(SYSTEMDIR)" "$(DESTDIR)$(PREFIX)/share/sparkguard" 2>/dev/null || true

deb: ## a Debian package for this machine, or for CROSS=aarch64, in build/deb
	$(Q)scripts/install-deps build deb $(if $(CROSS),cross)
	$(Q)BUILD=$(BUILD) CROSS=$(CROSS) VERSION=$(VERSION) CUDA_HOME=$(CUDA_HOME) scripts/deb
.PHONY: install install-system uninstall deb

# What the wheel holds beside the Python package. Linked without symbols, a build identifies itself by its code alone: in another
# folder the same sources make the same bytes. The tools look for shared libraries beside themselves. SYSROOT is a root file system
# with an older C library, which the tools are linked with and then need no newer one than; `make release` names Debian 11's. The
# library needs none of it. Such a wheel has folders of its own.
SYSROOT ?=
WHEEL_KIND := $(if $(SYSROOT),manylinux,wheel)
WHEEL := $(BUILD)/$(WHEEL_KIND)-files
wheel_ldflags := $(if $(SYSROOT),--sysroot=$(SYSROOT) -B$(SYSROOT)/usr/lib/$(MACHINE)/ -L$(SYSROOT)/usr/lib/$(MACHINE) -L$(SYSROOT)/lib/$(MACHINE),\
    $(CROSS_LDFLAGS))
# Functions that are in libc since glibc 2.34.
wheel_libs := $(TOOL_LIBS) $(if $(SYSROOT),-lpthread -ldl -lrt)
wheel_programs := $(WHEEL)/native/libsparkguard.so $(TOOL_NAMES:%=$(WHEEL)/native/%)
$(WHEEL)/native/libsparkguard.so: $(BUILD)/libsparkguard.so
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(PRELOAD_LDFLAGS) -s -o $@ $(preload_objects) $(MARKED)
$(TOOL_NAMES:%=$(WHEEL)/native/%): $(WHEEL)/native/%: $(BUILD)/%
	$(SAY) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(TOOL_LDFLAGS) $(LDFLAGS) $(wheel_ldflags) -s -Wl,-rpath,'$$ORIGIN' -o $@ \
	    $(BUILD)/obj/tools/$(or $(patsubst sparkguard-%,%,$(filter sparkguard-%,$(*F))),launch)/main.o \
	    $(if $(filter sparkguard-doctor sparkguard-report,$(*F)),$(doctor_checks)) $(BUILD)/libtools.a \
	    $(BUILD)/libsparkguard-core.a $(wheel_libs)

# Another SYSROOT makes other programs.
$(WHEEL)/sysroot.stamp: force
	@mkdir -p $(@D) && echo '$(SYSROOT)' | cmp -s - $@ || echo '$(SYSROOT)' >$@
$(TOOL_NAMES:%=$(WHEEL)/native/%): $(WHEEL)/sysroot.stamp

wheel-files: $(wheel_programs) manual $(BUILD)/install/_version.py
	$(Q)BUILD=$(BUILD) KIND=$(WHEEL_KIND) CROSS=$(CROSS) SYSROOT=$(SYSROOT) CC='$(CC)' scripts/wheel files

wheel: ## a Python wheel with library and tools, for this machine or CROSS=aarch64, in build/wheel; with SYSROOT in build/manylinux
	$(Q)scripts/install-deps build wheel $(if $(CROSS),cross)
	$(Q)$(MAKE) --no-print-directory wheel-files
	$(Q)BUILD=$(BUILD) KIND=$(WHEEL_KIND) scripts/wheel
.PHONY: wheel wheel-files

release: ## what is published of a version, of what is committed, in dist/: packages and wheels for amd64 and arm64, source, SBOM, checksums
	$(Q)scripts/install-deps build release
	$(Q)BUILD=$(BUILD) CUDA_HOME=$(or $(CUDA_HOME),$$(scripts/install-deps --cuda-home)) scripts/release
.PHONY: release

docs: ## the manual pages as HTML, in build/docs, with an index
	$(Q)scripts/install-deps docs
	$(Q)$(MAKE) --no-print-directory manual
	$(Q)BUILD=$(BUILD) VERSION=$(VERSION) scripts/render-manual
.PHONY: docs
