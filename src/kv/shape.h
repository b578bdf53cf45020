/* Declares the structs that tell every backend's KV cache about a model's attention, and that hold its counters. */
#ifndef TERSE_KV_SHAPE_H
#define TERSE_KV_SHAPE_H

#include "model/rope.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct collective; /* dist/collective.h */

struct cache_shape {
    uint32_t layers;
    uint32_t query_heads;    /* Hq */
    uint32_t kv_heads;       /* Hk, divides Hq */
    uint32_t head_dim;       /* hd */
    float scale;             /* logits = scale * <q, k>; 1/sqrt(hd) as a rule */
    const struct rope *rope; /* outlives the cache; n_rot 0: keys are not rotated */
    /* slopes[query_heads] of ALiBi (Press et al. 2021) outlive the cache; slope * (key's position - query's) is added to the logits
     * after the scale. NULL: nothing is added. */
    const float *slopes;
    /* sinks[layers][query_heads], by the layers' numbers in the model, outlive the cache. Each is the logit of a key without a
     * value, which queries see besides their keys. NULL: there are none. */
    const float *sinks;
    bool latents;    /* keys end with the values, which have no pages or rows of their own: there is one side */
    bool normalized; /* what attention adds to the residual stream goes through a norm first (Gemma 2 and 3) */
    float cap;       /* logits become cap tanh(logits / cap) after the scale; 0: they do not */
    /* The last `sliding` layers in `order` slide: a query sees the newest `window` keys alone, its own included. */
    uint32_t window, sliding;
    const struct rope *sliding_rope; /* theirs */
    /* Layers without keys and values, which are not among `layers`: each has a state of so many floats (kv/recurrent.h). */
    uint32_t recurrent_layers;
    size_t recurrent_floats;
    const uint32_t *order; /* [layers] their numbers in the model, outlives the cache; NULL: 0, 1, ... */
    /* Several ranks, to which the pages of layers that do not slide are dealt (kv/deal.h); outlives the cache. NULL: this process holds all
     * of them. */
    struct collective *ranks;
};

struct terse_model; /* model/model.h */

/* Returns the shape of caches of the model's sequences of up to `context` tokens. */
struct cache_shape cache_shape_of(const struct terse_model *model, uint32_t context);

/* Returns layers times KV heads. */
static inline size_t cache_heads_of(const struct cache_shape *shape) { return (size_t)shape->layers * shape->kv_heads; }
/* Returns how many sides are stored: keys, and values unless keys have them. Rows and pages of both lie one after the other. */
static inline uint32_t cache_sides_of(const struct cache_shape *shape) { return shape->latents ? 1 : 2; }
/* Returns how many values a token has, in keys and values. */
static inline uint64_t cache_token_values(const struct cache_shape *shape) {
    return cache_heads_of(shape) * cache_sides_of(shape) * shape->head_dim;
}
/* Return the numbers of a token's queries of a layer, [Hq][hd], and of its keys or values, [Hk][hd]. */
static inline size_t cache_shape_query_width(const struct cache_shape *shape) {
    return (size_t)shape->query_heads * shape->head_dim;
}
static inline size_t cache_shape_kv_width(const struct cache_shape *shape) { return (size_t)shape->kv_heads * shape->head_dim; }

/* Returns a layer's number in the model. */
static inline uint32_t cache_shape_number(const struct cache_shape *shape, uint32_t layer) {
    return shape->order ? shape->order[layer] : layer;
}

/* Returns where the i-th KV head of a cache's [layers][Hk] lies among those of all the model's layers, as codebooks and layouts
 * count. */
static inline size_t cache_shape_set(const struct cache_shape *shape, size_t i) {
    return (size_t)cache_shape_number(shape, (uint32_t)(i / shape->kv_heads)) * shape->kv_heads + i % shape->kv_heads;
}

/* Returns the shape of the layers that slide, or of the others, by themselves; without any, `layers` is 0. */
static inline struct cache_shape cache_shape_part(const struct cache_shape *shape, bool sliding) {
    struct cache_shape part = *shape;
    uint32_t others = shape->layers - shape->sliding;
    part.layers = sliding ? shape->sliding : others;
    part.sliding = sliding ? part.layers : 0;
    part.window = sliding ? shape->window : 0;
    part.recurrent_layers = sliding ? 0 : shape->recurrent_layers;
    part.ranks = sliding ? NULL : shape->ranks;
    part.rope = sliding ? shape->sliding_rope : shape->rope;
    if (sliding && shape->order) part.order += others;
    return part;
}

/* The counters count attention since they were last cleared. */
struct cache_counters {
    double seconds;
    uint64_t bytes; /* of stored keys and values that were read */
};

#endif
