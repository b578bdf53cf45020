/* Declares arithmetic on vectors of floats and half floats, which every model, codec and attention uses.
 *
 * Pointers need no alignment beyond their element's unless said, here and in the other families. Arrays may be read and written
 * only within the sizes given (guard pages check that). Sums are in fp32 or exact. */
#ifndef TERSE_BACKEND_CPU_KERNELS_VECTOR_OPS_H
#define TERSE_BACKEND_CPU_KERNELS_VECTOR_OPS_H

#include "backend/cpu/kernels/cpu.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define I16_DEPTH 256     /* longest rows of multiply_i16 */
#define I16_STRIP 16      /* columns of it that lie together */
#define I16_NORM 32767.0f /* so a product of a row and a column fits 32 bits, with what rounding adds */

#define POSITION_HALF 32                                  /* tokens of half a page */
#define POSITION_PAIRS_MAX 128                            /* of score_positions */
#define POSITION_STRIDE(pairs) (((pairs) + 15) / 16 * 16) /* floats that so many pairs' numbers take: zeros follow them */
#define POSITION_SLACK 16                                 /* floats that are read behind the last token's angles */

struct vector_ops {
    /* Convert n half floats. Both directions give the same bits in every tier: round to nearest even, subnormals kept, overflow to
     * infinity, NaN kept and made quiet. */
    void (*half_to_float)(const uint16_t *half, float *out, size_t n);
    void (*float_to_half)(const float *in, uint16_t *half, size_t n);

    /* Returns <a[n], b[n]>. */
    float (*dot)(const float *a, const float *b, size_t n);
    /* Computes y[n] += scale x[n]. */
    void (*axpy)(float scale, const float *x, float *y, size_t n);
    /* Computes out[m][n] = a[m][k] b[k][n], rows lda, ldb and ldo floats apart; n is a multiple of 16. It is for products too small
     * for a library: a few queries or the rows of a page. */
    void (*multiply)(const float *a, size_t m, size_t k, size_t lda, const float *b, size_t n, size_t ldb, float *out, size_t ldo);
    /* Computes out[m][n] = a[m][k] columns[k][n]. The columns are 16-bit integers times scales[n]; rows are rounded to integers in
     * a unit of their own: the result is off by about 1e-5 of a row's norm times a column's. Columns are of norm I16_NORM at most
     * and lie in strips of 16, which are read from their beginning to their end, two neighbours of a column side by side: b[n /
     * 16][k / 2][16][2]. k is even, at most I16_DEPTH; n is a multiple of 16. It is for results that are rounded to fewer bits
     * next. */
    void (*multiply_i16)(const float *a, size_t m, size_t k, size_t lda, const int16_t *b, size_t n, const float *scales,
                         float *out, size_t ldo);
    /* Writes out[n][k], the columns that multiply_i16 reads, as rows of floats, ldo floats apart: integer times scales[n]. */
    void (*columns_to_float)(const int16_t *b, size_t k, size_t n, const float *scales, float *out, size_t ldo);
    /* Rotates rows[n][stride] in place by the same angles: pairs of channels (2 i, 2 i + 1) where `adjacent`, else (i, i + pairs), as complex
     * numbers times cosine[pairs] + j sine[pairs]. */
    void (*rotate)(float *rows, size_t n, size_t stride, const float *cosine, const float *sine, size_t pairs, bool adjacent);
    /* Adds the scores by position of a page's tokens 32 + j and 31 - j, with the angle a_i = (j + 1/2) theta_i:
     *     logits[m][64] += sum over pairs i of e_mi cos(a_i) + o_mi sin(a_i) and of e_mi cos(a_i) - o_mi sin(a_i),
     * where (e, o) = products[m][2][stride] rotated to the page's middle by cosine, sine = rotation[2][stride]: e' = e cosine + o
     * sine, o' = o cosine - e sine. waves[pairs][cos(a_i), sin(a_i)][32]. stride = POSITION_STRIDE(pairs), pairs POSITION_PAIRS_MAX
     * at most. */
    void (*score_positions)(const float *products, size_t rows, size_t pairs, const float *rotation, const float *waves,
                            float *logits);
    /* Does the same for tokens slots[n] of the page, n <= 64: logits[m][k], 64 floats apart, gets the score of slots[k]. The products'
     * numbers past `pairs` are zeros here. angles[64][cosine, sine][pairs] are the tokens' own, and
     * POSITION_SLACK finite floats follow them. */
    void (*score_position_slots)(const float *products, size_t rows, size_t pairs, const float *angles, const uint8_t *slots,
                                 size_t n, float *logits);
    /* Computes out = gain x / sqrt(mean of x^2 + epsilon); out may be x. */
    void (*rms_norm)(const float *x, const float *gain, float epsilon, float *out, size_t n);
    /* Computes gate = gate / (1 + exp(-gate)) * up; the relative error is at most 5e-7, and 1e-36 |up| where exp overflows. */
    void (*silu_mul)(float *gate, const float *up, size_t n);

    /* Computes x[i] = exp(x[i] - max) in place and returns their sum. The relative error of exp, given the difference as a float,
     * is at most 1e-7, and 1.4e-45 where the result is subnormal. exp(-inf) = 0 whatever max is: with max = -inf, which max()
     * returns for an empty or fully masked row, all -inf become 0 and the sum is 0. NaN stays NaN. */
    float (*exp_sum)(float *x, float max, size_t n);
    /* Returns the largest, passing over NaN; -INFINITY when n = 0. */
    float (*max)(const float *x, size_t n);
    /* Do exp_sum and max over the logits of n pages: 64 floats each, `stride` floats apart. For exp_pages no logit may exceed max;
     * the relative error of exp is at most 2e-7 + 8e-8 |x - max|, and results less than 2^-125 may be anything up to that, but are
     * 0 if max = -inf. */
    float (*exp_pages)(float *x, float max, size_t n, size_t stride);
    float (*max_pages)(const float *x, size_t n, size_t stride);

    /* Looks up the gains of the 64 tokens of a page (gain-shape codecs): out[64] = table[256] at codes[64]. */
    void (*look_up_gains)(const float *table, const uint8_t *codes, float *out);
    /* Computes scaled[64] = weights[64] times gains[64]; returns the sum of the weights. */
    float (*scale_weights)(const float *weights, const float *gains, float *scaled);
};

const struct vector_ops *vector_ops(void);
/* Returns the table of one instruction set; NULL where cpu_has() is false. */
const struct vector_ops *vector_ops_at(enum cpu_isa isa);

#endif
