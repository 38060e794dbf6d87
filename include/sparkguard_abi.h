/*
 * sparkguard_abi.h - the shared-memory layout: what libsparkguard.so writes and the tools read.
 *
 * Each guarded process has one segment: a file in SPARKGUARD_DIR named "<pid>-<16 hex digits>.segment". This header is
 * the whole contract between preload/ and tools/; neither includes a header of the other.
 *
 * Promises
 *   - The first 128 bytes (struct sg_slot) never change, so that two library versions on one machine can count each
 *     other. SG_ABI_VERSION covers the rest: moving, widening or removing a field raises it.
 *   - The tools report an unknown version and use none of its figures.
 *   - Numbers are host-endian, naturally aligned and of fixed width. There are no pointers, no size_t, no semaphores.
 *   - Readers copy the file with read(), check every length and index in it, and treat every text as unterminated.
 *   - A process is alive while an exclusive flock on its file is held (see "Liveness").
 *
 * History: SPARKGUARD_HISTORY holds copies with the same layout and name, truncated after the last thread record used.
 * Copies have no owner. A nonzero saved_time_ns marks a copy.
 *
 * Units: bytes; *_time_ns in nanoseconds since 1970 (CLOCK_REALTIME). An unknown value is SG_UNKNOWN or -1, as noted.
 *
 * Writing: any thread updates fields marked (atomic), with atomic operations. Only the owning thread and its signal
 * handlers write a thread record. All other fields are written once before the magic, or under the decision lock.
 *
 * Liveness: the owner opens its file, takes flock(LOCK_EX), maps one page of it with MADV_DONTFORK and closes the
 * descriptor. The kernel releases the lock when that mapping goes, at death or exec. Descriptors that the program
 * closes and forked children that live on do not matter. A reader tests with flock(LOCK_SH | LOCK_NB).
 */
#ifndef SPARKGUARD_ABI_H
#define SPARKGUARD_ABI_H

#include <stddef.h>
#include <stdint.h>

#define SG_VERSION_TEXT "0.1.0"
#define SG_ABI_MAGIC UINT64_C(0x445241474b525053) /* "SPRKGARD" in memory order */
#define SG_ABI_VERSION 2u
#define SG_SEGMENT_SUFFIX ".segment"
#define SG_UNKNOWN UINT64_MAX

enum sg_domain {
#define SG_DOMAIN(ID, name, help) SG_DOMAIN_##ID,
#include "domains.def"
#undef SG_DOMAIN
    SG_DOMAIN_COUNT
};

enum {
    SG_DOMAIN_CAPACITY = 8, /* array length in the layout; SG_DOMAIN_COUNT are used */
    SG_REFUSAL_CAPACITY = 64,
    SG_PHASE_CAPACITY = 64,
    SG_EVENT_CAPACITY = 32,
    SG_DEVICE_CAPACITY = 8,
    SG_CALLSITE_CAPACITY = 32, /* call-site numbers per class; number 0: none */
    SG_CALLSITE_OTHER = 1,     /* shared by all call sites beyond the capacity */
    SG_CALLSITE_FIRST = 2,     /* first number that stands for one call site */
    SG_CALLSITE_NAME_BYTES = 64,
    SG_FILE_CAPACITY = 64,        /* ranges of shared memory in an entry; further ones are behind all entries */
    SG_ORIGIN_CAPACITY = 4,       /* ancestors whose memory a forked process shares: parent first */
    SG_RECORD_FIRST = 64,         /* thread records in a new segment */
    SG_RECORD_LIMIT = 15360,      /* maximum; threads beyond it share record 0 */
    SG_RECORD_REAPED = INT32_MAX, /* no thread has this TID */
    SG_JOB_BYTES = 64,
    SG_COMMAND_BYTES = 256,
    SG_CALL_BYTES = 40,
    SG_CONTAINER_BYTES = 16,
};

/* State of a process. The process never writes KILLED itself: a reader concludes it from RUNNING without an owner.
 * The launcher writes KILLED together with the signal that it received from wait(2). */
enum sg_state { SG_STATE_RUNNING = 1, SG_STATE_EXITED = 2, SG_STATE_REPLACED = 3, SG_STATE_KILLED = 4 };

/* Whether the kernel's OOM killer ended the process: its log named the process; or it ended some process meanwhile, and
 * this one died of SIGKILL. */
enum sg_oom { SG_OOM_UNKNOWN = 0, SG_OOM_NAMED = 1, SG_OOM_LIKELY = 2 };

enum sg_reason { SG_REASON_RESERVE = 1, SG_REASON_LIMIT = 2, SG_REASON_FLOOR = 3, SG_REASON_DEVICE = 4 };

