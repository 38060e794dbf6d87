/* Notes which code of the library and the tools runs: linked in by `make TRACED=1`, called by the compiler's
 * instrumentation at the begin of each basic block. Where the variable MUTATE_TRACE names a folder, each object has a
 * file in it, named by its build ID: a byte for each 4 bytes of code, 1 where the block that returns there has run.
 * Processes share the file; so does a child after fork. Async-signal-safe, uses no memory of the heap and no
 * thread-local storage but errno, which stays as it was. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FILE_BYTES ((size_t)1 << 20)
#define NAME_SIZE 512

extern char **environ;
extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));
void __sanitizer_cov_trace_pc(void);

static uint8_t *reached;
static uint8_t nowhere[1];

static const char *folder(void)
{
    const char name[] = "MUTATE_TRACE=";
    for (char **variable = environ; variable != NULL && *variable != NULL; variable++)
        if (strncmp(*variable, name, sizeof name - 1) == 0)
            return *variable + sizeof name - 1;
    return NULL;
}

/* Appends the build ID of this object in hexadecimal digits. False: it has none, or there is no space. */
static int add_build_id(char *name, size_t length)
{
    const uint8_t *base = (const uint8_t *)&__ehdr_start;
    const ElfW(Phdr) *segment = (const ElfW(Phdr) *)(base + __ehdr_start.e_phoff);
    for (int i = 0; i < __ehdr_start.e_phnum; i++) {
        const uint8_t *at = base + segment[i].p_vaddr, *end = at + segment[i].p_memsz;
        while (segment[i].p_type == PT_NOTE && (size_t)(end - at) >= sizeof(ElfW(Nhdr))) {
            const ElfW(Nhdr) *note = (const ElfW(Nhdr) *)at;
            const uint8_t *id = at + sizeof *note + ((note->n_namesz + 3) & ~3u);
            if (note->n_type == NT_GNU_BUILD_ID && length + 2 * note->n_descsz < NAME_SIZE) {
                for (uint32_t byte = 0; byte < note->n_descsz; byte++) {
                    name[length++] = "0123456789abcdef"[id[byte] >> 4];
                    name[length++] = "0123456789abcdef"[id[byte] & 15];
                }
                name[length] = '\0';
                return 1;
            }
            at = id + ((note->n_descsz + 3) & ~3u);
        }
    }
    return 0;
}

static uint8_t *map_file(const char *place)
{
    char name[NAME_SIZE];
    size_t length = strlen(place);
    if (length + 2 > sizeof name)
        return nowhere;
    memcpy(name, place, length);
    name[length++] = '/';
    if (!add_build_id(name, length))
        return nowhere;
    long file = syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0)
        return nowhere;
    (void)syscall(SYS_fchmod, file, 0666); /* tests run programs as other users */
    long at = syscall(SYS_ftruncate, file, FILE_BYTES) == 0
                  ? syscall(SYS_mmap, NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                  : -1;
    (void)syscall(SYS_close, file);
    return at == -1 ? nowhere : (uint8_t *)at; /* NOLINT(performance-no-int-to-ptr) */
}

void __sanitizer_cov_trace_pc(void)
{
    uint8_t *bytes = __atomic_load_n(&reached, __ATOMIC_ACQUIRE);
    if (bytes == NULL && environ != NULL) {
        int number = errno;
        const char *place = folder();
        bytes = place != NULL ? map_file(place) : nowhere;
        errno = number;
        __atomic_store_n(&reached, bytes, __ATOMIC_RELEASE);
    }
    uintptr_t offset = (uintptr_t)__builtin_return_address(0) - (uintptr_t)&__ehdr_start;
    if (bytes != NULL && bytes != nowhere && offset / 4 < FILE_BYTES)
        bytes[offset / 4] = 1;
}
