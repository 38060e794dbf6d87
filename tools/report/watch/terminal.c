/*
 * terminal.c - see terminal.h.
 */
#include "report/watch/terminal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "common/tool.h"

/* Enter: alternate screen, no cursor, no wrapping, pasted text in brackets. Leave: restores these and the colours. */
static const char enter_text[] = "\033[?1049h\033[?25l\033[?7l\033[?2004h\033[2J";
static const char leave_text[] = "\033[0m\033[?2004l\033[?7h\033[?25h\033[?1049l";

static const int taken_signals[] = {SIGINT,   SIGTERM, SIGHUP,  SIGQUIT, SIGTSTP, SIGCONT,
                                    SIGWINCH, SIGUSR1, SIGUSR2, SIGALRM, SIGPIPE, SIGXCPU};
/* A fault of this program. */
static const int crash_signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGSYS};

/* How long the bytes of one key may be apart: more than over a slow line, less than a person notices. */
#define KEY_WAIT_NS INT64_C(50000000)

static struct {
    bool is_up;
    bool has_keys;
    int signals; /* descriptor of the signals received */
    struct termios before;
    struct terminal_keys keys;
    unsigned char input[64];
    size_t input_used, input_count;
} screen = {.signals = -1};

/* The numbers of ESC [ 200 ~ before pasted text, and of ESC [ 201 ~ behind it. */
enum { PASTE_BEGINS = 200, PASTE_ENDS = 201 };

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static int key_of_number(unsigned number)
{
    switch (number) {
    case 1:
    case 7:
        return TERMINAL_HOME;
    case 4:
    case 8:
        return TERMINAL_END;
    case 5:
        return TERMINAL_PAGE_UP;
    case 6:
        return TERMINAL_PAGE_DOWN;
    case 20:
        return TERMINAL_F9;
    default:
        return TERMINAL_NOTHING;
    }
}

static int key_of_letter(unsigned char letter)
{
    switch (letter) {
    case 'A':
        return TERMINAL_UP;
    case 'B':
        return TERMINAL_DOWN;
    case 'H':
        return TERMINAL_HOME;
    case 'F':
        return TERMINAL_END;
    default:
        return TERMINAL_NOTHING;
    }
}

/* Parses ESC [ A, ESC O A, ESC [ 5 ~, ESC [ 1 ; 5 A: the bytes between the first number and the letter are ignored. */
static int parse_key(struct terminal_keys *keys, unsigned char byte)
{
    char before = keys->state;
    if (byte == '\033') {
        *keys = (struct terminal_keys){.state = '\033', .is_pasting = keys->is_pasting};
        return TERMINAL_NOTHING;
    }
    if (before == '\033' && (byte == '[' || byte == 'O')) {
        keys->state = '[';
        return TERMINAL_NOTHING;
    }
    if (before == '[' && byte >= 0x20 && byte < 0x40) {
        if (byte >= '0' && byte <= '9' && keys->number < 1000)
            keys->number = keys->number * 10 + byte - '0';
        else
            keys->state = ';';
        return TERMINAL_NOTHING;
    }
    if (before == ';' && byte >= 0x20 && byte < 0x40)
        return TERMINAL_NOTHING;
    keys->state = '\0';
    if (before == '[' && byte == '~' && (keys->number == PASTE_BEGINS || keys->number == PASTE_ENDS))
        keys->is_pasting = keys->number == PASTE_BEGINS;
    if (before == '[' || before == ';')
        return byte == '~' ? key_of_number(keys->number) : key_of_letter(byte);
    return before == '\033' ? TERMINAL_NOTHING : byte;
}

int terminal_key(struct terminal_keys *keys, unsigned char byte)
{
    int key = parse_key(keys, byte);
    if (!keys->is_pasting)
        return key;
    return key >= ' ' && key != TERMINAL_DELETE && key <= UINT8_MAX ? TERMINAL_PASTED | key : TERMINAL_NOTHING;
}

/* Returns the next key of the bytes read; reads once if none is left. */
static int next_key(void)
{
    for (;;) {
        while (screen.input_used < screen.input_count) {
            int key = terminal_key(&screen.keys, screen.input[screen.input_used++]);
            if (key != TERMINAL_NOTHING)
                return key;
        }
        struct pollfd ready = {.fd = STDIN_FILENO, .events = POLLIN};
        if (poll(&ready, 1, 0) != 1)
            return TERMINAL_NOTHING;
        ssize_t count = read(STDIN_FILENO, screen.input, sizeof screen.input);
        if (count <= 0)
            return count < 0 && errno == EINTR ? TERMINAL_NOTHING : TERMINAL_GONE;
        screen.input_used = 0;
        screen.input_count = (size_t)count;
    }
}

bool terminal_has_input(void)
{
    struct pollfd ready = {.fd = STDIN_FILENO, .events = POLLIN};
    return screen.has_keys && (screen.input_used < screen.input_count || poll(&ready, 1, 0) == 1);
}

void terminal_discard_input(void)
{
    screen.input_used = screen.input_count = 0;
    screen.keys = (struct terminal_keys){.state = '\0'};
    if (screen.has_keys)
        (void)tcflush(STDIN_FILENO, TCIFLUSH);
}

