/*
 * logins.c - see setup.h: logins, users' services, and the services that take memory.
 *
 * Every login gets the library, by PAM and by systemd's user manager. The shared directory is given only to who can
 * write there: the library tells all others in each of their programs that it cannot.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "common/text.h"
#include "common/tool.h"
#include "doctor/setup/setup.h"

#define PAM_ENV "/etc/security/pam_env.conf"

/* Returns whether a file sets LD_PRELOAD outside of our block, or cannot be read. */
static bool sets_preload(const struct setup *setup, const char *path)
{
    char *text;
    size_t length;
    enum setup_file file = setup_read(setup->doctor, path, &text, &length);
    bool is_set = file == SETUP_ODD || file == SETUP_UNREADABLE;
    if (text != NULL)
        setup_cut_block(text);
    for (const char *line = text; line != NULL && !is_set; line = strchr(line, '\n')) {
        line += *line == '\n';
        line += strspn(line, " \t");
        is_set = strncmp(line, "LD_PRELOAD", 10) == 0 || strncmp(line, "export LD_PRELOAD", 17) == 0;
    }
    free(text);
    return is_set;
}

static void add_pam(struct setup *setup)
{
    if (!doctor_exists(setup->doctor, "/etc/security")) {
        setup_comment(setup, "There is no PAM here.");
        return;
    }
    const char *other = sets_preload(setup, PAM_ENV)              ? PAM_ENV
                        : sets_preload(setup, "/etc/environment") ? "/etc/environment"
                                                                  : NULL;
    if (other != NULL) {
        setup_leave(setup, "logins: %s sets LD_PRELOAD or cannot be read; put %s first there", other, setup->library);
        return;
    }
    char *block = text_format("LD_PRELOAD DEFAULT=%s OVERRIDE=${LD_PRELOAD}\n", setup->library);
    setup_add(setup, PAM_ENV, block);
    free(block);
}

void setup_logins(struct setup *setup)
{
    const char *library = setup->library;
    fputc('\n', setup->stream);
    setup_comment(setup, "Logins by SSH, console, su and cron, from the next one on: PAM's pam_env.");
    add_pam(setup);
    char *text = text_format(
        "# Made by sparkguard-doctor --setup. Members of the group share one directory; no program complains of a\n"
        "# library that is gone.\n"
        "if [ ! -r %s ]; then\n"
        "    if [ \"${LD_PRELOAD:-}\" = %s ]; then unset LD_PRELOAD; fi\n"
        "elif [ -w %s ] && [ -z \"${SPARKGUARD_DIR:-}\" ]; then\n"
        "    export SPARKGUARD_DIR=%s\n"
        "fi\n",
        library, library, SETUP_SHARED, SETUP_SHARED);
    (void)setup_put(setup, "/etc/profile.d/sparkguard.sh", "644", text);
    free(text);
    fputc('\n', setup->stream);
    setup_comment(setup, "Users' services, from the next start of their manager on: systemd's environment.d.");
    if (!doctor_exists(setup->doctor, "/etc/systemd") && !doctor_exists(setup->doctor, "/usr/lib/systemd")) {
        setup_comment(setup, "There is no systemd here.");
        return;
    }
    text = text_format("# Made by sparkguard-doctor --setup.\n"
                       "LD_PRELOAD=%s${LD_PRELOAD:+:$LD_PRELOAD}\n",
                       library);
    (void)setup_put(setup, "/etc/environment.d/60-sparkguard.conf", "644", text);
    free(text);
    text = text_format("#!/bin/sh\n"
                       "# Made by sparkguard-doctor --setup. Members of the group share one directory.\n"
                       "if [ -w %s ] && [ -z \"${SPARKGUARD_DIR:-}\" ]; then\n"
                       "    echo SPARKGUARD_DIR=%s\n"
                       "fi\n",
                       SETUP_SHARED, SETUP_SHARED);
    (void)setup_put(setup, "/etc/systemd/user-environment-generators/60-sparkguard", "755", text);
    free(text);
}

