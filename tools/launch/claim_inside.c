/*
 * claim_inside.c - --claim, in the process that becomes the program: has the library queue and decide on the claim, and
 * sends the descriptor that keeps it to the launcher. See claim.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/command.h"
#include "common/text.h"
#include "launch/claim.h"
#include "launch/launch.h"
#include "sparkguard_abi.h"
#include "common/tool.h"

#define STEP_NS UINT64_C(100000000) /* an end that wakes nobody, a killed job's, is noticed after this time */

struct inside {
    int socket;
    uint64_t wait_ns;
    bool is_quiet;
    struct sg_claim_order order;
};

static void send_to_launcher(int socket, enum launch_claim_what what, int failure, int fd)
{
    struct launch_claim_message message = {(int)what, failure};
    struct iovec part = {&message, sizeof message};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr packet = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        packet.msg_control = &control;
        packet.msg_controllen = sizeof control;
        control.header =
            (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    }
    while (sendmsg(socket, &packet, MSG_NOSIGNAL) < 0 && errno == EINTR)
        continue;
}

/* Returns what a claim could get now; the tightest constraint's. */
static uint64_t claimable(const struct sg_claim_order *order)
{
    return bytes_less(order->usable_bytes, order->reserve_bytes);
}

static void say_waiting(const struct sg_claim_order *order)
{
    const char *wanted = text_size(order->bytes);
    if (order->queue_position > 1)
        fprintf(stderr, "sparkguard: waits for a claim of %s; claims before it: %" PRIu64 "\n", wanted,
                order->queue_position - 1);
    else
        fprintf(stderr, "sparkguard: waits for a claim of %s; now %s can be claimed\n", wanted,
                text_size(claimable(order)));
}

/* Prints why there is no claim, and ends. */
static void end_without(const struct inside *inside, int failure)
{
    const struct sg_claim_order *order = &inside->order;
    const char *wanted = text_size(order->bytes);
    const char *waited = inside->wait_ns != 0 ? text_duration((int64_t)inside->wait_ns) : "";
    enum launch_claim_what what = failure == EAGAIN  ? CLAIM_NOT_HELD
                                  : failure == E2BIG ? CLAIM_IMPOSSIBLE
                                                     : CLAIM_WITHOUT;
    if (what == CLAIM_IMPOSSIBLE)
        fprintf(stderr, "sparkguard: --claim: %s can never be claimed here, at most %s; nothing was started\n", wanted,
                text_size(order->most_bytes));
    else if (failure == EDQUOT)
        fprintf(stderr, "sparkguard: --claim: this user has as many claims as one may have; nothing was started\n");
    else if (failure == EUSERS)
        fprintf(stderr, "sparkguard: --claim: as many other jobs have claims as can count here; nothing was started\n");
    else if (what == CLAIM_WITHOUT)
        fprintf(stderr, "sparkguard: --claim: no other process would see the claim: %s; nothing was started\n",
                failure == ENOLCK ? "the processes here share no memory (see sparkguard-doctor)" : strerror(failure));
    else if (order->queue_position > 1)
        fprintf(stderr,
                "sparkguard: no claim of %s%s%s: %" PRIu64 " claim%s before it; nothing was started "
                "(--claim-wait)\n",
                wanted, waited[0] != '\0' ? " within " : "", waited, order->queue_position - 1,
                order->queue_position == 2 ? " is" : "s are");
    else
        fprintf(stderr, "sparkguard: no claim of %s%s%s: %s can be claimed now; nothing was started (--claim-wait)\n",
                wanted, waited[0] != '\0' ? " within " : "", waited, text_size(claimable(order)));
    send_to_launcher(inside->socket, what, failure, -1);
    _exit(LAUNCH_NO_CLAIM);
}

static bool is_launcher_gone(int socket)
{
    char byte;
    return recv(socket, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* Returns the descriptor that keeps the claim. Ends if there is none in time. */
static int claim(struct inside *inside)
{
    int (*attempt)(struct sg_claim_order *) = NULL;
    launch_find_export("sparkguard_claim", &attempt, sizeof attempt);
    uint64_t begin_ns = (uint64_t)tool_clock_ns(CLOCK_MONOTONIC), deadline_ns = begin_ns + inside->wait_ns;
    for (bool has_said = inside->is_quiet;;) {
        uint64_t ns = (uint64_t)tool_clock_ns(CLOCK_MONOTONIC), left_ns = deadline_ns > ns ? deadline_ns - ns : 0;
        inside->order.wait_ns = bytes_min(left_ns, STEP_NS);
        int result = attempt != NULL ? attempt(&inside->order) : -ENOLCK;
        if (result >= 0) {
            if (has_said && !inside->is_quiet)
                fprintf(stderr, "sparkguard: claim of %s granted after %s\n", text_size(inside->order.bytes),
                        text_duration((int64_t)((uint64_t)tool_clock_ns(CLOCK_MONOTONIC) - begin_ns)));
            return result;
        }
        if (is_launcher_gone(inside->socket)) /* nobody would keep the claim */
            _exit(LAUNCH_NO_CLAIM);
        if (result != -EAGAIN || left_ns == 0)
            end_without(inside, -result);
        if (!has_said)
            say_waiting(&inside->order);
        has_said = true;
    }
}

void launch_claim_inside(char **argv)
{
    struct launch_claim_order order;
    struct inside inside = {0};
    if (argv[1] == NULL || sscanf(argv[1], COMMAND_IN_CLAIM "%d", &inside.socket) != 1 || argv[2] == NULL ||
        recv(inside.socket, &order, sizeof order, 0) != (ssize_t)sizeof order)
        return;
    fcntl(inside.socket, F_SETFD, FD_CLOEXEC);
    inside.order.bytes = order.bytes;
    inside.order.priority = order.priority;
    inside.order.share = order.share;
    inside.wait_ns = order.wait_ns;
    inside.is_quiet = order.is_quiet != 0;
    int fd = claim(&inside);
    send_to_launcher(inside.socket, CLAIM_HELD, 0, fd);
    execvp(argv[2], argv + 2);
    send_to_launcher(inside.socket, CLAIM_NOT_EXECUTED, errno, -1);
    _exit(LAUNCH_NOT_FOUND);
}
