/* Runs a fuzz target on each file that is named, as libFuzzer would: without clang, and always in the same order. It
 * also tells the target's fuzz_room, which libFuzzer is given a length by (tests/qualification/test_fuzz.py). */
#include "fuzz.h"

int main(int count, char **arguments)
{
    for (int i = 1; i < count; i++) {
        struct stat status;
        int fd = open(arguments[i], O_RDONLY | O_CLOEXEC);
        fuzz_need(fd >= 0 && fstat(fd, &status) == 0, arguments[i]);
        uint8_t *data = malloc((size_t)status.st_size + 1); /* never of no bytes */
        fuzz_need(data != NULL && read(fd, data, (size_t)status.st_size) == (ssize_t)status.st_size, arguments[i]);
        close(fd);
        uint8_t *exact = realloc(data, status.st_size > 0 ? (size_t)status.st_size : 1);
        fuzz_need(exact != NULL, "realloc");
        fprintf(stderr, "%s\n", arguments[i]);
        (void)LLVMFuzzerTestOneInput(exact, (size_t)status.st_size);
        free(exact);
    }
    printf("%d inputs, room %zu\n", count - 1, fuzz_room);
    return 0;
}
