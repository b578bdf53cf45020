/* Growing the pool of pages, and giving it back. */
#include "backend/cpu/kv/page_pool.h"

#include "base/memory.h"
#include "format/transform.h"

#include <stdlib.h>
#include <string.h>

#define GROWTH 64      /* generation allocates in advance at most this part of the page sets that there are ... */
#define GROWTH_MOST 16 /* ... and never more than these */

static size_t heads(const struct cache *cache) { return (size_t)cache->shape.layers * cache->shape.kv_heads; }

/* ---- Sizes */

struct page_place page_place_of(const struct cache_shape *shape, const struct method *method, uint32_t layer, uint32_t head) {
    static const enum codec_side sides[] = {CODEC_KEYS, CODEC_VALUES};
    struct page_place place = {0};
    for (size_t i = 0; i < 2; i++) {
        const struct codec *codec = sides[i] == CODEC_KEYS ? method->key.codec : method->value.codec;
        struct codec_shape seen = method_shape(method, sides[i], layer, head, shape->head_dim, 1);
        place.bytes[sides[i]] = codec_page_bytes(codec, seen, sides[i]);
    }
    return place;
}

/* Whether bits of this side are shared over the model and nobody has looked yet who gets them. */
static bool unshared(const struct method *method, enum codec_side side) {
    return (side == CODEC_KEYS ? method->key.rate : method->value.rate) > 0 && !method->layouts;
}

/* The pages of such sides, which their sum is known of. */
static uint64_t unshared_bytes(const struct cache_shape *shape, const struct method *method) {
    size_t sets = (size_t)shape->layers * shape->kv_heads;
    bool keys = unshared(method, CODEC_KEYS), values = unshared(method, CODEC_VALUES);
    double key = method->key.rate, value = method->value.rate;
    if (keys && values && !(key < value) && !(key > value)) return transform_shared_page_bytes(2 * sets, shape->head_dim, key);
    return (keys ? transform_shared_page_bytes(sets, shape->head_dim, key) : 0) +
           (values ? transform_shared_page_bytes(sets, shape->head_dim, value) : 0);
}

uint64_t page_set_bytes_of(const struct cache_shape *shape, const struct method *method, size_t index_page_bytes) {
    uint64_t bytes = unshared_bytes(shape, method);
    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        for (uint32_t head = 0; head < shape->kv_heads; head++) {
            struct page_place place = page_place_of(shape, method, layer, head);
            if (!unshared(method, CODEC_KEYS)) bytes += place.bytes[CODEC_KEYS];
            if (!unshared(method, CODEC_VALUES)) bytes += place.bytes[CODEC_VALUES];
            bytes += index_page_bytes;
        }
    }
    return bytes;
}

enum terse_status pool_set_places(struct cache *cache, struct terse_error *error) {
    uint32_t kv_heads = cache->shape.kv_heads;
    cache->places = memory_array(heads(cache), sizeof *cache->places);
    if (!cache->places) return status_no_memory(error, heads(cache) * sizeof *cache->places, "the KV cache's page sizes");
    for (size_t i = 0; i < heads(cache); i++) {
        struct page_place place = page_place_of(&cache->shape, &cache->method, (uint32_t)(i / kv_heads), (uint32_t)(i % kv_heads));
        place.offset = cache->page_set_bytes;
        cache->places[i] = place;
        cache->page_set_bytes += place.bytes[CODEC_KEYS] + place.bytes[CODEC_VALUES] + cache->index_page_bytes;
        for (size_t side = 0; side < 2; side++) cache->largest_page[side] = larger(cache->largest_page[side], place.bytes[side]);
    }
    return TERSE_OK;
}

uint64_t page_bytes_of_layer(const struct cache *cache, uint32_t layer) {
    uint64_t bytes = 0;
    for (uint32_t head = 0; head < cache->shape.kv_heads; head++) {
        const struct page_place *place = page_place(cache, layer, head);
        bytes += place->bytes[CODEC_KEYS] + place->bytes[CODEC_VALUES];
    }
    return bytes;
}

/* ---- Chunks */

static void release(struct page_pool *pool, struct page_chunk *chunk) {
    size_t bytes = chunk->sets * pool->page_set_bytes;
    if (chunk->file && chunk->memory) {
        budget_give(pool->budget, bytes);
        state_file_close(chunk->file);
    } else {
        budget_free(pool->budget, chunk->memory, bytes);
    }
    budget_free(pool->budget, chunk->holders, chunk->sets * sizeof *chunk->holders);
    free(chunk);
}

/* Memory of pages of its own, or those in the file. */
static uint8_t *chunk_memory(struct page_pool *pool, size_t sets, struct state_file *file, const uint8_t *memory,
                             struct terse_error *error) {
    if (!file) return budget_array(pool->budget, sets, pool->page_set_bytes, "the KV cache", error);
    if (budget_take(pool->budget, sets * pool->page_set_bytes, "the KV cache", error)) return NULL;
    state_file_share(file);
    return (uint8_t *)memory; /* nobody writes them: is_writable */
}

