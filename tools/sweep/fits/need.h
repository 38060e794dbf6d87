/*
 * need.h - the memory that something needs, term by term, against what is usable on this machine now.
 *
 * Single-threaded.
 */
#ifndef SG_TOOLS_SWEEP_FITS_NEED_H
#define SG_TOOLS_SWEEP_FITS_NEED_H

#include <stddef.h>
#include <stdint.h>

#include "common/json.h"
#include "common/style.h"
#include "model/model.h"
#include "sweep/fits/dtype.h"

enum { FITS_TERMS = 12, FITS_NOTES = 12 };

struct fits_term {
    const char *name;
    uint64_t bytes;
    char *how; /* what the bytes were computed from; printable */
};

struct fits_need {
    struct fits_term term[FITS_TERMS];
    size_t term_count;
    char *note[FITS_NOTES]; /* what is assumed, what is not in the sum; printable sentences */
    size_t note_count;
    const char *missing[FITS_TERMS]; /* names of terms that are not in the sum, and what would tell them */
    const char *teller[FITS_TERMS];
    size_t missing_count;
};

/* Adds a term. `bytes` may be any number: it is rounded, and bounded to 2^62. Terms above FITS_TERMS are dropped. */
void fits_need_add(struct fits_need *need, const char *name, double bytes, const char *how, ...)
    __attribute__((format(printf, 4, 5)));
void fits_need_note(struct fits_need *need, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Says that a term is not in the sum, and what would tell it: constant words. The sum may show that something does not
 * fit, and never that it does. */
void fits_need_miss(struct fits_need *need, const char *name, const char *teller);
/* Returns the sum of all terms; it saturates. */
uint64_t fits_need_sum(const struct fits_need *need);

/* Adds the terms of `parameters` weights: the weights, and the scales if the dtype has any worth a line. */
void fits_need_add_weights(struct fits_need *need, double parameters, const struct fits_dtype *dtype);

/* What admission would grant now. */
struct fits_headroom {
    uint64_t headroom_bytes; /* above the reserve and below SPARKGUARD_LIMIT; SG_UNKNOWN: unknown */
    uint64_t usable_bytes;   /* before the reserve */
    uint64_t reserve_bytes;
    uint64_t total_bytes; /* of the machine */
};

/* Returns what may be taken above the reserve and below SPARKGUARD_LIMIT; SG_UNKNOWN if unknown. */
uint64_t fits_headroom_of(const struct model_machine *machine);
/* Looks at the machine. */
struct fits_headroom fits_headroom_now(void);

enum fits_verdict { FITS_DOES = 0, FITS_DOES_NOT = 1, FITS_CANNOT_TELL = 3 }; /* exit codes, part of the interface */
enum fits_verdict fits_need_judge(const struct fits_need *need, const struct fits_headroom *headroom);

/* Prints the terms as a table, the sum, the notes, and the verdict against the headroom. */
void fits_need_render(const struct fits_need *need, const struct fits_headroom *headroom, const struct style *style);
/* Set the members "terms", "notes" and "needed_bytes" of an object; "usable_bytes", "reserve_bytes", "room_bytes",
 * "fits". */
void fits_need_set_json(const struct fits_need *need, json_t *object);
void fits_headroom_set_json(const struct fits_need *need, const struct fits_headroom *headroom, json_t *object);

#endif
