/*
 * log.c - see runtime.h. The runtime's own log, because stderr and the engine's --log are the next runtime's output.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/json.h"
#include "common/text.h"
#include "common/tool.h"
#include "runtime/runtime.h"

enum { LOG_MAX = 1 << 20 };

static void put(int fd, const char *line)
{
    if (write(fd, line, strlen(line)) < 0) /* a full disk: nothing is to be done about it */
        return;
}

void runtime_log_add(const struct runtime_settings *settings, const struct runtime_arguments *arguments,
                     const char *text)
{
    struct stat status;
    int fd = open(settings->log, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0640);
    if (fd < 0)
        return;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
        if (status.st_size > LOG_MAX) /* the last mebibyte is enough, and one before it */
            (void)rename(settings->log, text_format("%s.1", settings->log));
        char *printable = text_printable(text, true),
             *id = text_printable(arguments->id != NULL ? arguments->id : "-", true);
        put(fd, text_format("%s %s: %s\n", text_time_rfc3339(tool_now_ns()), id, printable));
    }
    close(fd);
}

void runtime_log_tell_engine(const struct runtime_arguments *arguments, const char *text)
{
    char *line = NULL;
    if (arguments->log == NULL)
        return;
    int fd = open(arguments->log, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644);
    if (fd < 0)
        return;
    const char *now = text_time_rfc3339(tool_now_ns());
    json_t *root = json_object();
    json_object_set_new(root, "level", json_of_text("error"));
    json_object_set_new(root, "msg", json_of_text(text));
    json_object_set_new(root, "time", json_of_text(now));
    char *dumped = json_dumps(root, JSON_COMPACT);
    char *quoted = json_dumps(json_object_get(root, "msg"), JSON_ENCODE_ANY);
    line = arguments->is_log_json ? text_format("%s\n", dumped)
                                  : text_format("time=\"%s\" level=error msg=%s\n", now, quoted);
    put(fd, line);
    close(fd);
}
