/*
 * python_fork.h - forks of Python, which counts the threads of the process right after fork(2).
 *
 * Since 3.12 os.fork warns if the kernel shows more than one thread, and cannot tell the library's from the program's.
 * In a program of one thread the service threads therefore end before the fork. The interpreter has them started again
 * as soon as it runs on (Py_AddPendingCall), which is after it has counted.
 */
#ifndef SG_PRELOAD_HOOKS_PYTHON_FORK_H
#define SG_PRELOAD_HOOKS_PYTHON_FORK_H

#include <stdbool.h>

/* Before a fork: ends the service threads if Python would count them. False: it would not, and they run on. */
bool sg_python_fork_end_helpers(void);

/* After such a fork, in the parent: has the service threads started again. */
void sg_python_fork_resume_helpers(void);

#endif
