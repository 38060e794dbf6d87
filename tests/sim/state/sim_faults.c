/*
 * sim_faults.c - reads the SGSIM_ environment and plans failures.
 *
 * A value that cannot be read is named on stderr in one line and ignored: a mistyped test set-up
 * should be seen, not guessed at. All but sgsim_fail() and sgsim_calls() run with the lock held.
 */
#define _GNU_SOURCE
#include "sim_faults.h"

#include "cuda_sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_RULES 128
#define EVERY_CALL (-1L)

struct rule {
    enum sgsim_function function;
    long remaining; /* calls until it strikes; EVERY_CALL, or 0 for an empty place */
    CUresult code;
};

static struct rule rules[MAX_RULES];
static int rule_top; /* above all that were ever planned */

static const char *const names[SGSIM_FN_COUNT] = {
#define SGSIM_FUNCTION(symbol, base, version, stream) [SGSIM_FN_##symbol] = #symbol,
#include "functions.def"
#undef SGSIM_FUNCTION
};

const char *sgsim_function_name(enum sgsim_function function)
{
    return names[function];
}

int sgsim_find_function(const char *name, size_t length)
{
    for (int i = 0; i < SGSIM_FN_COUNT; i++) {
        if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0)
            return i;
    }
    return -1;
}

static void say(const char *text)
{
    syscall(SYS_write, 2, text, strlen(text));
}

void sgsim_complain(const char *name, const char *value)
{
    say("cuda_sim: ");
    say(name);
    say("=");
    say(value);
    say(": cannot be read, ignored\n");
}

/* Reads digits; moves *text behind them. False if there are none or they overflow. */
static bool read_number(const char **text, size_t *number)
{
    size_t value = 0;
    const char *start = *text;
    for (; **text >= '0' && **text <= '9'; ++*text) {
        if (value > (SIZE_MAX - 9) / 10)
            return false;
        value = value * 10 + (size_t)(**text - '0');
    }
    *number = value;
    return *text != start;
}

bool sgsim_parse_size(const char *text, size_t *bytes)
{
    size_t number, unit = 1;
    if (!read_number(&text, &number))
        return false;
    if (*text == 'K' || *text == 'M' || *text == 'G') {
        unit = *text == 'K' ? SGSIM_KIB : *text == 'M' ? SGSIM_MIB : SGSIM_GIB;
        text++;
    }
    if (*text != '\0' || number > SIZE_MAX / unit)
        return false;
    *bytes = number * unit;
    return true;
}

/* ---- failures ---- */

static void plan(int function, long nth, int code)
{
    for (int i = 0; i < MAX_RULES; i++) {
        if (nth == 0 && rules[i].function == (enum sgsim_function)function)
            rules[i].remaining = 0;
        if (nth != 0 && rules[i].remaining == 0) {
            rules[i] =
                (struct rule){(enum sgsim_function)function, nth, code ? (CUresult)code : CUDA_ERROR_OUT_OF_MEMORY};
            rule_top = i < rule_top ? rule_top : i + 1;
            return;
        }
    }
}

CUresult sgsim_faults_due(enum sgsim_function function)
{
    CUresult code = CUDA_SUCCESS;
    for (int i = 0; i < rule_top; i++) {
        if (rules[i].function != function || rules[i].remaining == 0)
            continue;
        if (rules[i].remaining == EVERY_CALL || --rules[i].remaining == 0)
            code = rules[i].code;
    }
    return code;
}

/* "symbol:N[:code]"; answers where the next item begins, or NULL if this one makes no sense. */
static const char *plan_item(const char *text)
{
    const char *colon = strchr(text, ':');
    int function = colon ? sgsim_find_function(text, (size_t)(colon - text)) : -1;
    if (function < 0)
        return NULL;
    text = colon + 1;
    size_t nth = 0, code = 0;
    if (*text == '*')
        text++;
    else if (!read_number(&text, &nth) || nth == 0)
        return NULL;
    if (*text == ':') {
        text++;
        if (!read_number(&text, &code))
            return NULL;
    }
    if (*text != ',' && *text != '\0')
        return NULL;
    plan(function, nth ? (long)nth : EVERY_CALL, (int)code);
    return *text == ',' ? text + 1 : text;
}

void sgsim_faults_configure(void)
{
    const char *text = getenv("SGSIM_FAIL");
    while (text && *text) {
        const char *next = plan_item(text);
        if (!next)
            sgsim_complain("SGSIM_FAIL", text);
        text = next;
    }
}

void sgsim_fail(const char *symbol, int nth, int code)
{
    int function = sgsim_find_function(symbol, strlen(symbol));
    if (function < 0) {
        sgsim_complain("sgsim_fail", symbol);
        return;
    }
    sgsim_quiet_enter();
    plan(function, nth < 0 ? EVERY_CALL : nth, code);
    sgsim_quiet_leave();
}

unsigned long sgsim_calls(const char *symbol)
{
    int function = sgsim_find_function(symbol, strlen(symbol));
    if (function < 0)
        return 0;
    sgsim_quiet_enter();
    unsigned long count = sgsim_calls_of((enum sgsim_function)function);
    sgsim_quiet_leave();
    return count;
}

