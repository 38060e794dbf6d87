/*
 * own_process.c - see own_process.h.
 */
#include "watch/own_process.h"

#include "base/pages.h"
#include "base/procfs.h"
#include "base/text.h"

#include <string.h>

uint64_t sg_own_process_minor_faults(void)
{
    return sg_procfs_stat(0, 10);
}

uint64_t sg_own_process_threads(void)
{
    return sg_procfs_stat(0, 20);
}

uint32_t sg_own_process_children(void)
{
    char content[512];
    uint32_t count = 0;
    if (sg_text_read_file("/proc/thread-self/children", content, sizeof content) <= 0)
        return 0;
    for (const char *at = content; *at != '\0'; at++)
        count += *at == ' ' ? 1 : 0; /* behind each number */
    return count;
}

/* Whether the first thread has ended while others run: the state, which follows the command, is then 'Z'. */
static bool has_first_thread_ended(void)
{
    char content[512];
    if (sg_procfs_read(0, "/stat", content, sizeof content) <= 0)
        return false;
    const char *after_command = strrchr(content, ')');
    return after_command != NULL && after_command[1] == ' ' && after_command[2] == 'Z';
}

bool sg_own_process_is_left_to(uint32_t threads)
{
    return has_first_thread_ended() && sg_own_process_threads() <= 1 + threads; /* 1: the ended first thread */
}

/* A field of smaps_rollup in bytes. `label` begins with the line break before the field's name. */
static uint64_t rollup_bytes(const char *content, const char *label)
{
    const char *found = strstr(content, label), *cursor = found != NULL ? found + strlen(label) : "";
    return sg_text_read_number(&cursor) * 1024;
}

/* Private_Clean and Private_Dirty include pages of files, so they are only an upper bound for anonymous pages. Pss
 * divides each page by the number of processes that map it. It contains all private pages and at most half of the
 * shared ones. The upper bound is the smaller of Pss_Anon and all private pages. The lower bound is the larger of
 * 2 * Pss_Anon - Anonymous and all private pages less the Pss of files. */
bool sg_own_process_private_bytes(uint64_t *least_bytes, uint64_t *most_bytes)
{
    char content[2048];
    if (sg_procfs_read(0, "/smaps_rollup", content, sizeof content) <= 0 || strstr(content, "\nPss_Anon:") == NULL)
        return false;
    uint64_t anonymous = rollup_bytes(content, "\nAnonymous:"), pss = rollup_bytes(content, "\nPss_Anon:");
    uint64_t files = rollup_bytes(content, "\nPss_File:") + rollup_bytes(content, "\nPss_Shmem:");
    uint64_t of_all = rollup_bytes(content, "\nPrivate_Clean:") + rollup_bytes(content, "\nPrivate_Dirty:");
    *most_bytes = sg_smaller(of_all, pss);
    *least_bytes = sg_larger(sg_above(2 * pss, anonymous), sg_above(of_all, files));
    *least_bytes = sg_smaller(*least_bytes, *most_bytes); /* the kernel does not read all fields at one instant */
    return true;
}
