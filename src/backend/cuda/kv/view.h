/* Declares the kernels' view of the caches in a step, and the few shapes that go with it. Plain C, for C and CUDA C++ alike. The
 * host fills these structs in and kernels read them from device memory, so that a graph of a step's kernels may be replayed while
 * sequences grow.
 *
 * Shapes: Hq query heads, Hk KV heads, G = Hq/Hk, hd head_dim. A page is 64 tokens of one layer, KV head and side, its bytes those
 * of the CPU (format/page_layout.h); pages are multiples of 64 bytes and aligned to 64.
 *
 * Sealed pages hold keys as their codec takes them: rotated by their own position, or in runs of ROPE_RUN_TOKENS by their offset
 * from the run's first position (format/codec.h). Everywhere else keys are halves rotated by their own position, rope's magnitude
 * included, as queries are. */
#ifndef TERSE_BACKEND_CUDA_KV_VIEW_H
#define TERSE_BACKEND_CUDA_KV_VIEW_H

#include "format/commvq.h"
#include "format/page_layout.h"
#include "format/shape.h"
#include "format/transform.h"
#include "kv/read_list.h"
#include "model/rope.h"

#include <stdbool.h>

#ifdef __CUDACC__
#include <cuda_fp16.h>
typedef __half device_half;
#else
typedef uint16_t device_half; /* IEEE half precision; C only passes pointers to it on */
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A head_view describes the heads of all caches of a model; kernels take it by value. */
struct head_view {
    uint32_t layers, query_heads, kv_heads, head_dim; /* Hq a multiple of Hk */
    float scale;                                      /* logits = scale <q, k> */
    uint32_t n_rot;                                   /* rotated channels, 0: none */
    enum rope_pairing pairing;
    const float *slopes; /* device [Hq], ALiBi: slope (key's position - query's) is added to a logit; NULL: none */
    const float *sinks;  /* device [layers][Hq]: the logit of a key without a value, which queries see besides; NULL: none */
    float cap;           /* logits become cap tanh(logits / cap) after the scale; 0: they do not */
    float magnitude;     /* rope's: rotated channels of keys and queries are multiplied by it */
    uint32_t window;     /* a query sees the newest so many keys alone, its own included; 0: all */
};

/* A rotary_view gives the angle at any position as the sum of its run's and its slot's. It lies in device memory, without the
 * magnitude. */
struct rotary_view {
    uint32_t n_rot; /* 0: nothing is rotated */
    enum rope_pairing pairing;
    float magnitude;
    const float *runs;  /* [runs][n_rot / 2][cosine, sine] of 0, ROPE_RUN_TOKENS, ... */
    const float *slots; /* [ROPE_RUN_TOKENS or more][n_rot / 2][cosine, sine] of 0, 1, ... */
};

/* A place_view says where the sealed pages of a layer and KV head lie: the bytes of a page by side, and of all pages of a page set
 * before it. Device [layers][Hk]. */
struct place_view {
    uint64_t offset;
    uint32_t bytes[2];
};

/* A page_set_view has 64 tokens in all layers and heads, in a chunk of `sets` page sets: [layers][Hk]{key pages [sets], value pages
 * [sets], pages of an index [sets], where it has any}. */
struct page_set_view {
    uint8_t *chunk;
    uint32_t sets, index; /* of the chunk, and which of them this is */
    uint32_t first;       /* token of slot 0 */
    uint16_t count;       /* slots that hold tokens, the first ones */
    uint16_t generated;   /* not 0: steps that choose a prompt's tokens read these whatever they score */
};

/* A rate_view has the tables of pages of one rate (kv/rates.h) that replace those of a launch, which all sequences of a method share at
 * the method's own rate: where transforms were fitted to the sequence, or pages were lowered. All are on the device, [layers][Hk];
 * NULL: the launch's serve. */
struct rate_view {
    const struct place_view *places;
    const struct transform_view *transforms[2]; /* by side */
};
#define RATE_VIEWS 9 /* METHOD_RATES */

#ifdef __CUDACC__
#define TERSE_DEVICE static __host__ __device__ inline
#else
#define TERSE_DEVICE static inline
#endif

