/* Caches that are given no profile, only what weights imply: they fit means, sizes and ranges of gains to their own tokens when the first are
 * sealed, to all that are at hand then and never again; held to double precision. The same bits for any number of threads; what is
 * fitted is counted. */
#include "backend/cpu/codec/prepared.h"
#include "backend/cpu/codec/transform.h"
#include "backend/cpu/kv/fit.h"
#include "backend/cpu/kv/step.h"
#include "base/random.h"
#include "support/random_codebook.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HEADS = 2, HEAD_DIM = 32, LAYERS = 2, GROUP = 3, WIDTH = HEADS * HEAD_DIM, MOST = 4600, SETS = LAYERS * HEADS };

static float frequency[HEAD_DIM / 2];
static const struct rope rope = {ROPE_HALF_SPLIT, HEAD_DIM, HEAD_DIM, frequency, 1};
static const struct cache_shape shape = {LAYERS, GROUP *HEADS, HEADS, HEAD_DIM, 0.2f, &rope, .slopes = NULL};

/* The keys, before rotation, and values of a sequence, [LAYERS][MOST][WIDTH]. */
static float *keys, *values;

static int make_rows(void **state) {
    uint64_t seed = 3;
    (void)state;
    keys = malloc((size_t)LAYERS * MOST * WIDTH * sizeof *keys);
    values = malloc((size_t)LAYERS * MOST * WIDTH * sizeof *values);
    assert_true(keys && values);
    for (size_t i = 0; i < HEAD_DIM / 2; i++) frequency[i] = (float)pow(1e4, -(double)i / (HEAD_DIM / 2));
    for (size_t i = 0; i < (size_t)LAYERS * MOST * WIDTH; i++) {
        double size = 1 + (double)(i % HEAD_DIM) / 4; /* channels differ, and do not have the mean 0 */
        keys[i] = (float)(size * (random_uniform(random_next(&seed)) + 0.3));
        values[i] = (float)(random_uniform(random_next(&seed)) / size - 2);
    }
    return 0;
}

static int free_rows(void **state) {
    (void)state;
    free(keys);
    free(values);
    return 0;
}

static struct method make_method(const char *key_type, const char *value_type, bool of_weights) {
    struct terse_cache_options options = terse_cache_options_defaults();
    struct method method;
    options.method = "terse-2";
    options.key_type = key_type;
    options.value_type = value_type;
    assert_int_equal(method_resolve(&options, HEAD_DIM, &method, NULL), TERSE_OK);
    assert_true(method_needs_weights(&method));
    assert_int_equal(random_codebook(&method, LAYERS, HEADS, HEAD_DIM, 0, false, NULL), TERSE_OK);
    assert_false(method_needs_weights(&method));
    method.of_weights = of_weights;
    return method;
}

static void release(struct method *method, struct cache *cache) {
    cache_destroy(cache);
    terse_codebook_free((struct terse_codebook *)method->learned);
}

static struct cache *make_cache(const struct method *method, uint32_t threads) {
    struct cache *cache;
    assert_int_equal(cache_create(&shape, method, threads, &cache, NULL), TERSE_OK);
    return cache;
}

/* The next n tokens. */
static void step(struct cache *cache, enum cache_step_kind kind, size_t n) {
    size_t length = (size_t)cache_length(cache);
    float *k = malloc(n * WIDTH * sizeof *k), *q = calloc(n * GROUP * WIDTH, sizeof *q);
    assert_int_equal(cache_begin(cache, kind, n, NULL), TERSE_OK);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        size_t first = ((size_t)layer * MOST + length) * WIDTH;
        memcpy(k, keys + first, n * WIDTH * sizeof *k);
        assert_int_equal(cache_append(cache, layer, k, values + first, NULL), TERSE_OK);
        assert_int_equal(cache_attend(cache, q, 0, n, q, NULL), TERSE_OK);
        assert_int_equal(cache_end_layer(cache, NULL), TERSE_OK);
    }
    assert_int_equal(cache_commit(cache, NULL), TERSE_OK);
    free(k);
    free(q);
}

/* ---- The oracle */

/* A row as a page that begins with token `first` holds it, of token t. */
static void row_of(enum codec_side side, uint32_t layer, uint32_t head, size_t first, size_t t, double *row) {
    const float *from = (side == CODEC_KEYS ? keys : values) + ((size_t)layer * MOST + t) * WIDTH + head * HEAD_DIM;
    double offset = (double)(t - first / ROPE_RUN_TOKENS * ROPE_RUN_TOKENS);
    for (size_t c = 0; c < HEAD_DIM; c++) row[c] = (double)from[c];
    for (size_t i = 0; i < HEAD_DIM / 2 && side == CODEC_KEYS; i++) {
        double a = row[i], b = row[i + HEAD_DIM / 2], angle = offset * (double)frequency[i];
        row[i] = a * cos(angle) - b * sin(angle);
        row[i + HEAD_DIM / 2] = a * sin(angle) + b * cos(angle);
    }
}