/* `file`: in which the pages lie already, at `memory`; or NULL. */
static enum terse_status chunk_new(struct page_pool *pool, size_t sets, struct state_file *file, const uint8_t *memory,
                                   struct page_chunk **result, struct terse_error *error) {
    struct page_chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk || sets > UINT32_MAX) {
        free(chunk);
        return status_no_memory(error, (uint64_t)sets * pool->page_set_bytes, "the KV cache");
    }
    chunk->file = file;
    chunk->sets = (uint32_t)sets;
    chunk->memory = chunk_memory(pool, sets, file, memory, error);
    if (chunk->memory) chunk->holders = budget_array(pool->budget, sets, sizeof *chunk->holders, "the KV cache", error);
    if (!chunk->holders) {
        release(pool, chunk);
        return TERSE_E_MEMORY;
    }
    memset(chunk->holders, 0, sets * sizeof *chunk->holders);
    *result = chunk;
    return TERSE_OK;
}

static void chunk_free(struct page_pool *pool, struct page_chunk *chunk) {
    struct page_chunk **link = &pool->chunks;
    while (*link != chunk) link = &(*link)->next;
    *link = chunk->next;
    release(pool, chunk);
}

static struct page_set hold(struct page_chunk *chunk, uint32_t index) {
    chunk->held += !chunk->holders[index]++;
    return (struct page_set){.chunk = chunk->memory, .owner = chunk, .chunk_sets = chunk->sets, .index = index};
}

static void let_go(struct page_pool *pool, const struct page_set *set) {
    struct page_chunk *chunk = set->owner;
    chunk->held -= !--chunk->holders[set->index];
    if (!chunk->held) chunk_free(pool, chunk);
}

static bool is_shared(const struct page_set *set) { return set->owner->holders[set->index] > 1; }

static bool is_writable(const struct page_set *set) { return !is_shared(set) && !set->owner->file; }

static void add_chunk(struct page_pool *pool, struct page_chunk *chunk) {
    chunk->next = pool->chunks;
    pool->chunks = chunk;
}

