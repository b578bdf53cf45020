/* Declares the data of a KV cache on the device, which the files of this folder share:
 *
 *     view, append, encode, attend_*   kernels, and their arguments
 *     select, score_*                  kernels that choose tokens, and their arguments
 *     tables                           what caches of one model and method share: where pages lie, transforms, angles
 *     state                            the data (this header)
 *     exchange                         what several ranks have read, merged
 *     views                            the view that kernels have of a cache
 *     rank, kept                       exact rows, and the choice of a prompt's tokens that are kept as such
 *     choice                           what a step chooses of a prompt's tokens
 *     anchor_scores, anchor_rows       kernels of anchors: scores, the choice, rows
 *     anchors                          anchors: exact rows beside codes
 *     victims, replace                 exact rows that tokens which leave the window replace
 *     window                           pages of the window
 *     fit                              transforms that are fitted to the sequence
 *     batch                            decoding steps of several caches
 *     prompt                           steps of many tokens
 *     saved                            a cache's bytes in a file, by way of the host
 *     storage                          memory: made, copied, counted, released
 *     step                             a step of new tokens
 *     fill                             a cache of random tokens
 *     ops                              kv_ops
 *
 * Each file includes only headers of those above it. */
#ifndef TERSE_BACKEND_CUDA_KV_STATE_H
#define TERSE_BACKEND_CUDA_KV_STATE_H

#include "backend/cuda/device.h"
#include "backend/cuda/kv/attend_decode.h"
#include "backend/cuda/kv/encode.h"
#include "backend/cuda/kv/exchange.h"
#include "backend/cuda/kv/tables.h"
#include "kv/cache.h"

/* These tokens are kept as halves outside the window: the first ones, then anchors. They lie in device memory in one piece. */
struct exact_rows {
    device_half *rows; /* [layers][Hk][2][capacity][hd], keys rotated by their token; NULL: none */
    uint32_t *tokens;  /* of the anchors, [layers][Hk][capacity - cache_first_exact()], ascending */
    /* These are of anchors beside codes, of which a KV head has as many rows as counts[layers][Hk] says, and elsewhere[layers][Hk] more of tokens
     * whose pages other ranks have (struct anchor_view); else NULL. */
    uint64_t *pages; /* [layers][Hk][n_pages] */
    uint32_t *sides, *counts, *elsewhere;
    /* These are of exact rows that may be replaced (struct victims); else NULL. */
    device_half *unrotated;
    float *logits;
    uint32_t capacity, n_pages;
    size_t bytes; /* allocated; capacity may have become less */
};

/* An item_list has items of encoding or decoding pages, on the device and as they were made. */
struct item_list {
    struct encode_item *device, *host;
    size_t capacity, n;
};

/* A replacing has what caches work in whose exact rows may be replaced (replace.c); zeros in others. */
struct replacing {
    uint32_t *moves;
    float *fresh;        /* as first_logits of struct sequence_view */
    device_half *page;   /* [layers][Hk][keys, values][64][hd]: the page set whose first token is page_first, decoded */
    uint64_t page_first; /* UINT64_MAX: none */
    struct item_list item;
};

/* A fitted_tables has device tables of the sequence's own transforms. */
struct fitted_tables {
    uint8_t *memory;
    struct rate_view rates[RATE_VIEWS];
    struct page_address *places; /* the host's, [rates][layers][Hk] */
};

struct cache {
    struct cache_base base;
    struct head_view heads;
    const struct kv_tables *tables;
    enum codec_id codec[2]; /* by side */

