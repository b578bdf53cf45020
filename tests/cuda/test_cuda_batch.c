/* A decoding step of several caches at once gives each bit for bit what it gets alone: caches of one method and of several, of different lengths, read in
 * different numbers of splits and of rope runs, of one token and of some,
 * with exact rows where they stood and elsewhere; some choose what they read. */
#include "backend/cuda/device.h"
#include "backend/cuda/kv/batch.h"
#include "backend/cuda/kv/ops.h"
#include "host_kv.h"
#include "no_device.h"
#include "support/cache_oracle.h"
#include "support/cache_steps.h"
#include "support/one_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 2
#define QUERY_HEADS 4
#define KV_HEADS 2
#define HEAD_DIM 64
#define Q_WIDTH (QUERY_HEADS * HEAD_DIM)
#define K_WIDTH (KV_HEADS * HEAD_DIM)

/* Those of a method follow one another, as the executor has them, the longer one first; but before those of terse-2 stands one that has no page, which
 * other kernels read. */
static const struct sequence {
    const char *method;
    size_t length, tokens; /* before the step, and of it */
    double read_percent;
} sequences[] = {{"terse-2", 40, 1, 0},       {"terse-2", 1300, 1, 0},  {"terse-2", 140, 3, 0},  {"streaming-40", 700, 1, 0},
                 {"streaming-40", 141, 2, 0}, {"q4_0", 1300, 2, 0},     {"q4_0", 150, 1, 0},     {"million-2", 1300, 1, 0},
                 {"million-2", 150, 2, 0},    {"commvq-1", 1300, 1, 0}, {"commvq-1", 150, 2, 0}, {"terse-2", 1300, 1, 20},
                 {"terse-2", 900, 2, 20},     {"terse-2", 70, 1, 20}};
#define SEQUENCES (sizeof sequences / sizeof sequences[0])
#define ROWS_MOST 21

/* A step's numbers of all rows, by layer. */
struct step_numbers {
    float q[LAYERS][ROWS_MOST * Q_WIDTH], k[LAYERS][ROWS_MOST * K_WIDTH], v[LAYERS][ROWS_MOST * K_WIDTH];
};

static struct oracle *oracle_of(const char *method, double read_percent) {
    struct oracle_setup setup = {.kv = host_kv_ops(),
                                 .method = method,
                                 .read_percent = read_percent,
                                 .tail = 64,
                                 .layers = LAYERS,
                                 .query_heads = QUERY_HEADS,
                                 .kv_heads = KV_HEADS,
                                 .head_dim = HEAD_DIM,
                                 .seed = 1};
    return oracle_new(&setup, 1);
}

static void fill(struct oracle *o, float *numbers, size_t n) {
    for (size_t i = 0; i < n; i++) numbers[i] = oracle_random(o);
}

/* A cache with the method of an oracle, and a prompt read. */
static struct cache *cache_of(struct oracle *o, size_t length) {
    struct terse_error error;
    struct cache *cache;
    float *k = malloc(LAYERS * length * K_WIDTH * sizeof *k), *v = malloc(LAYERS * length * K_WIDTH * sizeof *v);
    if (parts_create(o->kv->storage, &o->shape, &o->method, 1, &cache, &error)) fail_msg("%s", error.message);
    for (size_t i = 0; i < LAYERS * length * K_WIDTH; i++) k[i] = oracle_random(o), v[i] = oracle_random(o);
    step_cache(o->kv, cache, &o->shape, CACHE_STEP_PREFILL, length, &(struct step_rows){.k = k, .v = v, .apart = length});
    free(k);
    free(v);
    return cache;
}

/* out[layers][n][Hq][hd] of a fork of the cache that goes on alone, whose rows of the step are from `row` on. */
static void step_alone(const struct oracle *o, const struct cache *cache, size_t n, size_t row, struct step_numbers *in,
                       struct step_numbers *out) {
    struct cache *fork;
    assert_int_equal(parts_fork(cache, &fork, NULL), TERSE_OK);
    assert_int_equal(one_begin(o->kv, fork, CACHE_STEP_DECODE, n, NULL), TERSE_OK);
    step_layers(o->kv, fork, &o->shape, n,
                &(struct step_rows){.k = in->k[0] + row * K_WIDTH,
                                    .v = in->v[0] + row * K_WIDTH,
                                    .q = in->q[0] + row * Q_WIDTH,
                                    .out = out->q[0] + row * Q_WIDTH,
                                    .apart = ROWS_MOST});
    parts_destroy(fork);
}

static float *sent(const float *from, size_t floats) {
    float *to = device_alloc(NULL, floats * sizeof *to, "a test", NULL);
    assert_non_null(to);
    assert_int_equal(device_send(to, from, floats * sizeof *to), cudaSuccess);
    return to;
}

