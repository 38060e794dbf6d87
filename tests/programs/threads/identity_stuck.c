/*
 * identity_stuck - a program that gives up root's rights while the thread that keeps its history waits for a slow disk:
 * fdatasync returns after a second. Prints how many threads of the process have root's rights after the change.
 */
#include "../../lib/call_filter.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static unsigned long long answered_id; /* the call that `answer` answers next */

/* The disk. It answers a second after the first call, and later calls at once. */
static void *answer(void *listener)
{
    struct seccomp_notif call = {0};
    sleep(1); /* pace: the disk is slower than the patience of whoever waits for the helper */
    for (;;) {
        struct seccomp_notif_resp response = {.id = answered_id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        ioctl(*(int *)listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
        memset(&call, 0, sizeof call);
        if (ioctl(*(int *)listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0)
            return NULL;
        answered_id = call.id;
    }
}

/* Whether the thread with this status file acts for root, and lives. */
static int has_rights(const char *path)
{
    char text[4096] = "", *at;
    int fd = open(path, O_RDONLY), user = 0;
    if (fd < 0)
        return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    at = got > 0 ? strstr(text, "\nState:\t") : NULL;
    if (at == NULL || at[8] == 'Z' || at[8] == 'X')
        return 0;
    at = strstr(text, "\nUid:\t");
    return at != NULL && sscanf(at, "\nUid:\t%d", &user) == 1 && user == 0;
}

int main(void)
{
    struct seccomp_notif call = {0};
    char path[300];
    pthread_t disk;
    int listener = (int)install_filter(SYS_fdatasync, SECCOMP_RET_USER_NOTIF, SECCOMP_FILTER_FLAG_NEW_LISTENER);
    int count = 0;
    if (listener < 0) {
        puts("no filter");
        return 0;
    }
    char *volatile block = malloc((size_t)300 << 20);
    for (int i = 0; i < 10; i++) /* a helper begins behind a request */
        free(malloc((size_t)2 << 20));
    if (block == NULL || ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0)
        return 1;
    answered_id = call.id;
    if (pthread_create(&disk, NULL, answer, &listener) != 0 || setuid(65534) != 0)
        return 2;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; tasks != NULL && (entry = readdir(tasks)) != NULL;) {
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        count += entry->d_name[0] != '.' && has_rights(path);
    }
    printf("%d with root's rights\n", count);
    fflush(stdout);
    _exit(0);
}
