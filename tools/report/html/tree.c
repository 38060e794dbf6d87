/*
 * tree.c - orders the processes of a page, and chooses those whose time lines are drawn.
 */
#include <stdlib.h>

#include "report/html/html.h"
#include "report/draw/draw.h"
#include "common/tool.h"

enum { DRAWN_MAX = 16 }; /* about 100 KiB each */

/* Adds a process below its parent. A child of a process without a row takes that place. */
static void add_entry(struct report_html_page *page, const struct model_job *job, struct model_process *process,
                      struct report_html_entry **last_root)
{
    struct report_html_entry *parent = process->parent != NULL ? process->parent->line : NULL;
    process->line = parent;
    if (process->is_folded)
        return;
    struct report_html_entry *entry = &page->entries[page->entry_count++];
    *entry = (struct report_html_entry){.job = job, .process = process, .parent = parent};
    struct report_html_entry **last = parent != NULL ? &parent->last_child : last_root;
    if (*last != NULL)
        (*last)->next = entry;
    else if (parent != NULL)
        parent->first_child = entry;
    *last = entry;
    entry->depth = parent != NULL ? parent->depth + 1 : 0;
    process->line = entry;
}

const struct report_html_entry *report_html_first(const struct report_html_page *page, const struct model_job *job)
{
    const struct report_html_entry *entry = page->entries, *end = page->entries + page->entry_count;
    while (entry < end && entry->job != job)
        entry++;
    return entry < end ? entry : NULL;
}

const struct report_html_entry *report_html_next(const struct report_html_entry *entry)
{
    if (entry->first_child != NULL)
        return entry->first_child;
    while (entry->next == NULL && entry->parent != NULL)
        entry = entry->parent;
    return entry->next;
}

static int compare_peaks(const void *a, const void *b)
{
    const struct report_html_entry *first = *(struct report_html_entry *const *)a;
    const struct report_html_entry *second = *(struct report_html_entry *const *)b;
    if (first->process->peak_bytes != second->process->peak_bytes)
        return first->process->peak_bytes < second->process->peak_bytes ? 1 : -1;
    return (first > second) - (first < second);
}

static void read_timeline(struct report_html_page *page, struct report_html_entry *entry)
{
    enum model_verdict verdict = draw_timeline(&entry->timeline, entry->process);
    if (verdict == MODEL_GOOD) {
        entry->drawing = REPORT_HTML_DRAWN;
        draw_add_known(&entry->timeline, entry->process);
        page->drawn_count++;
    } else {
        entry->drawing = verdict == MODEL_BAD ? REPORT_HTML_BAD_TIMELINE : REPORT_HTML_NO_TIMELINE;
        page->has_complained = page->has_complained || verdict == MODEL_BAD;
    }
}

void report_html_lay_out(struct report_html_page *page)
{
    struct model_job *job;
    size_t capacity = 0;
    DL_FOREACH (page->model->jobs, job) {
        capacity += job->process_count;
        if (!page->scope->is_all && page->scope->pid == 0) {
            model_fold(job, true);
            model_fold(job, false);
        }
    }
    page->entries = tool_allocate(capacity, sizeof *page->entries);
    DL_FOREACH (page->model->jobs, job) {
        struct model_process *process;
        struct report_html_entry *last_root = NULL;
        DL_FOREACH (job->processes, process)
            add_entry(page, job, process, &last_root);
    }
    struct report_html_entry **by_peak = tool_allocate(page->entry_count, sizeof(struct report_html_entry *));
    for (size_t i = 0; i < page->entry_count; i++)
        by_peak[i] = &page->entries[i];
    qsort(by_peak, page->entry_count, sizeof(struct report_html_entry *), compare_peaks);
    for (size_t i = 0; i < page->entry_count && page->drawn_count < DRAWN_MAX; i++)
        read_timeline(page, by_peak[i]);
}
