/* Caches that evict tokens: attention equals dense attention in double precision over those that are kept, at the positions that these have then.
 * Codecs go on beside, terse-N's with their rope runs. The oracle chooses as StreamingLLM does; of SnapKV's prompts it takes the cache's choice, after a
 * check that none of the tokens that were kept has a lower rank than one that was not (support/cache_oracle.h). */
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
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct oracle_setup small = {
    .method = "f16", .tail = TERSE_TAIL_DEFAULT, .layers = 2, .query_heads = 4, .kv_heads = 2};

/* ---- The newest tokens (streaming-N) */

static void streaming_equals_a_fresh_sequence_of_the_kept_tokens(void **state) {
    (void)state;
    static const struct {
        const char *method, *key, *value;
        uint32_t tail;
    } methods[] = {{"streaming-16", NULL, NULL, TERSE_TAIL_DEFAULT},
                   {"streaming-68", NULL, NULL, 0},
                   {"streaming-130", NULL, NULL, 20},
                   {"streaming-100", "q8_0", "q8_0", 0},
                   {"streaming-150", "q4_0", "q8_0", 16},
                   {"streaming-150", "kivi-4", "kivi-2", 16},
                   {"streaming-60", "q4_0", NULL, TERSE_TAIL_DEFAULT},
                   {"streaming-150", "q8_0", NULL, 100}};
    for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
        struct oracle_setup setup = small;
        setup.method = methods[m].method;
        setup.key = methods[m].key;
        setup.value = methods[m].value;
        setup.tail = methods[m].tail;
        setup.pairing = m % 2 ? ROPE_HALF_SPLIT : ROPE_ADJACENT;
        setup.seed = m;
        if (!oracle_served(&setup)) continue;
        RUN(&setup, {D, 1, 0}, {D, 1, 0}, {D, 4, 0}, {D, 40, 0}, {D, 1, 0}, {P, 200, 0}, {D, 1, 0}, {D, 1, 0}, {D, 20, 0},
            {D, 90, 0}, {D, 1, 0});
        RUN(&setup, {P, 163, 0}, {D, 80, 0}, {D, 1, 0}, {D, 80, 0}, {D, 1, 0}, {D, 100, 0}, {D, 1, 0});
        struct oracle *o = oracle_new(&setup, 500);
        oracle_step(o, P, 230, 0);
        for (size_t i = 0; i < cases(200, 70); i++) oracle_step(o, D, 1, 0);
        oracle_free(o);
    }
}

static void streaming_goes_on_without_end(void **state) {
    (void)state;
    static const char *const methods[] = {"streaming-40", "streaming-100", "streaming-260"};
    for (size_t m = 0; m < 3; m++) {
        struct oracle_setup setup = small;
        setup.method = methods[m];
        setup.seed = 80 + m;
        struct oracle *o = oracle_new(&setup, 1500);
        oracle_step(o, P, 300, 0);
        for (size_t i = 0; i < 300; i++) (i % 10 ? oracle_skip(o, D, 1) : oracle_step(o, D, 1, 0));
        oracle_step(o, P, 90, 0);
        oracle_step(o, D, 1, 0);
        oracle_step(o, D, 40, 0);
        oracle_step(o, D, 1, 0);
        oracle_free(o);
    }
}

/* Long enough that reading is split into parts, which are merged. */
static void many_kept_tokens_are_read_in_parts(void **state) {
    (void)state;
    static const char *const codecs[] = {"f16", "terse-2"};
    for (size_t c = 0; c < 2; c++) {
        struct oracle_setup setup = small;
        setup.method = codecs[c];
        setup.evict = "streaming-1500";
        struct oracle *o = oracle_new(&setup, 2000);
        oracle_skip(o, P, 1700);
        oracle_step(o, D, 1, 0);
        oracle_step(o, D, 7, 0);
        if (!backend_under_test()->emulated) oracle_step(o, D, 100, 0);
        oracle_step(o, D, 1, 0);
        oracle_free(o);
    }
}

