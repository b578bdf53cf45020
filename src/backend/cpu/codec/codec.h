/* Declares the execution of a codec on the CPU: how 64 keys or values are encoded, and how queries read them without unpacking.
 * format/codec.h says what a codec is, with its sizes and parameters.
 *
 * A codec is stateless and knows nothing of tokens, masks or policies. It is a row of a table, found once by cpu_codec_of: a core
 * that every codec has, and optional parts that make it faster or that only some codecs need. Adding a codec touches its own file,
 * its kernels and one row in codec.c, declared below; docs/architecture.md says how. `decode` is the oracle that tests hold `score`
 * and `accumulate_values` to, and the path for many queries at once, where a page is decoded once and read through the GEMM.
 *
 * Shapes: hd = head_dim, G = query heads that share the KV head. Rows are float, token-major. The reader masks tokens: `score` may
 * write any finite number for a slot that holds no token, and its weight is 0 in `accumulate_values`. */
#ifndef TERSE_BACKEND_CPU_CODEC_CODEC_H
#define TERSE_BACKEND_CPU_CODEC_CODEC_H

#include "format/codec.h"

#define INT8_WEIGHT_LIMIT (1.0f / 64)
#define RANK_QUERIES 8   /* of codec_ranks.prepare, at most */
#define RANK_FLOATS 2048 /* that it writes for them, at most */
#define RANK_MOST 65534

struct key_rotation;  /* backend/cpu/kernels/pq/pq.h */
struct index_options; /* backend/cpu/codec/index.h */

/* ---- Optional parts of a codec. A part is whole: where it is there, so are its functions, but for those that may be NULL by their comment. */

/* Codecs that learn have these functions, which make the CPU's form of a codebook's parameters. Functions of other parts find it in
 * shape.learned. */
struct codec_learned {
    /* Makes `learned` from parameters[codec_parameters] of one layer, KV head and side, which codec_check_parameters has accepted.
     * It is immutable, shared by threads, and released by `free`, which accepts NULL. `make` takes a shape without `learned`,
     * copies what it needs, and may fail for lack of memory. */
    enum terse_status (*make)(struct codec_shape shape, enum codec_side side, const float *parameters, void **learned,
                              struct terse_error *error);
    void (*free)(void *learned);
    /* Return its memory: of one that was made, and of one that `make` would make of parameters whose first part
     * (CODEBOOK_CENTROIDS) is `halves`. The latter allocates nothing. */
    size_t (*bytes)(const void *learned);
    size_t (*predict_bytes)(struct codec_shape shape, enum codec_side side, const uint16_t *halves);
    /* Prefetches what reading so many pages takes of it, when all of it is out of cache: a codebook is read in no order, and each
     * line would be waited for on its own. NULL: it is not worth it. */
    void (*prefetch)(struct codec_shape shape, enum codec_side side, size_t pages);
};

/* Key codecs that read many pages with the same queries have these: `prepare` makes floats(shape) floats of q[G][hd] once, look-up
 * tables or queries in fixed point, which `score` then takes as `tables`. floats(shape) may be 0, which means that nothing is
 * prepared, and may differ from head to head, as what was learned does. */
struct codec_queries {
    size_t (*floats)(struct codec_shape shape);
    void (*prepare)(struct codec_shape shape, const float *q, float *tables);
};

/* Key codecs whose pages find tokens by themselves, where the format's index is index_components, have these. `prepare` prepares
 * q[G][hd], G <= RANK_QUERIES, which are rotated as the keys are. `rank` then ranks the tokens of a page by the logits of query g
 * as far as the page's first bytes(shape) tell them, plus added[64]. A logit of 1 is 256, so that ranks[64] of all queries and pages
 * compare. It returns the largest, at most RANK_MOST. */
struct codec_ranks {
    size_t (*bytes)(struct codec_shape shape);
    void (*prepare)(struct codec_shape shape, const float *q, float *tables);
    uint16_t (*rank)(struct codec_shape shape, const float *tables, size_t g, const void *page, const float *added,
                     uint16_t *ranks);
};

/* These functions compute the sums of codec_code_sums by integer products. */
struct codec_integer_sums {
    /* Returns whether they serve weights of any size: for codes so short that their own error is larger. */
    bool (*suffice)(struct codec_shape shape);
    /* Adds like codec_code_sums.add, but weights are rounded as accumulate_values_int8 may round them. */
    void (*add)(struct codec_shape shape, const float *weights, const void *page, float *code_sums);
    /* Adds like `add` the weights exp(logits[G][64] - largest[G]), and adds their sums to sums[G]. It is for pages of which all slots are live,
     * where integer sums suffice. No logit is larger than its query's largest. */
    void (*add_logits)(struct codec_shape shape, const float *logits, const float *largest, const void *page, float *code_sums,
                       float *sums);
};

/* Value codecs that accumulate in two steps, where floats(shape) > 0, have these: `add` adds the weights up by code in so many
 * floats, zeros to begin with, over any number of pages, and `finish` adds to acc[G][hd] the values that these sums give. */
