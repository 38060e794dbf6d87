/* The registry entries of another version's ledger, where none of ours can be had: fuzz_ledger.c. */
#define FUZZ_FOREIGN 1
#include "fuzz_ledger.c"
