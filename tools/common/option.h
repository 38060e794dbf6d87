/*
 * option.h - options that need no code: the key in the table says which member of the parser's input they set.
 */
#ifndef SG_TOOLS_COMMON_OPTION_H
#define SG_TOOLS_COMMON_OPTION_H

#include <argp.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Above the keys of other options, and below argp's own. */
enum { OPTION_SETS_FLAG = 1 << 20, OPTION_SETS_TEXT = 2 << 20 };

/* Keys: a bool becomes true; a const char * becomes the argument. */
#define OPTION_FLAG(type, member) (OPTION_SETS_FLAG | (int)offsetof(type, member))
#define OPTION_TEXT(type, member) (OPTION_SETS_TEXT | (int)offsetof(type, member))

/* Sets what the key of an option says. Returns 0, or ARGP_ERR_UNKNOWN for another key. */
static inline error_t option_set(void *input, int key, const char *argument)
{
    static const bool yes = true;
    int what = key & ~(OPTION_SETS_FLAG - 1);
    char *member = (char *)input + (key & (OPTION_SETS_FLAG - 1));
    if (what == OPTION_SETS_FLAG)
        memcpy(member, &yes, sizeof yes);
    else if (what == OPTION_SETS_TEXT)
        memcpy(member, &argument, sizeof argument);
    else
        return ARGP_ERR_UNKNOWN;
    return 0;
}

#endif