enum sg_slot_flag {
    SG_SLOT_GUARDING = 1u << 0, /* decisions use the kernel's figures */
    SG_SLOT_OBSERVE = 1u << 1,  /* SPARKGUARD_MODE=observe */
    SG_SLOT_CUDA = 1u << 2,     /* the process has made a CUDA allocation */
    SG_SLOT_SHARING = 1u << 3,  /* has a registry entry: the process and its peers count each other */
    SG_SLOT_WATCHED = 1u << 4,  /* the watchdog thread runs */
    SG_SLOT_UNIFIED = 1u << 5,  /* device memory is taken from the machine's memory */
    SG_SLOT_REPORTED = 1u << 6, /* registry entry only: a child of the owner has reported that it
                                 * cannot share; its siblings stay silent */
    SG_SLOT_JOB = 1u << 7,      /* registry entry only: an entry of the job itself, and no process (see "Jobs") */
    SG_SLOT_GIVES = 1u << 8,    /* has a callback by sparkguard_on_pressure() */
    SG_SLOT_HELPER = 1u << 9,   /* registry entry only: a helper of the launcher, which is no process of the job */
    /* A bound of the administrator (SG_BOUNDS_FILE) is in force: */
    SG_SLOT_LIMIT_BOUND = 1u << 10,   /* as the limit */
    SG_SLOT_RESERVE_BOUND = 1u << 11, /* as the reserve of the machine */
    SG_SLOT_SILENT = 1u << 13,        /* registry entry only, set by others: left a question for memory unanswered */
    SG_SLOT_TRIMS = 1u << 14,         /* registry entry only: its heap may have much to give back, and will if asked */
};

/* ---- the frozen part -------------------------------------------------------------------------------------------- */

struct sg_slot {
    uint64_t magic;           /* SG_ABI_MAGIC, written last */
    uint32_t abi_version;     /* version of the layout that follows the slot */
    uint32_t pid;             /* in the owner's PID namespace */
    uint64_t start_ticks;     /* /proc/PID/stat field 22: clock ticks since boot */
    uint64_t granted_bytes;   /* (atomic) admitted and not freed: live bytes and the threads' unused credit */
    uint64_t promised_bytes;  /* (atomic) an upper bound of what was granted and has no pages yet */
    uint64_t in_flight_bytes; /* (atomic) admitted; the real call has not returned */
    uint64_t live_bytes;      /* (atomic) segment: granted_bytes less credit, as of the last slow path; the exact
                               * sum is in the thread records. Registry entry: managed memory that the CPU's page
                               * tables do not show */
    uint64_t inherited_bytes; /* (atomic) at most this much private memory is shared with the parent since fork;
                               * sums over processes count only the rest */
    uint64_t limit_bytes;     /* SPARKGUARD_LIMIT in bytes; 0: no limit or not resolved yet, 1: a limit of zero */
    uint64_t job_hash;        /* FNV-1a of the job name */
    uint32_t state;           /* enum sg_state */
    uint32_t flags;           /* (atomic) enum sg_slot_flag */
    uint64_t device_bytes;    /* (atomic) registry entry: the device memory in granted_bytes */
    uint64_t landed_count;    /* (atomic) registry entry: number of in-flight requests completed so far */
    uint64_t inherited_promise_bytes; /* (atomic) inherited promises that are not resident yet;
                                       * counted only after the parent has ended */
    /* (atomic) sparse memory: resident at the last scan, plus pages made writable since */
    uint64_t sparse_bytes;
    uint64_t reported_peak_bytes; /* (atomic) registry entry: the job's peak that peers without a record reported */
};
_Static_assert(sizeof(struct sg_slot) == 128, "the slot is frozen at 128 bytes");
_Static_assert(offsetof(struct sg_slot, granted_bytes) == 24, "frozen");
_Static_assert(offsetof(struct sg_slot, promised_bytes) == 32, "frozen");
_Static_assert(offsetof(struct sg_slot, in_flight_bytes) == 40, "frozen");
_Static_assert(offsetof(struct sg_slot, live_bytes) == 48, "frozen");
_Static_assert(offsetof(struct sg_slot, limit_bytes) == 64, "frozen");
_Static_assert(offsetof(struct sg_slot, state) == 80, "frozen");

/* ---- version 2 -------------------------------------------------------------------------------------------------- */

/* Thread record. Live heap bytes of the process = domain[HEAP].granted_bytes - sum of all records' credit_bytes and
 * array credit. */
struct sg_record {
    int64_t credit_bytes;      /* heap bytes granted to this thread and not used; briefly negative */
    uint64_t allocations;      /* heap blocks this thread obtained */
    uint64_t frees;            /* heap blocks this thread freed */
    uint64_t array_credit;     /* (atomic) SG_ARRAY_...: freed arrays that the thread may take again; 0: none */
    uint64_t ahead_bytes;      /* promised to the thread's next arrays from array_credit: never less than that credit */
    uint64_t ahead_most_bytes; /* what ahead_bytes is filled up to */
    uint64_t arrays_seen;      /* arrays_freed when idle threads were last looked for; under the decision lock */
    uint32_t tid;              /* (atomic) owner; 0: free for a new thread; SG_RECORD_REAPED: credit of a dead owner is
                                * being returned */
    uint32_t arrays_freed;     /* arrays that the thread freed since array_credit was last opened or closed */
};
_Static_assert(sizeof(struct sg_record) == 64, "one cache line per thread");

/* The word array_credit. From the lowest bit on: 1 bit, set while the thread may have credit; the credit in units; the
 * part of it that still counts as held by one call site of the heap, in units; the number of that call site; how many
 * blocks of it still count there. Live bytes and blocks of a call site = its live_bytes and live_count less the sums
 * of these parts. */
#define SG_ARRAY_UNIT UINT64_C(8) /* bytes */
#define SG_ARRAY_SUM_BITS 27
#define SG_ARRAY_SUM_MASK ((UINT64_C(1) << SG_ARRAY_SUM_BITS) - 1)
#define SG_ARRAY_OPEN UINT64_C(1)
#define SG_ARRAY_SITE_SUM_SHIFT (1 + SG_ARRAY_SUM_BITS)
#define SG_ARRAY_SITE_SHIFT (1 + 2 * SG_ARRAY_SUM_BITS)
#define SG_ARRAY_COUNT_SHIFT (SG_ARRAY_SITE_SHIFT + 5)
#define SG_ARRAY_COUNT_MAX 15

