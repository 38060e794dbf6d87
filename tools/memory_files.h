/*
 * memory_files.h - what of a tmpfs file is promised to several processes that map it is promised once.
 */
#ifndef REPORT_MEMORY_FILES_H
#define REPORT_MEMORY_FILES_H

#include "report.h"

/* The files that have been counted; NULL is none. */
struct report_memory_file;

/* What the process has been promised, less what those counted before it were promised of the same files; and what it has from a
 * parent that is gone, less what those counted before it have from the same. */
uint64_t report_promised_anew(struct report_memory_file **counted, const struct report_process *process,
                              const struct report *report);

/* Forgets what was counted. */
void report_memory_files_clear(struct report_memory_file **counted);

#endif
