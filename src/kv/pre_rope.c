/* Rotates means by the positions of their rows. */
#include "kv/pre_rope.h"

#include "base/memory.h"
#include "format/shape.h"

#include <math.h>
#include <string.h>

#define TURN_LEAST 0.5 /* radians over a run: of a pair that turns less, the run's mean keeps 98 % */

size_t pre_rope_pairs(const struct rope *rope) {
    size_t pairs = rope ? rope->n_rot / 2 : 0;
    while (pairs && !((double)rope->frequency[pairs - 1] * ROPE_RUN_TOKENS >= TURN_LEAST)) pairs--;
    return pairs;
}

enum terse_status pre_rope_new(const struct rope *rope, struct pre_rope *own, struct terse_error *error) {
    float cosine[CODEC_HEAD_DIM_MAX / 2], sine[CODEC_HEAD_DIM_MAX / 2];
    *own = (struct pre_rope){.rope = rope, .pairs = pre_rope_pairs(rope)};
    const size_t pairs = own->pairs;
    if (!pairs) return TERSE_OK;
    own->angles = memory_zeros(PRE_ROPE_OFFSETS * 2 * pairs + PRE_ROPE_SLACK, sizeof *own->angles);
    if (!own->angles) return status_no_memory(error, PRE_ROPE_OFFSETS * 2 * pairs * sizeof *own->angles, "rotation tables");
    for (size_t offset = 0; offset < PRE_ROPE_OFFSETS; offset++) {
        rope_angles(rope, (int64_t)offset, cosine, sine);
        memcpy(own->angles + 2 * offset * pairs, cosine, pairs * sizeof *cosine);
        memcpy(own->angles + (2 * offset + 1) * pairs, sine, pairs * sizeof *sine);
    }
    return TERSE_OK;
}

void pre_rope_free(struct pre_rope *own) {
    memory_free(own->angles);
    *own = (struct pre_rope){0};
}

/* ---- Rows */

/* Adds factor R(o) mean to a row. Channels `apart` from each other make a pair, and pairs are `step` apart. */
static inline void add_row(size_t step, size_t apart, size_t pairs, const float *restrict cosine, const float *restrict sine,
                           float factor, const float *restrict mean, float *restrict row) {
#pragma omp simd
    for (size_t i = 0; i < pairs; i++) {
        const float a = factor * mean[step * i], b = factor * mean[step * i + apart];
        row[step * i] += a * cosine[i] - b * sine[i];
        row[step * i + apart] += a * sine[i] + b * cosine[i];
    }
}

void pre_rope_add_row(const struct rope *rope, size_t pairs, const float *cosine, const float *sine, float factor,
                      const float *mean, float *row) {
    if (rope->pairing == ROPE_ADJACENT)
        add_row(2, 1, pairs, cosine, sine, factor, mean, row);
    else
        add_row(1, rope->n_rot / 2, pairs, cosine, sine, factor, mean, row);
}

void pre_rope_sum_row(const struct rope *rope, size_t pairs, const float *cosine, const float *sine, const float *row,
                      double *sum) {
    const bool adjacent = rope->pairing == ROPE_ADJACENT;
    const size_t step = adjacent ? 2 : 1, apart = adjacent ? 1 : rope->n_rot / 2;
    for (size_t i = 0; i < pairs; i++) {
        const double a = (double)row[step * i], b = (double)row[step * i + apart], c = (double)cosine[i], s = (double)sine[i];
        sum[step * i] += a * c + b * s;
        sum[step * i + apart] += b * c - a * s;
    }
}

/* Returns cosine[pairs] of row t of pages from token `first` on; sine[pairs] follows. */
static const float *angles_of(const struct pre_rope *own, uint64_t first, size_t t) {
    const uint64_t page = first + t / PAGE_TOKENS * PAGE_TOKENS;
    return own->angles + 2 * ((size_t)(page % ROPE_RUN_TOKENS) + t % PAGE_TOKENS) * own->pairs;
}

void pre_rope_add(const struct pre_rope *own, float factor, const float *mean, uint64_t first, float *rows, size_t n, uint32_t hd) {
    for (size_t t = 0; t < n && own->pairs; t++) {
        const float *angles = angles_of(own, first, t);
        pre_rope_add_row(own->rope, own->pairs, angles, angles + own->pairs, factor, mean, rows + t * hd);
    }
}

void pre_rope_take(const struct pre_rope *own, uint64_t first, float *rows, size_t n, uint32_t hd, float *mean) {
    double sum[CODEC_HEAD_DIM_MAX] = {0};
    for (size_t t = 0; t < n && own->pairs; t++) {
        const float *angles = angles_of(own, first, t);
        pre_rope_sum_row(own->rope, own->pairs, angles, angles + own->pairs, rows + t * hd, sum);
    }
    for (size_t c = 0; c < hd; c++) mean[c] = n && isfinite(sum[c]) ? (float)(sum[c] / (double)n) : 0;
    pre_rope_add(own, -1, mean, first, rows, n, hd);
}
