/* The registry entries of a ledger that another version made: fuzz_ledger.c. */
#define FUZZ_FOREIGN 1
#include "fuzz_ledger.c"
