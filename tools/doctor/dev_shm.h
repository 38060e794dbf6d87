/*
 * dev_shm.h - files in /dev/shm that no process has open or mapped.
 */
#ifndef SG_TOOLS_DOCTOR_DEV_SHM_H
#define SG_TOOLS_DOCTOR_DEV_SHM_H

#include "doctor/doctor.h"

struct doctor_shm {
    bool is_readable;
    bool is_certain; /* every process could be asked */
    uint64_t orphan_count, orphan_bytes;
    char *name;         /* of the largest; raw */
    bool is_name_plain; /* it means nothing to a shell */
};

void doctor_shm_look(const struct doctor *doctor, struct doctor_shm *out);
void doctor_shm_free(struct doctor_shm *shm);

#endif
