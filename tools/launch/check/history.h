/*
 * history.h - whether the folder of the history can be used, by the library's rules. sparkguard --check and
 * sparkguard-doctor have the answer from here. Single-threaded.
 */
#ifndef SG_TOOLS_LAUNCH_CHECK_HISTORY_H
#define SG_TOOLS_LAUNCH_CHECK_HISTORY_H

#include <stdbool.h>

/* The folder, and another one, in commands that fix something. */
#define HISTORY_FOLDER "\"${SPARKGUARD_HISTORY:-${XDG_STATE_HOME:-$HOME/.local/state}/sparkguard}\""
#define HISTORY_ELSEWHERE "export SPARKGUARD_HISTORY=/var/tmp/sparkguard-$(id -u)  # or another local folder of yours"

struct history_folder {
    char *existing;    /* the folder, or the part of its path that is there */
    bool is_whole;     /* it is the folder itself */
    int failure;       /* an errno: it cannot be looked at; 0: it can */
    const char *fault; /* why it cannot be used; NULL: it can, or is not known */
    const char *fix;   /* a command that mends that */
};

/* Judges the folder of the history. It may be missing, because the library makes it; for the default folder also the
 * folders above it, up to the home directory. */
struct history_folder history_judge(const char *path);

#endif
