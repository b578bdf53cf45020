/* Counts pages that a step may choose from. */
#include "backend/cuda/kv/choice.h"

#include "base/size.h"

/* Where the codec ranks its own keys a step reads only a few rope runs, those with the best tokens: as many as hold RUN_SPREAD times
 * the tokens that are read, and at least LEAST_RUNS, as on the CPU (backend/cpu/kv/select.c has what that is worth). */
#define RUN_SPREAD 4
#define LEAST_RUNS 4

/* Returns how many chosen tokens take as long as a page at least: a page is read whole, but codec sign gathers tokens. */
static size_t tokens_together(const struct method *method) {
    if (method->key.codec->id == CODEC_SIGN) return PAGE_TOKENS / 2;
    return method->index->id == INDEX_QUEST ? QUEST_PAGE_TOKENS : 1;
}

struct choice choice_of(const struct cache *cache) {
    const struct cache_base *base = &cache->base;
    const size_t n = base->pages.n_sealed;
    size_t candidates = 0;
    if (!base->method.index || base->plan.kind == CACHE_STEP_PREFILL || base->plan.kind == CACHE_STEP_PAPER)
        return (struct choice){.made = false};
    for (size_t i = 0; i < n; i++) candidates += !base->pages.sets[i].generated;
    const size_t tokens = method_tokens_read(&base->method, candidates * PAGE_TOKENS);
    if (tokens + anchor_rows_most(&base->method, base->n_anchors) >= candidates * PAGE_TOKENS)
        return (struct choice){.made = false};
    const bool by_runs = base->method.index->id == INDEX_COMPONENTS;
    const size_t runs = by_runs ? size_max((RUN_SPREAD * tokens + ROPE_RUN_TOKENS - 1) / ROPE_RUN_TOKENS, LEAST_RUNS) : 0;
    size_t chosen = size_min(candidates, tokens / tokens_together(&base->method) + 1);
    if (by_runs) chosen = size_min(chosen, runs * (ROPE_RUN_TOKENS / PAGE_TOKENS));
    return (struct choice){.made = true,
                           .tokens_read = (uint32_t)tokens,
                           .runs_read = (uint32_t)runs,
                           .pages_read = (uint32_t)(n - candidates + chosen)};
}
