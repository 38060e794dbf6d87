/*
 * options.c - see options.h. The environment is searched without the libc's getenv, which may be interposed. Set-up may
 * also run before the libc is ready.
 */
#include "base/options.h"

#include "base/atomics.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/syscall.h"
#include "base/text.h"
#include "base/procfs.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/stat.h>

struct sg_options sg_options = {
    .large_bytes = (UINT64_C(2) << 20) + 1,
    .meminfo_honest = 1,
    .watchdog = SG_WATCHDOG_TERM,
    .oom_score_adj = INT64_MIN,
};

enum { UNREAD, READING, READ };
static uint32_t state SG_AT_START; /* (atomic) */

/* Longest wait for the thread that reads. In a child that was forked meanwhile there is no such thread. */
#define WAIT_NS UINT64_C(100000000)

static void copy_text(char *to, size_t capacity, const char *from)
{
    struct sg_text text = sg_text_begin(to, capacity);
    sg_text_add(&text, from);
}

/* The value in an environment string, or NULL if the string is not of variable `name`. */
static const char *value_of(const char *entry, const char *name)
{
    while (*name != '\0' && *entry == *name) {
        entry++;
        name++;
    }
    return *name == '\0' && *entry == '=' ? entry + 1 : NULL;
}

static void use_history(const char *text)
{
    sg_options.is_history_off = strcmp(text, "off") == 0;
    sg_options.history_depth = 1;
    copy_text(sg_options.history, sizeof sg_options.history, sg_options.is_history_off ? "" : text);
}

/* The field of an option whose value is one of several words. */
static int *choice_field(enum sg_option option)
{
    return option == SG_OPTION_MODE       ? &sg_options.mode_observe
           : option == SG_OPTION_UNIFIED  ? &sg_options.unified
           : option == SG_OPTION_REPORT   ? &sg_options.report_at_exit
           : option == SG_OPTION_DISABLE  ? &sg_options.is_disabled
           : option == SG_OPTION_WATCHDOG ? &sg_options.watchdog
                                          : &sg_options.deepbind_kept;
}

static void set_option(enum sg_option option, const char *text)
{
    const struct sg_option_info *info = &sg_option_table[option];
    struct sg_size size = {0};
    if (info->kind == SG_KIND_SIZE)
        (void)sg_parse_size(text, &size);
    switch (option) {
    case SG_OPTION_RESERVE:
        sg_options.reserve = size;
        break;
    case SG_OPTION_LIMIT:
        size.is_set = size.bytes != 0 || size.percent_milli != 0; /* 0 and "none": no limit */
        sg_options.limit = size;
        break;
    case SG_OPTION_DEVICE_RESERVE:
        sg_options.device_reserve = size;
        break;
    case SG_OPTION_FLOOR:
        sg_options.floor = size;
        break;
    case SG_OPTION_LARGE:
        sg_options.large = size;
        break;
    case SG_OPTION_WAIT:
        (void)sg_parse_time(text, &sg_options.wait_ns);
        break;
    case SG_OPTION_OOM_SCORE_ADJ:
        (void)sg_parse_number(text, &sg_options.oom_score_adj);
        break;
    case SG_OPTION_JOB:
        copy_text(sg_options.job, sizeof sg_options.job, text);
        break;
    case SG_OPTION_DIR:
        copy_text(sg_options.dir, sizeof sg_options.dir, text);
        break;
    case SG_OPTION_SYSTEM_ROOT:
        copy_text(sg_options.system_root, sizeof sg_options.system_root, text[1] == '\0' ? "" : text);
        break;
    case SG_OPTION_MODE:
    case SG_OPTION_UNIFIED:
    case SG_OPTION_REPORT:
    case SG_OPTION_DISABLE:
    case SG_OPTION_WATCHDOG:
    case SG_OPTION_DEEPBIND:
        *choice_field(option) = sg_parse_choice(text, info->example);
        break;
    case SG_OPTION_MEMINFO:
        sg_options.meminfo_honest = sg_parse_choice(text, info->example) == 0;
        break;
    case SG_OPTION_HISTORY:
        use_history(text);
        break;
    case SG_OPTION_COUNT:
        break;
    }
}