static inline uint64_t sg_array_credit_bytes(uint64_t word)
{
    return (word >> 1 & SG_ARRAY_SUM_MASK) * SG_ARRAY_UNIT;
}

static inline uint64_t sg_array_site_bytes(uint64_t word)
{
    return (word >> SG_ARRAY_SITE_SUM_SHIFT & SG_ARRAY_SUM_MASK) * SG_ARRAY_UNIT;
}

static inline uint32_t sg_array_site(uint64_t word)
{
    return (uint32_t)(word >> SG_ARRAY_SITE_SHIFT) & (SG_CALLSITE_CAPACITY - 1);
}

static inline uint64_t sg_array_site_count(uint64_t word)
{
    return word >> SG_ARRAY_COUNT_SHIFT;
}

struct sg_domain_counters {
    uint64_t granted_bytes;     /* (atomic) live bytes; for the heap also unused credit */
    uint64_t peak_bytes;        /* (atomic) highest granted_bytes */
    uint64_t allocations;       /* (atomic) not for the heap: see the thread records */
    uint64_t frees;             /* (atomic) */
    uint64_t refused_count;     /* (atomic) */
    uint64_t refused_bytes;     /* (atomic) */
    uint64_t recent_peak_bytes; /* (atomic) highest since sparkguard_reset_peak() */
    uint64_t reserved;
};
_Static_assert(sizeof(struct sg_domain_counters) == 64, "layout");

/* Composition of the peak. There are two copies: the one at peak_index is complete at every instant. */
struct sg_peak {
    int64_t time_ns;
    uint64_t total_bytes; /* the sum of domain_bytes */
    uint64_t domain_bytes[SG_DOMAIN_CAPACITY];
};

/* Refusals, phases and events are three rings: element n (from 0) is at index n % CAPACITY and has sequence n + 1.
 * The sequence is written last, so that a reader can tell a complete element from one being written. */
struct sg_refusal {
    uint64_t sequence; /* (atomic) 0 while being written */
    int64_t time_ns;
    uint64_t size_bytes;
    uint64_t usable_bytes; /* as the decision saw it; SG_UNKNOWN if unknown */
    uint8_t domain;        /* enum sg_domain */
    uint8_t reason;        /* enum sg_reason */
    uint8_t observed;      /* 1: observe mode, the request was admitted all the same */
    uint8_t reserved;
    uint32_t
        kept_mib; /* reserve that had to remain in MiB, rounded up; 0: unknown, or refused for the limit or floor */
    char call[SG_CALL_BYTES]; /* the function that the program called */
};
_Static_assert(sizeof(struct sg_refusal) == 80, "layout");

struct sg_phase {
    uint64_t sequence;   /* (atomic) */
    int64_t time_ns;     /* begin of the phase */
    uint64_t live_bytes; /* (atomic) at the end of the phase; in the current phase: now */
    uint64_t peak_bytes; /* (atomic) highest in the phase; in the current phase read phase_peak_bytes too */
    char name[64];
};
_Static_assert(sizeof(struct sg_phase) == 96, "layout");

struct sg_event {
    uint64_t sequence; /* (atomic) */
    int64_t time_ns;
    char what[112];
};
_Static_assert(sizeof(struct sg_event) == 128, "layout");

struct sg_device {
    uint64_t total_bytes; /* SG_UNKNOWN if unknown */
    uint64_t live_bytes;  /* (atomic) */
    uint32_t is_known;    /* 1 if this process has used the device */
    uint32_t reserve_mib; /* reserve of a discrete device in MiB, rounded up; 0: none, or memory of the machine */
    char name[40];
};
_Static_assert(sizeof(struct sg_device) == 64, "layout");

/* The last snapshot that this process took of the machine; SG_UNKNOWN where a figure could not be read. */
struct sg_machine {
    int64_t time_ns;
    uint64_t total_bytes;
    uint64_t available_bytes;
    uint64_t usable_bytes; /* by kernel and cgroups, less promises and in-flight bytes; the reserve is not subtracted */
    uint64_t reserve_bytes;
    uint64_t floor_bytes;
    uint64_t cgroup_limit_bytes;
    int32_t unified;       /* 1: unified memory; 0: not; -1: unknown */
    uint32_t driver_facts; /* (atomic) what this process found out about the driver: an enum sg_finding for each fact */
};

/* What the guard assumes of the driver (driver_facts.def). Records of versions without it have zeros: unknown. */
enum sg_driver_fact {
#define SG_DRIVER_FACT(ID, name, proved, disproved) SG_DRIVER_##ID,
#include "driver_facts.def"
#undef SG_DRIVER_FACT
    SG_DRIVER_FACT_COUNT
};
enum sg_finding { SG_FACT_UNKNOWN = 0, SG_FACT_PROVED = 1, SG_FACT_DISPROVED = 2 };
#define SG_DRIVER_FACT_SHIFT(fact) (2u * (unsigned)(fact))
_Static_assert((int)SG_DRIVER_FACT_COUNT <= 16, "two bits for each");

