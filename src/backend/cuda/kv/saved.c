/* Writing a cache's sections and reading them, by way of the host's memory: the bytes are those of the CPU (backend/cpu/kv/saved.c), where no number
 * that is used as an address or a count is believed. */
#include "backend/cuda/kv/state.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

#define MOST_TOKENS UINT32_MAX

/* As they lie in the file, little-endian. */
struct saved_cache {
    uint64_t exact, first, window_first, length, dropped; /* struct extent */
    uint64_t prompt_end;
    uint64_t anchors; /* per layer, KV head and side: none */
    uint64_t fitted;  /* 1 or 0 */
};

struct saved_page_set {
    uint64_t first;
    uint32_t count, generated;
};

_Static_assert(sizeof(struct saved_cache) == 64 && sizeof(struct saved_page_set) == 16, "as docs/state-format.md has it");

static size_t exact_bytes(const struct cache *cache) {
    return cache_heads(cache) * 2 * cache_exact_capacity(cache) * cache->shape.head_dim * sizeof(uint16_t);
}
static size_t window_bytes(const struct cache *cache) {
    return cache_heads(cache) * 2 * window_side_halves(cache) * sizeof(uint16_t);
}
static size_t window_set_bytes(const struct cache *cache) { return cache_heads(cache) * 2 * PAGE_BYTES_F16(cache->shape.head_dim); }

/* A side's numbers of a sequence in the file, a multiple of 64 bytes; 0: the side learns nothing. */
static size_t fitted_side_bytes(const struct cache *cache, enum codec_side side) {
    if (!cache->fitted || cache->codec[side] != CODEC_TRANSFORM) return 0;
    return memory_round_up(transform_fitted_floats(cache->shape.head_dim) * sizeof(float), MEMORY_ALIGN);
}
static size_t fitted_bytes(const struct cache *cache) {
    return fitted_side_bytes(cache, CODEC_KEYS) + fitted_side_bytes(cache, CODEC_VALUES);
}

/* ---- Between the two forms. `data` is the host's copy of the device's, or of the file's, as `save` says. */

/* A row of the ring and a slot of a page of the window; the page's keys lie by channel. */
static void copy_window_row(const struct cache *cache, uint16_t *ring, uint8_t *pages, size_t head, uint64_t token, bool save) {
    size_t hd = cache->shape.head_dim, slot = (size_t)(token - cache->extent.window_first), t = slot % PAGE_TOKENS;
    size_t row = (size_t)((token - cache->window_origin) % cache->window_capacity);
    uint16_t *page = (uint16_t *)(void *)(pages + slot / PAGE_TOKENS * window_set_bytes(cache)) + head * 2 * PAGE_TOKENS * hd;
    uint16_t *keys = ring + (2 * head * cache->window_capacity + row) * hd, *values = keys + window_side_halves(cache);
    for (size_t c = 0; c < hd; c++) {
        uint16_t *key = &page[c * PAGE_TOKENS + t], *value = &page[PAGE_TOKENS * hd + t * hd + c];
        if (save) {
            *key = keys[c];
            *value = values[c];
        } else {
            keys[c] = *key;
            values[c] = *value;
        }
    }
}

static void copy_window(const struct cache *cache, uint16_t *ring, uint8_t *pages, bool save) {
    for (size_t head = 0; head < cache_heads(cache); head++)
        for (uint64_t t = cache->extent.window_first; t < cache->extent.length; t++)
            copy_window_row(cache, ring, pages, head, t, save);
}

/* Floats [layers][Hk][2][n] and the file's sides, which are rounded up. */
static void copy_fitted(const struct cache *cache, float *floats, uint8_t *file, bool save) {
    size_t n = transform_fitted_floats(cache->shape.head_dim), keys = fitted_side_bytes(cache, CODEC_KEYS);
    for (size_t head = 0; head < cache_heads(cache); head++)
        for (int side = 0; side < 2; side++) {
            float *own = floats + (2 * head + (size_t)side) * n;
            uint8_t *at = file + head * fitted_bytes(cache) + (side ? keys : 0);
            if (!fitted_side_bytes(cache, side ? CODEC_VALUES : CODEC_KEYS)) continue;
            memcpy(save ? (void *)at : own, save ? (void *)own : at, n * sizeof *own);
        }
}

