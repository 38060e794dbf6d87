/*
 * settings.c - see runtime.h. The file has lines "key = value"; "#" begins a comment. Engines start runtimes with an
 * environment of their own, so the file is the usual way, and the environment serves tests and wrappers.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/options.h"
#include "common/text.h"
#include "launch/launch.h"
#include "runtime/runtime.h"

#ifndef SG_LIBDIR
#define SG_LIBDIR "/usr/local/lib"
#endif

#define CONF "/etc/sparkguard/runtime.conf"
#define SHARED "/run/sparkguard/shared"
#define CONTAINERS "/run/sparkguard/containers"
#define LOG "/var/log/sparkguard-runtime.log"

/* The next runtimes that were executed before, with ":" between them. Without the prefix SPARKGUARD_, which options
 * have. */
#define EXECUTED "_SPARKGUARD_RUNTIMES_EXECUTED"

enum { RETURNS_MAX = 4 }; /* a hook of a container may start a container of its own: some returns are no loop */

static char *trimmed(char *text)
{
    text += strspn(text, " \t");
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t\r\n", text[length - 1]) != NULL)
        length--;
    text[length] = '\0';
    return text;
}

static void set_value(struct runtime_settings *settings, const char *key, const char *value, const char *line)
{
    char **place = strcmp(key, "next") == 0      ? &settings->next
                   : strcmp(key, "library") == 0 ? &settings->library
                   : strcmp(key, "shared") == 0  ? &settings->shared
                   : strcmp(key, "log") == 0     ? &settings->log
                   : strcmp(key, "history") == 0 ? &settings->history
                                                 : NULL;
    bool is_path = value[0] == '/' || (value[0] != '\0' && place == &settings->next);
    if (place != NULL && is_path) {
        *place = text_copy(value, PATH_MAX);
    } else if (strcmp(key, "required") == 0 && (strcmp(value, "yes") == 0 || strcmp(value, "no") == 0)) {
        settings->is_required = strcmp(value, "yes") == 0;
    } else if (strcmp(key, "share") == 0 && (strcmp(value, "yes") == 0 || strcmp(value, "no") == 0)) {
        settings->may_share = strcmp(value, "yes") == 0;
    } else if (strcmp(key, "preload") == 0 && (strcmp(value, "first") == 0 || strcmp(value, "last") == 0)) {
        settings->is_preload_last = strcmp(value, "last") == 0;
    } else if (settings->wrong == NULL) {
        settings->wrong = text_copy(line, 256);
    }
}

static void read_conf(struct runtime_settings *settings)
{
    char line[PATH_MAX + 64];
    struct stat status;
    int fd = open(settings->conf, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a pipe holds up nobody */
    FILE *file = fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) ? fdopen(fd, "r") : NULL;
    if (file == NULL && fd >= 0)
        close(fd);
    if (file == NULL)
        return;
    while (fgets(line, sizeof line, file) != NULL) {
        char *text = trimmed(line), *equals = strchr(text, '=');
        if (text[0] == '\0' || text[0] == '#')
            continue;
        if (equals == NULL) {
            set_value(settings, "", "", text);
            continue;
        }
        char *whole = text_copy(text, sizeof line);
        *equals = '\0';
        set_value(settings, trimmed(text), trimmed(equals + 1), whole);
    }
    fclose(file);
}

static bool is_this_tool(const char *path)
{
    struct stat one, self;
    return stat(path, &one) == 0 && stat("/proc/self/exe", &self) == 0 && one.st_dev == self.st_dev &&
           one.st_ino == self.st_ino;
}

/* Returns whether this tool executed a file so often before that the file must be a script that calls this tool. */
static bool leads_back(const char *path)
{
    const char *list = getenv(EXECUTED);
    char *all = text_copy(list != NULL ? list : "", SIZE_MAX), *rest = all;
    unsigned returns = 0;
    for (char *one; (one = strsep(&rest, ":")) != NULL;)
        returns += strcmp(one, path) == 0;
    return returns >= RETURNS_MAX;
}

/* Returns whether a file can be the next runtime. *is_self becomes true if it cannot because it is this tool or leads
 * back. */
static bool is_next(const char *file, bool *is_self)
{
    struct stat status;
    if (access(file, X_OK) != 0 || stat(file, &status) != 0 || !S_ISREG(status.st_mode))
        return false;
    if (!is_this_tool(file) && !leads_back(file))
        return true;
    *is_self = true;
    return false;
}

