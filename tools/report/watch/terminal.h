/*
 * terminal.h - the terminal as a screen: drawn over, with keys that come one by one, and given back as it was, whatever
 * ends the program short of SIGKILL or a crash.
 *
 * The sequences are those that every terminal since the VT220 understands, and xterm's alternate screen, which others
 * ignore. One screen at a time, one thread.
 */
#ifndef SG_TOOLS_REPORT_WATCH_TERMINAL_H
#define SG_TOOLS_REPORT_WATCH_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum terminal_event {
    TERMINAL_NOTHING = 0, /* the time is over; characters are themselves */
    TERMINAL_UP = 256,
    TERMINAL_DOWN,
    TERMINAL_PAGE_UP,
    TERMINAL_PAGE_DOWN,
    TERMINAL_HOME,
    TERMINAL_END,
    TERMINAL_REDRAW, /* resized, or back in the foreground */
    TERMINAL_GONE,   /* its end: nothing can be read from it any more */
};

/* What is known of a key so far: an escape sequence comes in several bytes. */
struct terminal_keys {
    char state;
    unsigned number;
};

/* Takes a byte: the key that it ends, or TERMINAL_NOTHING. Pure. */
int terminal_key(struct terminal_keys *keys, unsigned char byte);

/* Whether stdout is a terminal that a screen can be drawn on. */
bool terminal_can_draw(void);

/* Takes the terminal of stdout, and the keys of stdin if that is a terminal too. From then on SIGINT, SIGTERM and the
 * like wait for terminal_wait(). */
void terminal_begin(void);
/* Gives it back. */
void terminal_end(void);

bool terminal_has_keys(void);
size_t terminal_rows(void);

/* Waits for a key or another event until `deadline_ns` (CLOCK_MONOTONIC). A signal that ends programs gives the
 * terminal back and ends this one; SIGTSTP gives it back and stops. */
int terminal_wait(int64_t deadline_ns);

int64_t terminal_clock_ns(void);

#endif