struct codec_code_sums {
    size_t (*floats)(struct codec_shape shape);
    /* Returns how many floats a query has where they are [G][row], and then [G] sums of weights: few enough that a partial state keeps them, to
     * be finished once, when all parts are merged. NULL: they are too many, and are finished before the largest logit may change. */
    size_t (*row)(struct codec_shape shape);
    void (*add)(struct codec_shape shape, const float *weights, const void *page, float *code_sums);
    void (*finish)(struct codec_shape shape, const float *code_sums, float *acc);
    const struct codec_integer_sums *integer; /* NULL: there is no faster way */
};

/* ---- A row */

struct cpu_codec {
    const struct codec *format;

    /* These are the core. A codec of keys alone has no `accumulate_values`, one of values alone neither `score` nor `channels`; all
     * else is required. */

    /* Writes all of page[codec_page_bytes]: rows[n][hd], n <= 64; slots past n hold zeros. Deterministic. */
    void (*encode)(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page);
    /* Writes rows[64][hd]. */
    void (*decode)(struct codec_shape shape, enum codec_side side, const void *page, float *rows);
    /* Computes, for keys, logits[G][64] = <q[G][hd], key>, with queries rotated as the keys are and scaled by the caller. `tables`
     * is what `queries` prepared of them; NULL where nothing was. */
    void (*score)(struct codec_shape shape, const float *q, const float *tables, const void *page, float *logits);
    /* Writes keys by channel, channels[hd][64]. Readers that must rotate keys before they multiply them by a query want them so:
     * those of keys before rotation, and of f16, the window's. The other codecs of keys have it for their tests. */
    void (*channels)(struct codec_shape shape, const void *page, float *channels);
    /* Computes, for values, acc[G][hd] += weights[G][64] times the values. */
    void (*accumulate_values)(struct codec_shape shape, const float *weights, const void *page, float *acc);
    /* Copies the tokens in slots[n] of a page to slots at, at + 1, ..., at + n - 1 of `to`, a page of the same shape, whose other
     * slots keep theirs, so that tokens worth reading are packed and read together. They decode to the same bits there. `to` begins
     * as zeros, and may hold tokens of an earlier use. It serves the sides that the format's `gather` names; NULL where it names
     * none. */
    void (*gather_tokens)(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n,
                          void *to, size_t at);

    /* Only some codecs need these; they are NULL in the rows of the others. */

    const struct codec_learned *learned; /* codecs that learn (format->learner) */
    /* Learns from a sequence instead of from a codebook: the codec is `fitted`. Makes fitted[codec_fitted_bytes], floats, of the first keys of
     * a layer and KV head that are sealed: rows[n][hd] that lie `stride` floats apart, n >= 1. The cache keeps it as long as its pages and
     * hands it over as shape.fitted; it begins with what the codec's index learns. */
    void (*fit)(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, size_t stride,
                const struct index_options *options, void *fitted);
    const struct codec_ranks *ranks; /* format->index is index_components */
    /* Returns the mean before rotation, [hd], of the keys that the shape's parameters were learned from: it has been subtracted
     * from the keys in pages (kv/pre_rope.h). */
    const float *(*pre_rope_mean)(struct codec_shape shape);

    /* These make some codecs faster; where they are NULL, readers take the core. */

    const struct codec_queries *queries;
    const struct codec_code_sums *code_sums;
    /* Scores keys that are stored before rotation: the key in slot t is rotated by *rotation's angles of t before it is multiplied by the queries;
     * otherwise as `score`. If it is NULL, the reader takes `channels` and rotates them. */
    void (*score_rotated)(struct codec_shape shape, const float *q, const struct key_rotation *rotation, const void *page,
                          float *logits);
    /* Accumulates like accumulate_values, but weights may be rounded to a 254th of the page's largest. Every weight is at most INT8_WEIGHT_LIMIT
     * of the sum of its query's weights. */
    void (*accumulate_values_int8)(struct codec_shape shape, const float *weights, const void *page, float *acc);
    /* Prefetches what gather_tokens of the same tokens will copy, to be called a few pages ahead. */
    void (*prefetch_tokens)(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n);
};

/* Return how many floats a codec's queries are prepared in, and how many its values' weights are added up in; 0 when it does not do
 * so. */
static inline size_t cpu_codec_query_floats(const struct cpu_codec *codec, struct codec_shape shape) {
    return codec->queries ? codec->queries->floats(shape) : 0;
}
static inline size_t cpu_codec_code_sum_floats(const struct cpu_codec *codec, struct codec_shape shape) {
    return codec->code_sums ? codec->code_sums->floats(shape) : 0;
}

/* Returns the CPU's functions of a codec. */
const struct cpu_codec *cpu_codec_of(const struct codec *codec);

/* These are the rows of the table, one file each; kivi.c has two, pq.c pq and vq. */
extern const struct cpu_codec cpu_codec_f16, cpu_codec_q8_0, cpu_codec_q4_0, cpu_codec_kivi_4, cpu_codec_kivi_2, cpu_codec_sign,
    cpu_codec_pq, cpu_codec_vq, cpu_codec_gain_shape, cpu_codec_commvq, cpu_codec_additive, cpu_codec_transform;

#endif
