/*
 * toml.h - reads single values of a TOML file, line by line: enough for the settings of container engines.
 *
 * A value ends with its line. Tables in braces and keys with dots are not looked into.
 */
#ifndef SG_TOOLS_COMMON_TOML_H
#define SG_TOOLS_COMMON_TOML_H

/* Returns the value of `key`, without quotes, that is set last in a section whose name ends with `section` ("" for the
 * lines above all sections). NULL if it is not set. */
char *toml_value(const char *text, const char *section, const char *key);

#endif
