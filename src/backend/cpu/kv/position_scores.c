/* Scores of positions. About a page's middle, the cosines of a token and of its mirror image are equal and the sines opposite, so that the
 * products for half of the tokens serve all. */
#include "backend/cpu/kv/position_scores.h"

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

#define ROWS_TOGETHER 16 /* queries whose products lie on the stack */
#define MIDDLE (HALF_PAGE - 0.5)

_Static_assert(HALF_PAGE % 16 == 0, "columns that `multiply` takes together");

enum terse_status position_scores_new(const struct rope *rope, struct position_scores *own, struct terse_error *error) {
    enum terse_status status = pre_rope_new(rope, &own->pre_rope, error);
    const size_t pairs = own->pre_rope.pairs, floats = 2 * pairs * (HALF_PAGE + 1);
    if (status || !pairs) return status;
    if (!(own->middle = memory_array(floats, sizeof *own->middle)))
        return status_no_memory(error, floats * sizeof *own->middle, "rotation tables");
    own->cosine = own->middle + 2 * pairs;
    own->sine = own->cosine + pairs * HALF_PAGE;
    for (size_t i = 0; i < pairs; i++) {
        const double angle = (double)rope->frequency[i];
        own->middle[i] = (float)cos(MIDDLE * angle);
        own->middle[pairs + i] = (float)sin(MIDDLE * angle);
        for (size_t j = 0; j < HALF_PAGE; j++) {
            own->cosine[i * HALF_PAGE + j] = (float)cos(((double)j + 0.5) * angle);
            own->sine[i * HALF_PAGE + j] = (float)sin(((double)j + 0.5) * angle);
        }
    }
    return TERSE_OK;
}

void position_scores_free(struct position_scores *own) {
    pre_rope_free(&own->pre_rope);
    memory_free(own->middle);
    *own = (struct position_scores){0};
}

/* mean[hd] as it is turned at a page's middle. */
static void turn_to_middle(const struct position_scores *own, const float *mean, uint64_t first, size_t hd, float *to) {
    const struct pre_rope *p = &own->pre_rope;
    float turned[CODEC_HEAD_DIM_MAX] = {0};
    pre_rope_add(p, 1, mean, first, turned, 1, (uint32_t)hd);
    memset(to, 0, hd * sizeof *to);
    pre_rope_add_row(p->rope, p->pairs, own->middle, own->middle + p->pairs, 1, turned, to);
}

/* The products of a query and the mean as complex numbers, conj(q) m: even[pairs], what multiplies cosines, and odd[pairs], sines. */
static inline void multiply_pairs(size_t step, size_t apart, size_t pairs, const float *restrict q, const float *restrict m,
                                  float *restrict even, float *restrict odd) {
#pragma omp simd
    for (size_t i = 0; i < pairs; i++) {
        const float a = q[step * i], b = q[step * i + apart], c = m[step * i], d = m[step * i + apart];
        even[i] = a * c + b * d;
        odd[i] = b * c - a * d;
    }
}

void position_scores_add(const struct position_scores *own, const float *mean, uint64_t first, const float *q, size_t rows,
                         size_t hd, float *logits) {
    const struct pre_rope *p = &own->pre_rope;
    const size_t pairs = p->pairs;
    float middle[CODEC_HEAD_DIM_MAX], products[2][ROWS_TOGETHER * CODEC_HEAD_DIM_MAX / 2], parts[2][ROWS_TOGETHER][HALF_PAGE];
    if (!pairs) return;
    turn_to_middle(own, mean, first, hd, middle);
    for (size_t from = 0, n; from < rows; from += n) {
        n = rows - from < ROWS_TOGETHER ? rows - from : ROWS_TOGETHER;
        for (size_t m = 0; m < n; m++) {
            const float *row = q + (from + m) * hd;
            float *even = products[0] + m * pairs, *odd = products[1] + m * pairs;
            if (p->rope->pairing == ROPE_ADJACENT)
                multiply_pairs(2, 1, pairs, row, middle, even, odd);
            else
                multiply_pairs(1, p->rope->n_rot / 2, pairs, row, middle, even, odd);
        }
        vector_ops()->multiply(products[0], n, pairs, pairs, own->cosine, HALF_PAGE, HALF_PAGE, parts[0][0], HALF_PAGE);
        vector_ops()->multiply(products[1], n, pairs, pairs, own->sine, HALF_PAGE, HALF_PAGE, parts[1][0], HALF_PAGE);
        for (size_t m = 0; m < n; m++) {
            float *restrict to = logits + (from + m) * PAGE_TOKENS;
            for (size_t j = 0; j < HALF_PAGE; j++) {
                to[HALF_PAGE + j] += parts[0][m][j] + parts[1][m][j];
                to[HALF_PAGE - 1 - j] += parts[0][m][j] - parts[1][m][j];
            }
        }
    }
}

void position_scores_add_slot(const struct position_scores *own, const float *mean, uint64_t first, size_t slot, const float *q,
                              size_t rows, size_t hd, float *logits) {
    const struct pre_rope *p = &own->pre_rope;
    const float *angles = p->angles + 2 * ((size_t)(first % ROPE_RUN_TOKENS) + slot) * p->pairs;
    float turned[CODEC_HEAD_DIM_MAX] = {0};
    if (!p->pairs) return;
    pre_rope_add_row(p->rope, p->pairs, angles, angles + p->pairs, 1, mean, turned);
    for (size_t m = 0; m < rows; m++) logits[m * PAGE_TOKENS] += vector_ops()->dot(q + m * hd, turned, hd);
}

uint16_t position_scores_add_ranks(const struct position_scores *own, const float *mean, uint64_t first, const float *q, size_t hd,
                                   uint16_t *ranks) {
    float scores[PAGE_TOKENS] = {0};
    uint16_t largest = 0;
    position_scores_add(own, mean, first, q, 1, hd, scores);
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        float rank = (float)ranks[t] + RANK_UNIT * scores[t];
        rank = rank > 0 ? rank : 0;
        ranks[t] = (uint16_t)(rank < RANK_MOST ? rank : RANK_MOST);
        largest = ranks[t] > largest ? ranks[t] : largest;
    }
    return largest;
}
