/*
 * output.c - see output.h.
 */
#include "report/output.h"

#include <errno.h>
#include <string.h>

#include "common/output/atomic_file.h"
#include "common/text.h"
#include "report/report.h"

bool report_output_may_write(const char *path, const char *suffix)
{
    const size_t ending = strlen(suffix), length = strlen(path);
    bool is_named_so = length > ending && strcmp(path + length - ending, suffix) == 0;
    return is_named_so || strcmp(path, "-") == 0 || atomic_file_is_in_place(path);
}

int report_output_write(const char *path, const char *what, void (*put)(FILE *stream, void *content), void *content)
{
    int error = atomic_file_write(path, put, content);
    if (error == 0 || error == EPIPE) /* a reader that has closed the pipe needs no message */
        return REPORT_SHOWN;
    char *name = text_printable(strcmp(path, "-") == 0 ? what : path, false);
    fprintf(stderr, "sparkguard-report: cannot write %s: %s\n", name, strerror(error));
    return REPORT_UNTRUSTED;
}
