/* Implements the rule by which pages are lowered. */
#include "kv/lower.h"

#include "base/size.h"
#include "kv/cache.h"

/* ---- What can be lowered */

static uint32_t least_rate(const struct cache_base *base) {
    uint32_t rate = rates_of(base) - 1;
    while (rate && base->rates.bits[rate] < base->budget->least_bits) rate--;
    return rate;
}

/* Returns whether all page sets of the chunk that are held are sealed ones. */
static bool is_sealed(const struct kv_budget *budget, const struct page_pool *pool, const struct page_chunk *chunk) {
    for (const struct cache_base *base = budget->caches; base; base = base->next_of_budget)
        for (size_t i = base->pages.n_sealed; i < base->pages.n && base->pages.pool == pool; i++)
            if (base->pages.sets[i].owner == chunk) return false;
    return true;
}

static bool can_lower(const struct kv_budget *budget, const struct cache_base *base, const struct page_chunk *chunk) {
    return chunk->rate < least_rate(base) && !block_pool_is_held(base->pages.pool) && is_sealed(budget, base->pages.pool, chunk);
}

/* Returns how many page sets the cache's step still needs, which waits for memory. */
static size_t wanted_sets(const struct cache_base *base) {
    const size_t there = base->pages.n - base->pages.n_sealed;
    if (rates_of(base) == 1 || base->in_step) return 0;
    return base->step_sets > there ? base->step_sets - there : 0;
}

