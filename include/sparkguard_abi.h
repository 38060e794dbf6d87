/*
 * sparkguard_abi.h - the shared-memory layout: what libsparkguard.so writes and the tools read.
 *
 * One file per guarded process in SPARKGUARD_DIR, named "<pid>-<16 hex digits>.segment". It is the whole contract
 * between preload/ and tools/; neither includes a header of the other.
 *
 * Promises
 *   - The first 128 bytes (struct sg_slot) are frozen for ever, so that two versions of the library on one machine
 *     can count each other. Everything behind them belongs to SG_ABI_VERSION: a field that moves, grows or goes raises
 *     it. The tools read version 1, too (tools/model/segment_version_1.h); of a version they do not know they say so
 *     and believe nothing.
 *   - All numbers are host-endian, naturally aligned, of fixed width; no pointers, no size_t, no semaphores.
 *   - Readers read() the file, never trust a length or an index in it, and treat every text as unterminated.
 *   - A process is alive while somebody holds an exclusive flock on its file (see "Liveness").
 *
 * History: SPARKGUARD_HISTORY holds copies of the same layout and name, cut behind the last record used. They have no
 * owner, and saved_time_ns says that they are copies.
 *
 * Units: bytes; nanoseconds since 1970 (CLOCK_REALTIME) for *_time_ns. "Unknown" is SG_UNKNOWN or -1 as noted.
 *
 * Writing: fields marked (atomic) are updated by any thread with atomic operations; thread records by their owner
 * and its signal handlers only; the rest is written once before the magic, or under the process's decision lock.
 *
 * Liveness: the owner opens its file, takes flock(LOCK_EX), maps one page of it with MADV_DONTFORK and closes the
 * descriptor. The kernel drops the lock when that mapping goes: at death or exec, whatever the program did to its
 * descriptors, and whether or not a forked child lives on. A reader tests with flock(LOCK_SH | LOCK_NB).
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
#define SG_DOMAIN(ID, name, bounded, help) SG_DOMAIN_##ID,
#include "domains.def"
#undef SG_DOMAIN
    SG_DOMAIN_COUNT
};

enum {
    SG_DOMAIN_CAPACITY = 8, /* places for domains in the layout */
    SG_REFUSAL_CAPACITY = 64,
    SG_PHASE_CAPACITY = 64,
    SG_EVENT_CAPACITY = 32,
    SG_DEVICE_CAPACITY = 8,
    SG_CALLSITE_CAPACITY = 32, /* numbers of call sites in a class: 0 is none */
    SG_CALLSITE_OTHER = 1,     /* all that found no place */
    SG_CALLSITE_FIRST = 2,     /* from here on one each */
    SG_CALLSITE_NAME_BYTES = 64,
    SG_FILE_CAPACITY = 64,   /* ranges of shared memory that a process shows */
    SG_ORIGIN_CAPACITY = 4,  /* processes that it has memory from by fork: its parent, the parent's parent and so on */
    SG_RECORD_FIRST = 64,    /* thread records a new segment has room for */
    SG_RECORD_LIMIT = 15360, /* and the most it grows to; further threads share record 0 */
    SG_RECORD_REAPED = INT32_MAX, /* in place of a thread, which never has that number */
    SG_JOB_BYTES = 64,
    SG_COMMAND_BYTES = 256,
    SG_CALL_BYTES = 40,
};

/* How a process stands. "killed" is never written by the process itself: a reader concludes it from RUNNING without
 * an owner, and the launcher adds the signal it has seen. */
enum sg_state { SG_STATE_RUNNING = 1, SG_STATE_EXITED = 2, SG_STATE_REPLACED = 3, SG_STATE_KILLED = 4 };

enum sg_reason { SG_REASON_RESERVE = 1, SG_REASON_LIMIT = 2, SG_REASON_FLOOR = 3, SG_REASON_DEVICE = 4 };

enum sg_slot_flag {
    SG_SLOT_GUARDING = 1u << 0, /* decisions are made on figures the kernel gave */
    SG_SLOT_OBSERVE = 1u << 1,  /* SPARKGUARD_MODE=observe */
    SG_SLOT_CUDA = 1u << 2,     /* the process has made a CUDA allocation */
    SG_SLOT_SHARING = 1u << 3,  /* it has a registry entry in the registry: others count it, and it counts them */
    SG_SLOT_WATCHED = 1u << 4,  /* its watchdog thread runs */
    SG_SLOT_UNIFIED = 1u << 5,  /* its device memory is the machine's */
    SG_SLOT_TOLD = 1u << 6,     /* in a registry entry: a child of its owner has said that it cannot share */
};

