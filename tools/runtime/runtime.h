/*
 * runtime.h - the parts of sparkguard-runtime(8): arguments, settings, document, image, shared and own
 * directory, edit, name, record, log. Single-threaded. The tool runs for milliseconds, so what it allocates once it
 * does not free.
 *
 * Nothing here prints or exits, but for main.c: whatever fails, the caller executes the next runtime.
 */
#ifndef SG_TOOLS_RUNTIME_RUNTIME_H
#define SG_TOOLS_RUNTIME_RUNTIME_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/* Places in a container, part of the user interface. */
#define RUNTIME_FOLDER_INSIDE "/run/sparkguard"
#define RUNTIME_LIBRARY_INSIDE RUNTIME_FOLDER_INSIDE "/libsparkguard.so"
#define RUNTIME_OWN_INSIDE RUNTIME_FOLDER_INSIDE "/own"
#define RUNTIME_SHARED_INSIDE RUNTIME_FOLDER_INSIDE "/shared"

/* What a container's own directory can hold: a registry of 1 MiB, and records of 40 to 600 KiB for each of its
 * processes. */
#define RUNTIME_OWN_SIZE "size=32m,nr_inodes=4096"
#define RUNTIME_SHARED_SIZE "size=64m,nr_inodes=8192"

/* Annotations, part of the user interface. */
#define RUNTIME_ANNOTATION_OFF "sparkguard"
#define RUNTIME_ANNOTATION_LIMIT "sparkguard.limit"
#define RUNTIME_ANNOTATION_SHARE "sparkguard.share"
#define RUNTIME_ANNOTATION_REQUIRED "sparkguard.required"
#define RUNTIME_ANNOTATION_GUARDED "sparkguard.guarded"

/* ---- arguments.c: what the engine asks for ---- */

enum runtime_command { RUNTIME_OTHER, RUNTIME_UNKNOWN, RUNTIME_CREATE, RUNTIME_EXEC, RUNTIME_DELETE };

struct runtime_arguments {
    int count;
    char *const *words;
    enum runtime_command command; /* RUNTIME_CREATE also for run and restore */
    const char *command_word;     /* NULL: none */
    const char *bundle;           /* --bundle; "." by default */
    const char *config;           /* crun's --config; "config.json" by default */
    const char *id;               /* NULL: none */
    int id_at;                    /* its place in `words` */
    const char *process_file;     /* exec --process; NULL: the command line names the program */
    json_t *variables;            /* exec --env: an object with "env", as a process has it; NULL: none */
    const char *root;             /* --root; NULL: the next runtime's own */
    const char *log;              /* --log; NULL: none */
    bool is_log_json;             /* --log-format=json */
    bool is_forced;               /* delete --force */
};

/* Reads the arguments as runc(8) and crun(1) do. Behind a global option that it does not know, which may or may not
 * have its value in the next word, the command is RUNTIME_UNKNOWN where that word is none that it knows. */
void runtime_arguments_read(struct runtime_arguments *arguments, int count, char *const *words);

/* ---- settings.c: runtime.conf and the environment ---- */

struct runtime_settings {
    char *next;         /* path of the next runtime; NULL: there is none */
    const char *itself; /* a next runtime that was named and is this tool or calls it; NULL: none */
    char *library;      /* of the host */
    char *shared;       /* of the host: for containers that share */
    char *containers;   /* of the host: records and own directories of containers; the file does not name it */
    char *history;      /* of the host: where records of ended containers are kept; NULL: nowhere */
    char *log;
    char *wrong;      /* a line of the file that was not understood; NULL: none */
    const char *conf; /* the file's path */
    bool is_required; /* by the administrator */
    bool may_share;   /* with the host, if a container's annotation asks for it */
    bool is_preload_last;
    bool is_rootless; /* this process is not the host's root */
    uid_t host_uid;   /* of this process, outside of its user namespace */
};

/* Reads the file and finds the next runtime: all that a command needs that is passed on as it is. */
void runtime_settings_read_next(struct runtime_settings *settings);
/* Finds the user, and the places that the file does not name. */
void runtime_settings_read_places(struct runtime_settings *settings);
/* Adds the next runtime to the environment: where it calls this tool again and again, another one is found. */
void runtime_settings_note_next(const struct runtime_settings *settings);

/* ---- document.c: a JSON file that is changed in place ---- */

struct runtime_document {
    char *path; /* without symbolic links */
    json_t *root;
    struct stat status;
    char mark[32]; /* what a string begins with that stands for a number */
};

/* Reads a JSON object. Numbers become strings that begin with the mark, so that they keep their text: jansson's have 64
 * bits. Returns NULL, or why it was not read. */
const char *runtime_document_read(struct runtime_document *document, const char *path);
/* Replaces the file by the changed document, with the same owner and mode; all of it or nothing. Returns NULL or why
 * not. */
