/* Where every token of a sequence lies, and where a step will move it: arithmetic on token counts alone, the same for all layers
 * and KV heads, so that a whole step is known before it begins and cache_predict needs no cache.
 *
 *     tokens   0 ... exact | ... evicted ... | first ... window_first | window_first ... length
 *              exact rows                      sealed blocks            recent window
 *
 * Where the policy has `leave`, exact rows hold as many tokens, but not the first ones any more (backend/cpu/kv/exact.h).
 *
 * Blocks of 64 are cut from window_first on, so the window always begins where the next block will. `first` may lie inside a sealed
 * block or inside the window: older tokens there are dead. A step sealed whole (CACHE_STEP_PAPER) may end in a short block, which
 * stays short.
 */
#ifndef TERSE_KV_PLAN_H
#define TERSE_KV_PLAN_H

#include "backend/cpu/kv/cache.h"

struct extent {
    uint64_t exact, first, window_first, length;
    uint64_t dropped; /* tokens of prompts of which anchors alone stay; they lie anywhere before the window */
};

struct plan {
    enum cache_step_kind kind;
    size_t n; /* new tokens */
    struct extent before, after;
    uint64_t grid;     /* token at which the step's first block begins */
    size_t skip, seal; /* of the blocks counted from `grid`, [skip, skip + seal) are sealed; those before are dead and dropped */
    size_t ready;      /* the first of these were encoded ahead; cache.c fills it in */
    size_t shift;      /* blocks by which the window moves */
    size_t sealed;     /* tokens that are sealed, or dropped but for anchors: from token grid + 64 skip on */
    size_t anchors;    /* of them stay exact, per layer, KV head and side */
};

struct plan plan_step(const struct method *method, const struct extent *before, enum cache_step_kind kind, size_t n);

/* Blocks that the window needs. */
size_t extent_window_pages(const struct extent *extent);

/* Position, where tokens have positions by index, of the first token after the exact rows; of token t >= first: t - this. */
static inline uint64_t extent_evicted(const struct extent *extent) { return extent->first - extent->exact; }

#endif
