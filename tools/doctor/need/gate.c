/*
 * gate.c - see need.h.
 */
#include "doctor/need/need.h"

#define SECOND_NS INT64_C(1000000000)

/* Pauses before the next check. Under memory pressure a check costs others more: it reads files of all processes. */
#define PAUSE_NS SECOND_NS
#define PRESSED_PAUSE_NS (5 * SECOND_NS)
/* Between the two looks that must both find enough. */
#define CONFIRM_NS (SECOND_NS / 4)

enum need_verdict need_gate_look(struct need_gate *gate, uint64_t free_bytes, int64_t now_ns, bool is_under_pressure,
                                 int64_t *pause_ns)
{
    bool is_enough = free_bytes >= gate->need_bytes, is_first = gate->looks++ == 0;
    bool is_confirmed = is_enough && (is_first || gate->was_enough);
    int64_t left_ns = gate->wait_ns == NEED_ENDLESS ? NEED_ENDLESS : gate->wait_ns - (now_ns - gate->start_ns);
    gate->was_enough = is_enough;
    if (is_confirmed)
        return NEED_ENOUGH;
    if (is_enough) { /* also where the time is up: the measurement that confirms is due */
        *pause_ns = CONFIRM_NS;
        return NEED_AGAIN;
    }
    if (left_ns <= 0)
        return NEED_LATE;
    *pause_ns = is_under_pressure ? PRESSED_PAUSE_NS : PAUSE_NS;
    if (*pause_ns > left_ns)
        *pause_ns = left_ns;
    return NEED_AGAIN;
}