/* The memory that percentages refer to, in KiB; 0: unknown. */
static uint64_t ordinary_kib(void)
{
    char path[SG_PATH_CAPACITY + 64], meminfo[2048];
    struct sg_text text = sg_text_begin(path, sizeof path);
    sg_text_add(&text, sg_options.system_root);
    sg_text_add(&text, "/proc/meminfo");
    return sg_text_read_file(path, meminfo, sizeof meminfo) > 0 ? sg_procfs_ordinary_kib(meminfo) : 0;
}

/* Computes large_bytes. A percentage refers to the machine's memory, since set-up knows no other constraint yet. If
 * that is unknown, the default stays. */
static void resolve_large(void)
{
    uint64_t total_kib = sg_options.large.percent_milli != 0 ? ordinary_kib() : 0;
    uint64_t largest = sg_size_of(sg_options.large, total_kib * 1024);
    if (sg_options.large.percent_milli == 0 || total_kib != 0)
        sg_options.large_bytes = largest < UINT64_MAX ? largest + 1 : largest;
}

static void report_value(const struct sg_option_info *info, const char *value)
{
    char line[512];
    struct sg_text text = sg_text_begin(line, sizeof line);
    sg_text_add(&text, "sparkguard: ");
    sg_text_add(&text, info->variable);
    sg_text_add(&text, "=");
    char shown[128];
    copy_text(shown, sizeof shown, value);
    sg_text_add(&text, shown);
    sg_text_add(&text, info->kind == SG_KIND_CHOICE ? " cannot be read; use one of " : " cannot be read; for example ");
    sg_text_add(&text, info->example);
    sg_text_add(&text, "; using ");
    const char *otherwise = info == &sg_option_table[SG_OPTION_LIMIT] ? "no limit" : "the default";
    sg_text_add(&text, info->fallback[0] != '\0' ? info->fallback : otherwise);
    sg_log_line(line);
}

/* Warns of a value that is valid but probably lacks its unit. */
static void warn_of_unit(const struct sg_option_info *info, const char *value, char unit)
{
    char line[256], letter[2] = {unit, '\0'};
    struct sg_text text = sg_text_begin(line, sizeof line);
    sg_text_add(&text, "sparkguard: ");
    sg_text_add(&text, info->variable);
    sg_text_add(&text, "=");
    sg_text_add(&text, value);
    sg_text_add(&text, " is ");
    sg_text_add(&text, value);
    sg_text_add(&text, " bytes; did you mean ");
    sg_text_add(&text, value);
    sg_text_add(&text, letter);
    sg_text_add(&text, "?");
    sg_log_line(line);
}

/* Warns of a limit that no program runs within, and of a limit or reserve of 0, which sets none. A value without a unit
 * is told of already. */
static void warn_of_little(enum sg_option option, const char *value)
{
    char line[256];
    struct sg_text text = sg_text_begin(line, sizeof line);
    bool is_low = option == SG_OPTION_LIMIT && sg_is_low_limit(value);
    if (!is_low && !sg_is_told_zero(option, value))
        return;
    sg_text_add(&text, "sparkguard: ");
    sg_text_add(&text, sg_option_table[option].variable);
    sg_text_add(&text, "=");
    sg_text_add(&text, value);
    sg_text_add(&text, is_low ? " is less than any program needs (16 MiB): nearly every request will be refused"
                              : SG_ZERO_IS_NONE);
    sg_log_line(line);
}

/* Warns of a reserve as large as the machine. Called only if the option is set, so that other starts need not read
 * /proc/meminfo. */
static void warn_of_reserve(void)
{
    char line[256];
    uint64_t machine = ordinary_kib() * 1024, reserve = sg_size_of(sg_options.reserve, machine);
    struct sg_text text = sg_text_begin(line, sizeof line);
    if (machine == 0 || reserve < machine)
        return;
    sg_text_add(&text, "sparkguard: SPARKGUARD_RESERVE keeps ");
    sg_text_add_size(&text, reserve);
    sg_text_add(&text, " of the ");
    sg_text_add_size(&text, machine);
    sg_text_add(&text, " that this machine has: every large request will be refused");
    sg_log_line(line);
}

