/* The machine's own read bandwidth: what decoding is measured against. */
#ifndef TERSE_TOOLS_BANDWIDTH_H
#define TERSE_TOOLS_BANDWIDTH_H

/* Bytes per second that `threads` threads read from memory, the best of several passes over a buffer larger than the last-level
 * cache; 0 when there is no memory for one. Takes a fraction of a second. */
double bandwidth_measure(int threads);

#endif
