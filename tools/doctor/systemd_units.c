/*
 * systemd_units.c - reads a unit's settings from systemd's files, without systemctl. The unit's file comes from the
 * folder with the highest precedence. Then the drop-ins of all folders follow by name; a drop-in hides one of the same
 * name in a folder with lower precedence. The last assignment is valid, an empty one resets the value.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/doctor.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"

/* In ascending precedence: systemd.unit(5). */
static const char *const folders[] = {
    "/lib/systemd/system", "/usr/lib/systemd/system",     "/usr/local/lib/systemd/system", "/run/systemd/system",
    "/etc/systemd/system", "/run/systemd/system.control", "/etc/systemd/system.control",
};

enum { FOLDERS = sizeof folders / sizeof folders[0], DROP_INS_MAX = 64 };

struct drop_ins {
    char *path[DROP_INS_MAX];
    size_t count;
};

/* Reads the last assignment to `key` in a section that can contain it. */
static void read_key(const char *text, const char *key, bool *is_set, char value[64])
{
    size_t length = strlen(key);
    bool is_in_section = false;
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        line += strspn(line, " \t");
        if (*line == '[')
            is_in_section = strncmp(line, "[Service]", 9) == 0 || strncmp(line, "[Slice]", 7) == 0;
        const char *behind = line + length;
        if (!is_in_section || strncmp(line, key, length) != 0)
            continue;
        behind += strspn(behind, " \t");
        if (*behind != '=')
            continue;
        behind += 1 + strspn(behind + 1, " \t");
        size_t value_length = strcspn(behind, "\r\n \t");
        snprintf(value, 64, "%.*s", (int)bytes_min(value_length, 63), behind);
        *is_set = value_length > 0;
    }
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(basename(*(char *const *)a), basename(*(char *const *)b));
}

static void add_drop_in(struct drop_ins *list, char *path)
{
    for (size_t i = 0; i < list->count; i++)
        if (compare_names(&list->path[i], &path) == 0) {
            list->path[i] = path;
            return;
        }
    if (list->count < DROP_INS_MAX)
        list->path[list->count++] = path;
}

/* Returns false if a folder exists and cannot be listed. */
static bool list_drop_ins(const struct doctor *doctor, const char *unit, struct drop_ins *list)
{
    bool is_whole = true;
    for (int i = 0; i < FOLDERS; i++) {
        char *folder = text_format("%s/%s.d", folders[i], unit);
        DIR *stream = opendir(text_format("%s%s", doctor->root, folder));
        const struct dirent *entry;
        is_whole = is_whole && (stream != NULL || errno == ENOENT);
        while (stream != NULL && (entry = readdir(stream)) != NULL) {
            size_t length = strlen(entry->d_name);
            if (length > 5 && strcmp(entry->d_name + length - 5, ".conf") == 0)
                add_drop_in(list, text_format("%s/%s", folder, entry->d_name));
        }
        if (stream != NULL)
            closedir(stream);
    }
    if (list->count > 0)
        qsort(list->path, list->count, sizeof list->path[0], compare_names);
    return is_whole;
}

/* Reads the unit's own file. Returns 1, 0 if there is none, -1 if it cannot be read. */
static int read_unit(const struct doctor *doctor, const char *unit, char *text)
{
    for (int i = FOLDERS - 1; i >= 0; i--) {
        long length = doctor_read(doctor, text_format("%s/%s", folders[i], unit), text, DOCTOR_TEXT_CAPACITY);
        if (length >= 0)
            return 1;
        if (length != -ENOENT && length != -ENOTDIR)
            return -1;
    }
    return 0;
}

enum doctor_unit doctor_unit_value(const struct doctor *doctor, const char *unit, const char *key, char value[64])
{
    struct drop_ins list = {.count = 0};
    char *text = tool_allocate(DOCTOR_TEXT_CAPACITY, 1);
    bool is_set = false;
    int own = read_unit(doctor, unit, text);
    bool is_read = own >= 0;
    if (own > 0)
        read_key(text, key, &is_set, value);
    is_read = list_drop_ins(doctor, unit, &list) && is_read;
    for (size_t i = 0; i < list.count; i++) {
        long length = doctor_read(doctor, list.path[i], text, DOCTOR_TEXT_CAPACITY);
        is_read = is_read && (length >= 0 || length == -ENOENT);
        read_key(text, key, &is_set, value);
    }
    if (!is_read)
        return DOCTOR_UNIT_UNREADABLE;
    if (own == 0 && list.count == 0)
        return DOCTOR_UNIT_ABSENT;
    return is_set ? DOCTOR_UNIT_SET : DOCTOR_UNIT_UNSET;
}
