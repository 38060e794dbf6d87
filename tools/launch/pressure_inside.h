/*
 * pressure_inside.h - --on-pressure, in the helper process.
 */
#ifndef SG_TOOLS_LAUNCH_PRESSURE_INSIDE_H
#define SG_TOOLS_LAUNCH_PRESSURE_INSIDE_H

/* The first argument of the helper, with the number of its end of the pipe; the second one is the command, then come
 * the directory of the segments and the hash of the job's name. */
#define LAUNCH_PRESSURE_INSIDE "--in-pressure="

/* Becomes the helper if the first argument says so; otherwise returns. Call it first in main(). */
void launch_pressure_inside(char **argv);

#endif
