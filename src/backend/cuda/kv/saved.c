/* Gives and takes a cache's bytes as they are saved, by way of the host's memory. The CPU gives the same bytes.
 *
 * A cache is written on any thread while steps of other caches go on. So nothing is queued on device_stream(), which may be
 * capturing a graph, and no memory that caches share is allocated, changed or computed with: there are only copies to the host, on
 * a stream of their own, of what was there when the event `written` of the cache was recorded. */
#include "backend/cuda/kv/saved.h"

#include "backend/cuda/kv/anchors.h"
#include "backend/cuda/kv/codec.h"
#include "backend/cuda/kv/kept.h"
#include "backend/cuda/kv/window.h"

#include "base/half.h"
#include "base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static size_t window_bytes(const struct cache *cache) {
    return cache_heads_of(&cache->base.shape) * 2 * window_side_halves(cache) * sizeof(uint16_t);
}
static size_t window_set_bytes(const struct cache *cache) {
    return cache_heads_of(&cache->base.shape) * 2 * PAGE_BYTES_F16(cache->base.shape.head_dim);
}

/* ---- Between the two forms. `data` is the host's copy of the device's bytes or of the file's: `save` says which. */

/* Copies between a row of the ring and a slot of a page of the window, whose keys lie by channel. */
static void copy_window_row(const struct cache *cache, uint16_t *ring, uint8_t *pages, size_t head, uint64_t token, bool save) {
    size_t hd = cache->base.shape.head_dim, slot = (size_t)(token - cache_window(cache).first), t = slot % PAGE_TOKENS;
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
    const struct token_range window = cache_window(cache);
    for (size_t head = 0; head < cache_heads_of(&cache->base.shape); head++)
        for (uint64_t t = window.first; t < window.end; t++) copy_window_row(cache, ring, pages, head, t, save);
}

/* Rotates the keys of a token by its position, or back; those of a head lie `stride` halves from the head's before. */
static void rotate_token(const struct cache *cache, uint64_t token, bool back, uint16_t *rows, size_t stride) {
    struct rope rope = *cache->base.shape.rope;
    const size_t hd = cache->base.shape.head_dim;
    float cosine[CODEC_HEAD_DIM_MAX / 2], sine[CODEC_HEAD_DIM_MAX / 2], key[CODEC_HEAD_DIM_MAX];
    if (!rope.n_rot) return;
    if (back) rope.magnitude = 1 / rope.magnitude;
    rope_angles(&rope, back ? -(int64_t)token : (int64_t)token, cosine, sine);
    for (size_t head = 0; head < cache_heads_of(&cache->base.shape); head++) {
        uint16_t *row = rows + head * stride;
        for (size_t c = 0; c < hd; c++) key[c] = half_to_float(row[c]);
        rope_rotate(&rope, cosine, sine, key, 1, (uint32_t)hd);
        for (size_t c = 0; c < hd; c++) row[c] = half_from_float(key[c]);
    }
}

/* Rotates keys of exact rows [layers][Hk][2][capacity][hd] by their tokens, or back: the file has them as they were before
 * rotation. */
static void rotate_exact(const struct cache *cache, uint16_t *rows, bool back) {
    const size_t hd = cache->base.shape.head_dim, stride = 2 * cache_first_exact(cache) * hd;
    for (uint64_t t = 0; t < cache_exact_tokens(cache); t++) rotate_token(cache, t, back, rows + t * hd, stride);
}

/* Does the same with the window, whose keys are before rotation in the file where those of pages are. */
static void rotate_window(const struct cache *cache, uint16_t *ring, bool back) {
    const struct token_range window = cache_window(cache);
    if (cache->base.method.key.codec->rope != CODEC_ROPE_BEFORE) return;
    for (uint64_t t = window.first; t < window.end; t++) {
        const size_t row = (size_t)((t - cache->window_origin) % cache->window_capacity);
        rotate_token(cache, t, back, ring + row * cache->base.shape.head_dim, 2 * window_side_halves(cache));
    }
}

/* Copies between exact rows, a copy of those on the device, and the file's form of them: first[layers][Hk][2][first exact][hd];
 * anchors[layers][Hk][2]{tokens[n], rows[n][hd]}, the same tokens of both sides. Any may be NULL. */
