/* Sealing ahead of time changes when pages are encoded and nothing else: outputs bit for bit those of sealing in the step, however
 * long the worker takes, and every token is read exactly once. */
#include "backend/cpu/kv/state.h"
#include "support/oracle_runs.h"

#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* The codec q4_0, whose encoding takes a different time each call. */
static struct cpu_codec slow;
static _Atomic unsigned encodes, delay_us;

static void encode_slowly(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page) {
    unsigned i = atomic_fetch_add(&encodes, 1), most = atomic_load(&delay_us);
    if (most) nanosleep(&(struct timespec){0, (long)(i * 7919 % most) * 1000}, NULL);
    cpu_codec_q4_0.encode(shape, side, rows, n, page);
}

enum { HEADS = 2, HD = 32, LAYERS = 2, WIDTH = HEADS * HD, MOST = 400 };

static struct cache *new_cache(struct method *method, uint32_t tail, bool ahead) {
    static float frequency[HD / 2];
    static const struct rope rope = {ROPE_ADJACENT, HD, HD, frequency, 1};
    static const struct cache_shape shape = {LAYERS, HEADS, HEADS, HD, 0.3f, &rope, .slopes = NULL};
    struct terse_cache_options options = {.method = "q4_0", .tail_tokens = tail, .anchor_count = 3};
    struct cache *cache;
    struct terse_error error;
    if (method_resolve(&options, HD, method, &error)) fail_msg("%s", error.message);
    if (cache_create(&shape, method, (uint32_t)omp_get_max_threads(), &cache, &error)) fail_msg("%s", error.message);
    slow = cpu_codec_q4_0;
    slow.encode = encode_slowly;
    cache->codec[CODEC_KEYS] = cache->codec[CODEC_VALUES] = &slow;
    cache_set_seal_ahead(cache, ahead);
    return cache;
}

static void step(struct cache *cache, enum cache_step_kind kind, size_t n, uint32_t seed, float *out) {
    static float k[MOST * WIDTH], v[MOST * WIDTH];
    struct terse_error error;
    if (cache_begin(cache, kind, n, &error)) fail_msg("%s", error.message);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        float *rows[] = {k, v, out + layer * n * WIDTH};
        for (size_t r = 0; r < 3; r++)
            for (size_t i = 0; i < n * WIDTH; i++) {
                seed = seed * 1664525u + 1013904223u;
                rows[r][i] = 3 * ((float)(seed >> 8) / (1 << 24) - 0.5f);
            }
        assert_int_equal(cache_append(cache, layer, k, v, NULL), TERSE_OK);
        if (cache_queries_to_observe(cache, 0)) assert_int_equal(cache_observe(cache, rows[2], 0, n, NULL), TERSE_OK);
        assert_int_equal(cache_attend(cache, rows[2], 0, n, rows[2], NULL), TERSE_OK);
        assert_int_equal(cache_end_layer(cache, NULL), TERSE_OK);
    }
    assert_int_equal(cache_commit(cache, NULL), TERSE_OK);
}

static void outputs_do_not_depend_on_the_worker(void **state) {
    (void)state;
    static const uint32_t tails[] = {0, 64, 100, 128, 256};
    static const unsigned delays[] = {0, 300, 3000};
    static const struct {
        enum cache_step_kind kind;
        size_t n, times;
    } steps[] = {{P, 300, 1}, {D, 1, 200}, {D, 64, 3}, {D, 70, 2}, {P, 100, 1},
                 {D, 1, 70},  {D, 200, 1}, {D, 5, 30}, {Q, 30, 1}, {D, 1, 140}};
    float *out[2] = {malloc(LAYERS * MOST * WIDTH * sizeof(float)), malloc(LAYERS * MOST * WIDTH * sizeof(float))};
    for (size_t t = 0; t < sizeof tails / sizeof tails[0]; t++) {
        struct method method;
        struct cache *in_step = new_cache(&method, tails[t], false), *ahead = new_cache(&method, tails[t], true);
        for (size_t run = 0; run < 2; run++) { /* again after a reset, with jobs perhaps under way */
            uint32_t seed = 1;
            for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
                for (size_t n = 0; n < steps[i].times; n++, seed++) {
                    atomic_store(&delay_us, 0);
                    step(in_step, steps[i].kind, steps[i].n, seed, out[0]);
                    atomic_store(&delay_us, delays[t % 3]);
                    step(ahead, steps[i].kind, steps[i].n, seed, out[1]);
                    assert_memory_equal(out[0], out[1], LAYERS * steps[i].n * WIDTH * sizeof(float));
                    assert_int_equal(cache_length(ahead), cache_length(in_step));
                }
            }
            cache_reset(in_step);
            cache_reset(ahead);
        }
        cache_destroy(in_step);
        cache_destroy(ahead);
    }
    free(out[0]);
    free(out[1]);
}

/* The step that moves a page out of the window encodes nothing itself when the worker had time. */
static void the_step_that_seals_encodes_nothing(void **state) {
    (void)state;
    struct method method;
    struct cache *cache = new_cache(&method, 128, true);
    float *out = malloc(LAYERS * MOST * WIDTH * sizeof *out);
    atomic_store(&delay_us, 0);
    step(cache, P, 300, 1, out);
    unsigned before = atomic_load(&encodes);
    for (size_t i = 0; i < 200; i++) {
        step(cache, D, 1, 2, out);
        /* After 300 tokens, 4 of them exact tokens, 168 lie in the window: 2 full pages, encoded from the first step on; then one for
         * every 64 tokens, as soon as they are there and long before they leave. */
        unsigned expected = (unsigned)(2 + (296 + i + 1) / 64 - 296 / 64) * LAYERS * HEADS * 2;
        for (int wait = 0; atomic_load(&encodes) - before < expected && wait < 5000; wait++)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        assert_int_equal(atomic_load(&encodes) - before, expected);
    }
    cache_destroy(cache);
    free(out);
}

/* Attention over tokens that may lie in the window or in a page equals dense attention at every step, with a learned codec. */
static void every_token_is_read_once(void **state) {
    (void)state;
    static const char *const methods[] = {"cq-1", "million-4"};
    for (size_t m = 0; m < 2; m++) {
        struct oracle_setup setup = {
            .method = methods[m], .tail = 128, .layers = 1, .query_heads = 4, .kv_heads = 2, .head_dim = 32, .seed = m};
        struct oracle *o = oracle_new(&setup, 700);
        oracle_step(o, P, 90, 0);
        for (int i = 0; i < 400; i++) oracle_step(o, D, 1, 0);
        oracle_step(o, D, 200, 0);
        oracle_free(o);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_do_not_depend_on_the_worker),
        cmocka_unit_test(the_step_that_seals_encodes_nothing),
        cmocka_unit_test(every_token_is_read_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
