/*
 * claim_inside.h - --claim, in the process that becomes the program.
 */
#ifndef SG_TOOLS_LAUNCH_CLAIM_INSIDE_H
#define SG_TOOLS_LAUNCH_CLAIM_INSIDE_H

/* Claims and becomes the program if the first argument says so; otherwise returns. Call it first in main(). */
void launch_claim_inside(char **argv);

#endif
