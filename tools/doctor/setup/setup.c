/*
 * setup.c - see setup.h: the script that sets up the whole machine.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "common/text.h"
#include "doctor/setup/setup.h"
#include "sparkguard_abi.h"

static void put_directories(struct setup *setup)
{
    fputc('\n', setup->stream);
    setup_comment(setup,
                  "The group, and the two directories that its members and containers share, at every boot and now. "
                  "Users join it by usermod -aG sparkguard NAME, and by their next login.");
    setup_add(setup, "/etc/tmpfiles.d/sparkguard.conf",
              "d /run/sparkguard 0755 root root -\n"
              "d " SETUP_SHARED " 2770 root sparkguard -\n"
              "d " SETUP_HISTORY " 2770 root sparkguard -\n");
    fputs("make_group\n"
          "share " SETUP_SHARED "\n"
          "share " SETUP_HISTORY "\n",
          setup->stream);
}

int setup_print(struct doctor *doctor, FILE *stream)
{
    struct setup setup = {.doctor = doctor, .stream = stream};
    size_t length;
    setup.library = setup_find_library(doctor);
    if (setup.library == NULL)
        return SETUP_NONE;
    setup.runtime = setup_find_runtime(doctor);
    if (setup_read(doctor, SETUP_STATE "/manifest", &setup.manifest, &length) != SETUP_READ)
        setup.manifest = text_copy("", 1);
    fputs("#!/bin/sh\n# Made by sparkguard-doctor --setup, version " SG_VERSION_TEXT ".\n", stream);
    fputs(setup_script_begin, stream);
    fputs(setup_script_common, stream);
    fputs(setup_script_functions, stream);
    fputs(setup_script_people, stream);
    put_directories(&setup);
    setup_engines(&setup);
    setup_logins(&setup);
    setup_units(&setup);
    fputs(setup_script_end, stream);
    free(setup.library);
    free(setup.runtime);
    free(setup.manifest);
    return setup.left > 0 ? SETUP_PARTIAL : SETUP_WHOLE;
}
