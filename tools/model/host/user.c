/*
 * user.c - names users.
 */
#include <pwd.h>

#include "common/text.h"
#include "model/host/host.h"

char *host_user_name(uid_t user)
{
    const struct passwd *entry = getpwuid(user);
    return entry != NULL ? text_copy(entry->pw_name, 256) : text_format("%u", (unsigned)user);
}
