/* Anchors (AnTKV): the tokens of a prompt whose errors would move outputs most stay exact beside codes, keys and values apart, and attention over codes
 * and anchors is that of a cache in which those rows are exact. On a GPU the oracle takes the cache's choice, after a check that no token that was left
 * out has a score times error much above that of one that was chosen (support/cache_oracle.c). */
#include "kv/cache.h"
#include "support/backend_under_test.h"
#include "support/oracle_copies.h"
#include "support/oracle_runs.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct oracle_setup small = {
    .method = "q4_0", .tail = 32, .layers = 2, .query_heads = 6, .kv_heads = 2, .anchor_count = 9};

static void end(struct oracle *o) {
    if (o->kv != backend_cpu.kv)
        printf("%-12s head_dim %u, tail %u: an anchor's rank was at most %.4f below that of another token\n", o->method.name,
               o->setup.head_dim, o->setup.tail, o->worst_choice);
    oracle_free(o);
}

static void read_two_prompts(const struct oracle_setup *setup) {
    struct oracle *o = oracle_new(setup, 2000);
    oracle_step(o, P, 200, 0);
    oracle_step(o, D, 1, 0);
    oracle_step(o, P, 131, 50); /* a later prompt: tokens that were in the window may become anchors too */
    oracle_step(o, D, 5, 0);
    oracle_step(o, D, backend_under_test()->emulated ? 16 : 64, 0);
    oracle_step(o, P, 3, 0);
    oracle_step(o, Q, 70, 33);
    oracle_step(o, D, 1, 0);
    assert_true(o->anchors > 2 * 2 * 2 * 9);
    end(o);
}

static void attention_reads_anchors_in_place_of_codes(void **state) {
    (void)state;
    static const struct {
        const char *method, *key, *value;
    } methods[] = {{"q4_0", NULL, NULL},        {"antkv-2", NULL, NULL},   {"terse-2", NULL, NULL},   {"kivi-4", NULL, NULL},
                   {"antkv-0.375", NULL, NULL}, {"q8_0", NULL, NULL},      {"cq-1", NULL, NULL},      {"f16", "q8_0", "q4_0"},
                   {"cq-4", NULL, NULL},        {"million-4", NULL, NULL}, {"million-2", NULL, NULL}, {"million-8x5", NULL, NULL}};
    const bool emulated = backend_under_test()->emulated;
    for (size_t m = 0; m < cases(sizeof methods / sizeof methods[0], 4); m++) {
        for (uint32_t tail = emulated && m != 1 ? 64 : 0; tail <= (emulated ? 64 : 128); tail += 64) {
            struct oracle_setup setup = small;
            setup.method = methods[m].method;
            setup.key = methods[m].key;
            setup.value = methods[m].value;
            setup.tail = tail;
            setup.seed = 1000 + 10 * m + tail;
            setup.pairing = m % 2 ? ROPE_ADJACENT : ROPE_HALF_SPLIT;
            if (oracle_served(&setup)) read_two_prompts(&setup);
        }
    }
}

/* Anchors serve heads of all sizes, and groups of all sorts. */
static void heads_of_any_shape_choose(void **state) {
    (void)state;
    static const struct {
        uint32_t head_dim, query_heads, kv_heads;
        const char *method;
    } shapes[] = {{128, 4, 1, "antkv-1"}, {256, 3, 1, "q4_0"},  {64, 2, 2, "cq-2"},
                  {96, 5, 1, "q8_0"},     {128, 16, 2, "q4_0"}, {64, 16, 1, "terse-3"}};
    for (size_t i = 0; i < cases(sizeof shapes / sizeof shapes[0], 4); i++) {
        struct oracle_setup setup = small;
        setup.layers = 1;
        setup.head_dim = shapes[i].head_dim;
        setup.query_heads = shapes[i].query_heads;
        setup.kv_heads = shapes[i].kv_heads;
        setup.method = shapes[i].method;
        setup.cap = i == 1 ? 20 : 0;
        setup.learned_sinks = i == 2;
        setup.seed = 60 + i;
        struct oracle *o = oracle_new(&setup, 500);
        oracle_step(o, P, 230, 100);
        oracle_step(o, D, 1, 0);
        end(o);
    }
}

static void a_share_of_the_prompt_stays_exact(void **state) {
    (void)state;
    static const double percents[] = {1, 100, 0, 2, 5, 10};
    for (size_t i = 0; i < cases(sizeof percents / sizeof percents[0], 2); i++) {
        struct oracle_setup setup = small;
        setup.tail = 0;
        setup.anchor_count = 0;
        setup.anchor_percent = percents[i];
        struct oracle *o = oracle_new(&setup, 400);
        const uint32_t hd = o->setup.head_dim;
        size_t n = o->kv == backend_cpu.kv ? 328 : 260, sealed = o->kv == backend_cpu.kv ? 324 : 256;
        oracle_step(o, o->kv == backend_cpu.kv ? Q : P, n, 0);
        size_t k = (size_t)fmin(lround((double)n * percents[i] / 100), (double)sealed); /* the first 4 are exact in any case */
        assert_int_equal(o->anchors, k * 2 * 2 * 2);
        struct terse_cache_report report;
        parts_report(o->cache, &report);
        if (o->kv == backend_cpu.kv) assert_int_equal(report.exact, 2 * 2 * 2 * (k * (hd * 2 + 4) + 4 * hd * 2));
        oracle_free(o);
    }
}

