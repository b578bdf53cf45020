/* Grows tables of page sets, shares them, and gives them back. */
#include "kv/block_table.h"

#include "base/memory.h"
#include "base/size.h"
#include "format/transform.h"
#include "kv/deal.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define GROWTH 64      /* generation allocates in advance at most this part of the page sets that there are ... */
#define GROWTH_MOST 16 /* ... and never more than these */

const struct page_memory page_memory_host = {budget_array, budget_free};

/* ---- Sizes */

struct page_address page_address_of(const struct cache_shape *shape, const struct method *method, uint32_t layer, uint32_t head) {
    static const enum codec_side sides[] = {CODEC_KEYS, CODEC_VALUES};
    struct page_address place = {0};
    for (size_t i = 0; i < cache_sides_of(shape); i++) {
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
    const size_t sets = cache_heads_of(shape) * method_slices(method);
    const uint32_t width = method_slice_width(method, shape->head_dim);
    bool keys = unshared(method, CODEC_KEYS), values = unshared(method, CODEC_VALUES);
    double key = method->key.rate, value = method->value.rate;
    if (keys && values && !(key < value) && !(key > value)) return transform_shared_page_bytes(2 * sets, width, key);
    return (keys ? transform_shared_page_bytes(sets, width, key) : 0) +
           (values ? transform_shared_page_bytes(sets, width, value) : 0);
}

/* Returns the bytes of a page set by the method's layouts, without the sides of which the sum alone is known. */
size_t index_page_bytes_of(const struct method *method, uint32_t head_dim) {
    return method->index && method->key.codec->index != method->index ? index_bytes(method->index, head_dim) : 0;
}

size_t learned_side_bytes(const struct method *method, enum codec_side side, uint32_t head_dim) {
    const struct codec *codec = side == CODEC_KEYS ? method->key.codec : method->value.codec;
    if (!codec->fitted) return 0;
    return memory_round_up(codec_fitted_bytes(codec, method_shape(method, side, 0, 0, head_dim, 1), side), MEMORY_ALIGN);
}

size_t learned_head_bytes(const struct method *method, uint32_t head_dim) {
    const bool own = index_page_bytes_of(method, head_dim) > 0;
    return learned_side_bytes(method, CODEC_KEYS, head_dim) + learned_side_bytes(method, CODEC_VALUES, head_dim) +
           memory_round_up(own ? index_learned_bytes(method->index, head_dim) : 0, MEMORY_ALIGN);
}

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

static size_t chunk_bytes(const struct page_pool *pool, const struct page_chunk *chunk) {
    return chunk->sets * pool->page_set_bytes[chunk->rate];
}

/* Frees what the chunk takes of `budget` (or NULL), but for the holders, and the chunk. */
static void release_memory(const struct page_pool *pool, struct kv_budget *budget, struct page_chunk *chunk) {
    if (chunk->file && chunk->memory) {
        budget_give(budget, chunk_bytes(pool, chunk));
        state_file_close(chunk->file);
    } else if (chunk->memory) {
        pool->memory->give(budget, chunk->memory, chunk_bytes(pool, chunk));
    }
    free(chunk);
}

static void release(struct page_pool *pool, struct page_chunk *chunk) {
    budget_free(pool->budget, chunk->holders, chunk->sets * sizeof *chunk->holders);
    release_memory(pool, pool->budget, chunk);
}

/* Gives the chunk memory for its pages, or that of pages in its file. */
static bool take_memory(struct page_pool *pool, struct page_chunk *chunk, const uint8_t *memory, struct terse_error *error) {
    static const char what[] = "the KV cache";
    if (!chunk->file) {
        chunk->memory = pool->memory->take(pool->budget, chunk->sets, pool->page_set_bytes[chunk->rate], what, error);
        return chunk->memory != NULL;
    }
    if (budget_take(pool->budget, chunk_bytes(pool, chunk), what, error)) return false;
    state_file_share(chunk->file);
    chunk->memory = (uint8_t *)memory; /* they are not written: is_writable */
    return true;
}

/* Makes a chunk as `wanted` says: its sets, stride, first and rate, and the file that holds the pages already, at `memory`. */
static enum terse_status chunk_new(struct page_pool *pool, const struct page_chunk *wanted, const uint8_t *memory,
                                   struct page_chunk **result, struct terse_error *error) {
    const size_t sets = wanted->sets;
    struct page_chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk) return status_no_memory(error, (uint64_t)sets * pool->page_set_bytes[wanted->rate], "the KV cache");
    *chunk = *wanted;
    if (take_memory(pool, chunk, memory, error))
        chunk->holders = budget_array(pool->budget, sets, sizeof *chunk->holders, "the KV cache", error);
    if (!chunk->holders) {
        release(pool, chunk);
        return TERSE_E_MEMORY;
    }
    memset(chunk->holders, 0, sets * sizeof *chunk->holders);
    *result = chunk;
    return TERSE_OK;
}