static void copy_exact(const struct cache *cache, const struct exact_rows *exact, uint16_t *first, uint8_t *anchors, bool save) {
    size_t hd = cache->base.shape.head_dim, n = cache->base.n_anchors, own = cache_first_exact(cache);
    for (size_t side = 0; side < 2 * cache_heads_of(&cache->base.shape); side++) {
        uint16_t *from = exact->rows + side * exact->capacity * hd;
        struct run {
            void *device, *file;
            size_t bytes;
        } runs[3] = {{from, first ? first + side * own * hd : NULL, own * hd * sizeof *from}};
        if (anchors) {
            uint8_t *at = anchors + side * n * (sizeof *exact->tokens + hd * sizeof *from);
            runs[1] = (struct run){exact->tokens + side / 2 * n, at, n * sizeof *exact->tokens};
            runs[2] = (struct run){from + own * hd, at + n * sizeof *exact->tokens, n * hd * sizeof *from};
        }
        for (int i = 0; i < 3; i++)
            if (runs[i].file) memcpy(save ? runs[i].file : runs[i].device, save ? runs[i].device : runs[i].file, runs[i].bytes);
    }
}

/* Copies keys before rotation, [layers][Hk][first exact][hd], to the file's form of exact rows, or back. */
static void copy_unrotated(const struct cache *cache, uint16_t *keys, uint16_t *file, bool save) {
    const size_t side = cache_first_exact(cache) * (size_t)cache->base.shape.head_dim;
    for (size_t head = 0; head < cache_heads_of(&cache->base.shape); head++) {
        uint16_t *own = keys + head * side, *there = file + 2 * head * side;
        memcpy(save ? there : own, save ? own : there, side * sizeof *own);
    }
}

/* An apart_anchors is the anchors of one side of a layer and KV head in the file's form. */
struct apart_anchors {
    uint32_t *tokens;
    uint16_t *rows;
};

static struct apart_anchors apart_at(const struct cache *cache, uint8_t *anchors, size_t head, int side) {
    const size_t n = cache->base.n_anchors, hd = cache->base.shape.head_dim;
    uint8_t *at = anchors + (2 * head + (size_t)side) * n * (sizeof(uint32_t) + hd * sizeof(uint16_t));
    return (struct apart_anchors){(uint32_t *)(void *)at, (uint16_t *)(void *)(at + n * sizeof(uint32_t))};
}

/* Returns the i-th row of the anchors of a layer and KV head. */
static uint16_t *anchor_row(const struct cache *cache, const struct exact_rows *exact, size_t head, int side, size_t i) {
    return exact->rows + ((2 * head + (size_t)side) * exact->capacity + cache_first_exact(cache) + i) * cache->base.shape.head_dim;
}

/* Makes the file's form of anchors of which a copy has rows for both sides' tokens together. */
static void save_apart(const struct cache *cache, const struct exact_rows *exact, uint8_t *anchors) {
    const size_t behind = exact->capacity - cache_first_exact(cache), hd = cache->base.shape.head_dim;
    for (size_t head = 0; head < cache_heads_of(&cache->base.shape); head++)
        for (int side = 0; side < 2; side++) {
            const struct apart_anchors to = apart_at(cache, anchors, head, side);
            struct anchor_walk walk = anchors_walk(cache, exact, head);
            for (uint32_t i, n = 0; n < cache->base.n_anchors && anchors_next(&walk, &i);) {
                if (!(exact->sides[head * behind + i] >> side & 1)) continue;
                to.tokens[n] = exact->tokens[head * behind + i];
                memcpy(to.rows + n++ * hd, anchor_row(cache, exact, head, side, i), hd * sizeof *to.rows);
            }
        }
}

/* Does the reverse for a layer and KV head; rows of sides that are no anchors stay zeros. */
static void load_apart(const struct cache *cache, struct exact_rows *exact, uint8_t *anchors, size_t head) {
    const struct block_table *table = &cache->base.pages;
    const size_t behind = exact->capacity - cache_first_exact(cache), n = cache->base.n_anchors, hd = cache->base.shape.head_dim;
    const struct apart_anchors from[2] = {apart_at(cache, anchors, head, 0), apart_at(cache, anchors, head, 1)};
    size_t at[2] = {0}, count = 0, elsewhere = 0, page = 0, pages_here = 0; /* of the pages before this one */
    while (at[0] < n || at[1] < n) {
        uint32_t token = UINT32_MAX, sides = 0;
        for (int side = 0; side < 2; side++)
            if (at[side] < n && from[side].tokens[at[side]] < token) token = from[side].tokens[at[side]];
        for (; page + 1 < table->n_sealed && table->sets[page + 1].first <= token; page++)
            pages_here += page_set_is_here(&table->sets[page]);
        const bool here = page_set_is_here(&table->sets[page]);
        const size_t place = here ? count++ : behind - ++elsewhere;
        for (int side = 0; side < 2; side++)
            if (at[side] < n && from[side].tokens[at[side]] == token) {
                memcpy(anchor_row(cache, exact, head, side, place), from[side].rows + at[side]++ * hd, hd * sizeof(uint16_t));
                sides |= 1u << side;
            }
        exact->tokens[head * behind + place] = token;
        exact->sides[head * behind + place] = sides;
        if (here)
            exact->pages[head * exact->n_pages + pages_here] |= (uint64_t)1 << (token - table->sets[page].first) % PAGE_TOKENS;
    }
    exact->counts[head] = (uint32_t)count;
    exact->elsewhere[head] = (uint32_t)elsewhere;
}