const char *runtime_document_write(struct runtime_document *document);
/* Reads a whole number from 0 to UINT32_MAX, of the file or of json_integer(). Returns false if `value` is none. */
bool runtime_document_number(const struct runtime_document *document, const json_t *value, uint32_t *number);
/* Stores in *mapped what an id of the runtime's is in the container, by the document's list "uidMappings" or
 * "gidMappings"; if `is_inside`, what an id of the container's is for the runtime. Without mappings that is the id
 * itself. Returns false if there are mappings and none has it. */
bool runtime_document_map_id(const struct runtime_document *document, const char *list, uint32_t id, bool is_inside,
                             uint32_t *mapped);
/* Returns whether the document has mappings of that list. */
bool runtime_document_has_mappings(const struct runtime_document *document, const char *list);

/* ---- image.c: files as the container will see them ---- */

struct runtime_mount {
    char destination[PATH_MAX]; /* absolute, without a slash at its end */
    char source[PATH_MAX];
    bool is_bind, is_read_only;
    bool is_tmpfs;
};

struct runtime_image {
    int root; /* O_PATH */
    struct runtime_mount *mounts;
    size_t count;
};

/* Opens the root file system that a configuration names. Returns false if it cannot be opened. */
bool runtime_image_open(struct runtime_image *image, const json_t *config, const char *bundle);
void runtime_image_close(struct runtime_image *image);
/* Opens a path inside with O_PATH. No symbolic link leads out of the container. `real` becomes the path without links.
 * Returns
 * -1 with errno. */
int runtime_image_walk(const struct runtime_image *image, const char *path, char real[PATH_MAX]);
/* The same for reading a regular file. Other files are not opened: that could have an effect. */
int runtime_image_read(const struct runtime_image *image, const char *path, char real[PATH_MAX], struct stat *status);
/* Returns the mount that a path without links lies on; NULL: the root file system. */
const struct runtime_mount *runtime_image_mount_of(const struct runtime_image *image, const char *path);

/* ---- program.c: whether the library can be preloaded there ---- */

/* Returns why a guard that LD_PRELOAD names and that is not this runtime's cannot be loaded; NULL if there is none
 * such, or it can. */
char *runtime_program_guard_obstacle(const struct runtime_image *image, const json_t *process, const char *library);
/* Returns why the program of `process` cannot be guarded; NULL if it can. */
char *runtime_program_obstacle(const struct runtime_image *image, const json_t *process, const char *library);

/* ---- shared.c: the shared directory ---- */

/* How a container's process may use the shared directory. */
struct runtime_sharing {
    bool is_usable;
    bool needs_group;
    uint32_t group;  /* inside */
    const char *why; /* its process does not get the group; NULL: it does, or needs it not */
};

/* Mounts a tmpfs on a directory, nosuid, nodev and noexec. Returns whether it could. */
bool runtime_shared_mount(const char *path, const char *options);
/* Makes the shared directory if it is not there. Returns NULL or why it cannot be used by anybody. */
const char *runtime_shared_prepare(const struct runtime_settings *settings, struct stat *status);
/* Decides whether a process may use a directory with this status, by the library's own rules. */
struct runtime_sharing runtime_shared_judge(const struct runtime_settings *settings, const struct stat *status,
                                            const struct runtime_document *config, const json_t *user);
/* Returns whether the container has a namespace of a type, or if `joins` whether it joins one that is there already:
 * the ids of a user namespace are then not in the configuration. */
bool runtime_shared_has_namespace(const json_t *config, const char *type, bool joins);

/* ---- own.c: a container's own directory ---- */

/* Takes the lock of those who make such directories: the containers of a pod that begin at once then make one of them.
 * Nobody but this user can open it, and one that is held for 2 s is not waited for. Returns a descriptor to close, or
 * -1. */
int runtime_own_lock(const char *containers);

/* Makes CONTAINERS/ID for the container's user: with root a tmpfs of RUNTIME_OWN_SIZE, and below $XDG_RUNTIME_DIR a
 * folder. Returns its path; NULL: it cannot be had on the host. */
char *runtime_own_prepare(const struct runtime_settings *settings, const struct runtime_document *config,
                          const json_t *user, const char *id);
/* The same for a pod, whose containers share one directory: CONTAINERS/POD, of the user whose container was the first.
 * NULL also if that is another user. */
char *runtime_own_of_pod(const struct runtime_settings *settings, const struct runtime_document *config,
                         const json_t *user, const char *pod);
/* Makes the file in such a directory by which its processes tell the host what they have promised, mounts it in
 * CONTAINERS/../promises, and writes beside it the cgroup and the name of the container or pod. Returns whether it
 * could. */
bool runtime_own_publish(const struct runtime_settings *settings, const char *own, const char *cgroup,
                         const char *name);
/* Takes that of a container without a record away. */
void runtime_own_unpublish(const char *containers, const char *id);
/* Copies the records in CONTAINERS/ID to HISTORY/ID, if the administrator has named a history: what a container that
 * has ended can have put there is bounded, and so is the number of containers. */
void runtime_own_keep(const struct runtime_settings *settings, const char *id);
/* Removes the directories of containers without a record, but for the 16 that ended last, and what they published. */
void runtime_own_sweep(const char *containers);

