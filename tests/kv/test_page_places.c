/* Pages whose sizes differ from head to head and layer to layer: they lie apart and fill their chunk, and a cache reads the same from
 * them. No codec of the table has such pages, so a cache's are made larger than its codec needs, each by another number of bytes. */
#include "backend/cpu/kv/fill.h"
#include "backend/cpu/kv/page_pool.h"
#include "backend/cpu/kv/step.h"
#include "base/size.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HEADS = 2, HEAD_DIM = 32, LAYERS = 3, GROUP = 3, WIDTH = HEADS * HEAD_DIM, PROMPT = 700 };

static float frequency[HEAD_DIM / 2];
static const struct rope rope = {ROPE_ADJACENT, HEAD_DIM, HEAD_DIM, frequency, 1};
static const struct cache_shape shape = {LAYERS, GROUP *HEADS, HEADS, HEAD_DIM, 0.2f, &rope, .slopes = NULL};

static struct cache *make_cache(const char *name, double read_percent) {
    struct terse_cache_options options = terse_cache_options_defaults();
    struct method method;
    struct cache *cache;
    options.method = name;
    options.read_percent = read_percent;
    assert_int_equal(method_resolve(&options, HEAD_DIM, &method, NULL), TERSE_OK);
    assert_int_equal(cache_create(&shape, &method, 1, &cache, NULL), TERSE_OK);
    return cache;
}

/* Larger pages, by 64 to 768 bytes, keys and values by different numbers. */
static void make_uneven(struct cache *cache) {
    cache->base.page_set_bytes = 0;
    for (size_t i = 0; i < LAYERS * HEADS; i++) {
        struct page_address *place = (struct page_address *)&cache->base.places[i]; /* the cache's own memory */
        place->offset = cache->base.page_set_bytes;
        for (size_t side = 0; side < 2; side++) {
            place->bytes[side] += 64 * (1 + (5 * i + 7 * side) % 12);
            cache->largest_page[side] = size_max(cache->largest_page[side], place->bytes[side]);
        }
        cache->base.page_set_bytes += place->bytes[CODEC_KEYS] + place->bytes[CODEC_VALUES] + cache->base.index_page_bytes;
    }
    cache->base.pages.pool->page_set_bytes[0] = cache->base.page_set_bytes;
}

static void pages_lie_apart_and_fill_their_chunk(void **state) {
    (void)state;
    struct cache *cache = make_cache("q4_0", 20);
    make_uneven(cache);
    assert_true(cache->base.index_page_bytes > 0);
    assert_int_equal(block_table_reserve(&cache->base.pages, 5, NULL), TERSE_OK);
    assert_int_equal(block_table_reserve(&cache->base.pages, 8, NULL), TERSE_OK);
    const size_t sets[] = {5, 3};
    for (size_t chunk = 0, first = 0; chunk < 2; first += sets[chunk++]) {
        size_t bytes = sets[chunk] * cache->base.page_set_bytes;
        uint8_t *held = calloc(bytes, 1), *memory = cache->base.pages.sets[first].chunk;
        for (size_t s = first; s < first + sets[chunk]; s++) {
            for (uint32_t i = 0; i < LAYERS * HEADS; i++) {
                const struct page_address *place = &cache->base.places[i];
                const struct page_set *set = &cache->base.pages.sets[s];
                const uint8_t *pages[] = {page_at(cache, set, CODEC_KEYS, i / HEADS, i % HEADS),
                                          page_at(cache, set, CODEC_VALUES, i / HEADS, i % HEADS),
                                          own_index_page(cache, set, i / HEADS, i % HEADS)};
                const size_t sizes[] = {place->bytes[CODEC_KEYS], place->bytes[CODEC_VALUES], cache->base.index_page_bytes};
                for (size_t p = 0; p < 3; p++) {
                    assert_true(pages[p] >= memory && pages[p] + sizes[p] <= memory + bytes);
                    assert_int_equal((uintptr_t)pages[p] % 64, 0);
                    for (size_t b = 0; b < sizes[p]; b++) assert_int_equal(held[pages[p] - memory + (ptrdiff_t)b]++, 0);
                }
            }
        }
        for (size_t b = 0; b < bytes; b++) assert_int_equal(held[b], 1);
        free(held);
    }
    cache_destroy(cache);
}