/* Returns the cache's exact rows as they lie in a copy on the host, which may be NULL, and how many bytes they are. */
static struct exact_rows copy_at(const struct cache *cache, void *host, size_t *bytes) {
    struct exact_rows exact = cache->exact;
    exact.rows = host;
    *bytes = exact_lay_out(cache, &exact);
    return exact;
}

/* ---- Giving */

int kv_export_pages(const struct cache *cache, void *to, const void *from, size_t bytes) {
    cudaStream_t stream; /* of its own */
    device_number();
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return EIO;
    cudaError_t result = cudaStreamWaitEvent(stream, cache->written, 0);
    if (result == cudaSuccess) result = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream);
    if (result == cudaSuccess) result = cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    return result == cudaSuccess ? 0 : EIO;
}

/* Makes the file's form of a piece of what the device has of it. */
static void convert(const struct cache *cache, enum cache_piece piece, void *device, void *file) {
    const struct exact_rows exact = copy_at(cache, device, &(size_t){0});
    if (piece == CACHE_WINDOW) rotate_window(cache, device, true);
    if (piece == CACHE_WINDOW) copy_window(cache, device, file, true);
    if (piece == CACHE_EXACT) copy_exact(cache, &exact, file, NULL, true);
    if (piece == CACHE_EXACT && exact.unrotated)
        copy_unrotated(cache, exact.unrotated, file, true);
    else if (piece == CACHE_EXACT)
        rotate_exact(cache, file, true);
    if (piece == CACHE_LEARNED) memcpy(file, device, cache_piece_bytes(cache, piece));
    if (piece == CACHE_EXACT_LOGITS) memcpy(file, exact.logits, cache_piece_bytes(cache, piece));
    if (piece == CACHE_ANCHORS && exact.counts) save_apart(cache, &exact, file);
    if (piece == CACHE_ANCHORS && !exact.counts) copy_exact(cache, &exact, NULL, file, true);
}

int kv_export_piece(const struct cache *cache, enum cache_piece piece, const struct cache_sink *sink) {
    const size_t bytes = cache_piece_bytes(cache, piece);
    const void *from = cache->exact.rows;
    size_t own;
    copy_at(cache, NULL, &own);
    if (piece == CACHE_WINDOW) from = cache->window, own = window_bytes(cache);
    if (piece == CACHE_LEARNED) from = cache->learned, own = bytes;
    if (!bytes) return 0;
    void *device = malloc(own), *file = calloc(1, bytes);
    int failed = device && file ? kv_export_pages(cache, device, from, own) : ENOMEM;
    if (!failed) {
        convert(cache, piece, device, file);
        sink->put(sink->user, file, bytes);
    }
    free(device);
    free(file);
    return failed;
}

/* ---- Taking */

/* Makes the table hold n page sets of rates[n]. */
static enum terse_status reserve_sets(struct block_table *table, const uint8_t *rates, size_t n, struct terse_error *error) {
    const uint32_t own = table->rate;
    enum terse_status status = TERSE_OK;
    for (size_t i = 0, end; i < n && !status; i = end) {
        for (end = i + 1; end < n && rates[end] == rates[i];) end++;
        table->rate = rates[i];
        status = block_table_reserve(table, end, error);
    }
    table->rate = own;
    return status;
}

/* Copies the pages of a page set from the saved chunk of its rate, of which it is the j-th of `sets`, to a chunk on the host. */
static void copy_set(const struct cache_base *base, const struct page_set *set, const uint8_t *from, size_t sets, size_t j,
                     uint8_t *chunk) {
    const size_t heads = cache_heads_of(&base->shape), i = set->index;
    for (size_t head = 0; head < heads; head++) {
        const struct page_address *place = &base->places[set->rate * heads + head];
        const size_t keys = place->bytes[CODEC_KEYS], values = place->bytes[CODEC_VALUES];
        uint8_t *to = chunk + set->chunk_sets * place->offset;
        const uint8_t *own = from + sets * place->offset;
        memcpy(to + i * keys, own + j * keys, keys);
        memcpy(to + set->chunk_sets * keys + i * values, own + sets * keys + j * values, values);
    }
}

