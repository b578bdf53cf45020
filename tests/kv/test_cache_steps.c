/* Steps of a cache as its caller sees them: in order, given up, refused for want of memory; what a new sequence begins with, and that what is reported is
 * what was foretold. */
#include "kv/cache.h"
#include "support/backend_under_test.h"
#include "support/cache_steps.h"
#include "support/one_cache.h"
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
    .method = "f16", .tail = TERSE_TAIL_DEFAULT, .layers = 1, .query_heads = 4, .kv_heads = 2};

/* rows[n]: random numbers, to be freed. */
static float *random_rows(struct oracle *o, size_t n) {
    float *rows = malloc(n * sizeof *rows);
    for (size_t i = 0; i < n; i++) rows[i] = oracle_random(o);
    return rows;
}

/* The same numbers through the cache twice: as one prompt and token by token. What was read exactly is read as halves then. */
static void decoding_by_steps_equals_a_prefill(void **state) {
    (void)state;
    enum { N = 150 };
    struct oracle *a = oracle_new(&small, 1), *b = oracle_new(&small, 1);
    const size_t k_width = cache_shape_kv_width(&a->shape), q_width = cache_shape_query_width(&a->shape);
    float *k = random_rows(a, N * k_width), *v = random_rows(a, N * k_width), *q = random_rows(a, N * q_width);
    float *whole = malloc(N * q_width * sizeof *whole), *stepped = malloc(N * q_width * sizeof *stepped);
    double worst = 0;
    step_cache(a->kv, a->cache, &a->shape, P, N, &(struct step_rows){.k = k, .v = v, .q = q, .out = whole});
    for (size_t i = 0; i < N; i++)
        step_cache(
            b->kv, b->cache, &b->shape, D, 1,
            &(struct step_rows){.k = k + i * k_width, .v = v + i * k_width, .q = q + i * q_width, .out = stepped + i * q_width});
    for (size_t i = 0; i < N * q_width; i++) worst = fmax(worst, fabs((double)whole[i] - (double)stepped[i]));
    assert_true(worst < 2e-3);
    assert_true(worst > 1e-6); /* it did go through halves, or other kernels */
    oracle_free(a);
    oracle_free(b);
    float *const all[] = {k, v, q, whole, stepped};
    for (size_t i = 0; i < 5; i++) free(all[i]);
}

static void an_abandoned_step_leaves_no_trace(void **state) {
    (void)state;
    static const enum cache_step_kind kinds[] = {D, P, Q};
    static const char *const methods[] = {"q4_0", "streaming-100", "f16"};
    for (size_t m = 0; m < cases(3, 2); m++) {
        struct oracle_setup setup = small;
        setup.method = methods[m];
        struct oracle *o = oracle_new(&setup, 1000);
        const size_t k_width = cache_shape_kv_width(&o->shape), q_width = cache_shape_query_width(&o->shape);
        for (size_t round = 0; round < 6; round++) {
            float *k = random_rows(o, 300 * k_width), *q = random_rows(o, 300 * q_width);
            assert_int_equal(one_begin(o->kv, o->cache, kinds[round % 3], 300, NULL), TERSE_OK);
            if (round > 2) {
                assert_int_equal(one_append(o->kv, o->cache, 0, k, k, NULL), TERSE_OK);
                assert_int_equal(one_attend(o->kv, o->cache, 0, q, 0, 300, q, NULL), TERSE_OK); /* in place */
            }
            assert_int_equal(cache_length(o->cache), o->length);
            oracle_step(o, round % 2 ? D : P, 1 + 37 * round, 0);
            free(k);
            free(q);
        }
        oracle_free(o);
    }
}

static void calls_out_of_order_are_refused(void **state) {
    (void)state;
    struct oracle_setup setup = small;
    setup.layers = 2;
    struct oracle *o = oracle_new(&setup, 10);
    const struct kv_ops *kv = o->kv;
    struct terse_error error;
    struct cache *cache = o->cache;
    float *k = random_rows(o, 3 * cache_shape_kv_width(&o->shape)), *q = random_rows(o, 3 * cache_shape_query_width(&o->shape));
    assert_int_equal(one_append(kv, cache, 0, k, k, &error), TERSE_E_ARGUMENT); /* no step has begun */
    assert_int_equal(kv->commit(cache, &error), TERSE_E_ARGUMENT);
    assert_int_equal(one_begin(kv, cache, D, 0, &error), TERSE_E_ARGUMENT); /* of no tokens */
    assert_int_equal(one_begin(kv, cache, P, 3, &error), TERSE_OK);
    assert_int_equal(one_attend(kv, cache, 0, q, 0, 3, q, &error), TERSE_E_ARGUMENT); /* no layer has keys */
    assert_int_equal(one_observe(kv, cache, 0, q, 0, 3, &error), TERSE_E_ARGUMENT);
    assert_int_equal(one_seal(kv, cache, 0, &error), TERSE_E_ARGUMENT);
    assert_int_equal(one_append(kv, cache, 2, k, k, &error), TERSE_E_ARGUMENT); /* there are two */
    assert_int_equal(one_append(kv, cache, 0, k, k, &error), TERSE_OK);
    assert_int_equal(one_attend(kv, cache, 0, q, 2, 2, q, &error), TERSE_E_ARGUMENT); /* a query too many */
    assert_int_equal(one_attend(kv, cache, 0, q, 0, 3, q, &error), TERSE_OK);
    assert_int_equal(one_seal(kv, cache, 0, &error), TERSE_OK);
    assert_int_equal(one_append(kv, cache, 0, k, k, &error), TERSE_E_ARGUMENT); /* has ended */
    assert_int_equal(kv->commit(cache, &error), TERSE_E_ARGUMENT);              /* a layer is missing */
    assert_int_equal(cache_length(cache), 0);
    assert_int_equal(one_append(kv, cache, 1, k, k, &error), TERSE_OK);
    assert_int_equal(one_seal(kv, cache, 1, &error), TERSE_OK);
    assert_int_equal(kv->commit(cache, &error), TERSE_OK);
    assert_int_equal(cache_length(cache), 3);
    oracle_free(o);
    free(k);
    free(q);
}