/* ---- the frozen part -------------------------------------------------------------------------------------------- */

struct sg_slot {
    uint64_t magic;           /* SG_ABI_MAGIC, written last */
    uint32_t abi_version;     /* layout of what follows the slot */
    uint32_t pid;             /* in the owner's own PID namespace */
    uint64_t start_ticks;     /* /proc/PID/stat field 22: clock ticks since boot */
    uint64_t granted_bytes;   /* (atomic) admitted and not given back: live bytes and the threads' unused credit */
    uint64_t promised_bytes;  /* (atomic) granted, and by the last snapshot not yet resident */
    uint64_t in_flight_bytes; /* (atomic) admitted, the real call has not returned yet */
    uint64_t live_bytes;      /* (atomic) granted_bytes less credit, as of the last slow path; exact: see records. In a
                               * registry entry: managed memory that the CPU's page tables do not show */
    uint64_t inherited_bytes; /* (atomic) private memory it was forked with and may have; sums take the rest */
    uint64_t limit_bytes;     /* SPARKGUARD_LIMIT in bytes; 0: none, 1: nothing at all */
    uint64_t job_hash;        /* FNV-1a of the job's name */
    uint32_t state;           /* enum sg_state */
    uint32_t flags;           /* (atomic) enum sg_slot_flag */
    uint64_t device_bytes;    /* (atomic) in a registry entry: the part of granted_bytes that is device memory */
    uint64_t landed_count;    /* (atomic) in a registry entry: how many requests in flight have ended */
    uint64_t inherited_promise_bytes; /* (atomic) missing of what the parent was promised: counts when that is gone */
    /* (atomic) resident of MAP_NORESERVE mappings by the last snapshot, and made writable since */
    uint64_t sparse_bytes;
    uint64_t told_peak_bytes; /* (atomic) in a registry entry: the job's peak, by processes that left no record */
};
_Static_assert(sizeof(struct sg_slot) == 128, "the slot is frozen at 128 bytes");
_Static_assert(offsetof(struct sg_slot, granted_bytes) == 24, "frozen");
_Static_assert(offsetof(struct sg_slot, promised_bytes) == 32, "frozen");
_Static_assert(offsetof(struct sg_slot, in_flight_bytes) == 40, "frozen");
_Static_assert(offsetof(struct sg_slot, live_bytes) == 48, "frozen");
_Static_assert(offsetof(struct sg_slot, limit_bytes) == 64, "frozen");
_Static_assert(offsetof(struct sg_slot, state) == 80, "frozen");

/* ---- version 2 -------------------------------------------------------------------------------------------------- */

/* One thread. Live heap bytes of the process = domain[HEAP].granted_bytes - the sum of all records' credit_bytes. */
struct sg_record {
    int64_t credit_bytes; /* heap bytes granted to this thread and not used; negative never for long */
    uint64_t allocations; /* heap blocks this thread obtained */
    uint64_t frees;       /* heap blocks this thread gave back */
    uint64_t reserved[4];
    uint32_t tid; /* (atomic) owner, 0 if free to be adopted, SG_RECORD_REAPED while its credit goes back */
    uint32_t reserved_tid;
};
_Static_assert(sizeof(struct sg_record) == 64, "one cache line per thread");

struct sg_domain_counters {
    uint64_t granted_bytes;     /* (atomic) live; for the heap including credit */
    uint64_t peak_bytes;        /* (atomic) highest granted_bytes */
    uint64_t allocations;       /* (atomic) the heap's are in the records */
    uint64_t frees;             /* (atomic) */
    uint64_t refused_count;     /* (atomic) */
    uint64_t refused_bytes;     /* (atomic) */
    uint64_t recent_peak_bytes; /* (atomic) the same since the program asked for its peaks to begin anew */
    uint64_t reserved;
};
_Static_assert(sizeof(struct sg_domain_counters) == 64, "layout");

/* What the peak was made of. Two copies: the one at peak_index is whole at every instant. */
struct sg_peak {
    int64_t time_ns;
    uint64_t total_bytes; /* the sum of domain_bytes */
    uint64_t domain_bytes[SG_DOMAIN_CAPACITY];
};

