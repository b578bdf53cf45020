/* Computes the scores of positions. About a page's middle, the cosines of a token and of its mirror image are equal and the sines
 * opposite, so that the products for half of the tokens serve all. */
#include "backend/cpu/kv/position_scores.h"

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "base/memory.h"

#include <math.h>

#define MIDDLE (POSITION_HALF - 0.5)

_Static_assert(2 * POSITION_HALF == PAGE_TOKENS && 2 * POSITION_PAIRS_MAX == CODEC_HEAD_DIM_MAX, "kernels score whole pages");
_Static_assert(POSITION_SLACK <= PRE_ROPE_SLACK, "kernels read whole registers of angles");

static size_t middle_floats(const struct position_scores *own) { return 2 * ROPE_RUN_TOKENS * own->stride; }
static size_t wave_floats(const struct position_scores *own) { return 2 * POSITION_HALF * own->pre_rope.pairs; }

uint64_t position_scores_bytes(const struct position_scores *own) {
    const size_t pairs = own->pre_rope.pairs;
    if (!pairs) return 0;
    return (middle_floats(own) + wave_floats(own) + 2 * PRE_ROPE_OFFSETS * pairs + PRE_ROPE_SLACK) * sizeof(float);
}

enum terse_status position_scores_new(const struct rope *rope, struct position_scores *own, struct terse_error *error) {
    enum terse_status status = pre_rope_new(rope, &own->pre_rope, error);
    own->stride = POSITION_STRIDE(own->pre_rope.pairs);
    if (status || !own->stride) return status;
    own->middle = memory_zeros(middle_floats(own) + wave_floats(own), sizeof *own->middle);
    if (!own->middle)
        return status_no_memory(error, (middle_floats(own) + wave_floats(own)) * sizeof *own->middle, "rotation tables");
    own->waves = own->middle + middle_floats(own);
    for (size_t i = 0; i < own->pre_rope.pairs; i++) {
        const double angle = (double)rope->frequency[i];
        for (size_t offset = 0; offset < ROPE_RUN_TOKENS; offset++) {
            own->middle[2 * offset * own->stride + i] = (float)cos(((double)offset + MIDDLE) * angle);
            own->middle[(2 * offset + 1) * own->stride + i] = (float)sin(((double)offset + MIDDLE) * angle);
        }
        for (size_t j = 0; j < POSITION_HALF; j++) {
            own->waves[2 * i * POSITION_HALF + j] = (float)cos(((double)j + 0.5) * angle);
            own->waves[(2 * i + 1) * POSITION_HALF + j] = (float)sin(((double)j + 0.5) * angle);
        }
    }
    return TERSE_OK;
}

void position_scores_free(struct position_scores *own) {
    pre_rope_free(&own->pre_rope);
    memory_free(own->middle);
    *own = (struct position_scores){0};
}

/* Computes the products of a query and the mean as complex numbers, conj(q) m: even[pairs], which multiplies cosines, and
 * odd[pairs], which multiplies sines. */
static inline void multiply_pairs(size_t step, size_t apart, size_t pairs, const float *restrict q, const float *restrict m,
                                  float *restrict even, float *restrict odd) {
#pragma omp simd
    for (size_t i = 0; i < pairs; i++) {
        const float a = q[step * i], b = q[step * i + apart], c = m[step * i], d = m[step * i + apart];
        even[i] = a * c + b * d;
        odd[i] = b * c - a * d;
    }
}

void position_products(const struct position_scores *own, const float *mean, const float *q, size_t rows, size_t hd,
                       float *products) {
    const struct rope *rope = own->pre_rope.rope;
    const size_t pairs = own->pre_rope.pairs;
    for (size_t m = 0; m < rows; m++, q += hd) {
        float *even = products + 2 * m * own->stride, *odd = even + own->stride;
        for (size_t i = pairs; i < own->stride; i++) even[i] = odd[i] = 0;
        if (rope->pairing == ROPE_ADJACENT)
            multiply_pairs(2, 1, pairs, q, mean, even, odd);
        else
            multiply_pairs(1, rope->n_rot / 2, pairs, q, mean, even, odd);
    }
}

void position_scores_add(const struct position_scores *own, const float *products, size_t rows, uint64_t first, float *logits) {
    const float *rotation = own->middle + 2 * own->stride * (size_t)(first % ROPE_RUN_TOKENS);
    if (own->pre_rope.pairs) vector_ops()->score_positions(products, rows, own->pre_rope.pairs, rotation, own->waves, logits);
}

void position_scores_add_slots(const struct position_scores *own, const float *products, size_t rows, uint64_t first,
                               const uint8_t *slots, size_t n, float *logits) {
    const size_t pairs = own->pre_rope.pairs;
    const float *angles = own->pre_rope.angles + 2 * (size_t)(first % ROPE_RUN_TOKENS) * pairs;
    if (pairs) vector_ops()->score_position_slots(products, rows, pairs, angles, slots, n, logits);
}