/* Returns how many bytes of a pool could be given back. */
static uint64_t could_free_of(const struct kv_budget *budget, const struct cache_base *base) {
    const struct page_pool *pool = base->pages.pool;
    uint64_t bytes = 0;
    for (const struct page_chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
        if (can_lower(budget, base, chunk))
            bytes += chunk->sets * (uint64_t)(pool->page_set_bytes[chunk->rate] - pool->page_set_bytes[least_rate(base)]);
    return bytes;
}

/* Returns whether an earlier cache of the budget has the same pool. */
static bool is_repeated(const struct kv_budget *budget, const struct cache_base *base) {
    const struct cache_base *first = budget->caches;
    while (first->pages.pool != base->pages.pool) first = first->next_of_budget;
    return first != base;
}

uint64_t lower_could_free(const struct kv_budget *budget) {
    uint64_t bytes = 0;
    for (const struct cache_base *base = budget->caches; base; base = base->next_of_budget) {
        const size_t *each = base->rates.page_set_bytes, wanted = wanted_sets(base), lower = size_min(base->pages.lower, wanted);
        const uint32_t rate = base->pages.rate;
        if (rates_of(base) == 1) continue;
        if (!is_repeated(budget, base)) bytes += could_free_of(budget, base);
        bytes += (wanted - lower) * (uint64_t)(each[rate] - each[least_rate(base)]);
        if (lower) bytes += lower * (uint64_t)(each[rate + 1] - each[least_rate(base)]);
    }
    return bytes;
}

/* ---- What is lowered next */

/* A victim is what a cache would lower next: pages of `rate`, of which it holds `sets`; the first of them are the chunk's, NULL: of those
 * that it has yet to seal. */
struct victim {
    struct cache_base *base;
    struct page_chunk *chunk;
    uint32_t rate;
    size_t sets;
};

static struct victim victim_of(const struct kv_budget *budget, struct cache_base *base) {
    struct victim victim = {.base = base, .rate = least_rate(base)};
    const struct page_chunk *seen = NULL;
    bool may = false;
    for (size_t i = 0; i < base->pages.n_sealed; i++) {
        const struct page_set *set = &base->pages.sets[i];
        if (set->rate > victim.rate || set->rate >= least_rate(base)) continue;
        if (set->owner != seen) may = can_lower(budget, base, set->owner);
        seen = set->owner;
        if (!may) continue;
        if (set->rate < victim.rate) victim = (struct victim){base, set->owner, set->rate, 0};
        victim.sets++;
    }
    const size_t wanted = wanted_sets(base), lower = size_min(base->pages.lower, wanted), rate = base->pages.rate;
    if (wanted == lower || rate > victim.rate || rate >= least_rate(base)) return victim;
    if (rate < victim.rate) victim = (struct victim){base, NULL, (uint32_t)rate, 0};
    victim.sets += wanted - lower;
    return victim;
}

static struct victim next_victim(const struct kv_budget *budget) {
    struct victim next = {0};
    for (struct cache_base *base = budget->caches; base; base = base->next_of_budget) {
        const struct victim own = victim_of(budget, base);
        if (!own.sets) continue;
        if (!next.sets || own.rate < next.rate || (own.rate == next.rate && own.sets > next.sets)) next = own;
    }
    return next;
}

/* ---- Lowering */

static enum terse_status encode_again(struct cache_base *base, struct page_chunk *from, struct page_chunk *to) {
    enum terse_status status = TERSE_OK;
    for (uint32_t i = 0; i < from->sets && !status; i++) {
        const struct page_set source = block_chunk_set(from, i), target = block_chunk_set(to, i);
        if (from->holders[i]) status = base->storage->lower((struct cache *)(void *)base, &source, &target);
    }
    return status;
}

/* Lowers a chunk; returns the bytes that this gives back, 0 where it cannot be. */
static uint64_t lower_chunk(struct kv_budget *budget, struct cache_base *base, struct page_chunk *chunk) {
    struct page_pool *pool = base->pages.pool;
    const uint64_t used = budget->used;
    if (!block_pool_begin_lowering(pool)) return 0;
    struct page_chunk *lower = block_chunk_lower(pool, chunk);
    if (!lower || encode_again(base, chunk, lower)) {
        if (lower) block_chunk_drop(pool, lower);
        block_pool_end_lowering(pool);
        return 0;
    }
    for (struct cache_base *other = budget->caches; other; other = other->next_of_budget) {
        if (other->pages.pool != pool) continue;
        const size_t first = block_table_replace(&other->pages, chunk, lower);
        if (first < other->pages.n) other->storage->pages_changed((struct cache *)(void *)other, first);
    }
    block_chunk_replace(pool, chunk, lower);
    block_pool_end_lowering(pool);
    return size_max(used - budget->used, 1); /* rates that are near may take as much */
}

/* Makes new pages those of the highest rate that the cache holds in whole chunks. */
static void follow(const struct kv_budget *budget, struct cache_base *base) {
    const struct page_chunk *seen = NULL;
    uint32_t highest = UINT32_MAX;
    if (wanted_sets(base)) return;
    for (size_t i = 0; i < base->pages.n_sealed; i++) {
        const struct page_set *set = &base->pages.sets[i];
        if (set->owner != seen && set->rate < highest && is_sealed(budget, base->pages.pool, set->owner)) highest = set->rate;
        seen = set->owner;
    }
    if (highest != UINT32_MAX && highest > base->pages.rate) base->pages.rate = highest;
}

/* Lowers some of the pages that the cache's step has yet to seal; returns the bytes that they will take less. */
static uint64_t lower_wanted(struct cache_base *base, uint64_t needed) {
    const size_t *each = base->rates.page_set_bytes, wanted = wanted_sets(base);
    const uint64_t gain = size_max(each[base->pages.rate] - each[base->pages.rate + 1], 1);
    const size_t left = wanted - size_min(base->pages.lower, wanted), enough = (size_t)((needed + gain - 1) / gain),
                 n = size_max(size_min(enough, left / 16), 1);
    base->step_lowered = true;
    base->pages.lower = wanted - left + n;
    if (base->pages.lower == wanted) {
        base->pages.rate++;
        base->pages.lower = 0;
    }
    return n * gain;
}

/* Lowers what is next; returns the bytes that this gives back, 0 where nothing is. */
static uint64_t lower_next(struct kv_budget *budget, uint64_t needed) {
    const struct victim next = next_victim(budget);
    if (!next.sets) return 0;
    if (!next.chunk) return lower_wanted(next.base, needed);
    const uint64_t bytes = lower_chunk(budget, next.base, next.chunk);
    for (struct cache_base *base = budget->caches; base && bytes; base = base->next_of_budget)
        if (rates_of(base) > 1) follow(budget, base);
    return bytes;
}

bool lower_make_room(struct kv_budget *budget, double least_bits) {
    const uint64_t needed = budget->missing;
    uint64_t given = 0;
    budget->missing = 0;
    budget->least_bits = least_bits;
    for (struct cache_base *base = budget->caches; base; base = base->next_of_budget) /* their steps begin anew */
        if (rates_of(base) > 1 && base->step_sets && !base->in_step)
            block_table_trim(&base->pages, base->pages.n_sealed + base->n_ahead);
    const bool enough = needed && lower_could_free(budget) >= needed;
    while (enough && given < needed) {
        const uint64_t more = lower_next(budget, needed - given);
        if (!more) break;
        given += more;
    }
    for (struct cache_base *base = budget->caches; base && !given; base = base->next_of_budget)
        if (!base->in_step) rates_end_step(base); /* no step waits any more */
    budget->least_bits = 0;
    return given > 0;
}
