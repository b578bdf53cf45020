/* Makes the rows, and steps caches through them. */
#include "support/fit_sample.h"

#include "base/random.h"
#include "format/codebook_layouts.h"
#include "support/one_cache.h"
#include "support/random_codebook.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

float sample_frequency[HEAD_DIM_MOST / 2];
static struct rope rope;
struct cache_shape sample_shape;

float *sample_keys, *sample_values;
size_t sample_skipped;
static float *queries; /* of a step */

int make_rows(void **state) {
    const uint32_t hd = backend_under_test()->head_dim;
    uint64_t seed = 3;
    (void)state;
    assert_true(hd <= HEAD_DIM_MOST);
    rope = (struct rope){ROPE_HALF_SPLIT, hd, hd, sample_frequency, 1};
    sample_shape = (struct cache_shape){LAYERS, GROUP * HEADS, HEADS, hd, 0.2f, &rope, .slopes = NULL};
    sample_keys = malloc((size_t)LAYERS * MOST * WIDTH * sizeof *sample_keys);
    sample_values = malloc((size_t)LAYERS * MOST * WIDTH * sizeof *sample_values);
    queries = malloc((size_t)MOST * GROUP * WIDTH * sizeof *queries);
    assert_true(sample_keys && sample_values && queries);
    for (size_t i = 0; i < (size_t)MOST * GROUP * WIDTH; i++) queries[i] = (float)random_uniform(random_next(&seed)) - 0.5f;
    for (size_t i = 0; i < HEAD_DIM / 2; i++) sample_frequency[i] = (float)pow(1e4, -(double)i / (HEAD_DIM / 2));
    for (size_t i = 0; i < (size_t)LAYERS * MOST * WIDTH; i++) {
        double size = 1 + (double)(i % HEAD_DIM * 32 / HEAD_DIM) / 4; /* channels differ, and do not have the mean 0 */
        sample_keys[i] = (float)(size * (random_uniform(random_next(&seed)) + 0.3));
        sample_values[i] = (float)(random_uniform(random_next(&seed)) / size - 2);
        if (i % HEAD_DIM) { /* and neighbours are correlated */
            sample_keys[i] += 0.8f * sample_keys[i - 1];
            sample_values[i] += 0.8f * sample_values[i - 1] + 1.6f;
        }
    }
    return 0;
}

int free_rows(void **state) {
    (void)state;
    free(sample_keys);
    free(sample_values);
    free(queries);
    return 0;
}

struct method make_method(const char *key_type, const char *value_type, bool of_weights) {
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

void release_method(struct method *method, struct cache *cache) {
    parts_destroy(cache);
    terse_codebook_free((struct terse_codebook *)method->learned);
}

struct cache *make_cache(const struct method *method, uint32_t threads) {
    struct cache *cache;
    assert_int_equal(parts_create(sample_kv()->storage, &sample_shape, method, threads, &cache, NULL), TERSE_OK);
    return cache;
}

void encode_in_steps(struct cache *cache) {
    cache_forget_ahead(cache);
    cache_base(cache)->ahead_most_tokens = 0;
}

void take_step(struct cache *cache, enum cache_step_kind kind, size_t n, float *outputs) {
    const struct kv_ops *kv = sample_kv();
    const size_t length = (size_t)cache_length(cache) + sample_skipped, width = (size_t)GROUP * WIDTH,
                 first =
                     backend_under_test()->emulated ? n - 1 : 0; /* there is no time for queries whose outputs nobody asks for */
    float *k = malloc(n * WIDTH * sizeof *k), *out = malloc(n * width * sizeof *out);
    struct terse_error error;
    assert_true(k && out && length + n <= MOST);
    if (one_begin(kv, cache, kind, n, &error)) fail_msg("%s", error.message);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        size_t at = ((size_t)layer * MOST + length) * WIDTH;
        memcpy(k, sample_keys + at, n * WIDTH * sizeof *k);
        assert_int_equal(one_append(kv, cache, layer, k, sample_values + at, NULL), TERSE_OK);
        assert_int_equal(one_attend(kv, cache, layer, queries + first * width, first, n - first, out, NULL), TERSE_OK);
        assert_int_equal(one_seal(kv, cache, layer, NULL), TERSE_OK);
        if (outputs) memcpy(outputs + layer * width, out + (n - 1 - first) * width, width * sizeof *out);
    }
    assert_int_equal(kv->commit(cache, NULL), TERSE_OK);
    free(k);
    free(out);
}

void take_prompt(struct cache *cache, size_t n) {
    for (size_t part; n; n -= part) {
        part = cache_prompt_part(cache, n);
        take_step(cache, CACHE_STEP_PREFILL, part, NULL);
    }
}

void take_steps(struct cache *cache, enum cache_step_kind kind, size_t end, size_t n) {
    while (cache_length(cache) < end) {
        const size_t left = end - (size_t)cache_length(cache);
        take_step(cache, kind, left < n ? left : n, NULL);
    }
}

