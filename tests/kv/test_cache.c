/* Attention over the cache equals dense attention in double precision over the stored numbers, for every method, shape and way to
 * cut a sequence into steps. */
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

static const char *const named[][3] = {
    {"f16", NULL, NULL},       {"q8_0", NULL, NULL},     {"q4_0", NULL, NULL},         {"kivi-4", NULL, NULL},
    {"kivi-2", NULL, NULL},    {"f16", "q8_0", "q4_0"},  {"q4_0", "f16", "q8_0"},      {"f16", NULL, "q4_0"},
    {"terse-4", NULL, NULL},   {"terse-2", NULL, NULL},  {"million-4", NULL, NULL},    {"million-3", NULL, NULL},
    {"cq-1", NULL, NULL},      {"cq-0.75", NULL, NULL},  {"million-2", "q8_0", NULL},  {"cq-2", NULL, "f16"},
    {"antkv-4", NULL, NULL},   {"antkv-1", NULL, NULL},  {"q8_0", "kivi-4", "kivi-2"}, {"q8_0", NULL, "terse-1"},
    {"q8_0", "terse-2", NULL}, {"commvq-2", NULL, NULL}, {"commvq-1", NULL, NULL}};
#define NAMED (sizeof named / sizeof named[0])
static const char *methods[NAMED + CODEC_COUNT][3]; /* those of them that the backend serves, and each codec besides */
static size_t n_methods;

static struct oracle_setup setup_of(size_t method, uint32_t tail, uint64_t seed) {
    return oracle_setup_of(&small, methods[method], tail, seed);
}

static void find_methods(void) {
    const size_t all = oracle_methods(named, NAMED, NULL, methods);
    for (size_t m = 0; m < all; m++) {
        for (size_t i = 0; i < 3; i++) methods[n_methods][i] = methods[m][i];
        const struct oracle_setup setup = setup_of(n_methods, 0, 0);
        n_methods += oracle_served(&setup);
    }
}

/* ---- Methods */

static void every_method_equals_dense_attention(void **state) {
    (void)state;
    static const uint32_t tails[] = {0, 32, 128};
    for (size_t m = 0; m < n_methods; m++)
        for (size_t t = 0; t < 3; t++) {
            struct oracle_setup setup = setup_of(m, tails[t], 1000 + m * 3 + t);
            const size_t prompt = tails[t] == 32 ? 330 : 130; /* beyond a rope run, or not */
            RUN(&setup, {P, prompt, 0}, {D, 1, 0}, {D, 1, 0}, {D, 5, 0}, {D, 17, 0}, {P, 70, 0}, {D, 62, 0}, {D, 1, 0});
        }
}

/* Long enough that reading is split into parts (split-K), which are merged. */
static void every_method_is_read_in_parts(void **state) {
    (void)state;
    static const uint32_t tails[] = {0, TERSE_TAIL_DEFAULT};
    for (size_t m = 0; m < n_methods; m++)
        for (size_t t = 0; t < cases(2, 1); t++) {
            struct oracle_setup setup = setup_of(m, tails[t], m + 60);
            setup.query_heads = t ? m % 2 ? 6 : 2 : 4;
            struct oracle *o = oracle_new(&setup, 2000);
            oracle_skip(o, P, cases(1700, 1290));
            oracle_step(o, D, 1, 0);
            oracle_step(o, D, 7, 0);
            if (!backend_under_test()->emulated) oracle_step(o, D, 100, 0);
            oracle_step(o, D, 1, 0);
            oracle_free(o);
        }
}

static void chunks_and_the_papers_protocol(void **state) {
    (void)state;
    for (size_t m = 0; m < n_methods; m++) {
        struct oracle_setup setup = setup_of(m, 32, 200 + m);
        RUN(&setup, {C, 100, 0}, {C, 100, 0}, {C, 100, 7}, {D, 1, 0});
        RUN(&setup, {Q, 130, 0}, {Q, 70, 0}, {D, 1, 0}, {Q, 5, 0});
    }
}

/* ---- Shapes and positions */

static void every_shape_equals_dense_attention(void **state) {
    (void)state;
    static const uint32_t groups[] = {1, 3, 4, 8}, head_dims[] = {32, 64, 96, 128, 256};
    static const char *const some[] = {"f16", "q8_0", "cq-2", "terse-3"};
    for (size_t g = 0; g < 4; g++)
        for (size_t h = 0; h < 5; h++)
            for (int pairing = ROPE_ADJACENT; pairing <= ROPE_HALF_SPLIT; pairing++)
                for (size_t m = 0; m < cases(2, 1); m++) {
                    struct oracle_setup setup = small;
                    setup.method = m ? some[h % 2] : some[(g + h) % 4];
                    setup.tail = 32;
                    setup.query_heads = 2 * groups[g];
                    setup.head_dim = head_dims[h];
                    setup.pairing = (enum rope_pairing)pairing;
                    setup.layers = 1 + (uint32_t)(g != 0);
                    setup.seed = 100 + g * 10 + h;
                    if (head_dims[h] < backend_under_test()->head_dim) continue;
                    RUN(&setup, {P, 297, 0}, {D, 1, 0}, {D, 3, 0}, {D, 20, 0}, {D, 1, 0});
                }
}

