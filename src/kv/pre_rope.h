/* A KV head's keys have a mean before rotation (pre-RoPE), which is kept apart from the codes of keys in runs (CODEC_ROPE_IN_RUN).
 *
 * A key at offset o of a run is R(o) (m + k'), with the mean m before rotation. So what keys have in common turns with the offset:
 * a transform that is the same for all tokens of a run finds no mean there but a circle in each pair of channels, and spends bits
 * on it. Codes therefore describe R(o) k', and readers add R(o) m, whose product with a query depends on positions alone. Pairs
 * that hardly turn within a run have no part in m: the transform's own mean has theirs.
 *
 * Rows are in the frame of their run. Those of a page begin at the page's first token, and the run is that token's (codec.h). */
#ifndef TERSE_KV_PRE_ROPE_H
#define TERSE_KV_PRE_ROPE_H

#include "base/status.h"
#include "format/page_layout.h"
#include "model/rope.h"

#include <stddef.h>

#define PRE_ROPE_OFFSETS (ROPE_RUN_TOKENS + PAGE_TOKENS) /* of tokens whose page begins in the run */
#define PRE_ROPE_SLACK 16                                /* floats that kernels may read behind the angles */

struct pre_rope {
    const struct rope *rope;
    size_t pairs;  /* the first ones of a head, which turn within a run */
    float *angles; /* [PRE_ROPE_OFFSETS][cosine, sine][pairs], and PRE_ROPE_SLACK zeros */
};

/* Returns how many of the first pairs hold all that turn within a run, by half a radian or more. */
size_t pre_rope_pairs(const struct rope *rope);

/* Computes the angles. The rope outlives them. A failure is TERSE_E_MEMORY. pre_rope_free accepts a zeroed struct. */
enum terse_status pre_rope_new(const struct rope *rope, struct pre_rope *own, struct terse_error *error);
void pre_rope_free(struct pre_rope *own);

/* Finds mean[hd], the m of rows[n][hd] from token `first` on, of which each 64 begin a page, and subtracts R(o) m from them. The
 * mean is 0 in channels that have no part in it. */
void pre_rope_take(const struct pre_rope *own, uint64_t first, float *rows, size_t n, uint32_t hd, float *mean);
/* Adds factor R(o) mean to rows[n][hd] of the same kind. */
void pre_rope_add(const struct pre_rope *own, float factor, const float *mean, uint64_t first, float *rows, size_t n, uint32_t hd);

/* ---- One row, by any angles cosine[pairs] and sine[pairs] */

/* Computes row[hd] += factor R m. */
void pre_rope_add_row(const struct rope *rope, size_t pairs, const float *cosine, const float *sine, float factor,
                      const float *mean, float *row);
/* Computes sum[hd] += R^-1 row, in the pairs' channels. */
void pre_rope_sum_row(const struct rope *rope, size_t pairs, const float *cosine, const float *sine, const float *row, double *sum);

#endif
