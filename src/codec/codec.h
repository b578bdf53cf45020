/* Codec: how a run of 64 keys or values is represented, and how queries read it without unpacking.
 *
 * A codec is stateless and knows nothing of tokens, masks or policies. It is a row of functions; adding one touches its own file,
 * its kernel slots, one row in codec.c and one row of tests. `decode` is the oracle that tests hold `score` and `mix` to, and the
 * path for many queries at once, where a block is decoded once and read through the GEMM.
 *
 * Shapes: hd = head_dim, G = query heads that share the KV head. Rows are float, token-major. Masked tokens are the reader's
 * business: `score` may write any finite number for a slot that holds no token, and its weight is 0 in `mix`.
 */
#ifndef TERSE_CODEC_CODEC_H
#define TERSE_CODEC_CODEC_H

#include "base/status.h"
#include "codec/block_layout.h"

#include <stddef.h>

#define CODEC_HEAD_DIM_MAX 256 /* as the kernels: channels of the widest head */

enum codec_side { CODEC_KEYS, CODEC_VALUES };

/* What a codec must know about the heads it serves. */
struct codec_shape {
    uint32_t head_dim;
    uint32_t group; /* G: query heads per KV head */
};

/* Whether a key codec takes keys before or after rotation. With CODEC_ROPE_AFTER the cache may still hand over unrotated keys when
 * the policy moves positions; then it reads through `decode` and rotates. */
enum codec_rope { CODEC_ROPE_AFTER, CODEC_ROPE_BEFORE };

struct codec {
    const char *name; /* "q8_0" */
    enum codec_rope rope;

    /* TERSE_E_UNSUPPORTED when the codec cannot serve this shape (say, a head_dim it does not divide). */
    enum terse_status (*check)(struct codec_shape shape, enum codec_side side, struct terse_error *error);
    /* Exact size of a block, a multiple of 64: all accounting comes from here. */
    size_t (*block_bytes)(struct codec_shape shape, enum codec_side side);

    /* Writes all of block[block_bytes]: rows[n][hd], n <= 64; slots past n hold zeros. Deterministic. */
    void (*encode)(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *block);
    /* rows[64][hd]. */
    void (*decode)(struct codec_shape shape, enum codec_side side, const void *block, float *rows);

    /* Keys: logits[G][64] = <q[G][hd], key>, queries rotated as the keys are, scaled by the caller. */
    void (*score)(struct codec_shape shape, const float *q, const void *block, float *logits);
    /* Values: acc[G][hd] += weights[G][64] times the values. */
    void (*mix)(struct codec_shape shape, const float *weights, const void *block, float *acc);
};

/* A `check`: TERSE_E_UNSUPPORTED unless head_dim is a multiple of 32 up to 256, what the kernels of all codecs serve. */
enum terse_status codec_check_head_dim(struct codec_shape shape, enum codec_side side, struct terse_error *error);

/* NULL for an unknown name. */
const struct codec *codec_find(const char *name);
/* The i-th codec, NULL past the last. */
const struct codec *codec_at(size_t i);

/* The rows of the table, one file each. */
extern const struct codec codec_f16, codec_q8_0, codec_q4_0;

#endif
