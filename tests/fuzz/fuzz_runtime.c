/* A bundle's config.json, or a process file: after the runtime it is JSON again, or as it was. A second time changes
 * nothing. */
#include "fuzz.h"

#include "common/tool.h"
#include "common/elf.h"
#include "runtime/runtime.h"

FUZZ_CAPACITY(1 << 16);

static char *content(const char *name, size_t *length)
{
    struct stat status;
    const char *path = fuzz_path(name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    fuzz_need(fd >= 0 && fstat(fd, &status) == 0, path);
    *length = (size_t)status.st_size;
    char *text = tool_allocate(*length + 1, 1);
    fuzz_need(read(fd, text, *length) == (ssize_t)*length, path);
    close(fd);
    return text;
}

static void check(const char *name, const uint8_t *data, size_t size)
{
    size_t length;
    char *text = content(name, &length);
    struct runtime_document document;
    bool is_same = length == size && memcmp(text, data, size) == 0;
    const char *why = runtime_document_read(&document, fuzz_path(name));
    fuzz_need(is_same || why == NULL, "it is neither what it was nor JSON");
}

/* Copies a file of this machine to the same place in the image. */
static void copy(const char *from)
{
    char name[400];
    static char bytes[8 << 20];
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, bytes, sizeof bytes) : -1;
    fuzz_need(length > 0, from);
    close(fd);
    (void)snprintf(name, sizeof name, "bundle/rootfs%.300s", from);
    fuzz_put(name, bytes, (size_t)length);
    (void)chmod(fuzz_path(name), 0755);
}

/* An image with a shell that can be guarded. */
static void make_image(void)
{
    static bool is_made;
    struct elf_facts facts;
    char libc[400], real[PATH_MAX];
    if (is_made)
        return;
    is_made = true;
    int fd = open("/bin/sh", O_RDONLY | O_CLOEXEC);
    fuzz_need(fd >= 0, "/bin/sh");
    elf_read_open(fd, &facts);
    close(fd);
    fuzz_need(realpath(facts.loader, real) != NULL, facts.loader);
    (void)snprintf(libc, sizeof libc, "%.*s/libc.so.6", (int)(strrchr(real, '/') - real), real);
    copy("/bin/sh");
    copy(facts.loader);
    copy(libc);
    (void)mkdir(fuzz_path("bundle/rootfs/run"), 0700);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t mark = tool_arena_mark();
    static char shared[300], containers[300], bundle[300], process[300], folder[300];
    struct runtime_settings settings = {
        .next = (char[]){"/usr/bin/runc"}, .library = (char[]){"/bin/sh"}, .log = (char[]){"/dev/null"}};
    struct runtime_arguments arguments = {.command = RUNTIME_CREATE, .config = "config.json", .id = "box"};
    size_t first_length, second_length;
    bool is_required;
    (void)snprintf(folder, sizeof folder, "%s", fuzz_folder());
    (void)snprintf(shared, sizeof shared, "%.250s/shared", folder);
    (void)snprintf(bundle, sizeof bundle, "%.250s/bundle", folder);
    (void)snprintf(process, sizeof process, "%.250s/process.json", folder);
    (void)snprintf(containers, sizeof containers, "%.250s/containers", folder);
    (void)mkdir(shared, 0700);
    make_image();
    settings.shared = shared;
    settings.containers = containers;
    settings.is_rootless = true; /* nothing is mounted */
    settings.may_share = true;
    arguments.bundle = bundle;
    arguments.process_file = process;
    fuzz_put("bundle/config.json", data, size);
    (void)runtime_container_create(&settings, &arguments, &is_required);
    check("bundle/config.json", data, size);
    char *first = content("bundle/config.json", &first_length);
    (void)runtime_container_create(&settings, &arguments, &is_required);
    char *second = content("bundle/config.json", &second_length);
    fuzz_need(first_length == second_length && memcmp(first, second, first_length) == 0, "a second time");
    /* The same bytes as a process that joins a guarded container. */
    static const char guarded[] =
        "{\"process\":{\"env\":[\"SPARKGUARD_JOB=box\"]},\"annotations\":{\"sparkguard.guarded\":\"yes\"}}";
    fuzz_put("bundle/config.json", guarded, sizeof guarded - 1);
    fuzz_put("process.json", data, size);
    char **words = NULL;
    (void)runtime_container_exec(&settings, &arguments, &words, &is_required);
    check("process.json", data, size);
    tool_arena_release(mark);
    return 0;
}
