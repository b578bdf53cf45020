/* Codec: how a run of 64 keys or values is represented, and how queries read it without unpacking.
 *
 * A codec is stateless and knows nothing of tokens, masks or policies. It is a row of functions; adding one touches its own file,
 * its kernel slots, one row in codec.c and one row of tests. `decode` is the oracle that tests hold `score` and `mix` to, and the
 * path for many queries at once, where a block is decoded once and read through the GEMM.
 *
 * Shapes: hd = head_dim, G = query heads that share the KV head. Rows are float, token-major. Masked tokens are the reader's
 * business: `score` may write any finite number for a slot that holds no token, and its weight is 0 in `mix`.
 */
#ifndef TERSE_BACKEND_CPU_CODEC_CODEC_H
#define TERSE_BACKEND_CPU_CODEC_CODEC_H

#include "base/status.h"
#include "format/page_layout.h"

#include <stddef.h>

#define INT8_WEIGHT_LIMIT (1.0f / 64)
#define CODEC_HEAD_DIM_MAX 256 /* as the kernels: channels of the widest head */

enum codec_side { CODEC_KEYS, CODEC_VALUES };

/* What a codec must know about the heads it serves. */
struct codec_shape {
    uint32_t head_dim;
    uint32_t group;       /* G: queries that read together */
    uint32_t width, bits; /* vector quantizers: channels of a sub-vector and bits of its code; else 0 */
    const void *learned;  /* what `open` or `fit` made for this layer, KV head and side; else NULL */
};

/* A codec as one side of a method uses it. */
struct coding {
    const struct codec *codec;
    uint32_t width, bits;
};

/* Whether a key codec takes keys before or after rotation. With CODEC_ROPE_AFTER the cache may still hand over unrotated keys when
 * the policy moves positions; then it reads through `channels` and rotates. */
enum codec_rope { CODEC_ROPE_AFTER, CODEC_ROPE_BEFORE };

/* What finds the numbers that lie before a codec's frame: k-means of each sub-vector (2^bits centroids of `width` channels, in this
 * order), train/em.h's tables of each group of `width` channels, or train/additive.h's rows. */
enum codec_learner { CODEC_KMEANS, CODEC_EM, CODEC_ADDITIVE };

struct key_rotation;  /* backend/cpu/kernels/pq/pq.h */
struct index_options; /* backend/cpu/codec/index.h */

struct codec {
    const char *name; /* "q8_0" */
    enum codec_rope rope;
    enum codec_learner learner;

    /* TERSE_E_UNSUPPORTED when the codec cannot serve this shape (say, a head_dim it does not divide). */
    enum terse_status (*check)(struct codec_shape shape, enum codec_side side, struct terse_error *error);
    /* Exact size of a block, a multiple of 64: all accounting comes from here. */
    size_t (*page_bytes)(struct codec_shape shape, enum codec_side side);

    /* What a codec learns; NULL hooks: nothing. `parameters`: how many floats for one layer, KV head and side. `open` makes of them
     * what the hooks below find in shape.learned; it is immutable, shared by threads, and released by `close`, which accepts NULL.
     * `open` takes a shape without `learned`; it copies the parameters, refuses what is not finite (TERSE_E_FORMAT) and may fail
     * for lack of memory. */
    size_t (*parameters)(struct codec_shape shape, enum codec_side side);
    enum terse_status (*open)(struct codec_shape shape, enum codec_side side, const float *parameters, void **learned,
                              struct terse_error *error);
    void (*close)(void *learned);
    /* Memory that `open` took for it. */
    size_t (*learned_bytes)(const void *learned);
    /* Codecs whose centroids describe rows in a frame of their own, not the rows themselves; NULL: they do. `fit_normalization` sets what
     * lies behind the centroids in `parameters`, from rows[n][hd]; `normalize_row` then takes a row there, and returns by how much an
     * error in the frame is larger outside: samples weigh by its square. */
    size_t (*normalization_floats)(struct codec_shape shape,
                                   enum codec_side side); /* the last of the parameters; NULL with fit_normalization */
    void (*fit_normalization)(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, float *parameters);
    float (*normalize_row)(struct codec_shape shape, enum codec_side side, const float *parameters, float *row);
    /* Moves centroids that were just learned to where the codec reads them faster, at next to no loss; NULL: they stay. */
    void (*snap_to_grid)(struct codec_shape shape, enum codec_side side, float *parameters);

    /* What a codec learns while it runs, instead of from a codebook; NULL hooks: nothing. `fit` makes fitted[fitted_bytes], floats,
     * of the first rows of a layer, KV head and side that are sealed: rows[n][hd] that lie `stride` floats apart, n >= 1. Whoever
     * keeps the blocks keeps it as long as they and hands it over as shape.learned; keys' begins with what index_sign learns.
     * fitted_bytes may be 0 for one side, which then is not fitted and has shape.learned NULL. */
    size_t (*fitted_bytes)(struct codec_shape shape, enum codec_side side);
    void (*fit)(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, size_t stride,
                const struct index_options *options, void *fitted);

