/* Takes the steps of a real prefill without its attention. Encoding a long sequence for every layer would take minutes where a step
 * takes milliseconds, so most pages are copies. */
#include "backend/cpu/kv/fill.h"

#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/page_pool.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/size.h"

#include <math.h>
#include <string.h>

#define STEP 1024                 /* tokens of a step */
#define NORMALS ((size_t)1 << 16) /* numbers that all rows are cut from, each row at a random place */
#define DISTINCT ((size_t)128)    /* sealed pages of a KV head before they may repeat */

/* Draws normally distributed numbers (Box-Muller). */
static void fill_normals(float *numbers, size_t n, uint64_t *state) {
    for (size_t i = 0; i + 1 < n; i += 2) {
        double u = (double)((random_next(state) >> 11) + 1) * 0x1p-53, angle = (double)(random_next(state) >> 11) * 0x1p-52 * M_PI;
        double radius = sqrt(-2 * log(u));
        numbers[i] = (float)(radius * cos(angle));
        numbers[i + 1] = (float)(radius * sin(angle));
    }
}

static void fill_rows(const struct cache *cache, const float *normals, size_t n, uint64_t *state, float *rows) {
    const size_t hd = cache->base.shape.head_dim;
    float size[CODEC_ROW_MAX];
    for (size_t c = 0; c < hd; c++) size[c] = exp2f(-RANDOM_OCTAVES * (float)c / (float)hd);
    for (size_t i = 0; i < n * cache->base.shape.kv_heads; i++) {
        const float *from = normals + random_next(state) % NORMALS;
        for (size_t c = 0; c < hd; c++) rows[i * hd + c] = from[c] * size[c];
    }
}

/* ---- Copies */

/* Copies the pages of all KV heads of a layer. */
static void copy_pages(const struct cache *cache, const struct page_set *from, uint32_t from_layer, const struct page_set *to,
                       uint32_t layer) {
    for (uint32_t head = 0; head < cache->base.shape.kv_heads; head++) {
        const size_t *bytes = page_address(cache, layer, head)->bytes;
        memcpy(page_at(cache, to, CODEC_KEYS, layer, head), page_at(cache, from, CODEC_KEYS, from_layer, head), bytes[CODEC_KEYS]);
        if (bytes[CODEC_VALUES])
            memcpy(page_at(cache, to, CODEC_VALUES, layer, head), page_at(cache, from, CODEC_VALUES, from_layer, head),
                   bytes[CODEC_VALUES]);
        if (cache->base.index_page_bytes)
            memcpy(own_index_page(cache, to, layer, head), own_index_page(cache, from, from_layer, head),
                   cache->base.index_page_bytes);
    }
}

/* Returns how many sealed pages of a KV head there are before they may repeat: of pages that are dealt to ranks, each has some. */
static size_t distinct_pages(const struct cache *cache) {
    const struct collective *ranks = cache->base.shape.ranks;
    return DISTINCT * (ranks ? ranks->ranks : 1);
}

/* Returns the page set that the i-th, which is here, repeats: one of the first distinct ones that is here. */
static const struct page_set *source_of(const struct cache *cache, size_t i) {
    const struct block_table *pages = &cache->base.pages;
    const size_t distinct = distinct_pages(cache);
    size_t at = i % distinct;
    while (!page_set_is_here(&pages->sets[at])) at = (at + 1) % distinct;
    return &pages->sets[at];
}

/* Copies the pages that the step seals, of the first `layers` layers, from pages before them. */
static void repeat_pages(const struct cache *cache, uint32_t layers) {
#pragma omp parallel for schedule(static) num_threads(cache->base.threads)
    for (size_t i = cache->base.pages.n_sealed; i < cache->base.pages.n_sealed + cache->base.plan.seal; i++)
        for (uint32_t layer = 0; layer < layers; layer++)
            if (page_set_is_here(&cache->base.pages.sets[i]))
                copy_pages(cache, source_of(cache, i), layer, &cache->base.pages.sets[i], layer);
}

/* Returns whether the pages of all layers are of the same sizes, head by head. */
static bool layers_alike(const struct cache *cache) {
    for (uint32_t layer = 1; layer < cache->base.shape.layers; layer++) {
        for (uint32_t head = 0; head < cache->base.shape.kv_heads; head++) {
            const struct page_address *first = page_address(cache, 0, head), *place = page_address(cache, layer, head);
            if (memcmp(first->bytes, place->bytes, sizeof first->bytes) != 0) return false;
        }
    }
    return true;
}

