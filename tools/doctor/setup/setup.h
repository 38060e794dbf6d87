/*
 * setup.h - the parts of sparkguard-doctor --setup: prints one shell script that guards the whole machine, and from the
 * list that this script leaves in SETUP_STATE another that takes all of it back. Neither is run here.
 *
 * What is computed here is in the script as a here-document, with the checksum of the file that it was computed from: a
 * file that has changed since is left as it is. Paths in scripts have no blank or quote. Single-threaded.
 */
#ifndef SG_TOOLS_DOCTOR_SETUP_SETUP_H
#define SG_TOOLS_DOCTOR_SETUP_SETUP_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "doctor/doctor.h"

/* Exit codes: the script does all of it; something is left out that a person must decide; there is no script. */
enum { SETUP_WHOLE = 0, SETUP_PARTIAL = 1, SETUP_NONE = 3 };

/* Not below /var/lib/sparkguard: members of the group can write there, and root acts on this list. */
#define SETUP_STATE "/var/lib/sparkguard-setup"
#define SETUP_SHARED "/run/sparkguard/shared"
#define SETUP_HISTORY "/var/lib/sparkguard"
#define SETUP_CONFIGURATION "/etc/sparkguard/runtime.conf"
#define SETUP_WRAPPERS "/usr/local/lib/sparkguard"
#define SETUP_DAEMON_JSON "/etc/docker/daemon.json"
#define SETUP_BLOCK_BEGIN "# sparkguard-doctor --setup: begin"
#define SETUP_BLOCK_END "# sparkguard-doctor --setup: end"

struct setup {
    struct doctor *doctor;
    FILE *stream;
    char *library;  /* without the root, as all paths here */
    char *runtime;  /* sparkguard-runtime; NULL: not installed */
    char *manifest; /* the text of an earlier set-up's list, "" if there is none */
    unsigned left;  /* things that a person must decide */
};

/* setup.c: print the scripts. Return an exit code. */
int setup_print(struct doctor *doctor, FILE *stream);
/* undo.c */
int setup_print_undo(struct doctor *doctor, FILE *stream);
/* cdi.c: prints a CDI specification for this machine's library and shared directory. */
int setup_print_cdi(struct doctor *doctor, FILE *stream);

/* find.c: finds programs and files below the root. */
enum setup_file { SETUP_ABSENT, SETUP_READ, SETUP_ODD, SETUP_UNREADABLE };
/* Reads a whole file of at most 1 MiB. *text is NUL-terminated and the caller's to free, NULL unless SETUP_READ.
 * SETUP_ODD: a symbolic link, no regular file, or larger. */
enum setup_file setup_read(const struct doctor *doctor, const char *path, char **text, size_t *length);
/* Returns the path of a program in the usual folders, NULL if in none. A name with a slash is its own path. */
char *setup_find_program(const struct doctor *doctor, const char *name);
/* Returns whether a program is sparkguard-runtime, one of the set-up's wrappers, or a script that names the former: behind
 * a wrapper it would call itself for ever. */
bool setup_is_own(const struct doctor *doctor, const char *path);
/* Returns the path of the library, or NULL after a message on stderr: not there, or not root's alone to replace. */
char *setup_find_library(const struct doctor *doctor);
/* Returns the path of sparkguard-runtime, or NULL. */
char *setup_find_runtime(const struct doctor *doctor);
/* The sum that cksum(1) prints, as "CRC:LENGTH". */
enum { SETUP_SUM_CAPACITY = 32 };
const char *setup_sum(char sum[SETUP_SUM_CAPACITY], const char *bytes, size_t length);

/* step.c: print one step of the script. */
/* Cuts our own block out of a text, in place. */
void setup_cut_block(char *text);
/* A comment of one paragraph. */
void setup_comment(const struct setup *setup, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A step that says what is left for a person to do. */
void setup_leave(struct setup *setup, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A whole file of ours. Where another one of that name is, or ours was edited, it is left. Returns whether the script
 * writes it. */
bool setup_put(struct setup *setup, const char *path, const char *mode, const char *content);
/* A file of JSON with our part merged in; `before` is its present text, NULL where there is none. */
void setup_put_json(struct setup *setup, const char *path, const char *before, const char *content);
/* A block of lines in a text file that may have others. */
void setup_add(const struct setup *setup, const char *path, const char *block);
/* A here-document, begun by "<<'...'" behind what was printed of the line. */
void setup_document(FILE *stream, const char *content);
/* Prints a word in single quotes. */
void setup_quote(FILE *stream, const char *word);
/* Returns the text of a JSON file, indented as the example is. The caller frees. */
char *setup_json_text(const json_t *json, const char *example);

/* wrap.c */
/* Returns the OCI runtime behind a wrapper that an earlier set-up made, NULL if there is none. */
char *setup_wrapped(const struct setup *setup, const char *engine);
/* Prints a wrapper that calls sparkguard-runtime, or `next` where that is gone. Returns false if the file is left as it
 * is. Else the script's steps up to setup_wrap_end() are done only where the wrapper can be executed: an engine that
 * names a wrapper which is not there starts no container. */
bool setup_wrap(struct setup *setup, const char *engine, const char *next);
void setup_wrap_end(const struct setup *setup, const char *engine);

/* engines.c: Docker, Podman, containerd. */
void setup_engines(struct setup *setup);
/* docker.c: parses daemon.json. Returns the object, or NULL with the fault, a sentence's end that the caller frees. */
json_t *setup_docker_parse(const char *text, char **fault);
char *setup_docker(struct setup *setup); /* each: the runtime it had so far, NULL where nothing is set up */
char *setup_podman(struct setup *setup);
char *setup_containerd(struct setup *setup);
/* Returns daemon.json without our part, NULL if nothing else was in it. `before`: as it was before the set-up. */
json_t *setup_docker_without(json_t *now, const json_t *before);

/* logins.c: logins, user services, services. */
void setup_logins(struct setup *setup);
void setup_units(struct setup *setup);

/* script.c: the parts of the scripts that are always the same. */
extern const char setup_script_common[]; /* behind the begin, before the functions */
extern const char setup_script_begin[], setup_script_functions[], setup_script_people[], setup_script_end[];
extern const char setup_undo_begin[], setup_undo_functions[], setup_undo_end[];

#endif
