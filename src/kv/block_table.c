/* Grows tables of page sets, shares them, and gives them back. */
#include "kv/block_table.h"

#include "base/memory.h"
#include "base/size.h"
#include "format/transform.h"

#include <stdlib.h>
#include <string.h>

#define GROWTH 64      /* generation allocates in advance at most this part of the page sets that there are ... */
#define GROWTH_MOST 16 /* ... and never more than these */

const struct page_memory page_memory_host = {budget_array, budget_free};

/* ---- Sizes */

struct page_address page_address_of(const struct cache_shape *shape, const struct method *method, uint32_t layer, uint32_t head) {
    static const enum codec_side sides[] = {CODEC_KEYS, CODEC_VALUES};
    struct page_address place = {0};
    for (size_t i = 0; i < 2; i++) {
        const struct codec *codec = sides[i] == CODEC_KEYS ? method->key.codec : method->value.codec;
        struct codec_shape seen = method_shape(method, sides[i], cache_shape_number(shape, layer), head, shape->head_dim, 1);
        place.bytes[sides[i]] = codec_page_bytes(codec, seen, sides[i]);
    }
    return place;
}

/* Returns whether bits of this side are shared over the model and it is not known yet which layers and heads get them. */
static bool unshared(const struct method *method, enum codec_side side) {
    return (side == CODEC_KEYS ? method->key.rate : method->value.rate) > 0 && !method->layouts;
}

/* Returns the bytes of the pages of such sides, of which only the sum is known. */
static uint64_t unshared_bytes(const struct cache_shape *shape, const struct method *method) {
    size_t sets = (size_t)shape->layers * shape->kv_heads;
    bool keys = unshared(method, CODEC_KEYS), values = unshared(method, CODEC_VALUES);
    double key = method->key.rate, value = method->value.rate;
    if (keys && values && !(key < value) && !(key > value)) return transform_shared_page_bytes(2 * sets, shape->head_dim, key);
    return (keys ? transform_shared_page_bytes(sets, shape->head_dim, key) : 0) +
           (values ? transform_shared_page_bytes(sets, shape->head_dim, value) : 0);
}

/* Returns the bytes of a page set by the method's layouts, without the sides of which the sum alone is known. */
static uint64_t bytes_by_layouts(const struct cache_shape *shape, const struct method *method, size_t index_page_bytes) {
    uint64_t bytes = unshared_bytes(shape, method);
    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        for (uint32_t head = 0; head < shape->kv_heads; head++) {
            struct page_address place = page_address_of(shape, method, layer, head);
            if (!unshared(method, CODEC_KEYS)) bytes += place.bytes[CODEC_KEYS];
            if (!unshared(method, CODEC_VALUES)) bytes += place.bytes[CODEC_VALUES];
            bytes += index_page_bytes;
        }
    }
    return bytes;
}

uint64_t page_set_bytes_of(const struct cache_shape *shape, const struct method *method, size_t index_page_bytes) {
    const uint64_t now = bytes_by_layouts(shape, method, index_page_bytes);
    if (!method_fits_transforms(method) || !method->layouts) return now;
    struct method fitted = *method; /* has other layouts later, which are not known yet */
    fitted.layouts = NULL;
    const uint64_t later = bytes_by_layouts(shape, &fitted, index_page_bytes);
    return now > later ? now : later;
}

size_t page_addresses_set(const struct cache_shape *shape, const struct method *method, size_t index_page_bytes,
                          struct page_address *places) {
    size_t page_set_bytes = 0;
    for (size_t i = 0; i < (size_t)shape->layers * shape->kv_heads; i++) {
        places[i] = page_address_of(shape, method, (uint32_t)(i / shape->kv_heads), (uint32_t)(i % shape->kv_heads));
        places[i].offset = page_set_bytes;
        page_set_bytes += places[i].bytes[CODEC_KEYS] + places[i].bytes[CODEC_VALUES] + index_page_bytes;
    }
    return page_set_bytes;
}

/* ---- Chunks */

static void release(struct page_pool *pool, struct page_chunk *chunk) {
    size_t bytes = chunk->sets * pool->page_set_bytes;
    if (chunk->file && chunk->memory) {
        budget_give(pool->budget, bytes);
        state_file_close(chunk->file);
    } else if (chunk->memory) {
        pool->memory->give(pool->budget, chunk->memory, bytes);
    }
    budget_free(pool->budget, chunk->holders, chunk->sets * sizeof *chunk->holders);
    free(chunk);
}

