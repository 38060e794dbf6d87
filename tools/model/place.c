/*
 * place.c - finds the container of each process: of a running one by its cgroup, of an ended one by its record.
 */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "common/text.h"
#include "model/host/host.h"
#include "model/model.h"

/* Returns the name for what the record says. A host name that is this machine's own says nothing. */
static char *container_by_record(const struct model *model, const struct model_process *process)
{
    char host[256] = "";
    if (process->container_note[0] == '\0')
        return NULL;
    if (gethostname(host, sizeof host - 1) == 0 && strncmp(host, process->container_note, SG_CONTAINER_BYTES) == 0)
        return NULL;
    return host_container_name(&model->containers, process->container_note);
}

static void fill_container(const struct model *model, struct model_process *process)
{
    const struct host_container *record;
    char *id = process->host_pid != 0 ? host_container_id(&model->containers, process->host_pid, &record) : NULL;
    process->container = id != NULL ? host_container_name(&model->containers, id) : container_by_record(model, process);
}

/* Reads the records beside a directory: of RECORDS/ID those in RECORDS, of another one those in the folder `containers`
 * in it, where a user's runtime keeps them, or beside it. */
static void read_records_of(struct model *model, const struct model_directory *directory)
{
    const char *slash = strrchr(directory->path, '/');
    char *inside = text_format("%s/containers", directory->path);
    char *above = slash != NULL ? text_copy(directory->path, (size_t)(slash - directory->path)) : NULL;
    char *beside = above != NULL ? text_format("%s/containers", above) : NULL;
    host_containers_read(&model->containers, inside, directory->owner);
    if (above != NULL) {
        const char *name = strrchr(above, '/');
        bool is_records = name != NULL && strcmp(name, "/containers") == 0;
        host_containers_read(&model->containers, is_records ? above : beside, geteuid());
    }
}

void model_places_fill(struct model *model)
{
    struct model_job *job;
    struct model_process *process;
    for (size_t i = 0; i < model->directory_count; i++)
        if (model->directories[i].error == 0)
            read_records_of(model, &model->directories[i]);
    for (size_t i = 0; i < MODEL_RECORDS; i++) {
        char *path = model_records_folder(i);
        if (path != NULL)
            host_containers_read(&model->containers, path, geteuid());
    }
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process)
            fill_container(model, process);
}

uint32_t model_process_number(const struct model_process *process)
{
    return process->host_pid != 0 ? process->host_pid : process->pid;
}

char *model_process_name(const struct model_process *process)
{
    bool is_known = process->host_pid != 0 || host_is_own_namespace(process->pid_namespace);
    return text_format("%" PRIu32 "%s", model_process_number(process), is_known ? "" : " of its PID namespace");
}

/* Appends a piece after a comma. */
static char *append_piece(const char *text, char *piece)
{
    return text == NULL ? piece : text_format("%s, %s", text, piece);
}

/* Returns the first process of the last run that has another container than those before it, after `process`. */
static const struct model_process *next_place(const struct model_job *job, const struct model_process *after)
{
    const struct model_process *process, *before;
    for (process = after != NULL ? after->next : job->processes; process != NULL; process = process->next) {
        bool is_new = process->run == job->run_count - 1 && process->container != NULL;
        for (before = job->processes; is_new && before != process; before = before->next)
            is_new = before->run != process->run || before->container == NULL ||
                     strcmp(before->container, process->container) != 0;
        if (is_new)
            return process;
    }
    return NULL;
}

char *model_job_place(const struct model_job *job, bool is_utf8)
{
    enum { PLACES_SHOWN = 3 };
    char *text = NULL;
    size_t count = 0;
    const struct model_process *first = next_place(job, NULL), *process;
    bool is_said = first != NULL && next_place(job, first) == NULL && strcmp(first->container, job->name) == 0;
    for (process = first; !is_said && process != NULL; process = next_place(job, process))
        if (count++ < PLACES_SHOWN) {
            char *name = text_printable(process->container, is_utf8);
            text = append_piece(text, text_format("container %s", name));
        }
    if (count > PLACES_SHOWN)
        text = append_piece(text, text_format("%zu more containers", count - PLACES_SHOWN));
    DL_FOREACH (job->processes, process)
        if (process->run == job->run_count - 1 && process->user != geteuid()) {
            char *user = host_user_name(process->user), *name = text_printable(user, is_utf8);
            text = append_piece(text, text_format("user %s", name));
            break;
        }
    return text;
}
