/* Declares the data of a KV cache, shared by the files of this folder.
 *
 * The files form layers. Each includes headers of layers above it in this list only, and defines what its own header declares:
 *
 *     rotary              angles of the step's positions
 *     state               the data (this header)
 *     page_pool           where a page lies; memory of the window
 *     scratch             memory of a step's attention
 *     side                which codec, parameters and index serve a layer and KV head
 *     anchors             rows of sealed tokens that stay exact
 *     segment             addresses: which segments of up to 64 tokens the read lists of a step have, and where they lie
 *     segment_read        scores, weighted sums and rows of a segment
 *     query_rows, top_k   queries of a KV head as rows; the best of many scores
 *     exchange            what several ranks have read, merged
 *     select              which tokens of a prompt a step reads, written to read lists of the KV heads
 *     gather              those tokens, packed into pages and read
 *     anchor_scores       which tokens of a prompt become anchors
 *     exact               which tokens hold the exact rows
 *     attend_decode       attention of a few queries
 *     attend_prefill      attention of many queries
 *     fit                 what is learned from the first tokens that are sealed; encoding the index
 *     seal                pages encoded, the window written, the step committed
 *     seal_ahead          pages encoded by a worker before the step that seals them
 *     lower               pages encoded again at a lower rate
 *     saved               a cache's bytes in a file
 *     storage             memory: made, copied, counted, released
 *     step                a step of new tokens
 *     fill                a cache of random tokens, through the steps
 *     batch               the layers of a step of several sequences
 *     ops                 kv_ops, of caches in one or two parts (kv/parts.h) */
#ifndef TERSE_BACKEND_CPU_KV_STATE_H
#define TERSE_BACKEND_CPU_KV_STATE_H

#include "backend/cpu/codec/index.h"
#include "backend/cpu/codec/prepared.h"
#include "backend/cpu/kv/position_scores.h"
#include "backend/cpu/kv/rotary.h"
#include "base/size.h"
#include "kv/cache.h"
#include "kv/deal.h"

/* Anchors are tokens of sealed pages that stay exact: their rows in half precision, which readers use in place of the
 * codes. There are for every layer, KV head and side the same number of them, in order of their tokens,
 *     [layers][Hk][2]{uint32 token[capacity], half rows[capacity][hd]}
 * keys as the pages hold them, rotated or not. */
struct anchors {
    uint8_t *memory;
    size_t capacity; /* of cache_base.n_anchors */
};

/* A selection says which tokens of the sealed pages a step reads; methods with an index have one (select.h). */
struct selection {
    uint32_t *listed; /* [capacity] numbers of page sets: those whose tokens are chosen from, then those that are read whole */
    size_t capacity;
    size_t candidates, dense; /* page sets of the first and of the second kind */
    size_t max_tokens;        /* that a KV head reads of the candidates */
    size_t tokens;            /* of the step, which choose each for itself */
    size_t packed;            /* segments of chosen tokens, as many for each KV head */
    uint32_t *counts;         /* [Hk] tokens that were chosen */
    uint32_t *starts;         /* [Hk][packed]: a segment begins with slot starts % 64 of page starts / 64 of the head's read list */
    uint8_t *memory;          /* scores, chosen tokens and tables, laid out by select.c: `counts` and `starts` too */
    size_t bytes;
};

/* Scratch is memory of a step: shared by the threads, then each thread's own, then the step's new keys once more where a prefill
 * wants them rotated but they are stored before rotation. */
struct scratch {
    float *memory;
    size_t floats;            /* allocated */
    size_t shared, of_thread; /* of the step in progress */
};

/* An exchange is the memory of exchange.c: the states of so many queries, and those of other ranks. */
struct exchange {
    float *memory;
    size_t floats; /* allocated */
    size_t count;
};

struct seal_worker; /* seal_ahead.c */

struct cache {
    struct cache_base base;
    const struct cpu_codec *codec[2];    /* the method's, by side */
    const struct cpu_index *index;       /* the method's; NULL: it has none, or keys are ranked by their codec */
    const struct cpu_codebook *codebook; /* the method's, as the CPU reads it; NULL: it has none */
    uint32_t group;                      /* G = Hq / Hk */
    bool keys_rotated; /* sealed pages and the window hold keys rotated to their own positions; else keys as they were before, which
                        * are rotated where they are read, as exact rows always are */
    bool keys_in_rope_runs; /* with keys_rotated: but sealed pages hold keys rotated by their offset in a run (codec.h) */
    struct rotary rotary;
    struct position_scores positions; /* without pairs where the codec of keys keeps no mean apart */

    size_t largest_page[2];   /* bytes, by side */
    size_t window_page_bytes; /* of a page of the window, f16 */
    bool index_in_keys;       /* the index's page is the beginning of the page of keys */

    /* These are the data that codecs and the index learned of this sequence, [layers][Hk][fitted_bytes]: the codecs' parts by side,
     * then the index's. */
    uint8_t *fitted;
    size_t fitted_bytes, fitted_side_bytes[2];
    float *fit_rows; /* of the step that fits; fit.c */
    size_t fit_floats;

    uint8_t **window_sets; /* [n_window_sets] of [layers][Hk]{key page, value page}, used from 0 on */
    size_t n_window_sets;
    uint16_t *exact;     /* exact rows, [layers][Hk][keys, values][parameters.exact][hd] */
    float *exact_logits; /* exact.h; where steps replace exact rows */
    struct anchors anchors;
    struct seal_worker *seal_worker; /* made when it is first needed */

    /* The next members are of the step in progress. */
    size_t attended;       /* work items of attend_prefill that are done */
    size_t layer_sealed;   /* pages of the layer that seal_some has come past */
    bool sealed_first;     /* its new tokens are read from their pages: CACHE_STEP_PAPER, once they lie there */
    float *k;              /* [n][Hk][hd], rotated where keys_rotated */
    const float *v;        /* [n][Hk][hd] */
    const float *new_keys; /* [n][Hk][hd], rotated as the queries are: k or a part of the scratch; NULL: there is no such copy */
    struct selection selection;
    uint8_t *gathered; /* [threads]{key page, value page}: gather.h; NULL until a step needs it */
    struct scratch scratch;
    struct exchange exchange;
    float *observed; /* of queries: anchor_scores.c's or exact.c's */
    size_t observed_floats;

    struct cache *at; /* in a first part, the part whose layer the step is in */
    /* batch.h: of a first part. */
    size_t first_row; /* of the sequence in its batch */
    uint32_t brought; /* the layer, by its number in `at`, whose k and v are noted there, but not appended yet; NO_LAYER: none */
};

/* Returns whether what the step reads is dealt to ranks: whether any page is sealed that it reads. */
static inline bool exchange_due(const struct cache *cache) {
    const struct cache_base *base = &cache->base;
    return base->shape.ranks && base->pages.n_sealed + (cache->sealed_first ? base->plan.seal : 0) > 0;
}

/* Returns whether this rank reads the tokens of a segment, the first of which is `first`. */
static inline bool exchange_reads(const struct cache *cache, uint64_t first) {
    return !exchange_due(cache) || deal_holds(&cache->base.shape, first);
}

#endif
