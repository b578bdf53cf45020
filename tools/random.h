/* Makes random numbers that depend on nothing but an index, so that they are the same in every run. */
#ifndef TERSE_TOOLS_RANDOM_H
#define TERSE_TOOLS_RANDOM_H

#include <stdint.h>

/* Returns the index-th 64 random bits (splitmix64, Steele, Lea and Flood 2014). */
static inline uint64_t random_bits(uint64_t index) {
    uint64_t z = (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif
