/*
 * claim.h - --claim: sets memory aside for the job before its program starts (sparkguard_abi.h, "Claims").
 *
 * The child executes this tool again, under the library, which decides on the claim (claim_inside.c). The child then
 * sends the descriptor that keeps the claim to the launcher, and becomes the program. So the claim is judged in the
 * program's cgroup, also in that of --jail, and lasts as long as the launcher.
 */
#ifndef SG_TOOLS_LAUNCH_CLAIM_H
#define SG_TOOLS_LAUNCH_CLAIM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "sparkguard_options.h"

struct launch;

struct launch_claim {
    bool is_wanted, is_auto;
    bool is_none;     /* --claim=none */
    bool has_details; /* another option than --claim was given */
    uint64_t bytes;
    uint64_t wait_ns; /* longest wait in the queue */
    uint64_t ttl_ns;  /* an unused claim is taken back after this time; 0: never */
    int64_t priority;
    uint64_t share;
    int to_child, to_launcher; /* ends of a socket pair */
    int fd;                    /* keeps the claim; valid if is_held */
    bool is_held;
    struct timespec granted; /* CLOCK_MONOTONIC */
};

/* The launcher's message to the child, sent before the child is started. */
struct launch_claim_order {
    uint64_t bytes, wait_ns;
    int64_t priority;
    uint64_t share, is_quiet;
};

/* The child's messages to the launcher. With CLAIM_HELD comes the descriptor, else -1. CLAIM_NOT_EXECUTED carries the
 * errno of exec. After another message than CLAIM_HELD the child ends; it has printed the reason, except of exec. */
enum launch_claim_what { CLAIM_HELD, CLAIM_NOT_HELD, CLAIM_IMPOSSIBLE, CLAIM_WITHOUT, CLAIM_NOT_EXECUTED };
struct launch_claim_message {
    int what, failure;
};

enum launch_claim_option { CLAIM_SIZE, CLAIM_WAIT, CLAIM_TTL, CLAIM_PRIORITY, CLAIM_SHARE, CLAIM_OPTION_COUNT };

struct launch_claim_option_info {
    const char *name, *argument, *example, *help;
    enum sg_option kind; /* an option of the same kind, for the text about an invalid value */
};
extern const struct launch_claim_option_info launch_claim_options[CLAIM_OPTION_COUNT];

/* Parses the argument of an option. Returns false if it is invalid. */
bool launch_claim_take(struct launch_claim *claim, enum launch_claim_option option, const char *text);

/* Fills in the size of --claim=auto and makes the sockets; called before fork. Returns 0, or after a message on stderr
 * the launcher's exit code. */
int launch_claim_prepare(struct launch *launch);

/* In the child: makes launch->program this tool's second run, which claims and becomes the program. */
void launch_claim_enter(struct launch *launch);

/* Waits in the launcher until the child has become the program, and forwards signals to it meanwhile. Returns 0, or the
 * launcher's exit code after a message on stderr. */
int launch_claim_wait(struct launch *launch);

/* Gives the claim up if --claim-ttl is over and the job has used less than a sixteenth of it. Returns whether there is
 * still something to look at: then *left is the time until then, at least 1 ms. */
bool launch_claim_check_use(struct launch *launch, struct timespec *left);

/* Prints that the child was killed before it had the claim. */
void launch_claim_say_ended(const struct launch *launch);

/* Gives the claim up, if there is one: the program has ended. */
void launch_claim_end(struct launch *launch);

#endif
