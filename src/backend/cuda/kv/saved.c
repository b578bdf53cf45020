/* Writing a cache's sections and reading them, by way of the host's memory: the bytes are those of the CPU (backend/cpu/kv/saved.c), where no number
 * that is used as an address or a count is believed.
 *
 * A cache is written on any thread while steps of other caches go on. So nothing is queued on device_stream(), which may be capturing a graph, and
 * nothing that caches share is allocated, changed or computed with: there are only copies to the host, on a stream of their own, of what was there
 * when the event `written` of the cache was recorded. */
#include "backend/cuda/kv/state.h"

#include "base/half.h"
#include "base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TOKENS UINT32_MAX

/* As they lie in the file, little-endian. */
struct saved_cache {
    uint64_t exact, first, window_first, length, dropped; /* struct extent */
    uint64_t prompt_end;
    uint64_t anchors; /* per layer, KV head and side */
    uint64_t fitted;  /* 1 or 0 */
};

struct saved_page_set {
    uint64_t first;
    uint32_t count, generated;
};

_Static_assert(sizeof(struct saved_cache) == 64 && sizeof(struct saved_page_set) == 16, "as docs/state-format.md has it");

static size_t exact_bytes(const struct cache *cache) {
    return cache_heads(cache) * 2 * cache_first_exact(cache) * cache->shape.head_dim * sizeof(uint16_t);
}
static size_t anchors_bytes(const struct cache *cache, size_t n) {
    return cache_heads(cache) * 2 * n * (sizeof(uint32_t) + cache->shape.head_dim * sizeof(uint16_t));
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

/* Keys of exact rows [layers][Hk][2][capacity][hd], which the file has as they were before rotation: rotated back, or forth by their token. */
static void rotate_exact(const struct cache *cache, uint16_t *rows, bool back) {
    struct rope rope = *cache->shape.rope;
    size_t hd = cache->shape.head_dim, stride = 2 * cache_first_exact(cache) * hd;
    float cosine[CODEC_HEAD_DIM_MAX / 2], sine[CODEC_HEAD_DIM_MAX / 2], key[CODEC_HEAD_DIM_MAX];
    if (back) rope.magnitude = 1 / rope.magnitude;
    for (uint64_t t = 0; rope.n_rot && t < cache->extent.exact; t++) {
        rope_angles(&rope, back ? -(int64_t)t : (int64_t)t, cosine, sine);
        for (size_t head = 0; head < cache_heads(cache); head++) {
            uint16_t *row = rows + head * stride + t * hd;
            for (size_t c = 0; c < hd; c++) key[c] = half_to_float(row[c]);
            rope_rotate(&rope, cosine, sine, key, 1, (uint32_t)hd);
            for (size_t c = 0; c < hd; c++) row[c] = half_from_float(key[c]);
        }
    }
}

/* Exact rows as they lie on the device, and what the file has of them: first[layers][Hk][2][first exact][hd]; anchors[layers][Hk][2]{tokens[n],
 * rows[n][hd]}, the same tokens of both sides. Any may be NULL. */
static void copy_exact(const struct cache *cache, uint16_t *rows, uint16_t *first, uint8_t *anchors, bool save) {
    size_t hd = cache->shape.head_dim, n = cache->n_anchors, own = cache_first_exact(cache), capacity = cache->exact.capacity;
    uint32_t *tokens = (uint32_t *)(void *)(rows + cache_heads(cache) * 2 * capacity * hd);
    for (size_t side = 0; side < 2 * cache_heads(cache); side++) {
        uint16_t *from = rows + side * capacity * hd;
        struct run {
            void *device, *file;
            size_t bytes;
        } runs[3] = {{from, first ? first + side * own * hd : NULL, own * hd * sizeof *from}};
        if (anchors) {
            uint8_t *at = anchors + side * n * (sizeof *tokens + hd * sizeof *from);
            runs[1] = (struct run){tokens + side / 2 * n, at, n * sizeof *tokens};
            runs[2] = (struct run){from + own * hd, at + n * sizeof *tokens, n * hd * sizeof *from};
        }
        for (int i = 0; i < 3; i++)
            if (runs[i].file) memcpy(save ? runs[i].file : runs[i].device, save ? runs[i].device : runs[i].file, runs[i].bytes);
    }
}

/* ---- Writing */

struct saving {
    const struct cache *cache;
    struct state_writer *writer;
    cudaStream_t stream; /* of its own */
};

/* A copy of device memory, to be freed; NULL: the writer has failed. */
static void *fetched(const struct saving *s, const void *from, size_t bytes) {
    void *to = malloc(bytes);
    cudaError_t result = to ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, s->stream) : cudaSuccess;
    if (to && result == cudaSuccess) result = cudaStreamSynchronize(s->stream);
    if (to && result == cudaSuccess) return to;
    state_writer_fail(s->writer, to ? EIO : ENOMEM);
    free(to);
    return NULL;
}

/* Memory for a section, zeros; NULL: the writer has failed. */
static void *section(const struct saving *s, size_t bytes) {
    void *memory = calloc(1, bytes);
    if (!memory) state_writer_fail(s->writer, ENOMEM);
    return memory;
}

