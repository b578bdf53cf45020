/* Codec, its execution on the CPU: how 64 keys or values are encoded, and how queries read them without unpacking. What a codec is, its
 * sizes and parameters, is format/codec.h.
 *
 * A codec is stateless and knows nothing of tokens, masks or policies. It is a row of functions, found once by cpu_codec_of; adding one
 * touches its own file, its kernels, and one row in codec.c, declared below. `decode` is the oracle that tests hold `score` and `accumulate_values` to,
 * and the path for many queries at once, where a page is decoded once and read through the GEMM.
 *
 * Shapes: hd = head_dim, G = query heads that share the KV head. Rows are float, token-major. Masked tokens are the reader's
 * business: `score` may write any finite number for a slot that holds no token, and its weight is 0 in `accumulate_values`.
 */
#ifndef TERSE_BACKEND_CPU_CODEC_CODEC_H
#define TERSE_BACKEND_CPU_CODEC_CODEC_H

#include "format/codec.h"

#define INT8_WEIGHT_LIMIT (1.0f / 64)
#define RANK_QUERIES 8   /* of prepare_rank, at most */
#define RANK_FLOATS 2048 /* that it writes for them, at most */

struct key_rotation;  /* backend/cpu/kernels/pq/pq.h */
struct index_options; /* backend/cpu/codec/index.h */

struct cpu_codec {
    const struct codec *format;

    /* What the CPU makes of a codebook's parameters, for codecs that learn; else NULL. `learned_new` makes of parameters[codec_parameters]
     * of one layer, KV head and side, which codec_check_parameters has accepted, what the functions below find in shape.learned; it is
     * immutable, shared by threads, and released by learned_free, which accepts NULL. learned_new takes a shape without `learned`, copies
     * what it needs, and may fail for lack of memory. */
    enum terse_status (*learned_new)(struct codec_shape shape, enum codec_side side, const float *parameters, void **learned,
                                     struct terse_error *error);
    void (*learned_free)(void *learned);
    /* Its memory: of one that was made, and of one that learned_new would make of parameters whose first part (CODEBOOK_CENTROIDS) is
     * `halves`. The latter allocates nothing. */
    size_t (*learned_bytes)(const void *learned);
    size_t (*predict_learned_bytes)(struct codec_shape shape, enum codec_side side, const uint16_t *halves);

    /* What a codec learns of a sequence: instead of from a codebook where it is `fitted`, beside one where it learns transforms; else NULL.
     * `fit` makes fitted[codec_fitted_bytes], floats, of the first rows of a layer, KV head and side that are sealed: rows[n][hd] that lie
     * `stride` floats apart, n >= 1. Whoever keeps the pages keeps it as long as they and hands it over as shape.fitted; that of keys begins
     * with what the codec's index learns. Where shape.fitted is NULL, a codec of transforms goes by the codebook alone. */
    void (*fit)(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, size_t stride,
                const struct index_options *options, void *fitted);

    /* Writes all of page[codec_page_bytes]: rows[n][hd], n <= 64; slots past n hold zeros. Deterministic. */
    void (*encode)(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page);
    /* rows[64][hd]. */
    void (*decode)(struct codec_shape shape, enum codec_side side, const void *page, float *rows);

    /* Copies the tokens in slots[n] of a page to slots at, at + 1, ..., at + n - 1 of `to`, a page of the same shape, whose other
     * slots keep theirs: so tokens worth reading are packed and read together. They decode to the same bits there. `to` is zeros to
     * begin with, and may hold tokens of an earlier use. Of the sides that the format's `gather` names. */
    void (*gather_tokens)(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n,
                          void *to, size_t at);
    /* Prefetches what gather_tokens of the same tokens will copy, to be called a few pages ahead; NULL: not worth it. */
    void (*prefetch_tokens)(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n);

