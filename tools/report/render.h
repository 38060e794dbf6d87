/*
 * render.h - a model as text for people, or as JSON or CSV for programs. Renderers compute nothing that a reader could want from
 * the other form as well: that belongs to the model.
 */
#ifndef SG_TOOLS_REPORT_RENDER_H
#define SG_TOOLS_REPORT_RENDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "model/model.h"

enum report_colour {
    REPORT_PLAIN,
    REPORT_BOLD,
    REPORT_DIM,
    REPORT_RED,
    REPORT_GREEN,
    REPORT_YELLOW,
    REPORT_CYAN,
};

/* Where the text goes. */
struct report_style {
    FILE *stream;
    size_t columns;   /* of the terminal; 80 where there is none */
    bool is_terminal; /* tables are cut to its width */
    bool has_colour;
    bool is_utf8;
};

struct report_style report_style_of(FILE *stream);

/* The escape that begins a colour, and the one that ends it; "" without colour. */
const char *report_colour_on(const struct report_style *style, enum report_colour colour);
const char *report_colour_off(const struct report_style *style, enum report_colour colour);

/* Puts one more piece of a line, behind `separator` unless it is the first; wraps where the terminal ends. `column` is
 * where the line stands, 0 at first. The piece is printable and not longer than a line. */
void report_flow(const struct report_style *style, size_t *column, const char *separator, enum report_colour colour,
                 const char *piece);

/* Puts a printable text, the line standing at `indent` blanks; on a terminal it wraps between words and goes on there. */
void report_words(const struct report_style *style, size_t indent, enum report_colour colour, const char *text);

/* The overview: machine, jobs with their processes, unguarded processes; or, if a pid was asked for, the processes in
 * depth. */
void report_render_text(const struct report *report, const struct report_scope *scope,
                        const struct report_style *style);
void report_render_process(const struct report_job *job, const struct report_process *process,
                           const struct report_style *style);
void report_render_machine(const struct report *report, const struct report_style *style);
/* A blank line and a table, or nothing. */
void report_render_unguarded(const struct report *report, const struct report_style *style);
void report_render_json(const struct report *report, FILE *stream);
void report_render_csv(const struct report *report, FILE *stream);

/* The memory of the machine from the left to the right: what guarded processes hold, what else is in use, what was promised,
 * what admission would grant now, and the reserve, of which the floor. */
enum report_part_kind {
    REPORT_PART_GUARDED,
    REPORT_PART_OTHER,
    REPORT_PART_PROMISED,
    REPORT_PART_ROOM,
    REPORT_PART_RESERVE,
    REPORT_PART_FLOOR,
    REPORT_PART_COUNT,
};
struct report_part {
    uint64_t bytes;
    uint64_t shown_bytes; /* what a bar shows of it, and of nothing else; reserve and floor stand at its right end */
};
extern const char *const report_part_name[REPORT_PART_COUNT];
/* False where the kernel did not say. */
bool report_machine_parts(const struct report_machine *machine, struct report_part part[REPORT_PART_COUNT]);

/* What a process's peak was made of: "device 60.0 GiB, heap 8.0 GiB"; "" if nothing. The caller frees. */
char *report_peak_text(const struct report_process *process);

/* "exited with status 0", "killed by SIGKILL", "killed by SIGTERM from its own watchdog", "running". */
enum { REPORT_END_TEXT = 96 };
const char *report_end_text(const struct report_process *process, char text[REPORT_END_TEXT]);

/* Of a process that its watchdog ended: "4711 ended by its own watchdog at 13:07:42: " and what it noted. The caller
 * frees. */
char *report_fate_text(const struct report_process *process, bool is_utf8);

/* What a refusal found too small: "usable" memory, or what was "left" of a limit. */
const char *report_room_word(enum sg_reason reason);

enum report_colour report_state_colour(enum sg_state state);

#endif
