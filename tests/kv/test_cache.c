/* Attention over the cache equals dense attention in double precision over the stored numbers, for every method, shape and way to
 * cut a sequence into steps. */
#include "support/cache_oracle.h"

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

struct step {
    enum cache_step_kind kind;
    size_t n, piece;
};

#define D CACHE_STEP_DECODE
#define P CACHE_STEP_PREFILL
#define C CACHE_STEP_CHUNK
#define Q CACHE_STEP_PAPER

static void run_steps(const struct oracle_setup *setup, const struct step *steps, size_t n_steps) {
    size_t tokens = 0;
    for (size_t i = 0; i < n_steps; i++) tokens += steps[i].n;
    struct oracle *o = oracle_new(setup, tokens);
    for (size_t i = 0; i < n_steps; i++) oracle_step(o, steps[i].kind, steps[i].n, steps[i].piece);
    assert_true(o->compared > 0);
    oracle_free(o);
}

#define RUN(setup, ...) \
    run_steps(setup, (const struct step[]){__VA_ARGS__}, sizeof((const struct step[]){__VA_ARGS__}) / sizeof(struct step))

static const struct oracle_setup small = {
    .method = "f16", .tail = TERSE_TAIL_DEFAULT, .layers = 1, .query_heads = 4, .kv_heads = 2, .head_dim = 32};

static void every_method_equals_dense_attention(void **state) {
    (void)state;
    static const char *const named[][3] = {
        {"f16", NULL, NULL},       {"q8_0", NULL, NULL},      {"q4_0", NULL, NULL},        {"f16", "q8_0", "q4_0"},
        {"q4_0", "f16", "q8_0"},   {"f16", NULL, "q4_0"},     {"cq-1", NULL, NULL},        {"cq-0.75", NULL, NULL},
        {"million-4", NULL, NULL}, {"million-3", NULL, NULL}, {"million-2", "q8_0", NULL}, {"cq-2", NULL, "f16"},
        {"antkv-4", NULL, NULL},   {"antkv-1", NULL, NULL},   {"kivi-2", NULL, NULL},      {"q8_0", "kivi-4", "kivi-2"},
        {"terse-2", NULL, NULL},   {"q8_0", NULL, "terse-1"}, {"q8_0", "terse-2", NULL}};
    static const uint32_t tails[] = {0, 32, 128};
    const char *methods[sizeof named / sizeof named[0] + CODEC_COUNT][3];
    const size_t n = oracle_methods(named, sizeof named / sizeof named[0], NULL, methods);
    for (size_t m = 0; m < n; m++) {
        for (size_t t = 0; t < 3; t++) {
            struct oracle_setup setup = small;
            setup.method = methods[m][0];
            setup.key = methods[m][1];
            setup.value = methods[m][2];
            setup.tail = tails[t];
            setup.seed = m * 3 + t;
            RUN(&setup, {P, 130, 0}, {D, 1, 0}, {D, 1, 0}, {D, 5, 0}, {D, 17, 0}, {P, 70, 0}, {D, 62, 0}, {D, 1, 0});
        }
    }
}

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

static void every_shape_equals_dense_attention(void **state) {
    (void)state;
    static const uint32_t groups[] = {1, 3, 4}, head_dims[] = {32, 64, 128};
    for (size_t g = 0; g < 3; g++) {
        for (size_t h = 0; h < 3; h++) {
            for (int pairing = ROPE_ADJACENT; pairing <= ROPE_HALF_SPLIT; pairing++) {
                struct oracle_setup setup = small;
                setup.method = h == 1 ? "q8_0" : "f16";
                setup.tail = 32;
                setup.query_heads = 2 * groups[g];
                setup.head_dim = head_dims[h];
                setup.pairing = (enum rope_pairing)pairing;
                setup.layers = 1 + (uint32_t)(g == 1);
                setup.seed = 100 + g * 10 + h;
                RUN(&setup, {P, 97, 0}, {D, 1, 0}, {D, 3, 0}, {D, 20, 0}, {D, 1, 0});
            }
        }
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
        RUN(&setup, {P, 70, 0}, {D, 1, 0}, {D, 30, 0}, {D, 2, 0});
        setup.method = "streaming-40";
        RUN(&setup, {P, 30, 0}, {D, 1, 0}, {D, 30, 0}, {D, 2, 0}, {D, 1, 0});
    }
}

