/* An image's program and C library: the ELF header, the dynamic linker's name, "#!", the tables of versions, and what
 * the file needs. */
#include "fuzz.h"

#include "common/elf.h"
#include "common/tool.h"
#include "launch/check/elf_needs.h"

FUZZ_CAPACITY(511); /* of elf_read_open() */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct elf_facts facts;
    struct elf_needs needs;
    size_t mark = tool_arena_mark();
    fuzz_put("file", data, size);
    int fd = open(fuzz_path("file"), O_RDONLY | O_CLOEXEC);
    fuzz_need(fd >= 0, "file");
    elf_read_open(fd, &facts);
    fuzz_need(memchr(facts.loader, '\0', sizeof facts.loader) != NULL, "loader");
    fuzz_need(memchr(facts.script_line, '\0', sizeof facts.script_line) != NULL, "script");
    (void)elf_defines_version(fd, "GLIBC_2.28");
    bool is_good = elf_needs_read(fd, &needs);
    for (size_t i = 0; i < needs.library_count; i++)
        fuzz_need(needs.libraries[i] != NULL, "a library without a name");
    for (size_t i = 0; is_good && i < needs.version_count; i++)
        fuzz_need(needs.versions[i].file != NULL && needs.versions[i].version != NULL, "a version without a name");
    close(fd);
    tool_arena_release(mark);
    return 0;
}
