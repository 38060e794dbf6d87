/*
 * fix_script.c - prints the fixes as a shell script to read and run. Each step has the finding, what the step does and
 * how to undo it. Findings that need a decision are comments.
 *
 * Commands contain no text from outside. Sentences may, so they are printed as comments and escaped, so that none
 * leaves its line. With SPARKGUARD_SYSTEM_ROOT the script works on a tree of files: it writes files and prints commands
 * instead of running them.
 */
#include <string.h>

#include "doctor/doctor.h"
#include "sparkguard_abi.h"
#include "common/text.h"

static const char begin[] =
    "#!/bin/sh\n"
    "# Made by sparkguard-doctor " SG_VERSION_TEXT ". Read it, take out what you do not want, run it as root.\n"
    "# Each file that it replaces is kept beside it as FILE.sparkguard, as it was before the first time.\n"
    "set -eu\n"
    "\n"
    "failed=\n"
    "root=${SPARKGUARD_SYSTEM_ROOT:-}  # a tree of files to try it on: commands are only named there\n"
    "[ \"$root\" != / ] || root=\n"
    "if [ -z \"$root\" ] && [ \"$(id -u)\" -ne 0 ]; then\n"
    "    echo 'run this as root: sudo sh FILE' >&2\n"
    "    exit 1\n"
    "fi\n";

/* Only the helpers that the steps use are printed, because shellcheck reports unused functions. */
static const struct helper {
    const char *word, *text;
} helpers[] = {
    {"say ", "\nsay() { printf '%s\\n' \"$*\"; }\n"},
    {"act ", "\nact() {\n"
             "    if [ -n \"$root\" ]; then\n"
             "        echo \"not run below $root: $*\"\n"
             "    else\n"
             "        \"$@\" || failed=\"$failed$* (exit $?); \"\n"
             "    fi\n"
             "}\n"},
    {"keep ", "\nkeep() {\n"
              "    [ ! -e \"$root$1\" ] || [ -e \"$root$1.sparkguard\" ] || cp -p \"$root$1\" \"$root$1.sparkguard\"\n"
              "}\n"},
    {"put ", "\nput() { # TEXT FILE; a file of /proc or /sys is a switch, any other is kept\n"
             "    case $2 in\n"
             "    /proc/* | /sys/*)\n"
             "        [ -w \"$root$2\" ] || { failed=\"$failed$2 is not there to write to; \"; return; }\n"
             "        ;;\n"
             "    *)\n"
             "        mkdir -p \"$root${2%/*}\"\n"
             "        keep \"$2\"\n"
             "        ;;\n"
             "    esac\n"
             "    printf '%s\\n' \"$1\" >\"$root$2\" || failed=\"$failed$2 was not written; \"\n"
             "}\n"},
};

/* Returns whether an earlier finding has printed the same step. */
static bool is_repeated(const struct doctor *doctor, size_t place)
{
    for (size_t i = 0; i < place; i++)
        if (doctor->findings.at[i].script != NULL && strcmp(doctor->findings.at[i].script, doctor->findings.at[place].script) == 0)
            return true;
    return false;
}

static bool uses(const struct doctor *doctor, const char *word)
{
    for (size_t i = 0; i < doctor->findings.count; i++) {
        const char *script = doctor->findings.at[i].script;
        if (script == NULL)
            continue;
        for (const char *at = strstr(script, word); at != NULL; at = strstr(at + 1, word))
            if (at == script || at[-1] == '\n' || at[-1] == ' ')
                return true;
    }
    return false;
}

static void put_comment(FILE *stream, const char *label, const char *text)
{
    const struct style style = {.stream = stream, .columns = 100, .is_terminal = false};
    char *printable = text_printable(text, false);
    fprintf(stream, "# %s", label);
    style_words(&style, 0, STYLE_PLAIN, printable);
}

static void put_step(const struct doctor *doctor, size_t place, FILE *stream)
{
    const struct finding *finding = &doctor->findings.at[place];
    fprintf(stream, "\n# ---- %s: %s\n", doctor_state_name[finding->state], finding->id);
    put_comment(stream, "", finding->sentence);
    put_comment(stream, "Why: ", finding->why);
    if (finding->script == NULL) {
        put_comment(stream, "For you to decide: ", finding->fix != NULL ? finding->fix : "no command fixes it");
    } else if (is_repeated(doctor, place)) {
        fputs("# Fixed above.\n", stream);
    } else {
        put_comment(stream, "Undo: ", finding->undo);
        fputs(finding->script, stream);
    }
}

void doctor_render_script(const struct doctor *doctor, FILE *stream)
{
    bool has_put = uses(doctor, "put ");
    fputs(begin, stream);
    for (size_t i = 0; i < sizeof helpers / sizeof helpers[0]; i++)
        if (uses(doctor, helpers[i].word) || (has_put && strcmp(helpers[i].word, "keep ") == 0))
            fputs(helpers[i].text, stream);
    for (size_t i = 0; i < doctor->findings.count; i++)
        if (doctor->findings.at[i].state != FINDING_FINE)
            put_step(doctor, i, stream);
    fputs("\nif [ -n \"$failed\" ]; then\n    echo \"not done: $failed\" >&2\n    exit 1\nfi\n"
          "echo 'done; sparkguard-doctor says what is left'\n",
          stream);
}
