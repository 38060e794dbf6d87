# Installation and the Debian package. Included by the Makefile.

##@ Installing
VERSION := $(shell sed -n 's/^#define SG_VERSION_TEXT "\(.*\)"/\1/p' include/sparkguard_abi.h)

UNITS := $(notdir $(wildcard scripts/systemd/*))

# MODE:FILE:PLACE of each installed file; uninstall removes the same files.
installed := 755:$(BUILD)/libsparkguard.so:$(LIBDIR)/libsparkguard.so \
    $(foreach tool,$(TOOL_NAMES),755:$(BUILD)/$(tool):$(PREFIX)/bin/$(tool) \
        644:docs/man/$(tool).1:$(MANDIR)/man1/$(tool).1 644:tools/install/completion.bash:$(BASHDIR)/$(tool)) \
    644:$(BUILD)/install/sparkguard.3:$(MANDIR)/man3/sparkguard.3 \
    644:$(BUILD)/man/libsparkguard.7:$(MANDIR)/man7/libsparkguard.7 \
    644:$(BUILD)/install/sparkguard.pc:$(LIBDIR)/pkgconfig/sparkguard.pc \
    644:include/sparkguard.h:$(PREFIX)/include/sparkguard.h \
    644:tools/python/sparkguard.py:$(PYTHONDIR)/sparkguard.py \
    $(foreach unit,$(UNITS),644:$(BUILD)/install/$(unit):$(UNITDIR)/$(unit))

# These files contain the paths of other installed files.
$(BUILD)/install/sparkguard.3: docs/man/sparkguard.3 force
	@mkdir -p $(@D)
	$(Q)sed 's,/usr/local/share/sparkguard,$(PYTHONDIR),' $< >$@
$(BUILD)/install/%: scripts/systemd/% force
	@mkdir -p $(@D)
	$(Q)sed 's,^ExecStart=,&$(PREFIX)/bin/,' $< >$@
$(BUILD)/install/sparkguard.pc: tools/install/sparkguard.pc.in force
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