/* Page sets of the pool that nobody holds and that can be written. */
static size_t count_unheld(const struct page_pool *pool) {
    size_t n = 0;
    for (const struct page_chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
        n += chunk->file ? 0 : chunk->sets - chunk->held;
    return n;
}

/* Appends up to n of them to the cache's. */
static void hold_unheld(struct cache *cache, struct page_chunk *chunk, size_t n) {
    for (uint32_t i = 0; n && !chunk->file && i < chunk->sets; i++) {
        if (chunk->holders[i]) continue;
        cache->page_sets[cache->n_page_sets++] = hold(chunk, i);
        n--;
    }
}

/* ---- Page sets of a cache */

/* Room for `n` in its table. */
static enum terse_status reserve_table(struct cache *cache, size_t n, struct terse_error *error) {
    if (n <= cache->page_set_capacity) return TERSE_OK;
    struct page_set *page_sets = budget_array(cache->budget, n, sizeof *page_sets, "the KV cache's pages", error);
    if (!page_sets) return TERSE_E_MEMORY;
    if (cache->n_page_sets) memcpy(page_sets, cache->page_sets, cache->n_page_sets * sizeof *page_sets);
    budget_free(cache->budget, cache->page_sets, cache->page_set_capacity * sizeof *page_sets);
    cache->page_sets = page_sets;
    cache->page_set_capacity = n;
    return TERSE_OK;
}

enum terse_status pool_reserve_page_sets(struct cache *cache, size_t n, struct terse_error *error) {
    struct page_pool *pool = cache->pool;
    if (n <= cache->n_page_sets) return TERSE_OK;
    size_t wanted = n - cache->n_page_sets, found = smaller(wanted, count_unheld(pool)), more = wanted - found;
    size_t ahead = smaller(cache->n_page_sets / GROWTH, GROWTH_MOST);
    struct page_chunk *made = NULL;
    enum terse_status status = TERSE_OK;
    if (more && more < ahead && !chunk_new(pool, ahead, NULL, NULL, &made, NULL)) more = ahead;
    if (more && !made) status = chunk_new(pool, more, NULL, NULL, &made, error);
    if (!status) status = reserve_table(cache, cache->n_page_sets + found + more, error);
    if (status) {
        if (made) release(pool, made);
        return status;
    }
    if (made) add_chunk(pool, made);
    for (struct page_chunk *chunk = made ? made->next : pool->chunks; chunk; chunk = chunk->next) {
        size_t before = cache->n_page_sets;
        hold_unheld(cache, chunk, found);
        found -= cache->n_page_sets - before;
    }
    if (made) hold_unheld(cache, made, more);
    return TERSE_OK;
}

static void reverse(struct page_set *sets, size_t n) {
    for (size_t i = 0; i < n / 2; i++) {
        struct page_set set = sets[i];
        sets[i] = sets[n - 1 - i];
        sets[n - 1 - i] = set;
    }
}

void pool_drop_page_sets(struct cache *cache, size_t first, size_t n) {
    if (!n) return;
    struct page_set *sets = cache->page_sets + first;
    size_t others = cache->n_page_sets - first - n;
    if (first + n < cache->n_sealed) { /* puts them behind those that stay and those that are free */
        reverse(sets, n);
        reverse(sets + n, others);
        reverse(sets, n + others);
        sets += others;
    }
    size_t at = (size_t)(sets - cache->page_sets), kept = at;
    for (size_t i = at; i < cache->n_page_sets; i++) {
        if (is_writable(&cache->page_sets[i]))
            cache->page_sets[kept++] = cache->page_sets[i];
        else
            let_go(cache->pool, &cache->page_sets[i]);
    }
    cache->n_page_sets = kept;
    cache->n_sealed -= n;
    cache->selection.candidates = cache->selection.dense = 0; /* they are numbers of page sets */
}

enum terse_status pool_share_page_sets(struct cache *cache, const struct cache *from, struct terse_error *error) {
    enum terse_status status = reserve_table(cache, from->n_sealed, error);
    if (status) return status;
    free(cache->pool);
    cache->pool = from->pool;
    cache->pool->caches++;
    for (size_t i = 0; i < from->n_sealed; i++) {
        cache->page_sets[i] = from->page_sets[i];
        hold(from->page_sets[i].owner, from->page_sets[i].index);
    }
    cache->n_page_sets = cache->n_sealed = from->n_sealed;
    return TERSE_OK;
}

enum terse_status pool_map_page_sets(struct cache *cache, struct state_file *file, const uint8_t *memory, size_t n,
                                     struct terse_error *error) {
    enum terse_status status = n ? reserve_table(cache, n, error) : TERSE_OK;
    if (status || !n) return status;
    struct page_chunk *chunk;
    if ((status = chunk_new(cache->pool, n, file, memory, &chunk, error))) return status;
    add_chunk(cache->pool, chunk);
    for (uint32_t i = 0; i < n; i++) cache->page_sets[i] = hold(chunk, i);
    cache->n_page_sets = cache->n_sealed = n;
    return TERSE_OK;
}

size_t pool_shared_page_sets(const struct cache *cache) {
    size_t n = 0;
    for (size_t i = 0; i < cache->n_sealed; i++) n += is_shared(&cache->page_sets[i]);
    return n;
}

/* ---- The window */

enum terse_status pool_reserve_window(struct cache *cache, size_t n, struct terse_error *error) {
    if (n <= cache->n_window_sets) return TERSE_OK;
    size_t bytes = 2 * cache->window_page_bytes, done = cache->n_window_sets;
    static const char what[] = "the KV cache's recent window";
    uint8_t **window_sets = budget_array(cache->budget, n, sizeof *window_sets, what, error);
    if (!window_sets) return TERSE_E_MEMORY;
    if (done) memcpy(window_sets, cache->window_sets, done * sizeof *window_sets);
    for (; done < n; done++)
        if (!(window_sets[done] = budget_array(cache->budget, heads(cache), bytes, what, error))) goto refused;
    budget_free(cache->budget, cache->window_sets, cache->n_window_sets * sizeof *window_sets);
    cache->window_sets = window_sets;
    cache->n_window_sets = n;
    return TERSE_OK;
refused:
    for (size_t i = cache->n_window_sets; i < done; i++) budget_free(cache->budget, window_sets[i], heads(cache) * bytes);
    budget_free(cache->budget, window_sets, n * sizeof *window_sets);
    return TERSE_E_MEMORY;
}

/* ---- Life */

enum terse_status pool_new(struct cache *cache, struct terse_error *error) {
    cache->pool = calloc(1, sizeof *cache->pool);
    if (!cache->pool) return status_no_memory(error, sizeof *cache->pool, "the KV cache's pages");
    cache->pool->caches = 1;
    cache->pool->page_set_bytes = cache->page_set_bytes;
    return TERSE_OK;
}

void pool_free(struct cache *cache) {
    for (size_t i = 0; i < cache->n_page_sets; i++) let_go(cache->pool, &cache->page_sets[i]);
    size_t window = heads(cache) * 2 * cache->window_page_bytes;
    for (size_t i = 0; i < cache->n_window_sets; i++) budget_free(cache->budget, cache->window_sets[i], window);
    if (cache->pool && !--cache->pool->caches) free(cache->pool);
    budget_free(cache->budget, cache->page_sets, cache->page_set_capacity * sizeof *cache->page_sets);
    budget_free(cache->budget, cache->window_sets, cache->n_window_sets * sizeof *cache->window_sets);
    budget_free(cache->budget, cache->places, heads(cache) * sizeof *cache->places);
}
