/* The cache allocates exactly what it reports and predicts, and nothing during a layer, and it survives every refused allocation. This program brings
 * its own base/memory, which counts and refuses. */
#include "backend/cpu/kv/fill.h"
#include "backend/cpu/kv/fit.h"
#include "backend/cpu/kv/state.h"
#include "base/memory.h"
#include "support/counting_memory.h"
#include "support/random_codebook.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HEADS = 2, HEAD_DIM = 32, LAYERS = 2, WIDTH = HEADS * HEAD_DIM };

static float frequency[HEAD_DIM / 2];
static const struct rope rope = {ROPE_ADJACENT, HEAD_DIM, HEAD_DIM, frequency, 1};
static const struct cache_shape shape = {LAYERS, 3 * HEADS, HEADS, HEAD_DIM, 0.2f, &rope, .slopes = NULL};

static struct method resolve(const char *name, uint32_t tail) {
    struct terse_cache_options options = {.method = name, .tail_tokens = tail};
    struct method method;
    if (strstr(name, " with ")) options.method = "q4_0";
    if (strstr(name, " with anchors")) options.anchor_percent = 2;
    if (strstr(name, " with an index")) options.read_percent = 20;
    assert_int_equal(method_resolve(&options, HEAD_DIM, &method, NULL), TERSE_OK);
    return method;
}

static enum terse_status run_step(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error) {
    static float k[1000 * WIDTH], v[1000 * WIDTH], q[1000 * 3 * WIDTH];
    for (size_t i = 0; i < n * WIDTH; i++) k[i] = v[i] = sinf((float)i);
    enum terse_status status = cache_begin(cache, kind, n, error);
    if (status) return status;
    size_t before = allocations, window = cache->n_window_sets;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        memset(q, 0, n * 3 * WIDTH * sizeof *q);
        assert_int_equal(cache_append(cache, layer, k, v, NULL), TERSE_OK);
        assert_int_equal(cache_attend(cache, q, 0, n, q, NULL), TERSE_OK);
        assert_int_equal(cache_attend(cache, q, n - 1, 1, q, NULL), TERSE_OK);
        assert_int_equal(cache_end_layer(cache, NULL), TERSE_OK);
    }
    assert_int_equal(allocations, before);
    assert_int_equal(cache_commit(cache, NULL), TERSE_OK);
    assert_int_equal(allocations, before + (cache->n_window_sets < window)); /* the list of a window that has become shorter */
    return TERSE_OK;
}

/* Scratch of steps and rotation tables hold no keys and values. */
static size_t kv_bytes(const struct cache *cache) {
    size_t angles = 2 * cache->rotary.pairs * sizeof(float);
    size_t scratch = (cache->scratch.floats + cache->observed_floats + cache->fit_floats) * sizeof(float) + cache->selection.bytes +
                     cache->selection.capacity * sizeof(uint32_t) + read_lists_bytes(&cache->base.reads);
    if (cache->gathered)
        scratch += (size_t)cache->base.threads * (cache->largest_page[CODEC_KEYS] + cache->largest_page[CODEC_VALUES]);
    return live_bytes - scratch - 5 * PAGE_TOKENS / 2 * angles - cache->rotary.capacity * (angles + sizeof(int64_t));
}

/* Every page holds a token that is still read. */
static void check_no_evicted_page_is_held(const struct cache *cache) {
    for (size_t i = 0; i < cache->base.pages.n_sealed; i++)
        assert_true(cache->base.pages.sets[i].first + cache->base.pages.sets[i].count > cache->base.extent.first);
    assert_true(cache->base.extent.window_first + PAGE_TOKENS > cache->base.extent.first);
}

static const char *const methods[] = {
    "f16",     "q8_0",       "q4_0",        "streaming-100", "streaming-1000",    "q4_0 with anchors",
    "mat-100", "snapkv-200", "selfindex-2", "quest-64",      "q4_0 with an index"};
#define METHODS (sizeof methods / sizeof methods[0])
static const uint32_t tails[] = {TERSE_TAIL_DEFAULT, 0, 63, 200};