static void alibi_instead_of_rotation(void **state) {
    (void)state;
    static const char *const methods[] = {"f16", "q8_0", "million-2", "cq-1", "streaming-40"};
    for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
        struct oracle_setup setup = small;
        setup.method = methods[m];
        setup.alibi = true;
        setup.query_heads = 6;
        setup.tail = 0;
        RUN(&setup, {P, 30, 0}, {D, 1, 0}, {P, 130, 0}, {D, 3, 0}, {D, 1, 0}, {P, 70, 11});
    }
}

static void lengths_around_pages(void **state) {
    (void)state;
    static const size_t lengths[] = {1, 3, 4, 5, 15, 16, 17, 63, 64, 65, 67, 68, 127, 128, 129, 132, 191, 192, 193, 196, 257};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct oracle_setup setup = small;
        setup.seed = i;
        setup.method = i % 2 ? "q8_0" : "f16";
        setup.tail = i % 3 ? 0 : 64;
        RUN(&setup, {P, lengths[i], 0}, {D, 1, 0}, {P, lengths[i], 0}, {D, 2, 0});
        RUN(&setup, {D, lengths[i], 0}, {D, lengths[i], 0}, {D, 1, 0});
    }
}

static void queries_may_be_asked_in_any_pieces(void **state) {
    (void)state;
    static const char *const methods[] = {"f16", "q4_0", "streaming-100"};
    for (size_t i = 0; i < 3; i++) {
        struct oracle_setup setup = small;
        setup.method = methods[i];
        setup.tail = 0;
        setup.query_heads = 6;
        RUN(&setup, {P, 200, 7}, {D, 90, 50}, {P, 33, 32}, {D, 3, 1}, {P, 300, 250});
    }
}

static void one_token_at_a_time(void **state) {
    (void)state;
    static const char *const methods[] = {"f16", "q8_0", "q4_0"};
    for (size_t m = 0; m < 3; m++) {
        struct oracle_setup setup = small;
        setup.method = methods[m];
        setup.tail = 70;
        struct oracle *o = oracle_new(&setup, 300);
        for (int i = 0; i < 300; i++) oracle_step(o, D, 1, 0);
        oracle_free(o);
    }
}

/* Windows shorter than a page, of pages, and that end within one; what lies before them has left, in steps of any size. Every policy leaves
 * such layers alone. */
static void sliding_windows_equal_dense_attention_within_them(void **state) {
    (void)state;
    static const char *const methods[] = {"f16",       "q8_0",    "q4_0",    "kivi-4",       "kivi-2", "cq-1",       "million-4",
                                          "million-2", "antkv-1", "terse-2", "streaming-64", "mat-64", "snapkv-128", "quest-64"};
    static const uint32_t windows[] = {1, 40, 64, 129, 200};
    for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
        for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
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
    static const char *const methods[] = {"f16",     "q8_0",      "q4_0",    "kivi-2",      "cq-1",
                                          "antkv-1", "million-4", "terse-2", "streaming-64"};
    for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
        struct oracle_setup setup = small;
        setup.method = methods[m];
        setup.learned_sinks = true;
        setup.seed = m;
        RUN(&setup, {P, 330, 100}, {D, 1, 0}, {D, 5, 0}, {D, 70, 0}, {P, 170, 0}, {C, 40, 0}, {D, 1, 0}, {Q, 100, 0}, {D, 3, 0});
    }
}

