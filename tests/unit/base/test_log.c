/*
 * test_log.c - the few lines people see: where they go, and that they do the program no harm.
 */
#include "fixture.h"

#include "base/log.h"

#include <sys/ioctl.h>
#include <sys/socket.h>

/* Failures go to the true standard error; descriptor 2 becomes `fd`. */
static void become_error_output(int fd)
{
    fixture_say = fcntl(2, F_DUPFD_CLOEXEC, 100);
    CHECK(fixture_say >= 100);
    CHECK(fd >= 0 && dup2(fd, 2) == 2);
}

static int open_file(const char *name)
{
    return open(in_folder(name), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static void check_file(const char *name, const char *expected)
{
    char text[4096];
    int fd = open(in_folder(name), O_RDONLY | O_CLOEXEC);
    ssize_t length = read(fd, text, sizeof text - 1);
    CHECK(length >= 0 && close(fd) == 0);
    text[length] = '\0';
    CHECK_TEXT(text, expected);
}

CHILD_TEST(a_line_goes_to_standard_error)
{
    become_error_output(open_file("stderr"));
    sg_log_line("one");
    sg_log_line("two");
    check_file("stderr", "one\ntwo\n");
}

CHILD_TEST(a_line_is_one_line_and_moves_no_cursor)
{
    become_error_output(open_file("stderr"));
    sg_log_line("a\nb\033[2Jc\177\302\265");
    check_file("stderr", "a?b?[2Jc?\302\265\n");
}

CHILD_TEST(a_long_line_is_cut_and_ends)
{
    static char line[3000], expected[1026];
    memset(line, 'x', sizeof line - 1);
    memset(expected, 'x', 1024);
    expected[1024] = '\n';
    become_error_output(open_file("stderr"));
    sg_log_line(line);
    check_file("stderr", expected);
}

/* A datagram is what one write has written. */
CHILD_TEST(two_lines_are_one_write)
{
    int sockets[2];
    char text[32] = "";
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) == 0);
    become_error_output(sockets[1]);
    sg_log_lines("one", "try: \ntwo");
    CHECK(read(sockets[0], text, sizeof text - 1) == 14);
    CHECK_TEXT(text, "one\ntry: ?two\n");
}

CHILD_TEST(two_long_lines_are_cut_together)
{
    static char line[900], expected[1026];
    memset(line, 'x', sizeof line - 1);
    memset(expected, 'x', 1024);
    expected[899] = '\n';
    expected[1024] = '\n';
    become_error_output(open_file("stderr"));
    sg_log_lines(line, line);
    check_file("stderr", expected);
}

CHILD_TEST(nothing_goes_into_a_file_put_there_later)
{
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    become_error_output(pipes[1]);
    sg_log_begin();
    CHECK(dup2(open_file("data"), 2) == 2);
    sg_log_line("one");
    check_file("data", "");
}

CHILD_TEST(another_file_than_the_one_at_the_start_is_left_alone)
{
    become_error_output(open_file("stderr"));
    sg_log_begin();
    int first = dup(2);
    CHECK(dup2(open_file("data"), 2) == 2);
    sg_log_line("one");
    CHECK(dup2(first, 2) == 2);
    sg_log_line("two");
    check_file("data", "");
    check_file("stderr", "two\n");
}

CHILD_TEST(nothing_goes_into_a_socket_or_pipe_put_there_later)
{
    int sockets[2], pipes[2];
    char byte;
    become_error_output(open_file("stderr"));
    sg_log_begin();
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets) == 0 && dup2(sockets[1], 2) == 2);
    sg_log_line("one");
    CHECK(read(sockets[0], &byte, 1) == -1 && errno == EAGAIN);
    CHECK(pipe2(pipes, O_NONBLOCK) == 0 && dup2(pipes[1], 2) == 2);
    sg_log_line("two");
    CHECK(read(pipes[0], &byte, 1) == -1 && errno == EAGAIN);
    check_file("stderr", "");
}

CHILD_TEST(a_line_goes_to_a_terminal_put_there_later)
{
    char text[16] = "";
    become_error_output(open_file("stderr"));
    sg_log_begin();
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || ptsname(terminal) == NULL || access(ptsname(terminal), F_OK) != 0)
        SKIP("no terminals here, is /dev/pts mounted?");
    CHECK(grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    int there = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    CHECK(there >= 0 && dup2(there, 2) == 2);
    sg_log_line("one");
    CHECK(read(terminal, text, sizeof text - 1) == 9);
    CHECK_TEXT(text, "\r\033[Kone\r\n");
    check_file("stderr", "");
}

static int open_terminal(int *terminal, unsigned short columns)
{
    const struct winsize size = {.ws_row = 24, .ws_col = columns};
    *terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (*terminal < 0 || ptsname(*terminal) == NULL || access(ptsname(*terminal), F_OK) != 0)
        SKIP("no terminals here, is /dev/pts mounted?");
    CHECK(grantpt(*terminal) == 0 && unlockpt(*terminal) == 0 && ioctl(*terminal, TIOCSWINSZ, &size) == 0);
    return open(ptsname(*terminal), O_RDWR | O_NOCTTY);
}

CHILD_TEST(on_a_terminal_lines_are_broken_between_words)
{
    char text[96] = "";
    int terminal;
    become_error_output(open_terminal(&terminal, 10));
    sg_log_begin();
    sg_log_lines("one two three", "0123456789 0123456789a b 0123456 8");
    CHECK(read(terminal, text, sizeof text - 1) > 0);
    CHECK_TEXT(text, "\r\033[Kone two\r\nthree\r\n0123456789\r\n0123456789a\r\nb 0123456\r\n8\r\n");
}

