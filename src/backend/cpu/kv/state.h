/* The cache's data, shared by the files of this folder and by nobody else.
 *
 * A span is the sealed blocks of the same 64 tokens for all layers and KV heads. Spans are allocated in chunks,
 *     [layers][Hk]{key blocks [spans], value blocks [spans], blocks of an index [spans]}
 * so that blocks which are read one after another lie one after another (the kernels prefetch on that), and hardly anything is
 * allocated that is not used: a prompt is one chunk of as many as it seals; generation adds chunks of at most a 32nd of what there
 * is. The window is a list of spans of one, in the layout of codec f16.
 */
#ifndef TERSE_BACKEND_CPU_KV_STATE_H
#define TERSE_BACKEND_CPU_KV_STATE_H

#include "backend/cpu/kv/rotary.h"
#include "kv/plan.h"
#include "kv/shape.h"

#define NO_LAYER UINT32_MAX

struct set {
    uint8_t *chunk;
    uint32_t of, index; /* the chunk's spans, and which of them this is; the one with index 0 owns the chunk */
    uint64_t first;     /* token of slot 0 */
    uint32_t count;     /* slots that hold tokens */
    bool generated;     /* tokens that the sequence has brought forth, not a prompt's */
};

/* Tokens of sealed blocks that a policy wants exact: their rows in half precision, which readers put in place of what the codes say.
 * For every layer, KV head and side the same number of them, in order of their tokens,
 *     [layers][Hk][2]{uint32 token[capacity], half rows[capacity][hd]}
 * keys as the blocks hold them, rotated or not. */
struct anchors {
    uint8_t *memory;
    size_t capacity, count;
};

struct sealer;  /* backend/cpu/kv/sealer.h */
struct partial; /* kv/partial.h */

static inline size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* What a step reads of sealed blocks where the method has an index: backend/cpu/kv/select.h. */
struct selection {
    uint32_t *listed; /* [capacity] numbers of spans: those whose tokens are chosen from, then those that are read whole */
    size_t capacity;
    size_t candidates, dense; /* of either */
    size_t most;              /* tokens that a KV head reads of the former */
    uint8_t *memory;          /* read.c's */
    size_t bytes;
};

struct cache {
    struct cache_shape shape;
    struct method method;
    uint32_t group; /* G */
    bool rotated;   /* sealed blocks and the window hold keys rotated at their own positions; else before rotation, and they are
                     * turned where they are read, as exact rows always are */
    struct rotary rotary;

    size_t key_bytes, value_bytes; /* of a sealed block */
    size_t half_bytes;             /* of one side of a window block */
    size_t index_bytes;            /* of an index's block, where it does not lie in that of the keys */
    uint8_t *fitted;               /* what the codec of keys and the index learned of the sequence, [layers][Hk][fitted_bytes] */
    size_t fitted_bytes;
    bool fitted_ready;
    struct selection selection;
    uint8_t *packed; /* [packed_threads] of a block of keys and one of values */
    size_t packed_threads;

    struct extent extent;
    uint64_t prompt;       /* a prompt's last token is before this one; blocks from here on are the sequence's own */
    struct set *page_sets; /* [n_page_sets]: [0, sealed) in order of their tokens, the rest free */
    size_t n_page_sets, sealed;
    uint8_t **windows; /* [n_windows], used from 0 on */
    size_t n_windows;
    uint16_t *exact; /* [layers][Hk][keys, values][parameters.exact][hd] */
    float *logits;   /* exact.h's, where the policy has `leave` */
    struct anchors anchors;
    struct sealer *sealer; /* made when it is first needed */
    bool seal_in_step;     /* cache_set_seal_ahead(cache, false) */
    size_t ahead;          /* the first so many window blocks are or will be encoded in the spans after the sealed ones */

    /* The step in progress. */
    struct plan plan;
    bool sealed_first;     /* its new tokens are read from their blocks: CACHE_STEP_PAPER, once they lie there */
    bool in_step;          /* between cache_begin and cache_commit */
    uint32_t layer;        /* whose keys and values were appended; NO_LAYER: none */
    uint32_t layers_ended; /* of this step */
    float *k;              /* [n][Hk][hd], rotated when `turned` */
    const float *v;        /* [n][Hk][hd] */
    const float *new_keys; /* [n][Hk][hd], turned as queries are: k or attend_new_keys; or NULL */
    int threads;           /* whose scratch there is */
    float *scratch;        /* attend.c's */
    size_t scratch_floats;
    float *observed; /* anchors.c's or exact.c's */
    size_t observed_floats;

    struct cache_counters counters;
};