/* Copies layer 0 of memory[layers][bytes] to another layer. */
static void copy_layer(uint8_t *memory, size_t bytes, uint32_t layer) {
    if (bytes) memcpy(memory + layer * bytes, memory, bytes);
}

/* Copies all that the first layer holds to the others. */
static void copy_layers(const struct cache *cache) {
    size_t heads = cache->base.shape.kv_heads,
           exact = cache_sides_of(&cache->base.shape) * cache->base.method.parameters.exact * cache->base.shape.head_dim *
                   sizeof *cache->exact,
           anchors = cache->anchors.capacity * (size_t)anchor_bytes(cache->base.shape.head_dim);
#pragma omp parallel for schedule(static) num_threads(cache->base.threads)
    for (uint32_t layer = 1; layer < cache->base.shape.layers; layer++) {
        for (size_t i = 0; i < cache->base.pages.n_sealed; i++)
            if (page_set_is_here(&cache->base.pages.sets[i]))
                copy_pages(cache, &cache->base.pages.sets[i], 0, &cache->base.pages.sets[i], layer);
        for (size_t i = 0; i < cache->n_window_sets; i++) copy_layer(cache->window_sets[i], heads * window_bytes(cache), layer);
        copy_layer((uint8_t *)cache->exact, heads * exact, layer);
        copy_layer(cache->fitted, heads * cache->fitted_bytes, layer);
        copy_layer(cache->anchors.memory, heads * 2 * anchors, layer);
    }
}

/* Returns whether the step's pages may be copies: they may if none of these tokens stays in the window; `left` tokens come after
 * them. */
static bool may_repeat(const struct cache *cache, size_t left) {
    return cache->base.pages.n_sealed >= distinct_pages(cache) && left >= (size_t)cache->base.method.tail_tokens + PAGE_TOKENS;
}

/* ---- Filling */

/* Fills n tokens by the steps of a plan, of the first `layers` layers. */
static enum terse_status fill_steps(struct cache *cache, size_t n, const struct fill_plan *plan, uint32_t layers,
                                    const float *normals, float *rows, uint64_t seed, struct terse_error *error) {
    size_t width = (size_t)cache->base.shape.kv_heads * cache->base.shape.head_dim;
    float *k = rows, *v = rows + plan->step * width;
    for (size_t first = 0; first < n; first += plan->step) {
        size_t count = size_min(n - first, plan->step);
        enum terse_status status = cache_begin(cache, first + count < n ? plan->kind : CACHE_STEP_PREFILL, count, error);
        if (status) return status;
        bool repeat = plan->pages_alike && may_repeat(cache, n - first - count);
        if (repeat) repeat_pages(cache, layers);
        for (uint32_t layer = 0; !repeat && layer < layers; layer++) {
            fill_rows(cache, normals, count, &seed, k);
            if (!cache->base.shape.latents) fill_rows(cache, normals, count, &seed, v);
            if ((status = cache_append(cache, layer, k, cache->base.shape.latents ? k : v, error))) return status;
            if ((status = cache_end_layer(cache, error))) return status;
        }
        cache->base.layers_ended = cache->base.shape.layers; /* the others will be copies */
        if ((status = cache_commit(cache, error))) return status;
    }
    return TERSE_OK;
}

enum terse_status cache_fill_random(struct cache *cache, size_t n, uint64_t seed, struct terse_error *error) {
    const struct fill_plan plan = cache_plan_fill(cache, n, STEP);
    const struct cache_base *base = &cache->base;
    const bool alike = plan.layers_alike && layers_alike(cache);
    const size_t width = (size_t)base->shape.kv_heads * base->shape.head_dim, floats = NORMALS + CODEC_ROW_MAX;
    float *normals = memory_array(floats + 2 * plan.step * width, sizeof *normals);
    if (!normals) return status_no_memory(error, (floats + 2 * plan.step * width) * sizeof *normals, "random keys and values");
    fill_normals(normals, floats, &seed);
    /* The pages come from one chunk of the pool, as those of a prompt do; those that are dealt come with the steps. */
    enum terse_status status =
        plan.pages && !base->shape.ranks ? block_table_reserve(&cache->base.pages, plan.pages, error) : TERSE_OK;
    if (!status) status = fill_steps(cache, n, &plan, alike ? 1 : base->shape.layers, normals, normals + floats, seed, error);
    if (alike && cache_length(cache)) copy_layers(cache);
    memory_free(normals);
    return status;
}
