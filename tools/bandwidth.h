/* Measures the machine's own read bandwidth, with which decoding is compared. */
#ifndef TERSE_TOOLS_BANDWIDTH_H
#define TERSE_TOOLS_BANDWIDTH_H

/* Returns the bytes per second that `threads` threads read from memory, the best of several passes over a buffer larger than the
 * last-level cache; 0 when there is no memory for one. It takes a fraction of a second. */
double bandwidth_measure(int threads);

#endif