/* ---- the machine ---- */

static size_t size_from(const char *name, size_t otherwise)
{
    const char *value = getenv(name);
    size_t bytes = otherwise;
    if (value && !sgsim_parse_size(value, &bytes))
        sgsim_complain(name, value);
    return bytes;
}

/* "1,0": the machine's devices by number, up to the first that there is not; unset or empty: all. */
static void choose_devices(const char *text, int devices)
{
    size_t number;
    sgsim.devices = devices;
    for (int i = 0; i < devices; i++)
        sgsim.ordinal[i] = i;
    if (!text || !*text)
        return;
    for (sgsim.devices = 0; sgsim.devices < devices && read_number(&text, &number) && number < (size_t)devices;
         text++) {
        sgsim.ordinal[sgsim.devices++] = (int)number;
        if (*text != ',')
            break;
    }
}

static void configure_host_memory(void)
{
    const char *managed = getenv("SGSIM_MANAGED"), *pinned = getenv("SGSIM_PINNED");
    const char *registers = getenv("SGSIM_REGISTER");
    sgsim.is_managed_mapped = managed ? strcmp(managed, "mapped") == 0 : sgsim.is_integrated;
    if (managed && !sgsim.is_managed_mapped && strcmp(managed, "unmapped") != 0)
        sgsim_complain("SGSIM_MANAGED", managed);
    sgsim.is_pinned_shared = pinned ? strcmp(pinned, "shmem") == 0 : sgsim.is_integrated;
    if (pinned && !sgsim.is_pinned_shared && strcmp(pinned, "driver") != 0)
        sgsim_complain("SGSIM_PINNED", pinned);
    sgsim.resident_left = size_from("SGSIM_RESIDENT", 256 * SGSIM_MIB);
    sgsim.is_register_idle = registers && strcmp(registers, "idle") == 0;
    sgsim.is_register_missing = registers && strcmp(registers, "missing") == 0;
    if (registers && !sgsim.is_register_idle && !sgsim.is_register_missing && strcmp(registers, "works") != 0)
        sgsim_complain("SGSIM_REGISTER", registers);
}

void sgsim_core_configure(void)
{
    const char *kind = getenv("SGSIM_KIND");
    const char *backing = getenv("SGSIM_BACKING");
    if (kind && strcmp(kind, "gb10") != 0 && strcmp(kind, "discrete") != 0)
        sgsim_complain("SGSIM_KIND", kind);
    sgsim.is_integrated = !kind || strcmp(kind, "discrete") != 0;
    /* 121.7 GiB is the larger MemTotal seen on real machines; a page less than a tenth does not matter, whole pages do. */
    sgsim.memory =
        size_from("SGSIM_MEMORY", sgsim.is_integrated ? 1217 * SGSIM_GIB / 10 / 4096 * 4096 : 24 * SGSIM_GIB);
    sgsim.context_bytes = size_from("SGSIM_CONTEXT", 0);
    sgsim.host_bytes = size_from("SGSIM_HOST", 0);
    size_t devices = size_from("SGSIM_DEVICES", 1);
    choose_devices(getenv("CUDA_VISIBLE_DEVICES"), devices > SGSIM_MAX_DEVICES ? SGSIM_MAX_DEVICES : (int)devices);
    sgsim.pool_step = size_from("SGSIM_POOL_STEP", 32 * SGSIM_MIB);
    sgsim.chunk = size_from("SGSIM_CHUNK", sgsim.is_integrated ? SGSIM_GRANULARITY : 0);
    sgsim.list_bytes = size_from("SGSIM_LISTS", sgsim.is_integrated ? 24 : 0);
    const char *counter = getenv("SGSIM_POOL_COUNTER");
    sgsim.is_pool_mute = counter && strcmp(counter, "zero") == 0;
    if (counter && !sgsim.is_pool_mute)
        sgsim_complain("SGSIM_POOL_COUNTER", counter);
    const char *mig = getenv("SGSIM_MIG");
    sgsim.is_mig = mig && strcmp(mig, "yes") == 0;
    if (mig && !sgsim.is_mig && strcmp(mig, "no") != 0)
        sgsim_complain("SGSIM_MIG", mig);
    const char *streams = getenv("SGSIM_STREAMS");
    sgsim.is_busy = streams && strcmp(streams, "busy") == 0;
    if (streams && !sgsim.is_busy && strcmp(streams, "idle") != 0)
        sgsim_complain("SGSIM_STREAMS", streams);
    configure_host_memory();
    if (!backing || strcmp(backing, "lazy") == 0)
        sgsim.backing = SGSIM_LAZY;
    else if (strcmp(backing, "touch") == 0)
        sgsim.backing = SGSIM_TOUCH;
    else if (strcmp(backing, "none") == 0)
        sgsim.backing = SGSIM_NONE;
    else
        sgsim_complain("SGSIM_BACKING", backing);
}
