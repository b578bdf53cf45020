/* The CPU's caches have more than those of other backends: top-k, grids of centroids, threads, counters.
 * Attention over them equals dense attention in double precision, as test_cache has it of all backends. */
#include "backend/cpu/kv/step.h"
#include "support/cache_steps.h"
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

static const struct oracle_setup small = {
    .method = "f16", .tail = TERSE_TAIL_DEFAULT, .layers = 1, .query_heads = 4, .kv_heads = 2, .head_dim = 32};

static bool gathers(const struct codec *codec) { return codec->gather != CODEC_GATHERS_NOTHING; }

/* Tokens packed into other pages, rotated one by one, or picked from pages that their keys cannot leave: the same tokens. */
static void all_tokens_chosen_equal_dense_attention(void **state) {
    (void)state;
    static const char *const named[][3] = {{"f16", NULL, NULL},       {"q8_0", NULL, NULL},      {"q4_0", NULL, NULL},
                                           {"kivi-4", NULL, NULL},    {"kivi-2", NULL, NULL},    {"q4_0", "f16", "q8_0"},
                                           {"million-4", NULL, NULL}, {"million-3", NULL, NULL}, {"cq-1", NULL, NULL},
                                           {"cq-0.75", NULL, NULL},   {"antkv-4", NULL, NULL},   {"antkv-1", NULL, "q8_0"},
                                           {"terse-2", NULL, NULL}};
    const char *methods[sizeof named / sizeof named[0] + CODEC_COUNT][3];
    const size_t n = oracle_methods(named, sizeof named / sizeof named[0], gathers, methods);
    for (size_t m = 0; m < n; m++) {
        for (uint32_t anchors = 0; anchors < 20; anchors += 10) {
            struct oracle_setup setup = small;
            setup.method = methods[m][0];
            setup.key = methods[m][1];
            setup.value = methods[m][2];
            setup.tail = 32;
            setup.layers = 2;
            setup.anchor_count = anchors;
            setup.read_percent = 100;
            setup.head_dim = m % 2 ? 32 : 64;
            setup.seed = m;
            RUN(&setup, {P, 230, 0}, {D, 1, 0}, {D, 1, 0}, {D, 5, 0}, {D, 130, 3}, {P, 170, 0}, {D, 62, 0}, {D, 1, 0});
            RUN(&setup, {D, 100, 0}, {D, 1, 0}, {P, 170, 0}, {D, 1, 0}, {C, 200, 0}, {C, 100, 0}, {D, 2, 0});
        }
    }
}

/* Rows of DeepSeek's models, and of others, that are keys of many heads and values at once. */
static void keys_that_end_with_values_equal_dense_attention(void **state) {
    (void)state;
    static const char *const methods[] = {"f16", "q8_0", "q4_0", "kivi-4", "kivi-2"};
    static const uint32_t shapes[][3] = {{576, 64, 4}, {96, 32, 3}}; /* channels, rotated ones, query heads */
    for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            struct oracle_setup setup = {.method = methods[m],
                                         .tail = i % 2 ? TERSE_TAIL_DEFAULT : 32,
                                         .layers = 1,
                                         .query_heads = shapes[i][2],
                                         .kv_heads = 1,
                                         .head_dim = shapes[i][0],
                                         .n_rot = shapes[i][1],
                                         .latents = true,
                                         .seed = 3 * m + i};
            RUN(&setup, {P, 150, 0}, {D, 1, 0}, {D, 5, 0}, {D, 70, 3}, {P, 90, 40}, {D, 1, 0});
            RUN(&setup, {D, 80, 0}, {P, 100, 0}, {D, 1, 0}, {C, 80, 0}, {Q, 60, 0}, {D, 2, 0});
        }
    }
}

/* The same of rows that are cut into slices, with more queries than are taken together, in prompts and in steps. */
static void keys_in_slices_equal_dense_attention(void **state) {
    (void)state;
    static const struct {
        const char *method;
        uint32_t head_dim, n_rot, query_heads;
    } setups[] = {{"terse-1.5", 576, 64, 2}, {"terse-4", 96, 32, 19}, {"terse-6.5", 96, 32, 3}, {"terse-2", 64, 32, 4}};
    for (size_t i = 0; i < sizeof setups / sizeof setups[0]; i++) {
        struct oracle_setup setup = {.method = setups[i].method,
                                     .tail = 32,
                                     .layers = 1,
                                     .query_heads = setups[i].query_heads,
                                     .kv_heads = 1,
                                     .head_dim = setups[i].head_dim,
                                     .n_rot = setups[i].n_rot,
                                     .pairing = i % 2 ? ROPE_HALF_SPLIT : ROPE_ADJACENT,
                                     .latents = true,
                                     .seed = 7 * i};
        RUN(&setup, {P, 110, 0}, {D, 1, 0}, {D, 3, 0}, {P, 100, 3}, {D, 1, 0});
        if (i) RUN(&setup, {D, 80, 0}, {D, 1, 0}, {C, 230, 0}, {Q, 60, 0}, {D, 2, 0});
    }
}

/* Heads that are read faster because their centroids lie on a grid, and heads that are not, work beside each other. */
static void heads_may_be_read_in_different_ways(void **state) {
    (void)state;
    static const char *const methods[] = {"million-4", "million-2", "million-4x8", "cq-2", "antkv-2"};
    for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
        for (uint32_t snapped = 0; snapped < 16; snapped += snapped < 2 ? 1 : 13) {
            for (uint32_t G = 1; G <= 4; G++) {
                struct oracle_setup setup = small;
                setup.method = methods[m];
                setup.layers = 2;
                setup.query_heads = 2 * G;
                setup.snapped = snapped ? snapped : 6;
                RUN(&setup, {P, 200, 0}, {D, 1, 0}, {D, 3, 0});
            }
        }
    }
}