/* Long enough that reading is split into parts (split-K) that are merged. */
static void deep_caches_equal_dense_attention(void **state) {
    (void)state;
    static const char *const methods[] = {"f16", "q8_0", "q4_0", "streaming-1500", "cq-1", "million-4", "kivi-4"};
    for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
        struct oracle_setup setup = small;
        setup.method = methods[m];
        setup.query_heads = m % 2 ? 6 : 2;
        setup.learned_sinks = m < 3;
        struct oracle *o = oracle_new(&setup, 2000);
        oracle_skip(o, P, 1700);
        oracle_step(o, D, 1, 0);
        oracle_step(o, D, 7, 0);
        oracle_step(o, D, 100, 0);
        oracle_step(o, D, 1, 0);
        oracle_free(o);
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

static void the_papers_protocol_reads_quantized_tokens(void **state) {
    (void)state;
    static const char *const methods[] = {"f16", "q8_0", "q4_0", "streaming-100"};
    static const size_t lengths[] = {1, 4, 5, 10, 63, 64, 65, 68, 200};
    for (size_t m = 0; m < 4; m++) {
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            struct oracle_setup setup = small;
            setup.method = methods[m];
            RUN(&setup, {Q, lengths[i], 0});
            RUN(&setup, {Q, lengths[i], 9}, {Q, 70, 0}, {D, 1, 0}, {P, 150, 0}, {Q, 30, 0}, {D, 1, 0});
        }
    }
}

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
        RUN(&setup, {D, 1, 0}, {D, 1, 0}, {D, 4, 0}, {D, 40, 0}, {D, 1, 0}, {P, 200, 0}, {D, 1, 0}, {D, 1, 0}, {D, 20, 0},
            {D, 90, 0}, {D, 1, 0});
        RUN(&setup, {P, 163, 0}, {D, 80, 0}, {D, 1, 0}, {D, 80, 0}, {D, 1, 0}, {D, 100, 0}, {D, 1, 0});
        struct oracle *o = oracle_new(&setup, 500);
        oracle_step(o, P, 230, 0);
        for (int i = 0; i < 200; i++) oracle_step(o, D, 1, 0);
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
        for (int i = 0; i < 400; i++) oracle_skip(o, D, 1);
        cache_report(o->cache, &snapped);
        assert_int_equal(snapped.kept, 200);
        for (int i = 0; i < 3000; i++) {
            if (i % 500 == 0)
                oracle_step(o, D, 1, 0);
            else
                oracle_skip(o, D, 1);
            cache_report(o->cache, &report);
            assert_int_equal(report.resident, snapped.resident);
        }
        for (int i = 0; i < 3; i++) { /* a prompt's pages are written while the old ones are still read: memory for both, no more */
            oracle_skip(o, P, 400);
            cache_report(o->cache, &report);
            assert_true(report.resident <= 2 * snapped.resident);
        }
        oracle_free(o);
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
        assert_int_equal(cache_begin(cache, P, n, NULL), TERSE_OK);
        assert_int_equal(cache_append(cache, 0, k + (N - n) * 2 * HD, v, NULL), TERSE_OK);
        assert_int_equal(cache_attend(cache, q, 0, n, out, NULL), TERSE_OK);
        for (size_t i = 0; i < n; i++) {
            for (size_t c = 0; c < 2 * HD; c++) assert_true(fabsf(out[i * 4 * HD + c] - v[c % HD]) <= 1e-3f);
            for (size_t c = 2 * HD; c < 4 * HD; c++) assert_true(out[i * 4 * HD + c] == 0);
        }
        assert_int_equal(cache_end_layer(cache, NULL), TERSE_OK);
        assert_int_equal(cache_commit(cache, NULL), TERSE_OK);
        if (n == 1) break;
    }
    cache_destroy(cache);
    oracle_free(o);
}

