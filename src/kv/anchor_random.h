/* Scores by which any tokens become anchors, to compare with (TERSE_ANCHORS_RANDOM). Both backends choose the same. */
#ifndef TERSE_KV_ANCHOR_RANDOM_H
#define TERSE_KV_ANCHOR_RANDOM_H

#include "base/random.h"

#include <stdint.h>

/* Returns a number in [0, 1) that belongs to a token of a KV head, counted over the layers, and a side. */
static inline float anchor_random_score(uint64_t head, int side, uint64_t token) {
    return (float)random_uniform(random_mix(random_mix(2 * head + (uint64_t)side + RANDOM_STEP) + token * RANDOM_STEP));
}

#endif