static void errors_may_be_l1_norms(void **state) {
    (void)state;
    struct oracle_setup setup = small;
    setup.anchor_score = TERSE_ANCHORS_L1;
    setup.method = "kivi-2"; /* its errors differ in shape from token to token, and so the two norms in their order */
    if (oracle_served(&setup)) read_two_prompts(&setup);
}

static void anchors_may_be_any_tokens(void **state) {
    (void)state;
    struct oracle_setup setup = small;
    setup.anchor_score = TERSE_ANCHORS_RANDOM;
    read_two_prompts(&setup);
}

static void first_tokens_may_be_codes_or_more_be_exact(void **state) {
    (void)state;
    static const uint32_t firsts[] = {TERSE_FIRST_NONE, 1, 70};
    for (size_t i = 0; i < cases(3, 2); i++) {
        struct oracle_setup setup = small;
        setup.first_tokens = firsts[i];
        setup.seed = 40 + i;
        read_two_prompts(&setup);
        setup.anchor_count = 0;
        struct oracle *o = oracle_new(&setup, 600);
        oracle_step(o, P, 300, 0);
        oracle_step(o, D, 3, 0);
        struct terse_cache_report report;
        parts_report(o->cache, &report);
        const size_t exact = firsts[i] == TERSE_FIRST_NONE ? 0 : firsts[i];
        if (o->kv == backend_cpu.kv) assert_int_equal(report.exact, 2 * 2 * 2 * exact * o->setup.head_dim * 2);
        oracle_free(o);
    }
}

static void alibi_moves_scores_and_reading(void **state) {
    (void)state;
    struct oracle_setup setup = small;
    setup.alibi = true;
    for (size_t m = 0; m < 2; m++) {
        setup.method = m ? "cq-2" : "q4_0";
        if (!oracle_served(&setup)) continue;
        struct oracle *o = oracle_new(&setup, 600);
        oracle_step(o, P, 200, 70);
        oracle_step(o, D, 1, 0);
        oracle_step(o, Q, 90, 0);
        oracle_step(o, D, 3, 0);
        oracle_free(o);
    }
}

/* Forks and states that are loaded again go on alike, and further prompts choose anchors of their own. */
static void anchors_go_along(void **state) {
    static const char *const methods[] = {"antkv-2", "terse-3", "q8_0"};
    for (size_t m = 0; m < cases(3, 2); m++) {
        struct oracle_setup setup = small;
        setup.method = methods[m];
        setup.seed = 80 + m;
        struct oracle *o = oracle_new(&setup, 800);
        oracle_step(o, P, 170, 0);
        oracle_step(o, D, 16, 0);
        oracle_save(o, *state);
        struct oracle *copies[2] = {oracle_load(o, o->kv, *state, 30), oracle_fork(o, 31)};
        for (size_t i = 0; i < 2; i++) {
            oracle_step(copies[i], D, 1, 0);
            oracle_step(copies[i], P, 90, 0);
            oracle_step(copies[i], D, 1, 0);
            oracle_free_copy(copies[i]);
        }
        oracle_step(o, D, 1, 0);
        oracle_free(o);
    }
}

/* Where all heads have as many anchors before a token, as between prompts, the sequence can go back to it. */
static void cut_where_anchors_are_whole(void **state) {
    (void)state;
    struct terse_error error;
    struct oracle *o = oracle_new(&small, 900);
    oracle_step(o, P, 170, 0); /* seals tokens 4 to 131 */
    oracle_step(o, P, 120, 0); /* and up to 259 */
    assert_int_equal(parts_truncate(o->cache, 15, &error), TERSE_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "cannot end at 15"));
    oracle_cut(o, 132);
    oracle_step(o, D, 1, 0);
    oracle_step(o, P, 90, 0);
    oracle_step(o, D, 1, 0);
    struct oracle *fork = oracle_fork(o, 3);
    oracle_step(fork, D, 1, 0);
    oracle_free_copy(fork);
    oracle_cut(o, 3); /* before all anchors */
    oracle_step(o, D, 2, 0);
    fork = oracle_fork(o, 4);
    oracle_step(fork, P, 110, 0);
    oracle_step(fork, D, 1, 0);
    oracle_free_copy(fork);
    oracle_step(o, D, 1, 0);
    oracle_free(o);
}

int main(int argc, char **argv) {
    if (!backend_begins(argc, argv)) return NO_DEVICE_STATUS;
    omp_set_num_threads(2);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_reads_anchors_in_place_of_codes),
        cmocka_unit_test(heads_of_any_shape_choose),
        cmocka_unit_test(a_share_of_the_prompt_stays_exact),
        cmocka_unit_test(errors_may_be_l1_norms),
        cmocka_unit_test(anchors_may_be_any_tokens),
        cmocka_unit_test(first_tokens_may_be_codes_or_more_be_exact),
        cmocka_unit_test(alibi_moves_scores_and_reading),
        cmocka_unit_test_setup_teardown(anchors_go_along, make_state_path, remove_state_path),
        cmocka_unit_test(cut_where_anchors_are_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
