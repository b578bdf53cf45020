/* Has the reference that reads pages of the codec transform. */
#include "backend/cpu/kernels/transform/init.h"
#include "format/transform_codes.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* Reads the levels of a plane, [t][i]. */
static void read_levels(const struct transform_layout *layout, size_t p, const uint8_t *codes, enum codec_side side,
                        int8_t (*levels)[TRANSFORM_QUAD]) {
    for (size_t t = 0; t < PAGE_TOKENS; t++)
        for (size_t i = 0; i < TRANSFORM_QUAD; i++) levels[t][i] = (int8_t)transform_level(&layout->plane[p], codes, side, t, i);
}

static void gains_scalar(const uint8_t codes[64], float least, float step, float gains[64]) {
    for (size_t t = 0; t < PAGE_TOKENS; t++) gains[t] = least + step * (float)codes[t];
}

static void quantize_query_scalar(const struct transform_layout *layout, const float *products, float *steps, int32_t *bias,
                                  int8_t *weights) {
    const struct transform_plane *plane = layout->plane;
    for (size_t first = 0; first < layout->planes; first += TRANSFORM_STEP_PLANES, steps++, bias++) {
        const size_t end = first + TRANSFORM_STEP_PLANES < layout->planes ? first + TRANSFORM_STEP_PLANES : layout->planes;
        float largest = 0;
        for (size_t p = first; p < end; p++)
            for (size_t i = 0; i < TRANSFORM_QUAD; i++)
                largest = fmaxf(largest, fabsf(plane[p].scale * products[plane[p].quad * TRANSFORM_QUAD + i]));
        float inverse = largest > 0 && 127 / largest < INFINITY ? 127 / largest : 0;
        memset(weights + first * TRANSFORM_QUAD, 0, TRANSFORM_STEP_PLANES * TRANSFORM_QUAD);
        *steps = largest / 127;
        *bias = 0;
        for (size_t p = first; p < end; p++) {
            for (size_t i = 0; i < TRANSFORM_QUAD; i++) {
                float x = plane[p].scale * products[plane[p].quad * TRANSFORM_QUAD + i] * inverse;
                weights[p * TRANSFORM_QUAD + i] = (int8_t)lrintf(x);
                *bias -= (int32_t)transform_most(plane[p].bits) * weights[p * TRANSFORM_QUAD + i];
            }
        }
    }
}

/* Levels are read once for all G queries. */
static void score_scalar(const struct transform_layout *layout, const void *codes, const float *gains,
                         const struct transform_query *queries, size_t G, float *logits) {
    int8_t levels[TRANSFORM_STEP_PLANES][PAGE_TOKENS][TRANSFORM_QUAD];
    memset(logits, 0, G * PAGE_TOKENS * sizeof *logits);
    for (size_t first = 0; first < layout->planes; first += TRANSFORM_STEP_PLANES) {
        const size_t n = layout->planes - first < TRANSFORM_STEP_PLANES ? layout->planes - first : TRANSFORM_STEP_PLANES;
        for (size_t p = 0; p < n; p++) read_levels(layout, first + p, codes, CODEC_KEYS, levels[p]);
        for (size_t m = 0; m < G; m++) {
            const int8_t *weights = queries[m].weights + first * TRANSFORM_QUAD;
            int32_t group[PAGE_TOKENS] = {0};
            for (size_t p = 0; p < n; p++)
                for (size_t t = 0; t < PAGE_TOKENS; t++)
                    for (size_t i = 0; i < TRANSFORM_QUAD; i++) group[t] += weights[p * TRANSFORM_QUAD + i] * levels[p][t][i];
            for (size_t t = 0; t < PAGE_TOKENS; t++)
                logits[m * PAGE_TOKENS + t] += queries[m].steps[first / TRANSFORM_STEP_PLANES] * (float)group[t];
        }
    }
    for (size_t m = 0; m < G; m++)
        for (size_t t = 0; t < PAGE_TOKENS; t++)
            logits[m * PAGE_TOKENS + t] = queries[m].offset + gains[t] * logits[m * PAGE_TOKENS + t];
}

