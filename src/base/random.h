/* Makes random numbers with splitmix64 (Steele, Lea and Flood 2014). The whole state is one integer, and any place of the sequence
 * can be reached at once. */
#ifndef TERSE_BASE_RANDOM_H
#define TERSE_BASE_RANDOM_H

#include <stdint.h>

#define RANDOM_STEP 0x9e3779b97f4a7c15u

static inline uint64_t random_mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t random_next(uint64_t *state) { return random_mix(*state += RANDOM_STEP); }

/* Returns the top 53 bits as a number in [0, 1). */
static inline double random_uniform(uint64_t bits) { return (double)(bits >> 11) * 0x1p-53; }

#endif