static inline enum sg_finding sg_driver_finding(uint32_t facts, enum sg_driver_fact fact)
{
    uint32_t bits = facts >> SG_DRIVER_FACT_SHIFT(fact) & 3u;
    return bits == SG_FACT_PROVED ? SG_FACT_PROVED : bits == SG_FACT_DISPROVED ? SG_FACT_DISPROVED : SG_FACT_UNKNOWN;
}

/* A mapped range of shared memory: of a tmpfs or memfd file, a System V segment, or shared anonymous memory. Its bounds
 * are in units of SG_FILE_UNIT_BYTES. A unit has the same number in every process: file number << 32 | offset. */
#define SG_FILE_UNIT_BYTES UINT64_C(4096)
struct sg_memory_file {
    uint64_t begin;         /* (atomic) first unit; 0: unused element */
    uint64_t end;           /* (atomic) one past the last unit */
    uint64_t missing_bytes; /* (atomic) the part of promised_bytes in this range that is not resident */
};

/* Memory that a forked child shares with one ancestor, and so do its siblings. They count it once. */
struct sg_origin {
    uint64_t claim; /* of the ancestor's registry entry; 0: unused element */
    uint64_t bytes; /* upper bound */
    uint32_t entry; /* index of the ancestor's registry entry, plus one */
    uint32_t pid;
};

/* Whether the call sites' at_peak_bytes belong to the last peak. A new peak changes only this state. The copy of
 * live_bytes is made before a call site next loses bytes, so that a growing process copies nothing. */
enum sg_callsites_peak_state {
    SG_CALLSITES_PEAK_KEPT = 0,    /* at_peak_bytes hold the figures of the peak */
    SG_CALLSITES_PEAK_LIVE = 1,    /* live_bytes still are the figures of the peak */
    SG_CALLSITES_PEAK_KEEPING = 2, /* live_bytes are being copied to at_peak_bytes */
};

/* Call sites are numbered per class. The number is stored with each block, whose bookkeeping has few spare bits. */
enum sg_callsite_class { SG_CALLSITES_HEAP, SG_CALLSITES_MAPPED, SG_CALLSITES_CUDA, SG_CALLSITE_CLASSES };

/* A call site of large blocks: the return address of the program's own call. */
struct sg_callsite {
    uint64_t key;                         /* (atomic) return address << 3 | enum sg_domain; 0: unused element */
    uint64_t live_bytes;                  /* (atomic) */
    uint64_t live_count;                  /* (atomic) blocks; for mappings: contiguous pieces */
    uint64_t peak_bytes;                  /* (atomic) highest live_bytes */
    uint64_t offset;                      /* of the address in the library, in the terms of its symbol table */
    uint64_t is_named;                    /* (atomic) 1: offset and library are complete; they are written once */
    uint64_t at_peak_bytes;               /* (atomic) live_bytes at the process's peak; see sites_peak_state */
    uint64_t at_refusal_bytes;            /* (atomic) live_bytes at the last recorded refusal */
    char library[SG_CALLSITE_NAME_BYTES]; /* base name of the file */
};
_Static_assert(sizeof(struct sg_callsite) == 128, "layout");
_Static_assert((int)SG_DOMAIN_COUNT <= 8, "a domain has three bits of a site's key");

struct sg_segment {
    struct sg_slot slot;

    uint64_t segment_bytes;   /* size of the file; grows with record_capacity */
    uint32_t record_capacity; /* thread records that fit into the file now */
    uint32_t record_used;     /* (atomic) highest index of a record ever used, plus one */
    uint32_t parent_pid;
    uint32_t uid;
    int64_t started_time_ns;
    int64_t ended_time_ns; /* 0 while the process runs */
    int32_t exit_code;     /* -1 if unknown */
    int32_t signal;        /* -1: unknown, 0: none */
    char library_version[16];
    char job[SG_JOB_BYTES];
    char command[SG_COMMAND_BYTES]; /* arguments separated by one space */

    struct sg_machine machine;
    struct sg_device device[SG_DEVICE_CAPACITY];

    struct sg_domain_counters domain[SG_DOMAIN_CAPACITY];
    uint64_t peak_seen_bytes;  /* (atomic) highest granted_bytes ever; never too low */
    uint32_t peak_index;       /* (atomic) index of the complete copy of peak */
    uint32_t max_resident_mib; /* at exit: the kernel's largest resident size, MiB rounded up; 0: unknown */
    struct sg_peak peak[2];
    uint64_t unmatched_frees;       /* (atomic) frees of large blocks whose allocation no hook saw */
    uint64_t faults;                /* (atomic) internal faults; the call was passed through without being counted */
    uint64_t registered_bytes;      /* (atomic) pinned by cudaHostRegister; counted in the memory's own domain */
    uint64_t sparse_resident_bytes; /* sparse memory that was resident at the last scan */
    uint64_t inherited_domain_bytes[SG_DOMAIN_CAPACITY];

    uint64_t refusal_count; /* (atomic) */
    uint64_t phase_count;   /* (atomic) */
    uint64_t event_count;   /* (atomic) */
    struct sg_refusal refusal[SG_REFUSAL_CAPACITY];
    struct sg_phase phase[SG_PHASE_CAPACITY];
    struct sg_event event[SG_EVENT_CAPACITY];

