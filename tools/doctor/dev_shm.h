/*
 * dev_shm.h - files in /dev/shm that no process has open or mapped.
 */
#ifndef SG_TOOLS_DOCTOR_DEV_SHM_H
#define SG_TOOLS_DOCTOR_DEV_SHM_H

#include "doctor/doctor.h"

struct doctor_shm {
    bool is_readable;
    bool is_certain; /* the files of every process could be read */
    uint64_t orphan_count, orphan_bytes;
    char *name;         /* name of the largest file, not escaped */
    bool is_name_plain; /* the name contains no character that is special to a shell */
};

void doctor_shm_look(const struct doctor *doctor, struct doctor_shm *out);

#endif