/* Makes a chunk of n page sets in memory of its own. */
static enum terse_status chunk_of(struct page_pool *pool, size_t n, uint32_t rate, struct page_chunk **result,
                                  struct terse_error *error) {
    if (n > UINT32_MAX) return status_no_memory(error, (uint64_t)n * pool->page_set_bytes[rate], "the KV cache");
    return chunk_new(pool, &(struct page_chunk){.stride = (uint32_t)n, .sets = (uint32_t)n, .rate = rate}, NULL, result, error);
}

static struct page_chunk **link_of(struct page_pool *pool, const struct page_chunk *chunk) {
    struct page_chunk **link = &pool->chunks;
    while (*link != chunk) link = &(*link)->next;
    return link;
}

static void chunk_free(struct page_pool *pool, struct page_chunk *chunk) {
    *link_of(pool, chunk) = chunk->next;
    release(pool, chunk);
}

struct page_set block_chunk_set(struct page_chunk *chunk, uint32_t i) {
    return (struct page_set){.chunk = chunk->memory,
                             .owner = chunk,
                             .chunk_sets = chunk->stride,
                             .index = chunk->first + i,
                             .rate = (uint8_t)chunk->rate};
}

static uint32_t *holders_of(const struct page_set *set) { return &set->owner->holders[set->index - set->owner->first]; }

static struct page_set hold(struct page_chunk *chunk, uint32_t i) {
    chunk->held += !chunk->holders[i]++;
    return block_chunk_set(chunk, i);
}

static void let_go(struct page_pool *pool, const struct page_set *set) {
    struct page_chunk *chunk = set->owner;
    if (!page_set_is_here(set)) return;
    chunk->held -= !--*holders_of(set);
    if (!chunk->held) chunk_free(pool, chunk);
}

static bool is_shared(const struct page_set *set) { return page_set_is_here(set) && *holders_of(set) > 1; }

static bool is_writable(const struct page_set *set) { return page_set_is_here(set) && !is_shared(set) && !set->owner->file; }

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