bool is_fitted(const struct cache *cache) { return cache_base_of(cache)->fitted.layouts != NULL; }

const uint8_t *page_copy(const struct cache *cache, const struct page_set *set, enum codec_side side, uint32_t layer, uint32_t head,
                         size_t *bytes) {
    static _Alignas(64) uint8_t copies[2][1 << 14];
    static int next;
    const struct page_address *place = &cache_base_of(cache)->places[set->rate * SETS + layer * HEADS + head];
    const uint8_t *page = page_set_page(set, place, side);
    uint8_t *copy = copies[next = !next];
    assert_true(place->bytes[side] <= sizeof copies[0]);
    if (backend_under_test()->fetch)
        backend_under_test()->fetch(copy, page, place->bytes[side]);
    else
        memcpy(copy, page, place->bytes[side]);
    if (bytes) *bytes = place->bytes[side];
    return copy;
}

void check_same_from(const struct cache *one, const struct cache *other, size_t n, enum codec_side first) {
    const size_t record = TRANSFORM_RECORD_BYTES(HEAD_DIM);
    assert_true(is_fitted(one) && is_fitted(other));
    const struct cache_base *const base[2] = {cache_base_of(one), cache_base_of(other)};
    assert_true(base[0]->pages.n_sealed >= n && base[1]->pages.n_sealed >= n && n);
    for (uint32_t set = 0; set < SETS; set++) {
        const uint32_t layer = set / HEADS, head = set % HEADS;
        for (enum codec_side side = first; side <= CODEC_VALUES; side++) {
            size_t bytes[2];
            assert_memory_equal(fitted_record(base[0], layer, head, side), fitted_record(base[1], layer, head, side), record);
            assert_memory_equal(base[0]->method.layouts->layout[side] + set, base[1]->method.layouts->layout[side] + set,
                                sizeof(struct transform_layout));
            for (size_t i = 0; i < n; i++) {
                const uint8_t *page = page_copy(one, &base[0]->pages.sets[i], side, layer, head, &bytes[0]),
                              *same = page_copy(other, &base[1]->pages.sets[i], side, layer, head, &bytes[1]);
                assert_int_equal(bytes[0], bytes[1]);
                assert_memory_equal(page, same, bytes[0]);
            }
        }
    }
}

void check_same(const struct cache *one, const struct cache *other, size_t n) { check_same_from(one, other, n, CODEC_KEYS); }

void check_goes_on_near(struct cache *one, struct cache *other, size_t n, double bound) {
    enum { ROW = LAYERS * GROUP * HEADS * HEAD_DIM_MOST };
    float outputs[2][ROW];
    for (size_t i = 0; i < cases(n, 3); i++) {
        take_step(one, CACHE_STEP_DECODE, 1, outputs[0]);
        take_step(other, CACHE_STEP_DECODE, 1, outputs[1]);
        if (!bound) assert_memory_equal(outputs[0], outputs[1], LAYERS * GROUP * WIDTH * sizeof(float));
        double worst = 0;
        for (size_t c = 0; c < LAYERS * GROUP * WIDTH; c++)
            worst = fmax(worst, fabs((double)outputs[0][c] - (double)outputs[1][c]));
        if (!(worst <= bound)) fail_msg("outputs differ by %g, not at most %g", worst, bound);
    }
}

void check_goes_on_alike(struct cache *one, struct cache *other, size_t n) { check_goes_on_near(one, other, n, 0); }

struct cache *fork_of(const struct cache *cache) {
    struct cache *copy;
    struct terse_error error;
    if (cache_fork(cache, &copy, &error)) fail_msg("%s", error.message);
    return copy;
}

void save_cache(const struct cache *cache, const char *path) {
    static const uint32_t session[16];
    struct state_writer *writer;
    assert_int_equal(state_writer_new(path, &writer, NULL), TERSE_OK);
    state_writer_begin(writer, STATE_METHOD);
    state_writer_put(writer, "terse-2", 7);
    state_writer_begin(writer, STATE_SESSION);
    state_writer_put(writer, session, sizeof session);
    state_writer_begin(writer, STATE_TOKENS);
    state_writer_begin(writer, STATE_LOGITS);
    cache_save(cache, writer);
    assert_int_equal(state_writer_finish(writer, &(struct state_identity){0}, NULL), TERSE_OK);
}

struct cache *load_cache(const struct method *method, const char *path, struct terse_error *error) {
    struct cache *cache = make_cache(method, 2);
    struct state_file *file;
    if (state_file_open(path, &file, error)) fail_msg("%s", error->message);
    enum terse_status status = cache_load(cache, file, error);
    state_file_close(file);
    if (!status) return cache;
    assert_int_equal(status, TERSE_E_FORMAT);
    parts_destroy(cache);
    return NULL;
}

int make_path(void **state) {
    char *path = malloc(64);
    snprintf(path, 64, "fit_sample-%ld.state", (long)getpid());
    *state = path;
    return 0;
}

int remove_path(void **state) {
    unlink(*state);
    free(*state);
    return 0;
}