/* Rows of the pages that a fit looks at when `length` tokens are at hand, rows[][HEAD_DIM]. */
static size_t rows_at_hand(enum codec_side side, uint32_t layer, uint32_t head, size_t length, double *rows) {
    size_t pages = (length - SINKS + 63) / 64, some = pages < FIT_PAGES ? pages : FIT_PAGES, n = 0;
    for (size_t i = 0; i < some; i++) {
        size_t first = SINKS + i * 64;
        for (size_t t = first; t < first + 64 && t < length; t++) row_of(side, layer, head, first, t, rows + n++ * HEAD_DIM);
    }
    return n;
}

static void check_side(const struct cache *cache, enum codec_side side, uint32_t layer, uint32_t head, size_t length,
                       double tolerance) {
    static double rows[FIT_PAGES * 64 * HEAD_DIM];
    const struct transform_learned *learned = cpu_codebook_learned(cache->codebook, side, layer, head);
    const struct codec_shape seen = side_shape(cache, side, layer, head, 1);
    const struct transform_fitted fitted = transform_fitted_at(seen.fitted, HEAD_DIM);
    size_t n = rows_at_hand(side, layer, head, length, rows);
    double mean[HEAD_DIM] = {0}, squares[HEAD_DIM] = {0}, least = INFINITY, most = 0;
    for (size_t i = 0; i < n * HEAD_DIM; i++) mean[i % HEAD_DIM] += rows[i] / (double)n;
    for (size_t i = 0; i < n; i++) {
        double z[HEAD_DIM] = {0}, size = 0;
        for (size_t c = 0; c < HEAD_DIM; c++) {
            for (size_t j = 0; j < HEAD_DIM; j++)
                z[c] += (double)learned->inverse[c * HEAD_DIM + j] * (rows[i * HEAD_DIM + j] - mean[j]);
            size += z[c] * z[c] / HEAD_DIM;
        }
        for (size_t c = 0; c < HEAD_DIM; c++) squares[c] += z[c] * z[c] / size;
        least = fmin(least, sqrt(size));
        most = fmax(most, sqrt(size));
    }
    for (size_t c = 0; c < HEAD_DIM; c++) {
        double prior = pow((double)learned->size[c], 2), size = sqrt((squares[c] + 128 * prior) / ((double)n + 128));
        assert_true(fabs((double)fitted.mean[c] - mean[c]) <= tolerance * 10);
        assert_true(fabs((double)fitted.size[c] - size) <= tolerance * (size + 1));
    }
    assert_true(fabs((double)fitted.gain_least - least / 2) <= tolerance * least * 20);
    assert_true(fabs((double)fitted.gain_most - most * 2) <= tolerance * most * 20);
}

static void check(const struct cache *cache, size_t length, double tolerance) {
    for (uint32_t set = 0; set < SETS; set++)
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++)
            if (cache->codec[side]->format == &codec_transform)
                check_side(cache, side, set / HEADS, set % HEADS, length, tolerance);
}

/* ---- Tests */

static void a_prompt_is_fitted_to_its_tokens(void **state) {
    static const size_t lengths[] = {196, 197, 1000, 2500, MOST};
    (void)state;
    struct method method = make_method(NULL, NULL, true);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct cache *cache = make_cache(&method, 2);
        step(cache, CACHE_STEP_PREFILL, lengths[i]);
        check(cache, lengths[i], 1e-4);
        cache_destroy(cache);
    }
    release(&method, NULL);
}

/* Sealed pages and the window's rows, which are halves, beside the new ones; later tokens change nothing. */
static void a_conversation_is_fitted_once(void **state) {
    (void)state;
    struct method method = make_method(NULL, NULL, true);
    struct cache *cache = make_cache(&method, 2);
    size_t bytes = (size_t)SETS * cache->fitted_bytes;
    uint8_t *kept = malloc(bytes);
    step(cache, CACHE_STEP_PREFILL, 20);
    while (cache_length(cache) < 190) step(cache, CACHE_STEP_DECODE, 1);
    assert_true(cache_fit_pending(&cache->base));
    step(cache, CACHE_STEP_DECODE, 16);
    assert_false(cache_fit_pending(&cache->base));
    check(cache, 206, 3e-3);
    memcpy(kept, cache->fitted, bytes);
    step(cache, CACHE_STEP_PREFILL, 700);
    for (size_t i = 0; i < 100; i++) step(cache, CACHE_STEP_DECODE, 1);
    assert_memory_equal(kept, cache->fitted, bytes);
    cache_reset(cache);
    step(cache, CACHE_STEP_PREFILL, 900);
    check(cache, 900, 1e-4);
    free(kept);
    release(&method, cache);
}

