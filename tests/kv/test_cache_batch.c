/* A step of several caches through the table of the CPU gives each bit for bit what it gets alone, in whatever pieces their queries attend; and calls
 * out of order are refused. */
#include "backend/backend.h"
#include "base/random.h"
#include "kv/parts.h"
#include "support/one_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 2, Q_HEADS = 4, HEADS = 2, HD = 32, Q_WIDTH = Q_HEADS * HD, K_WIDTH = HEADS * HD, LONGEST = 700, STEPS = 3 };

/* The longest first; one of them shows its queries before they attend. */
static const struct {
    const char *method;
    double anchor_percent;
    size_t length, tokens; /* before the steps, and of each */
    enum cache_step_kind kind;
} sequences[] = {{"f16", -1, LONGEST, 1, CACHE_STEP_DECODE},
                 {"q4_0", 10, 300, 70, CACHE_STEP_PAPER},
                 {"mat-64", -1, 200, 2, CACHE_STEP_DECODE},
                 {"q8_0", -1, 64, 3, CACHE_STEP_DECODE},
                 {"streaming-40", -1, 50, 1, CACHE_STEP_DECODE}};
enum { SEQUENCES = sizeof sequences / sizeof sequences[0], ROWS = 1 + 70 + 2 + 3 + 1 };

static float frequency[HD / 2];
static struct rope rope = {ROPE_HALF_SPLIT, HD, HD, frequency, 1};
static const struct cache_shape shape = {LAYERS, Q_HEADS, HEADS, HD, 0.2f, &rope, .slopes = NULL};
static uint64_t seed = 7;

static void fill(float *numbers, size_t n) {
    for (size_t i = 0; i < n; i++) numbers[i] = (float)random_uniform(random_next(&seed)) * 2 - 1;
}

static struct cache *new_cache(size_t i) {
    static float k[LONGEST * K_WIDTH], v[LONGEST * K_WIDTH], q[LONGEST * Q_WIDTH];
    struct terse_cache_options options = terse_cache_options_defaults();
    const struct kv_ops *kv = backend_cpu.kv;
    const size_t n = sequences[i].length;
    struct method method;
    struct terse_error error;
    struct cache *cache;
    options.method = sequences[i].method;
    options.anchor_percent = sequences[i].anchor_percent;
    options.tail_tokens = 32;
    if (method_resolve(&options, HD, &method, &error)) fail_msg("%s: %s", options.method, error.message);
    assert_int_equal(parts_create(kv->storage, &shape, &method, 2, &cache, NULL), TERSE_OK);
    assert_int_equal(one_begin(kv, cache, CACHE_STEP_PREFILL, n, NULL), TERSE_OK);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        fill(k, n * K_WIDTH);
        fill(v, n * K_WIDTH);
        fill(q, n * Q_WIDTH);
        assert_int_equal(one_append(kv, cache, layer, k, v, NULL), TERSE_OK);
        assert_int_equal(one_attend(kv, cache, layer, q, 0, n, q, NULL), TERSE_OK);
        assert_int_equal(one_seal(kv, cache, layer, NULL), TERSE_OK);
    }
    assert_int_equal(kv->commit(cache, NULL), TERSE_OK);
    return cache;
}

/* A step's numbers of all rows, by layer. */
struct numbers {
    float k[LAYERS][ROWS * K_WIDTH], v[LAYERS][ROWS * K_WIDTH], q[LAYERS][ROWS * Q_WIDTH];
};

/* Outputs of n caches' step to out[layers][rows of `in`], the first being row `row`, `piece` queries at a time. */
static void step(struct cache *const *caches, size_t first, size_t n, size_t row, size_t piece, const struct numbers *in,
                 float (*out)[ROWS * Q_WIDTH]) {
    const struct kv_ops *kv = backend_cpu.kv;
    const struct kv_batch batch = {caches, n, NULL};
    static struct numbers own; /* keys are rotated in place */
    size_t count = 0, from;
    own = *in;
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(kv->begin(caches[i], sequences[first + i].kind, sequences[first + i].tokens, NULL), TERSE_OK);
        count += sequences[first + i].tokens;
    }
    assert_int_equal(kv->join(&batch, NULL), TERSE_OK);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        float *q = own.q[layer] + row * Q_WIDTH;
        const struct kv_rows keys = {
            .layer = layer, .count = count, .k = own.k[layer] + row * K_WIDTH, .v = own.v[layer] + row * K_WIDTH};
        assert_int_equal(kv->append(&batch, &keys, NULL), TERSE_OK);
        size_t end = kv->queries_to_observe(&batch, 0, &from);
        const struct kv_rows shown = {.layer = layer, .first = from, .count = end - from, .q = q + from * Q_WIDTH};
        if (end > from) assert_int_equal(kv->observe(&batch, &shown, NULL), TERSE_OK);
        for (size_t i = 0; i < count; i += piece) {
            const struct kv_rows queries = {.layer = layer,
                                            .first = i,
                                            .count = count - i < piece ? count - i : piece,
                                            .q = q + i * Q_WIDTH,
                                            .out = out[layer] + (row + i) * Q_WIDTH};
            assert_int_equal(kv->attend(&batch, &queries, NULL), TERSE_OK);
        }
        assert_int_equal(kv->seal(&batch, layer, NULL), TERSE_OK);
    }
    for (size_t i = 0; i < n; i++) assert_int_equal(kv->commit(caches[i], NULL), TERSE_OK);
}