/* Bytes of the exact rows and the anchors' tokens on the device that are in use. */
static size_t device_exact_bytes(const struct cache *cache) {
    return cache_heads(cache) *
           (2 * cache->exact.capacity * cache->shape.head_dim * sizeof(uint16_t) + cache->n_anchors * sizeof(uint32_t));
}

static void save_exact(const struct saving *s) {
    size_t bytes = exact_bytes(s->cache);
    if (!bytes) return;
    uint16_t *rows = fetched(s, s->cache->exact.rows, device_exact_bytes(s->cache)), *file = section(s, bytes);
    if (rows && file) {
        copy_exact(s->cache, rows, file, NULL, true);
        rotate_exact(s->cache, file, true);
        state_writer_put(s->writer, file, bytes);
    }
    free(rows);
    free(file);
}

static void save_anchors(const struct saving *s) {
    size_t bytes = anchors_bytes(s->cache, s->cache->n_anchors);
    if (!bytes) return;
    uint16_t *rows = fetched(s, s->cache->exact.rows, device_exact_bytes(s->cache));
    uint8_t *file = section(s, bytes);
    if (rows && file) {
        copy_exact(s->cache, rows, NULL, file, true);
        state_writer_put(s->writer, file, bytes);
    }
    free(rows);
    free(file);
}

static void save_fitted(const struct saving *s) {
    size_t heads = cache_heads(s->cache), bytes = heads * fitted_bytes(s->cache),
           floats = heads * 2 * transform_fitted_floats(s->cache->shape.head_dim);
    if (!bytes) return;
    float *own = fetched(s, s->cache->fitted, floats * sizeof *own);
    uint8_t *file = section(s, bytes);
    if (own && file) {
        copy_fitted(s->cache, own, file, true);
        state_writer_put(s->writer, file, bytes);
    }
    free(own);
    free(file);
}

static void save_window(const struct saving *s) {
    size_t bytes = extent_window_pages(&s->cache->extent) * window_set_bytes(s->cache);
    if (!bytes) return;
    uint16_t *ring = fetched(s, s->cache->window, window_bytes(s->cache));
    uint8_t *pages = section(s, bytes);
    if (ring && pages) {
        copy_window(s->cache, ring, pages, true);
        state_writer_put(s->writer, pages, bytes);
    }
    free(ring);
    free(pages);
}

/* The host's copies of the chunks that the cache's pages lie in. */
struct chunk_copy {
    const struct page_chunk *chunk;
    uint8_t *memory;
};

static struct chunk_copy *fetch_chunks(const struct saving *s, size_t *n) {
    const struct page_table *pages = &s->cache->pages;
    struct chunk_copy *copies = section(s, (pages->n_sealed + 1) * sizeof *copies);
    *n = 0;
    for (size_t i = 0; copies && i < pages->n_sealed; i++) {
        const struct page_chunk *chunk = pages->sets[i].owner;
        size_t at = 0;
        while (at < *n && copies[at].chunk != chunk) at++;
        if (at < *n) continue;
        copies[(*n)++] = (struct chunk_copy){chunk, fetched(s, chunk->memory, chunk->sets * s->cache->tables->page_set_bytes)};
        if (!copies[at].memory) break;
    }
    return copies;
}

static const uint8_t *copy_of(const struct chunk_copy *copies, const struct page_set *set) {
    while (copies->chunk && copies->chunk != set->owner) copies++;
    return copies->memory;
}

/* One chunk of all sealed page sets. */
static void save_pages(const struct saving *s) {
    const struct cache *cache = s->cache;
    size_t n;
    struct chunk_copy *copies = fetch_chunks(s, &n);
    bool whole = copies && (!n || copies[n - 1].memory);
    for (size_t head = 0; whole && head < cache_heads(cache); head++)
        for (int side = 0; side < 2; side++)
            for (size_t i = 0; i < cache->pages.n_sealed; i++) {
                const struct page_place *place = &cache->tables->places[head];
                struct page_set set = cache->pages.sets[i];
                set.chunk = (uint8_t *)copy_of(copies, &set);
                state_writer_put(s->writer, page_set_page(&set, place, side ? CODEC_VALUES : CODEC_KEYS), place->bytes[side]);
            }
    for (size_t i = 0; copies && i < n; i++) free(copies[i].memory);
    free(copies);
}

static void save_page_sets(const struct saving *s) {
    for (size_t i = 0; i < s->cache->pages.n_sealed; i++) {
        const struct page_set *set = &s->cache->pages.sets[i];
        state_writer_put(s->writer, &(struct saved_page_set){set->first, set->count, set->generated},
                         sizeof(struct saved_page_set));
    }
}

