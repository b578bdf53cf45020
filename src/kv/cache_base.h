/* Declares the beginning of every backend's struct cache, which kv/cache.c and the functions that it calls share. */
#ifndef TERSE_KV_CACHE_BASE_H
#define TERSE_KV_CACHE_BASE_H

#include "kv/block_table.h"
#include "kv/budget.h"
#include "kv/plan.h"
#include "kv/read_lists.h"
#include "kv/shape.h"

struct cache;      /* a backend's */
struct kv_storage; /* kv/cache.h */

/* A struct fitted holds transforms that were fitted to the sequence, and the bits by their sizes (kv/fitted.h). */
struct fitted {
    uint8_t *records; /* [layers][Hk][slices][sides][record_bytes] (format/transform.h); NULL: nothing is fitted */
    size_t record_bytes;
    struct codebook_layouts *layouts;               /* of the records' sizes */
    const struct codebook_layouts *profile_layouts; /* the method's while nothing is fitted */
    /* These are sums over the tokens of prompts before the fit, of the step in progress and of steps before it: log2 of the mean
     * square of a hidden state as it enters each layer, in units of RESIDUAL_UNIT. NULL: nothing was noted. */
    int64_t *residual;           /* [2][layers] */
    uint64_t residual_tokens[2]; /* of these sums */
};

/* The rates at which a cache holds pages, the method's own first (method_rates). A page set knows its rate by the number in these
 * arrays; kv/lower.h lowers it. The layouts of rate 0 are the method's. */
struct cache_rates {
    size_t n; /* 1: pages stay as they are; 0: the backend lowers none */
    double bits[METHOD_RATES];
    size_t page_set_bytes[METHOD_RATES];                  /* not rising */
    const struct codebook_layouts *profile[METHOD_RATES]; /* while nothing is fitted */
    struct codebook_layouts *fitted[METHOD_RATES];        /* of the sizes of struct fitted; NULL: nothing is */
};

/* A recurrent_state is that of all recurrent layers, [layers][floats of one], after so many tokens (kv/recurrent.h). */
struct recurrent_state {
    uint64_t tokens;
    size_t holders;
    float *layers;
};

#define RECURRENT_KEPT_MOST 8
struct recurrent_states {
    struct recurrent_state *now;                       /* after all the sequence's tokens; NULL: zeros, before the first one */
    struct recurrent_state *kept[RECURRENT_KEPT_MOST]; /* [n_kept], by falling tokens */
    size_t n_kept;
    struct recurrent_state *coming[RECURRENT_KEPT_MOST]; /* [n_coming], those that the step in progress fills */
    size_t n_coming;
};

/* Every struct cache begins with a cache_base. */
struct cache_base {
    const struct kv_storage *storage;
    struct cache_shape shape;
    struct method method;
    uint64_t number;          /* of rank 0's caches, by which other ranks know it (engine/lead.h); 0: they do not */
    struct cache *next;       /* in the first part of a model's cache, the second one (kv/parts.h); NULL: there is none */
    struct kv_budget *budget; /* of all that reports call resident; NULL: there is none */
    struct cache_base *next_of_budget;
    uint32_t threads; /* over which work is split */

    const struct page_address *places; /* [rates][layers][Hk], one rate where `rates` has none */
    size_t page_set_bytes;             /* of all pages of a page set, whatever the layouts */
    size_t index_page_bytes;           /* of an index's page, 0 where it lies in that of the keys */
    struct block_table pages;
    struct extent extent;
    uint64_t prompt_end; /* the last prompt ended before this token; pages from here on are generated */
    size_t n_anchors;    /* of every layer, KV head and side */
    /* Of what codecs and an index learn from the first pages that are sealed, for all layers and KV heads; 0: they learn nothing. */
    uint64_t learned_bytes;
    bool fitted_ready;    /* they have */
    struct fitted fitted; /* what transforms were fitted to the sequence */
    struct cache_rates rates;

    struct recurrent_states recurrent; /* of a first part; nothing where no layer is recurrent */

    /* Full pages of the window are encoded into free page sets while decoding goes on, ahead of the step that seals them. */
    size_t n_ahead;           /* the first so many are being or were */
    size_t ahead_most_tokens; /* of a step that leaves them so; 0: pages are not encoded ahead */

    /* These belong to the step in progress. */
    struct plan plan;
    struct read_lists reads; /* what it reads of the tokens that were stored before it */
    bool in_step;            /* between begin and commit */
    /* These are page sets that it seals or encodes ahead; where it is not `in_step`, it waits for memory. 0: it has ended. */
    size_t step_sets;
    bool step_lowered;     /* some of these have been made fewer bits, so the step keeps to its rate */
    uint32_t layer;        /* whose keys and values were appended; NO_LAYER: none */
    uint32_t layers_ended; /* of this step */
    struct cache_counters counters;
};

#endif