/* Takes a step of n tokens; out[layers][n][Hq][hd]. */
static void run_step(struct cache *cache, enum cache_step_kind kind, size_t first, size_t n, float *out) {
    static float k[PROMPT * WIDTH], v[PROMPT * WIDTH], q[PROMPT * GROUP * WIDTH];
    assert_int_equal(cache_begin(cache, kind, n, NULL), TERSE_OK);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (size_t i = 0; i < n * WIDTH; i++) {
            k[i] = sinf((float)((first * WIDTH + i) * (7 + layer) % 8191));
            v[i] = cosf((float)((first * WIDTH + i) * (5 + layer) % 8179));
        }
        for (size_t i = 0; i < n * GROUP * WIDTH; i++) q[i] = 3 * sinf((float)((first + i) * (3 + layer) % 8171));
        assert_int_equal(cache_append(cache, layer, k, v, NULL), TERSE_OK);
        assert_int_equal(cache_attend(cache, q, 0, n, out + layer * n * GROUP * WIDTH, NULL), TERSE_OK);
        assert_int_equal(cache_end_layer(cache, NULL), TERSE_OK);
    }
    assert_int_equal(cache_commit(cache, NULL), TERSE_OK);
}

static void reading_does_not_depend_on_where_pages_lie(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double read_percent;
    } methods[] = {{"q4_0", 0}, {"q4_0", 20}, {"kivi-4", 20}, {"selfindex-2", 0}, {"streaming-300", 0}};
    static float out[2][LAYERS * PROMPT * GROUP * WIDTH];
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
        struct cache *caches[] = {make_cache(methods[m].name, methods[m].read_percent),
                                  make_cache(methods[m].name, methods[m].read_percent)};
        make_uneven(caches[1]);
        for (size_t i = 0; i < 80; i++) { /* long enough for the window to seal pages */
            size_t first = i ? PROMPT + i - 1 : 0, n = i ? 1 : PROMPT;
            for (size_t c = 0; c < 2; c++) run_step(caches[c], i ? CACHE_STEP_DECODE : CACHE_STEP_PREFILL, first, n, out[c]);
            assert_memory_equal(out[0], out[1], LAYERS * n * GROUP * WIDTH * sizeof(float));
        }
        for (size_t c = 0; c < 2; c++) cache_destroy(caches[c]);
    }
}

/* Copies of pages go where pages are of the same size. */
static void a_random_filling_fits(void **state) {
    (void)state;
    static float out[2][LAYERS * GROUP * WIDTH];
    for (size_t uneven = 0; uneven < 2; uneven++) {
        struct cache *cache = make_cache("q4_0", 0);
        if (uneven) make_uneven(cache);
        assert_int_equal(cache_fill_random(cache, 10000, 5, NULL), TERSE_OK);
        run_step(cache, CACHE_STEP_DECODE, 0, 1, out[uneven]);
        cache_destroy(cache);
    }
    float *even = out[0], *layer = out[1];
    for (size_t i = 0; i < LAYERS * GROUP * WIDTH; i++) assert_true(isfinite(layer[i]) && fabsf(layer[i]) < 100);
    assert_memory_not_equal(even, layer, sizeof out[0]); /* each layer has rows of its own */
}

int main(void) {
    for (size_t i = 0; i < HEAD_DIM / 2; i++) frequency[i] = (float)pow(10000, -2.0 * (double)i / HEAD_DIM);
    const struct CMUnitTest tests[] = {cmocka_unit_test(pages_lie_apart_and_fill_their_chunk),
                                       cmocka_unit_test(reading_does_not_depend_on_where_pages_lie),
                                       cmocka_unit_test(a_random_filling_fits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