TERSE_DEVICE uint8_t *page_address(const struct page_set_view *set, const struct place_view *place, int side) {
    return set->chunk + set->sets * (place->offset + (side ? place->bytes[0] : 0)) + (uint64_t)set->index * place->bytes[side];
}

/* Returns where a layer and KV head's page of an index begins, of so many bytes. */
TERSE_DEVICE uint8_t *index_address(const struct page_set_view *set, const struct place_view *place, uint32_t bytes) {
    return set->chunk + set->sets * (place->offset + place->bytes[0] + place->bytes[1]) + (uint64_t)set->index * bytes;
}

/* A row_span says of rows from `row` on, up to the next span's, that they are the tokens from `token` on. */
struct row_span {
    uint32_t row, token;
};

/* Says which tokens the rows of a prompt's attention are, where those of other ranks' pages have none: device spans[n], the first one from row 0
 * on. */
struct row_places {
    const struct row_span *spans; /* NULL: row r is token r */
    uint32_t n;
};

/* Returns the last span that begins at a row that is not behind `row`. */
TERSE_DEVICE uint32_t span_of_row(const struct row_places *places, uint32_t row) {
    uint32_t low = 0, high = places->n;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (places->spans[middle].row <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Returns the token of a row, and goes on to its span from an earlier one or the same. */
TERSE_DEVICE uint32_t token_of_row(const struct row_places *places, uint32_t row, uint32_t *span) {
    while (*span + 1 < places->n && places->spans[*span + 1].row <= row) ++*span;
    return places->spans[*span].token + row - places->spans[*span].row;
}

/* Returns the first position of the run that the keys of a page are rotated from; `first` is the page's first token. */
TERSE_DEVICE uint32_t run_of(uint32_t first) { return first - first % ROPE_RUN_TOKENS; }

/* A sequence_view is one sequence as it is read in a step; device [sequences]. Lists are those of kv/read_list.h with pages on the
 * device, where `page` numbers page_sets. The step's own tokens are among the exact rows and in the window, of which a query reads
 * none that comes after it. No page is packed before it is read (n_chosen is 0).
 *
 * A token of a page whose key or value is an anchor has a row of halves behind those of the first tokens: of a side that is
 * no anchor, the row is what its code decodes to. Such tokens are not read from their pages, whatever the codec. */
struct sequence_view {
    const struct page_set_view *page_sets; /* the block table, of as many page sets as any list has pages at least */
    struct read_list list;                 /* of all layers and KV heads, unless they have their own */
    const struct read_list *own; /* [Hk] lists for the layer in progress, pages in order of tokens; NULL: all read `list` */
    uint32_t first_exact;        /* so many first tokens are exact rows, as far as there are any */
    uint32_t exact_capacity;     /* rows for exact rows */
    uint32_t window_capacity;    /* rows of the window's ring, a multiple of 64 */
    uint32_t window_origin;      /* token t lies in row (t - window_origin) % window_capacity */
    device_half *exact;          /* [layers][Hk][keys, values][exact_capacity][hd], keys rotated by their token */
    device_half *window;         /* [layers][Hk][keys, values][window_capacity][hd] */
    /* These are of anchors; NULL: there are none. */
    const uint32_t *anchor_rows;   /* [layers][Hk]: how many rows there are, in place of the list's n_kept */
    const uint32_t *anchor_tokens; /* [layers][Hk][exact_capacity - first_exact]: whose rows they are, ascending */
    const uint64_t *anchored; /* [layers][Hk][anchored_pages], by page set: bit t says that the token in slot t has such a row */
    uint32_t anchored_pages;  /* later page sets have none */
    /* These are of exact rows that may be replaced (victims.h); NULL: none is. */
    device_half *unrotated; /* [layers][Hk][first_exact][hd]: their keys before rotation */
    float *first_logits;    /* [layers][Hq][FRESH_LOGITS]: of the step's queries, by their position % FRESH_LOGITS, to token 0 */
    /* The codec sign and the index sign learned this of the sequence (struct fit_sign), so many floats for each layer and KV head; NULL:
     * they learned nothing. */
    const float *own_learned;
    uint32_t learned_floats;
    struct rate_view rates[RATE_VIEWS]; /* by the rate of pages */
    /* These are read by launches of several rates. Pages are listed by rate: those of rate r from rate_first[r] on, in order of their
     * tokens, and read in rate_splits[r] parts, at least 1 where there are any. */
    uint32_t rate_first[RATE_VIEWS + 1], rate_splits[RATE_VIEWS];
};

#define FRESH_LOGITS 16 /* at least the tokens of one sequence in a decoding step */

TERSE_DEVICE const struct read_list *read_list_at(const struct sequence_view *s, uint32_t head) {
    return s->own ? &s->own[head] : &s->list;
}

TERSE_DEVICE const device_half *exact_rows_at(const struct sequence_view *s, const struct head_view *h, uint32_t layer,
                                              uint32_t head, int side) {
    return s->exact + (((uint64_t)layer * h->kv_heads + head) * 2 + side) * s->exact_capacity * h->head_dim;
}

TERSE_DEVICE device_half *window_rows_at(const struct sequence_view *s, const struct head_view *h, uint32_t layer, uint32_t head,
                                         int side) {
    return s->window + (((uint64_t)layer * h->kv_heads + head) * 2 + side) * s->window_capacity * h->head_dim;
}

TERSE_DEVICE uint32_t window_row(const struct sequence_view *s, uint32_t token) {
    return (token - s->window_origin) % s->window_capacity;
}

/* A query_row_view is a query token of a decoding step; device [rows]. Its own key and value lie in the window already; it reads
 * tokens up to its own. */
struct query_row_view {
    uint32_t sequence;   /* of the step */
    uint32_t position;   /* its token's number, which is its position */
    uint32_t splits;     /* parts that it is read in, at least 1; at most the launch's */
    uint32_t first_part; /* how many parts the rows before it have */
    uint32_t first;      /* the first token that it sees; 0: it sees all that its list names */
    /* A row whose sequence has lists of its heads' own chooses so many tokens that are no anchors, of so many rope runs; 0: of all. */
    uint32_t tokens_read, runs_read;
};

/* Keys' mean before rotation is rotated by these angles: of tokens' offsets from the position of their page's run (kv/pre_rope.h).
 * They lie in device memory. */
struct pre_rope_view {
    uint32_t pairs;            /* pre_rope_pairs: the first ones of a head, which alone have a part in the mean */
    const float *offsets;      /* [PRE_ROPE_OFFSETS][n_rot / 2][cosine, sine] of 0, 1, ... */
    const uint32_t *fragments; /* pre_rope_fragments: what attention multiplies with */
};

/* A quad has up to two planes, whose levels add up to its own. */
struct transform_quad {
    uint8_t planes, plane[2]; /* how many, at most 2, and which */
};

/* Kernels read the codec transform of a layer, KV head and side so: `learned` of a launch, device [layers][Hk]. */
struct transform_view {
    struct transform_layout layout;
    float gain_zero, gain_step, gain; /* transform_gain_zero, _step; of rows, for TRANSFORM_NO_MEAN_GAIN */
    const float *mean, *size;         /* [hd] */
    const float *pre_rope_mean;       /* [hd], of keys (struct pre_rope_view); zeros of values */
    const float *unit;                /* [hd] of each component's integers, and `step` times its size: size unit */
    const float *step;
    const int16_t *basis; /* [component][channel]: row c, times step_c, is what a component of 1 adds; integers to +-32767 */
    /* [hd][hd], transform_metric: basis metric (row - mean) are the coefficients y size; the profile's, of both. Each number, times a power
     * of two, is a half at metric_place, and METRIC_REST halves further on lies what this leaves; behind them all, as a float, the inverse
     * of that power. */
    const uint32_t *metric;
    const uint32_t *readers; /* transform_readers: what attention knows of the planes */
    /* Of keys: by how many planes tokens are chosen, and in how many nibbles these and the rest of their group of 4 lie. */
    uint16_t score_planes, score_nibbles;
    struct transform_quad quad[TRANSFORM_QUADS_MAX];
};
#define METRIC_BLOCK 16 /* rows and columns that a warp multiplies at a time */
#define METRIC_REST 8
/* Returns at which half a number of a view's metric lies: of each METRIC_BLOCK rows and columns a lane's part, as struct row_block of
 * transform_product.cuh has it, behind the other lanes'. */
TERSE_DEVICE size_t metric_place(size_t hd, size_t row, size_t column) {
    const size_t block = row / METRIC_BLOCK * (hd / METRIC_BLOCK) + column / METRIC_BLOCK, lane = row % 8 * 4 + column % 16 / 4;
    return (block * 32 + lane) * 2 * METRIC_REST + column % 4 / 2 * 4 + row % 16 / 8 * 2 + column % 2;
}

#define TRANSFORM_READERS_STEP 8 /* planes, of which readers are a multiple */

/* A centroid_shape has `width` and `bits` of a side's coding (format/codec.h). */
struct centroid_shape {
    uint32_t width, bits; /* channels of a sub-vector, bits of its code; 0: a codec without sub-vectors */
};

/* Kernels read a codec with centroids of a layer, KV head and side so: `learned` of a launch, device [layers][Hk]. */
struct centroid_view {
    struct centroid_shape shape;
    const device_half *centroids; /* [2^bits][hd]: sub-vectors with the same code follow one another */
    const float *origin; /* [hd], and of each sub-vector scale[hd / width] and half[hd / width][2^bits]: format/pq.h's search */
    const float *scale, *half;
    const float *most; /* [hd / width], the largest half of each sub-vector */
    const float *z; /* [hd][2^bits]; NULL where codes have more than PQ_CHANNEL_BITS: it would be twice as large as the centroids */
    bool
        normalized; /* rows are mean + gain * centroids, gains the page's first bytes (format/normalization.h); else centroids as they are */
    float gain_scale;  /* of normalized rows */
    const float *mean; /* [hd], zeros where they are not normalized */
};

/* Kernels read CommVQ's keys (format/commvq.h) of a layer and KV head so: `learned` of a launch, device [layers][Hk]. Sub-vectors
 * have 32 or 64 pairs, which are numbered through all of them, as RoPE's are. A row of a table is COMMVQ_ROW bytes: in units of
 * 16, the real parts of 8 pairs and then their imaginary parts, each number plus COMMVQ_MIDDLE; where sub-vectors have 32 pairs it
 * is there twice. */
struct commvq_view {
    uint32_t subvectors, rounds;
    uint32_t
        rotated_pairs; /* pairs that RoPE rotates: channels (2 i, 2 i + 1) if adjacent, else (i, i + rotated_pairs); others are neighbours */
    bool adjacent;
    const uint8_t *rows; /* [subvectors][rounds][COMMVQ_ENTRIES][COMMVQ_ROW] */
    const float *steps;  /* [hd / 2] */
    /* These are of the search, for each sub-vector and round: [a][b], half the square of z[a] + i z[b]; the same as 16-bit integers, in an
     * order of its own; what it needs beside them (encode_commvq_search.cuh). */
    float *half;
    uint32_t *coarse; /* [COMMVQ_ENTRIES^2 / 2] */
    float *limits;    /* [COMMVQ_LIMITS] */
    float gain_scale;
    const float *mean; /* [hd] */
};
#define COMMVQ_ROW 128
#define COMMVQ_MIDDLE 64
#define COMMVQ_LIMITS 4

/* Returns where the real part of a sub-vector's pair j lies in a row; the imaginary part lies 8 bytes behind it. */
TERSE_DEVICE uint32_t commvq_place(uint32_t j) { return j / 8 * 16 + j % 8; }

/* Kernels read CommVQ's values of a layer and KV head so. */
struct additive_view {
    uint32_t codes;                 /* bits of a token's code, rows of C = low + step levels */
    const uint8_t *levels;          /* [codes][hd] */
    const float *low, *step, *mean; /* [hd] */
    float gain_scale;
    float *couplings; /* [codes][codes]: a quarter of the products of two rows, 0 of one with itself; of the search */
    float *offset;    /* [codes]: their sums, those of rows with themselves included */
};

#ifdef __cplusplus
}
#endif

#endif
