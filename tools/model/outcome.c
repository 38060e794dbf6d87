/*
 * outcome.c - what a process's events say of its standing: whether its own watchdog ended it, why it decides alone.
 */
#include <signal.h>
#include <string.h>

#include "model/model.h"

#define NOT_SHARING "not sharing"

/* Behind its SIGTERM the watchdog waits 5 s; a program may take a while to save. What ends later had other reasons. */
#define AFTERMATH_NS (INT64_C(60) * 1000000000)

static bool begins_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* How the library's events of an end begin. */
static const char *const watchdog_event[] = {
    [REPORT_SENT_TERM] = "watchdog: sent SIGTERM",
    [REPORT_SENT_KILL] = "watchdog: sent SIGKILL",
    [REPORT_ENDED_IT] = "watchdog: ended",
};

static enum report_watchdog what_it_did(const struct report_event *event)
{
    for (int i = REPORT_SENT_TERM; i <= REPORT_ENDED_IT; i++)
        if (begins_with(event->what, watchdog_event[i]))
            return (enum report_watchdog)i;
    return REPORT_NO_WATCHDOG;
}

/* The end as the watchdog's own event describes it, where no parent noted it. SIGKILL and exit_group(137) take
 * effect at once, so their event is a witness of the end. SIGTERM may be handled: its event names the signal, not
 * the time of the end. */
static void take_end_from_event(struct report_process *process, const struct report_event *event)
{
    bool is_at_once = process->watchdog == REPORT_ENDED_IT || process->watchdog == REPORT_SENT_KILL;
    if (process->state != SG_STATE_KILLED)
        return;
    if (process->signal == 0)
        process->signal = is_at_once ? SIGKILL : SIGTERM;
    if (process->ended_ns == 0 && is_at_once)
        process->ended_ns = process->last_seen_ns = event->time_ns;
}

/* The last event decides: a process that was let live notes something after it. Where signals do not reach a process the
 * watchdog exits in its name; who waits for it sees an exit. */
void report_process_judge_end(struct report_process *process)
{
    if (process->event_count == 0 || (process->state != SG_STATE_KILLED && process->state != SG_STATE_EXITED))
        return;
    const struct report_event *last = &process->events[process->event_count - 1];
    enum report_watchdog watchdog = what_it_did(last);
    bool has_lived_on = process->last_seen_ns - last->time_ns > AFTERMATH_NS;
    if (watchdog == REPORT_NO_WATCHDOG || (watchdog != REPORT_ENDED_IT && has_lived_on))
        return;
    process->watchdog = watchdog;
    process->fate = last;
    process->fate_detail = last->what + strlen(watchdog_event[watchdog]);
    process->fate_detail += strspn(process->fate_detail, " ,:;");
    if (watchdog == REPORT_ENDED_IT)
        process->state = SG_STATE_KILLED;
    take_end_from_event(process, last);
}

bool report_process_is_alone(const struct report_process *process)
{
    return process->state == SG_STATE_RUNNING && process->is_guarding && !process->is_sharing;
}

const char *report_process_alone_reason(const struct report_process *process)
{
    for (size_t i = process->event_count; i > 0; i--)
        if (begins_with(process->events[i - 1].what, NOT_SHARING))
            return process->events[i - 1].what;
    return NOT_SHARING;
}