enum { UNITS_MAX = 32 };

struct units {
    char *name[UNITS_MAX];
    size_t count;
};

static bool is_wanted(const char *name)
{
    size_t length = strlen(name);
    return (strncmp(name, "ollama", 6) == 0 || strncmp(name, "jupyter", 7) == 0) && length > 8 && length < 128 &&
           strcmp(name + length - 8, ".service") == 0 &&
           name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@_.-")] == '\0';
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void list_units(const struct setup *setup, struct units *units)
{
    static const char *const folders[] = {"/lib/systemd/system", "/usr/lib/systemd/system",
                                          "/usr/local/lib/systemd/system", "/etc/systemd/system"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        char *path = text_format("%s%s", setup->doctor->root, folders[i]);
        DIR *stream = opendir(path);
        const struct dirent *entry;
        while (stream != NULL && units->count < UNITS_MAX && (entry = readdir(stream)) != NULL) {
            bool is_known = !is_wanted(entry->d_name);
            for (size_t k = 0; k < units->count && !is_known; k++)
                is_known = strcmp(units->name[k], entry->d_name) == 0;
            if (!is_known)
                units->name[units->count++] = text_copy(entry->d_name, 256);
        }
        if (stream != NULL)
            closedir(stream);
        free(path);
    }
    if (units->count > 0)
        qsort(units->name, units->count, sizeof units->name[0], compare_names);
}

static void put_unit(struct setup *setup, const char *unit)
{
    char *path = text_format("/etc/systemd/system/%s.d/60-sparkguard.conf", unit), *before;
    size_t length;
    bool is_ours = setup_read(setup->doctor, path, &before, &length) == SETUP_READ;
    free(before);
    if (!is_ours && doctor_unit_mentions(setup->doctor, unit, "LD_PRELOAD")) {
        setup_leave(setup, "%s sets LD_PRELOAD already; put %s first there", unit, setup->library);
    } else {
        char *text = text_format("# Made by sparkguard-doctor --setup.\n"
                                 "[Service]\n"
                                 "Environment=LD_PRELOAD=%s\n"
                                 "Environment=SPARKGUARD_JOB=%%N\n"
                                 "Environment=SPARKGUARD_DIR=%s\n"
                                 "SupplementaryGroups=sparkguard\n"
                                 "# ProtectSystem=strict would close it to the service.\n"
                                 "ReadWritePaths=-%s\n"
                                 "# If the kernel must kill, then this and not sshd.\n"
                                 "OOMScoreAdjust=500\n",
                                 setup->library, SETUP_SHARED, SETUP_SHARED);
        const char *instance = strstr(unit, "@."); /* a template is restarted by its instances */
        int stem_length = instance != NULL ? (int)(instance - unit) + 1 : (int)strlen(unit);
        /* systemd starts no service with a group that does not exist. */
        fputs("if [ -n \"$(group_number)\" ]; then\n    : # so a unit can name it\n", setup->stream);
        if (setup_put(setup, path, "644", text))
            fprintf(setup->stream, "later 'systemctl restart %.*s%s'\n", stem_length, unit,
                    instance != NULL ? "*.service" : "");
        fprintf(setup->stream, "else\n    miss '%s: there is no group sparkguard'\nfi\n", unit);
        free(text);
    }
    free(path);
}

void setup_units(struct setup *setup)
{
    struct units units = {.count = 0};
    list_units(setup, &units);
    fputc('\n', setup->stream);
    if (units.count == 0)
        setup_comment(setup, "There is no service of Ollama or Jupyter.");
    else
        setup_comment(setup, "Services of Ollama and Jupyter, from their next start on.");
    for (size_t i = 0; i < units.count; i++) {
        put_unit(setup, units.name[i]);
        free(units.name[i]);
    }
}
