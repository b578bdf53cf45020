/* This template scores and accumulates for any number of queries, by kernels for up to TOGETHER (4) of them. A file that defines
 * ISA and the following includes it once:
 *
 *     score_queries(R, layout, codes, gains, queries, ahead, logits) R a constant: as the functions of transform/ops.h; ahead: prefetches
 *     accumulate_queries(R, layout, codes, weights, scales, out)
 *
 * It defines score_ISA and accumulate_ISA. */
#include "backend/cpu/kernels/compiler.h"

/* clang-format off */
/* Each number has a function of its own, or clang keeps the sums in memory. */
#define SPECIAL(R) \
    static __attribute__((noinline)) void score_##R(const struct transform_layout *layout, const void *codes, const float *gains, \
                                                    const struct transform_query *queries, float *logits) { \
        score_queries(R, layout, codes, gains, queries, true, logits); \
    } \
    static __attribute__((noinline)) void accumulate_##R(const struct transform_layout *layout, const void *codes, \
                                                         const uint8_t *weights, const float *scales, float *out) { \
        accumulate_queries(R, layout, codes, weights, scales, out); \
    }
/* clang-format on */
SPECIAL(1)
SPECIAL(2)
SPECIAL(3)
SPECIAL(4)

static void PASTE(score, ISA)(const struct transform_layout *layout, const void *codes, const float *gains,
                              const struct transform_query *queries, size_t G, float *logits) {
    for (; G >= 4; G -= 4, queries += 4, logits += 4 * PAGE_TOKENS) score_4(layout, codes, gains, queries, logits);
    if (G == 3) score_3(layout, codes, gains, queries, logits);
    if (G == 2) score_2(layout, codes, gains, queries, logits);
    if (G == 1) score_1(layout, codes, gains, queries, logits);
}

static void PASTE(accumulate, ISA)(const struct transform_layout *layout, const void *codes, const uint8_t *weights,
                                   const float *scales, size_t G, float *out) {
    const size_t row = (size_t)layout->planes * TRANSFORM_SUM_LANES;
    for (; G >= 4; G -= 4, weights += 4 * PAGE_TOKENS, scales += 4, out += 4 * row)
        accumulate_4(layout, codes, weights, scales, out);
    if (G == 3) accumulate_3(layout, codes, weights, scales, out);
    if (G == 2) accumulate_2(layout, codes, weights, scales, out);
    if (G == 1) accumulate_1(layout, codes, weights, scales, out);
}