    /* Keys: logits[G][64] = <q[G][hd], key>, queries rotated as the keys are, scaled by the caller. Where `query_floats` is not NULL
     * and query_floats(shape) > 0, `prepare_queries` may have been called once for these queries and has then written so many floats,
     * look-up tables or queries in fixed point; without it `tables` is NULL. What is prepared may differ from head to head, as what was
     * learned does. */
    size_t (*query_floats)(struct codec_shape shape);
    void (*prepare_queries)(struct codec_shape shape, const float *q, float *tables);
    void (*score)(struct codec_shape shape, const float *q, const float *tables, const void *page, float *logits);
    /* Keys whose pages find tokens by themselves, where the format's index is index_components; else NULL. `prepare_rank` prepares
     * q[G][hd], G <= RANK_QUERIES, which are rotated as the keys are. `rank` then ranks the tokens of a page by the logits of query g as far as the
     * page's first rank_bytes tell, 256 to a unit, so that ranks[64] of all queries and pages compare; returns the largest, at most 65534. */
    size_t (*rank_bytes)(struct codec_shape shape);
    void (*prepare_rank)(struct codec_shape shape, const float *q, float *tables);
    uint16_t (*rank)(struct codec_shape shape, const float *tables, size_t g, const void *page, uint16_t *ranks);
    /* Keys by channel, channels[hd][64]: how readers that must rotate keys before they meet a query want them, so of keys before
     * rotation, and of f16, the window's. The other codecs of keys have it for their tests. */
    void (*channels)(struct codec_shape shape, const void *page, float *channels);
    /* As score, for keys before rotation: the one in slot t is rotated by *rotation's angles of t before it meets the queries. NULL:
     * the reader takes `channels` and rotates them. */
    void (*score_rotated)(struct codec_shape shape, const float *q, const struct key_rotation *rotation, const void *page,
                          float *logits);

    /* Prefetches what reading so many pages takes of what was learned, all of it out of cache: a codebook is read in no order, and
     * each line would be waited for on its own. NULL: not worth it. */
    void (*prefetch_codebook)(struct codec_shape shape, enum codec_side side, size_t pages);

    /* Values: acc[G][hd] += weights[G][64] times the values. NULL: a codec of keys alone. */
    void (*accumulate_values)(struct codec_shape shape, const float *weights, const void *page, float *acc);
    /* The same, faster, where every weight is at most INT8_WEIGHT_LIMIT of the sum of its query's weights: weights may be rounded to a
     * 254th of the page's largest. NULL: there is no faster way. */
    void (*accumulate_values_int8)(struct codec_shape shape, const float *weights, const void *page, float *acc);
    /* The same in two steps where code_sum_floats is not NULL and code_sum_floats(shape) > 0: accumulate_by_code adds the weights up
     * by code in so many floats, zeros to begin with, over any number of pages, and finish_code_sums adds to acc[G][hd] what they come
     * to. accumulate_by_code_int8 is to it as accumulate_values_int8 to accumulate_values; NULL: there is no faster way. */
    size_t (*code_sum_floats)(struct codec_shape shape);
    /* Whether the int8 way serves weights of any size: codes so short that their own error is larger. NULL: never. */
    bool (*int8_suffices)(struct codec_shape shape);
    void (*accumulate_by_code)(struct codec_shape shape, const float *weights, const void *page, float *code_sums);
    void (*accumulate_by_code_int8)(struct codec_shape shape, const float *weights, const void *page, float *code_sums);
    /* accumulate_by_code_int8 of the weights exp(logits[G][64] - largest[G]), whose sums it adds to sums[G]: for pages of which all slots
     * are live, where int8_suffices. No logit is larger than its query's largest. NULL: there is no faster way. */
    void (*accumulate_logits)(struct codec_shape shape, const float *logits, const float *largest, const void *page,
                              float *code_sums, float *sums);
    void (*finish_code_sums)(struct codec_shape shape, const float *code_sums, float *acc);
};

/* The CPU's functions of a codec. */
const struct cpu_codec *cpu_codec_of(const struct codec *codec);

/* The rows of the table, one file each; kivi.c has two, pq.c pq and vq. */
extern const struct cpu_codec cpu_codec_f16, cpu_codec_q8_0, cpu_codec_q4_0, cpu_codec_kivi_4, cpu_codec_kivi_2, cpu_codec_sign,
    cpu_codec_pq, cpu_codec_vq, cpu_codec_gain_shape, cpu_codec_commvq, cpu_codec_additive, cpu_codec_transform;

#endif