/* The same numbers through the cache twice: as one prompt and token by token. What was read exactly is read as halves then. */
static void decoding_by_steps_equals_a_prefill(void **state) {
    (void)state;
    enum { N = 150, WIDTH = 4 * 32 };
    float k[N * 64], v[N * 64], q[N * WIDTH], whole[N * WIDTH], stepped[N * WIDTH];
    struct oracle *a = oracle_new(&small, 1), *b = oracle_new(&small, 1);
    for (size_t i = 0; i < N * 64; i++) k[i] = oracle_random(a);
    for (size_t i = 0; i < N * 64; i++) v[i] = oracle_random(a);
    for (size_t i = 0; i < N * WIDTH; i++) q[i] = oracle_random(a);
    float k_again[N * 64];
    memcpy(k_again, k, sizeof k);
    assert_int_equal(cache_begin(a->cache, P, N, NULL), TERSE_OK);
    assert_int_equal(cache_append(a->cache, 0, k, v, NULL), TERSE_OK);
    assert_int_equal(cache_attend(a->cache, q, 0, N, whole, NULL), TERSE_OK);
    assert_int_equal(cache_end_layer(a->cache, NULL), TERSE_OK);
    assert_int_equal(cache_commit(a->cache, NULL), TERSE_OK);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(cache_begin(b->cache, D, 1, NULL), TERSE_OK);
        assert_int_equal(cache_append(b->cache, 0, k_again + i * 64, v + i * 64, NULL), TERSE_OK);
        assert_int_equal(cache_attend(b->cache, q + i * WIDTH, 0, 1, stepped + i * WIDTH, NULL), TERSE_OK);
        assert_int_equal(cache_end_layer(b->cache, NULL), TERSE_OK);
        assert_int_equal(cache_commit(b->cache, NULL), TERSE_OK);
    }
    double worst = 0;
    for (size_t i = 0; i < N * WIDTH; i++) worst = fmax(worst, fabs((double)whole[i] - (double)stepped[i]));
    assert_true(worst < 2e-3);
    assert_true(worst > 1e-6); /* it did go through halves */
    oracle_free(a);
    oracle_free(b);
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
        assert_int_equal(cache_begin(o->cache, s ? D : P, n, NULL), TERSE_OK);
        assert_int_equal(cache_append(o->cache, 0, k, v, NULL), TERSE_OK);
        assert_int_equal(cache_attend(o->cache, q, 0, n, out, NULL), TERSE_OK);
        assert_int_equal(cache_end_layer(o->cache, NULL), TERSE_OK);
        assert_int_equal(cache_commit(o->cache, NULL), TERSE_OK);
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

static void an_abandoned_step_leaves_no_trace(void **state) {
    (void)state;
    static const enum cache_step_kind kinds[] = {D, P, Q};
    static const char *const methods[] = {"f16", "q4_0", "streaming-100"};
    for (size_t m = 0; m < 3; m++) {
        struct oracle_setup setup = small;
        setup.method = methods[m];
        struct oracle *o = oracle_new(&setup, 1000);
        float *k = malloc(300 * 64 * sizeof *k), *q = malloc(300 * 128 * sizeof *q);
        for (size_t round = 0; round < 6; round++) {
            for (size_t i = 0; i < 300 * 64; i++) k[i] = oracle_random(o);
            for (size_t i = 0; i < 300 * 128; i++) q[i] = oracle_random(o);
            assert_int_equal(cache_begin(o->cache, kinds[round % 3], 300, NULL), TERSE_OK);
            if (round > 2) {
                assert_int_equal(cache_append(o->cache, 0, k, k, NULL), TERSE_OK);
                assert_int_equal(cache_attend(o->cache, q, 0, 300, q, NULL), TERSE_OK); /* in place */
            }
            assert_int_equal(cache_length(o->cache), o->length);
            oracle_step(o, round % 2 ? D : P, 1 + 37 * round, 0);
        }
        free(k);
        free(q);
        oracle_free(o);
    }
}

