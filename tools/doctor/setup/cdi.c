/*
 * cdi.c - see setup.h: a specification of the Container Device Interface, for those who would rather name the guard in
 * each `docker run --device` than have a runtime for all.
 *
 * Version 0.5.0 has all that is used, and the CDI of Podman 4.3 knows no later one.
 */
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

/* A directory that is missing is left out: an engine makes no container with a mount of what is not there. The records
 * of the container outlive it in the shared directory, so it keeps no history of its own in an image. */
int setup_print_cdi(struct doctor *doctor, FILE *stream)
{
    char *library = setup_find_library(doctor);
    if (library == NULL)
        return SETUP_NONE;
    char *shared = find_shared(doctor);
    bool is_whole = doctor_exists(doctor, shared);
    json_t *edits =
        json_pack("{s:[s,s], s:[o]}", "env", "LD_PRELOAD=/run/sparkguard/libsparkguard.so", "SPARKGUARD_HISTORY=off",
                  "mounts", make_mount(library, "/run/sparkguard/libsparkguard.so", "ro"));
    if (is_whole) {
        json_array_append_new(json_object_get(edits, "env"), json_string("SPARKGUARD_DIR=" SETUP_SHARED));
        json_array_append_new(json_object_get(edits, "mounts"), make_mount(shared, SETUP_SHARED, "rw"));
    } else {
        fprintf(stderr,
                "sparkguard-doctor: %s is missing and left out: sparkguard-doctor --setup makes it, then make this "
                "file anew\n",
                text_printable(shared, true));
    }
    json_print(json_pack("{s:s, s:s, s:[{s:s, s:o}]}", "cdiVersion", "0.5.0", "kind", "sparkguard/memory", "devices",
                         "name", "guarded", "containerEdits", edits),
               stream);
    return is_whole ? SETUP_DONE : SETUP_PARTIAL;
}