void kv_save(const struct cache *cache, struct state_writer *writer) {
    const struct extent *e = &cache->extent;
    const struct saved_cache saved = {e->exact,   e->first,          e->window_first,  e->length,
                                      e->dropped, cache->prompt_end, cache->n_anchors, cache->fitted_ready};
    struct saving s = {.cache = cache, .writer = writer};
    cudaError_t result = cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking);
    if (result != cudaSuccess) {
        state_writer_fail(writer, EIO);
        return;
    }
    if (cudaStreamWaitEvent(s.stream, cache->written, 0) != cudaSuccess) state_writer_fail(writer, EIO);
    state_writer_begin(writer, STATE_CACHE);
    state_writer_put(writer, &saved, sizeof saved);
    state_writer_begin(writer, STATE_PAGE_SETS);
    save_page_sets(&s);
    state_writer_begin(writer, STATE_EXACT);
    save_exact(&s);
    state_writer_begin(writer, STATE_EXACT_LOGITS);
    state_writer_begin(writer, STATE_FITTED);
    save_fitted(&s);
    state_writer_begin(writer, STATE_ANCHORS);
    save_anchors(&s);
    state_writer_begin(writer, STATE_WINDOW);
    save_window(&s);
    state_writer_begin(writer, STATE_PAGES);
    save_pages(&s);
    cudaStreamDestroy(s.stream);
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
    bool ordered = e->exact <= e->window_first && e->window_first <= e->length && e->dropped <= e->length;
    bool chosen = (!e->dropped && !saved.anchors) || cache->method.policy->keep_selected_only;
    if (e->length > MOST_TOKENS || e->exact != kept.exact || e->first != kept.first || !ordered || !chosen ||
        saved.prompt_end > e->length || saved.anchors > e->length || saved.fitted > 1 ||
        e->length - e->window_first > cache->window_capacity)
        return state_file_refuse(file, STATE_CACHE, "its counts of tokens contradict one another", error);
    cache->prompt_end = saved.prompt_end;
    cache->fitted_ready = saved.fitted;
    cache->window_origin = e->window_first;
    state_file_section(file, STATE_ANCHORS, &bytes);
    if (bytes != anchors_bytes(cache, (size_t)saved.anchors))
        return state_file_refuse(file, STATE_ANCHORS, "it is of another size", error);
    return saved.anchors ? kept_resize(cache, (size_t)saved.anchors, error) : TERSE_OK;
}

/* Pages follow one another up to the window; what is older than the first was evicted, or as many are missing as tokens of prompts were dropped or
 * became anchors. */
static bool follow(const struct cache *cache) {
    const struct extent *e = &cache->extent;
    bool evicts = cache->method.policy->positions_by_index;
    uint64_t end = e->exact, missing = e->dropped + cache->n_anchors;
    for (size_t i = 0; i <= cache->pages.n_sealed; i++) {
        const struct page_set *set = i < cache->pages.n_sealed ? &cache->pages.sets[i] : NULL;
        uint64_t first = set ? set->first : e->window_first;
        if (i == 0 && evicts && first >= end && first <= e->first) end = first;
        if (first < end || first > e->length) return false;
        if (first != end && i == 0 && evicts && !set) return true;
        if (first - end > missing) return false;
        missing -= first - end;
        end = set ? first + set->count : end;
    }
    return !missing;
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

/* Tokens in order, of those that were sealed, and the same of keys and values: rows as they will lie on the device, and the file's. */
static bool anchors_can_be(const struct cache *cache, const uint16_t *rows, const uint8_t *file) {
    size_t n = cache->n_anchors, hd = cache->shape.head_dim, side = n * (sizeof(uint32_t) + hd * sizeof(uint16_t));
    const uint32_t *tokens = (const uint32_t *)(const void *)(rows + cache_heads(cache) * 2 * cache->exact.capacity * hd);
    for (size_t head = 0; n && head < cache_heads(cache); head++, tokens += n) {
        if (memcmp(file + 2 * head * side, file + (2 * head + 1) * side, n * sizeof *tokens) != 0) return false;
        for (size_t i = 0; i < n; i++)
            if (tokens[i] < cache->extent.exact || tokens[i] >= cache->extent.window_first || (i && tokens[i] <= tokens[i - 1]))
                return false;
    }
    return true;
}

static enum terse_status load_exact(struct cache *cache, const struct state_file *file, struct terse_error *error) {
    size_t bytes;
    const void *data = state_file_section(file, STATE_EXACT, &bytes);
    if (bytes != exact_bytes(cache)) return state_file_refuse(file, STATE_EXACT, "it is of another size", error);
    size_t anchors, all = device_exact_bytes(cache);
    const uint8_t *chosen = state_file_section(file, STATE_ANCHORS, &anchors);
    if (!all) return TERSE_OK;
    uint16_t *rows = malloc(all), *first = malloc(bytes ? bytes : 1);
    enum terse_status status = rows && first ? TERSE_OK : status_no_memory(error, all + bytes, "a saved KV cache");
    if (!status && bytes) memcpy(first, data, bytes);
    if (!status) rotate_exact(cache, first, false);
    if (!status) copy_exact(cache, rows, first, cache->n_anchors ? (uint8_t *)chosen : NULL, false);
    if (!status && !anchors_can_be(cache, rows, chosen))
        status = state_file_refuse(file, STATE_ANCHORS, "tokens out of order", error);
    if (!status) status = put(cache->exact.rows, rows, all, error);
    free(rows);
    free(first);
    return status;
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
    return status ? status : cache_written(cache, error);
}