/* ---- Writing. Where the host has no memory the file is not put in its place: a section is missing. */

/* A copy of device memory; NULL: there is no memory, or nothing to copy. */
static void *fetched(const void *from, size_t bytes) {
    void *to = bytes ? malloc(bytes) : NULL;
    if (to && device_fetch(to, from, bytes) == cudaSuccess) return to;
    free(to);
    return NULL;
}

static void save_exact(const struct cache *cache, struct state_writer *writer) {
    uint32_t n = (uint32_t)cache->extent.exact;
    rotate_exact(&cache->heads, &cache->tables->rotary, cache->view, n, true, device_stream());
    cudaStreamSynchronize(device_stream());
    void *rows = fetched(cache->exact, exact_bytes(cache));
    rotate_exact(&cache->heads, &cache->tables->rotary, cache->view, n, false, device_stream());
    if (rows) state_writer_put(writer, rows, exact_bytes(cache));
    free(rows);
}

static void save_fitted(const struct cache *cache, struct state_writer *writer) {
    size_t bytes = cache_heads(cache) * fitted_bytes(cache),
           floats = cache_heads(cache) * 2 * transform_fitted_floats(cache->shape.head_dim);
    float *own = bytes ? fetched(cache->fitted, floats * sizeof *own) : NULL;
    uint8_t *file = bytes ? calloc(1, bytes) : NULL;
    if (own && file) {
        copy_fitted(cache, own, file, true);
        state_writer_put(writer, file, bytes);
    }
    free(own);
    free(file);
}

static void save_window(const struct cache *cache, struct state_writer *writer) {
    size_t bytes = extent_window_pages(&cache->extent) * window_set_bytes(cache);
    uint16_t *ring = bytes ? fetched(cache->window, window_bytes(cache)) : NULL;
    uint8_t *pages = bytes ? calloc(1, bytes) : NULL;
    if (ring && pages) {
        copy_window(cache, ring, pages, true);
        state_writer_put(writer, pages, bytes);
    }
    free(ring);
    free(pages);
}

/* The host's copies of the chunks that the cache's pages lie in. */
struct chunk_copy {
    const struct page_chunk *chunk;
    uint8_t *memory;
};

static struct chunk_copy *fetch_chunks(const struct cache *cache, size_t *n) {
    struct chunk_copy *copies = calloc(cache->pages.n_sealed + 1, sizeof *copies);
    *n = 0;
    for (size_t i = 0; copies && i < cache->pages.n_sealed; i++) {
        const struct page_chunk *chunk = cache->pages.sets[i].owner;
        size_t at = 0;
        while (at < *n && copies[at].chunk != chunk) at++;
        if (at < *n) continue;
        copies[(*n)++] = (struct chunk_copy){chunk, fetched(chunk->memory, chunk->sets * cache->tables->page_set_bytes)};
        if (!copies[at].memory) break;
    }
    return copies;
}

static const uint8_t *copy_of(const struct chunk_copy *copies, const struct page_set *set) {
    while (copies->chunk && copies->chunk != set->owner) copies++;
    return copies->memory;
}

/* One chunk of all sealed page sets. */
static void save_pages(const struct cache *cache, struct state_writer *writer) {
    size_t n;
    struct chunk_copy *copies = fetch_chunks(cache, &n);
    bool whole = copies && (!n || copies[n - 1].memory);
    for (size_t head = 0; whole && head < cache_heads(cache); head++)
        for (int side = 0; side < 2; side++)
            for (size_t i = 0; i < cache->pages.n_sealed; i++) {
                const struct page_place *place = &cache->tables->places[head];
                struct page_set set = cache->pages.sets[i];
                set.chunk = (uint8_t *)copy_of(copies, &set);
                state_writer_put(writer, page_set_page(&set, place, side ? CODEC_VALUES : CODEC_KEYS), place->bytes[side]);
            }
    for (size_t i = 0; copies && i < n; i++) free(copies[i].memory);
    free(copies);
}

