/*
 * fix_script.c - prints the fixes as a shell script to read and run, from the blocks of fix_script.sh. Each step has
 * the finding, what the step does and how to undo it. Findings that need a decision are comments.
 *
 * Commands contain no text from outside. Sentences may, so they are printed as comments and escaped, so that none
 * leaves its line. With SPARKGUARD_SYSTEM_ROOT the script works on a tree of files: it writes files and prints commands
 * instead of running them.
 */
#include <string.h>

#include "doctor/doctor.h"
#include "common/text.h"

#define STEP "# step "

/* Its blocks are set apart by empty lines: the beginning, functions, steps by their names, and the end. */
static const char frame[] =
#include "fix_script.sh.inc"
    ;

static size_t block_length(const char *block)
{
    const char *end = strstr(block, "\n\n");
    return end != NULL ? (size_t)(end - block) + 1 : strlen(block);
}

static const char *next_block(const char *block)
{
    const char *next = block + block_length(block);
    return *next != '\0' ? next + 1 : NULL;
}

/* Returns the block of a finding's step, without its first line, the word in place of each '@'. NULL: not automated. */
static char *step_text(const struct finding *finding)
{
    for (const char *block = frame; block != NULL && finding->step != NULL; block = next_block(block)) {
        size_t name = strlen(finding->step);
        const char *at = block + sizeof STEP - 1;
        if (strncmp(block, STEP, sizeof STEP - 1) != 0 || strncmp(at, finding->step, name) != 0 || at[name] != '\n')
            continue;
        char *rest = text_copy(at + name + 1, block_length(block) - (sizeof STEP + name));
        const char *text = "", *piece = strsep(&rest, "@");
        for (; rest != NULL; piece = strsep(&rest, "@"))
            text = text_format("%s%s%s", text, piece, finding->step_word);
        return text_format("%s%s", text, piece);
    }
    return NULL;
}

/* Returns whether an earlier finding has printed the same step. */
static bool is_repeated(const struct findings *findings, size_t place)
{
    for (size_t i = 0; i < place; i++) {
        const char *step = step_text(&findings->at[i]);
        if (step != NULL && strcmp(step, step_text(&findings->at[place])) == 0)
            return true;
    }
    return false;
}

static bool uses(const struct findings *findings, const char *word)
{
    for (size_t i = 0; i < findings->count; i++) {
        const char *step = step_text(&findings->at[i]);
        for (const char *at = step; at != NULL && (at = strstr(at, word)) != NULL; at++)
            if (at[-1] == '\n' || at[-1] == ' ')
                return true;
    }
    return false;
}

/* Returns whether a block is printed. Of the functions those that the steps use, because shellcheck reports others. */
static bool is_wanted(const struct findings *findings, const char *block)
{
    size_t length = strcspn(block, "(\n");
    if (block[length] != '(')
        return strncmp(block, STEP, sizeof STEP - 1) != 0;
    const char *word = text_format("%.*s ", (int)length, block);
    return uses(findings, word) || (strcmp(word, "keep ") == 0 && uses(findings, "put "));
}

static void put_comment(FILE *stream, const char *label, const char *text)
{
    const struct style style = {.stream = stream, .columns = 100, .is_terminal = false};
    char *printable = text_printable(text, false);
    fprintf(stream, "# %s", label);
    style_words(&style, 0, STYLE_PLAIN, printable);
}

static void put_step(const struct findings *findings, size_t place, FILE *stream)
{
    const struct finding *finding = &findings->at[place];
    const char *step = step_text(finding);
    fprintf(stream, "\n# ---- %s: %s\n", doctor_state_name[finding->state], finding->id);
    put_comment(stream, "", finding->sentence);
    put_comment(stream, "Why: ", finding->why);
    if (step == NULL)
        put_comment(stream, "For you to decide: ", finding->fix != NULL ? finding->fix : "no command fixes it");
    else
        fputs(is_repeated(findings, place) ? "# Fixed above.\n" : step, stream);
}

void doctor_render_script(const struct doctor *doctor, FILE *stream)
{
    const struct findings *findings = &doctor->findings;
    for (const char *block = frame; block != NULL; block = next_block(block)) {
        for (size_t i = 0; i < findings->count && next_block(block) == NULL; i++)
            if (findings->at[i].state != FINDING_FINE)
                put_step(findings, i, stream);
        if (is_wanted(findings, block))
            fprintf(stream, "%s%.*s", block == frame ? "" : "\n", (int)block_length(block), block);
    }
}
