/*
 * sparkguard_options.h - parses the values of the options in options.def, and formats sizes.
 *
 * Library and tools share this code, so that both read "12GB" alike. All functions are static inline. They allocate
 * nothing, do not set errno and keep no state. So any thread may call them, before set-up and in signal handlers.
 */
#ifndef SPARKGUARD_OPTIONS_H
#define SPARKGUARD_OPTIONS_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SG_VARIABLE_PREFIX "SPARKGUARD_"

/* PID of the job's first process. Set by library and launcher, never by users. Behind the PID the launcher adds
 * " --limit=64G" where the user has typed that option, and " sparkguard.conf:limit=64G" where the limit is of his file
 * of defaults: messages then name that instead of the variable, as long as the variable has this value. */
#define SG_VARIABLE_FIRST "SPARKGUARD_JOB_FIRST"
#define SG_TYPED_LIMIT " --limit="
#define SG_FILE_LIMIT " sparkguard.conf:limit="

/* If it is set, each process leaves a record, however little it took. Set by sparkguard-sweep, never by users. */
#define SG_VARIABLE_RECORD "SPARKGUARD_RECORD_ALL"

/* A limit below this is a unit that was forgotten: no program runs within it. */
#define SG_LIMIT_LEAST (UINT64_C(16) << 20)

/* Of mimalloc, and no option: "0" makes it commit an arena piece by piece, by calls that the guard judges. The launcher
 * and the container runtime set it where the program's environment does not have it. */
#define SG_VARIABLE_COMMIT "MIMALLOC_ARENA_EAGER_COMMIT"

/* Variables of sparkguard-runtime(8). A guarded process may have them in its environment, and has no use for them. */
#define SG_VARIABLE_REQUIRED "SPARKGUARD_REQUIRED"
#define SG_VARIABLE_NEXT_RUNTIME "SPARKGUARD_NEXT_RUNTIME"
#define SG_VARIABLE_RUNTIME_CONF "SPARKGUARD_RUNTIME_CONF"

enum sg_option_kind { SG_KIND_SIZE, SG_KIND_TIME, SG_KIND_CHOICE, SG_KIND_TEXT, SG_KIND_PATH, SG_KIND_NUMBER };

enum sg_option {
#define SG_OPTION(ID, field, name, kind, fallback, example, help) SG_OPTION_##ID,
#include "options.def"
#undef SG_OPTION
    SG_OPTION_COUNT
};

/* Value of an option of kind SIZE: bytes, or thousandths of a percent of a base that the user of the option chooses
 * (sg_size_of). A zero percent_milli means that `bytes` counts. */
struct sg_size {
    uint64_t bytes;
    uint32_t percent_milli;
    bool is_set;
};

struct sg_option_info {
    const char *variable; /* "SPARKGUARD_RESERVE" */
    const char *name;     /* "reserve" */
    enum sg_option_kind kind;
    const char *fallback;
    const char *example;
    const char *help;
};

static const struct sg_option_info sg_option_table[SG_OPTION_COUNT] = {
#define SG_OPTION(ID, field, name, kind, fallback, example, help) \
    {SG_VARIABLE_PREFIX #ID, name, SG_KIND_##kind, fallback, example, help},
#include "options.def"
#undef SG_OPTION
};

/* Parses a decimal number such as "12.5" into thousandths; decimals beyond the third are skipped. Returns the first
 * character after the number, or NULL without a digit or on overflow. */
static inline const char *sg_parse_milli(const char *text, uint64_t *milli)
{
    uint64_t value = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(value, 10u, &value) || __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value))
            return NULL;
    bool has_digits = p != text;
    if (__builtin_mul_overflow(value, 1000u, &value))
        return NULL;
    if (*p == '.') {
        uint64_t weight = 100;
        for (p++; *p >= '0' && *p <= '9'; p++, weight /= 10, has_digits = true)
            if (__builtin_add_overflow(value, weight * (uint64_t)(*p - '0'), &value))
                return NULL;
    }
    *milli = value;
    return has_digits ? p : NULL;
}