/* Makes one chunk of all the page sets that are missing. */
static enum terse_status reserve_together(struct block_table *table, size_t n, struct terse_error *error) {
    struct page_pool *pool = table->pool;
    size_t wanted = n - table->n, found = size_min(wanted, count_unheld(pool)), more = wanted - found;
    size_t ahead = size_min(table->n / GROWTH, GROWTH_MOST);
    struct page_chunk *made = NULL;
    enum terse_status status = TERSE_OK;
    if (more && more < ahead && !chunk_of(pool, ahead, 0, &made, NULL)) more = ahead;
    if (more && !made) status = chunk_of(pool, more, 0, &made, error);
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

/* Makes chunks of n page sets in all; there is room for them in the table. */
static enum terse_status add_sets(struct block_table *table, size_t n, uint32_t rate, struct terse_error *error) {
    for (size_t left = n, some; left; left -= some) {
        struct page_chunk *made;
        some = size_min(left, LOWERED_SETS);
        enum terse_status status = chunk_of(table->pool, some, rate, &made, error);
        if (status) return status;
        add_chunk(table->pool, made);
        hold_unheld(table, made, some);
    }
    return TERSE_OK;
}

/* Returns the bytes that a table takes more of the budget with `more` new page sets. */
static uint64_t bytes_of_more(const struct block_table *table, size_t unheld, size_t more) {
    const size_t *each = table->pool->page_set_bytes, lower = size_min(table->lower, more), all = table->n + unheld + more;
    return more * sizeof(uint32_t) + (all > table->capacity ? all * sizeof *table->sets : 0) +
           (more - lower) * (uint64_t)each[table->rate] + (lower ? lower * (uint64_t)each[table->rate + 1] : 0);
}

/* Makes small chunks at the table's rates, if there is room a whole one where less is missing. All of them are asked of the budget
 * before the first is made, so that it knows what the step needs. */
static enum terse_status reserve_in_parts(struct block_table *table, size_t n, struct terse_error *error) {
    struct page_pool *pool = table->pool;
    const struct kv_budget *budget = pool->budget;
    const size_t before = table->n, unheld = size_min(count_unheld(pool), n - before), missing = n - before - unheld;
    const bool whole =
        missing && (!budget || bytes_of_more(table, unheld, size_max(missing, LOWERED_SETS)) <= budget->most - budget->used);
    const size_t more = whole ? size_max(missing, LOWERED_SETS) : missing, lower = size_min(table->lower, more);
    enum terse_status status = budget_check(pool->budget, bytes_of_more(table, unheld, more), "the KV cache", error);
    if (!status) status = reserve_table(table, before + unheld + more, error);
    for (struct page_chunk *chunk = pool->chunks; chunk && !status; chunk = chunk->next)
        hold_unheld(table, chunk, size_min(before + unheld - table->n, chunk->sets));
    if (!status) status = add_sets(table, lower, table->rate + 1, error);
    if (!status) status = add_sets(table, more - lower, table->rate, error);
    if (status) block_table_trim(table, before);
    return status;
}

enum terse_status block_table_reserve(struct block_table *table, size_t n, struct terse_error *error) {
    if (n <= table->n) return TERSE_OK;
    return table->pool->rates > 1 ? reserve_in_parts(table, n, error) : reserve_together(table, n, error);
}

/* Drops the free page sets that are other ranks', and keeps the order of the rest. */
static void drop_free_elsewhere(struct block_table *table) {
    size_t kept = table->n_sealed;
    for (size_t i = table->n_sealed; i < table->n; i++)
        if (page_set_is_here(&table->sets[i])) table->sets[kept++] = table->sets[i];
    table->n = kept;
}

enum terse_status block_table_deal(struct block_table *table, const struct cache_shape *shape, uint64_t first, size_t n,
                                   struct terse_error *error) {
    const size_t here = deal_pages(shape, first, n), others = n - here;
    drop_free_elsewhere(table);
    enum terse_status status = block_table_reserve(table, table->n_sealed + here, error);
    if (!status) status = reserve_table(table, table->n + others, error);
    if (status) return status;
    struct page_set *sets = table->sets + table->n_sealed;
    const size_t unused = table->n - table->n_sealed - here;
    memmove(sets + n, sets + here, unused * sizeof *sets);
    for (size_t i = n, left = here; i-- > 0;)
        sets[i] = deal_holds(shape, first + i * PAGE_TOKENS) ? sets[--left] : (struct page_set){0};
    table->n += others;
    return TERSE_OK;
}

size_t block_table_here(const struct block_table *table) {
    size_t here = 0;
    for (size_t i = 0; i < table->n; i++) here += page_set_is_here(&table->sets[i]);
    return here;
}

void block_table_trim(struct block_table *table, size_t n) {
    while (table->n > n) let_go(table->pool, &table->sets[--table->n]);
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

bool block_table_ends_at(const struct block_table *table, uint64_t n) {
    for (size_t i = 0; i < table->n_sealed; i++)
        if (table->sets[i].first + table->sets[i].count == n) return true;
    return false;
}

static void reverse(struct page_set *sets, size_t n) {
    for (size_t i = 0; i < n / 2; i++) {
        struct page_set set = sets[i];
        sets[i] = sets[n - 1 - i];
        sets[n - 1 - i] = set;
    }
}

/* Returns whether a page set stays with the table when its tokens are gone: where pages may be lowered, memory is given back. */
static bool stays(const struct block_table *table, const struct page_set *set) {
    return is_writable(set) && table->pool->rates == 1;
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
        if (stays(table, &table->sets[i]))
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
        if (page_set_is_here(&from->sets[i])) hold(from->sets[i].owner, from->sets[i].index - from->sets[i].owner->first);
    }
    table->n = table->n_sealed = from->n_sealed;
    table->rate = from->rate;
    return TERSE_OK;
}

/* Makes chunks of a file's page sets of one rate, `sets` of rates[n], and puts these into their places in the table. */
static enum terse_status map_rate(struct block_table *table, struct state_file *file, const uint8_t *memory, const uint8_t *rates,
                                  const bool *elsewhere, size_t n, size_t sets, uint32_t rate, struct terse_error *error) {
    struct page_pool *pool = table->pool;
    const size_t most = elsewhere ? 1 : pool->rates > 1 ? LOWERED_SETS : sets;
    struct page_chunk *chunk = NULL;
    for (size_t i = 0, done = 0; i < n; i++) {
        if (rates[i] != rate) continue;
        if (elsewhere && elsewhere[i]) {
            done++;
            continue;
        }
        if (done % most == 0) {
            const struct page_chunk wanted = {.stride = (uint32_t)sets,
                                              .first = (uint32_t)done,
                                              .sets = (uint32_t)size_min(most, sets - done),
                                              .rate = rate,
                                              .file = file};
            enum terse_status status = chunk_new(pool, &wanted, memory, &chunk, error);
            if (status) return status;
            add_chunk(pool, chunk);
        }
        table->sets[i] = hold(chunk, (uint32_t)(done++ % most));
    }
    return TERSE_OK;
}

enum terse_status block_table_map(struct block_table *table, struct state_file *file, const uint8_t *memory, const uint8_t *rates,
                                  const bool *elsewhere, size_t n, struct terse_error *error) {
    size_t sets[METHOD_RATES] = {0};
    enum terse_status status = n ? reserve_table(table, n, error) : TERSE_OK;
    for (size_t i = 0; i < n && !status; i++) {
        table->sets[i] = (struct page_set){0};
        sets[rates[i]]++;
    }
    for (uint32_t rate = 0; rate < table->pool->rates && !status; rate++) {
        if (sets[rate]) status = map_rate(table, file, memory, rates, elsewhere, n, sets[rate], rate, error);
        memory += sets[rate] * table->pool->page_set_bytes[rate];
    }
    for (size_t i = 0; i < n && status; i++)
        if (table->sets && table->sets[i].owner) let_go(table->pool, &table->sets[i]);
    if (!status) table->n = table->n_sealed = n;
    return status;
}

uint64_t block_table_bytes(const struct block_table *table) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < table->n; i++)
        if (page_set_is_here(&table->sets[i])) bytes += table->pool->page_set_bytes[table->sets[i].rate];
    return bytes;
}

