/*
 * Functions found without the dynamic linker: as the dynamic linker finds them.
 */
#include "fixture.h"

#include "base/elf_symbols.h"

#include <dlfcn.h>
#include <errno.h>
#include <gnu/lib-names.h>
#include <sys/single_threaded.h>
#include <time.h>

#if defined(__x86_64__)
static const char vdso_clock[] = "__vdso_clock_gettime";
#else
static const char vdso_clock[] = "__kernel_clock_gettime";
#endif

static const struct sg_elf_symbols *open_libc(void **handle)
{
    static struct sg_elf_symbols symbols;
    const struct link_map *map;
    *handle = dlopen(LIBC_SO, RTLD_LAZY | RTLD_NOLOAD);
    assert_non_null(*handle);
    assert_int_equal(dlinfo(*handle, RTLD_DI_LINKMAP, &map), 0);
    assert_true(sg_elf_symbols_open(&symbols, map->l_addr, map->l_ld));
    return &symbols;
}

PLAIN_TEST(every_function_of_the_libc_is_where_dlsym_says)
{
    void *handle, *address;
    const struct sg_elf_symbols *symbols = open_libc(&handle);
    unsigned functions = 0, chosen = 0;
    const char *end = symbols->strings; /* they follow the symbols in every glibc */
    for (unsigned i = 1; (const char *)(symbols->symbol + i + 1) <= end; i++) {
        const ElfW(Sym) *symbol = &symbols->symbol[i];
        const char *name = symbols->strings + symbol->st_name;
        void *expected = dlsym(handle, name);
        bool is_default = symbol->st_shndx != SHN_UNDEF && (symbols->version[i] & 0x8000) == 0;
        if (!is_default || expected == NULL)
            continue;
        unsigned type = ELF64_ST_TYPE(symbol->st_info);
        assert_true(sg_elf_symbols_find(symbols, name, &address));
        assert_ptr_equal(address, type == STT_FUNC ? expected : NULL);
        functions += type == STT_FUNC;
        chosen += type == STT_GNU_IFUNC;
    }
    assert_true(functions > 1000 && (chosen > 10 || sizeof vdso_clock != sizeof "__vdso_clock_gettime"));
}

PLAIN_TEST(what_is_not_there_is_not_found)
{
    void *handle, *address;
    const struct sg_elf_symbols *symbols = open_libc(&handle);
    assert_false(sg_elf_symbols_find(symbols, "sg_no_such_function", &address));
    assert_false(sg_elf_symbols_find(symbols, "", &address));
    assert_null(sg_elf_symbols_next("sg_no_such_function"));
    assert_null(sg_elf_symbols_vdso("sg_no_such_function"));
}

PLAIN_TEST(next_is_what_rtld_next_finds)
{
    static const char *const names[] = {"malloc", "mmap", "pthread_create", "dlsym", "_exit"};
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *expected = dlsym(RTLD_NEXT, names[i]), *found = sg_elf_symbols_next(names[i]);
        assert_true(found == expected || found == NULL); /* NULL: a sanitizer's, or one that is chosen */
    }
    assert_non_null(sg_elf_symbols_next("dlsym"));
}

PLAIN_TEST(a_variable_is_where_the_program_sees_it)
{
    assert_ptr_equal(sg_elf_symbols_variable("__libc_single_threaded"), &__libc_single_threaded);
    assert_ptr_equal(sg_elf_symbols_variable("program_invocation_name"), &program_invocation_name);
    assert_null(sg_elf_symbols_variable("malloc"));
    assert_null(sg_elf_symbols_variable("sg_no_such_variable"));
}

static void skip_for(const char *test, const char *why)
{
    fprintf(stderr, "%s: skipped: %s\n", test, why); /* as SKIP of fixture.h does in a child */
    skip();
}

PLAIN_TEST(the_vdso_tells_the_time)
{
    struct timespec before, now, after;
    void *address = sg_elf_symbols_vdso(vdso_clock);
    if (address == NULL)
        skip_for(__func__, "no vDSO here, as under valgrind and old emulators");
    int (*gettime)(clockid_t, struct timespec *);
    memcpy(&gettime, &address, sizeof gettime);
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &before), 0);
    assert_int_equal(gettime(CLOCK_MONOTONIC, &now), 0);
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &after), 0);
    assert_true(before.tv_sec <= now.tv_sec && now.tv_sec <= after.tv_sec);
}

PLAIN_TEST(without_a_hash_of_gnus_symbols_are_counted_by_the_old_one)
{
    void *handle, *expected, *address;
    struct sg_elf_symbols symbols = *open_libc(&handle);
    if (symbols.sysv_hash == NULL)
        skip_for(__func__, "the libc has GNU's hash alone, as some distributions build it");
    assert_true(sg_elf_symbols_find(&symbols, "malloc", &expected));
    symbols.gnu_hash = NULL;
    assert_true(sg_elf_symbols_find(&symbols, "malloc", &address));
    assert_ptr_equal(address, expected);
    assert_false(sg_elf_symbols_find(&symbols, "sg_no_such_function", &address));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_function_of_the_libc_is_where_dlsym_says),
        cmocka_unit_test(what_is_not_there_is_not_found),
        cmocka_unit_test(next_is_what_rtld_next_finds),
        cmocka_unit_test(a_variable_is_where_the_program_sees_it),
        cmocka_unit_test(the_vdso_tells_the_time),
        cmocka_unit_test(without_a_hash_of_gnus_symbols_are_counted_by_the_old_one),
    };
    return cmocka_run_group_tests_name("symbols", tests, NULL, NULL);
}