static void a_reset_cache_is_a_new_one(void **state) {
    (void)state;
    static const char *const methods[] = {"q8_0", "streaming-100", "snapkv-150"};
    for (size_t m = 0; m < 3; m++) {
        struct oracle_setup setup = small;
        setup.method = methods[m];
        struct oracle *o = oracle_new(&setup, 400);
        struct terse_cache_report before, after;
        oracle_step(o, P, 333, 0);
        oracle_step(o, D, 1, 0);
        parts_report(o->cache, &before);
        parts_reset(o->cache);
        o->length = o->window = o->n_dropped = 0;
        memset(o->dropped, 0, o->setup.layers * o->capacity * o->setup.kv_heads * sizeof *o->dropped);
        assert_int_equal(cache_length(o->cache), 0);
        oracle_step(o, P, 200, 0);
        oracle_step(o, D, 1, 0);
        parts_report(o->cache, &after);
        if (m < 2) assert_int_equal(after.resident, before.resident); /* the third keeps fewer of a shorter prompt */
        oracle_free(o);
    }
}

/* ---- Memory */

static void what_is_foretold_is_allocated(void **state) {
    (void)state;
    static const char *const named[][3] = {{"f16", NULL, NULL},
                                           {"q8_0", NULL, NULL},
                                           {"q4_0", NULL, NULL},
                                           {"kivi-4", NULL, NULL},
                                           {"kivi-2", NULL, NULL},
                                           {"f16", "q8_0", "q4_0"},
                                           {"q4_0", "f16", "q8_0"},
                                           {"q8_0", "kivi-4", "kivi-2"},
                                           {"terse-4", NULL, NULL},
                                           {"terse-2", NULL, NULL},
                                           {"million-4", NULL, NULL},
                                           {"cq-1", NULL, NULL},
                                           {"streaming-200", "q8_0", "q8_0"},
                                           {"commvq-1", NULL, NULL}};
    const char *methods[sizeof named / sizeof named[0] + CODEC_COUNT][3];
    const size_t n = oracle_methods(named, sizeof named / sizeof named[0], NULL, methods);
    for (size_t m = 0; m < n + 2; m++) { /* the last two keep a part of the prompt */
        struct oracle_setup setup = small;
        setup.layers = 2;
        setup.method = methods[m < n ? m : m - n][0];
        if (m < n) setup.key = methods[m][1], setup.value = methods[m][2];
        if (m >= n) setup.evict = "snapkv-200";
        setup.tail = 128;
        if (!oracle_served(&setup)) continue;
        const size_t tokens = m < n ? 1000 : 700;
        struct terse_cache_report foretold, report;
        struct terse_error error;
        struct kv_budget budget = {.most = UINT64_MAX};
        struct oracle *o = oracle_new(&setup, tokens);
        if (parts_limit(o->cache, &budget, &error)) fail_msg("%s", error.message);
        parts_predict(o->kv->storage, &o->shape, &o->method, tokens, &foretold);
        if (m < n)
            oracle_skip(o, P, tokens);
        else
            oracle_step(o, P, tokens, 0);
        parts_report(o->cache, &report);
        assert_int_equal(report.resident, foretold.resident);
        assert_int_equal(report.kept, foretold.kept);
        assert_int_equal(report.resident, budget.used);
        oracle_free(o);
        assert_int_equal(budget.used, 0);
    }
}

static void a_budget_that_is_spent_refuses(void **state) {
    (void)state;
    struct oracle_setup setup = small;
    setup.method = "q4_0";
    setup.layers = 2;
    setup.tail = 128;
    struct kv_budget budget = {.most = 6250 * backend_under_test()->head_dim};
    struct terse_error error;
    struct oracle *o = oracle_new(&setup, 5000);
    if (parts_limit(o->cache, &budget, &error)) fail_msg("%s", error.message);
    oracle_skip(o, P, 300);
    assert_int_equal(one_begin(o->kv, o->cache, P, 4000, &error), TERSE_E_MEMORY);
    oracle_step(o, D, 1, 0); /* nothing is lost */
    oracle_free(o);
}

int main(int argc, char **argv) {
    if (!backend_begins(argc, argv)) return NO_DEVICE_STATUS;
    omp_set_num_threads(1); /* small work: waiting for each other would be most of it */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_by_steps_equals_a_prefill), cmocka_unit_test(an_abandoned_step_leaves_no_trace),
        cmocka_unit_test(calls_out_of_order_are_refused),     cmocka_unit_test(a_reset_cache_is_a_new_one),
        cmocka_unit_test(what_is_foretold_is_allocated),      cmocka_unit_test(a_budget_that_is_spent_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
