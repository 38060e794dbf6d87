/* Open descriptors, the umask and the working directory are the same before the first and after the last slow path. */
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static unsigned long open_descriptors(void)
{
    unsigned long set = 0;
    DIR *directory = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        if (atoi(entry->d_name) < 64)
            set |= 1ul << atoi(entry->d_name);
    closedir(directory);
    return set;
}

static void *work(void *unused)
{
    free(malloc((size_t)3 << 20));
    return unused;
}

int main(void)
{
    pthread_t thread[80];
    char before_path[4096], after_path[4096];
    umask(0154);
    unsigned long before = open_descriptors();
    if (getcwd(before_path, sizeof before_path) == NULL)
        return 1;
    void *volatile block = malloc((size_t)24 << 20), *volatile refused = malloc((size_t)8 << 40);
    munmap(mmap(NULL, 1 << 22, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1 << 22);
    for (int i = 0; i < 80; i++) /* more than the records the segment begins with */
        pthread_create(&thread[i], NULL, work, NULL);
    for (int i = 0; i < 80; i++)
        pthread_join(thread[i], NULL);
    if (block == NULL || refused != NULL || open_descriptors() != before)
        return 2;
    if (getcwd(after_path, sizeof after_path) == NULL || strcmp(before_path, after_path) != 0)
        return 3;
    return umask(0) == 0154 ? 0 : 4;
}
