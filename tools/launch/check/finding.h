/*
 * finding.h - what a check has found: a sentence, its state, and what to do. sparkguard-doctor and sparkguard --check
 * say what they find by it. Single-threaded.
 *
 * Sentences may contain names that other users chose, so renderers escape them. Words of steps never do.
 */
#ifndef SG_TOOLS_LAUNCH_CHECK_FINDING_H
#define SG_TOOLS_LAUNCH_CHECK_FINDING_H

#include <stddef.h>
#include <stdint.h>

enum finding_state {
    FINDING_FINE,
    FINDING_UNKNOWN,
    FINDING_WARNING,
    FINDING_DANGER, /* of --check: the program would not be guarded */
    FINDING_STATE_COUNT,
    FINDING_NONE = FINDING_STATE_COUNT, /* of --check: does not apply here */
};

enum { FINDING_FIGURE_CAPACITY = 6, FINDING_CAPACITY = 64 };

struct finding_figure {
    const char *key; /* with its unit: "swap_total_bytes" */
    int64_t value;   /* INT64_MIN: null */
};

struct finding {
    const char *id;
    enum finding_state state;
    const char *sentence; /* NULL: nothing is said */
    const char *fix;      /* what to do, as a rule a command; NULL: nothing is wrong, or no command fixes it */
    /* Of the doctor's: */
    const char *why;       /* one sentence: why the finding matters */
    const char *step;      /* of fix_script.sh, which automates the fix; NULL: not automated */
    const char *step_word; /* what stands there for '@' */
    const char *absent;    /* what is not here, so that the check does not apply: "no SSH server"; NULL: it applies */
    struct finding_figure figure[FINDING_FIGURE_CAPACITY];
    size_t figure_count;
};

struct findings {
    struct finding at[FINDING_CAPACITY];
    size_t count;
};

/* Adds a finding that says nothing yet. Behind the last place it takes the place of the last one. */
struct finding *finding_add(struct findings *findings, const char *id);
/* Sets the state, the fix, which may be NULL, and the sentence, formatted as by printf. */
void finding_say(struct finding *finding, enum finding_state state, const char *fix, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Says that the check does not apply here, which is fine. */
void finding_say_absent(struct finding *finding, const char *absent);
void finding_figure(struct finding *finding, const char *key, uint64_t value); /* SG_UNKNOWN: null */
void finding_figure_signed(struct finding *finding, const char *key, int64_t value);
size_t finding_count(const struct findings *findings, enum finding_state state);

#endif