/* Entries of the three rings: number n (from 0) sits at index n % ROOM and carries sequence n + 1, written last. */
struct sg_refusal {
    uint64_t sequence; /* (atomic) 0 while being written */
    int64_t time_ns;
    uint64_t size_bytes;
    uint64_t usable_bytes; /* SG_UNKNOWN if unknown */
    uint8_t domain;        /* enum sg_domain */
    uint8_t reason;        /* enum sg_reason */
    uint8_t observed;      /* 1: observe mode, the request was let through */
    uint8_t reserved[5];
    char call[SG_CALL_BYTES]; /* the name the program used */
};
_Static_assert(sizeof(struct sg_refusal) == 80, "layout");

struct sg_phase {
    uint64_t sequence;   /* (atomic) */
    int64_t time_ns;     /* when it began */
    uint64_t live_bytes; /* (atomic) at its end; of the present phase, the process's */
    uint64_t peak_bytes; /* (atomic) the same: of the present phase, at least phase_peak_bytes */
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
    uint32_t reserve_mib; /* kept free of a memory of its own, in MiB and rounded up; 0: none, or it is the machine's */
    char name[40];
};
_Static_assert(sizeof(struct sg_device) == 64, "layout");

/* The machine as this process last saw it; SG_UNKNOWN where it could not be read. */
struct sg_machine {
    int64_t time_ns;
    uint64_t total_bytes;
    uint64_t available_bytes;
    uint64_t usable_bytes; /* before the reserve: kernel and cgroups, less promises and requests in flight */
    uint64_t reserve_bytes;
    uint64_t floor_bytes;
    uint64_t cgroup_limit_bytes;
    int32_t unified; /* 1, 0, or -1: not known */
    uint32_t reserved;
};

/* A range of shared memory that the process maps: of a memory file, a System V segment, or shared anonymous memory.
 * The units have the same numbers in every process: of the file << 32 | the place in it. */
#define SG_FILE_UNIT_BYTES UINT64_C(4096)
struct sg_memory_file {
    uint64_t begin;         /* (atomic) its first unit; 0: none */
    uint64_t end;           /* (atomic) the unit behind it */
    uint64_t missing_bytes; /* (atomic) what of promised_bytes is missing there */
};

/* Memory that a forked child had from one process at the fork, and its siblings too. */
struct sg_origin {
    uint64_t claim; /* of that process's registry entry; 0: none */
    uint64_t bytes; /* at most */
    uint32_t entry; /* the number of the registry entry, plus one */
    uint32_t pid;
};

/* Whether the sites' at_peak_bytes belong to the present peak. While the sites still hold what they held at it, that
 * is noted only. */
enum sg_callsites_peak_state {
    SG_CALLSITES_PEAK_KEPT = 0,    /* at_peak_bytes are of the peak */
    SG_CALLSITES_PEAK_LIVE = 1,    /* live_bytes are */
    SG_CALLSITES_PEAK_KEEPING = 2, /* being copied */
};

/* Sites are numbered by class: a number must fit in what is known of a block. */
enum sg_callsite_class { SG_CALLSITES_HEAP, SG_CALLSITES_MAPPED, SG_CALLSITES_CUDA, SG_CALLSITE_CLASSES };

/* Where large blocks were asked for: the address that the program's own call returns to. */
struct sg_callsite {
    uint64_t key;                         /* (atomic) that address << 3 | enum sg_domain; 0: none */
    uint64_t live_bytes;                  /* (atomic) */
    uint64_t live_count;                  /* (atomic) blocks; of mappings the contiguous pieces */
    uint64_t peak_bytes;                  /* (atomic) highest live_bytes */
    uint64_t offset;                      /* of the address in that library, as its symbol table counts */
    uint64_t is_named;                    /* (atomic) 1: offset and library are whole, written once */
    uint64_t at_peak_bytes;               /* (atomic) live_bytes at the process's peak; see sites_peak_state */
    uint64_t at_refusal_bytes;            /* (atomic) live_bytes at the last refusal that was recorded */
    char library[SG_CALLSITE_NAME_BYTES]; /* the file's name without folders */
};
_Static_assert(sizeof(struct sg_callsite) == 128, "layout");
_Static_assert((int)SG_DOMAIN_COUNT <= 8, "a domain has three bits of a site's key");

struct sg_segment {
    struct sg_slot slot;