    struct page_set_view
        *views;               /* on the device [view_capacity], of the sealed page sets; behind them in the same piece of memory: */
    struct read_page *listed; /* [view_capacity] the pages of the shared read list */
    size_t view_capacity;
    size_t views_good; /* so many page sets have views as they should be */
    /* Of the sealed page sets, counted_sets, where they are dealt to ranks: how many this rank has, and rank 0, which has the most. Else both
     * are all of them. The device has views and list entries of this rank's alone. */
    size_t counted_sets, pages_here, pages_most;
    /* In a step of many tokens: how many rows other ranks' sealed pages would have, and which tokens the rows are, of memory for so many spans. */
    size_t rows_elsewhere;
    struct row_places places;
    size_t span_capacity;
    struct exact_rows exact;
    device_half *window; /* [layers][Hk][2][window_capacity][hd] */
    uint32_t window_capacity;
    uint64_t window_origin;      /* token t lies in row (t - origin) % capacity */
    struct fitted_tables fitted; /* zeros where nothing is fitted */
    float *learned;              /* of codec sign and index sign, base.learned_bytes; NULL: they are not used */
    struct sequence_view *view;  /* on the device: of a step of many tokens */

    /* These belong to the step in progress. */
    struct cache *at;         /* of a first part (kv/parts.h): the part whose layer a prompt is at */
    uint64_t steps;           /* that were begun */
    struct item_list stored;  /* sealed pages that a prompt reads */
    struct item_list sealed;  /* pages that the step seals */
    struct item_list decoded; /* pages, some of which at a time are decoded for the choice of anchors */
    device_half *rows[2];     /* of a step of many tokens: [row_capacity][Hk][hd], behind ROWS_IN_FRONT more */
    size_t row_capacity;
    struct exact_rows
        chosen;   /* what is to take the place of `exact`, of a step that chooses anchors or a prompt that replaces rows */
    void *choice; /* scratch of either */
    size_t choice_bytes;
    struct rank_exchange exchange; /* of a step of many tokens */
    struct replacing replacing;
    cudaEvent_t written;       /* other streams than device_stream() wait for this before they read the cache */
    cudaEvent_t encoded_ahead; /* a step that seals waits for this */
};

/* These rows lie in front of those of a prompt: the first page may begin with tokens that were evicted. */
#define ROWS_IN_FRONT PAGE_TOKENS
#define DECODE_TOKENS_MOST 16 /* of one cache in a decoding step, unless it chooses tokens (choice.h) */

/* Returns the bytes of views and list entries of n page sets. */
static inline size_t page_view_bytes(size_t n) { return n * (sizeof(struct page_set_view) + sizeof(struct read_page)); }

/* Returns how many first tokens are exact, once there are as many. */
static inline uint32_t cache_first_exact(const struct cache *cache) { return cache->base.method.parameters.exact; }

/* Returns whether tokens that leave the window may replace exact rows (MAT). */
static inline bool replaces_rows(const struct method *method) { return method->policy->pick_victim; }

/* Returns whether anchors stand beside the codes of their tokens: else those that are kept of a prompt have none. */
static inline bool anchors_have_codes(const struct method *method) {
    return method->policy->anchors && !method->policy->keep_selected_only;
}

/* Returns whether keys and values choose their anchors apart: by Anchor Scores. */
static inline bool chooses_apart(const struct method *method) {
    return method->policy->anchors && !method->policy->rank_by_attention;
}

/* Returns how many rows n anchors of each side take at most: a token may be one of both sides, or of one alone. */
static inline size_t anchor_rows_most(const struct method *method, size_t n) { return chooses_apart(method) ? 2 * n : n; }

/* Returns how many halves lie from one layer, head or side of the window to the next. */
static inline size_t window_side_halves(const struct cache *cache) {
    return (size_t)cache->window_capacity * cache->base.shape.head_dim;
}

/* Returns how many floats of `learned` a layer and KV head have. */
static inline uint32_t learned_floats(const struct cache *cache) {
    return (uint32_t)(cache->base.learned_bytes / cache_heads_of(&cache->base.shape) / sizeof(float));
}

/* Records the event that what is queued on device_stream() has written the cache. */
static inline enum terse_status cache_written(struct cache *cache, struct terse_error *error) {
    return device_check(cudaEventRecord(cache->written, device_stream()), "recording an event", error);
}

#endif