    uint64_t unaccounted_bytes; /* (atomic) measured memory that CUDA contexts and the like took without a request */
    struct sg_memory_file file[SG_FILE_CAPACITY]; /* as in struct sg_registry_entry */
    struct sg_origin origin[SG_ORIGIN_CAPACITY];  /* as in struct sg_registry_entry */
    uint64_t shared_bytes;           /* (atomic) sum of `file`: part of granted_bytes, never of inherited_bytes */
    uint64_t inherited_shared_bytes; /* (atomic) part of shared_bytes mapped since before the fork; an upper bound */
    uint64_t phase_peak_bytes;       /* (atomic) highest granted_bytes since the current phase began, if any */
    int64_t saved_time_ns;           /* time of a copy in the history; 0 in a live segment */
    union {
        /* In a copy: /proc/sys/kernel/random/boot_id, its first 16 digits in boot_id[0]; 0: unknown. */
        uint64_t boot_id[2];
        /* In a live segment: when this process last asked others to give back memory, and how much; 0: never. */
        struct {
            int64_t asked_time_ns; /* (atomic) */
            uint64_t asked_bytes;  /* (atomic) stored first */
        };
    };
    uint64_t job_peak_bytes; /* (atomic) highest sum over all processes of the job, as this process saw it */
    uint64_t run; /* SG_RUN of the job's first process, to tell apart runs of one job name; 0: that process had ended */
    uint32_t sites_peak_state; /* (atomic) enum sg_callsites_peak_state */
    uint32_t command_hash;     /* of the command line that the launcher was given, written by the launcher at the end;
                                * 0: unknown, also in records of versions that had zero padding here */
    /* (atomic) job_peak_bytes plus this process's resident sparse memory, by its scans: the sum that SPARKGUARD_LIMIT
     * bounds. 0: the process had no sparse memory. */
    uint64_t limit_peak_bytes;
    int64_t seen_time_ns; /* (atomic) last run of the history thread, about one per second; 0: never */
    uint32_t oom;         /* enum sg_oom, written by the launcher */
    /* The inode of the PID namespace in which slot.pid and parent_pid are numbers; 0: unknown. Records of one library
     * version may lack it and `container`, which were zero padding before. */
    uint32_t pid_namespace;
    /* The container: the first 12 digits of its ID, else the beginning of its host name; "": none that shows inside.
     * The last of SG_CONTAINER_BYTES may be a letter. */
    char container[SG_CONTAINER_BYTES];
    struct sg_callsite site[SG_CALLSITE_CLASSES][SG_CALLSITE_CAPACITY];
    struct sg_record record[]; /* record 0 is shared by threads that found no record of their own */
};
_Static_assert(offsetof(struct sg_segment, record) % 64 == 0, "records sit on cache lines of their own");
_Static_assert((int)SG_DOMAIN_COUNT <= (int)SG_DOMAIN_CAPACITY, "the layout has room for every domain");

/* Identifies a run of a job by PID and start of its first process. Linux has at most 2^22 PIDs. */
#define SG_RUN(pid, start_ticks) ((uint64_t)(start_ticks) << 22 | (uint64_t)(pid))
#define SG_RUN_PID(run) ((run) & ((UINT64_C(1) << 22) - 1))
#define SG_RUN_TICKS(run) ((run) >> 22)

#define SG_SEGMENT_BYTES(records) (sizeof(struct sg_segment) + (size_t)(records) * sizeof(struct sg_record))

/* ---- the time line ----------------------------------------------------------------------------------------------- */

/*
 * The time line is a file beside the segment, with the same name and another suffix. Processes have one that use CUDA,
 * held 256 MiB, marked a phase or were refused something. The file has this fixed size; a copy in the history ends with
 * its last sample.
 *
 * Samples closer together than interval_ns are merged. When the array is full, adjacent samples are merged and the
 * interval doubles. A process killed during that leaves merged and unmerged samples, all of them true. So readers sort
 * by time.
 */
#define SG_TIMELINE_SUFFIX ".timeline"
#define SG_TIMELINE_MAGIC UINT64_C(0x4c454d4954475053) /* "SPGTIMEL" in memory order */
#define SG_TIMELINE_VERSION 1u

enum { SG_SAMPLE_CAPACITY = 682 };

struct sg_sample {
    int64_t time_ns;       /* (atomic) begin; the sample lasts until the next one. 0: being written, to be ignored */
    uint64_t usable_bytes; /* lowest, with reserve and floor of that moment; as in struct sg_machine */
    uint64_t reserve_bytes;
    uint64_t floor_bytes;
    uint64_t live_bytes[SG_DOMAIN_CAPACITY]; /* at the moment of their highest sum */
};

struct sg_timeline {
    uint64_t magic; /* SG_TIMELINE_MAGIC, written last */
    uint32_t version;
    uint32_t sample_count; /* (atomic) */
    uint64_t interval_ns;
    uint64_t reserved[5]; /* zero */
    struct sg_sample sample[SG_SAMPLE_CAPACITY];
};
_Static_assert(sizeof(struct sg_timeline) == 65536, "64 KiB, however long the run");
_Static_assert(SG_SAMPLE_CAPACITY % 2 == 0, "adjacent samples become one");

/* ---- the registry --------------------------------------------------------------------------------------- */

