/*
 * kernel_log.h - finds in the kernel's log whether the kernel's OOM killer ended a process.
 */
#ifndef SG_TOOLS_MODEL_KERNEL_LOG_H
#define SG_TOOLS_MODEL_KERNEL_LOG_H

#include <stdbool.h>
#include <stdint.h>

/* Returns whether the log names the process with this PID as a victim between two times of CLOCK_REALTIME, which may
 * be wrong by seconds. False also where the log cannot be read, as by users of a kernel with kernel.dmesg_restrict=1, or
 * holds no entry of that time any more. */
bool model_kernel_log_names(uint32_t pid, int64_t from_ns, int64_t until_ns);

#endif
