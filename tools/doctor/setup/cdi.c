/*
 * cdi.c - see setup.h: a specification of the Container Device Interface, for those who would rather name the guard in
 * each `docker run --device` than have a runtime for all.
 *
 * Version 0.5.0 has all that is used, and the CDI of Podman 4.3 knows no later one.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/text.h"
#include "common/toml.h"
#include "doctor/setup/setup.h"

/* Returns the shared directory of this host: what sparkguard-runtime's file says, else the default. */
static char *find_shared(const struct doctor *doctor)
{
    char *text, *shared = NULL;
    size_t length;
    if (setup_read(doctor, SETUP_CONFIGURATION, &text, &length) == SETUP_READ)
        shared = toml_value(text, "", "shared");
    free(text);
    if (shared != NULL && shared[0] == '/')
        return shared;
    free(shared);
    return text_copy(SETUP_SHARED, 64);
}

static json_t *make_mount(const char *host, const char *container, const char *access)
{
    return json_pack("{s:o, s:s, s:[s,s,s,s]}", "hostPath", json_of_text(host), "containerPath", container, "options",
                     access, "nosuid", "nodev", "bind");
}

int setup_print_cdi(struct doctor *doctor, FILE *stream)
{
    char *library = setup_find_library(doctor);
    if (library == NULL)
        return SETUP_NONE;
    char *shared = find_shared(doctor);
    json_t *edits = json_pack("{s:[s,s,s], s:[o,o,o]}", "env", "LD_PRELOAD=/run/sparkguard/libsparkguard.so",
                              "SPARKGUARD_DIR=" SETUP_SHARED, "SPARKGUARD_HISTORY=" SETUP_HISTORY, "mounts",
                              make_mount(library, "/run/sparkguard/libsparkguard.so", "ro"),
                              make_mount(shared, SETUP_SHARED, "rw"), make_mount(SETUP_HISTORY, SETUP_HISTORY, "rw"));
    json_print(json_pack("{s:s, s:s, s:[{s:s, s:o}]}", "cdiVersion", "0.5.0", "kind", "sparkguard/memory", "devices",
                         "name", "guarded", "containerEdits", edits),
               stream);
    free(shared);
    free(library);
    return SETUP_WHOLE;
}