static void allocated_is_reported_is_predicted(void **state) {
    (void)state;
    static const size_t lengths[] = {1, 63, 64, 65, 192, 300, 1000};
    for (size_t m = 0; m < METHODS; m++) {
        for (size_t t = 0; t < 4; t++) {
            for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
                struct method method = resolve(methods[m], tails[t]);
                struct terse_cache_report report, predicted;
                struct cache *cache;
                assert_int_equal(cache_create(&shape, &method, 1, &cache, NULL), TERSE_OK);
                assert_int_equal(run_step(cache, CACHE_STEP_PREFILL, lengths[i], NULL), TERSE_OK);
                cache_report(cache, &report);
                assert_int_equal(report.resident, kv_bytes(cache));
                assert_int_equal(report.resident, report.codes + report.exact + report.window + report.tables);
                size_t before = allocations;
                cache_predict(&cpu_storage, &shape, &method, lengths[i], &predicted);
                assert_int_equal(allocations, before);
                assert_memory_equal(&predicted, &report, sizeof report);
                assert_int_equal(report.tokens, lengths[i]);
                double values = (double)lengths[i] * LAYERS * HEADS * HEAD_DIM * 2;
                assert_true(fabs(report.bits_per_value - 8 * (double)report.resident / values) < 1e-9);
                bool long_one =
                    lengths[i] == 1000; /* there every token is a step, so that pages are evicted exactly at their ends too */
                for (size_t j = 0; j < (long_one ? 70 : 10); j++) {
                    assert_int_equal(run_step(cache, CACHE_STEP_DECODE, long_one ? 1 : 1 + j * 5, NULL), TERSE_OK);
                    cache_report(cache, &report);
                    assert_int_equal(report.resident, kv_bytes(cache));
                    check_no_evicted_page_is_held(cache);
                }
                cache_destroy(cache);
                assert_int_equal(live_bytes, 0);
            }
        }
    }
}

/* Pages cost what the codecs say, the rest is bounded: nothing is allocated in advance. */
static void growth_is_tight(void **state) {
    (void)state;
    static const struct {
        const char *method;
        double bits;
    } known[] = {{"f16", 16}, {"q8_0", 8.5}, {"q4_0", 4.5}, {"selfindex-2", 3.5}};
    for (size_t m = 0; m < sizeof known / sizeof known[0]; m++) {
        struct method method = resolve(known[m].method, TERSE_TAIL_DEFAULT);
        struct terse_cache_report report;
        uint64_t fitted = LAYERS * HEADS * learned_head_bytes(&method, HEAD_DIM); /* once for a sequence */
        for (uint64_t tokens = 192; tokens < 100000; tokens = tokens * 3 + 1) {
            cache_predict(&cpu_storage, &shape, &method, tokens, &report);
            uint64_t token_bytes = LAYERS * HEADS * 2 * HEAD_DIM * 2, window_most = (method.tail_tokens + 63 + 63) / 64 * 64;
            double pages = (double)(tokens - tokens % 64) * LAYERS * HEADS * 2 * HEAD_DIM * known[m].bits / 8;
            assert_true((double)report.codes <= pages);
            assert_true(report.window <= window_most * token_bytes);
            assert_true(report.tables <= (tokens / 64 + 8) * 48 + fitted);
        }
        cache_predict(&cpu_storage, &shape, &method, 1 << 20, &report);
        assert_true(report.bits_per_value < known[m].bits * 1.01);
    }
}

static void refused_memory_leaves_the_cache_as_it_was(void **state) {
    (void)state;
    struct terse_error error;
    for (size_t m = 0; m < METHODS; m++) {
        struct method method = resolve(methods[m], TERSE_TAIL_DEFAULT);
        struct cache *cache;
        size_t refused = 0;
        enum terse_status status;
        do { /* one allocation more each time until none is refused */
            allowed = allocations + refused++;
            status = cache_create(&shape, &method, 1, &cache, &error);
            if (status) {
                assert_int_equal(status, TERSE_E_MEMORY);
                assert_null(cache);
                assert_int_equal(live_bytes, 0);
            }
        } while (status);
        for (int step = 0; step < 6; step++) {
            size_t n = step % 2 ? 1 : 100 + 137 * (size_t)step;
            uint64_t length = cache_length(cache);
            refused = 0;
            do {
                allowed = allocations + refused++;
                status = run_step(cache, step % 2 ? CACHE_STEP_DECODE : CACHE_STEP_PREFILL, n, &error);
                if (!status) break;
                struct terse_cache_report report;
                assert_int_equal(status, TERSE_E_MEMORY);
                assert_int_equal(cache_length(cache), length);
                cache_report(cache, &report);
                assert_int_equal(report.resident, kv_bytes(cache));
            } while (true);
            assert_int_equal(cache_length(cache), length + n);
        }
        refused = 0;
        uint64_t length = cache_length(cache);
        do {
            allowed = allocations + refused++;
            status = cache_fill_random(cache, 700, 1, &error);
            if (status) assert_int_equal(status, TERSE_E_MEMORY);
        } while (status);
        allowed = SIZE_MAX;
        assert_true(cache_length(cache) >= length + 700);
        cache_destroy(cache);
        assert_int_equal(live_bytes, 0);
    }
}

/* Memory of transforms is allocated when the sequence is fitted to, and given back when no page is left; while any of it is refused, nothing is
 * fitted and the cache stays as it was. */
