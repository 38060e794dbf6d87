/*
 * fields.h - the plain fields of a process, named once for all forms that programs read.
 */
#ifndef SG_TOOLS_MODEL_FIELDS_H
#define SG_TOOLS_MODEL_FIELDS_H

#include "model/model.h"

/* Where fields go. What is unknown comes as NULL, SG_UNKNOWN or no time. */
struct model_fields {
    void (*text)(void *out, const char *key, const char *text);
    void (*number)(void *out, const char *key, uint64_t number);
    void (*time)(void *out, const char *key, int64_t time_ns);
    void (*flag)(void *out, const char *key, bool is_set);
    void *out;
};

void model_process_fields(const struct model_process *process, const struct model_fields *fields);
void model_domain_fields(const struct model_domain *domain, const struct model_fields *fields);

#endif
