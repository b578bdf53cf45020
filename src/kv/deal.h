/* Says which rank holds and reads what, where the pages of a sequence are dealt to several (dist/collective.h).
 *
 * Tokens are dealt round robin, DEAL_TOKENS at a time, by where the page or row begins in which they lie: token t is that of rank
 * t / DEAL_TOKENS modulo the ranks. So the first exact tokens are rank 0's. It holds for pages; exact rows, anchors and the recent
 * window, a bounded number of tokens, are stored by all ranks, which compute the same keys and values, but read by the one alone.
 * Every rank has the whole block table, in which pages of the others have no memory, and plans the same steps. Layers that slide
 * hold a bounded number of tokens: each rank has all of theirs.
 *
 * Until the first page is sealed there is nothing that a rank lacks: then each reads everything, and they exchange nothing. */
#ifndef TERSE_KV_DEAL_H
#define TERSE_KV_DEAL_H

#include "dist/collective.h"
#include "format/codec.h"
#include "kv/shape.h"

/* A rope run: the queries of a step are prepared for each of them that a rank reads of. */
#define DEAL_TOKENS ROPE_RUN_TOKENS

/* Returns the rank that holds the page that begins with token `first`, of a shape whose pages are dealt. */
static inline uint32_t deal_owner(const struct cache_shape *shape, uint64_t first) {
    return (uint32_t)(first / DEAL_TOKENS % shape->ranks->ranks);
}

/* Returns whether this rank holds the page that begins with token `first`. */
static inline bool deal_holds(const struct cache_shape *shape, uint64_t first) {
    return !shape->ranks || deal_owner(shape, first) == shape->ranks->rank;
}

/* Returns how many of n pages that follow one another, the first of which begins with token `first`, a rank holds before another does, *owner. */
static inline size_t deal_run(const struct cache_shape *shape, uint64_t first, size_t n, uint32_t *owner) {
    size_t run = 1;
    *owner = deal_owner(shape, first);
    while (run < n && deal_owner(shape, first + run * PAGE_TOKENS) == *owner) run++;
    return run;
}

/* Returns how many of n pages, the first of which begins with token `first`, this rank holds. */
static inline size_t deal_pages(const struct cache_shape *shape, uint64_t first, size_t n) {
    size_t held = shape->ranks ? 0 : n;
    for (size_t i = 0; shape->ranks && i < n; i++) held += deal_holds(shape, first + i * PAGE_TOKENS);
    return held;
}

#endif
