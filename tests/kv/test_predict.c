/* Bytes of caches with sliding layers beside others that fit transforms to their sequence: prompts are read in two steps, and sliding layers keep
 * the pages that the first of them sealed. */
#include "backend/backend.h"
#include "base/random.h"
#include "kv/parts.h"
#include "support/cache_steps.h"
#include "support/random_codebook.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { LAYERS = 2, HEADS = 2, HEAD_DIM = 32, WIDTH = HEADS * HEAD_DIM, MOST = 3500, FITTED = SINKS + FIT_TOKENS };

static float frequency[HEAD_DIM / 2];
static const struct rope rope = {ROPE_HALF_SPLIT, HEAD_DIM, HEAD_DIM, frequency, 1};
static float *rows; /* [MOST][WIDTH], random */

static int make_rows(void **state) {
    uint64_t seed = 3;
    (void)state;
    if (!(rows = malloc((size_t)MOST * WIDTH * sizeof *rows))) return -1;
    for (size_t i = 0; i < (size_t)MOST * WIDTH; i++) rows[i] = (float)random_uniform(random_next(&seed)) - 0.5f;
    for (size_t i = 0; i < HEAD_DIM / 2; i++) frequency[i] = 1 / (float)(1 + i * i);
    return 0;
}

static int free_rows(void **state) {
    (void)state;
    free(rows);
    return 0;
}

static void read_prompt(struct cache *cache, const struct cache_shape *shape, size_t tokens) {
    const struct kv_ops *kv = backend_cpu.kv;
    for (size_t at = 0, n; at < tokens; at += n) {
        const float *from = rows + at * WIDTH;
        n = cache_prompt_part(cache, tokens - at);
        step_cache(kv, cache, shape, CACHE_STEP_PREFILL, n, &(struct step_rows){.k = from, .v = from, .q = from});
    }
}

/* Without a profile and, as the test's state says, beside one. */
static void bytes_of_sliding_layers_are_foretold(void **state) {
    static const size_t lengths[] = {300, 900, FITTED, FITTED + 1, FITTED + 300, 2756, MOST};
    static const uint32_t windows[] = {80, 512, 1024}, order[] = {0, 1};
    struct terse_cache_options options = terse_cache_options_defaults();
    struct method method;
    options.method = "terse-2";
    assert_int_equal(method_resolve(&options, HEAD_DIM, &method, NULL), TERSE_OK);
    assert_int_equal(random_codebook(&method, LAYERS, HEADS, HEAD_DIM, 0, false, NULL), TERSE_OK);
    method.of_weights = !*state;
    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
        const struct cache_shape shape = {
            LAYERS, HEADS, HEADS, HEAD_DIM, 0.2f, &rope, .window = windows[w], .sliding = 1, .sliding_rope = &rope, .order = order};
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            struct terse_cache_report report, predicted;
            struct cache *cache;
            assert_int_equal(parts_create(backend_cpu.kv->storage, &shape, &method, 2, &cache, NULL), TERSE_OK);
            read_prompt(cache, &shape, lengths[i]);
            parts_report(cache, &report);
            parts_predict(backend_cpu.kv->storage, &shape, &method, lengths[i], &predicted);
            assert_int_equal(report.codes, predicted.codes);
            assert_int_equal(report.window, predicted.window);
            assert_int_equal(report.resident, predicted.resident);
            parts_destroy(cache);
        }
    }
    terse_codebook_free((struct terse_codebook *)method.learned);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_of_sliding_layers_are_foretold),
                                       cmocka_unit_test_prestate(bytes_of_sliding_layers_are_foretold, "beside a profile")};
    return cmocka_run_group_tests_name("predict", tests, make_rows, free_rows);
}
