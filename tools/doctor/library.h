/*
 * library.h - libsparkguard.so, and whether the dynamic linker takes it.
 */
#ifndef SG_TOOLS_DOCTOR_LIBRARY_H
#define SG_TOOLS_DOCTOR_LIBRARY_H

#include "doctor/doctor.h"

enum doctor_library { DOCTOR_LIBRARY_GOOD, DOCTOR_LIBRARY_UNKNOWN, DOCTOR_LIBRARY_FOREIGN, DOCTOR_LIBRARY_BAD };

/* Where it is, NULL if nowhere. Below a root it is looked for in the library folder only. The caller frees. */
char *doctor_library_find(const struct doctor *doctor);

/* Without a root it is tried, on a program that does nothing, with the guard told to let everything through. */
enum doctor_library doctor_library_judge(const struct doctor *doctor, const char *path);

#endif
