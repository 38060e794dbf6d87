# shellcheck shell=sh
# Members of the group share one directory; root, who may write everywhere, does not. No program complains of a library that is gone.
if [ ! -r @LIBDIR@/libsparkguard.so ]; then
    if [ "${LD_PRELOAD:-}" = @LIBDIR@/libsparkguard.so ]; then unset LD_PRELOAD; fi
elif [ "$(id -u)" -ne 0 ] && [ -w /run/sparkguard/shared ] && [ -z "${SPARKGUARD_DIR:-}" ]; then
    export SPARKGUARD_DIR=/run/sparkguard/shared
fi
