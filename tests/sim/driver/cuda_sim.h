/*
 * cuda_sim.h - what the simulated libcuda.so.1 tells tests about itself.
 *
 * Any thread, at any time, before cuInit too; none of them is counted as a call. They show what the
 * driver really handed out, to be compared with what a guard in front of it believes. A test that
 * may also run on a real driver looks them up with dlsym.
 */
#ifndef SGSIM_CUDA_SIM_H
#define SGSIM_CUDA_SIM_H

#include <stddef.h>

/*
 * Live bytes of one kind, of all devices together:
 *   "device"         cuMemAlloc, cuMemAllocPitch, cuMemCreate on a device, what pools and graphs have reserved there
 *   "pinned"         cuMemHostAlloc, cuMemAllocHost, cuMemCreate and pools on the host
 *   "managed"        cuMemAllocManaged, managed pools
 *   "array"          arrays and mipmapped arrays
 *   "context"        what contexts took (SGSIM_CONTEXT)
 *   "total"          the five above
 *   "pool_reserved"  what pools have reserved; part of device, pinned or managed as well
 *   "pages"          what devices have taken for device, array and context: more than the three where SGSIM_CHUNK is
 *                    set
 *   "registered"     cuMemHostRegister; memory of the program's own, outside the total
 * Any other word answers 0.
 */
size_t sgsim_live_bytes(const char *kind);

/* How often the exported symbol (exact name, "cuMemAlloc_v2") was called, failed calls included; 0 if there is none. */
unsigned long sgsim_calls(const char *symbol);

/*
 * How many calls since the first such question came with SIGURG blocked, in a program that does not block it: calls of a
 * guard that holds a lock of its own meanwhile (preload/core/base/lock.h).
 */
unsigned long sgsim_blocked_calls(void);

/*
 * Make a later call of the exported symbol fail: nth = 1 is the very next one, -1 every one from now
 * on, 0 forgets all failures planned for it. `code` is a CUresult; 0 stands for out of memory. A
 * call that fails this way is counted and does nothing else. Up to 128 failures can be planned.
 */
void sgsim_fail(const char *symbol, int nth, int code);

/*
 * Leave an error in the calling thread's current context, as a kernel does that fails: all but questions about contexts and
 * devices, and their ends, answer it from then on, until the context ends.
 */
void sgsim_break(int code);

/*
 * Make a later call of the exported symbol stay inside the driver before it does anything: nth as in sgsim_fail,
 * `until` is a number of milliseconds ("250") or the name of a file with a "/" in it, which the call waits for. Who
 * waits for a file first appends one byte to FILE.held. Other threads' calls go on. Up to 256 in the life of a process.
 */
void sgsim_hold(const char *symbol, int nth, const char *until);

/*
 * Make the nth later call of the exported symbol call `work` first, in the caller's thread: what a driver does that uses
 * its own exports, and a way for a test to let others call in the middle of it. Counts as one of the 256. The same when it
 * has done all it does, and has not returned yet.
 */
void sgsim_inside(const char *symbol, int nth, void (*work)(void));
void sgsim_behind(const char *symbol, int nth, void (*work)(void));

/*
 * Touch managed memory of cuMemAllocManaged, `bytes` from `pointer` on, as a processor would: a fake machine gives the
 * pages. A block is resident up to the last byte touched. Answers a CUresult: INVALID_VALUE if it is no such memory.
 */
int sgsim_touch(unsigned long long pointer, size_t bytes);

/* By how much a pool would grow now for a block of that size in that stream of the calling thread (not a _ptsz one). */
size_t sgsim_pool_growth(void *pool, size_t size, void *stream);

/* Work that nobody called for is seen to be done: what pools hold above their thresholds goes back. */
void sgsim_synchronize(void);

/*
 * The fake machine behind a meminfo file (SGSIM_MEMINFO), for any process, in front of a driver or not. settle pays
 * back what dead processes held and what late frees owe, and answers how many living processes hold something; -1 if
 * there is no such machine. bytes answers "free", "available", "cached" (as the file shows them, but negative where
 * more is gone than there was), "taken" by simulated processes, "late" (freed and not back yet), "kept" (freed,
 * in the driver's pool: SGSIM_POOL=keep), "shared" (pinned memory that is shared memory), "locked" (that and what is
 * registered), "swapped" (of others' idle memory), or "least_available", the lowest "available" since the machine began.
 * move changes what nobody simulated: "other" bytes of anonymous memory are taken (negative: given back), "idle" bytes the
 * same, which may go to swap, "unexplained" bytes the same, in no line of the meminfo; "cached" bytes of free memory
 * become page cache (negative: are dropped), "kept" bytes go into the driver's pool (negative: are given back),
 * "least_available" begins anew.
 */
long sgsim_settle(const char *meminfo);
long long sgsim_machine_bytes(const char *meminfo, const char *what);
void sgsim_machine_move(const char *meminfo, const char *what, long long bytes);

#endif
