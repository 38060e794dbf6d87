# glibc.mk - glibc's own tests built alone, against the machine's libc: make -k -f glibc.mk SOURCE=glibc-2.36 OUT=folder
#
# A test that needs more than the public headers, or other parts of glibc's build, does not build and is left out (-k).

FOLDERS := malloc nptl sysdeps/pthread posix stdlib
SUPPORT := $(notdir $(wildcard $(SOURCE)/support/*.c))
OBJECTS := $(SUPPORT:%.c=$(OUT)/support/%.o)
TESTS := $(foreach folder,$(FOLDERS),$(wildcard $(SOURCE)/$(folder)/tst-*.c $(SOURCE)/$(folder)/test-*.c))
# Of the source's own headers those that stand alone; its other folders by links.
HEADERS := array_length.h libc-diag.h intprops.h verify.h libc-pointer-arith.h list.h list_t.h stackinfo.h scratch_buffer.h
LINKS := support malloc nptl posix stdlib sysdeps resolv time elf test-skeleton.c
PATHS := SRCDIR OBJDIR OBJDIR_ELF_LDSO ROOTSBINDIR SBINDIR BINDIR INSTDIR LIBDIR SYSCONFDIR COMPLOCALEDIR ROOTLIBDIR SLIBDIR
CPPFLAGS := -D_GNU_SOURCE -D_ISOMAC -DTIMEOUTFACTOR=1 -include limits.h -I$(OUT)/include -I$(SOURCE)/support \
	-DROOTLIBDIR='"/lib"' -DOBJPFX='"$(OUT)/"' $(PATHS:%=-D%_PATH='"/usr"') $(FOLDERS:%=-iquote $(SOURCE)/%)
CFLAGS := -w -O2 -g0 -std=gnu11 -fgnu89-inline -pthread

vpath %.c $(FOLDERS:%=$(SOURCE)/%)

.PHONY: all support
all: $(patsubst %.c,$(OUT)/bin/%,$(notdir $(TESTS)))
support: $(OBJECTS)

$(OUT)/include/made:
	mkdir -p $(@D) $(OUT)/support $(OUT)/bin
	for link in $(LINKS); do ln -sfn $(SOURCE)/$$link $(@D)/$$link; done
	for header in $(HEADERS); do \
		for file in $(SOURCE)/include/$$header $(SOURCE)/sysdeps/$(shell uname -m)/$$header; do \
			! [ -f $$file ] || cp $$file $(@D); done; done
	touch $(@D)/config.h $@
$(OUT)/support/%.o: $(SOURCE)/support/%.c $(OUT)/include/made
	$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<
# What of it does not build is missed only by the tests that use it.
$(OUT)/libsupport.a: $(OUT)/include/made
	-$(MAKE) -k -f $(firstword $(MAKEFILE_LIST)) SOURCE=$(SOURCE) OUT=$(OUT) support
	ar rcs $@ $(OUT)/support/*.o
$(OUT)/bin/%: %.c $(OUT)/libsupport.a
	$(CC) $(CPPFLAGS) $(CFLAGS) -o $@ $< $(OUT)/libsupport.a -lm -ldl -lrt