/* ---- edit.c: what is changed in a configuration ---- */

/* Returns the value of the last entry of a variable in `process`; NULL: none. */
const char *runtime_edit_variable(const json_t *process, const char *name);
/* Sets a variable in `process`. */
void runtime_edit_set_variable(json_t *process, const char *name, const char *value);
/* Adds the library to LD_PRELOAD of `process`, and SG_VARIABLE_COMMIT to its variables. What is there stays as it
 * is. */
void runtime_edit_preload(json_t *process, bool is_last);
/* Returns whether LD_PRELOAD names a libsparkguard.so that is not this runtime's. */
bool runtime_edit_has_own_guard(const json_t *process);
/* Returns the first entry of LD_PRELOAD that names a libsparkguard.so; "" if none does. */
char *runtime_edit_own_guard(const json_t *process);
void runtime_edit_add_group(json_t *process, const struct runtime_document *document, uint32_t group);
/* Returns why the library, `file` of the host, or the directory `inside` has no place to be mounted at; NULL if both
 * have. */
char *runtime_edit_mount_obstacle(const struct runtime_image *image, const struct runtime_document *config,
                                  const char *file, const char *inside);
/* Mounts the library, and at `inside` a directory: `source` of the host, or if it is NULL a tmpfs with `options`. */
void runtime_edit_add_mounts(json_t *config, const char *library, const char *inside, const char *source,
                             const char *options);
/* Takes the mounts out that an earlier call of this runtime added. */
void runtime_edit_take_mounts_back(json_t *config);
/* Takes the mounts, the library in LD_PRELOAD and the directory out that an earlier call of this runtime added. */
void runtime_edit_take_back(json_t *config);
/* Returns an annotation; NULL: there is none. */
const char *runtime_edit_annotation(const json_t *config, const char *name);
void runtime_edit_annotate(json_t *config, const char *name, const char *value);

/* ---- name.c ---- */

/* Returns the container's name as its engine knows it, else its id; a name that SPARKGUARD_JOB can have. */
char *runtime_name_find(const json_t *config, const char *bundle, const char *id);

/* ---- record.c: CONTAINERS/ID.json, for sparkguard-report on the host ---- */

struct runtime_record {
    const char *id, *name, *bundle;
    const char *reason; /* NULL: guarded */
    const char *state;  /* the folder that the next runtime keeps while the container exists; NULL: unknown */
    char *cgroup;       /* NULL: unknown */
};

/* Opens the folder of records, and makes it and the one above it if they are not there. Returns -1 if it is missing or
 * not this user's alone. */
int runtime_record_open_folder(const char *containers);
/* Returns whether an id can be the name of a directory beside the records: no path, and not a record's own name. */
bool runtime_record_is_name(const char *id);
/* Returns whether there is a record of another engine's container with the same id, or of one that runs. `state` as in
 * struct runtime_record. */
bool runtime_record_is_anothers(const char *containers, const char *id, const char *state);
/* Returns NULL, or why the record was not written. Removes records of containers that are gone. */
const char *runtime_record_write(const char *containers, const struct runtime_record *record);
/* Removes the record of a container that is about to be deleted. While its first process runs, only a deletion by force
 * succeeds: without force the record stays, and a later runtime_record_write() removes it. A record of another state
 * folder is that of another engine's container with the same id, and stays; `state` NULL: unknown. */
void runtime_record_remove(const char *containers, const char *id, const char *state, bool is_forced);
/* Returns the bundle of a container that this runtime started; NULL: there is no record with this state folder. */
char *runtime_record_bundle(const char *containers, const char *id, const char *state);
/* Returns the cgroup's path from linux.cgroupsPath; NULL: it cannot be told. */
char *runtime_record_cgroup(const json_t *config, bool is_rootless);

/* ---- log.c ---- */

/* Adds a line to the runtime's own log. A log that cannot be written is not written. */
void runtime_log_add(const struct runtime_settings *settings, const struct runtime_arguments *arguments,
                     const char *text);
/* Adds an error to the file of the engine's --log, by which engines tell why a container was not started. */
void runtime_log_tell_engine(const struct runtime_arguments *arguments, const char *text);

/* ---- container.c: the commands ---- */

/* Prepares the bundle of create, run and restore. Returns NULL or why the container would run unguarded. *is_required:
 * it must then not be started; set as soon as it is known, for a signal handler. */
char *runtime_container_create(const struct runtime_settings *settings, const struct runtime_arguments *arguments,
                               bool *is_required);
/* Prepares the process file of exec, or else its command line: *words becomes another one where that names variables.
 * Returns NULL or why the process would run unguarded. *is_required: as for runtime_container_create(). */
char *runtime_container_exec(const struct runtime_settings *settings, const struct runtime_arguments *arguments,
                             char ***words, bool *is_required);
/* Removes the record of a container that the next runtime is about to delete. */
void runtime_container_delete(const struct runtime_settings *settings, const struct runtime_arguments *arguments);

#endif
