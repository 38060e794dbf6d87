/*
 * cdi.c - see setup.h: a specification of the Container Device Interface, for those who would rather name the guard in
 * each `docker run --device` than have a runtime for all.
 *
 * Version 0.5.0 has all that is used, and the CDI of Podman 4.3 knows no later one.
 */
#define _GNU_SOURCE
#include <string.h>

#include "common/json.h"
#include "common/text.h"
#include "common/toml.h"
#include "doctor/setup/setup.h"

/* Returns the shared directory of this host: what sparkguard-runtime's file says, else the default. */
static char *find_shared(const struct doctor *doctor)
{
    char text[4096], *shared = NULL;
    if (doctor_read(doctor, SETUP_CONFIGURATION, text, sizeof text) > 0)
        shared = toml_value(text, "", "shared");
    if (shared != NULL && shared[0] == '/')
        return shared;
    return text_copy(SETUP_SHARED, 64);
}

static json_t *make_mount(const char *host, const char *container, const char *access)
{
    return json_pack("{s:o, s:s, s:[s,s,s,s]}", "hostPath", json_of_text(host), "containerPath", container, "options",
                     access, "nosuid", "nodev", "bind");
}

/* Adds a directory and the variable that names it, or says that it is missing: an engine makes no container with a mount
 * of what is not there. Returns whether it was added. */
static bool add_directory(const struct doctor *doctor, json_t *edits, const char *host, const char *container,
                          const char *variable)
{
    if (!doctor_exists(doctor, host)) {
        char *printable = text_printable(host, true);
        fprintf(stderr,
                "sparkguard-doctor: %s is missing and left out: sparkguard-doctor --setup makes it, then make this "
                "file anew\n",
                printable);
        return false;
    }
    char *setting = text_format("%s=%s", variable, container);
    json_array_append_new(json_object_get(edits, "env"), json_string(setting));
    json_array_append_new(json_object_get(edits, "mounts"), make_mount(host, container, "rw"));
    return true;
}

int setup_print_cdi(struct doctor *doctor, FILE *stream)
{
    char *library = setup_find_library(doctor);
    if (library == NULL)
        return SETUP_NONE;
    char *shared = find_shared(doctor);
    json_t *edits = json_pack("{s:[s], s:[o]}", "env", "LD_PRELOAD=/run/sparkguard/libsparkguard.so", "mounts",
                              make_mount(library, "/run/sparkguard/libsparkguard.so", "ro"));
    bool is_whole = add_directory(doctor, edits, shared, SETUP_SHARED, "SPARKGUARD_DIR");
    is_whole = add_directory(doctor, edits, SETUP_HISTORY, SETUP_HISTORY, "SPARKGUARD_HISTORY") && is_whole;
    json_print(json_pack("{s:s, s:s, s:[{s:s, s:o}]}", "cdiVersion", "0.5.0", "kind", "sparkguard/memory", "devices",
                         "name", "guarded", "containerEdits", edits),
               stream);
    return is_whole ? SETUP_DONE : SETUP_PARTIAL;
}
