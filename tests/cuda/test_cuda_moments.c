/* A cache learns from each layer's own rows, also where a launch looks at some layers only. */
#include "backend/cuda/device.h"
#include "backend/cuda/kv/state.h"
#include "backend/cuda/kv/window.h"
#include "base/half.h"
#include "host_kv.h"
#include "no_device.h"
#include "support/cache_oracle.h"
#include "support/cache_steps.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The moments of one layer fill more than half of the memory that a launch has. */
#define LAYERS 2
#define KV_HEADS 32
#define HEAD_DIM 256
#define WIDTH (KV_HEADS * HEAD_DIM)
#define TOKENS 20

static void layers_learn_from_their_own_rows(void **state) {
    (void)state;
    static float rows[LAYERS][TOKENS * WIDTH], keys[LAYERS][TOKENS * WIDTH];
    const struct oracle_setup setup = {.kv = host_kv_ops(),
                                       .method = "terse-1",
                                       .tail = 64,
                                       .layers = LAYERS,
                                       .query_heads = KV_HEADS,
                                       .kv_heads = KV_HEADS,
                                       .head_dim = HEAD_DIM,
                                       .seed = 1};
    const struct encode_sides values = {CODEC_VALUES, 1};
    const size_t each = ENCODE_MOMENTS_FLOATS(HEAD_DIM);
    struct oracle *o = oracle_new(&setup, 1);
    struct cache *cache = o->cache;
    float *moments = malloc(LAYERS * KV_HEADS * each * sizeof *moments), *later = malloc(KV_HEADS * each * sizeof *later);
    for (size_t layer = 0; layer < LAYERS; layer++)
        for (size_t i = 0; i < TOKENS * WIDTH; i++) rows[layer][i] = half_to_float(half_from_float(oracle_random(o)));
    step_cache(o->kv, cache, &o->shape, CACHE_STEP_PREFILL, TOKENS,
               &(struct step_rows){.k = keys[0], .v = rows[0], .apart = TOKENS});
    const size_t first = (size_t)cache->base.plan.grid, n = TOKENS - first;
    assert_int_equal(window_moments(cache, n, values, (struct layer_range){0, LAYERS}, moments, NULL), TERSE_OK);
    assert_int_equal(window_moments(cache, n, values, (struct layer_range){1, 2}, later, NULL), TERSE_OK); /* as a rank does */
    assert_memory_equal(later, moments + KV_HEADS * each, KV_HEADS * each * sizeof *later);
    for (size_t set = 0; set < LAYERS * KV_HEADS; set++)
        for (size_t c = 0; c < HEAD_DIM; c++) {
            double sum = 0;
            for (size_t t = first; t < TOKENS; t++) sum += (double)rows[set / KV_HEADS][t * WIDTH + set % KV_HEADS * HEAD_DIM + c];
            const double mean = (double)moments[set * each + (size_t)HEAD_DIM * HEAD_DIM + c];
            if (!(fabs(mean - sum / (double)n) <= 1e-6))
                fail_msg("layer %zu, head %zu, channel %zu: mean %g, not %g", set / KV_HEADS, set % KV_HEADS, c, mean,
                         sum / (double)n);
        }
    free(moments);
    free(later);
    oracle_free(o);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(layers_learn_from_their_own_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