static void report_name(const char *entry)
{
    char name[80], line[256];
    size_t length = 0;
    while (entry[length] != '\0' && entry[length] != '=' && length + 1 < sizeof name) {
        name[length] = entry[length];
        length++;
    }
    name[length] = '\0';
    struct sg_text text = sg_text_begin(line, sizeof line);
    sg_text_add(&text, "sparkguard: unknown variable ");
    sg_text_add(&text, name);
    sg_text_add(&text, "; did you mean ");
    sg_text_add(&text, sg_option_table[sg_option_nearest(name)].variable);
    sg_text_add(&text, "?");
    sg_log_line(line);
}

/* Whether a variable that is no option is one of ours all the same. */
static bool is_known_otherwise(const char *entry)
{
    return value_of(entry, SG_VARIABLE_FIRST) != NULL || value_of(entry, SG_VARIABLE_REQUIRED) != NULL ||
           value_of(entry, SG_VARIABLE_NEXT_RUNTIME) != NULL || value_of(entry, SG_VARIABLE_RUNTIME_CONF) != NULL;
}

/* Takes over one environment string "SPARKGUARD_...". `is_first`: this is the job's first process, which reports
 * mistakes. Returns the bit 1 << option of the option that is set; 0: none. */
static uint32_t read_variable(const char *entry, bool is_first)
{
    enum { PREFIX = sizeof SG_VARIABLE_PREFIX - 1 };
    for (unsigned i = 0; i < SG_OPTION_COUNT; i++) {
        const char *value = value_of(entry + PREFIX, sg_option_table[i].variable + PREFIX);
        if (value == NULL)
            continue;
        if (*value == '\0')
            return 0; /* an empty value counts as unset */
        char unit = sg_missing_unit((enum sg_option)i, value);
        if (sg_is_valid((enum sg_option)i, value))
            set_option((enum sg_option)i, value);
        else if (is_first)
            report_value(&sg_option_table[i], value);
        if (is_first && unit != '\0')
            warn_of_unit(&sg_option_table[i], value, unit);
        else if (is_first)
            warn_of_little((enum sg_option)i, value);
        return 1u << i;
    }
    if (value_of(entry, SG_VARIABLE_RECORD) != NULL)
        sg_options.is_record_kept = 1;
    else if (is_first && !is_known_otherwise(entry))
        report_name(entry);
    return 0;
}

/* Whether a file may be believed: the state that says why not, or READ. */
static enum sg_defaults_state judge_file(const struct stat *info)
{
    uint32_t user = (uint32_t)sg_syscall(SYS_geteuid, 0, 0, 0, 0, 0, 0);
    return info->st_uid != user && info->st_uid != 0 ? SG_DEFAULTS_FOREIGN
           : !S_ISREG(info->st_mode)                 ? SG_DEFAULTS_UNREADABLE
           : (info->st_mode & S_IWOTH) != 0          ? SG_DEFAULTS_OPEN
                                                     : SG_DEFAULTS_READ;
}

/* Reads an open file, which may not be the one that stat has seen. */
static enum sg_defaults_state read_open(struct sg_defaults *out, int fd)
{
    struct stat info = {0};
    size_t bytes = 0;
    if (sg_sys_fstat(fd, &info) != 0)
        return SG_DEFAULTS_UNREADABLE;
    enum sg_defaults_state verdict = judge_file(&info);
    if (verdict != SG_DEFAULTS_READ)
        return verdict;
    for (long got = 1; got > 0 && bytes < sizeof out->text; bytes += (size_t)got) {
        got = sg_sys_pread(fd, out->text + bytes, sizeof out->text - bytes, bytes);
        if (got < 0)
            return SG_DEFAULTS_UNREADABLE;
    }
    if (bytes > SG_DEFAULTS_BYTES)
        return SG_DEFAULTS_LARGE;
    sg_defaults_take_lines(out, bytes);
    return SG_DEFAULTS_READ;
}