    uint64_t segment_bytes;   /* of the file, grows with the records */
    uint32_t record_capacity; /* records the file has room for now */
    uint32_t record_used;     /* (atomic) highest record ever used, plus one */
    uint32_t parent_pid;
    uint32_t uid;
    int64_t started_time_ns;
    int64_t ended_time_ns; /* 0 while it runs */
    int32_t exit_code;     /* -1 if unknown */
    int32_t signal;        /* -1 if unknown, 0 if none */
    char library_version[16];
    char job[SG_JOB_BYTES];
    char command[SG_COMMAND_BYTES]; /* arguments separated by one space */

    struct sg_machine machine;
    struct sg_device device[SG_DEVICE_CAPACITY];

    struct sg_domain_counters domain[SG_DOMAIN_CAPACITY];
    uint64_t peak_seen_bytes; /* (atomic) highest granted_bytes ever seen, never too low */
    uint32_t peak_index;      /* (atomic) which copy of peak is whole */
    uint32_t
        max_resident_mib; /* the kernel's largest resident size, in MiB and rounded up, noted at the end; 0: unknown */
    struct sg_peak peak[2];
    uint64_t unmatched_frees;       /* (atomic) frees of large blocks nobody saw allocated */
    uint64_t faults;                /* (atomic) internal faults: the call was let through, not counted */
    uint64_t registered_bytes;      /* (atomic) cudaHostRegister: pins what is counted elsewhere */
    uint64_t sparse_resident_bytes; /* resident bytes of MAP_NORESERVE mappings, as of the last snapshot */
    uint64_t inherited_domain_bytes[SG_DOMAIN_CAPACITY];

    uint64_t refusal_count; /* (atomic) */
    uint64_t phase_count;   /* (atomic) */
    uint64_t event_count;   /* (atomic) */
    struct sg_refusal refusal[SG_REFUSAL_CAPACITY];
    struct sg_phase phase[SG_PHASE_CAPACITY];
    struct sg_event event[SG_EVENT_CAPACITY];

    uint64_t unaccounted_bytes; /* (atomic) what contexts and the like took without asking, as measured */
    struct sg_memory_file file[SG_FILE_CAPACITY]; /* as in the registry entry */
    struct sg_origin origin[SG_ORIGIN_CAPACITY];  /* as in the registry entry */
    uint64_t shared_bytes; /* (atomic) the sum of `file`: a part of granted_bytes, and never of inherited_bytes */
    uint64_t inherited_shared_bytes; /* (atomic) of shared_bytes, what it was forked with and still may have */
    uint64_t phase_peak_bytes;       /* (atomic) highest granted_bytes since the present phase began, if one has */
    /* In a copy that is kept as history; 0 in a live one: when it was made, and since which start of the machine it
     * ran. */
    int64_t saved_time_ns;
    uint64_t boot_id[2];     /* /proc/sys/kernel/random/boot_id, its first 16 digits in the first; 0: unknown */
    uint64_t job_peak_bytes; /* (atomic) the most that all processes of the job held at one time, as this one saw it */
    uint64_t run; /* SG_RUN of the job's first process: tells runs of one job name apart; 0: it had ended already */
    uint32_t sites_peak_state; /* (atomic) enum sg_callsites_peak_state */
    uint32_t padding_limit;
    /* (atomic) job_peak_bytes with this process's resident MAP_NORESERVE bytes, by its scans: what SPARKGUARD_LIMIT
     * bounds. 0: it has had none. */
    uint64_t limit_peak_bytes;
    int64_t seen_time_ns; /* (atomic) when the helper that keeps the history last ran, each second; 0: it never has */
    uint32_t padding[6];
    struct sg_callsite site[SG_CALLSITE_CLASSES][SG_CALLSITE_CAPACITY];
    struct sg_record record[]; /* record 0 is shared by threads that found no place of their own */
};
_Static_assert(offsetof(struct sg_segment, record) % 64 == 0, "records sit on cache lines of their own");
_Static_assert((int)SG_DOMAIN_COUNT <= (int)SG_DOMAIN_CAPACITY, "the layout has room for every domain");

/* A run of a job: its first process by pid and start. Linux has at most 2^22 pids. */
#define SG_RUN(pid, start_ticks) ((uint64_t)(start_ticks) << 22 | (uint64_t)(pid))

#define SG_SEGMENT_BYTES(records) (sizeof(struct sg_segment) + (size_t)(records) * sizeof(struct sg_record))

