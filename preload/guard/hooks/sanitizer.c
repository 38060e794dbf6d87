/*
 * sanitizer.c - see sanitizer.h.
 */
#include "hooks/sanitizer.h"

#include "base/compiler.h"
#include "base/elf_symbols.h"

#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

/* This library is built with one itself, for its tests. */
bool sg_sanitizer_is_behind(void)
{
    return false;
}

#else

/* Every runtime has this function, also UBSan's, which replaces nothing. Each name costs each start a search: others
 * are looked for only where this one is there. The dynamic linker leaves NULL for what is not. */
extern void __sanitizer_report_error_summary(const char *text) __attribute__((weak));

bool sg_sanitizer_is_behind(void)
{
    static const char *const names[] = {"__asan_init", "__hwasan_init", "__lsan_init", "__msan_init", "__tsan_init"};
    if (SG_LIKELY(__sanitizer_report_error_summary == NULL))
        return false;
    for (unsigned i = 0; i < SG_ARRAY_LENGTH(names); i++)
        if (sg_elf_symbols_between(names[i]) != NULL)
            return true;
    return false;
}

#endif

/* The runtime of ASan ends the program where it is not the first library, unless this function, which is the program's
 * to define, says otherwise. It need not be the first here: what it replaces passes through to it. */
const char *__asan_default_options(void);

SG_EXPORT const char *__asan_default_options(void)
{
    return "verify_asan_link_order=0";
}