static void streaming_goes_on_in_constant_memory(void **state) {
    (void)state;
    static const char *const codecs[] = {"f16", "q8_0"};
    for (size_t c = 0; c < 2; c++) {
        struct oracle_setup setup = small;
        setup.method = "streaming-200";
        setup.key = setup.value = codecs[c];
        setup.tail = c ? 40 : 0;
        struct oracle *o = oracle_new(&setup, 4600);
        struct terse_cache_report snapped, report;
        for (size_t i = 0; i < 400; i++) oracle_skip(o, D, 1);
        parts_report(o->cache, &snapped);
        assert_int_equal(snapped.kept, 200);
        for (size_t i = 0; i < cases(3000, 500); i++) {
            if (i % 500 == 0)
                oracle_step(o, D, 1, 0);
            else
                oracle_skip(o, D, 1);
            parts_report(o->cache, &report);
            assert_int_equal(report.resident, snapped.resident);
        }
        for (int i = 0; i < 3; i++) { /* a prompt's pages are written while the old ones are still read: memory for both, no more */
            oracle_skip(o, P, 400);
            parts_report(o->cache, &report);
            assert_true(report.resident <= 2 * snapped.resident);
        }
        oracle_free(o);
    }
}

/* The oldest token that is kept moves through whole rope runs: it lies in each of their pages, at its beginning and within it. */
static void codes_are_evicted_across_rope_runs(void **state) {
    (void)state;
    static const struct {
        const char *codec, *evict;
        uint32_t tail;
    } methods[] = {{"terse-2", "streaming-300", 0},
                   {"terse-4", "streaming-600", TERSE_TAIL_DEFAULT},
                   {"cq-1", "streaming-600", 0},
                   {"kivi-4", "streaming-300", 0},
                   {"terse-1", "streaming-130", 32}};
    for (size_t m = 0; m < cases(sizeof methods / sizeof methods[0], 3); m++) {
        struct oracle_setup setup = small;
        setup.method = methods[m].codec;
        setup.evict = methods[m].evict;
        setup.tail = methods[m].tail;
        setup.pairing = m % 2 ? ROPE_ADJACENT : ROPE_HALF_SPLIT;
        setup.seed = 120 + m;
        struct oracle *o = oracle_new(&setup, 1600);
        oracle_step(o, P, 700, 0);
        for (size_t i = 0; i < 16; i++) {
            oracle_step(o, D, 1, 0);
            oracle_skip(o, D, 45);
            oracle_step(o, D, 2, 0);
        }
        oracle_step(o, P, 90, 0);
        oracle_step(o, D, 1, 0);
        oracle_free(o);
    }
}

/* ---- What the last queries of a prompt attend to (snapkv-N) */

static struct oracle_setup kept_setup(const char *codec, uint64_t seed) {
    struct oracle_setup setup = small;
    setup.method = codec;
    setup.evict = "snapkv-200";
    setup.tail = 32;
    setup.pairing = ROPE_HALF_SPLIT;
    setup.seed = seed;
    return setup;
}

static void the_best_of_a_prompt_are_kept(void **state) {
    (void)state;
    static const char *const codecs[] = {"f16", "q8_0"};
    for (size_t c = 0; c < 2; c++) {
        struct oracle_setup setup = kept_setup(codecs[c], c + 1);
        for (uint32_t tail = 32; tail; tail = tail == 32 ? TERSE_TAIL_DEFAULT : 0) {
            struct terse_cache_report report;
            setup.tail = tail;
            struct oracle *o = oracle_new(&setup, 600);
            oracle_step(o, P, 500, 130);
            assert_int_equal(o->n_dropped, 300);
            parts_report(o->cache, &report);
            assert_int_equal(report.kept, 200);
            oracle_step(o, D, 1, 0);
            oracle_free(o);
        }
    }
}

