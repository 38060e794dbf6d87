/*
 * wrap.c - see setup.h: the wrappers. Each engine calls one of a few lines, which knows the runtime that this engine
 * had so far, and calls that one where sparkguard-runtime is gone: containers start also after the package was
 * removed.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "common/text.h"
#include "doctor/setup/setup.h"

char *setup_wrapped(const struct setup *setup, const char *engine)
{
    char *path = text_format("%s/%s-runtime", SETUP_WRAPPERS, engine), *text, *next = NULL;
    size_t length;
    if (setup_read(setup->doctor, path, &text, &length) == SETUP_READ) {
        char *last = strstr(text, "\nexec ");
        if (last != NULL)
            next = text_copy(last + 6, strcspn(last + 6, " \n"));
    }
    if (next != NULL && (next[0] != '/' || setup_is_own(setup->doctor, next))) {
        free(next);
        next = NULL;
    }
    free(text);
    free(path);
    return next;
}

bool setup_wrap(struct setup *setup, const char *engine, const char *next)
{
    char *path = text_format("%s/%s-runtime", SETUP_WRAPPERS, engine);
    char *text = text_format(
        "#!/bin/sh\n"
        "# Made by sparkguard-doctor --setup. The runtime of %s; without sparkguard-runtime, the one that it had.\n"
        "if [ -x %s ]; then\n"
        "    export SPARKGUARD_NEXT_RUNTIME=%s\n"
        "    exec %s \"$@\"\n"
        "fi\n"
        "exec %s \"$@\"\n",
        engine, setup->runtime, next, setup->runtime, next);
    bool is_there = setup_put(setup, path, "755", text);
    free(text);
    if (is_there)
        fprintf(setup->stream, "if [ -x \"$root%s\" ]; then\n    : # so it can be named\n", path);
    free(path);
    return is_there;
}

void setup_wrap_end(const struct setup *setup, const char *engine)
{
    fprintf(setup->stream,
            "else\n"
            "    miss '%s: %s/%s-runtime cannot be executed; what would name it is left as it is'\n"
            "fi\n",
            engine, SETUP_WRAPPERS, engine);
}