    /* Writes all of block[page_bytes]: rows[n][hd], n <= 64; slots past n hold zeros. Deterministic. */
    void (*encode)(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page);
    /* rows[64][hd]. */
    void (*decode)(struct codec_shape shape, enum codec_side side, const void *page, float *rows);

    /* Copies the tokens in slots[n] of a block to slots at, at + 1, ..., at + n - 1 of `to`, a block of the same shape, whose other
     * slots keep theirs: so tokens worth reading are packed and read together. They decode to the same bits there. `to` is zeros to
     * begin with, and may hold tokens of an earlier use. NULL, or of keys if `gathers_values_only`: scales belong to their block. */
    void (*gather_tokens)(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n,
                          void *to, size_t at);
    bool gathers_values_only;
    /* Brings nearer what `take` of the same tokens will copy, to be called a few blocks ahead; NULL: not worth it. */
    void (*prefetch_tokens)(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n);

    /* Keys: logits[G][64] = <q[G][hd], key>, queries rotated as the keys are, scaled by the caller. Where `prepared` is not NULL
     * and prepared(shape) > 0, `prepare` may have been called once for these queries and has then written so many floats, look-up
     * tables; without it `tables` is NULL. What is prepared may differ from head to head, as what was learned does. */
    size_t (*prepared)(struct codec_shape shape);
    void (*prepare)(struct codec_shape shape, const float *q, float *tables);
    void (*score)(struct codec_shape shape, const float *q, const float *tables, const void *page, float *logits);
    /* Keys by channel, channels[hd][64]: how readers that must turn keys before they meet a query want them. */
    void (*channels)(struct codec_shape shape, const void *page, float *channels);
    /* As score, for keys that lie unturned: the one in slot t is turned by *turn's angles of t before it meets the queries. NULL:
     * the reader takes `channels` and turns them. */
    void (*score_rotated)(struct codec_shape shape, const float *q, const struct key_rotation *rotation, const void *page,
                          float *logits);

    /* Brings nearer what reading so many blocks takes of what was learned, all of it lying far: a codebook is read in no order, and
     * each line then waited for on its own. NULL: not worth it. */
    void (*prefetch_codebook)(struct codec_shape shape, enum codec_side side, size_t pages);

    /* Values: acc[G][hd] += weights[G][64] times the values. */
    void (*accumulate)(struct codec_shape shape, const float *weights, const void *page,
                       float *acc); /* NULL: a codec of keys alone */
    /* The same, faster, where every weight is at most INT8_WEIGHT_LIMIT of all that its query gives: weights may be rounded to a 254th of the
     * block's largest. NULL: there is no faster way. */
    void (*accumulate_int8)(struct codec_shape shape, const float *weights, const void *page, float *acc);
    /* The same in two steps where `tallies` is not NULL and tallies(shape) > 0: `tally` adds the weights up by code in so many
     * floats, zeros to begin with, over any number of blocks, and `finish` adds to acc[G][hd] what they come to. */
    size_t (*code_sums)(struct codec_shape shape);
    void (*accumulate_by_code)(struct codec_shape shape, const float *weights, const void *page, float *code_sums);
    void (*finish_code_sums)(struct codec_shape shape, const float *code_sums, float *acc);
};

/* A `check`: TERSE_E_UNSUPPORTED unless head_dim is a multiple of 32 up to 256, what the kernels of all codecs serve. */
enum terse_status codec_check_head_dim(struct codec_shape shape, enum codec_side side, struct terse_error *error);

/* Codecs that need neither a codebook nor fitting and so can be asked for by name alone: NULL for an unknown name. */
const struct codec *codec_find(const char *name);
/* The i-th of all codecs, NULL past the last. */
const struct codec *codec_at(size_t i);

/* The rows of the table, one file each. */
extern const struct codec codec_f16, codec_q8_0, codec_q4_0;
/* kivi.c: asymmetric integers, keys by channel, values by token. */
extern const struct codec codec_kivi_4, codec_kivi_2;
/* sign.c: signs and magnitudes of centred keys, fitted while it runs (Self-Indexing KVCache); values are kivi-2's. */
extern const struct codec codec_sign;
/* pq.c: product quantization, keys after rotation (MILLION) and before (AnTKV, CQ); values are the same in both. */
extern const struct codec codec_pq, codec_vq;
/* vq of rows about their mean and at a size of 1, and a gain for each row. */
extern const struct codec codec_gain_shape;
/* comm.c: keys as sums of complex numbers that commute with RoPE (CommVQ). */
extern const struct codec codec_commvq;
/* additive.c: values as sums of rows, one bit of a code for each (CommVQ). */
extern const struct codec codec_additive;

#endif
