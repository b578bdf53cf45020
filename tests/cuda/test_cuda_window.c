/* A window that has grown for a sequence that waits to be fitted gives the memory back, and keeps its tokens, also where they go around the end of it. */
#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kv/state.h"
#include "base/random.h"
#include "format/codebook_layouts.h"
#include "host_kv.h"
#include "no_device.h"
#include "support/cache_steps.h"
#include "support/one_cache.h"
#include "support/oracle_copies.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The window grows until it holds WAIT tokens. A prompt behind them is fitted and sealed, and the window trimmed. */
enum { KV_HEADS = 2, HEAD_DIM = 64, WIDTH = KV_HEADS * HEAD_DIM, WAIT = SINKS + FIT_TOKENS, MORE = 300, TOKENS = WAIT + MORE };

static float frequency[HEAD_DIM / 2];
static struct rope rope = {ROPE_HALF_SPLIT, HEAD_DIM, HEAD_DIM, frequency, 1};
static const struct cache_shape shape = {
    .layers = 1, .query_heads = KV_HEADS, .kv_heads = KV_HEADS, .head_dim = HEAD_DIM, .scale = 0.125f, .rope = &rope};
static float keys[TOKENS][WIDTH], values[TOKENS][WIDTH];

/* The profile counts as made from the weights, so that every sequence is fitted. */
static struct method fitting_method(struct terse_codebook **profile) {
    struct terse_cache_options options = {.method = "terse-3", .anchor_percent = -1, .tail_tokens = 128};
    struct method method;
    struct terse_error error;
    if (method_resolve(&options, HEAD_DIM, &method, &error)) fail_msg("%s", error.message);
    struct codebook_info info = {.key = method.key, .value = method.value, .layers = 1, .kv_heads = KV_HEADS, .head_dim = HEAD_DIM};
    const double rate[2] = {method.key.rate, method.value.rate};
    snprintf(info.method, sizeof info.method, "%s", method.codebook);
    if (codebook_random(&info, 0, false, profile, &error) || codebook_layouts(*profile, rate, &method.layouts, &error))
        fail_msg("%s", error.message);
    method.learned = *profile;
    method.of_weights = true;
    return method;
}

/* Returns the rows of the GPU's window in the step. */
static uint32_t read_tokens(const struct kv_ops *kv, struct cache *cache, size_t first, size_t n) {
    struct terse_error error;
    if (one_begin(kv, cache, CACHE_STEP_PREFILL, n, &error)) fail_msg("%s", error.message);
    const uint32_t capacity = kv == backend_cpu.kv ? 0 : cache->window_capacity;
    step_layers(kv, cache, &shape, n, &(struct step_rows){.k = keys[first], .v = values[first]});
    if (kv->commit(cache, &error)) fail_msg("%s", error.message);
    return capacity;
}

/* The window's section of a saved state, to be freed. */
static uint16_t *saved_window(const struct cache *cache, size_t *bytes) {
    struct state_file *file;
    void *path;
    assert_int_equal(make_state_path(&path), 0);
    cache_save_to(cache, path);
    assert_int_equal(state_file_open(path, &file, NULL), TERSE_OK);
    const void *data = state_file_section(file, STATE_WINDOW, bytes);
    uint16_t *copy = memcpy(malloc(*bytes), data, *bytes);
    state_file_close(file);
    remove_state_path(&path);
    return copy;
}

/* Reads WAIT tokens and `more`. Returns whether the window was trimmed while its tokens went around its end. */
static bool check(const struct method *method, size_t more) {
    const struct kv_ops *const kv[2] = {backend_cpu.kv, host_kv_ops()};
    uint16_t *window[2];
    size_t bytes[2];
    bool around = false;
    for (int on = 0; on < 2; on++) {
        struct cache *cache;
        assert_int_equal(parts_create(kv[on]->storage, &shape, method, 1, &cache, NULL), TERSE_OK);
        read_tokens(kv[on], cache, 0, WAIT);
        const uint64_t origin = on ? cache->window_origin : 0;
        const uint32_t grown = read_tokens(kv[on], cache, WAIT, more);
        if (on) {
            const uint64_t first = cache->base.extent.window_first, n = cache->base.extent.length - first;
            assert_true(cache->window_capacity < grown);
            around = (first - origin) % grown + n > grown;
        }
        window[on] = saved_window(cache, &bytes[on]);
        parts_destroy(cache);
    }
    assert_int_equal(bytes[0], bytes[1]);
    const size_t page = PAGE_TOKENS * HEAD_DIM; /* halves; keys may be rounded otherwise */
    for (size_t at = page; at < bytes[0] / sizeof(uint16_t); at += 2 * page)
        assert_memory_equal(window[0] + at, window[1] + at, page * sizeof(uint16_t));
    for (int on = 0; on < 2; on++) free(window[on]);
    return around;
}

static void tokens_that_go_around_the_end_are_kept(void **state) {
    (void)state;
    struct terse_codebook *profile;
    const struct method method = fitting_method(&profile);
    size_t around = 0;
    uint64_t seed = 1;
    for (size_t t = 0; t < TOKENS; t++)
        for (size_t c = 0; c < WIDTH; c++) {
            keys[t][c] = (float)(random_uniform(random_next(&seed)) * 4 - 2);
            values[t][c] = (float)(random_uniform(random_next(&seed)) * 4 - 2);
        }
    for (size_t more = 60; more <= MORE; more += 60) around += check(&method, more);
    assert_true(around > 0);
    terse_codebook_free(profile);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    for (size_t i = 0; i < HEAD_DIM / 2; i++) frequency[i] = (float)pow(10000, -2.0 * (double)i / HEAD_DIM);
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_that_go_around_the_end_are_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
