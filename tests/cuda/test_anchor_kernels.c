/* Anchor Scores of the GPU against their definition in double precision, from the same floats and halves: all head sizes, groups, queries that come in
 * several launches and are dealt to several blocks, tokens before and among the queries' own; caps, ALiBi, learned sinks. */
#include "backend/cuda/device.h"
#include "backend/cuda/kv/anchor_scores.h"
#include "backend/cuda/kv/attend_prefill.h"
#include "base/half.h"
#include "no_device.h"
#include "support/kernel_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Queries are rounded to halves; a logit is the sum of hd products with them. */
#define BOUND 2e-3

struct shape {
    uint32_t head_dim, kv_heads, group;
    uint32_t n, first_query, first, n_tokens; /* queries of rows from first_query on; tokens whose scores are wanted */
    uint32_t piece, splits;                   /* queries of a launch */
    bool slopes, sinks, parts;
    float cap; /* 0: none */
};

static void *on_device(const void *data, size_t bytes) {
    void *memory = NULL;
    assert_int_equal(cudaMalloc(&memory, bytes), cudaSuccess);
    assert_int_equal(data ? device_send(memory, data, bytes) : cudaMemsetAsync(memory, 0, bytes, device_stream()), cudaSuccess);
    return memory;
}

static float slope_of(uint32_t head) { return exp2f(-1 - (float)(head % 7)); }
static float sink_of(uint32_t head) { return (float)(head % 3) - 1; }

/* expected[Hk][2][n_tokens]. */
static void define(const struct shape *s, double scale, const float *q, const float *k, double *expected) {
    const uint32_t hd = s->head_dim, heads = s->kv_heads * s->group;
    double *weights = malloc((s->first_query + s->n) * sizeof *weights);
    memset(expected, 0, (size_t)s->kv_heads * 2 * s->n_tokens * sizeof *expected);
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t h = 0; h < heads; h++) {
            const uint32_t last = s->first_query + i, kv = h / s->group;
            const float *query = q + ((size_t)i * heads + h) * hd;
            double sum = s->sinks ? exp((double)sink_of(h)) : 0, norm = 0;
            for (uint32_t c = 0; c < hd; c++) norm += (double)query[c] * (double)query[c];
            for (uint32_t j = 0; j <= last; j++) {
                double logit = 0;
                for (uint32_t c = 0; c < hd; c++) logit += (double)query[c] * (double)k[((size_t)j * s->kv_heads + kv) * hd + c];
                logit *= scale;
                if (s->cap > 0) logit = (double)s->cap * tanh(logit / (double)s->cap);
                if (s->slopes) logit += (double)slope_of(h) * ((double)j - last);
                sum += weights[j] = exp(logit);
            }
            for (uint32_t t = 0; t < s->n_tokens && s->first + t <= last; t++) {
                const double weight = weights[s->first + t] / sum;
                expected[(size_t)kv * 2 * s->n_tokens + t] += weight * (1 - weight) * sqrt(norm);
                expected[((size_t)kv * 2 + 1) * s->n_tokens + t] += weight;
            }
        }
    free(weights);
}

/* Takes the queries in pieces, attends in place, and adds up what the splits have: scores[Hk][2][n_tokens]. */
static void compute(const struct shape *s, struct head_view heads, const float *q, const uint16_t *k, size_t rows, float *scores) {
    const size_t width = (size_t)heads.query_heads * s->head_dim, numbers = (size_t)s->kv_heads * 2 * s->n_tokens;
    const uint32_t query_rows = anchor_query_rows(&heads, s->piece) * s->kv_heads;
    float *device_q = on_device(q, s->n * width * sizeof *q), *summed = malloc(s->splits * numbers * sizeof *summed);
    uint16_t *device_k = on_device(k, rows * sizeof *k);
    float *parts = s->parts ? on_device(NULL, attend_prefill_part_floats(&heads) * sizeof *parts) : NULL;
    struct anchor_scores own = {.heads = heads,
                                .k = device_k,
                                .first = s->first,
                                .n_tokens = s->n_tokens,
                                .halves = on_device(NULL, (size_t)query_rows * s->head_dim * sizeof(uint16_t)),
                                .norms = on_device(NULL, query_rows * sizeof(float)),
                                .log_sums = on_device(NULL, query_rows * sizeof(float)),
                                .scores = on_device(NULL, s->splits * numbers * sizeof(float)),
                                .splits = s->splits};
    for (uint32_t first = 0; first < s->n; first += s->piece) {
        own.q = device_q + first * width;
        own.n = s->n - first < s->piece ? s->n - first : s->piece;
        own.first_query = s->first_query + first;
        const struct attend_prefill attend = {.heads = heads,
                                              .q = own.q,
                                              .n = own.n,
                                              .first_query = own.first_query,
                                              .k = device_k,
                                              .v = device_k,
                                              .out = device_q + first * width,
                                              .log_sums = own.log_sums,
                                              .log_stride = anchor_query_rows(&heads, own.n),
                                              .parts = parts};
        assert_int_equal(prepare_anchor_queries(&own, device_stream()), cudaSuccess);
        assert_int_equal(attend_prefill_launch(&attend, device_stream()), cudaSuccess);
        assert_int_equal(add_anchor_scores(&own, device_stream()), cudaSuccess);
    }
    assert_int_equal(cudaStreamSynchronize(device_stream()), cudaSuccess);
    assert_int_equal(device_fetch(summed, own.scores, s->splits * numbers * sizeof *summed), cudaSuccess);
    memset(scores, 0, numbers * sizeof *scores);
    for (size_t i = 0; i < s->splits * numbers; i++) scores[i % numbers] += summed[i];
    free(summed);
    cudaFree(device_q), cudaFree(device_k), cudaFree(own.halves), cudaFree(own.norms), cudaFree(own.log_sums), cudaFree(own.scores),
        cudaFree(parts);
}

