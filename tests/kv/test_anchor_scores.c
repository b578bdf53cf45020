/* Anchor Scores (AnTKV) of the CPU: they are what their definition says, the bounds that they come from hold, and the right tokens
 * stay exact. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/page_pool.h"
#include "base/half.h"
#include "support/oracle_runs.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Scores, by themselves: one layer, one KV head, two query heads */

enum { HD = 32, G = 2, TOKENS = 500, /* not a multiple of any tile */ FIRST = 4 /* tokens before it are exact tokens */ };

struct bare {
    float frequency[HD / 2], k[TOKENS * HD], v[TOKENS * HD], q[TOKENS * G * HD];
    double a[TOKENS * G][TOKENS]; /* attention, explicitly */
    struct rope rope;
    struct cache_shape shape;
    struct method method;
    struct cache *cache;
};

static void set_attention(struct bare *b, size_t n) {
    for (size_t r = 0; r < n * G; r++) {
        double sum = 0;
        for (size_t j = 0; j <= r / G; j++) {
            double logit = 0;
            for (size_t c = 0; c < HD; c++) logit += (double)b->q[r * HD + c] * (double)b->k[j * HD + c];
            sum += b->a[r][j] = exp(logit * (double)b->shape.scale);
        }
        for (size_t j = 0; j <= r / G; j++) b->a[r][j] /= sum;
    }
}

/* Makes a step of n tokens up to the choice of anchors, without rotation. */
static struct bare *bare_new_scored(size_t n, uint32_t anchors, int threads, bool zero_values, enum terse_anchor_score score) {
    struct bare *b = calloc(1, sizeof *b);
    uint32_t random = 7;
    float *all[] = {b->k, b->v, b->q};
    const size_t counts[] = {n * HD, n * HD, n * G * HD};
    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < counts[i]; j++) {
            random = random * 1664525u + 1013904223u;
            all[i][j] = i == 1 && zero_values ? 0 : 4 * ((float)(random >> 8) / (1 << 24) - 0.5f);
        }
    b->rope = (struct rope){ROPE_ADJACENT, HD, 0, b->frequency, 1};
    b->shape = (struct cache_shape){1, G, 1, HD, 1 / sqrtf(HD), &b->rope, .slopes = NULL};
    set_attention(b, n);
    struct terse_cache_options options = {.method = "q4_0", .tail_tokens = 0, .anchor_count = anchors, .anchor_score = score};
    struct terse_error error;
    if (method_resolve(&options, HD, &b->method, &error)) fail_msg("%s", error.message);
    if (cache_create(&b->shape, &b->method, (uint32_t)threads, &b->cache, &error)) fail_msg("%s", error.message);
    if (cache_begin(b->cache, Q, n, &error)) fail_msg("%s", error.message);
    assert_int_equal(cache_append(b->cache, 0, b->k, b->v, NULL), TERSE_OK);
    for (size_t first = 0; first < n; first += 130)
        assert_int_equal(cache_observe(b->cache, b->q + first * G * HD, first, n - first < 130 ? n - first : 130, NULL), TERSE_OK);
    return b;
}

static struct bare *bare_new(size_t n, uint32_t anchors, int threads, bool zero_values) {
    return bare_new_scored(n, anchors, threads, zero_values, TERSE_ANCHORS_SQUARED);
}

static void bare_free(struct bare *b) {
    cache_destroy(b->cache);
    free(b);
}

/* The scores of a token from FIRST on without the error that they were multiplied by: decoded rows tell it. */
static double bare_score(struct bare *b, enum codec_side side, size_t token, size_t n) {
    const float *rows = side == CODEC_KEYS ? b->k : b->v;
    const struct codec_shape shape = {.head_dim = HD, .group = 1};
    size_t sealed = (n - FIRST + 1) / 2 * 2, at = token - FIRST;
    float decoded[64 * HD], error = 0;
    cpu_codec_q4_0.decode(shape, side, page_at(b->cache, &b->cache->base.pages.sets[at / 64], side, 0, 0), decoded);
    for (size_t c = 0; c < HD; c++) error += powf(rows[token * HD + c] - decoded[at % 64 * HD + c], 2);
    return (double)(b->cache->observed[(side == CODEC_VALUES) * sealed + at] / error);
}

static void scores_are_those_of_explicit_softmax_rows(void **state) {
    (void)state;
    static const size_t lengths[] = {5, 6, 63, 65, 68, 69, 384, 385, TOKENS};
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        size_t n = lengths[l];
        struct bare *b = bare_new(n, 1, 2, false);
        double spent = 0;
        for (size_t j = 0; j < n; j++) {
            double keys = 0, values = 0;
            for (size_t r = j * G; r < n * G; r++) {
                double norm = 0, a = b->a[r][j];
                for (size_t c = 0; c < HD; c++) norm += (double)b->q[r * HD + c] * (double)b->q[r * HD + c];
                keys += a * (1 - a) * sqrt(norm);
                values += a;
            }
            spent += j < FIRST ? values : bare_score(b, CODEC_VALUES, j, n);
            if (j < FIRST) continue;
            assert_true(fabs(bare_score(b, CODEC_KEYS, j, n) - keys) <= 1e-5 * (keys + 1));
            assert_true(fabs(bare_score(b, CODEC_VALUES, j, n) - values) <= 1e-5 * values);
        }
        assert_true(fabs(spent - (double)(n * G)) <= 1e-5 * (double)(n * G));
        bare_free(b);
    }
}