/* ---- the time line ----------------------------------------------------------------------------------------------- */

/*
 * A file beside the segment, of the same name with another suffix, for processes that use CUDA, held 256 MiB, marked a
 * phase or were refused something. Always of this size, but for a copy kept as history, which ends with its last
 * sample: samples closer together than the interval are one, and when there is no room left neighbours become one and
 * the interval doubles. Readers sort by time: whoever is killed while thinning leaves samples of both kinds, all of
 * them true.
 */
#define SG_TIMELINE_SUFFIX ".timeline"
#define SG_TIMELINE_MAGIC UINT64_C(0x4c454d4954475053) /* "SPGTIMEL" in memory order */
#define SG_TIMELINE_VERSION 1u

enum { SG_SAMPLE_CAPACITY = 682 };

struct sg_sample {
    int64_t time_ns; /* (atomic) when it began; it stands until the next one. 0: it is being written, and is none */
    uint64_t usable_bytes; /* the least there was, and the reserve and floor of that moment; as in struct sg_machine */
    uint64_t reserve_bytes;
    uint64_t floor_bytes;
    uint64_t live_bytes[SG_DOMAIN_CAPACITY]; /* when their sum was highest */
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
_Static_assert(SG_SAMPLE_CAPACITY % 2 == 0, "neighbours become one");

/* ---- the registry --------------------------------------------------------------------------------------- */

/*
 * One file in SPARKGUARD_DIR, mapped by every guarded process that shares it: what each has promised, has in flight and
 * is asking for, so that all decide as one. Frozen for ever, like the slot. Evidence is not kept here: a registry entry
 * is taken over by the next process.
 *
 * A registry entry belongs to whoever holds the open-file-description lock (F_OFD_SETLK) on the one byte of this file
 * whose offset is the registry entry's number, kept alive as a segment's is. The kernel lets go at death; whoever finds
 * the byte unlocked may turn the claim from LIVE to DEAD by compare-and-swap. Only a registry entry whose claim is not
 * LIVE is taken over.
 */
#define SG_REGISTRY_NAME "machine.ledger"
#define SG_LEDGER_SECOND_NAME "machine-1.ledger"       /* while another version has the first */
#define SG_REGISTRY_MAGIC UINT64_C(0x524744454c475053) /* "SPGLEDGR" in memory order */
#define SG_REGISTRY_VERSION 2u

enum {
    SG_ENTRY_CAPACITY = 1024, /* processes at a time; further ones decide alone, and say so */
    SG_ENTRY_LEVELS = 8,      /* cgroups above a process that bound memory */
    /* of a registry entry that every version writes and reads alike, however large its own is */
    SG_ENTRY_FROZEN_BYTES = 512,
};

/* The lowest two bits of a claim; the rest is a generation that no two owners share. */
enum sg_claim { SG_CLAIM_EMPTY = 0, SG_CLAIM_LIVE = 1, SG_CLAIM_DEAD = 2 };
#define SG_CLAIM_STATE(claim) ((claim)&3u)

/* sg_registry_entry.ticket: no request is being judged; it is, and its place in the order is not known yet; else the
 * place. */
#define SG_TICKET_NONE UINT64_C(0)
#define SG_TICKET_CHOOSING UINT64_C(1)
#define SG_TICKET_FIRST UINT64_C(2)

/* sg_registry_entry.queued_source: memory of the machine, bounded by cgroups or not; or else that of one discrete device. */
#define SG_POOL_BOUNDED UINT64_C(0)
#define SG_POOL_UNBOUNDED UINT64_C(1)

struct sg_registry_entry {
    struct sg_slot slot;              /* as in the segment; magic and state are not used, magic is 0 */
    uint64_t claim;                   /* (atomic) generation << 2 | enum sg_claim */
    uint64_t ticket;                  /* (atomic) of the request being judged */
    uint64_t queued_bytes;            /* (atomic) its size; means something while there is a ticket */
    uint64_t queued_source;           /* (atomic) */
    uint64_t bounded_flight_bytes;    /* (atomic) the part of slot.in_flight_bytes that cgroups bound */
    uint64_t device_flight_bytes;     /* (atomic) the part of it that is memory of discrete devices */
    uint64_t flight_device;           /* (atomic) which: an identity common to all processes; SG_UNKNOWN: several */
    uint64_t published_ns;            /* (atomic) when promised_bytes was last looked at; CLOCK_MONOTONIC */
    uint64_t watched_ns;              /* (atomic) when the process's watchdog last looked; 0: it has none */
    uint64_t holds_bounded_bytes;     /* (atomic) RssAnon grown since fork, pinned bytes */
    uint64_t holds_unbounded_bytes;   /* (atomic) device memory taken from the machine */
    uint64_t reclaim_until_ns;        /* (atomic) it is populating memory to drop it again, at most until then */
    uint64_t scanned_anonymous_bytes; /* (atomic) RssAnon and unused credit when promises were last looked at */
    uint64_t pinned_bytes;            /* (atomic) live, of the CUDA domains besides slot.device_bytes */
    uint64_t managed_bytes;           /* (atomic) */
    uint64_t level[SG_ENTRY_LEVELS];  /* (atomic) identities of its cgroups that bound memory, 0: no more */
    /* of a forked child: the number of its parent's registry entry plus one, 0 if unknown */
    uint64_t parent_entry;
    uint64_t parent_claim;           /* and the claim it had */
    uint64_t shared_bytes;           /* (atomic) anonymous memory it still shares with its parent */
    uint64_t unbounded_flight_bytes; /* (atomic) the part of slot.in_flight_bytes drawn from the machine past cgroups */
    uint64_t files_version;          /* (atomic) odd while the files are changed with promised_bytes or granted_bytes */
    uint64_t version_1_files[20];    /* version 1 shows memory files of its own kind here; later versions show zeros */
    struct sg_memory_file file[SG_FILE_CAPACITY];
    uint64_t file_bytes;                         /* (atomic) their sum, a part of granted_bytes */
    uint64_t file_changes;                       /* (atomic) how often the ranges have changed */
    struct sg_origin origin[SG_ORIGIN_CAPACITY]; /* the parent first */
    uint64_t padding[2];
};
_Static_assert(sizeof(struct sg_registry_entry) % 64 == 0, "seats share no cache line");
_Static_assert(offsetof(struct sg_registry_entry, claim) == 128, "frozen");
_Static_assert(offsetof(struct sg_registry_entry, level) == 248, "frozen");
_Static_assert(offsetof(struct sg_registry_entry, version_1_files) == 352, "frozen");
_Static_assert(offsetof(struct sg_registry_entry, file) >= SG_ENTRY_FROZEN_BYTES,
               "each version shows files in its own way");

struct sg_registry {
    uint64_t magic; /* SG_REGISTRY_MAGIC; the file gets its name when all of it is written */
    uint32_t version;
    uint32_t entry_bytes;
    uint32_t entry_capacity;
    uint32_t entry_used; /* (atomic) highest registry entry ever used, plus one */
    /* (atomic, futex) changes when a request is settled, withdrawn or a registry entry found dead */
    uint32_t epoch;
    uint32_t call;        /* (atomic, futex) changes when somebody wants promises looked at now */
    uint64_t asked_bytes; /* (atomic) everything ever asked for: a request's place in the order is the sum before it */
    uint64_t waiting_until_ns;          /* (atomic) somebody may wait for the epoch until then; CLOCK_MONOTONIC */
    uint64_t context_bytes;             /* (atomic) what the next CUDA context is asked for, 0: none was measured yet */
    uint64_t measured_context_bytes[2]; /* (atomic) what the last two took, the newest first; 0: none */
    uint64_t has_second;                /* (atomic) 1: processes of another version share the second file */
    uint64_t ended_bytes;             /* (atomic) CUDA memory of the machine that was given back and not taken since */
    uint64_t pressure_until_ns;       /* (atomic) somebody makes pressure for the driver's pages; CLOCK_MONOTONIC */
    uint64_t pressure_bytes;          /* (atomic) populated for that, and about to be dropped */
    uint64_t pressure_pause_until_ns; /* (atomic) it failed: not again before that */
    uint64_t unexplained_base_bytes;  /* (atomic) memory that no counter explains, without CUDA's; 0: not known */
    uint64_t reserved[497];           /* zero */
    struct sg_registry_entry entry[];
};
_Static_assert(offsetof(struct sg_registry, entry) == 4096, "frozen");

#define SG_REGISTRY_BYTES(entries) (sizeof(struct sg_registry) + (size_t)(entries) * sizeof(struct sg_registry_entry))

#endif