/* The block of one side, layer and head in a span; in a window span the key block, which the value block follows. */
static inline uint8_t *page_at(const struct cache *cache, const struct set *set, enum codec_side side, uint32_t layer,
                               uint32_t head) {
    size_t both = cache->key_bytes + cache->value_bytes + cache->index_bytes, at = (size_t)layer * cache->shape.kv_heads + head;
    uint8_t *keys = set->chunk + at * set->of * both;
    return side == CODEC_KEYS ? keys + set->index * cache->key_bytes
                              : keys + set->of * cache->key_bytes + set->index * cache->value_bytes;
}
/* The index's block, where it has one of its own. */
static inline uint8_t *index_page_at(const struct cache *cache, const struct set *set, uint32_t layer, uint32_t head) {
    size_t both = cache->key_bytes + cache->value_bytes, at = (size_t)layer * cache->shape.kv_heads + head;
    return set->chunk + at * set->of * (both + cache->index_bytes) + set->of * both + set->index * cache->index_bytes;
}
/* Whether the codec of keys or an index still has to learn: from the first blocks that are sealed. */
static inline bool unfitted(const struct cache *cache) { return cache->fitted_bytes && !cache->fitted_ready; }
static inline uint8_t *fitted_data(const struct cache *cache, uint32_t layer, uint32_t head) {
    return cache->fitted + ((size_t)layer * cache->shape.kv_heads + head) * cache->fitted_bytes;
}
static inline uint8_t *window_page(const struct cache *cache, const uint8_t *memory, uint32_t layer, uint32_t head) {
    return (uint8_t *)memory + ((size_t)layer * cache->shape.kv_heads + head) * 2 * cache->half_bytes;
}
/* Exact keys [sinks][hd], values behind them. */
static inline uint16_t *exact_rows(const struct cache *cache, uint32_t layer, uint32_t head) {
    size_t floats = (size_t)cache->method.parameters.exact * cache->shape.head_dim;
    return cache->exact + ((size_t)layer * cache->shape.kv_heads + head) * 2 * floats;
}

/* What a codec is told about one side of a layer and head, read by `rows` queries together. */
static inline struct codec_shape side_shape(const struct cache *cache, enum codec_side side, uint32_t layer, uint32_t head,
                                            size_t rows) {
    struct codec_shape shape = method_shape(&cache->method, side, cache->shape.head_dim, (uint32_t)rows);
    const struct codec *codec = side == CODEC_KEYS ? cache->method.key.codec : cache->method.value.codec;
    if (codec->fitted_bytes)
        shape.learned = side == CODEC_KEYS ? fitted_data(cache, layer, head) : NULL;
    else
        shape.learned = codebook_learned(cache->method.learned, side, layer, head);
    return shape;
}
/* The same for window blocks. */
static inline struct codec_shape window_shape(const struct cache *cache, size_t rows) {
    return (struct codec_shape){.head_dim = cache->shape.head_dim, .group = (uint32_t)rows};
}

/* ---- store.c: memory of keys and values, and writing it */

/* Room for `n` spans, or window spans, in all; on failure what was there stays as it was. */
enum terse_status pool_reserve_page_sets(struct cache *cache, size_t n, struct terse_error *error);
enum terse_status pool_reserve_windows(struct cache *cache, size_t n, struct terse_error *error);
/* Encodes one side of a block of rows[64][hd], of a layer and KV head, and its index; 64 rows of scratch lie behind them. */
void seal_page(const struct cache *cache, const struct set *set, uint32_t layer, uint32_t head, enum codec_side side, float *rows);
/* Writes the step's tokens of the current layer to where the plan has them. */
void seal_layer(struct cache *cache);
/* Makes the plan's end the state of the cache. */
void seal_commit(struct cache *cache);

/* ---- attend_decode.c */

/* The outputs of the step's new tokens [first, first + count) in the layer in hand. */
void attend(struct cache *cache, const float *q, size_t first, size_t count, float *out);

/* Floats of scratch that the step's attention and sealing need for `threads` threads. */
size_t attend_scratch(const struct cache *cache);
/* A part of it for the step's new keys, turned, where they are stored as they are and many queries want them; else NULL. */
float *attend_new_keys(const struct cache *cache);
/* A part of the scratch that belongs to the calling thread: at least 2 * 64 * hd floats. */
float *attend_thread_scratch(const struct cache *cache);

/* ---- attend_prefill.c: many queries at once, as matrix products */

size_t prefill_scratch(const struct cache *cache);
/* rows[count * G][hd]: row m is head m % G of the KV head's group, token m / G of the step's new tokens from `first` on, which are
 * q[count][Hq][hd]; scaled and turned. */
void gather_queries(const struct cache *cache, const float *q, uint32_t head, size_t first, size_t count, float *rows);
/* The other way: out[count][Hq][hd] of one KV head from its rows' states. */
void scatter_outputs(const struct cache *cache, const struct partial *partial, uint32_t head, size_t count, float *out);
/* The outputs, unless `out` is NULL, and the scores of anchors, if the step has any. */
void attend_prefill(struct cache *cache, const float *q, size_t first, size_t count, float *out);

#endif