static void partial_rotation_and_magnitude(void **state) {
    (void)state;
    for (int pairing = ROPE_ADJACENT; pairing <= ROPE_HALF_SPLIT; pairing++) {
        struct oracle_setup setup = small;
        setup.head_dim = 64;
        setup.n_rot = 48;
        setup.magnitude = 1.25f;
        setup.pairing = (enum rope_pairing)pairing;
        setup.seed = 7;
        RUN(&setup, {P, 70, 0}, {D, 1, 0}, {D, 30, 0}, {D, 2, 0});
        setup.method = "streaming-40";
        RUN(&setup, {P, 30, 0}, {D, 1, 0}, {D, 30, 0}, {D, 2, 0}, {D, 1, 0});
        setup.method = "commvq-1";
        setup.tail = 0;
        RUN(&setup, {P, 140, 0}, {D, 1, 0}, {D, 2, 0});
    }
}

static void alibi_instead_of_rotation(void **state) {
    (void)state;
    static const char *const some[] = {"f16", "q8_0", "q4_0", "million-2", "cq-1", "streaming-40", "commvq-1"};
    for (size_t m = 0; m < sizeof some / sizeof some[0]; m++) {
        struct oracle_setup setup = small;
        setup.method = some[m];
        setup.alibi = true;
        setup.query_heads = 6;
        setup.tail = 0;
        setup.seed = 60 + m;
        RUN(&setup, {P, 30, 0}, {D, 1, 0}, {P, 130, 0}, {D, 3, 0}, {D, 1, 0}, {P, 70, 11});
    }
}

/* ---- Steps */

static void lengths_around_pages(void **state) {
    (void)state;
    static const size_t lengths[] = {64, 65, 67, 68, 1, 3, 4, 5, 15, 16, 17, 63, 127, 128, 129, 132, 191, 192, 193, 196, 257};
    for (size_t i = 0; i < cases(sizeof lengths / sizeof lengths[0], 12); i++) {
        for (size_t m = 0; m < cases(4, 1); m++) {
            struct oracle_setup setup = small;
            setup.seed = i;
            setup.method = (i + m) % 2 ? "q8_0" : "f16";
            setup.tail = (i + m / 2) % 3 ? 0 : 64;
            RUN(&setup, {P, lengths[i], 0}, {D, 1, 0}, {P, lengths[i], 0}, {D, 2, 0});
            RUN(&setup, {D, lengths[i], 0}, {D, lengths[i], 0}, {D, 1, 0});
        }
    }
}

static void queries_may_be_asked_in_any_pieces(void **state) {
    (void)state;
    static const char *const some[] = {"f16", "q4_0", "streaming-100"};
    for (size_t i = 0; i < 3; i++) {
        struct oracle_setup setup = small;
        setup.method = some[i];
        setup.tail = 0;
        setup.query_heads = 6;
        RUN(&setup, {P, 200, 7}, {D, 90, 50}, {P, 33, 32}, {D, 3, 1}, {P, 300, 250});
    }
}

static void one_token_at_a_time(void **state) {
    (void)state;
    static const char *const some[] = {"q8_0", "f16", "q4_0"};
    for (size_t m = 0; m < cases(3, 1); m++) {
        struct oracle_setup setup = small;
        setup.method = some[m];
        setup.tail = 70;
        struct oracle *o = oracle_new(&setup, 300);
        for (int i = 0; i < 300; i++) oracle_step(o, D, 1, 0);
        oracle_free(o);
    }
}

static void many_single_steps(void **state) {
    (void)state;
    for (size_t m = 0; m < n_methods; m++) {
        struct oracle_setup setup = setup_of(m, 128, m + 40);
        struct oracle *o = oracle_new(&setup, 700);
        oracle_step(o, D, 1, 0);
        for (size_t i = 0; i < 400; i++) oracle_skip(o, D, 1);
        for (size_t i = 0; i < 70; i++) oracle_step(o, D, 1 + i % 3, 0);
        oracle_free(o);
    }
}

static void the_papers_protocol_reads_quantized_tokens(void **state) {
    (void)state;
    static const char *const some[] = {"f16", "q8_0", "q4_0", "streaming-100"};
    static const size_t lengths[] = {1, 4, 5, 63, 64, 65, 68, 10, 200};
    for (size_t m = 0; m < 4; m++) {
        for (size_t i = 0; i < cases(sizeof lengths / sizeof lengths[0], 4); i++) {
            struct oracle_setup setup = small;
            setup.method = some[m];
            RUN(&setup, {Q, lengths[i], 0});
            RUN(&setup, {Q, lengths[i], 9}, {Q, 70, 0}, {D, 1, 0}, {P, 150, 0}, {Q, 30, 0}, {D, 1, 0});
        }
    }
}

int main(int argc, char **argv) {
    if (!backend_begins(argc, argv)) return NO_DEVICE_STATUS;
    omp_set_num_threads(1); /* small work: waiting for each other would be most of it */
    find_methods();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_method_equals_dense_attention),
        cmocka_unit_test(every_method_is_read_in_parts),
        cmocka_unit_test(chunks_and_the_papers_protocol),
        cmocka_unit_test(every_shape_equals_dense_attention),
        cmocka_unit_test(partial_rotation_and_magnitude),
        cmocka_unit_test(alibi_instead_of_rotation),
        cmocka_unit_test(lengths_around_pages),
        cmocka_unit_test(queries_may_be_asked_in_any_pieces),
        cmocka_unit_test(one_token_at_a_time),
        cmocka_unit_test(many_single_steps),
        cmocka_unit_test(the_papers_protocol_reads_quantized_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
