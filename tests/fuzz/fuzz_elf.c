/* An image's program and C library: the ELF header, the dynamic linker's name, "#!", and the table of versions. */
#include "fuzz.h"

#include "common/elf.h"

FUZZ_CAPACITY(511); /* of elf_read_open() */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct elf_facts facts;
    fuzz_put("file", data, size);
    int fd = open(fuzz_path("file"), O_RDONLY | O_CLOEXEC);
    fuzz_need(fd >= 0, "file");
    elf_read_open(fd, &facts);
    fuzz_need(memchr(facts.loader, '\0', sizeof facts.loader) != NULL, "loader");
    fuzz_need(memchr(facts.script_line, '\0', sizeof facts.script_line) != NULL, "script");
    (void)elf_defines_version(fd, "GLIBC_2.28");
    close(fd);
    return 0;
}