static void calls_out_of_order_are_refused(void **state) {
    (void)state;
    struct oracle_setup setup = small;
    setup.layers = 2;
    struct oracle *o = oracle_new(&setup, 10);
    struct terse_error error;
    struct cache *cache = o->cache;
    float k[3 * 64] = {0}, q[3 * 128] = {0};
    assert_int_equal(cache_append(cache, 0, k, k, &error), TERSE_E_ARGUMENT); /* no step has begun */
    assert_int_equal(cache_commit(cache, &error), TERSE_E_ARGUMENT);
    assert_int_equal(cache_begin(cache, P, 3, &error), TERSE_OK);
    assert_int_equal(cache_attend(cache, q, 0, 3, q, &error), TERSE_E_ARGUMENT); /* no layer has keys */
    assert_int_equal(cache_observe(cache, q, 0, 3, &error), TERSE_E_ARGUMENT);
    assert_int_equal(cache_end_layer(cache, &error), TERSE_E_ARGUMENT);
    assert_int_equal(cache_append(cache, 2, k, k, &error), TERSE_E_ARGUMENT); /* there are two */
    assert_int_equal(cache_append(cache, 0, k, k, &error), TERSE_OK);
    assert_int_equal(cache_attend(cache, q, 2, 2, q, &error), TERSE_E_ARGUMENT); /* a query too many */
    assert_int_equal(cache_attend(cache, q, 0, 3, q, &error), TERSE_OK);
    assert_int_equal(cache_end_layer(cache, &error), TERSE_OK);
    assert_int_equal(cache_append(cache, 0, k, k, &error), TERSE_E_ARGUMENT); /* has ended */
    assert_int_equal(cache_commit(cache, &error), TERSE_E_ARGUMENT);          /* a layer is missing */
    assert_int_equal(cache_length(cache), 0);
    assert_int_equal(cache_append(cache, 1, k, k, &error), TERSE_OK);
    assert_int_equal(cache_end_layer(cache, &error), TERSE_OK);
    assert_int_equal(cache_commit(cache, &error), TERSE_OK);
    assert_int_equal(cache_length(cache), 3);
    oracle_free(o);
}

static void a_reset_cache_is_a_new_one(void **state) {
    (void)state;
    static const char *const methods[] = {"q8_0", "streaming-100"};
    for (size_t m = 0; m < 2; m++) {
        struct oracle_setup setup = small;
        setup.method = methods[m];
        struct oracle *o = oracle_new(&setup, 400);
        struct terse_cache_report before, after;
        oracle_step(o, P, 333, 0);
        oracle_step(o, D, 1, 0);
        cache_report(o->cache, &before);
        cache_reset(o->cache);
        o->length = o->window = 0;
        assert_int_equal(cache_length(o->cache), 0);
        oracle_step(o, P, 200, 0);
        oracle_step(o, D, 1, 0);
        cache_report(o->cache, &after);
        assert_int_equal(after.resident, before.resident);
        oracle_free(o);
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
        cmocka_unit_test(every_method_equals_dense_attention),
        cmocka_unit_test(all_tokens_chosen_equal_dense_attention),
        cmocka_unit_test(every_shape_equals_dense_attention),
        cmocka_unit_test(heads_may_be_read_in_different_ways),
        cmocka_unit_test(partial_rotation_and_magnitude),
        cmocka_unit_test(alibi_instead_of_rotation),
        cmocka_unit_test(lengths_around_pages),
        cmocka_unit_test(queries_may_be_asked_in_any_pieces),
        cmocka_unit_test(one_token_at_a_time),
        cmocka_unit_test(learned_sinks_are_seen_once),
        cmocka_unit_test(sliding_windows_equal_dense_attention_within_them),
        cmocka_unit_test(deep_caches_equal_dense_attention),
        cmocka_unit_test(the_papers_protocol_reads_quantized_tokens),
        cmocka_unit_test(streaming_equals_a_fresh_sequence_of_the_kept_tokens),
        cmocka_unit_test(streaming_goes_on_in_constant_memory),
        cmocka_unit_test(logits_of_minus_infinity_weigh_nothing),
        cmocka_unit_test(decoding_by_steps_equals_a_prefill),
        cmocka_unit_test(the_number_of_threads_changes_nothing),
        cmocka_unit_test(an_abandoned_step_leaves_no_trace),
        cmocka_unit_test(calls_out_of_order_are_refused),
        cmocka_unit_test(a_reset_cache_is_a_new_one),
        cmocka_unit_test(counters_say_what_was_read),
        cmocka_unit_test(shapes_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
