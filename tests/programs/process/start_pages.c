/*
 * start_pages.c - says how much of the library's writable segment there is in a program that has asked for nothing yet:
 * pages with something in the file, and pages beyond it (.bss) that somebody has touched.
 */
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE ((uintptr_t)sysconf(_SC_PAGESIZE))

struct pages {
    uintptr_t of_file, touched;
};

static uintptr_t count_touched(uintptr_t begin, uintptr_t end)
{
    static unsigned char present[4096];
    uintptr_t count = 0, pages = (end - begin) / PAGE;
    if (pages > sizeof present || mincore((void *)begin, end - begin, present) != 0)
        return UINTPTR_MAX;
    for (uintptr_t i = 0; i < pages; i++)
        count += present[i] & 1;
    return count;
}

static int look(struct dl_phdr_info *library, size_t size, void *out)
{
    struct pages *pages = out;
    (void)size;
    if (strstr(library->dlpi_name, "libsparkguard.so") == NULL)
        return 0;
    for (int i = 0; i < library->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &library->dlpi_phdr[i];
        uintptr_t begin = library->dlpi_addr + segment->p_vaddr,
                  file_end = (begin + segment->p_filesz + PAGE - 1) & -PAGE;
        if (segment->p_type != PT_LOAD || (segment->p_flags & PF_W) == 0)
            continue;
        pages->of_file = (file_end - (begin & -PAGE)) / PAGE;
        pages->touched = count_touched(file_end, (begin + segment->p_memsz + PAGE - 1) & -PAGE);
    }
    return 1;
}

int main(void)
{
    struct pages pages = {0, 0};
    if (dl_iterate_phdr(look, &pages) == 0)
        return 1;
    return printf("%lu %lu\n", (unsigned long)pages.of_file, (unsigned long)pages.touched) < 0;
}
