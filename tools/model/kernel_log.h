/*
 * kernel_log.h - finds in the kernel's log whether the kernel's OOM killer ended a process.
 */
#ifndef SG_TOOLS_MODEL_KERNEL_LOG_H
#define SG_TOOLS_MODEL_KERNEL_LOG_H

#include <stdbool.h>

struct model_process;

/* Returns whether the log names the process as a victim at the time of its end. False also where the log cannot be
 * read, as by users of a kernel with kernel.dmesg_restrict=1, or holds no entry of that time any more. */
bool model_kernel_log_names(const struct model_process *process);

#endif
