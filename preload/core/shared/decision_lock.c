/*
 * decision_lock.c - see decision_lock.h.
 */
#include "shared/decision_lock.h"

struct sg_lock sg_decision_lock;