/* Returns the bytes of one unit such as "", "B", "K", "KiB", "KB" or "g"; 0 for an unknown unit. */
static inline uint64_t sg_unit_factor(const char *unit)
{
    static const char letters[] = "kmgtp";
    if (*unit == '\0' || ((*unit | 0x20) == 'b' && unit[1] == '\0'))
        return 1;
    const char *at = memchr(letters, *unit | 0x20, sizeof letters - 1);
    if (at == NULL)
        return 0;
    bool is_decimal = (unit[1] | 0x20) == 'b' && unit[2] == '\0';
    bool is_binary = unit[1] == '\0' ||
                     ((unit[1] | 0x20) == 'i' && (unit[2] == '\0' || ((unit[2] | 0x20) == 'b' && unit[3] == '\0')));
    if (!is_decimal && !is_binary)
        return 0;
    uint64_t factor = 1;
    for (const char *l = letters; l <= at; l++)
        factor *= is_decimal ? 1000 : 1024;
    return factor;
}

/* Parses a size: "12G", "512M", "64KiB" (powers of 1024), "12GB" (powers of 1000), "4096" (bytes), "10%", or "none",
 * which is 0 bytes. Returns 0, or -EINVAL with *out unchanged. */
static inline int sg_parse_size(const char *text, struct sg_size *out)
{
    uint64_t milli;
    if (strcmp(text, "none") == 0) {
        *out = (struct sg_size){.is_set = true};
        return 0;
    }
    const char *unit = sg_parse_milli(text, &milli);
    if (unit == NULL)
        return -EINVAL;
    if (unit[0] == '%' && unit[1] == '\0') {
        if (milli > 100000)
            return -EINVAL;
        *out = (struct sg_size){.percent_milli = (uint32_t)milli, .is_set = true};
        return 0;
    }
    uint64_t factor = sg_unit_factor(unit);
    uint64_t bytes;
    if (factor == 0 || (factor == 1 && milli % 1000 != 0))
        return -EINVAL;
    if (__builtin_mul_overflow(milli, factor, &bytes)) { /* too large for thousandths: drop the decimals */
        if (__builtin_mul_overflow(milli / 1000, factor, &bytes))
            return -EINVAL;
    } else {
        bytes /= 1000;
    }
    *out = (struct sg_size){.bytes = bytes, .is_set = true};
    return 0;
}

/* Ends the line about a size of 0, after its name and value. As with docker run, 0 means none. */
#define SG_ZERO_IS_NONE " is read as none"

/* Returns whether a text is a size of 0 that is not written "none". */
static inline bool sg_is_zero(const char *text)
{
    struct sg_size size;
    return sg_parse_size(text, &size) == 0 && size.bytes == 0 && size.percent_milli == 0 && text[0] != 'n';
}

/* Returns whether a text is a limit that no program runs within. 0, which is none, is not. */
static inline bool sg_is_low_limit(const char *text)
{
    struct sg_size size;
    return sg_parse_size(text, &size) == 0 && size.bytes != 0 && size.bytes < SG_LIMIT_LEAST;
}

/* Returns the seconds of a unit of time: "", "s", "m" (or "min") and "h"; 0 for an unknown unit. */
static inline uint64_t sg_unit_seconds(const char *unit)
{
    if (unit[0] == '\0' || strcmp(unit, "s") == 0)
        return 1;
    if (strcmp(unit, "m") == 0 || strcmp(unit, "min") == 0)
        return 60;
    return strcmp(unit, "h") == 0 ? 3600 : 0;
}

/* Parses a time such as "30", "0.5", "90s", "5m" or "2h" into nanoseconds; "none" is 0. Returns 0, or -EINVAL with
 * *nanoseconds unchanged. */
static inline int sg_parse_time(const char *text, uint64_t *nanoseconds)
{
    uint64_t milli = 0, ns;
    const char *unit = strcmp(text, "none") == 0 ? "" : sg_parse_milli(text, &milli);
    uint64_t seconds = unit != NULL ? sg_unit_seconds(unit) : 0;
    if (seconds == 0 || __builtin_mul_overflow(milli, seconds * UINT64_C(1000000), &ns))
        return -EINVAL;
    *nanoseconds = ns;
    return 0;
}

/* Parses a whole number such as "-17" or "500". Returns 0, or -EINVAL with *out unchanged. */
static inline int sg_parse_number(const char *text, int64_t *out)
{
    bool is_negative = *text == '-';
    uint64_t milli;
    const char *end = sg_parse_milli(text + is_negative, &milli);
    if (end == NULL || *end != '\0' || milli % 1000 != 0 || milli > INT64_MAX ||
        memchr(text, '.', strlen(text)) != NULL)
        return -EINVAL;
    *out = is_negative ? -(int64_t)(milli / 1000) : (int64_t)(milli / 1000);
    return 0;
}

