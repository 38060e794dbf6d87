/* empty.c - a preloaded library with nothing in it: what any preload costs a start. */
extern int bench_empty;
int bench_empty;