void kv_save(const struct cache *cache, struct state_writer *writer) {
    const struct extent *e = &cache->extent;
    const struct saved_cache saved = {e->exact,          e->first, e->window_first,    e->length, e->dropped,
                                      cache->prompt_end, 0,        cache->fitted_ready};
    cudaStreamSynchronize(device_stream());
    state_writer_begin(writer, STATE_CACHE);
    state_writer_put(writer, &saved, sizeof saved);
    state_writer_begin(writer, STATE_PAGE_SETS);
    for (size_t i = 0; i < cache->pages.n_sealed; i++) {
        const struct page_set *set = &cache->pages.sets[i];
        state_writer_put(writer, &(struct saved_page_set){set->first, set->count, set->generated}, sizeof(struct saved_page_set));
    }
    state_writer_begin(writer, STATE_EXACT);
    save_exact(cache, writer);
    state_writer_begin(writer, STATE_EXACT_LOGITS);
    state_writer_begin(writer, STATE_FITTED);
    save_fitted(cache, writer);
    state_writer_begin(writer, STATE_ANCHORS);
    state_writer_begin(writer, STATE_WINDOW);
    save_window(cache, writer);
    state_writer_begin(writer, STATE_PAGES);
    save_pages(cache, writer);
}

/* ---- Reading */

static enum terse_status load_extent(struct cache *cache, const struct state_file *file, struct terse_error *error) {
    struct saved_cache saved;
    size_t bytes;
    const void *data = state_file_section(file, STATE_CACHE, &bytes);
    if (bytes != sizeof saved) return state_file_refuse(file, STATE_CACHE, "it is of another size", error);
    memcpy(&saved, data, sizeof saved);
    cache->extent = (struct extent){saved.exact, saved.first, saved.window_first, saved.length, saved.dropped};
    const struct extent *e = &cache->extent;
    struct policy_decision kept = cache->method.policy->retain(&cache->method.parameters, e->length);
    bool ordered = e->exact <= e->window_first && e->window_first <= e->length;
    if (e->length > MOST_TOKENS || e->exact != kept.exact || e->first != kept.first || !ordered || e->dropped ||
        saved.prompt_end > e->length || saved.anchors || saved.fitted > 1 || e->length - e->window_first > cache->window_capacity)
        return state_file_refuse(file, STATE_CACHE, "its counts of tokens contradict one another", error);
    cache->prompt_end = saved.prompt_end;
    cache->fitted_ready = saved.fitted;
    cache->window_origin = e->window_first;
    return TERSE_OK;
}

/* Pages follow one another up to the window; what is older than the first was evicted. */
static bool follow(const struct cache *cache) {
    const struct extent *e = &cache->extent;
    bool evicts = cache->method.policy->positions_by_index;
    uint64_t end = e->exact;
    for (size_t i = 0; i <= cache->pages.n_sealed; i++) {
        const struct page_set *set = i < cache->pages.n_sealed ? &cache->pages.sets[i] : NULL;
        uint64_t first = set ? set->first : e->window_first;
        if (i == 0 && evicts && first >= end && first <= e->first) end = first;
        if (first != end) return i == 0 && evicts && !set && first >= end && first <= e->length;
        end = set ? first + set->count : end;
    }
    return true;
}

