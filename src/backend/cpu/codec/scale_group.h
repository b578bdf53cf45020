/* Declares functions that the codecs with a scale per 32 channels share. */
#ifndef TERSE_BACKEND_CPU_CODEC_SCALE_GROUP_H
#define TERSE_BACKEND_CPU_CODEC_SCALE_GROUP_H

#include "format/page_layout.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Returns the first of x[32] of largest magnitude. Magnitudes order as their bits do, and a compiler may compare integers in any
 * order. */
static inline float group_extreme(const float *x) {
    int32_t bits[SCALE_GROUP], most = 0;
    memcpy(bits, x, sizeof bits);
    for (size_t j = 0; j < SCALE_GROUP; j++) {
        bits[j] &= INT32_MAX;
        most = bits[j] > most ? bits[j] : most;
    }
    size_t at = 0;
    while (bits[at] != most) at++;
    return x[at];
}

#endif
