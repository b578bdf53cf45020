/* What every backend's KV cache is told about a model's attention, and what it counts. */
#ifndef TERSE_KV_SHAPE_H
#define TERSE_KV_SHAPE_H

#include "model/rope.h"

#include <stdint.h>

struct cache_shape {
    uint32_t layers;
    uint32_t query_heads;    /* Hq */
    uint32_t kv_heads;       /* Hk, divides Hq */
    uint32_t head_dim;       /* hd */
    float scale;             /* logits = scale * <q, k>; 1/sqrt(hd) as a rule */
    const struct rope *rope; /* outlives the cache; n_rot 0: keys are not rotated */
    /* ALiBi (Press et al. 2021): slopes[query_heads], outlive the cache; slope * (key's position - query's) is added to the logits
     * after the scale. NULL: nothing is added. */
    const float *slopes;
};

/* Of attention since the counters were last cleared. */
struct cache_counters {
    double seconds;
    uint64_t bytes; /* of stored keys and values that were read */
};

#endif
