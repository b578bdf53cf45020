/* Writes a cache's bytes to a saved state and reads them back, by way of the host's memory. The CPU writes the same bytes.
 *
 * A cache is written on any thread while steps of other caches go on. So nothing is queued on device_stream(), which may be
 * capturing a graph, and no memory that caches share is allocated, changed or computed with: there are only copies to the host, on
 * a stream of their own, of what was there when the event `written` of the cache was recorded. */
#include "backend/cuda/kv/saved.h"

#include "backend/cuda/kv/codec.h"
#include "backend/cuda/kv/kept.h"
#include "backend/cuda/kv/window.h"

#include "base/half.h"
#include "base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static size_t exact_bytes(const struct cache *cache) {
    return cache_heads_of(&cache->base.shape) * 2 * cache_first_exact(cache) * cache->base.shape.head_dim * sizeof(uint16_t);
}
static size_t anchors_bytes(const struct cache *cache, size_t n) {
    return cache_heads_of(&cache->base.shape) * 2 * n * (sizeof(uint32_t) + cache->base.shape.head_dim * sizeof(uint16_t));
}
static size_t window_bytes(const struct cache *cache) {
    return cache_heads_of(&cache->base.shape) * 2 * window_side_halves(cache) * sizeof(uint16_t);
}
static size_t window_set_bytes(const struct cache *cache) {
    return cache_heads_of(&cache->base.shape) * 2 * PAGE_BYTES_F16(cache->base.shape.head_dim);
}

/* ---- Between the two forms. `data` is the host's copy of the device's bytes or of the file's: `save` says which. */

/* Copies between a row of the ring and a slot of a page of the window, whose keys lie by channel. */
static void copy_window_row(const struct cache *cache, uint16_t *ring, uint8_t *pages, size_t head, uint64_t token, bool save) {
    size_t hd = cache->base.shape.head_dim, slot = (size_t)(token - cache->base.extent.window_first), t = slot % PAGE_TOKENS;
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
    for (size_t head = 0; head < cache_heads_of(&cache->base.shape); head++)
        for (uint64_t t = cache->base.extent.window_first; t < cache->base.extent.length; t++)
            copy_window_row(cache, ring, pages, head, t, save);
}

/* Rotates keys of exact rows [layers][Hk][2][capacity][hd] by their tokens, or back: the file has them as they were before
 * rotation. */
static void rotate_exact(const struct cache *cache, uint16_t *rows, bool back) {
    struct rope rope = *cache->base.shape.rope;
    size_t hd = cache->base.shape.head_dim, stride = 2 * cache_first_exact(cache) * hd;
    float cosine[CODEC_HEAD_DIM_MAX / 2], sine[CODEC_HEAD_DIM_MAX / 2], key[CODEC_HEAD_DIM_MAX];
    if (back) rope.magnitude = 1 / rope.magnitude;
    for (uint64_t t = 0; rope.n_rot && t < cache->base.extent.exact; t++) {
        rope_angles(&rope, back ? -(int64_t)t : (int64_t)t, cosine, sine);
        for (size_t head = 0; head < cache_heads_of(&cache->base.shape); head++) {
            uint16_t *row = rows + head * stride + t * hd;
            for (size_t c = 0; c < hd; c++) key[c] = half_to_float(row[c]);
            rope_rotate(&rope, cosine, sine, key, 1, (uint32_t)hd);
            for (size_t c = 0; c < hd; c++) row[c] = half_from_float(key[c]);
        }
    }
}

/* Copies between exact rows as they lie on the device and the file's form of them: first[layers][Hk][2][first exact][hd];
 * anchors[layers][Hk][2]{tokens[n], rows[n][hd]}, the same tokens of both sides. Any may be NULL. */