/* Sends page sets, chunk by chunk, to where the table has them. */
static enum terse_status send_sets(const struct cache_base *base, const uint8_t *pages, struct terse_error *error) {
    const struct page_set *set = base->pages.sets, *end = set + base->pages.n_sealed;
    const uint8_t *of_rate[METHOD_RATES];
    size_t sets[METHOD_RATES] = {0}, done[METHOD_RATES] = {0};
    for (const struct page_set *each = set; each < end; each++) sets[each->rate]++;
    for (uint32_t rate = 0; rate < rates_of(base); pages += sets[rate] * base->rates.page_set_bytes[rate], rate++)
        of_rate[rate] = pages;
    while (set < end) {
        const struct page_chunk *chunk = set->owner;
        if (!page_set_is_here(set)) { /* another rank's */
            done[set++->rate]++;
            continue;
        }
        const size_t bytes = chunk->sets * base->rates.page_set_bytes[set->rate];
        uint8_t *host = calloc(1, bytes);
        if (!host) return status_no_memory(error, bytes, "saved pages");
        for (; set < end && (set->owner == chunk || !page_set_is_here(set)); set++) {
            const size_t j = done[set->rate]++;
            if (page_set_is_here(set)) copy_set(base, set, of_rate[set->rate], sets[set->rate], j, host);
        }
        const cudaError_t result = device_send(chunk->memory, host, bytes);
        free(host);
        if (result != cudaSuccess) return device_check(result, "reading saved pages", error);
    }
    return TERSE_OK;
}

enum terse_status kv_import_pages(struct cache *cache, const uint8_t *pages, const uint8_t *rates, size_t n,
                                  struct terse_error *error) {
    struct cache_base *base = &cache->base;
    cudaStreamSynchronize(device_stream());
    enum terse_status status = kv_tables_reserve(cache->tables, cache_length(cache), error);
    if (!status) status = reserve_sets(&base->pages, rates, n, error);
    if (status || !n) return status;
    base->pages.n_sealed = n;
    if (rates_of(base) > 1 || base->shape.ranks) return send_sets(base, pages, error);
    /* A new cache's page sets are one chunk, laid out as the saved one. */
    return device_check(device_send(base->pages.sets[0].chunk, pages, n * base->page_set_bytes), "reading saved pages", error);
}

static enum terse_status send(void *to, const void *from, size_t bytes, struct terse_error *error) {
    if (!bytes) return TERSE_OK;
    return device_check(device_send(to, from, bytes), "reading a saved KV cache", error);
}

static enum terse_status import_exact(struct cache *cache, const uint8_t *const pieces[CACHE_PIECES], struct terse_error *error) {
    const uint8_t *const data = pieces[CACHE_EXACT], *const anchors = pieces[CACHE_ANCHORS];
    const size_t n = cache->base.n_anchors, bytes = cache_piece_bytes(cache, CACHE_EXACT);
    enum terse_status status = n ? kept_resize(cache, n, error) : TERSE_OK;
    size_t all;
    copy_at(cache, NULL, &all);
    if (status || !all) return status;
    uint16_t *rows = calloc(1, all), *first = malloc(bytes ? bytes : 1);
    if (!rows || !first) status = status_no_memory(error, all + bytes, "a saved KV cache");
    if (!status) {
        struct exact_rows exact = copy_at(cache, rows, &all);
        if (bytes) memcpy(first, data, bytes);
        if (exact.unrotated) copy_unrotated(cache, exact.unrotated, first, false);
        if (exact.logits) memcpy(exact.logits, pieces[CACHE_EXACT_LOGITS], cache_piece_bytes(cache, CACHE_EXACT_LOGITS));
        rotate_exact(cache, first, false);
        copy_exact(cache, &exact, first, n && !exact.counts ? (uint8_t *)anchors : NULL, false);
        for (size_t head = 0; exact.counts && head < cache_heads_of(&cache->base.shape); head++)
            load_apart(cache, &exact, (uint8_t *)anchors, head);
        status = send(cache->exact.rows, rows, all, error);
    }
    free(rows);
    free(first);
    return status ? status : kv_anchors_complete(cache, error);
}

static enum terse_status import_window(struct cache *cache, const uint8_t *data, struct terse_error *error) {
    const struct token_range window = cache_window(cache);
    enum terse_status status = window_clear(cache, window.end - window.first, error);
    if (status) return status;
    cache->window_origin = window.first;
    uint16_t *ring = calloc(1, window_bytes(cache));
    if (!ring) return status_no_memory(error, window_bytes(cache), "a saved KV cache");
    copy_window(cache, ring, (uint8_t *)data, false);
    rotate_window(cache, ring, false);
    status = send(cache->window, ring, window_bytes(cache), error);
    free(ring);
    return status;
}

enum terse_status kv_import_pieces(struct cache *cache, const uint8_t *const pieces[CACHE_PIECES], struct terse_error *error) {
    enum terse_status status = import_window(cache, pieces[CACHE_WINDOW], error);
    if (!status) status = import_exact(cache, pieces, error);
    if (!status) status = send(cache->learned, pieces[CACHE_LEARNED], cache_piece_bytes(cache, CACHE_LEARNED), error);
    return status ? status : cache_written(cache, error);
}
