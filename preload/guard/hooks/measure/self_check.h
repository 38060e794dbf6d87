/*
 * self_check.h - checks, beside the program's own large CUDA calls, what the guard assumes of the driver of a device
 * without memory of its own.
 *
 * The measure is the memory that no counter of the kernel explains (snapshot.h), less the free pages that processors
 * keep in lists: what the driver takes from the machine raises it by its size, whatever others do with their own memory
 * meanwhile. A measurement counts only if no guarded process has another request for device memory in flight, and none
 * of them takes or frees any meanwhile. What was found is in the record (sg_machine.driver_facts).
 *
 * Where device memory does not come out of the machine's memory, the driver alone judges requests for it. After three
 * surprises such requests are observed and not refused. What a program that is not guarded may have caused is no
 * surprise: it takes and frees memory beside any call. Either is said once on stderr, and is an event of the record.
 *
 * Any thread. The functions take the decision lock, except where noted, and none waits for another process.
 */
#ifndef SG_PRELOAD_HOOKS_MEASURE_SELF_CHECK_H
#define SG_PRELOAD_HOOKS_MEASURE_SELF_CHECK_H

#include "admit/admission.h"

#include <stdbool.h>
#include <stdint.h>

/* Calls below this size are not measured: others' memory would be too much of the result. */
#define SG_SELF_CHECK_LEAST (UINT64_C(256) << 20)
#define SG_SELF_CHECK_PINNED_LEAST (UINT64_C(1) << 20)

/* Before the real call of a request that was granted. True: it is measured, and sg_self_check_end must follow, before
 * the block is counted. One call is measured at a time. Once calls have twice shown what is known already, one call in
 * 64 is measured; the others cost nothing. */
bool sg_self_check_begin(const struct sg_request *request);

/* After the real call. `is_refused`: the driver answered that it is out of memory; `is_served`: it succeeded. */
void sg_self_check_end(const struct sg_request *request, bool is_served, bool is_refused);

/* Around a real free of `bytes` of the machine's device memory, at least SG_SELF_CHECK_LEAST; the second comes before
 * these bytes are released. `is_freed`: the free succeeded. */
void sg_self_check_begin_free(void);
void sg_self_check_end_free(uint64_t bytes, bool is_freed);

/* The driver did something that no measurement saw: calls are measured again. Without the lock. */
void sg_self_check_resume(void);

/* In a forked child: nothing is known, and nothing is measured. */
void sg_self_check_atfork_child(void);

#endif