static uint16_t rank_scalar(const struct transform_layout *layout, const void *page, float least, float step,
                            const struct transform_query *query, const float *added, uint16_t ranks[64]) {
    float gains[PAGE_TOKENS], logits[PAGE_TOKENS];
    uint16_t most = 0;
    gains_scalar(page, least, step, gains);
    score_scalar(layout, (const uint8_t *)page + PAGE_TOKENS, gains, query, 1, logits);
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        float rank = 256 * (logits[t] + added[t]) + 32768.5f;
        ranks[t] = (uint16_t)(rank > 0 ? (rank < TRANSFORM_RANK_MOST ? rank : TRANSFORM_RANK_MOST) : 0); /* NaN gives 0 */
        most = ranks[t] > most ? ranks[t] : most;
    }
    return most;
}

static void quantize_weights_scalar(const float *weights, const float *gains, size_t G, size_t planes, uint8_t *bytes,
                                    float *scales, float *sums) {
    const float whole = planes == 1 ? 255 : 65535;
    for (size_t m = 0; m < G; m++, weights += PAGE_TOKENS) {
        float largest = 0, sum = 0;
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            largest = fmaxf(largest, weights[t] * gains[t]);
            sum += weights[t];
        }
        float inverse = largest > TRANSFORM_LEAST_WEIGHT ? whole / largest : 0, scale = inverse > 0 ? largest / whole : 0;
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            unsigned integer = (unsigned)(weights[t] * gains[t] * inverse + 0.5f);
            if (planes > 1) bytes[m * PAGE_TOKENS + t] = (uint8_t)(integer >> 8);
            bytes[((planes - 1) * G + m) * PAGE_TOKENS + t] = (uint8_t)integer;
        }
        if (planes > 1) scales[m] = 256 * scale;
        scales[(planes - 1) * G + m] = scale;
        sums[m] += sum;
    }
}

static void weigh_scalar(const float *logits, const float *largest, const float *gains, size_t G, uint8_t *bytes, float *scales,
                         float *sums) {
    for (size_t m = 0; m < G; m++) {
        float weights[PAGE_TOKENS];
        for (size_t t = 0; t < PAGE_TOKENS; t++)
            weights[t] = largest[m] == -INFINITY ? 0 : expf(logits[m * PAGE_TOKENS + t] - largest[m]);
        quantize_weights_scalar(weights, gains, 1, 1, bytes + m * PAGE_TOKENS, &scales[m], &sums[m]);
    }
}

static void accumulate_scalar(const struct transform_layout *layout, const void *codes, const uint8_t *weights, const float *scales,
                              size_t G, float *sums) {
    for (size_t p = 0; p < layout->planes; p++) {
        int8_t levels[PAGE_TOKENS][TRANSFORM_QUAD];
        read_levels(layout, p, codes, CODEC_VALUES, levels);
        for (size_t m = 0; m < G; m++) {
            int32_t sum[TRANSFORM_QUAD] = {0};
            for (size_t t = 0; t < PAGE_TOKENS; t++)
                for (size_t i = 0; i < TRANSFORM_QUAD; i++) sum[i] += weights[m * PAGE_TOKENS + t] * levels[t][i];
            float *to = sums + (m * layout->planes + p) * TRANSFORM_SUM_LANES;
            for (size_t i = 0; i < TRANSFORM_QUAD; i++) to[i] += scales[m] * (float)sum[i];
        }
    }
}

static void gather_scalar(const struct transform_layout *layout, enum codec_side side, const void *from, const uint8_t *slots,
                          size_t n, void *to, size_t at) {
    for (size_t nibble = 0; nibble < layout->nibbles; nibble++)
        for (size_t k = 0; k < n; k++)
            for (size_t i = 0; i < TRANSFORM_QUAD; i++)
                transform_put(to, nibble, side, at + k, i, transform_get(from, nibble, side, slots[k], i));
}

void transform_init_scalar(struct transform_ops *ops) {
    ops->gains = gains_scalar;
    ops->quantize_query = quantize_query_scalar;
    ops->score = score_scalar;
    ops->rank = rank_scalar;
    ops->quantize_weights = quantize_weights_scalar;
    ops->weigh = weigh_scalar;
    ops->accumulate = accumulate_scalar;
    ops->gather = gather_scalar;
}