/* Returns the index of `text` in a list of words separated by '|', or -EINVAL. */
static inline int sg_parse_choice(const char *text, const char *words)
{
    size_t length = strlen(text);
    for (int place = 0; words != NULL; place++) {
        const char *bar = strchr(words, '|');
        size_t word_length = bar != NULL ? (size_t)(bar - words) : strlen(words);
        if (length == word_length && memcmp(text, words, length) == 0)
            return place;
        words = bar != NULL ? bar + 1 : NULL;
    }
    return -EINVAL;
}

/* Returns whether a text may name a job: 1 to 63 bytes without '/', control characters and blanks at either end. */
static inline bool sg_is_name(const char *text)
{
    size_t length = strlen(text);
    if (length == 0 || length > 63 || text[0] == ' ' || text[length - 1] == ' ')
        return false;
    for (const char *p = text; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f || *p == '/')
            return false;
    return true;
}

/* Returns whether `text` is a valid value of the option. For an invalid value the library uses the default and the
 * launcher exits with an error. */
static inline bool sg_is_valid(enum sg_option option, const char *text)
{
    const struct sg_option_info *info = &sg_option_table[option];
    struct sg_size size;
    uint64_t nanoseconds;
    int64_t number;
    switch (info->kind) {
    case SG_KIND_SIZE:
        return sg_parse_size(text, &size) == 0;
    case SG_KIND_TIME:
        return sg_parse_time(text, &nanoseconds) == 0;
    case SG_KIND_CHOICE:
        return sg_parse_choice(text, info->example) >= 0;
    case SG_KIND_TEXT:
        return sg_is_name(text);
    case SG_KIND_PATH:
        return (text[0] == '/' || (option == SG_OPTION_HISTORY && strcmp(text, "off") == 0)) && strlen(text) < 1024;
    case SG_KIND_NUMBER:
        return sg_parse_number(text, &number) == 0 && number >= -1000 && number <= 1000;
    }
    return false;
}

/* Returns the unit that the user most probably forgot after a size, or '\0' for none. "64" means 64 bytes, which no one
 * can intend on any machine: `unit`, that of a good example, was meant. */
static inline char sg_unit_missing(const char *text, char unit)
{
    size_t digits = strspn(text, "0123456789");
    struct sg_size size;
    if (text[digits] != '\0' || sg_parse_size(text, &size) != 0 || size.bytes == 0)
        return '\0';
    if (size.bytes < 1024)
        return unit;
    return unit == 'G' && size.bytes < 65536 ? 'M' : '\0';
}

/* The same for an option, whose example has the unit. */
static inline char sg_missing_unit(enum sg_option option, const char *text)
{
    const struct sg_option_info *info = &sg_option_table[option];
    return info->kind == SG_KIND_SIZE ? sg_unit_missing(text, info->example[strlen(info->example) - 1]) : '\0';
}

/* Whether the value of an option is 0 where that is told to be read as none: of limit and reserve. Library, launcher
 * and both files judge by this function. */
static inline bool sg_is_told_zero(enum sg_option option, const char *text)
{
    return (option == SG_OPTION_LIMIT || option == SG_OPTION_RESERVE) && sg_is_zero(text);
}

/* Returns whether a size is a percentage above 100. */
static inline bool sg_is_beyond_all(const char *text)
{
    uint64_t milli;
    const char *unit = sg_parse_milli(text, &milli);
    return unit != NULL && strcmp(unit, "%") == 0 && milli > 100000;
}

/* Returns the Levenshtein distance between a and b; 64 if either is longer than 64 bytes. */
static inline unsigned sg_edit_distance(const char *a, const char *b)
{
    unsigned char row[65];
    size_t width = strlen(b);
    if (width > 64 || strlen(a) > 64)
        return 64;
    for (size_t j = 0; j <= width; j++)
        row[j] = (unsigned char)j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        unsigned char diagonal = row[0];
        row[0] = (unsigned char)i;
        for (size_t j = 1; j <= width; j++) {
            unsigned char change = (unsigned char)(diagonal + (a[i - 1] != b[j - 1]));
            unsigned char grow = (unsigned char)((row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1);
            diagonal = row[j];
            row[j] = change < grow ? change : grow;
        }
    }
    return row[width];
}

/* Returns the option whose environment variable is spelt most like `variable`; for docker's word, the limit. */
static inline enum sg_option sg_option_nearest(const char *variable)
{
    enum sg_option best = (enum sg_option)0;
    if (strncmp(variable, SG_VARIABLE_PREFIX "MEMORY", sizeof(SG_VARIABLE_PREFIX "MEMORY") - 1) == 0)
        return SG_OPTION_LIMIT;
    for (unsigned i = 1; i < SG_OPTION_COUNT; i++)
        if (sg_edit_distance(variable, sg_option_table[i].variable) <
            sg_edit_distance(variable, sg_option_table[best].variable))
            best = (enum sg_option)i;
    return best;
}