/*
 * The registry is one file in SPARKGUARD_DIR, mapped by every guarded process that shares it. It shows each process's
 * promises, bytes in flight and current request, so that all decide as one. It keeps no evidence: the next process
 * takes over a dead entry.
 *
 * All versions share this file. The header and the first SG_ENTRY_FROZEN_BYTES of an entry are frozen like the slot.
 * The process that makes the file writes its own version and the size of its entries into the header; the others step
 * through the entries by that size. The rest of an entry is laid out as in the file's version. A process of another
 * version leaves the rest of its own entry zero, and takes the rest of all entries for zero.
 *
 * An entry's owner holds an open-file-description lock (F_OFD_SETLK) on the byte of this file at offset = entry number.
 * The lock is kept alive as a segment's is. The kernel releases it at death. Any process that finds the byte unlocked
 * may turn the claim from LIVE to DEAD by compare-and-swap. An entry with a LIVE claim is never taken over.
 */
#define SG_REGISTRY_NAME "machine.ledger"
#define SG_REGISTRY_MAGIC UINT64_C(0x524744454c475053) /* "SPGLEDGR" in memory order */
#define SG_REGISTRY_VERSION 2u

/* In a directory that a group shares, the file has this and no entries: the registry is the System V segment that it
 * names. */
#define SG_REGISTRY_LINK_MAGIC UINT64_C(0x4b4e494c4c475053) /* "SPGLLINK" in memory order */
struct sg_registry_link {
    uint64_t magic;
    uint32_t version; /* SG_REGISTRY_VERSION of the process that made both */
    int32_t segment;  /* identifier */
    uint64_t bytes;
    uint64_t ipc_namespace; /* inode of the namespace in which the identifier is one */
};

enum {
    SG_ENTRY_CAPACITY = 1024,    /* processes at a time; further ones decide alone and note that as an event */
    SG_ENTRY_LEVELS = 8,         /* cgroups with a limit above a process */
    SG_ENTRY_FROZEN_BYTES = 512, /* leading bytes of an entry that all versions write and read alike */
    SG_ENTRY_BYTES_MAX = 65536,
};

/* The lowest two bits of a claim. The other bits are a generation, which is unique to one owner. */
enum sg_claim { SG_CLAIM_EMPTY = 0, SG_CLAIM_LIVE = 1, SG_CLAIM_DEAD = 2 };
#define SG_CLAIM_STATE(claim) ((claim)&3u)

/* sg_registry_entry.ticket. NONE: no request is being decided. CHOOSING: a request is being announced and its place in
 * the order is not known yet. From FIRST on: the place plus FIRST. */
#define SG_TICKET_NONE UINT64_C(0)
#define SG_TICKET_CHOOSING UINT64_C(1)
#define SG_TICKET_FIRST UINT64_C(2)

/* sg_registry_entry.queued_source: memory of the machine that cgroups bound or do not bound. Any other value is the
 * identity of a discrete device. */
#define SG_SOURCE_BOUNDED UINT64_C(0)
#define SG_SOURCE_UNBOUNDED UINT64_C(1)

struct sg_registry_entry {
    struct sg_slot slot;           /* as in the segment, but magic is 0 and state is RUNNING or REPLACED */
    uint64_t claim;                /* (atomic) generation << 2 | enum sg_claim */
    uint64_t ticket;               /* (atomic) of the request being decided */
    uint64_t queued_bytes;         /* (atomic) size of that request; valid while there is a ticket */
    uint64_t queued_source;        /* (atomic) memory that the request takes from */
    uint64_t bounded_flight_bytes; /* (atomic) part of slot.in_flight_bytes that cgroups bound */
    uint64_t device_flight_bytes;  /* (atomic) part of slot.in_flight_bytes that is memory of discrete devices */
    uint64_t flight_device;        /* (atomic) identity of that device, common to all processes; SG_UNKNOWN: several */
    /* (atomic) CLOCK_MONOTONIC: when the owner last lowered promised_bytes; of a waiting claim, its last try */
    uint64_t published_ns;
    uint64_t watched_ns;             /* (atomic) last round of a watchdog that may end the process; 0: none */
    uint64_t holds_bounded_bytes;    /* (atomic) freed on exit: growth of RssAnon since fork, and pinned bytes */
    uint64_t holds_unbounded_bytes;  /* (atomic) freed on exit: device memory taken from the machine */
    uint64_t job_run;                /* SG_RUN of the job's first process; 0: unknown. Of a job: (atomic) an heir's */
    uint64_t ever_promised_bytes;    /* (atomic) sum of all that was ever added to promised_bytes; never falls */
    uint64_t pinned_bytes;           /* (atomic) live bytes of domain pinned */
    uint64_t managed_bytes;          /* (atomic) live bytes of domain managed */
    uint64_t level[SG_ENTRY_LEVELS]; /* (atomic) identities of the cgroups with a limit; 0: no more */
    uint64_t parent_entry;           /* forked child: index of the parent's entry plus one; 0: unknown */
    uint64_t parent_claim;           /* claim of that entry at the fork */
    uint64_t shared_bytes;           /* (atomic) anonymous memory still shared with the parent */
    uint64_t unbounded_flight_bytes; /* (atomic) part of slot.in_flight_bytes taken from the machine outside cgroups */
    uint64_t files_version;          /* (atomic) odd while `file` changes with promised_bytes or granted_bytes */
    uint64_t pid_namespace;          /* inode of the PID namespace in which slot.pid is a number; 0: unknown */
    uint64_t claimed_bytes;          /* (atomic) in an entry of a job: the claim; 0: not granted yet */
    uint64_t claim_wanted_bytes;     /* (atomic) size of the claim while it waits in the queue; else 0 */
    uint64_t claim_place;            /* place in the order of all claims ever made, from 1 */
    uint64_t claim_priority;         /* int64_t: claims of a higher priority are granted first */
    /* In the entry of a job with what is set for it: */
    uint64_t set_limit_bytes;   /* (atomic) the limit by sparkguard --set; 0: not set, SG_UNKNOWN: none */
    uint64_t set_reserve_bytes; /* (atomic) the reserve by sparkguard --set, at least 1; 0: not set */
    uint64_t set_user;          /* (atomic) the user who set one of them last, plus one; of a claim: whose it is */
    uint64_t pressure_bytes;    /* (atomic) what others have asked this process to give back since the last answer */
    uint32_t pressure_asked;    /* (atomic, futex) number of such questions */
    uint32_t pressure_answered; /* (atomic) the last question that was answered */
    uint64_t claim_share;       /* in an entry of a job: its share of memory beyond claims; 0: 1 */
    uint64_t claim_asked_bytes; /* (atomic) the size that its launcher or sparkguard --set asked for; 0: given up */
    uint64_t frozen_gap[3];     /* zero; as frozen_reserve */
    uint64_t shared_promised_bytes; /* (atomic) the part of promised_bytes that the kernel's figures for the process do
                                     * not bound: shared and managed memory, and sg_record.ahead_most_bytes */
    uint64_t unwritable_bytes;      /* (atomic) private memory that was made unwritable and may have pages */
    uint64_t inherited_least_bytes; /* (atomic) the part of granted_bytes that surely is private memory of the parent */
    uint64_t frozen_reserve[2];     /* zero; for fields that all later versions share */
    /* The rest belongs to the file's version. */
    struct sg_memory_file file[SG_FILE_CAPACITY];
    uint64_t file_bytes;                         /* (atomic) sum of `file`, part of granted_bytes */
    uint64_t file_changes;                       /* (atomic) number of changes of `file` */
    struct sg_origin origin[SG_ORIGIN_CAPACITY]; /* the parent first */
    uint64_t more_files; /* (atomic) number of further ranges, at SG_MORE_FILES_AT() of this file; part of file_bytes */
    uint64_t padding[1];
};
_Static_assert(sizeof(struct sg_registry_entry) % 64 == 0, "entries share no cache line");
_Static_assert(offsetof(struct sg_registry_entry, claim) == 128, "frozen");
_Static_assert(offsetof(struct sg_registry_entry, level) == 248, "frozen");
_Static_assert(offsetof(struct sg_registry_entry, file) >= SG_ENTRY_FROZEN_BYTES, "the rest follows");