/* Returns memory for pages, or that of pages in the file. */
static uint8_t *chunk_memory(struct page_pool *pool, size_t sets, struct state_file *file, const uint8_t *memory,
                             struct terse_error *error) {
    if (!file) return pool->memory->take(pool->budget, sets, pool->page_set_bytes, "the KV cache", error);
    if (budget_take(pool->budget, sets * pool->page_set_bytes, "the KV cache", error)) return NULL;
    state_file_share(file);
    return (uint8_t *)memory; /* they are not written: is_writable */
}

/* Makes a chunk. `file` holds the pages already, at `memory`; or it is NULL. */
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

/* Counts the page sets of the pool that no cache holds and that can be written. */
static size_t count_unheld(const struct page_pool *pool) {
    size_t n = 0;
    for (const struct page_chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
        n += chunk->file ? 0 : chunk->sets - chunk->held;
    return n;
}

/* Appends up to n unheld page sets of the chunk to the table. */
static void hold_unheld(struct block_table *table, struct page_chunk *chunk, size_t n) {
    for (uint32_t i = 0; n && !chunk->file && i < chunk->sets; i++) {
        if (chunk->holders[i]) continue;
        table->sets[table->n++] = hold(chunk, i);
        n--;
    }
}

/* ---- Tables */

/* Reserves room for `n` page sets. */
static enum terse_status reserve_table(struct block_table *table, size_t n, struct terse_error *error) {
    if (n <= table->capacity) return TERSE_OK;
    struct page_set *page_sets = budget_array(table->pool->budget, n, sizeof *page_sets, "the KV cache's pages", error);
    if (!page_sets) return TERSE_E_MEMORY;
    if (table->n) memcpy(page_sets, table->sets, table->n * sizeof *page_sets);
    budget_free(table->pool->budget, table->sets, table->capacity * sizeof *page_sets);
    table->sets = page_sets;
    table->capacity = n;
    return TERSE_OK;
}

enum terse_status block_table_reserve(struct block_table *table, size_t n, struct terse_error *error) {
    struct page_pool *pool = table->pool;
    if (n <= table->n) return TERSE_OK;
    size_t wanted = n - table->n, found = size_min(wanted, count_unheld(pool)), more = wanted - found;
    size_t ahead = size_min(table->n / GROWTH, GROWTH_MOST);
    struct page_chunk *made = NULL;
    enum terse_status status = TERSE_OK;
    if (more && more < ahead && !chunk_new(pool, ahead, NULL, NULL, &made, NULL)) more = ahead;
    if (more && !made) status = chunk_new(pool, more, NULL, NULL, &made, error);
    if (!status) status = reserve_table(table, table->n + found + more, error);
    if (status) {
        if (made) release(pool, made);
        return status;
    }
    if (made) add_chunk(pool, made);
    for (struct page_chunk *chunk = made ? made->next : pool->chunks; chunk; chunk = chunk->next) {
        size_t before = table->n;
        hold_unheld(table, chunk, found);
        found -= table->n - before;
    }
    if (made) hold_unheld(table, made, more);
    return TERSE_OK;
}

void block_table_assign(struct block_table *table, const struct plan *plan, uint64_t prompt_end) {
    for (size_t i = 0; i < plan->seal; i++) {
        struct page_set *set = &table->sets[table->n_sealed + i];
        set->first = plan_first_sealed(plan) + i * PAGE_TOKENS;
        uint64_t left = plan->after.length - set->first;
        set->count = left < PAGE_TOKENS ? (uint32_t)left : PAGE_TOKENS;
        set->generated = plan->kind == CACHE_STEP_DECODE && set->first >= prompt_end;
    }
}

size_t block_table_evicted(const struct block_table *table, uint64_t first) {
    size_t n = 0;
    while (n < table->n_sealed && table->sets[n].first + table->sets[n].count <= first) n++;
    return n;
}

uint64_t block_table_first(const struct block_table *table, const struct extent *extent) {
    uint64_t first = table->n_sealed ? table->sets[0].first : extent->window_first;
    return first > extent->exact ? first : 0;
}

static void reverse(struct page_set *sets, size_t n) {
    for (size_t i = 0; i < n / 2; i++) {
        struct page_set set = sets[i];
        sets[i] = sets[n - 1 - i];
        sets[n - 1 - i] = set;
    }
}

void block_table_drop(struct block_table *table, size_t first, size_t n) {
    if (!n) return;
    struct page_set *sets = table->sets + first;
    size_t others = table->n - first - n;
    if (first + n < table->n_sealed) { /* puts them behind those that stay and those that are free */
        reverse(sets, n);
        reverse(sets + n, others);
        reverse(sets, n + others);
        sets += others;
    }
    size_t at = (size_t)(sets - table->sets), kept = at;
    for (size_t i = at; i < table->n; i++) {
        if (is_writable(&table->sets[i]))
            table->sets[kept++] = table->sets[i];
        else
            let_go(table->pool, &table->sets[i]);
    }
    table->n = kept;
    table->n_sealed -= n;
}

enum terse_status block_table_share(struct block_table *table, const struct block_table *from, struct terse_error *error) {
    enum terse_status status = reserve_table(table, from->n_sealed, error);
    if (status) return status;
    free(table->pool);
    table->pool = from->pool;
    table->pool->caches++;
    for (size_t i = 0; i < from->n_sealed; i++) {
        table->sets[i] = from->sets[i];
        hold(from->sets[i].owner, from->sets[i].index);
    }
    table->n = table->n_sealed = from->n_sealed;
    return TERSE_OK;
}

enum terse_status block_table_map(struct block_table *table, struct state_file *file, const uint8_t *memory, size_t n,
                                  struct terse_error *error) {
    enum terse_status status = n ? reserve_table(table, n, error) : TERSE_OK;
    if (status || !n) return status;
    struct page_chunk *chunk;
    if ((status = chunk_new(table->pool, n, file, memory, &chunk, error))) return status;
    add_chunk(table->pool, chunk);
    for (uint32_t i = 0; i < n; i++) table->sets[i] = hold(chunk, i);
    table->n = table->n_sealed = n;
    return TERSE_OK;
}

size_t block_table_shared(const struct block_table *table) {
    size_t n = 0;
    for (size_t i = 0; i < table->n_sealed; i++) n += is_shared(&table->sets[i]);
    return n;
}

/* ---- Common prefixes */

/* Returns n, or 0 where the tokens after the first n would see some that were evicted. */
static uint64_t held_before(const struct block_table *table, const struct method *method, const struct extent *extent, uint64_t n) {
    bool slides = method->parameters.window > 0;
    return slides && method->policy->retain(&method->parameters, n).first < block_table_first(table, extent) ? 0 : n;
}

uint64_t block_table_common_prefix(const struct block_table *table, const struct method *method, const struct extent *extent,
                                   uint64_t fitted, uint64_t n, uint64_t prompt) {
    uint64_t end = 0, tail = method->tail_tokens, window = extent->window_first;
    if (n >= extent->length) return extent->length;
    const struct plan last = plan_prompt(method, (size_t)prompt);
    if (!method->of_weights && !fitted && table->n_sealed && (last.waits || last.fits))
        return 0; /* it will have transforms of its own */
    bool slides = method->parameters.window > 0, whole = !slides || !block_table_first(table, extent);
    if (!(method->policy->keeps_all || slides) || n < fitted || (fitted && !whole)) return 0;
    if (table->n_sealed && n >= window && window <= last.after.window_first) return held_before(table, method, extent, n);
    if (n < tail) return 0;
    for (size_t i = 0; i < table->n_sealed; i++) {
        const struct page_set *set = &table->sets[i];
        if (set->generated || set->count < PAGE_TOKENS || set->first + set->count > n - tail) break;
        end = set->first + set->count;
    }
    return held_before(table, method, extent, end);
}

/* ---- Life */

enum terse_status block_table_new(struct block_table *table, const struct page_memory *memory, size_t page_set_bytes,
                                  struct terse_error *error) {
    *table = (struct block_table){.pool = calloc(1, sizeof *table->pool)};
    if (!table->pool) return status_no_memory(error, sizeof *table->pool, "the KV cache's pages");
    *table->pool = (struct page_pool){.memory = memory, .page_set_bytes = page_set_bytes, .caches = 1};
    return TERSE_OK;
}

void block_table_free(struct block_table *table) {
    if (!table->pool) return;
    for (size_t i = 0; i < table->n; i++) let_go(table->pool, &table->sets[i]);
    budget_free(table->pool->budget, table->sets, table->capacity * sizeof *table->sets);
    if (!--table->pool->caches) free(table->pool);
    *table = (struct block_table){0};
}