/* Looks at a file before it is opened: opening what is no regular file may have effects. */
static void read_file(struct sg_defaults *out, const char *path, const struct stat *info)
{
    memcpy(out->path, path, strlen(path) + 1);
    out->state = judge_file(info);
    if (out->state != SG_DEFAULTS_READ)
        return;
    long fd = sg_sys_openat((int)SG_AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
    out->state = fd >= 0         ? read_open(out, (int)fd)
                 : fd == -EACCES ? SG_DEFAULTS_UNREADABLE
                                 : SG_DEFAULTS_NONE; /* no descriptor is free, say */
    if (fd >= 0)
        (void)sg_sys_close((int)fd);
}

void sg_options_name_defaults(char path[SG_DEFAULTS_PATH_BYTES], const char *config_home, const char *home)
{
    bool has_config_home = config_home != NULL && config_home[0] == '/';
    const char *folder = has_config_home ? config_home : home;
    struct sg_text text = sg_text_begin(path, SG_DEFAULTS_PATH_BYTES);
    if (folder == NULL || folder[0] != '/')
        return;
    sg_text_add(&text, folder);
    sg_text_add(&text, has_config_home ? "/sparkguard.conf" : "/.config/sparkguard.conf");
    if (text.length + 1 == text.capacity) /* cut, and another file's */
        path[0] = '\0';
}

enum sg_defaults_state sg_options_read_defaults(struct sg_defaults *out, const char *path)
{
    struct stat info = {0};
    if (path[0] != '\0' && sg_sys_stat(path, &info) == 0)
        read_file(out, path, &info);
    return out->state;
}

/* Reports that the user's file of defaults, or a line of it, has no effect. */
static void report_defaults(const struct sg_defaults *defaults)
{
    char line[512];
    struct sg_text text = sg_text_begin(line, sizeof line);
    const char *fault = sg_defaults_fault(defaults->state), *near = sg_defaults_nearest(defaults);
    sg_text_add(&text, "sparkguard: ");
    sg_text_add_place(&text, defaults->path, fault == NULL ? defaults->wrong_line : 0);
    if (fault != NULL) {
        sg_text_add(&text, " ");
        sg_text_add(&text, fault);
    } else {
        sg_text_add(&text, ": cannot be read and has no effect; ");
        sg_text_add(&text, near != NULL ? "did you mean " : "expected " SG_DEFAULTS_EXPECTED);
        sg_text_add(&text, near != NULL ? near : "");
        sg_text_add(&text, near != NULL ? "?" : "");
    }
    sg_log_line(line);
}

/* Reports a limit or reserve of 0 in the file. */
static void report_zero(const struct sg_defaults *defaults, enum sg_option option)
{
    char line[512];
    struct sg_text text = sg_text_begin(line, sizeof line);
    sg_text_add(&text, "sparkguard: ");
    sg_text_add_place(&text, defaults->path, defaults->line[option]);
    sg_text_add(&text, ": ");
    sg_text_add(&text, sg_option_table[option].name);
    sg_text_add(&text, "=");
    sg_text_add(&text, defaults->value[option]);
    sg_text_add(&text, SG_ZERO_IS_NONE);
    sg_log_line(line);
}

/* Names the file by one entry of the environment: XDG_CONFIG_HOME goes before HOME. */
static void name_defaults_by(const char *entry, char path[SG_DEFAULTS_PATH_BYTES], bool *has_config_home)
{
    const char *config_home = value_of(entry, "XDG_CONFIG_HOME"), *home = value_of(entry, "HOME");
    if (*has_config_home || (config_home == NULL && (home == NULL || path[0] != '\0')))
        return;
    *has_config_home = config_home != NULL && config_home[0] == '/';
    if (*has_config_home || home != NULL)
        sg_options_name_defaults(path, config_home, home);
}

/* Names the file by the environment that this process began with. By now another thread may be changing the strings of
 * `environ`, and keeping a copy would cost each start a page. `buffer` is for reading. */
static void find_defaults(char path[SG_DEFAULTS_PATH_BYTES], char *buffer, size_t capacity)
{
    bool has_config_home = false, is_rest = false; /* is_rest: of an entry longer than the buffer */
    uint64_t offset = 0;
    long got = 0;
    long fd = sg_sys_openat((int)SG_AT_FDCWD, "/proc/self/environ", O_RDONLY | O_CLOEXEC, 0);
    while (fd >= 0 && (got = sg_sys_pread((int)fd, buffer, capacity - 1, offset)) > 0) {
        size_t bytes = (size_t)got, at = 0;
        buffer[bytes] = '\0';
        while (at < bytes) {
            size_t length = strlen(buffer + at);
            bool is_whole = at + length < bytes;
            if (!is_whole && at != 0) /* the next reading begins with it */
                break;
            if (!is_rest)
                name_defaults_by(buffer + at, path, &has_config_home);
            is_rest = !is_whole;
            at += length + is_whole;
        }
        offset += at;
    }
    if (fd >= 0)
        (void)sg_sys_close((int)fd);
}

void sg_options_take_defaults(const char *path)
{
    static struct sg_defaults defaults; /* static: too large for a small stack */
    static char own_path[SG_DEFAULTS_PATH_BYTES];
    static bool has_taken;
    if (has_taken || sg_options.is_disabled)
        return;
    if (path == NULL)
        find_defaults(own_path, defaults.text, sizeof defaults.text);
    enum sg_defaults_state found = sg_options_read_defaults(&defaults, path != NULL ? path : own_path);
    has_taken = found != SG_DEFAULTS_NONE || defaults.path[0] == '\0';
    if (found == SG_DEFAULTS_NONE) /* no file, or one that cannot be opened now: the next decision tries again */
        return;
    bool is_faulty = defaults.wrong_line != 0 || sg_defaults_fault(defaults.state) != NULL;
    bool may_report = (sg_options.given & SG_GIVEN_FIRST) == 0 && sg_options.first_pid == sg_sys_getpid();
    if (is_faulty && may_report)
        report_defaults(&defaults);
    for (unsigned i = 0; i < SG_OPTION_COUNT; i++) {
        if (defaults.value[i] == NULL || (sg_options.given & 1u << i) != 0)
            continue;
        set_option((enum sg_option)i, defaults.value[i]);
        sg_options.given |= i == SG_OPTION_LIMIT ? SG_GIVEN_FILE_LIMIT : 0;
        if (may_report && sg_is_told_zero((enum sg_option)i, defaults.value[i]))
            report_zero(&defaults, (enum sg_option)i);
    }
}

/* Names the directory that is tried if the option is not set: sg_directory_choose() looks at it. */
static void default_dir(const char *runtime_dir)
{
    sg_options.has_default_dir = sg_options.dir[0] == '\0';
    if (!sg_options.has_default_dir)
        return;
    struct sg_text text = sg_text_begin(sg_options.dir, sizeof sg_options.dir);
    if (runtime_dir != NULL && runtime_dir[0] == '/') {
        sg_text_add(&text, runtime_dir);
        sg_text_add(&text, SG_DEFAULT_DIR_BELOW);
    } else {
        sg_text_add(&text, SG_DEFAULT_DIR);
        sg_text_add_number(&text, (uint64_t)sg_syscall(SYS_geteuid, 0, 0, 0, 0, 0, 0));
    }
}

static void default_history(const char *state_home, const char *home)
{
    bool has_state_home = state_home != NULL && state_home[0] == '/';
    if (sg_options.history_depth != 0 || (!has_state_home && (home == NULL || home[0] != '/')))
        return;
    struct sg_text text = sg_text_begin(sg_options.history, sizeof sg_options.history);
    sg_text_add(&text, has_state_home ? state_home : home);
    sg_text_add(&text, has_state_home ? "/sparkguard" : "/.local/state/sparkguard");
    sg_options.history_depth = has_state_home ? 2 : 3;
}

/* Generates a name such as "20261120T131742-4711", from start time and pid. Such names sort by time. */
static void name_job(void)
{
    struct sg_text text = sg_text_begin(sg_options.job, sizeof sg_options.job);
    struct timespec now = {0, 0};
    (void)sg_sys_clock_gettime(CLOCK_REALTIME, &now); /* the vDSO would cost each start two more pages */
    sg_text_add_time(&text, (uint64_t)now.tv_sec);
    sg_text_add(&text, "-");
    sg_options.named_by = sg_sys_getpid();
    sg_text_add_number(&text, sg_options.named_by);
}

bool sg_options_are_read(void)
{
    return sg_load_acquire(&state) == READ;
}

/* Only glibc has this function. The library loads beside other C libraries (musl), too, and then passes every call
 * through: it relies on glibc's heap, fork handlers and thread descriptors. */
extern const char *gnu_get_libc_version(void) __attribute__((weak));

/* Returns how the limit was given by what follows the PID in SG_VARIABLE_FIRST: 0 also if a program has set the
 * variable to another limit since. */
static uint32_t read_origin(char *const *environment, const char *origin)
{
    const char *value = NULL;
    bool is_typed = strncmp(origin, SG_TYPED_LIMIT, sizeof SG_TYPED_LIMIT - 1) == 0;
    if (!is_typed && strncmp(origin, SG_FILE_LIMIT, sizeof SG_FILE_LIMIT - 1) != 0)
        return 0;
    for (; *environment != NULL && value == NULL; environment++)
        value = value_of(*environment, sg_option_table[SG_OPTION_LIMIT].variable);
    bool is_same = value != NULL && strcmp(value, strchr(origin, '=') + 1) == 0;
    return !is_same ? 0 : is_typed ? SG_GIVEN_TYPED_LIMIT : SG_GIVEN_FILE_LIMIT;
}

static void read_all(char *const *environment)
{
    /* A setuid program must not trust the environment. */
    if (gnu_get_libc_version == NULL || getauxval(AT_SECURE) != 0) {
        sg_options.is_disabled = 1;
        return;
    }
    const char *first = NULL, *disable = NULL;
    for (char *const *entry = environment; *entry != NULL; entry++) {
        first = first != NULL ? first : value_of(*entry, SG_VARIABLE_FIRST);
        disable = disable != NULL ? disable : value_of(*entry, sg_option_table[SG_OPTION_DISABLE].variable);
    }
    bool may_report = disable == NULL || strcmp(disable, "1") != 0;
    if (first != NULL)
        sg_options.first_pid = (uint32_t)sg_text_read_number(&first);
    const char *state_home = NULL, *runtime_dir = NULL, *config_home = NULL, *home = NULL;
    sg_options.given = sg_options.first_pid != 0 ? SG_GIVEN_FIRST : 0;
    if (first != NULL)
        sg_options.given |= read_origin(environment, first);
    for (char *const *entry = environment; *entry != NULL; entry++) {
        if ((*entry)[0] == 'S' && strncmp(*entry, SG_VARIABLE_PREFIX, sizeof SG_VARIABLE_PREFIX - 1) == 0)
            sg_options.given |= read_variable(*entry, may_report && sg_options.first_pid == 0);
        else if ((*entry)[0] == 'H' && home == NULL)
            home = value_of(*entry, "HOME");
        else if ((*entry)[0] == 'X') {
            state_home = state_home != NULL ? state_home : value_of(*entry, "XDG_STATE_HOME");
            runtime_dir = runtime_dir != NULL ? runtime_dir : value_of(*entry, "XDG_RUNTIME_DIR");
            config_home = config_home != NULL ? config_home : value_of(*entry, "XDG_CONFIG_HOME");
        }
    }
    if (config_home != NULL && config_home[0] == '/')
        sg_options.given |= SG_GIVEN_CONFIG_HOME;
    if (sg_options.large.is_set)
        resolve_large();
    if (sg_options.reserve.is_set && may_report && sg_options.first_pid == 0)
        warn_of_reserve();
    if (sg_options.job[0] == '\0' && !sg_options.is_disabled)
        name_job(); /* here, so that allocations before set-up belong to the job as well */
    default_history(state_home, home);
    default_dir(runtime_dir);
}

/* Waits for the thread that reads. False: it did not end in time, and is taken for gone. */
static bool is_read_by_another(void)
{
    uint64_t begin = sg_clock_ns(CLOCK_MONOTONIC);
    while (sg_load_acquire(&state) != READ && sg_clock_ns(CLOCK_MONOTONIC) - begin < WAIT_NS)
        (void)sg_syscall(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
    return sg_options_are_read();
}

void sg_options_read_quietly(char *const *environment)
{
    if (!sg_options_are_read())
        sg_options.first_pid = UINT32_MAX; /* as if another process were the first, which reports */
    sg_options_read(environment);
}

void sg_options_read(char *const *environment)
{
    uint32_t unread = UNREAD;
    if (sg_options_are_read() || environment == NULL)
        return;
    if (!sg_cas_u32(&state, &unread, READING) && is_read_by_another())
        return;
    read_all(environment);
    sg_store_release(&state, (uint32_t)READ);
}