static void step_together(const struct cache_shape *shape, struct cache *const *caches, size_t rows, const struct step_numbers *in,
                          struct step_numbers *out) {
    struct kv_batch batch = {caches, SEQUENCES, NULL};
    assert_int_equal(batch_new(shape, &batch.memory, NULL), TERSE_OK);
    for (size_t i = 0; i < SEQUENCES; i++)
        assert_int_equal(cuda_kv_ops.begin(caches[i], CACHE_STEP_DECODE, sequences[i].tokens, NULL), TERSE_OK);
    assert_int_equal(cuda_kv_ops.join(&batch, NULL), TERSE_OK);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        float *q = sent(in->q[layer], rows * Q_WIDTH), *k = sent(in->k[layer], rows * K_WIDTH),
              *v = sent(in->v[layer], rows * K_WIDTH);
        const struct kv_rows all = {.layer = layer, .count = rows, .k = k, .v = v, .q = q, .out = q};
        assert_int_equal(cuda_kv_ops.append(&batch, &all, NULL), TERSE_OK);
        assert_int_equal(cuda_kv_ops.attend(&batch, &all, NULL), TERSE_OK);
        cudaStreamSynchronize(device_stream());
        assert_int_equal(device_fetch(out->q[layer], q, rows * Q_WIDTH * sizeof *q), cudaSuccess);
        device_free(NULL, q, rows * Q_WIDTH * sizeof *q);
        device_free(NULL, k, rows * K_WIDTH * sizeof *k);
        device_free(NULL, v, rows * K_WIDTH * sizeof *v);
    }
    batch_free(batch.memory);
}

static void a_step_of_several_gives_each_what_it_gets_alone(void **state) {
    (void)state;
    static struct step_numbers in, alone, together;
    struct oracle *oracles[SEQUENCES];
    struct cache *caches[SEQUENCES];
    size_t rows = 0;
    for (size_t i = 0; i < SEQUENCES; i++) {
        const struct sequence *s = &sequences[i];
        const bool next = i && strcmp(s->method, s[-1].method) == 0 && !(s->read_percent > s[-1].read_percent);
        oracles[i] = next ? oracles[i - 1] : oracle_of(s->method, s->read_percent);
        caches[i] = cache_of(oracles[i], sequences[i].length);
        rows += sequences[i].tokens;
    }
    assert_true(rows <= ROWS_MOST);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        fill(oracles[0], in.q[layer], rows * Q_WIDTH);
        fill(oracles[0], in.k[layer], rows * K_WIDTH);
        fill(oracles[0], in.v[layer], rows * K_WIDTH);
    }
    for (size_t i = 0, row = 0; i < SEQUENCES; row += sequences[i++].tokens)
        step_alone(oracles[i], caches[i], sequences[i].tokens, row, &in, &alone);
    step_together(&oracles[0]->shape, caches, rows, &in, &together);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (size_t i = 0, row = 0; i < SEQUENCES; row += sequences[i++].tokens)
            if (memcmp(alone.q[layer] + row * Q_WIDTH, together.q[layer] + row * Q_WIDTH,
                       sequences[i].tokens * Q_WIDTH * sizeof(float)))
                fail_msg("%s of %zu tokens, layer %u", sequences[i].method, sequences[i].length, layer);
    for (size_t i = 0; i < SEQUENCES; i++) parts_destroy(caches[i]);
    for (size_t i = 0; i < SEQUENCES; i++)
        if (!i || oracles[i] != oracles[i - 1]) oracle_free(oracles[i]);
}

static void a_prompt_goes_by_itself(void **state) {
    (void)state;
    struct oracle *o = oracle_of("q4_0", 0);
    struct cache *caches[2] = {cache_of(o, 70), cache_of(o, 70)};
    struct kv_batch batch = {caches, 2, NULL};
    const struct kv_ops *kv = host_kv_ops();
    static float q[90 * Q_WIDTH];
    assert_int_equal(kv->begin(caches[0], CACHE_STEP_DECODE, 1, NULL), TERSE_OK);
    assert_int_equal(kv->join(&batch, NULL), TERSE_E_ARGUMENT); /* one of them has not begun */
    assert_int_equal(kv->begin(caches[1], CACHE_STEP_PREFILL, 90, NULL), TERSE_OK);
    assert_int_equal(kv->join(&batch, NULL), TERSE_E_ARGUMENT);
    batch = (struct kv_batch){caches + 1, 1, NULL};
    assert_int_equal(kv->join(&batch, NULL), TERSE_OK);
    assert_int_equal(one_attend(kv, caches[1], 0, q, 0, 90, q, NULL), TERSE_E_ARGUMENT); /* no layer has keys */
    assert_int_equal(one_seal(kv, caches[1], 0, NULL), TERSE_E_ARGUMENT);
    for (size_t i = 0; i < 2; i++) parts_destroy(caches[i]);
    oracle_free(o);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_of_several_gives_each_what_it_gets_alone),
                                       cmocka_unit_test(a_prompt_goes_by_itself)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
