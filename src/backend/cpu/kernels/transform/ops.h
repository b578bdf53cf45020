/* Declares the kernels that read pages of the codec transform on their codes (format/transform.h has levels and layouts,
 * format/page_layout.h the bytes). */
#ifndef TERSE_BACKEND_CPU_KERNELS_TRANSFORM_OPS_H
#define TERSE_BACKEND_CPU_KERNELS_TRANSFORM_OPS_H

#include "backend/cpu/kernels/cpu.h"
#include "format/shape.h"
#include "format/transform.h"

#include <stddef.h>
#include <stdint.h>

#define TRANSFORM_STEP_PLANES 8 /* planes of which a query's weights share a step: neighbours are of like size */
#define TRANSFORM_SUM_LANES 16  /* partial sums of a plane in `accumulate` */
#define TRANSFORM_LEAST_WEIGHT 1e-30f
#define TRANSFORM_RANK_MOST 65534 /* what is larger is left to callers */

/* A transform_query is a query as its products with the components of a layout, in integers: weight = integer * step. `bias` is,
 * for each step, minus the sum over its planes of the largest code times the integers: with it twice the product with codes is that with
 * levels, 2 code - most. */
struct transform_query {
    float offset;          /* the product with the keys' mean, added to every logit */
    const float *steps;    /* [planes / 8 rounded up], of the levels' integers: the planes' scales are in the weights */
    const int32_t *bias;   /* [planes / 8 rounded up] */
    const int8_t *weights; /* [planes rounded up to 8][4], 4-byte aligned, at most 127 in magnitude */
};

struct transform_ops {
    /* Computes gains[t] = least + step * codes[t], the gains of a page; the product may be rounded before the sum or not. */
    void (*gains)(const uint8_t codes[64], float least, float step, float gains[64]);
    /* Makes integers of a query's products with components of variance 1 (products[4 quads]): of each 8 planes the largest weight,
     * which is a plane's scale times a product, becomes 127 or -127, the others are rounded to the nearest. All weights of a step
     * are 0 where the largest is so small that 127 / largest is not finite. steps and bias [planes / 8 rounded up], weights[planes
     * rounded up to 8][4], of which those past the layout's planes are 0. */
    void (*quantize_query)(const struct transform_layout *layout, const float *products, float *steps, int32_t *bias,
                           int8_t *weights);
    /* Computes logits[m][t] = queries[m].offset + gains[t] * sum_p steps[p / 8] * sum_i weights[p][i] * integer level of component
     * i of plane p, token t. The integer sums are exact; floats are summed in the order of the planes, how many at a time, and whether
     * all biases come first, is each kernel's choice. `codes` is a page of keys behind its gains. gains[64], logits[G][64]. */
    void (*score)(const struct transform_layout *layout, const void *codes, const float *gains,
                  const struct transform_query *queries, size_t G, float *logits);
    /* Ranks tokens by the logits of one query and added[64], 256 to a unit and 32768 for a logit of 0, rounded and cut off at 0 and
     * TRANSFORM_RANK_MOST. Returns the largest. It takes a page with its gains, which are least + step * code, unlike `score`, and
     * prefetches nothing. */
    uint16_t (*rank)(const struct transform_layout *layout, const void *page, float least, float step,
                     const struct transform_query *query, const float *added, uint16_t ranks[64]);
    /* Makes values' weights integers of 8 bits (planes 1) or 16 (planes 2, the upper byte first):
     *     sum over planes b of scales[b][m] bytes[b][m][t] = weights[m][t] gains[t],
     * rounded to a 255th or 65535th of the query's largest. Products are not negative; a query's products up to
     * TRANSFORM_LEAST_WEIGHT count as 0. Adds sum_t weights[m][t] to sums[m]. weights[G][64], gains[64], bytes[planes][G][64],
     * scales[planes][G], sums[G]. */
    void (*quantize_weights)(const float *weights, const float *gains, size_t G, size_t planes, uint8_t *bytes, float *scales,
                             float *sums);
    /* Does what quantize_weights does with one plane, for the weights exp(logits[m][t] - largest[m]), each of which is off by at
     * most 1e-4 of it and 2^-125. No logit is larger than largest[m]; if that is -INFINITY, all weights are 0. logits[G][64],
     * largest[G]. */
    void (*weigh)(const float *logits, const float *largest, const float *gains, size_t G, uint8_t *bytes, float *scales,
                  float *sums);
    /* Adds to sums[m][p][lane] scales[m] * sum_t weights[m][t] * integer level of component i of plane p, token t, a part of it in each
     * lane with lane % 4 == i: each kernel chooses which tokens fall to which lane. weights[G][64] are bytes, each product sum
     * exact. `codes` is a page of values behind its gains. sums[G][planes][TRANSFORM_SUM_LANES]. */
    void (*accumulate)(const struct transform_layout *layout, const void *codes, const uint8_t *weights, const float *scales,
                       size_t G, float *sums);
    /* Copies tokens: the codes of the slots slots[n] of a page become those of slots at, at + 1, ... of another, whose other slots
     * stay. `from` and `to` are pages behind their gains. n + at <= 64. */
    void (*gather)(const struct transform_layout *layout, enum codec_side side, const void *from, const uint8_t *slots, size_t n,
                   void *to, size_t at);
};

const struct transform_ops *transform_ops(void);
/* Returns the table of one instruction set; NULL where cpu_has() is false. */
const struct transform_ops *transform_ops_at(enum cpu_isa isa);

#endif