struct sg_registry {
    uint64_t magic;          /* SG_REGISTRY_MAGIC; the file gets its name once it is completely written */
    uint32_t version;        /* of the library that made the file */
    uint32_t entry_bytes;    /* distance from one entry to the next */
    uint32_t entry_capacity; /* SG_ENTRY_CAPACITY */
    uint32_t entry_used;     /* (atomic) highest index of an entry ever used, plus one */
    /* (atomic, futex) changes when a request is settled or withdrawn, or an entry is found dead */
    uint32_t epoch;
    uint32_t call;        /* (atomic, futex) changes when a process wakes the watchdogs */
    uint64_t asked_bytes; /* (atomic) sum of all requests ever; the sum before a request is its place in the order */
    uint64_t waiting_until_ns;          /* (atomic) latest end of a wait for the epoch; CLOCK_MONOTONIC */
    uint64_t context_bytes;             /* (atomic) size requested for the next CUDA context; 0: none measured yet */
    uint64_t measured_context_bytes[2]; /* (atomic) measured sizes of the last two contexts, newest first; 0: none */
    uint64_t settings;                  /* (atomic) number of changes by sparkguard --set */
    /* (atomic) device memory of the machine that guarded processes freed or left, also by calls that failed, and did
     * not take since: proven to be in the driver's pool, or on its way back */
    uint64_t pool_proven_bytes;
    /* (atomic) sum of all memory whose pages went back to the machine and may be touched again without a request */
    uint64_t returned_bytes;
    uint64_t unused[2];              /* zero */
    uint64_t unexplained_base_bytes; /* (atomic) memory that no kernel counter explains, without CUDA's; 0: unknown */
    uint64_t claim_places;           /* (atomic) number of claims ever made */
    uint64_t pool_disproven_bytes;   /* (atomic) memory that nothing explains, NVML neither, and not in the pool */
    uint64_t listed_bytes; /* (atomic) device memory by NVML's list of processes beyond that of guarded processes */
    uint64_t listed_ns;    /* (atomic) when NVML gave that list; CLOCK_MONOTONIC; 0: never */
    uint64_t ended_ns;     /* (atomic) when a process with device memory of the machine was last found to have ended */
    uint64_t dropped_ns;   /* (atomic) when a process last emptied the driver's pool by drop_caches */
    uint64_t pool_missed_ns; /* (atomic) when the machine last served what the pool was guessed to; 0: never */
    uint64_t reserved[490];  /* zero */
    struct sg_registry_entry entry[];
};
_Static_assert(offsetof(struct sg_registry, entry) == 4096, "frozen");

#define SG_REGISTRY_BYTES(entry_bytes) (sizeof(struct sg_registry) + (size_t)(entry_bytes)*SG_ENTRY_CAPACITY)

