/*
 * names.c - the words for states, domains and reasons.
 */
#include "model/model.h"

const char *const report_domain_name[SG_DOMAIN_COUNT] = {
#define SG_DOMAIN(ID, name, bounded, help) #name,
#include "domains.def"
#undef SG_DOMAIN
};

const char *const report_state_name[] = {"-", "running", "exited", "replaced", "killed"};
const char *const report_reason_name[] = {"-", "reserve", "limit", "floor", "device"};

const char *report_room_word(enum sg_reason reason)
{
    return reason == SG_REASON_LIMIT ? "left" : "usable";
}