/* Tokens are dropped of each long prompt, and those behind it are sealed; forks and states that are loaded again go on alike. */
static void what_is_kept_is_read(void **state) {
    static const char *const codecs[] = {"f16", "q4_0", "terse-3", "terse-2"};
    for (size_t c = 0; c < cases(4, 3); c++) {
        const struct oracle_setup setup = kept_setup(codecs[c], c + 10);
        struct oracle *o = oracle_new(&setup, 1300);
        oracle_step(o, P, 400, 0);
        for (size_t turn = 0; turn < 3; turn++) {
            for (size_t i = 0; i < 70; i++) oracle_step(o, D, 1, 0);
            oracle_step(o, D, 80, 0);
            oracle_save(o, *state);
            struct oracle *copies[2] = {oracle_load(o, o->kv, *state, 30), oracle_fork(o, 31)};
            for (size_t i = 0; i < 2; i++) {
                oracle_step(copies[i], D, 70, 0);
                oracle_step(copies[i], D, 1, 0);
                oracle_free_copy(copies[i]);
            }
            if (turn == 2) break;
            oracle_step(o, P, turn ? 20 : 250, turn ? 0 : 90); /* a short prompt keeps all */
            oracle_step(o, D, 1, 0);
        }
        oracle_free(o);
    }
}

static void cut_where_nothing_was_dropped(void **state) {
    (void)state;
    const struct oracle_setup setup = kept_setup("f16", 20);
    struct terse_error error;
    struct oracle *o = oracle_new(&setup, 600);
    oracle_step(o, P, 400, 0);
    for (size_t i = 0; i < 100; i++) oracle_skip(o, D, 1);
    assert_int_equal(parts_truncate(o->cache, 150, &error), TERSE_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "has evicted tokens"));
    oracle_cut(o, 420);
    oracle_step(o, D, 1, 0);
    oracle_cut(o, 0); /* and from the beginning */
    oracle_step(o, P, 150, 0);
    oracle_step(o, D, 1, 0);
    oracle_free(o);
}

static void the_map_tells_what_was_kept(void **state) {
    (void)state;
    enum { PARTS = 16, TOKENS = 640 };
    const struct oracle_setup setup = kept_setup("f16", 40);
    struct terse_token_share shares[PARTS];
    struct oracle *o = oracle_new(&setup, TOKENS);
    const size_t heads = cache_heads_of(&o->shape), each = TOKENS / PARTS;
    oracle_step(o, P, TOKENS, 0);
    parts_map(o->cache, shares, PARTS);
    for (size_t part = 0; part < PARTS; part++) {
        double evicted = 0;
        for (size_t layer = 0; layer < setup.layers; layer++)
            for (size_t i = part * each * setup.kv_heads; i < (part + 1) * each * setup.kv_heads; i++)
                evicted += (double)o->dropped[layer * TOKENS * setup.kv_heads + i] / (double)(heads * each);
        assert_true(fabs((double)shares[part].evicted - evicted) < 1e-5);
        assert_true(fabs((double)shares[part].exact - (1 - evicted)) < 1e-5);
    }
    oracle_free(o);
}

int main(int argc, char **argv) {
    if (!backend_begins(argc, argv)) return NO_DEVICE_STATUS;
    omp_set_num_threads(1); /* small work: waiting for each other would be most of it */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streaming_equals_a_fresh_sequence_of_the_kept_tokens),
        cmocka_unit_test(streaming_goes_on_without_end),
        cmocka_unit_test(many_kept_tokens_are_read_in_parts),
        cmocka_unit_test(streaming_goes_on_in_constant_memory),
        cmocka_unit_test(codes_are_evicted_across_rope_runs),
        cmocka_unit_test(the_best_of_a_prompt_are_kept),
        cmocka_unit_test_setup_teardown(what_is_kept_is_read, make_state_path, remove_state_path),
        cmocka_unit_test(cut_where_nothing_was_dropped),
        cmocka_unit_test(the_map_tells_what_was_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
