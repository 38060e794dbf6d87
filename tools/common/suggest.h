/*
 * suggest.h - the word that was nearly written: an option, or one of a list.
 */
#ifndef SG_TOOLS_COMMON_SUGGEST_H
#define SG_TOOLS_COMMON_SUGGEST_H

#include <argp.h>
#include <stddef.h>

/* Prints "TOOL: did you mean --NAME?" on stderr for the first argument that is no option of the parser or of its
 * children, if a name differs from it in at most two letters, or was written with one dash. Call it after argp_parse()
 * has failed: getopt(3) has then printed the reason. `flags` are those of argp_parse(). */
void suggest_option(const char *tool, const struct argp *parser, unsigned flags, char **argv);

/* Returns the word of `words` that differs from `word` in the fewest letters, at most two; NULL if none does. */
const char *suggest_word(const char *word, const char *const *words, size_t count);

#endif