/* All of a sequence is read through pages that go by the fit, and comes back within what its bits allow. */
static void pages_go_by_the_fit(void **state) {
    enum { LENGTH = 1000 };
    (void)state;
    struct method method = make_method(NULL, NULL, true);
    struct cache *cache = make_cache(&method, 1);
    step(cache, CACHE_STEP_PREFILL, LENGTH);
    for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
        struct codec_shape seen = side_shape(cache, side, 1, 1, 1);
        double error = 0, power = 0, row[HEAD_DIM];
        for (size_t i = 0; i < cache->base.pages.n_sealed; i++) {
            const struct page_set *set = &cache->base.pages.sets[i];
            float decoded[64 * HEAD_DIM];
            cpu_codec_transform.decode(seen, side, page_at(cache, set, side, 1, 1), decoded);
            for (size_t t = 0; t < 64; t++) {
                row_of(side, 1, 1, (size_t)set->first, (size_t)set->first + t, row);
                for (size_t c = 0; c < HEAD_DIM; c++) {
                    error += pow((double)decoded[t * HEAD_DIM + c] - row[c], 2);
                    power += pow(row[c], 2);
                }
            }
        }
        assert_true(error < 0.25 * power); /* a random basis, 2 bits; without means the error would be most of the power */
    }
    release(&method, cache);
}

static void threads_change_no_bit(void **state) {
    (void)state;
    struct method method = make_method(NULL, NULL, true);
    struct cache *one = make_cache(&method, 1), *three = make_cache(&method, 3);
    step(one, CACHE_STEP_PREFILL, 3000);
    step(three, CACHE_STEP_PREFILL, 3000);
    assert_memory_equal(one->fitted, three->fitted, SETS * one->fitted_bytes);
    assert_int_equal(one->base.pages.n_sealed, three->base.pages.n_sealed);
    for (size_t i = 0; i < one->base.pages.n_sealed; i++)
        for (uint32_t set = 0; set < SETS; set++)
            for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++)
                assert_memory_equal(page_at(one, &one->base.pages.sets[i], side, set / HEADS, set % HEADS),
                                    page_at(three, &three->base.pages.sets[i], side, set / HEADS, set % HEADS),
                                    page_address(one, set / HEADS, set % HEADS)->bytes[side]);
    cache_destroy(three);
    release(&method, one);
}

/* One side's codec may be another; what is fitted is a part of what the cache reports, and a profile needs none of it. */
static void only_what_is_fitted_is_counted(void **state) {
    static const char *const types[][2] = {{NULL, NULL}, {"q8_0", NULL}, {NULL, "q4_0"}};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct method method = make_method(types[i][0], types[i][1], true), learned = method;
        struct cache *cache = make_cache(&method, 1);
        struct terse_cache_report with, without, predicted;
        size_t side = ((2 * HEAD_DIM + 2) * sizeof(float) + 63) / 64 * 64, sides = i ? 1 : 2;
        learned.of_weights = false;
        step(cache, CACHE_STEP_PREFILL, 700);
        check(cache, 700, 1e-4);
        cache_report(cache, &with);
        cache_predict(&cpu_storage, &shape, &method, 700, &predicted);
        assert_memory_equal(&with, &predicted, sizeof with);
        cache_predict(&cpu_storage, &shape, &learned, 700, &without);
        assert_int_equal(with.tables - without.tables, SETS * sides * side);
        assert_int_equal(with.resident - without.resident, SETS * sides * side);
        /* Before anybody has looked which head gets how many bits, their sum is known. */
        learned.layouts = NULL;
        cache_predict(&cpu_storage, &shape, &learned, 700, &predicted);
        assert_int_equal(predicted.resident, without.resident);
        release(&method, cache);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_is_fitted_to_its_tokens),
        cmocka_unit_test(a_conversation_is_fitted_once),
        cmocka_unit_test(pages_go_by_the_fit),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(only_what_is_fitted_is_counted),
    };
    return cmocka_run_group_tests(tests, make_rows, free_rows);
}