/* Formats bytes for people, rounded to the nearest tenth of a unit, or up with `is_up`. Returns the length of the text.
 */
static inline size_t sg_format_rounded(char text[16], uint64_t bytes, bool is_up)
{
    static const char units[] = "BKMGTPE";
    unsigned unit = 0;
    uint64_t tenths = bytes;
    if (bytes >= 1024) {
        /* Divide in integers and round once, so that 1023.95 KiB becomes 1.0 MiB and not 1024.0 KiB. */
        while (unit < 6 && (bytes >> (10 * unit)) >= 1024)
            unit++;
        uint64_t below = (UINT64_C(1) << (10 * (unit - 1))) - 1; /* what the division below drops */
        if (is_up && bytes <= UINT64_MAX - below)
            bytes += below;
        uint64_t whole = bytes >> (10 * unit);
        uint64_t rest = (bytes >> (10 * (unit - 1))) & 1023;
        tenths = whole * 10 + (rest * 10 + (is_up ? 1023 : 512)) / 1024;
        if (tenths >= 10240 && unit < 6) {
            tenths = 10;
            unit++;
        }
    }
    char digits[24];
    size_t n = 0, length = 0;
    uint64_t value = unit ? tenths / 10 : bytes;
    do
        digits[n++] = (char)('0' + value % 10);
    while ((value /= 10) != 0);
    while (n > 0)
        text[length++] = digits[--n];
    if (unit) {
        text[length++] = '.';
        text[length++] = (char)('0' + tenths % 10);
    }
    text[length++] = ' ';
    text[length++] = units[unit];
    if (unit) {
        text[length++] = 'i';
        text[length++] = 'B';
    }
    text[length] = '\0';
    return length;
}

/* Formats bytes for people: "12.0 GiB", "512.0 MiB", "640 B". Returns the length of the text. */
static inline size_t sg_format_size(char text[16], uint64_t bytes)
{
    return sg_format_rounded(text, bytes, false);
}

/* Formats bytes that must suffice: the text never stands for less. Returns its length. */
static inline size_t sg_format_size_up(char text[16], uint64_t bytes)
{
    return sg_format_rounded(text, bytes, true);
}

/* The same for a limit that must suffice where `limit_bytes` did not: the text differs from that of the old limit. */
static inline size_t sg_format_limit_up(char text[16], uint64_t bytes, uint64_t limit_bytes)
{
    char old[16];
    sg_format_size(old, limit_bytes);
    size_t length = sg_format_size_up(text, bytes);
    if (strcmp(text, old) == 0 && bytes >= 1024) { /* in a smaller unit */
        static const char units[] = "BKMGTPE";
        unsigned unit = (unsigned)(strchr(units, text[length - 3]) - units) - 1;
        uint64_t number = (bytes + (UINT64_C(1) << (10 * unit)) - 1) >> (10 * unit);
        char digits[24];
        size_t count = 0;
        for (length = 0; number != 0; number /= 10)
            digits[count++] = (char)('0' + number % 10);
        while (count > 0)
            text[length++] = digits[--count];
        text[length++] = ' ';
        text[length++] = units[unit];
        if (unit != 0) {
            text[length++] = 'i';
            text[length++] = 'B';
        }
        text[length] = '\0';
    }
    return length;
}

/* Returns the bytes that a size stands for. A percentage is taken of `base` bytes. */
static inline uint64_t sg_size_of(struct sg_size size, uint64_t base)
{
    if (size.percent_milli == 0)
        return size.bytes;
    return base / 100000 * size.percent_milli + base % 100000 * size.percent_milli / 100000;
}

/* Returns the FNV-1a hash of a text, 64 bits wide. */
static inline uint64_t sg_hash_text(const char *text)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return hash;
}

/* Returns the identity of a job. A job belongs to its user: one name of two users means two jobs. A name that begins
 * with "@" means one job of all users of the directory. */
static inline uint64_t sg_job_hash(const char *name, uint32_t user)
{
    uint64_t hash = sg_hash_text(name);
    for (int i = 0; name[0] != '@' && i < 4; i++)
        hash = (hash ^ (user >> 8 * i & 0xff)) * UINT64_C(0x100000001b3);
    return hash;
}

#endif
