/*
 * names.c - the words for states, domains, reasons and facts of the driver.
 */
#include "model/model.h"

const char *const model_domain_name[SG_DOMAIN_COUNT] = {
#define SG_DOMAIN(ID, name, help) #name,
#include "domains.def"
#undef SG_DOMAIN
};

const char *const model_state_name[] = {"-", "running", "exited", "replaced", "killed"};
const char *const model_driver_fact_name[SG_DRIVER_FACT_COUNT] = {
#define SG_DRIVER_FACT(ID, name, proved, disproved) name,
#include "driver_facts.def"
#undef SG_DRIVER_FACT
};
const char *const model_driver_fact_text[SG_DRIVER_FACT_COUNT][2] = {
#define SG_DRIVER_FACT(ID, name, proved, disproved) {proved, disproved},
#include "driver_facts.def"
#undef SG_DRIVER_FACT
};
const char *const model_finding_name[] = {"unknown", "proved", "disproved"};
const char *const model_reason_name[] = {"-", "reserve", "limit", "floor", "device"};

const char *model_headroom_word(enum sg_reason reason)
{
    return reason == SG_REASON_LIMIT ? "of room" : "usable";
}
