/*
 * terminal.h - uses the terminal as a screen with single key presses, and restores it whatever ends the program, except
 * SIGKILL.
 *
 * The escape sequences are those of the VT220, and xterm's alternate screen, which other terminals ignore. One screen
 * at a time, one thread.
 */
#ifndef SG_TOOLS_REPORT_WATCH_TERMINAL_H
#define SG_TOOLS_REPORT_WATCH_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum terminal_event {
    TERMINAL_NOTHING = 0, /* the deadline has passed; characters have their own codes */
    TERMINAL_BACKSPACE = 8,
    TERMINAL_KILL_LINE = 21, /* Ctrl-U */
    TERMINAL_DELETE = 127,
    TERMINAL_UP = 256,
    TERMINAL_DOWN,
    TERMINAL_PAGE_UP,
    TERMINAL_PAGE_DOWN,
    TERMINAL_HOME,
    TERMINAL_END,
    TERMINAL_F9,
    TERMINAL_ESCAPE,           /* the Escape key: nothing follows the byte for a moment */
    TERMINAL_REDRAW,           /* resized, or back in the foreground */
    TERMINAL_GONE,             /* the terminal is gone: nothing can be read any more */
    TERMINAL_PASTED = 1 << 12, /* with a printable character: it was not typed */
};

/* The bytes of a key so far: an escape sequence has several bytes. */
struct terminal_keys {
    char state;
    unsigned number;
    bool is_pasting; /* between the brackets of pasted text */
};

/* Adds a byte. Returns the key that it completes, or TERMINAL_NOTHING. Pure. */
int terminal_key(struct terminal_keys *keys, unsigned char byte);

/* Returns whether a screen can be drawn on stdout. */
bool terminal_can_draw(void);

/* Sets up the terminal of stdout, and reads keys from stdin if that is a terminal too. From then on SIGINT, SIGTERM and
 * similar signals are blocked until terminal_wait(). */
void terminal_begin(void);
/* Restores the terminal. */
void terminal_end(void);

bool terminal_has_keys(void);
/* Returns whether something was typed that no terminal_wait() has returned yet. */
bool terminal_has_input(void);
/* Discards it. */
void terminal_discard_input(void);
size_t terminal_rows(void);

/* Waits for a key or another event until `deadline_ns` (CLOCK_MONOTONIC). A signal that ends programs restores the
 * terminal and ends this one; SIGTSTP restores it and stops the program. */
int terminal_wait(int64_t deadline_ns);

#endif
