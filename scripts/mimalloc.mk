# mimalloc.mk - mimalloc's own tests, with mimalloc linked in: make -f mimalloc.mk SOURCE=mimalloc-2.0.9 OUT=folder
#
# Plain, with its own checks (debug), and where it takes the place of the C library's malloc (override).

TESTS := api api-fill stress
BINARIES := $(TESTS:%=$(OUT)/bin/test-%) $(TESTS:%=$(OUT)/bin/debug-%) $(addprefix $(OUT)/bin/override-,c cxx stress)
CPPFLAGS := -I$(SOURCE)/include -DMI_STATIC_LIB
CFLAGS := -w -O2 -pthread
CXXFLAGS := $(CFLAGS)
OVERRIDE := $(OUT)/override.o

all: $(BINARIES)
.PHONY: all
$(BINARIES) $(OVERRIDE): | $(OUT)/bin
$(OUT)/bin:
	mkdir -p $@
$(OUT)/bin/test-%: $(SOURCE)/test/test-%.c
	$(CC) $(CPPFLAGS) $(CFLAGS) -DMI_DEBUG=0 -DNDEBUG -o $@ $< $(SOURCE)/src/static.c
$(OUT)/bin/debug-%: $(SOURCE)/test/test-%.c
	$(CC) $(CPPFLAGS) $(CFLAGS) -DMI_DEBUG=3 -o $@ $< $(SOURCE)/src/static.c
$(OVERRIDE):
	$(CC) $(CPPFLAGS) $(CFLAGS) -DMI_MALLOC_OVERRIDE -DMI_DEBUG=0 -fno-builtin-malloc -c -o $@ $(SOURCE)/src/static.c
$(OUT)/bin/override-c: $(SOURCE)/test/main-override-static.c $(OVERRIDE)
	$(CC) $(CPPFLAGS) $(CFLAGS) -o $@ $^
$(OUT)/bin/override-cxx: $(SOURCE)/test/main-override.cpp $(OVERRIDE)
	$(CXX) $(CPPFLAGS) $(CXXFLAGS) -o $@ $^
$(OUT)/bin/override-stress: $(SOURCE)/test/test-stress.c $(OVERRIDE)
	$(CC) $(CPPFLAGS) $(CFLAGS) -DUSE_STD_MALLOC -o $@ $^