/* Keys so far from the queries that logits overflow: head 0 sees one other key, head 1 none. */
static void logits_of_minus_infinity_weigh_nothing(void **state) {
    (void)state;
    enum { N = 500, HD = 32 };
    struct oracle *o = oracle_new(&small, 1);
    struct rope rope = o->rope;
    struct cache_shape shape = o->shape;
    struct cache *cache;
    rope.n_rot = 0;
    shape.rope = &rope;
    assert_int_equal(cache_create(&shape, &o->method, 1, &cache, NULL), TERSE_OK);
    static float k[N * 2 * HD], v[N * 2 * HD], q[N * 4 * HD], out[N * 4 * HD];
    for (size_t i = 0; i < N * 2 * HD; i++) {
        k[i] = i < HD ? 0 : -1e30f;
        v[i] = oracle_random(o);
    }
    for (size_t i = 0; i < N * 4 * HD; i++) q[i] = 1e30f;
    for (size_t n = N; n >= 1; n -= N - 1) {
        step_cache(o->kv, cache, &shape, P, n, &(struct step_rows){.k = k + (N - n) * 2 * HD, .v = v, .q = q, .out = out});
        for (size_t i = 0; i < n; i++) {
            for (size_t c = 0; c < 2 * HD; c++) assert_true(fabsf(out[i * 4 * HD + c] - v[c % HD]) <= 1e-3f);
            for (size_t c = 2 * HD; c < 4 * HD; c++) assert_true(out[i * 4 * HD + c] == 0);
        }
        if (n == 1) break;
    }
    cache_destroy(cache);
    oracle_free(o);
}

/* Outputs of a prefill, a step of several tokens and a step of one, with a number of threads. */
static void run_threads(int threads, float *out) {
    enum { WIDTH = 4 * 32 };
    static const size_t steps[] = {300, 9, 1};
    int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    struct oracle *o = oracle_new(&small, 1);
    static float k[300 * 64], v[300 * 64], q[300 * WIDTH];
    for (size_t s = 0; s < 3; s++) {
        size_t n = steps[s];
        for (size_t i = 0; i < n * 64; i++) k[i] = oracle_random(o);
        for (size_t i = 0; i < n * 64; i++) v[i] = oracle_random(o);
        for (size_t i = 0; i < n * WIDTH; i++) q[i] = oracle_random(o);
        step_cache(o->kv, o->cache, &o->shape, s ? D : P, n, &(struct step_rows){.k = k, .v = v, .q = q, .out = out});
        out += n * WIDTH;
    }
    oracle_free(o);
    omp_set_num_threads(before);
}

static void the_number_of_threads_changes_nothing(void **state) {
    (void)state;
    enum { N = 310 * 4 * 32 };
    static float one[N], many[N];
    run_threads(1, one);
    for (int threads = 2; threads <= 5; threads++) {
        run_threads(threads, many);
        for (size_t i = 0; i < N; i++) assert_true(fabsf(one[i] - many[i]) <= 1e-6f);
    }
}

static void counters_say_what_was_read(void **state) {
    (void)state;
    struct oracle_setup setup = small;
    setup.method = "q8_0";
    setup.tail = 0;
    struct oracle *o = oracle_new(&setup, 400);
    struct cache_counters counters;
    oracle_step(o, P, 200, 0);
    cache_counters(o->cache, &counters, true);
    assert_int_equal(counters.bytes, 0);
    oracle_step(o, D, 1, 0); /* 4 exact tokens, 3 sealed pages and a window of one; read once, not once per query head */
    cache_counters(o->cache, &counters, true);
    assert_int_equal(counters.bytes, 2 * (4 * 2 * 64 + 3 * 2 * 64 * 34 + 2 * 64 * 64));
    assert_true(counters.seconds > 0);
    cache_counters(o->cache, &counters, false);
    assert_int_equal(counters.bytes, 0);
    oracle_free(o);
}

static void shapes_that_cannot_be_are_refused(void **state) {
    (void)state;
    struct oracle *o = oracle_new(&small, 1);
    struct terse_error error;
    struct cache *cache;
    struct cache_shape shape = o->shape;
    shape.head_dim = 80;
    assert_int_equal(cache_create(&shape, &o->method, 1, &cache, &error), TERSE_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "80"));
    assert_null(cache);
    shape = o->shape;
    shape.query_heads = 5;
    assert_int_equal(cache_create(&shape, &o->method, 1, &cache, &error), TERSE_E_UNSUPPORTED);
    assert_null(cache);
    assert_int_equal(cache_create(&o->shape, &o->method, 0, &cache, &error), TERSE_E_ARGUMENT); /* no threads */
    assert_null(cache);
    assert_int_equal(cache_begin(o->cache, D, 0, &error), TERSE_E_ARGUMENT);
    oracle_free(o);
    cache_destroy(NULL);
}

int main(void) {
    omp_set_num_threads(1); /* but where threads are the question */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_tokens_chosen_equal_dense_attention),
        cmocka_unit_test(keys_that_end_with_values_equal_dense_attention),
        cmocka_unit_test(keys_in_slices_equal_dense_attention),
        cmocka_unit_test(heads_may_be_read_in_different_ways),
        cmocka_unit_test(logits_of_minus_infinity_weigh_nothing),
        cmocka_unit_test(the_number_of_threads_changes_nothing),
        cmocka_unit_test(counters_say_what_was_read),
        cmocka_unit_test(shapes_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