/* Returns the path of an executable that can be the next runtime; NULL if there is none. */
static char *find_next(const char *name, bool *is_self)
{
    const char *path = getenv("PATH");
    if (strchr(name, '/') != NULL)
        return is_next(name, is_self) ? text_copy(name, PATH_MAX) : NULL;
    char *folders =
        text_copy(path != NULL ? path : "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", SIZE_MAX);
    char *rest = folders, *found = NULL;
    for (char *folder; found == NULL && (folder = strsep(&rest, ":")) != NULL;) {
        char *file = text_format("%s/%s", folder[0] != '\0' ? folder : ".", name);
        if (is_next(file, is_self))
            found = file;
    }
    return found;
}

/* Reads which user of the host this process is: in a user namespace its own id says nothing. */
static void find_user(struct runtime_settings *settings)
{
    unsigned long inside, outside, size;
    uid_t user = geteuid();
    FILE *file = fopen("/proc/self/uid_map", "re");
    settings->host_uid = user;
    while (file != NULL && fscanf(file, "%lu %lu %lu", &inside, &outside, &size) == 3)
        if (user >= inside && user - inside < size)
            settings->host_uid = (uid_t)(outside + (user - inside));
    if (file != NULL)
        fclose(file);
    settings->is_rootless = settings->host_uid != 0;
}

/* Returns the user's default directory, as sg_directory_default() finds it outside of a user namespace. */
static char *users_own(const struct runtime_settings *settings, const char *runtime_dir)
{
    struct stat status;
    char *usual = text_format(SG_DEFAULT_DIR "%u", (unsigned)settings->host_uid);
    bool is_ours = lstat(usual, &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid();
    if (is_ours || runtime_dir == NULL || runtime_dir[0] != '/')
        return usual;
    return text_format("%s" SG_DEFAULT_DIR_BELOW, runtime_dir);
}

/* Returns the prefix of the machine's files, as the library has it: "" but in tests. */
static const char *system_root(void)
{
    const char *root = getenv("SPARKGUARD_SYSTEM_ROOT");
    return root != NULL && root[0] == '/' && root[1] != '\0' ? root : "";
}

static void find_places(struct runtime_settings *settings)
{
    char folder[PATH_MAX];
    const char *own = getenv("XDG_RUNTIME_DIR");
    if (settings->library == NULL)
        settings->library = launch_own_library(folder);
    if (settings->library == NULL)
        settings->library = text_copy(SG_LIBDIR "/libsparkguard.so", PATH_MAX);
    /* Root's directory belongs to a user who does not exist in a user's namespace. The library's own default is the
     * user's. */
    if (settings->is_rootless || settings->shared == NULL) {
        settings->shared = settings->is_rootless ? users_own(settings, own) : text_copy(SHARED, PATH_MAX);
    }
    /* Where the library and the report look; no setting moves it. */
    settings->containers = !settings->is_rootless         ? text_format("%s" CONTAINERS, system_root())
                           : own != NULL && own[0] == '/' ? text_format("%s/sparkguard/containers", own)
                                                          : text_format("%s/containers", settings->shared);
    if (settings->log == NULL)
        settings->log = settings->is_rootless && own != NULL ? text_format("%s/sparkguard-runtime.log", own)
                                                             : text_copy(LOG, PATH_MAX);
}

/* Chooses the next runtime: that of the environment, else of the file, else one that is known. A name that is this tool
 * or leads back to it is left out. A name that is not there ends the search: its mistake is to be seen. */
static void find_next_runtime(struct runtime_settings *settings, const char *of_environment)
{
    static const char *const known[] = {"nvidia-container-runtime", "runc", "crun"};
    const char *names[] = {of_environment, settings->next};
    settings->next = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        bool is_self = false;
        if (names[i] == NULL || names[i][0] == '\0')
            continue;
        settings->next = find_next(names[i], &is_self);
        if (!is_self || settings->next != NULL)
            return;
        settings->itself = names[i];
    }
    for (size_t i = 0; settings->next == NULL && i < sizeof known / sizeof known[0]; i++)
        settings->next = find_next(known[i], &(bool){false});
}

void runtime_settings_read_next(struct runtime_settings *settings)
{
    const char *conf = getenv(SG_VARIABLE_RUNTIME_CONF), *next = getenv(SG_VARIABLE_NEXT_RUNTIME);
    const char *required = getenv(SG_VARIABLE_REQUIRED);
    *settings = (struct runtime_settings){.conf = conf != NULL && conf[0] == '/' ? conf : CONF};
    read_conf(settings);
    settings->is_required = settings->is_required || (required != NULL && strcmp(required, "1") == 0);
    find_next_runtime(settings, next);
}

void runtime_settings_read_places(struct runtime_settings *settings)
{
    find_user(settings);
    find_places(settings);
}

void runtime_settings_note_next(const struct runtime_settings *settings)
{
    const char *before = getenv(EXECUTED);
    char *list = text_format("%s%s%s", before != NULL ? before : "", before != NULL ? ":" : "", settings->next);
    (void)setenv(EXECUTED, list, 1);
}
