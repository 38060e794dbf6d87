/*
 * outcome.c - finds in a process's events whether its own watchdog ended it, and why it decides alone.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/text.h"
#include "model/model.h"

#define NOT_SHARING "not sharing"

/* The watchdog waits 5 s after its SIGTERM, and a program may take a while to save its work. A process that ended more
 * than 60 s after the signal had other reasons. */
#define AFTERMATH_NS (INT64_C(60) * 1000000000)

static bool begins_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Prefixes of the library's events about the end of a process. */
static const char *const watchdog_event[] = {
    [MODEL_SENT_TERM] = "watchdog: sent SIGTERM",
    [MODEL_SENT_KILL] = "watchdog: sent SIGKILL",
    [MODEL_ENDED_IT] = "watchdog: ended",
};

static enum model_watchdog what_it_did(const struct model_event *event)
{
    for (int i = MODEL_SENT_TERM; i <= MODEL_ENDED_IT; i++)
        if (begins_with(event->what, watchdog_event[i]))
            return (enum model_watchdog)i;
    return MODEL_NO_WATCHDOG;
}

/* Takes the end from the watchdog's event where no parent recorded it. SIGKILL and exit_group(137) take effect at once,
 * so the event tells signal and time of the end. A program may handle SIGTERM, so that event tells only the signal. */
static void set_end_by_event(struct model_process *process, const struct model_event *event)
{
    bool is_at_once = process->watchdog == MODEL_ENDED_IT || process->watchdog == MODEL_SENT_KILL;
    if (process->state != SG_STATE_KILLED)
        return;
    if (process->signal == 0)
        process->signal = is_at_once ? SIGKILL : SIGTERM;
    if (process->ended_ns == 0 && is_at_once)
        process->ended_ns = process->last_seen_ns = event->time_ns;
}

/* Only the last event counts: a process that the watchdog spared notes a later event. Where its signals are not
 * delivered, the watchdog calls exit_group; the parent then sees an exit, and the state is corrected to KILLED here. */
void model_process_judge_end(struct model_process *process)
{
    if (process->event_count == 0 || (process->state != SG_STATE_KILLED && process->state != SG_STATE_EXITED))
        return;
    const struct model_event *last = &process->events[process->event_count - 1];
    enum model_watchdog watchdog = what_it_did(last);
    bool has_lived_on = process->last_seen_ns - last->time_ns > AFTERMATH_NS;
    if (watchdog == MODEL_NO_WATCHDOG || (watchdog != MODEL_ENDED_IT && has_lived_on))
        return;
    process->watchdog = watchdog;
    process->watchdog_event = last;
    process->watchdog_detail = last->what + strlen(watchdog_event[watchdog]);
    process->watchdog_detail += strspn(process->watchdog_detail, " ,:;");
    if (watchdog == MODEL_ENDED_IT)
        process->state = SG_STATE_KILLED;
    set_end_by_event(process, last);
}

bool model_process_is_alone(const struct model_process *process)
{
    return process->state == SG_STATE_RUNNING && process->is_guarding && !process->is_sharing;
}

const char *model_process_alone_reason(const struct model_process *process)
{
    for (size_t i = process->event_count; i > 0; i--)
        if (begins_with(process->events[i - 1].what, NOT_SHARING))
            return process->events[i - 1].what;
    return NOT_SHARING;
}

const char *model_end_text(const struct model_process *process, char text[MODEL_END_TEXT])
{
    static const char *const after[] = {
        [MODEL_NO_WATCHDOG] = "",
        [MODEL_SENT_TERM] = " after its own watchdog sent SIGTERM",
        [MODEL_SENT_KILL] = " after its own watchdog sent SIGKILL",
        [MODEL_ENDED_IT] = ": ended by its own watchdog",
    };
    static const int sent[] = {[MODEL_SENT_TERM] = SIGTERM, [MODEL_SENT_KILL] = SIGKILL, [MODEL_ENDED_IT] = 0};
    char word[48];
    bool is_exited = process->state == SG_STATE_EXITED;
    bool is_its_signal = !is_exited && process->signal != 0 && process->signal == sent[process->watchdog];
    if (process->state == SG_STATE_RUNNING)
        return "running";
    if (process->state == SG_STATE_REPLACED)
        return "replaced by another program";
    if (is_exited && process->exit_code >= 0)
        snprintf(word, sizeof word, "exited with status %d", process->exit_code);
    else if (!is_exited && process->signal != 0 && process->watchdog != MODEL_ENDED_IT)
        snprintf(word, sizeof word, "killed by %s", text_signal(process->signal));
    else if (!is_exited && process->watchdog == MODEL_NO_WATCHDOG)
        snprintf(word, sizeof word, "killed (signal not recorded)");
    else
        snprintf(word, sizeof word, "%s", model_state_name[process->state]);
    snprintf(text, MODEL_END_TEXT, "%s%s", word, is_its_signal ? " from its own watchdog" : after[process->watchdog]);
    return text;
}

char *model_fate_text(const struct model_process *process, bool is_utf8)
{
    char buffer[MODEL_END_TEXT];
    bool is_ended = process->watchdog == MODEL_ENDED_IT;
    const char *end = is_ended ? "ended by its own watchdog" : model_end_text(process, buffer);
    char *detail = text_printable(process->watchdog_detail, is_utf8);
    return text_format("%s %s at %s%s%s", model_process_name(process), end,
                       text_clock_local(process->watchdog_event->time_ns), detail[0] != '\0' ? ": " : "", detail);
}
