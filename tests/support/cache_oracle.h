/* A cache of tests: drives a backend's cache with random tokens and knows, in double precision and by other means, what its attention
 * must give. The oracle keeps every token's keys and values as they are stored (whole, rounded to half, or quantized row by row)
 * and attends over them densely. Codebooks are of random centroids; Anchor Scores come from explicit softmax rows. */
#ifndef TESTS_CACHE_ORACLE_H
#define TESTS_CACHE_ORACLE_H

#include "backend/cpu/kv/step.h"
#include "kv/parts.h"

struct kv_ops; /* backend/backend.h */

struct oracle_setup {
    const struct kv_ops *kv; /* NULL: that of the backend under test, with its bound and `fetch` */
    double allowed;          /* of a difference; 0: what the CPU's kernels are allowed */
    /* Copies memory of a device's pages to the host's. For a cache of that device the oracle then takes from the pages themselves, decoded by the
     * CPU, what codecs have made of the rows, where rounding may decide between codes; other tests check that they are the right codes. NULL: it
     * encodes by itself. */
    void (*fetch)(void *to, const void *from, size_t bytes);
    const char *method, *key, *value, *evict;
    uint32_t tail;
    uint32_t layers, query_heads, kv_heads, head_dim; /* head_dim 0: the least that the backend serves */
    enum rope_pairing pairing;
    uint32_t n_rot;  /* 0: head_dim */
    float magnitude; /* 0: 1 */
    uint64_t seed;
    bool latents;          /* keys end with the values, behind n_rot channels */
    bool alibi;            /* slopes, and no rotation */
    uint32_t window;       /* all layers slide, with this window; 0: none does */
    float cap;             /* of logits; 0: none */
    bool learned_sinks;    /* a logit for each layer and query head besides */
    uint32_t anchor_count; /* tokens of a prefill that stay exact */
    double anchor_percent;
    enum terse_anchor_score anchor_score; /* but TERSE_ANCHORS_RANDOM, which the oracle cannot foresee */
    uint32_t first_tokens;                /* as in struct terse_cache_options */
    double read_percent;                  /* of a prompt's tokens that a step reads; the oracle reads all */
    uint32_t
        snapped; /* a bit for each layer and KV head, the first the lowest: its centroids are snapped, as learning leaves them */
};

struct oracle {
    struct oracle_setup setup;
    struct cache_shape shape;
    struct method method;
    struct rope rope;
    float frequency[128], slopes[64], sinks[64];
    float *centroids[2]; /* of keys and values, [layers][Hk][parameters], when the method learns */
    struct terse_codebook *codebook;
    const struct kv_ops *kv;
    struct cache *cache;
    uint64_t random;
    size_t length, capacity;
    size_t window;       /* tokens before this one are sealed */
    bool *dropped;       /* [layers][capacity][Hk]: of what a prompt had, this token is not among those that were kept (snapkv-N) */
    size_t n_dropped;    /* of each layer and KV head */
    float *k, *v;        /* [layers][capacity][Hk][hd], as stored now; of the tokens of a step in progress as they are read */
    double worst;        /* largest difference met */
    double squares;      /* the sum of their squares */
    size_t compared;     /* numbers */
    size_t anchors;      /* chosen, over all layers, heads and sides */
    double worst_choice; /* the largest share by which an anchor's score times error was less than that of a token that is none */
};

/* Returns whether the backend serves such caches. */
bool oracle_served(const struct oracle_setup *setup);
/* Stops the test when the cache cannot be made. */
struct oracle *oracle_new(const struct oracle_setup *setup, size_t capacity);
void oracle_free(struct oracle *oracle);

/* One step of n random tokens: asks for all outputs, `piece` queries at a time (0: all at once), and compares them. */
void oracle_step(struct oracle *oracle, enum cache_step_kind kind, size_t n, size_t piece);
/* The same, but no output is asked for. */
void oracle_skip(struct oracle *oracle, enum cache_step_kind kind, size_t n);

/* Tokens that are exact after `length` tokens: the first 4, of StreamingLLM and of methods whose codecs are not exact. And the
 * first of the others that are kept: StreamingLLM's newest, by the definition, else all. */
size_t oracle_sinks(const struct oracle *oracle);
size_t oracle_first(const struct oracle *oracle);

float oracle_random(struct oracle *oracle);

#endif