/* Where the further ranges of an entry are, in a registry of this version. That part of the file is read and written
 * and never mapped, and has blocks only where a process has needed them. */
#define SG_MORE_FILES_CAPACITY 4096
#define SG_MORE_FILES_AT(number) \
    (SG_REGISTRY_BYTES(sizeof(struct sg_registry_entry)) + \
     (uint64_t)(number)*SG_MORE_FILES_CAPACITY * sizeof(struct sg_memory_file))

/*
 * Jobs: what belongs to a job and to none of its processes stands in entries of the job itself, with SG_SLOT_JOB. They
 * hold nothing. One has what sparkguard --set has set; each claim has one more.
 *
 * What is set ends with the job. Nobody holds the lock of that entry: it is dead when the job's first process (job_run)
 * has ended and no process or claim of the job lives. The next who looks for dead owners marks it. Where a process of
 * the job still lives and the first one has ended, job_run becomes that of the living one, its heir. Who writes to the
 * entry holds the lock of the byte behind those of all entries, and the entry's own meanwhile, so that nobody else can
 * take it over; then it counts the change in `settings`. A process of the job reads the words after the count.
 *
 * Claims: memory set aside for a job before it starts (sparkguard --claim). The slot names the job's first process. The
 * launcher keeps the entry's lock, so the claim ends with the launcher.
 *
 * The processes of the job draw on the claim: what they hold and have in flight is part of it. The rest is
 * max(0, claimed_bytes - that sum), and is taken for all other jobs. So bytes move from the claim to the job by
 * themselves, and back when the job frees them.
 *
 * A claim that is not granted yet waits in a queue: claim_wanted_bytes is its size. The claim with the highest priority
 * is first, and among these the one with the lowest place. Only the first one is decided on. One whose process has not
 * tried for three seconds (it is stopped) is passed over, and keeps its place.
 */

/* Memory that a job holds beyond its claims is lent: the jobs that have a callback are asked for it before a request of
 * another job is refused. The one that holds the most of it for its share is asked first. */
#define SG_SHARE_MIN 1
#define SG_SHARE_MAX 1000

/* One attempt of sparkguard_claim(), or of sparkguard_raise_claim() with the words marked *. */
struct sg_claim_order {
    uint64_t bytes;   /* in* */
    int64_t priority; /* in */
    uint64_t share;   /* in: SG_SHARE_MIN to SG_SHARE_MAX */
    uint64_t wait_ns; /* in*: longest wait, below 1 s: for a change if the claim is not granted, and for requests under
                       * way, which are waited for 100 ms at least */
    uint64_t queue_position; /* out: claims before this one, plus one */
    uint64_t usable_bytes; /* out*: what the tightest constraint leaves; SG_UNKNOWN: not the first, so not decided on */
    uint64_t reserve_bytes; /* out*: the part of usable_bytes that no claim may take */
    uint64_t most_bytes;    /* out*: the largest claim that the machine, its cgroups and the job's limit ever allow */
};

/* For the launcher, in the process that will become the program. The first call queues a claim for this process's job.
 * Each call decides on it once if it is the first in the queue, and waits for a change if it is not granted.
 * Returns the descriptor whose lock keeps the claim, close-on-exec, once the claim is granted. Else it returns a
 * negative errno number. -EAGAIN: not granted yet, call again. -E2BIG: larger than most_bytes, and no longer queued.
 * -ENOSYS: the guard is off. -EDQUOT: the user has as many claims as a user may have. -EUSERS: as many other jobs have
 * claims as can count, and this one's is no longer queued. Another one: this process shares no registry, so no other
 * process would see its claim. Not thread-safe. */
int sparkguard_claim(struct sg_claim_order *order);

/* For sparkguard --set: raises the granted claim of this process's job to order->bytes, if that much more can be
 * claimed now. The queue does not matter. A claim that is larger by now is lowered. If the job has several, the one in
 * the lowest entry changes. This process counts no longer as one of its job and leaves no record. Returns 0 or a
 * negative errno number. -ENOENT: the job has no granted claim. -ECANCELED: others kept changing it. -EXDEV: it counts
 * in a cgroup that this process is not in. -EAGAIN: it does not fit now. -E2BIG, -ENOSYS and others: as
 * sparkguard_claim(). Not thread-safe. */
int sparkguard_raise_claim(struct sg_claim_order *order);

/* For the launcher's helper, once: as sparkguard_on_pressure() of sparkguard.h, and this process counts no longer as
 * one of its job and leaves no record. The function returns the nanoseconds after which the request counts as answered;
 * meanwhile it may be called again. Returns 0 or a negative errno number. */
int sparkguard_help(uint64_t (*function)(uint64_t wanted_bytes, void *data), void *data);

/* Whether a file of `file_bytes` with this header is a registry that this version can share. */
static inline int sg_registry_is_usable(const struct sg_registry *header, uint64_t file_bytes)
{
    int is_same = header->version == SG_REGISTRY_VERSION;
    return header->magic == SG_REGISTRY_MAGIC && header->entry_capacity == SG_ENTRY_CAPACITY &&
           header->entry_bytes >= SG_ENTRY_FROZEN_BYTES && header->entry_bytes <= SG_ENTRY_BYTES_MAX &&
           header->entry_bytes % 64 == 0 && (!is_same || header->entry_bytes == sizeof(struct sg_registry_entry)) &&
           file_bytes >= SG_REGISTRY_BYTES(header->entry_bytes);
}

#endif
