/*
 * library.h - finds libsparkguard.so, and checks whether the dynamic linker can preload it.
 */
#ifndef SG_TOOLS_DOCTOR_LIBRARY_H
#define SG_TOOLS_DOCTOR_LIBRARY_H

#include "doctor/doctor.h"

enum doctor_library { DOCTOR_LIBRARY_GOOD, DOCTOR_LIBRARY_UNKNOWN, DOCTOR_LIBRARY_FOREIGN, DOCTOR_LIBRARY_BAD };

/* Returns the library's path, or NULL if it is not found. Below a root only the library folder is searched. */
char *doctor_library_find(const struct doctor *doctor);

/* Checks the library. Without a root it is preloaded into a program that does nothing, with the guard disabled. */
enum doctor_library doctor_library_judge(const struct doctor *doctor, const char *path);

#endif
