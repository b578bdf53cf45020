/* A plan says where every token of a sequence lies, and where a step moves it. It is arithmetic on token counts alone, the same for
 * all layers, KV heads and backends, so that a whole step is known before it begins and the memory of a cache can be predicted
 * without one.
 *
 *     tokens   0 ... exact | ... evicted ... | first ... window_first | window_first ... length
 *              exact rows                      sealed pages             recent window
 *
 * Where a plan `replaces` exact rows, there are as many, but they are no longer those of the first tokens.
 *
 * Pages of 64 tokens are cut from window_first on, so the window always begins where the next page will. `first` may lie inside a
 * sealed page or inside the window: older tokens there are evicted. A step that is sealed before it is read (CACHE_STEP_PAPER) may
 * end in a page of fewer than 64 tokens, which is never filled up. */
#ifndef TERSE_KV_PLAN_H
#define TERSE_KV_PLAN_H

#include "format/page_layout.h"
#include "method/method.h"

/* The kind of a step says how its new tokens read each other, and when they are sealed. */
enum cache_step_kind {
    CACHE_STEP_CHUNK,   /* a part of a prompt: as CACHE_STEP_DECODE, but its tokens count as the prompt's */
    CACHE_STEP_DECODE,  /* exact among themselves; afterwards all but the recent window is sealed */
    CACHE_STEP_PREFILL, /* as CACHE_STEP_DECODE, and the policy chooses which tokens of the prompt stay exact */
    CACHE_STEP_PAPER /* the papers' protocol: sealed first; every query reads decoded keys and values, its own token's included */
};

/* An extent is the state of a sequence between steps. */
struct extent {
    uint64_t exact, first, window_first, length;
    uint64_t dropped; /* tokens that were dropped when a prompt's anchors alone were kept; they lie anywhere before the window */
};

struct plan {
    enum cache_step_kind kind;
    size_t n; /* new tokens */
    struct extent before, after;
    uint64_t grid;     /* token at which the step's first page begins */
    size_t skip, seal; /* of the pages counted from `grid`, the first `skip` are evicted unsealed and the next `seal` are sealed */
    size_t ready;      /* the first of these were encoded ahead of the step; filled in by the backend */
    size_t shift;      /* pages by which the window moves */
    size_t sealed;     /* tokens that are sealed, or dropped but for anchors: from token grid + 64 skip on */
    size_t anchors;    /* of them stay exact, per layer, KV head and side */
    /* Anchors are, the same of keys and values, the tokens to which the step's queries from `ranking` on attend most; else, keys and
     * values apart, those whose errors would move the outputs of all queries most (Anchor Score). */
    bool ranked;
    size_t ranking; /* 0 where not `ranked` */
    bool replaces;  /* tokens that leave the window may take the places of exact rows (method_victim) */
    bool by_index;  /* tokens are read at their positions by index, not at their own */
    /* These are of caches that fit transforms to their sequence (kv/fitted.h). */
    bool waits; /* the step seals nothing, so that there will be enough tokens to fit to */
    bool fits;  /* there are enough; if nothing was sealed before, the step begins with the fit */
};

/* A cache without a learned profile waits for FIT_TOKENS behind the exact ones, however they come, and where a prompt brings
 * FIT_TOKENS_MOST, for these: what is fitted to more tokens errs less.
 * With a profile it waits only in the step that brings them, before anything is sealed: shorter sequences, and all that grow from
 * them, go by the profile. The papers' protocol does not wait: its tokens are sealed before they are read, by the profile as it
 * is. */

/* Returns to how many of the tokens behind the exact ones transforms are fitted, if the window holds so many. */
static inline size_t plan_fit_tokens(uint64_t window) { return window < FIT_TOKENS_MOST ? FIT_TOKENS : FIT_TOKENS_MOST; }

/* Returns how many of a prompt's next n tokens must be a step of their own: those for which the cache waits, or all. So the
 * prompt's others attend to them exactly, and the window holds no more of them. */
size_t plan_part(const struct method *method, const struct extent *before, size_t n);
/* Returns the fewest of them that may be a step where memory is short: those for which the cache waits at least, or, while these wait in
 * half precision to be sealed, a page's. */
size_t plan_shortest_part(const struct method *method, const struct extent *before, size_t n);
/* Returns the plan of the last step of a prompt with which a sequence begins. */
struct plan plan_prompt(const struct method *method, size_t n);

struct plan plan_step(const struct method *method, const struct extent *before, enum cache_step_kind kind, size_t n);

/* Returns how many pages the window needs. */
size_t extent_window_pages(const struct extent *extent);
static inline size_t plan_window_before(const struct plan *plan) { return extent_window_pages(&plan->before); }
static inline size_t plan_window_after(const struct plan *plan) { return extent_window_pages(&plan->after); }

/* Returns the first of the tokens that the step seals. */
static inline uint64_t plan_first_sealed(const struct plan *plan) { return plan->grid + plan->skip * PAGE_TOKENS; }

/* Returns the first token that the step's i-th new token sees, where a layer's queries see `window` tokens, themselves included; 0:
 * all. */
static inline uint64_t plan_first_seen(const struct plan *plan, uint64_t window, size_t i) {
    uint64_t end = plan->before.length + i + 1;
    return window && end > window ? end - window : 0;
}

/* Returns the number of evicted tokens. Where tokens have positions by index, token t >= first is at position t minus this. */
static inline uint64_t extent_evicted(const struct extent *extent) { return extent->first - extent->exact; }
static inline uint64_t plan_evicted(const struct plan *plan) { return extent_evicted(&plan->before); }
/* Return the number of tokens that are kept. */
static inline uint64_t extent_kept(const struct extent *extent) {
    return extent->length - extent_evicted(extent) - extent->dropped;
}
static inline uint64_t plan_kept(const struct plan *plan) { return extent_kept(&plan->before); }

#endif