/* ---- the screen -------------------------------------------------------------------------------------------------- */

/* Also called after this program was stopped and another program used the terminal. */
static void enter(void)
{
    struct termios mode;
    if (screen.has_keys && (screen.is_up || tcgetattr(STDIN_FILENO, &screen.before) == 0)) {
        mode = screen.before;
        mode.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        mode.c_cc[VMIN] = 1;
        mode.c_cc[VTIME] = 0;
        tcsetattr(STDIN_FILENO, TCSANOW, &mode);
    }
    fputs(enter_text, stdout);
    fflush(stdout);
    screen.is_up = true;
}

void terminal_end(void)
{
    if (!screen.is_up)
        return;
    screen.is_up = false;
    fputs(leave_text, stdout);
    fflush(stdout);
    if (screen.has_keys) {
        tcsetattr(STDIN_FILENO, TCSANOW, &screen.before);
        tcflush(STDIN_FILENO, TCIFLUSH); /* discards keys that were not read */
    }
}

bool terminal_can_draw(void)
{
    const char *kind = getenv("TERM");
    return isatty(STDOUT_FILENO) == 1 && kind != NULL && kind[0] != '\0' && strcmp(kind, "dumb") != 0;
}

/* Restores the terminal after a crash, by async-signal-safe calls. SA_RESETHAND makes the signal end the program. */
static void leave_after_crash(int number)
{
    if (screen.is_up) {
        ssize_t written = write(STDOUT_FILENO, leave_text, sizeof leave_text - 1);
        (void)written;
        if (screen.has_keys)
            (void)tcsetattr(STDIN_FILENO, TCSANOW, &screen.before);
    }
    (void)raise(number);
}

/* The handler has a stack of its own, because a stack that overflowed is a crash too. */
static void catch_crashes(void)
{
    static char other_stack[1 << 14];
    const stack_t stack = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
    struct sigaction action = {.sa_handler = leave_after_crash, .sa_flags = (int)SA_RESETHAND | SA_ONSTACK};
    (void)sigaltstack(&stack, NULL);
    for (size_t i = 0; i < sizeof crash_signals / sizeof crash_signals[0]; i++)
        (void)sigaction(crash_signals[i], &action, NULL);
}

void terminal_begin(void)
{
    sigset_t taken;
    sigemptyset(&taken);
    for (size_t i = 0; i < sizeof taken_signals / sizeof taken_signals[0]; i++)
        sigaddset(&taken, taken_signals[i]);
    sigprocmask(SIG_BLOCK, &taken, NULL);
    screen.signals = signalfd(screen.signals, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    screen.has_keys = isatty(STDIN_FILENO) == 1;
    atexit(terminal_end); /* also on out of memory */
    catch_crashes();
    enter();
}

bool terminal_has_keys(void)
{
    return screen.has_keys;
}

size_t terminal_rows(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row : 24;
}

/* ---- signals ----------------------------------------------------------------------------------------------------- */

static bool is_ignored(int number)
{
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

/* Applies the default action of a blocked signal: ends this process, or stops it until SIGCONT. */
static void let_happen(int number)
{
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, number);
    raise(number);
    sigprocmask(SIG_UNBLOCK, &only, NULL);
    sigprocmask(SIG_BLOCK, &only, NULL);
}

static int read_signal(void)
{
    struct signalfd_siginfo info;
    if (read(screen.signals, &info, sizeof info) != (ssize_t)sizeof info)
        return TERMINAL_NOTHING;
    int number = (int)info.ssi_signo;
    if (is_ignored(number))
        return TERMINAL_NOTHING;
    if (number != SIGWINCH && number != SIGCONT) {
        terminal_end();
        let_happen(number);
    }
    if (number != SIGWINCH)
        enter();
    return TERMINAL_REDRAW;
}

/* Returns whether the bytes so far are a lone Escape, and forgets them. */
static bool consume_escape(void)
{
    bool is_escape = screen.keys.state == '\033' && !screen.keys.is_pasting;
    screen.keys.state = '\0';
    return is_escape;
}

int terminal_wait(int64_t deadline_ns)
{
    for (;;) {
        int event = screen.has_keys ? next_key() : TERMINAL_NOTHING;
        if (event != TERMINAL_NOTHING)
            return event;
        int64_t left_ns = deadline_ns - tool_clock_ns(CLOCK_MONOTONIC);
        if (screen.keys.state == '\033' && left_ns > KEY_WAIT_NS)
            left_ns = KEY_WAIT_NS;
        struct pollfd ready[] = {{.fd = screen.signals, .events = POLLIN},
                                 {.fd = screen.has_keys ? STDIN_FILENO : -1, .events = POLLIN}};
        struct timespec left = {left_ns > 0 ? left_ns / 1000000000 : 0, left_ns > 0 ? left_ns % 1000000000 : 0};
        int count = ppoll(ready, 2, &left, NULL);
        if (count > 0 && ready[0].revents != 0 && (event = read_signal()) != TERMINAL_NOTHING)
            return event;
        if (count == 0)
            return consume_escape() ? TERMINAL_ESCAPE : TERMINAL_NOTHING;
    }
}