static void caches_in_a_step_do_not_disturb_each_other(void **state) {
    (void)state;
    static struct numbers in;
    static float alone[LAYERS][ROWS * Q_WIDTH], together[LAYERS][ROWS * Q_WIDTH];
    struct cache *caches[SEQUENCES], *forks[SEQUENCES];
    for (size_t i = 0; i < SEQUENCES; i++) {
        caches[i] = new_cache(i);
        assert_int_equal(parts_fork(caches[i], &forks[i], NULL), TERSE_OK);
    }
    for (size_t s = 0; s < STEPS; s++) {
        fill(in.k[0], sizeof in / sizeof(float));
        for (size_t i = 0, row = 0; i < SEQUENCES; row += sequences[i++].tokens)
            step(&forks[i], i, 1, row, sequences[i].tokens, &in, alone);
        step(caches, 0, SEQUENCES, 0, ROWS, &in, together);
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            for (size_t i = 0, row = 0; i < SEQUENCES; row += sequences[i++].tokens)
                if (memcmp(alone[layer] + row * Q_WIDTH, together[layer] + row * Q_WIDTH,
                           sequences[i].tokens * Q_WIDTH * sizeof(float)))
                    fail_msg("step %zu, layer %u: %s after %zu tokens", s, layer, sequences[i].method, sequences[i].length);
    }
    for (size_t i = 0; i < SEQUENCES; i++) {
        parts_destroy(caches[i]);
        parts_destroy(forks[i]);
    }
}

static void queries_attend_in_any_pieces(void **state) {
    (void)state;
    static struct numbers in;
    static float whole[LAYERS][ROWS * Q_WIDTH], pieces[LAYERS][ROWS * Q_WIDTH];
    struct cache *caches[2] = {new_cache(2), new_cache(3)}, *forks[2];
    for (size_t i = 0; i < 2; i++) assert_int_equal(parts_fork(caches[i], &forks[i], NULL), TERSE_OK);
    fill(in.k[0], sizeof in / sizeof(float));
    step(caches, 2, 2, 0, ROWS, &in, whole);
    step(forks, 2, 2, 0, 3, &in, pieces); /* the first piece is of both */
    const size_t rows = sequences[2].tokens + sequences[3].tokens;
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (size_t i = 0; i < rows * Q_WIDTH; i++)
            assert_true(whole[layer][i] - pieces[layer][i] < 1e-5f && pieces[layer][i] - whole[layer][i] < 1e-5f);
    for (size_t i = 0; i < 2; i++) {
        parts_destroy(caches[i]);
        parts_destroy(forks[i]);
    }
}

static void what_is_out_of_order_is_refused(void **state) {
    (void)state;
    static float k[5 * K_WIDTH], q[5 * Q_WIDTH];
    const struct kv_ops *kv = backend_cpu.kv;
    struct cache *caches[2] = {new_cache(2), new_cache(3)};
    const struct kv_batch batch = {caches, 2, NULL};
    const struct kv_rows all = {.count = 5, .k = k, .v = k, .q = q, .out = q};
    const struct kv_rows some = {.count = 4, .k = k, .v = k}, later = {.layer = LAYERS, .count = 5, .k = k, .v = k};
    assert_int_equal(kv->begin(caches[0], CACHE_STEP_DECODE, 2, NULL), TERSE_OK);
    assert_int_equal(kv->join(&batch, NULL), TERSE_E_ARGUMENT); /* one of them has not begun */
    assert_int_equal(kv->begin(caches[1], CACHE_STEP_DECODE, 3, NULL), TERSE_OK);
    assert_int_equal(kv->join(&batch, NULL), TERSE_OK);
    assert_int_equal(kv->attend(&batch, &all, NULL), TERSE_E_ARGUMENT); /* no layer has keys */
    assert_int_equal(kv->seal(&batch, 0, NULL), TERSE_E_ARGUMENT);
    assert_int_equal(kv->append(&batch, &later, NULL), TERSE_E_ARGUMENT);
    assert_int_equal(kv->append(&batch, &some, NULL), TERSE_E_ARGUMENT);
    assert_int_equal(kv->append(&batch, &all, NULL), TERSE_OK);
    assert_int_equal(kv->attend(&batch, &all, NULL), TERSE_OK);
    assert_int_equal(kv->seal(&batch, 0, NULL), TERSE_OK);
    assert_int_equal(kv->append(&batch, &all, NULL), TERSE_E_ARGUMENT); /* the layer has ended */
    for (size_t i = 0; i < 2; i++) parts_destroy(caches[i]);
}

int main(void) {
    for (size_t i = 0; i < HD / 2; i++) frequency[i] = 1 / (float)(1 + i * i);
    const struct CMUnitTest tests[] = {cmocka_unit_test(caches_in_a_step_do_not_disturb_each_other),
                                       cmocka_unit_test(queries_attend_in_any_pieces),
                                       cmocka_unit_test(what_is_out_of_order_is_refused)};
    return cmocka_run_group_tests_name("cache batch", tests, NULL, NULL);
}