static void check(const struct shape *s) {
    struct random random = {s->head_dim * 7 + s->n};
    const uint32_t hd = s->head_dim, query_heads = s->kv_heads * s->group;
    const size_t queries = (size_t)s->n * query_heads * hd, rows = (size_t)(s->first_query + s->n) * s->kv_heads * hd,
                 numbers = (size_t)s->kv_heads * 2 * s->n_tokens;
    float *q = malloc(queries * sizeof *q), *k = malloc(rows * sizeof *k), *scores = malloc(numbers * sizeof *scores), of_heads[64];
    uint16_t *halves = malloc(rows * sizeof *halves);
    double *expected = malloc(numbers * sizeof *expected), worst = 0;
    for (size_t i = 0; i < queries; i++) q[i] = 2 * random_normal(&random);
    for (size_t i = 0; i < rows; i++) k[i] = half_to_float(halves[i] = half_from_float(random_normal(&random)));
    struct head_view heads = {.layers = 1,
                              .query_heads = query_heads,
                              .kv_heads = s->kv_heads,
                              .head_dim = hd,
                              .scale = 1 / sqrtf((float)hd),
                              .cap = s->cap};
    for (uint32_t h = 0; h < query_heads; h++) of_heads[h] = slope_of(h), of_heads[query_heads + h] = sink_of(h);
    float *device_heads = on_device(of_heads, 2 * query_heads * sizeof *of_heads);
    heads.slopes = s->slopes ? device_heads : NULL;
    heads.sinks = s->sinks ? device_heads + query_heads : NULL;
    define(s, (double)heads.scale, q, k, expected);
    compute(s, heads, q, halves, rows, scores);
    for (size_t i = 0; i < numbers; i++) {
        const double off = fabs((double)scores[i] - expected[i]) / (expected[i] + 1e-2); /* few weights make up the least ones */
        if (!(off <= BOUND))
            fail_msg("head_dim %u, group %u, score %zu: %g, not %g", hd, s->group, i, (double)scores[i], expected[i]);
        worst = fmax(worst, off);
    }
    printf("head_dim %u, group %u, %u queries: differences of %.5f at most\n", hd, s->group, s->n, worst);
    cudaFree(device_heads);
    free(q), free(k), free(scores), free(halves), free(expected);
}

static void scores_are_those_of_the_definition(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {64, 2, 3, 150, 0, 4, 128, 70, 1, .parts = true},       {128, 1, 4, 70, 200, 4, 192, 64, 2, .parts = true},
        {256, 1, 2, 90, 0, 0, 64, 90, 3, .parts = false},       {96, 2, 1, 65, 33, 30, 64, 65, 1, .sinks = true},
        {64, 1, 5, 80, 0, 4, 64, 30, 2, .slopes = true},        {128, 1, 2, 66, 0, 1, 64, 66, 1, .cap = 5},
#ifndef TERSE_EMULATED_CUDA
        {128, 8, 4, 1500, 300, 4, 1600, 700, 1, .parts = true}, {128, 1, 8, 900, 4000, 4, 4736, 900, 8, .parts = true},
        {64, 2, 16, 700, 900, 4, 1280, 2048, 4, .parts = true}, {256, 2, 1, 1000, 0, 4, 960, 1000, 2, .parts = true, .cap = 30},
#endif
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) check(&shapes[i]);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(scores_are_those_of_the_definition)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