static enum terse_status load_page_sets(struct cache *cache, struct state_file *file, struct terse_error *error) {
    size_t bytes, page_bytes, n, each = cache->tables->page_set_bytes;
    const uint8_t *sets = state_file_section(file, STATE_PAGE_SETS, &bytes);
    const uint8_t *pages = state_file_section(file, STATE_PAGES, &page_bytes);
    n = bytes / sizeof(struct saved_page_set);
    if (bytes % sizeof(struct saved_page_set) || n > UINT32_MAX || page_bytes / each != n || page_bytes % each)
        return state_file_refuse(file, STATE_PAGE_SETS, "there are not as many pages", error);
    enum terse_status status = page_table_reserve(&cache->pages, n, error);
    if (status) return status;
    for (size_t i = 0; i < n; i++) {
        struct saved_page_set saved;
        memcpy(&saved, sets + i * sizeof saved, sizeof saved);
        if (!saved.count || saved.count > PAGE_TOKENS || saved.generated > 1 || saved.first > MOST_TOKENS)
            return state_file_refuse(file, STATE_PAGE_SETS, "a page of so many tokens", error);
        cache->pages.sets[i].first = saved.first;
        cache->pages.sets[i].count = saved.count;
        cache->pages.sets[i].generated = saved.generated;
    }
    cache->pages.n_sealed = n;
    if (!follow(cache)) return state_file_refuse(file, STATE_PAGE_SETS, "pages do not follow one another", error);
    if (n && cache_fit_pending(cache)) return state_file_refuse(file, STATE_CACHE, "pages without what was fitted to them", error);
    if (!n) return TERSE_OK;
    /* A new cache's page sets are one chunk, laid out as the file's. */
    return device_check(device_send(cache->pages.sets[0].chunk, pages, n * each), "reading saved pages", error);
}

static enum terse_status put(void *to, const void *from, size_t bytes, struct terse_error *error) {
    if (!bytes) return TERSE_OK;
    return device_check(device_send(to, from, bytes), "reading a saved KV cache", error);
}

static enum terse_status load_exact(struct cache *cache, const struct state_file *file, struct terse_error *error) {
    size_t bytes;
    const void *data = state_file_section(file, STATE_EXACT, &bytes);
    if (bytes != exact_bytes(cache)) return state_file_refuse(file, STATE_EXACT, "it is of another size", error);
    struct sequence_view view = cache_view(cache);
    enum terse_status status = put(cache->exact, data, bytes, error);
    if (!status) status = put(cache->view, &view, sizeof view, error);
    if (status) return status;
    return device_check(
        rotate_exact(&cache->heads, &cache->tables->rotary, cache->view, (uint32_t)cache->extent.exact, false, device_stream()),
        "rotating exact rows", error);
}

static enum terse_status load_window(struct cache *cache, const struct state_file *file, struct terse_error *error) {
    size_t bytes, wanted = extent_window_pages(&cache->extent) * window_set_bytes(cache);
    const uint8_t *data = state_file_section(file, STATE_WINDOW, &bytes);
    if (bytes != wanted) return state_file_refuse(file, STATE_WINDOW, "it is of another size", error);
    uint16_t *ring = calloc(1, window_bytes(cache));
    if (!ring) return status_no_memory(error, window_bytes(cache), "a saved KV cache");
    copy_window(cache, ring, (uint8_t *)data, false);
    enum terse_status status = put(cache->window, ring, window_bytes(cache), error);
    free(ring);
    return status;
}

static enum terse_status load_fitted(struct cache *cache, const struct state_file *file, struct terse_error *error) {
    size_t bytes, floats = cache_heads(cache) * 2 * transform_fitted_floats(cache->shape.head_dim);
    const uint8_t *data = state_file_section(file, STATE_FITTED, &bytes);
    if (bytes != cache_heads(cache) * fitted_bytes(cache))
        return state_file_refuse(file, STATE_FITTED, "it is of another size", error);
    if (!bytes) return TERSE_OK;
    float *own = calloc(floats, sizeof *own);
    if (!own) return status_no_memory(error, floats * sizeof *own, "a saved KV cache");
    copy_fitted(cache, own, (uint8_t *)data, false);
    enum terse_status status = put(cache->fitted, own, floats * sizeof *own, error);
    free(own);
    return status;
}

enum terse_status kv_load(struct cache *cache, struct state_file *file, struct terse_error *error) {
    cudaStreamSynchronize(device_stream());
    enum terse_status status = load_extent(cache, file, error);
    if (!status) status = kv_tables_reserve(cache->tables, cache->extent.length, error);
    if (!status) status = load_page_sets(cache, file, error);
    if (!status) status = load_window(cache, file, error);
    if (!status) status = load_exact(cache, file, error);
    if (!status) status = load_fitted(cache, file, error);
    return status;
}