/* Theorem 3.1: for values exactly, for keys to first order, with the constant 2/sqrt(hd) of the rigorous form in terms of 2-norms. */
static void errors_move_outputs_by_no_more_than_the_bounds(void **state) {
    (void)state;
    enum { N = 200 };
    struct bare *b = bare_new(N, 1, 1, false);
    double *moved = calloc((size_t)N * HD, sizeof *moved), value_bound = 0, value_change = 0, key_bound = 0, key_change = 0,
           largest = 0;
    for (size_t i = FIRST * HD; i < N * HD; i++) moved[i] = sin((double)i * 7.3);
    for (size_t j = FIRST; j < N; j++) {
        double norm1 = 0, norm2 = 0, value = 0;
        for (size_t c = 0; c < HD; c++) {
            norm1 += fabs(moved[j * HD + c]);
            norm2 += moved[j * HD + c] * moved[j * HD + c];
            value = fmax(value, fabs((double)b->v[j * HD + c]));
        }
        value_bound += bare_score(b, CODEC_VALUES, j, N) * norm1;
        key_bound += 2 / sqrt(HD) * bare_score(b, CODEC_KEYS, j, N) * 1e-4 * sqrt(norm2);
        largest = fmax(largest, value);
    }
    for (size_t r = 0; r < N * G; r++) {
        double change[HD] = {0}, logits[N], sum = 0;
        for (size_t j = 0; j <= r / G; j++) {
            double shift = 0;
            for (size_t c = 0; c < HD; c++) {
                change[c] += b->a[r][j] * moved[j * HD + c];
                shift += (double)b->q[r * HD + c] * 1e-4 * moved[j * HD + c];
            }
            sum += logits[j] = b->a[r][j] * exp(shift * (double)b->shape.scale);
        }
        for (size_t c = 0; c < HD; c++) value_change += fabs(change[c]);
        for (size_t j = 0; j <= r / G; j++) key_change += fabs(logits[j] / sum - b->a[r][j]);
    }
    assert_true(value_change <= value_bound && value_change > 1e-3 * value_bound);
    assert_true(key_change <= 1.001 * key_bound && key_change > 1e-3 * key_bound);
    free(moved);
    bare_free(b);
}

/* ---- The choice */

static struct anchor_rows all_anchors(const struct bare *b, enum codec_side side) { return anchors_of(b->cache, side, 0); }

static void anchors_are_distinct_in_order_and_of_the_prompt(void **state) {
    (void)state;
    static const uint32_t counts[] = {1, 2, 9, 50, TOKENS, 10 * TOKENS};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct bare *b = bare_new(TOKENS, counts[i], 2, false);
        for (int side = 0; side < 2; side++) {
            struct anchor_rows chosen = all_anchors(b, side ? CODEC_VALUES : CODEC_KEYS);
            assert_int_equal(chosen.n, counts[i] < TOKENS - FIRST ? counts[i] : TOKENS - FIRST);
            for (size_t a = 0; a < chosen.n; a++) {
                assert_true(chosen.tokens[a] >= FIRST && chosen.tokens[a] < TOKENS &&
                            (!a || chosen.tokens[a] > chosen.tokens[a - 1]));
                const float *row = (side ? b->v : b->k) + chosen.tokens[a] * HD;
                for (size_t c = 0; c < HD; c++) assert_true(chosen.rows[a * HD + c] == half_from_float(row[c]));
            }
        }
        bare_free(b);
    }
}

static void of_equal_tokens_the_older_stay(void **state) {
    (void)state;
    struct bare *b = bare_new(TOKENS, 7, 2, true); /* zeros are exact in any code: all errors are 0 */
    struct anchor_rows chosen = all_anchors(b, CODEC_VALUES);
    assert_int_equal(chosen.n, 7);
    for (size_t a = 0; a < 7; a++) assert_int_equal(chosen.tokens[a], FIRST + a);
    bare_free(b);
}

/* Random scores spread the anchors over the prompt, whatever the errors: here all errors of values are 0. */
static void random_anchors_lie_anywhere(void **state) {
    (void)state;
    enum { N = 100 };
    struct bare *b = bare_new_scored(TOKENS, N, 2, true, TERSE_ANCHORS_RANDOM);
    struct anchor_rows keys = all_anchors(b, CODEC_KEYS), values = all_anchors(b, CODEC_VALUES);
    size_t late = 0;
    assert_true(keys.n == N && values.n == N);
    for (size_t a = 0; a < N; a++) {
        assert_true(values.tokens[a] >= FIRST && values.tokens[a] < TOKENS && (!a || values.tokens[a] > values.tokens[a - 1]));
        late += values.tokens[a] >= TOKENS / 2;
    }
    assert_true(late > N / 4 && late < N * 3 / 4);
    assert_memory_not_equal(keys.tokens, values.tokens, N * sizeof *keys.tokens);
    bare_free(b);
}

static void the_choice_does_not_depend_on_threads(void **state) {
    (void)state;
    struct bare *one = bare_new(TOKENS, 50, 1, false), *three = bare_new(TOKENS, 50, 3, false);
    for (int side = 0; side < 2; side++) {
        struct anchor_rows a = all_anchors(one, side ? CODEC_VALUES : CODEC_KEYS),
                           b = all_anchors(three, side ? CODEC_VALUES : CODEC_KEYS);
        assert_memory_equal(a.tokens, b.tokens, 50 * sizeof *a.tokens);
    }
    bare_free(one);
    bare_free(three);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_those_of_explicit_softmax_rows),
        cmocka_unit_test(errors_move_outputs_by_no_more_than_the_bounds),
        cmocka_unit_test(anchors_are_distinct_in_order_and_of_the_prompt),
        cmocka_unit_test(of_equal_tokens_the_older_stay),
        cmocka_unit_test(random_anchors_lie_anywhere),
        cmocka_unit_test(the_choice_does_not_depend_on_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
