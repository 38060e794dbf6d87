/*
 * fields.h - names the plain fields of a process, once for all machine-readable formats (JSON, CSV).
 */
#ifndef SG_TOOLS_MODEL_FIELDS_H
#define SG_TOOLS_MODEL_FIELDS_H

#include "model/model.h"

/* Callbacks that receive the fields. Unknown values are NULL, SG_UNKNOWN or time 0. `out` is the first argument. */
struct model_fields {
    void (*text)(void *out, const char *key, const char *text);
    void (*number)(void *out, const char *key, uint64_t number);
    void (*time)(void *out, const char *key, int64_t time_ns);
    void (*flag)(void *out, const char *key, bool is_set);
    void *out;
};

/* Call one callback per field, always in the same order. */
void model_process_fields(const struct model_process *process, const struct model_fields *fields);
void model_domain_fields(const struct model_domain *domain, const struct model_fields *fields);
void model_driver_fields(const struct model_process *process, const struct model_fields *fields);

#endif
