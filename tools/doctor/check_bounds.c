/*
 * check_bounds.c - checks the administrator's file of bounds (sparkguard_bounds.h): that each process can read it, that
 * only root can change it, that all lines can be read, and that they name somebody.
 */
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "doctor/doctor.h"
#include "common/text.h"
#include "common/tool.h"
#include "sparkguard_bounds.h"

/* Returns the file's text, empty if it cannot be read. */
static struct sg_bounds_text read_in_tree(const struct doctor *doctor, const char *path)
{
    char *text = tool_allocate(DOCTOR_TEXT_CAPACITY, 1);
    long length = doctor_read(doctor, path, text, DOCTOR_TEXT_CAPACITY);
    return (struct sg_bounds_text){text, length > 0 ? (size_t)length : 0};
}

/* Returns the number of the first line that names a user or group that is not known, from 1, and whom it names in *who.
 * 0: there is none. */
static uint32_t find_unknown(const struct sg_bounds_sources *sources, struct sg_bounds_text *who)
{
    struct sg_bounds_text rest = sources->bounds;
    for (uint32_t number = 1; rest.bytes != 0; number++) {
        struct sg_bounds_text line = sg_bounds_cut(&rest, '\n'), part = sg_bounds_cut(&line, '#');
        *who = sg_bounds_word(&part);
        if (who->bytes == 0 || sg_bounds_is(*who, "*"))
            continue;
        const struct sg_bounds_text group = {who->at + 1, who->bytes - 1};
        uint64_t identity =
            who->at[0] == '@' ? sg_bounds_identity(group, sources->groups) : sg_bounds_identity(*who, sources->users);
        if (identity == UINT64_MAX)
            return number;
    }
    return 0;
}

/* Says what the file says. */
static void judge_text(const struct doctor *doctor, struct finding *finding, const struct sg_bounds_sources *sources)
{
    static const char edit[] =
        "sudoedit " SG_BOUNDS_FILE "  # a line: USER, @GROUP or *, then limit=SIZE or reserve=SIZE";
    gid_t groups[256];
    uint32_t numbers[257];
    int count = getgroups(256, groups);
    count = count > 0 ? count : 0;
    for (int i = 0; i < count; i++)
        numbers[i] = groups[i];
    numbers[count] = getgid();
    const struct sg_bounds_user user = {getuid(), numbers, (size_t)count + 1};
    struct sg_bounds bounds;
    struct sg_bounds_text who;
    uint64_t machine = doctor->model->machine.ordinary_bytes;
    uint32_t unreadable = sg_bounds_find(sources, &user, &bounds), unknown = find_unknown(sources, &who);
    if (unreadable != 0) {
        finding_say(finding, FINDING_WARNING, edit,
                    "Line %" PRIu32 " of " SG_BOUNDS_FILE " cannot be read and bounds nobody.", unreadable);
        return;
    }
    if (bounds.zero_line != 0) {
        finding_say(finding, FINDING_WARNING, edit,
                    "Line %" PRIu32 " of " SG_BOUNDS_FILE " has a bound of 0, which is read as none.",
                    bounds.zero_line);
        return;
    }
    if (unknown != 0) {
        finding_say(finding, FINDING_WARNING, edit,
                    "Line %" PRIu32 " of " SG_BOUNDS_FILE " bounds nobody: %s does not have %.*s.", unknown,
                    who.at[0] == '@' ? "/etc/group" : "/etc/passwd", (int)who.bytes, who.at);
        return;
    }
    bool is_known = machine != SG_UNKNOWN && (bounds.limit.is_set || bounds.reserve.is_set);
    if (!is_known) {
        finding_say(finding, FINDING_FINE, NULL, SG_BOUNDS_FILE " can be read; it does not bound you.");
        return;
    }
    finding_say(finding, FINDING_FINE, NULL, SG_BOUNDS_FILE " bounds you to %s%s%s%s%s.",
                bounds.limit.is_set ? "a limit of at most " : "",
                bounds.limit.is_set ? text_size(sg_size_of(bounds.limit, machine)) : "",
                bounds.limit.is_set && bounds.reserve.is_set ? " and " : "",
                bounds.reserve.is_set ? "a reserve of at least " : "",
                bounds.reserve.is_set ? text_size(sg_size_of(bounds.reserve, machine)) : "");
}

static void check_bounds(struct doctor *doctor, struct finding *finding)
{
    struct sg_bounds_sources sources;
    struct stat status;
    bool exists = stat(text_format("%s" SG_BOUNDS_FILE, doctor->root), &status) == 0;
    if (!exists) /* a machine without bounds hears nothing about them */
        return;
    sources.bounds = read_in_tree(doctor, SG_BOUNDS_FILE);
    sources.users = read_in_tree(doctor, "/etc/passwd");
    sources.groups = read_in_tree(doctor, "/etc/group");
    if ((status.st_mode & S_IROTH) == 0) {
        finding_say(finding, FINDING_WARNING, "sudo chmod 644 " SG_BOUNDS_FILE,
                    SG_BOUNDS_FILE " cannot be read by all users: it does not bound them.");
        finding->step = "bounds";
    } else if (status.st_uid != 0 || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        finding_say(finding, FINDING_WARNING,
                    "sudo chown root:root " SG_BOUNDS_FILE " && sudo chmod 644 " SG_BOUNDS_FILE,
                    SG_BOUNDS_FILE " can be changed by others than root.");
    } else {
        judge_text(doctor, finding, &sources);
    }
}

DOCTOR_CHECK(280, check_bounds, "bounds",
             "It sets the largest limit and the smallest reserve of each user, and each program reads it.");
