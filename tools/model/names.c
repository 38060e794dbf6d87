/*
 * names.c - the words for states, domains and reasons.
 */
#include "model/model.h"

const char *const model_domain_name[SG_DOMAIN_COUNT] = {
#define SG_DOMAIN(ID, name, help) #name,
#include "domains.def"
#undef SG_DOMAIN
};

const char *const model_state_name[] = {"-", "running", "exited", "replaced", "killed"};
const char *const model_reason_name[] = {"-", "reserve", "limit", "floor", "device"};

const char *model_headroom_word(enum sg_reason reason)
{
    return reason == SG_REASON_LIMIT ? "left" : "usable";
}