static void what_is_fitted_is_allocated_as_reported(void **state) {
    enum { PART = (SINKS + FIT_TOKENS) / 3 };
    (void)state;
    struct method method = resolve("terse-2", TERSE_TAIL_DEFAULT);
    struct terse_cache_report report, waiting;
    struct terse_error error;
    struct cache *cache, *copy;
    size_t refused = 0;
    assert_int_equal(random_codebook(&method, LAYERS, HEADS, HEAD_DIM, 0, false, NULL), TERSE_OK);
    method.of_weights = true;
    assert_int_equal(cache_create(&shape, &method, 1, &cache, NULL), TERSE_OK);
    cache_report(cache, &report);
    const size_t others = kv_bytes(cache) - report.resident; /* the codebook and what is made of it */
    for (int i = 0; i < 3; i++) assert_int_equal(run_step(cache, CACHE_STEP_PREFILL, PART, NULL), TERSE_OK);
    cache_report(cache, &waiting);
    assert_int_equal(waiting.resident, kv_bytes(cache) - others);
    do {
        allowed = allocations + refused++;
        enum terse_status status = run_step(cache, CACHE_STEP_DECODE, 1, &error);
        if (!status) break;
        assert_int_equal(status, TERSE_E_MEMORY);
        assert_int_equal(cache_length(cache), 3 * PART);
        cache_report(cache, &report);
        assert_int_equal(report.resident, kv_bytes(cache) - others);
    } while (true);
    allowed = SIZE_MAX;
    cache_report(cache, &report);
    assert_int_equal(report.window, waiting.window); /* for want of a shorter list of its pages: the next step tries again */
    assert_int_equal(run_step(cache, CACHE_STEP_DECODE, 1, NULL), TERSE_OK);
    assert_true(refused > 12); /* rows, records and layouts, and for each head and side what a fit works in */
    cache_report(cache, &report);
    assert_int_equal(report.resident, kv_bytes(cache) - others);
    assert_true(report.tables > waiting.tables && report.window < waiting.window / 4 && report.codes > 0);
    const size_t own = live_bytes;
    assert_int_equal(cache_fork(cache, &copy, NULL), TERSE_OK);
    cache_destroy(copy);
    assert_int_equal(live_bytes, own);
    assert_int_equal(cache_truncate(cache, 2, NULL), TERSE_OK);
    struct terse_cache_report cut;
    cache_report(cache, &cut);
    assert_int_equal(cut.resident, kv_bytes(cache) - others);
    assert_true(cut.tables < report.tables);
    cache_destroy(cache);
    terse_codebook_free((struct terse_codebook *)method.learned);
    assert_int_equal(live_bytes, 0);
}

/* The squares of a layer's output for one new token, summed. */
static float attend_once(struct cache *cache, uint32_t layer) {
    float v[WIDTH] = {0}, k[WIDTH] = {0}, q[3 * WIDTH], sum = 0;
    for (size_t i = 0; i < 3 * WIDTH; i++) q[i] = sinf((float)i);
    assert_int_equal(cache_append(cache, layer, k, v, NULL), TERSE_OK);
    assert_int_equal(cache_attend(cache, q, 0, 1, q, NULL), TERSE_OK);
    for (size_t i = 0; i < 3 * WIDTH; i++) sum += q[i] * q[i];
    return sum;
}

/* Long enough for pages to repeat. */
static void a_random_filling_is_like_a_prefill(void **state) {
    enum { TOKENS = 10000 };
    (void)state;
    for (size_t m = 0; m < METHODS; m++) {
        struct method method = resolve(methods[m], TERSE_TAIL_DEFAULT);
        struct terse_cache_report report, predicted;
        struct cache *cache;
        assert_int_equal(cache_create(&shape, &method, 1, &cache, NULL), TERSE_OK);
        assert_int_equal(cache_fill_random(cache, TOKENS, 5, NULL), TERSE_OK);
        assert_int_equal(cache_length(cache), TOKENS);
        cache_report(cache, &report);
        cache_predict(&cpu_storage, &shape, &method, TOKENS, &predicted);
        assert_true((double)report.resident >= 0.99 * (double)predicted.resident && report.resident < 2 * predicted.resident);
        if (!policy_evicts(method.policy) && !method.policy->anchors) assert_int_equal(report.resident, predicted.resident);
        assert_int_equal(cache_begin(cache, CACHE_STEP_DECODE, 1, NULL), TERSE_OK);
        float first = attend_once(cache, 0), last = attend_once(cache, shape.layers - 1);
        assert_true(first > 1e-4f && first < 100); /* means of many normal values: small, not nothing */
        if (policy_evicts(method.policy))
            assert_true(last > 1e-4f && last < 100);
        else
            assert_true(last == first); /* a copy */
        cache_destroy(cache);
    }
    assert_int_equal(live_bytes, 0);
}

int main(void) {
    omp_set_num_threads(1); /* small work: waiting for each other would be most of it */
    for (size_t i = 0; i < HEAD_DIM / 2; i++) frequency[i] = (float)pow(10000, -2.0 * (double)i / HEAD_DIM);
    const struct CMUnitTest tests[] = {cmocka_unit_test(allocated_is_reported_is_predicted), cmocka_unit_test(growth_is_tight),
                                       cmocka_unit_test(refused_memory_leaves_the_cache_as_it_was),
                                       cmocka_unit_test(what_is_fitted_is_allocated_as_reported),
                                       cmocka_unit_test(a_random_filling_is_like_a_prefill)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
