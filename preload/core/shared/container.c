/*
 * container.c - see container.h.
 *
 * A container with a cgroup namespace of its own sees "/" for its cgroup. Then the host name tells which container it
 * is: Docker and Podman give it the first 12 digits of the ID unless the user names it, and Kubernetes the pod's name.
 */
#include "shared/container.h"

#include "base/options.h"
#include "base/syscall.h"
#include "base/text.h"

#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#define FIRST_UTS_NAMESPACE UINT64_C(0xEFFFFFFE) /* the kernel makes it at boot (PROC_UTS_INIT_INO) */

enum { ID_DIGITS = 64, SHORT_DIGITS = 12 };

static uint64_t inode_of(const char *path)
{
    struct stat info = {0};
    return sg_sys_stat(path, &info) == 0 ? info.st_ino : 0;
}

static bool is_hex(char digit)
{
    return (digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f');
}

/* The last run of exactly 64 digits in a text: the ID of the innermost container. NULL: there is none. */
static const char *find_id(const char *text)
{
    const char *found = NULL;
    while (*text != '\0') {
        size_t length = 0;
        while (is_hex(text[length]))
            length++;
        if (length == ID_DIGITS)
            found = text;
        text += length + (length == 0);
    }
    return found;
}

static void name_container(char name[SG_CONTAINER_BYTES])
{
    static char path[SG_PATH_CAPACITY + 32], content[2048]; /* large for a stack; cgroup version 1 has a dozen lines */
    struct sg_text text = sg_text_begin(path, sizeof path);
    sg_text_add(&text, sg_options.system_root);
    sg_text_add(&text, "/proc/self/cgroup");
    (void)sg_text_read_file(path, content, sizeof content);
    const char *id = find_id(content);
    if (id != NULL) {
        memcpy(name, id, SHORT_DIGITS);
        return;
    }
    if (sg_text_read_file("/proc/sys/kernel/hostname", content, sizeof content) <= 0)
        return;
    content[strcspn(content, "\n")] = '\0';
    size_t length = strlen(content);
    memcpy(name, content, length < SG_CONTAINER_BYTES ? length : SG_CONTAINER_BYTES);
}

void sg_container_describe(struct sg_segment *segment)
{
    uint64_t pid_namespace = inode_of("/proc/self/ns/pid"), uts_namespace = inode_of("/proc/self/ns/uts");
    segment->pid_namespace = (uint32_t)pid_namespace; /* the kernel's inodes of /proc have 32 bits */
    memset(segment->container, 0, sizeof segment->container);
    if (uts_namespace == 0 || (uts_namespace == FIRST_UTS_NAMESPACE && pid_namespace == SG_FIRST_PID_NAMESPACE))
        return;
    name_container(segment->container);
}
