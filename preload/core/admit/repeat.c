/*
 * repeat.c - see repeat.h.
 */
#include "admit/repeat.h"

#include "account/ledger.h"
#include "base/atomics.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/lock.h"
#include "base/options.h"
#include "shared/settings.h"

#include <time.h>

#define HOLDS_NS UINT64_C(5000000) /* as the cached snapshot of an admission (headroom.c) */

struct refusal {
    uint64_t kind;
    uint64_t size_bytes;
    uint64_t growth_bytes;
    uint64_t missing_bytes;
    uint64_t live_bytes; /* of this process then */
    uint64_t settings;   /* changes by sparkguard --set */
    uint64_t time_ns;
    struct sg_answer answer;
};

/* A refusal in words, which one thread writes and others copy. */
union words {
    struct refusal refusal;
    uint64_t word[sizeof(struct refusal) / sizeof(uint64_t)];
};
_Static_assert(sizeof(union words) == sizeof(struct refusal), "whole words");

/* The last refusal of small requests, and of others. */
static struct {
    uint32_t version;    /* (atomic) odd while a thread writes */
    uint64_t size_bytes; /* (atomic) of the request; 0: no refusal holds */
    union words words;   /* (atomic) */
} last[2];

static unsigned number_of(const struct sg_request *request)
{
    return request->kind == SG_REQUEST_SMALL;
}

/* Whether requests of this kind are kept here: not where what a call replaces or shares decides as well. */
static bool is_usual(const struct sg_request *request)
{
    bool is_host = request->domain == SG_DOMAIN_HEAP || request->domain == SG_DOMAIN_MAPPED;
    bool may_wait = sg_options.wait_ns != 0 && request->kind != SG_REQUEST_SMALL;
    return is_host && !may_wait && request->kind != SG_REQUEST_RARE && request->replaced_bytes == 0 &&
           request->shared.begin == 0 && !sg_options.mode_observe;
}

/* Signals are blocked: a handler that left by longjmp would leave the version odd. */
static void write_words(unsigned number, const union words *words, uint64_t size_bytes)
{
    uint32_t version = sg_load_relaxed(&last[number].version);
    sg_lock_hold_signals();
    if (version % 2 == 0 && sg_cas_u32(&last[number].version, &version, version + 1)) {
        sg_fence(); /* the odd version comes first: pairs with the fence of read_words */
        for (unsigned i = 0; i < SG_ARRAY_LENGTH(words->word); i++)
            sg_store_relaxed(&last[number].words.word[i], words->word[i]);
        sg_store_relaxed(&last[number].size_bytes, size_bytes);
        sg_store_release(&last[number].version, version + 2);
    }
    sg_lock_let_signals();
}

/* False: a thread writes just now. */
static bool read_words(unsigned number, union words *words)
{
    uint32_t version = sg_load_acquire(&last[number].version);
    for (unsigned i = 0; i < SG_ARRAY_LENGTH(words->word); i++)
        words->word[i] = sg_load_relaxed(&last[number].words.word[i]);
    sg_fence(); /* pairs with the fence of write_words */
    return version % 2 == 0 && sg_load_relaxed(&last[number].version) == version;
}

void sg_repeat_note(const struct sg_request *request, const struct sg_answer *answer, uint64_t missing_bytes)
{
    if (!is_usual(request))
        return;
    const union words words = {{.kind = request->kind,
                                .size_bytes = request->size_bytes,
                                .growth_bytes = request->growth_bytes,
                                .missing_bytes = missing_bytes,
                                .live_bytes = sg_ledger_live_bytes(),
                                .settings = sg_settings_changes(),
                                .time_ns = sg_clock_ns(CLOCK_MONOTONIC),
                                .answer = *answer}};
    write_words(number_of(request), &words, request->size_bytes);
}

/* Whether what this process has freed since may be enough. Half of what was missing is taken for enough: whole pages
 * and tables go with a block. A small request is refused for what this process holds, so anything may be. */
static bool may_fit(const struct refusal *refused, const struct sg_request *request)
{
    uint64_t live = sg_ledger_live_bytes();
    if (live >= refused->live_bytes)
        return false;
    return request->kind == SG_REQUEST_SMALL || refused->live_bytes - live >= refused->missing_bytes / 2;
}

static bool holds(const struct refusal *refused, const struct sg_request *request)
{
    return request->size_bytes >= refused->size_bytes && request->growth_bytes >= refused->growth_bytes &&
           request->kind == refused->kind && sg_settings_changes() == refused->settings &&
           sg_clock_ns(CLOCK_MONOTONIC) - refused->time_ns < HOLDS_NS && !may_fit(refused, request);
}

bool sg_repeat_is_refused(const struct sg_request *request, struct sg_answer *answer)
{
    unsigned number = number_of(request);
    uint64_t least = sg_load_relaxed(&last[number].size_bytes);
    union words words;
    if (SG_LIKELY(least == 0 || request->size_bytes < least) || !is_usual(request) || !read_words(number, &words) ||
        !holds(&words.refusal, request))
        return false;
    *answer = words.refusal.answer;
    return true;
}

void sg_repeat_forget(void)
{
    for (unsigned i = 0; i < SG_ARRAY_LENGTH(last); i++)
        if (sg_load_relaxed(&last[i].size_bytes) != 0) /* a forked child would get a page of its own by writing 0 */
            sg_store_relaxed(&last[i].size_bytes, UINT64_C(0));
}

void sg_repeat_atfork_child(void)
{
    sg_repeat_forget();
    for (unsigned i = 0; i < SG_ARRAY_LENGTH(last); i++)
        if (sg_load_relaxed(&last[i].version) % 2 != 0) /* the thread that writes exists in the parent only */
            sg_store_relaxed(&last[i].version, 0u);
}
