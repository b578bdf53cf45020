/* Layers whose queries see the newest tokens alone, logits that are capped, and sinks that models learn: attention over caches equals dense attention
 * in double precision. */
#include "support/backend_under_test.h"
#include "support/oracle_runs.h"

#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static const struct oracle_setup small = {
    .method = "f16", .tail = TERSE_TAIL_DEFAULT, .layers = 1, .query_heads = 4, .kv_heads = 2};

/* Windows shorter than a page, of pages, and that end within one; what lies before them has left, in steps of any size. Every policy leaves
 * such layers alone. */
static void sliding_windows_equal_dense_attention_within_them(void **state) {
    (void)state;
    static const char *const methods[] = {"q4_0",         "f16",       "q8_0",       "kivi-4",   "kivi-2",
                                          "cq-1",         "million-4", "million-2",  "antkv-1",  "terse-2",
                                          "streaming-64", "mat-64",    "snapkv-128", "quest-64", "commvq-1"};
    static const uint32_t windows[] = {1, 40, 64, 129, 200};
    for (size_t m = 0; m < cases(sizeof methods / sizeof methods[0], 1); m++) {
        for (size_t w = backend_under_test()->emulated; w < cases(sizeof windows / sizeof windows[0], 2); w++) {
            struct oracle_setup setup = small;
            setup.method = methods[m];
            setup.window = windows[w];
            setup.cap = w % 2 ? 3 : 0;
            setup.learned_sinks = w % 3 == 1;
            setup.tail = w % 3 ? TERSE_TAIL_DEFAULT : 0;
            setup.seed = m * 5 + w;
            RUN(&setup, {P, 330, 100}, {D, 1, 0}, {D, 1, 0}, {D, 5, 0}, {D, 70, 0}, {P, 170, 0}, {C, 40, 0}, {D, 1, 0}, {D, 62, 0},
                {D, 3, 0});
            RUN(&setup, {D, 3, 0}, {D, 90, 0}, {P, 300, 0}, {Q, 100, 0}, {D, 1, 0}, {D, 30, 0});
        }
    }
}

/* Queries of a head see a logit of their own besides, whatever is read and however. */
static void learned_sinks_are_seen_once(void **state) {
    (void)state;
    static const char *const methods[] = {"f16",     "q8_0",      "q4_0",    "kivi-2",       "cq-1",
                                          "antkv-1", "million-4", "terse-2", "streaming-64", "commvq-1"};
    for (size_t m = 0; m < cases(sizeof methods / sizeof methods[0], 1); m++) {
        struct oracle_setup setup = small;
        setup.method = methods[m];
        setup.learned_sinks = true;
        setup.seed = m;
        RUN(&setup, {P, 330, 100}, {D, 1, 0}, {D, 5, 0}, {D, 70, 0}, {P, 170, 0}, {C, 40, 0}, {D, 1, 0}, {Q, 100, 0}, {D, 3, 0});
    }
}

/* The same where reading is split into parts that are merged. */
static void deep_caches_see_learned_sinks_once(void **state) {
    (void)state;
    static const char *const methods[] = {"f16", "q8_0", "q4_0", "terse-2", "million-2"};
    for (size_t m = 0; m < cases(sizeof methods / sizeof methods[0], 1); m++) {
        struct oracle_setup setup = small;
        setup.method = methods[m];
        setup.query_heads = m % 2 ? 6 : 2;
        setup.learned_sinks = true;
        struct oracle *o = oracle_new(&setup, 2000);
        oracle_skip(o, P, 1700);
        oracle_step(o, D, 1, 0);
        oracle_step(o, D, 7, 0);
        oracle_step(o, D, 100, 0);
        oracle_step(o, D, 1, 0);
        oracle_free(o);
    }
}

int main(int argc, char **argv) {
    if (!backend_begins(argc, argv)) return NO_DEVICE_STATUS;
    omp_set_num_threads(1); /* small work: waiting for each other would be most of it */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sliding_windows_equal_dense_attention_within_them),
        cmocka_unit_test(learned_sinks_are_seen_once),
        cmocka_unit_test(deep_caches_see_learned_sinks_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