static void copy_exact(const struct cache *cache, uint16_t *rows, uint16_t *first, uint8_t *anchors, bool save) {
    size_t hd = cache->base.shape.head_dim, n = cache->base.n_anchors, own = cache_first_exact(cache),
           capacity = cache->exact.capacity;
    uint32_t *tokens = (uint32_t *)(void *)(rows + cache_heads_of(&cache->base.shape) * 2 * capacity * hd);
    for (size_t side = 0; side < 2 * cache_heads_of(&cache->base.shape); side++) {
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

/* Returns a copy of device memory, which the caller frees; NULL: the writer has failed. */
static void *fetched(const struct saving *s, const void *from, size_t bytes) {
    void *to = malloc(bytes);
    cudaError_t result = to ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, s->stream) : cudaSuccess;
    if (to && result == cudaSuccess) result = cudaStreamSynchronize(s->stream);
    if (to && result == cudaSuccess) return to;
    state_writer_fail(s->writer, to ? EIO : ENOMEM);
    free(to);
    return NULL;
}

/* Returns memory for a section, zeros; NULL: the writer has failed. */
static void *section(const struct saving *s, size_t bytes) {
    void *memory = calloc(1, bytes);
    if (!memory) state_writer_fail(s->writer, ENOMEM);
    return memory;
}

/* Counts the bytes in use of the exact rows and the anchors' tokens on the device. */
static size_t device_exact_bytes(const struct cache *cache) {
    return cache_heads_of(&cache->base.shape) *
           (2 * cache->exact.capacity * cache->base.shape.head_dim * sizeof(uint16_t) + cache->base.n_anchors * sizeof(uint32_t));
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
    size_t bytes = anchors_bytes(s->cache, s->cache->base.n_anchors);
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

static void save_window(const struct saving *s) {
    size_t bytes = extent_window_pages(&s->cache->base.extent) * window_set_bytes(s->cache);
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

/* A chunk_copy has the host's copies of the chunks that the cache's pages lie in. */
struct chunk_copy {
    const struct page_chunk *chunk;
    uint8_t *memory;
};

static struct chunk_copy *fetch_chunks(const struct saving *s, size_t *n) {
    const struct block_table *pages = &s->cache->base.pages;
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

static const uint8_t *copy_of(const void *user, const struct page_set *set) {
    const struct chunk_copy *copies = user;
    while (copies->chunk && copies->chunk != set->owner) copies++;
    return copies->memory;
}

static void save_pages(const struct saving *s) {
    size_t n;
    struct chunk_copy *copies = fetch_chunks(s, &n);
    if (copies && (!n || copies[n - 1].memory)) cache_save_pages(s->cache, s->writer, copy_of, copies);
    for (size_t i = 0; copies && i < n; i++) free(copies[i].memory);
    free(copies);
}

void kv_saved_write(const struct cache *cache, struct state_writer *writer) {
    struct saving s = {.cache = cache, .writer = writer};
    cudaError_t result = cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking);
    if (result != cudaSuccess) {
        state_writer_fail(writer, EIO);
        return;
    }
    if (cudaStreamWaitEvent(s.stream, cache->written, 0) != cudaSuccess) state_writer_fail(writer, EIO);
    state_writer_begin(writer, STATE_EXACT);
    save_exact(&s);
    state_writer_begin(writer, STATE_EXACT_LOGITS);
    state_writer_begin(writer, STATE_FITTED);
    fitted_save(&cache->base, writer);
    state_writer_begin(writer, STATE_ANCHORS);
    save_anchors(&s);
    state_writer_begin(writer, STATE_WINDOW);
    save_window(&s);
    state_writer_begin(writer, STATE_PAGES);
    save_pages(&s);
    cudaStreamDestroy(s.stream);
}

/* ---- Reading */

enum terse_status kv_saved_read_pages(struct cache *cache, struct state_file *file, const uint8_t *pages, size_t n,
                                      struct terse_error *error) {
    (void)file;
    cudaStreamSynchronize(device_stream());
    enum terse_status status = kv_tables_reserve(cache->tables, cache->base.extent.length, error);
    if (!status) status = block_table_reserve(&cache->base.pages, n, error);
    if (status || !n) return status;
    cache->base.pages.n_sealed = n;
    /* A new cache's page sets are one chunk, laid out as the file's. */
    return device_check(device_send(cache->base.pages.sets[0].chunk, pages, n * cache->base.page_set_bytes), "reading saved pages",
                        error);
}

static enum terse_status put(void *to, const void *from, size_t bytes, struct terse_error *error) {
    if (!bytes) return TERSE_OK;
    return device_check(device_send(to, from, bytes), "reading a saved KV cache", error);
}

/* Returns whether anchors are such as steps leave: tokens ascend, were sealed, and are the same of keys and values. `rows` are as
 * they will lie on the device, `file` is the section. */
static bool anchors_can_be(const struct cache *cache, const uint16_t *rows, const uint8_t *file) {
    size_t n = cache->base.n_anchors, hd = cache->base.shape.head_dim, side = n * (sizeof(uint32_t) + hd * sizeof(uint16_t));
    const uint32_t *tokens =
        (const uint32_t *)(const void *)(rows + cache_heads_of(&cache->base.shape) * 2 * cache->exact.capacity * hd);
    for (size_t head = 0; n && head < cache_heads_of(&cache->base.shape); head++, tokens += n) {
        if (memcmp(file + 2 * head * side, file + (2 * head + 1) * side, n * sizeof *tokens) != 0) return false;
        for (size_t i = 0; i < n; i++)
            if (tokens[i] < cache->base.extent.exact || tokens[i] >= cache->base.extent.window_first ||
                (i && tokens[i] <= tokens[i - 1]))
                return false;
    }
    return true;
}

static enum terse_status load_exact(struct cache *cache, const struct state_file *file, struct terse_error *error) {
    size_t n = cache->base.n_anchors, bytes = exact_bytes(cache);
    const uint8_t *data = cache_saved_section(file, STATE_EXACT, bytes, error);
    const uint8_t *chosen = data ? cache_saved_section(file, STATE_ANCHORS, anchors_bytes(cache, n), error) : NULL;
    if (!chosen) return TERSE_E_FORMAT;
    enum terse_status status = n ? kept_resize(cache, n, error) : TERSE_OK;
    size_t all = device_exact_bytes(cache);
    if (status || !all) return status;
    uint16_t *rows = malloc(all), *first = malloc(bytes ? bytes : 1);
    if (!rows || !first) status = status_no_memory(error, all + bytes, "a saved KV cache");
    if (!status && bytes) memcpy(first, data, bytes);
    if (!status) rotate_exact(cache, first, false);
    if (!status) copy_exact(cache, rows, first, cache->base.n_anchors ? (uint8_t *)chosen : NULL, false);
    if (!status && !anchors_can_be(cache, rows, chosen))
        status = state_file_refuse(file, STATE_ANCHORS, "tokens out of order", error);
    if (!status) status = put(cache->exact.rows, rows, all, error);
    free(rows);
    free(first);
    return status;
}

static enum terse_status load_window(struct cache *cache, const struct state_file *file, struct terse_error *error) {
    const struct extent *extent = &cache->base.extent;
    const uint8_t *data = cache_saved_section(file, STATE_WINDOW, extent_window_pages(extent) * window_set_bytes(cache), error);
    if (!data) return TERSE_E_FORMAT;
    enum terse_status status = window_clear(cache, extent->length - extent->window_first, error);
    if (status) return status;
    if (extent->length - extent->window_first > cache->window_capacity)
        return state_file_refuse(file, STATE_WINDOW, "it holds more tokens than the method keeps there", error);
    cache->window_origin = extent->window_first;
    uint16_t *ring = calloc(1, window_bytes(cache));
    if (!ring) return status_no_memory(error, window_bytes(cache), "a saved KV cache");
    copy_window(cache, ring, (uint8_t *)data, false);
    status = put(cache->window, ring, window_bytes(cache), error);
    free(ring);
    return status;
}

enum terse_status kv_saved_read(struct cache *cache, struct state_file *file, struct terse_error *error) {
    enum terse_status status = load_window(cache, file, error);
    if (!status) status = load_exact(cache, file, error);
    if (!status && !cache_saved_section(file, STATE_FITTED, fitted_saved_bytes(&cache->base), error)) status = TERSE_E_FORMAT;
    return status ? status : cache_written(cache, error);
}
