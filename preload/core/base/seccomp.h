/*
 * seccomp.h - whether a seccomp filter may end this process because of a system call of the library.
 *
 * Filters with a list of allowed calls often lack calls that few programs need: neither systemd's @system-service nor
 * Chromium's filter allows mincore. The action for other calls cannot be queried, and a trial may be fatal. Under any
 * filter, the library therefore uses only calls that common filters allow or answer with an error (syscall.h).
 */
#ifndef SG_PRELOAD_BASE_SECCOMP_H
#define SG_PRELOAD_BASE_SECCOMP_H

#include <stdbool.h>

/* Whether a filter is installed. Reads /proc/self/status, about 5 us; a filter once found is remembered, because
 * filters are never removed. True also if the file cannot be read for a reason that suggests a sandbox. Any thread. */
bool sg_seccomp_is_on(void);

/* Whether the filter may be one that the program itself installed (no_new_privs is set), for its own needs. It may end
 * the process because it creates another one, or gives advice about files. A container's filter comes from its
 * administrator and allows that. */
bool sg_seccomp_is_strict(void);

/* The answer of sg_seccomp_is_on for one scan, say: found when it is first needed, which costs a read of /proc. */
struct sg_seccomp_answer {
    bool is_known, is_on;
};

static inline bool sg_seccomp_ask_once(struct sg_seccomp_answer *answer)
{
    if (!answer->is_known)
        *answer = (struct sg_seccomp_answer){.is_known = true, .is_on = sg_seccomp_is_on()};
    return answer->is_on;
}

#endif
