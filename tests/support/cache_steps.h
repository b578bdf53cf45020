/* Steps of any backend's cache with numbers that a test chooses itself. A failure is the running test's. */
#ifndef TESTS_CACHE_STEPS_H
#define TESTS_CACHE_STEPS_H

#include "backend/backend.h"

/* Rows of a step's tokens. Those of layer l are behind l times `apart` tokens' rows. */
struct step_rows {
    const float *k, *v; /* [Hk][hd] each, keys before rotation */
    const float *q;     /* [Hq][hd] each; NULL: nobody attends */
    float *out;         /* as q; NULL: outputs are not kept */
    size_t apart;       /* 0: all layers have the same */
    size_t
        asked; /* so many of the last layer's queries attend, the last ones; the others are observed if the method wants it. 0: all attend */
    size_t piece; /* queries of one call; 0: all */
};

/* A whole step. Between begin and commit come the layers, which can be had alone. */
void step_cache(const struct kv_ops *kv, struct cache *cache, const struct cache_shape *shape, enum cache_step_kind kind, size_t n,
                const struct step_rows *rows);
void step_layers(const struct kv_ops *kv, struct cache *cache, const struct cache_shape *shape, size_t n,
                 const struct step_rows *rows);

#endif
