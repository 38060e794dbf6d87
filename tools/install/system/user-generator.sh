#!/bin/sh
# Users' services share the directory of the group that their user is in. Root, who may write everywhere, does not.
if [ "$(id -u)" -ne 0 ] && [ -w /run/sparkguard/shared ] && [ -z "${SPARKGUARD_DIR:-}" ]; then
    echo SPARKGUARD_DIR=/run/sparkguard/shared
fi