uint64_t block_table_shared_bytes(const struct block_table *table) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < table->n_sealed; i++)
        if (is_shared(&table->sets[i])) bytes += table->pool->page_set_bytes[table->sets[i].rate];
    return bytes;
}

/* ---- Lowering */

struct page_chunk *block_chunk_lower(const struct page_pool *pool, const struct page_chunk *chunk) {
    struct page_chunk *lower = calloc(1, sizeof *lower);
    if (!lower) return NULL;
    *lower = (struct page_chunk){
        .stride = chunk->sets, .sets = chunk->sets, .held = chunk->held, .rate = chunk->rate + 1, .holders = chunk->holders};
    lower->memory = pool->memory->take(NULL, lower->sets, pool->page_set_bytes[lower->rate], "the KV cache", NULL);
    if (lower->memory) return lower;
    free(lower);
    return NULL;
}

void block_chunk_drop(const struct page_pool *pool, struct page_chunk *chunk) { release_memory(pool, NULL, chunk); }

size_t block_table_replace(struct block_table *table, const struct page_chunk *from, struct page_chunk *to) {
    size_t first = table->n;
    for (size_t i = table->n; i-- > 0;) {
        struct page_set *set = &table->sets[i];
        if (set->owner != from) continue;
        const struct page_set own = block_chunk_set(to, set->index - from->first);
        set->chunk = own.chunk;
        set->owner = own.owner;
        set->chunk_sets = own.chunk_sets;
        set->index = own.index;
        set->rate = own.rate;
        first = i;
    }
    return first;
}

void block_chunk_replace(struct page_pool *pool, struct page_chunk *from, struct page_chunk *to) {
    struct page_chunk **link = link_of(pool, from);
    to->next = from->next;
    *link = to;
    release_memory(pool, pool->budget, from);
    (void)budget_take(pool->budget, chunk_bytes(pool, to), "the KV cache", NULL); /* less than was given back */
}

void block_pool_hold(struct page_pool *pool) {
    int users = atomic_load(&pool->users);
    while (users < 0 || !atomic_compare_exchange_weak(&pool->users, &users, users + 1)) {
        if (users < 0) sched_yield();
        users = atomic_load(&pool->users);
    }
}

void block_pool_release(struct page_pool *pool) { atomic_fetch_sub(&pool->users, 1); }

bool block_pool_begin_lowering(struct page_pool *pool) {
    int none = 0;
    return atomic_compare_exchange_strong(&pool->users, &none, -1);
}

bool block_pool_is_held(const struct page_pool *pool) { return atomic_load(&((struct page_pool *)pool)->users) > 0; }

void block_pool_end_lowering(struct page_pool *pool) { atomic_store(&pool->users, 0); }

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

enum terse_status block_table_new(struct block_table *table, const struct page_memory *memory, const size_t *page_set_bytes,
                                  size_t rates, struct terse_error *error) {
    *table = (struct block_table){.pool = calloc(1, sizeof *table->pool)};
    if (!table->pool) return status_no_memory(error, sizeof *table->pool, "the KV cache's pages");
    table->pool->memory = memory;
    table->pool->rates = rates;
    table->pool->caches = 1;
    memcpy(table->pool->page_set_bytes, page_set_bytes, rates * sizeof *page_set_bytes);
    return TERSE_OK;
}

void block_table_free(struct block_table *table) {
    if (!table->pool) return;
    for (size_t i = 0; i < table->n; i++) let_go(table->pool, &table->sets[i]);
    budget_free(table->pool->budget, table->sets, table->capacity * sizeof *table->sets);
    if (!--table->pool->caches) free(table->pool);
    *table = (struct block_table){0};
}