CHILD_TEST(on_a_terminal_without_a_width_lines_are_whole)
{
    char text[64] = "";
    int terminal;
    become_error_output(open_terminal(&terminal, 0));
    sg_log_begin();
    sg_log_line("one two three four");
    CHECK(read(terminal, text, sizeof text - 1) > 0);
    CHECK_TEXT(text, "\r\033[Kone two three four\r\n");
}

CHILD_TEST(nothing_goes_to_a_device_put_there_later)
{
    become_error_output(open_file("stderr"));
    sg_log_begin();
    CHECK(dup2(open("/dev/null", O_WRONLY), 2) == 2);
    sg_log_line("one");
    check_file("stderr", "");
}

CHILD_TEST(a_standard_error_closed_at_the_start_stays_silent)
{
    int pipes[2];
    char byte;
    CHECK(pipe2(pipes, O_NONBLOCK | O_CLOEXEC) == 0);
    become_error_output(pipes[1]);
    CHECK(close(2) == 0);
    sg_log_begin();
    sg_log_line("one");
    CHECK(dup2(pipes[1], 2) == 2);
    sg_log_line("two");
    CHECK(read(pipes[0], &byte, 1) == -1 && errno == EAGAIN);
}

CHILD_TEST(a_standard_error_closed_later_is_no_fault)
{
    become_error_output(open_file("stderr"));
    sg_log_begin();
    CHECK(close(2) == 0);
    errno = 99;
    sg_log_line("one");
    CHECK_EQUAL(errno, 99);
    check_file("stderr", "");
}

static volatile sig_atomic_t pipe_signals;

static void on_pipe_signal(int unused)
{
    (void)unused;
    pipe_signals++;
}

CHILD_TEST(a_reader_who_has_gone_costs_no_signal)
{
    int pipes[2];
    sigset_t mask, pending;
    CHECK(pipe(pipes) == 0);
    become_error_output(pipes[1]);
    sg_log_begin();
    CHECK(close(pipes[0]) == 0);
    CHECK(signal(SIGPIPE, on_pipe_signal) != SIG_ERR);
    sg_log_line("one");
    CHECK_EQUAL(pipe_signals, 0);
    CHECK(sigprocmask(SIG_SETMASK, NULL, &mask) == 0 && sigismember(&mask, SIGPIPE) == 0);
    CHECK(sigaddset(&mask, SIGPIPE) == 0 && sigprocmask(SIG_SETMASK, &mask, NULL) == 0);
    sg_log_line("two");
    CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 0);
    CHECK(raise(SIGPIPE) == 0); /* the program's own stays */
    sg_log_line("three");
    CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1);
}

CHILD_TEST(a_full_pipe_does_not_block)
{
    static char page[65536]; /* the largest: a pipe has room again when all of a page has been read */
    const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    int pipes[2];
    CHECK(pipe2(pipes, O_NONBLOCK) == 0);
    while (write(pipes[1], page, page_bytes) > 0)
        ;
    CHECK(fcntl(pipes[1], F_SETFL, 0) == 0);
    become_error_output(pipes[1]);
    (void)alarm(10);
    sg_log_line("one");
    CHECK(read(pipes[0], page, page_bytes) == (ssize_t)page_bytes); /* room for the next one */
    sg_log_line("two");
    char last[8] = "";
    char text[4096];
    for (ssize_t got; (got = read(pipes[0], text, sizeof text)) > 0;)
        if (got == 4)
            memcpy(last, text, 4);
    CHECK_TEXT(last, "two\n");
}

PLAIN_TEST(who_may_speak_may_do_so_once_a_second)
{
    uint64_t last = 0;
    assert_true(sg_log_may_speak(&last));
    for (int i = 0; i < 100; i++) {
        uint64_t begin = clock_ns();
        last = begin;
        bool may = sg_log_may_speak(&last);
        if (clock_ns() - begin < 1000000000) /* else the machine was so slow that it may */
            assert_false(may);
    }
    last = clock_ns() - 1000000000;
    assert_true(sg_log_may_speak(&last));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_goes_to_standard_error),
        cmocka_unit_test(a_line_is_one_line_and_moves_no_cursor),
        cmocka_unit_test(a_long_line_is_cut_and_ends),
        cmocka_unit_test(two_lines_are_one_write),
        cmocka_unit_test(two_long_lines_are_cut_together),
        cmocka_unit_test(nothing_goes_into_a_file_put_there_later),
        cmocka_unit_test(another_file_than_the_one_at_the_start_is_left_alone),
        cmocka_unit_test(nothing_goes_into_a_socket_or_pipe_put_there_later),
        cmocka_unit_test(a_line_goes_to_a_terminal_put_there_later),
        cmocka_unit_test(on_a_terminal_lines_are_broken_between_words),
        cmocka_unit_test(on_a_terminal_without_a_width_lines_are_whole),
        cmocka_unit_test(nothing_goes_to_a_device_put_there_later),
        cmocka_unit_test(a_standard_error_closed_at_the_start_stays_silent),
        cmocka_unit_test(a_standard_error_closed_later_is_no_fault),
        cmocka_unit_test(a_reader_who_has_gone_costs_no_signal),
        cmocka_unit_test(a_full_pipe_does_not_block),
        cmocka_unit_test(who_may_speak_may_do_so_once_a_second),
    };
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
