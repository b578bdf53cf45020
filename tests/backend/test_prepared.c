/* The CPU's form of a codebook: made by the first cache and not when the codebook is opened, shared by all caches whatever thread makes
 * them, and freed with the codebook. */
#include "backend/cpu/codec/prepared.h"
#include "backend/cpu/kv/state.h"
#include "backend/cpu/kv/step.h"
#include "support/codebook_sample.h"
#include "support/counting_memory.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { LAYERS = 2, HEADS = 2, HEAD_DIM = 32 };

static float frequency[HEAD_DIM / 2];
static const struct rope rope = {ROPE_ADJACENT, HEAD_DIM, HEAD_DIM, frequency, 1};
static const struct cache_shape shape = {LAYERS, 2 * HEADS, HEADS, HEAD_DIM, 0.2f, &rope, .slopes = NULL};

static const char *const methods[] = {"million-4x8", "antkv-1", "cq-0.75", "commvq-1"};
#define METHODS (sizeof methods / sizeof methods[0])

/* A method whose codebook came from a file, as users' do. */
static struct method opened(const char *name, struct terse_codebook **codebook) {
    struct terse_cache_options options = {.method = name, .tail_tokens = TERSE_TAIL_DEFAULT, .anchor_percent = -1};
    struct method method;
    struct terse_error error;
    struct terse_codebook *made;
    size_t size;
    if (method_resolve(&options, HEAD_DIM, &method, &error)) fail_msg("%s", error.message);
    struct codebook_info info = {
        .key = method.key, .value = method.value, .layers = LAYERS, .kv_heads = HEADS, .head_dim = HEAD_DIM, .method = "m"};
    if (codebook_random(&info, HEAD_DIM / 2, true, &made, &error)) fail_msg("%s", error.message);
    void *file = codebook_sample_build(made, &size);
    assert_non_null(file);
    terse_codebook_free(made);
    if (terse_codebook_load_memory(file, size, "made", codebook, &error)) fail_msg("%s", error.message);
    memory_free(file);
    method.learned = *codebook;
    return method;
}

static uint64_t described(const struct terse_codebook *codebook) {
    struct terse_codebook_info info;
    terse_codebook_describe(codebook, &info);
    return info.bytes;
}

static void the_first_cache_prepares_and_all_share(void **state) {
    (void)state;
    for (size_t m = 0; m < METHODS; m++) {
        struct terse_codebook *codebook;
        struct method method = opened(methods[m], &codebook);
        struct terse_cache_report predicted, report;
        struct cache *first, *second;
        assert_int_equal(described(codebook), live_bytes); /* parameters alone */
        cache_predict(&cpu_storage, &shape, &method, 1, &predicted);
        assert_true(predicted.codebook > described(codebook));
        assert_int_equal(cache_create(&shape, &method, 1, &first, NULL), TERSE_OK);
        assert_int_equal(described(codebook), predicted.codebook);
        assert_int_equal(cache_create(&shape, &method, 1, &second, NULL), TERSE_OK);
        assert_non_null(first->codebook);
        assert_ptr_equal(first->codebook, second->codebook);
        assert_int_equal(described(codebook), predicted.codebook);
        cache_report(second, &report);
        assert_int_equal(report.codebook, predicted.codebook);
        cache_destroy(first);
        cache_destroy(second);
        assert_int_equal(live_bytes, predicted.codebook); /* kept for the next */
        terse_codebook_free(codebook);
        assert_int_equal(live_bytes, 0);
    }
}

static void threads_share_one_form(void **state) {
    enum { THREADS = 8 };
    (void)state;
    for (size_t m = 0; m < METHODS; m++) {
        struct terse_codebook *codebook;
        struct method method = opened(methods[m], &codebook);
        const struct cpu_codebook *found[THREADS] = {NULL};
        enum terse_status status[THREADS];
        const uint64_t foretold = cpu_codebook_bytes(codebook);
#pragma omp parallel for num_threads(THREADS) schedule(static, 1)
        for (int i = 0; i < THREADS; i++) status[i] = cpu_codebook_prepare(method.learned, &found[i], NULL);
        for (int i = 0; i < THREADS; i++) {
            assert_int_equal(status[i], TERSE_OK);
            assert_non_null(found[i]);
            assert_ptr_equal(found[i], found[0]);
        }
        assert_int_equal(live_bytes, foretold);
        terse_codebook_free(codebook);
        assert_int_equal(live_bytes, 0);
    }
}

static void refused_memory_leaves_the_codebook_as_it_was(void **state) {
    (void)state;
    for (size_t m = 0; m < METHODS; m++) {
        struct terse_codebook *codebook;
        struct method method = opened(methods[m], &codebook);
        const size_t before = live_bytes;
        struct terse_error error;
        struct cache *cache;
        enum terse_status status;
        size_t refused = 0;
        do {
            allowed = allocations + refused++;
            status = cache_create(&shape, &method, 1, &cache, &error);
            if (!status) break;
            assert_int_equal(status, TERSE_E_MEMORY);
            assert_null(cache);
            assert_true(live_bytes == before || live_bytes == cpu_codebook_bytes(codebook)); /* prepared, if that was not refused */
        } while (true);
        allowed = SIZE_MAX;
        assert_true(refused > 5);
        cache_destroy(cache);
        terse_codebook_free(codebook);
        assert_int_equal(live_bytes, 0);
    }
}

/* Codecs that learn nothing have none. */
static void caches_without_a_codebook_prepare_nothing(void **state) {
    (void)state;
    struct terse_cache_options options = {.method = "q4_0", .tail_tokens = TERSE_TAIL_DEFAULT, .anchor_percent = -1};
    struct method method;
    struct cache *cache;
    assert_int_equal(method_resolve(&options, HEAD_DIM, &method, NULL), TERSE_OK);
    assert_int_equal(cache_create(&shape, &method, 1, &cache, NULL), TERSE_OK);
    assert_null(cache->codebook);
    cache_destroy(cache);
    assert_int_equal(live_bytes, 0);
}

int main(void) {
    for (size_t i = 0; i < HEAD_DIM / 2; i++) frequency[i] = (float)pow(10000, -2.0 * (double)i / HEAD_DIM);
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_first_cache_prepares_and_all_share),
                                       cmocka_unit_test(threads_share_one_form),
                                       cmocka_unit_test(refused_memory_leaves_the_codebook_as_it_was),
                                       cmocka_unit_test(caches_without_a_codebook_prepare_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
