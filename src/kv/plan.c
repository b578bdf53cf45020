/* Computes which tokens a step seals, keeps and evicts. */
#include "kv/plan.h"

size_t extent_window_pages(const struct extent *extent) {
    return (size_t)((extent->length - extent->window_first + PAGE_TOKENS - 1) / PAGE_TOKENS);
}

static size_t count_anchors(const struct method *method, const struct plan *plan) {
    return method->policy->anchors ? method->policy->anchors(&method->parameters, plan->n, plan->sealed) : 0;
}

static bool nothing_is_sealed(const struct method *method, const struct extent *extent) {
    return extent->window_first <= method->parameters.exact;
}

/* Returns the length at which there are enough tokens to fit to, or 0 where nothing will be fitted: tokens that were sealed by a
 * learned profile stay with it. `prompt` is the length at the end of a prompt that is read; 0: none is. */
static uint64_t fit_length(const struct method *method, const struct extent *before, uint64_t prompt) {
    const uint64_t exact = method->parameters.exact;
    const bool open = nothing_is_sealed(method, before);
    if (!method_fits_transforms(method) || !(method->of_weights || open)) return 0;
    return exact + plan_fit_tokens(open && prompt > exact ? prompt - exact : 0);
}

size_t plan_part(const struct method *method, const struct extent *before, size_t n) {
    const uint64_t wanted = fit_length(method, before, before->length + n);
    return before->length < wanted && n > wanted - before->length ? (size_t)(wanted - before->length) : n;
}

size_t plan_shortest_part(const struct method *method, const struct extent *before, size_t n) {
    const uint64_t least = nothing_is_sealed(method, before) ? fit_length(method, before, 0) : 0;
    if (!least) return n;
    const size_t shortest = before->length < least ? (size_t)(least - before->length) : PAGE_TOKENS;
    return n < shortest ? n : shortest;
}

struct plan plan_prompt(const struct method *method, size_t n) {
    size_t part = plan_part(method, &(struct extent){0}, n);
    struct plan plan = plan_step(method, &(struct extent){0}, CACHE_STEP_PREFILL, part);
    return part == n ? plan : plan_step(method, &plan.after, CACHE_STEP_PREFILL, n - part);
}

struct plan plan_step(const struct method *method, const struct extent *before, enum cache_step_kind kind, size_t n) {
    const uint64_t wanted = fit_length(method, before, kind == CACHE_STEP_PREFILL ? before->length + n : 0);
    const struct policy *policy = method->policy;
    struct plan plan = {.kind = kind,
                        .n = n,
                        .before = *before,
                        .ranked = policy->rank_by_attention,
                        .ranking = policy->rank_by_attention && n > RANKING_QUERIES ? n - RANKING_QUERIES : 0,
                        .replaces = policy->pick_victim != NULL,
                        .by_index = policy->positions_by_index};
    if (kind != CACHE_STEP_PAPER && wanted) {
        plan.waits = before->length < wanted && (method->of_weights || n >= wanted - before->length);
        plan.fits = before->length >= wanted;
    }
    uint64_t length = before->length + n;
    struct policy_decision kept = policy->retain(&method->parameters, length);
    plan.grid = before->window_first > kept.exact ? before->window_first : kept.exact;
    uint64_t unsealed = length - plan.grid;
    plan.after = (struct extent){kept.exact, kept.first, length, length, before->dropped};
    if (kind == CACHE_STEP_PAPER) {
        plan.seal = (size_t)((unsealed + PAGE_TOKENS - 1) / PAGE_TOKENS);
        plan.sealed = (size_t)unsealed;
        plan.anchors = count_anchors(method, &plan);
        return plan;
    }
    uint64_t tail = method->tail_tokens;
    bool seals = unsealed >= tail + PAGE_TOKENS && !plan.waits;
    uint64_t full = seals ? (unsealed - tail) / PAGE_TOKENS : 0;
    uint64_t evicted = kept.first > plan.grid ? (kept.first - plan.grid) / PAGE_TOKENS : 0;
    plan.skip = (size_t)(evicted < full ? evicted : full);
    plan.seal = (size_t)full - plan.skip;
    plan.shift = (size_t)(full > evicted ? full : evicted);
    plan.after.window_first = plan.grid + plan.shift * PAGE_TOKENS;
    plan.sealed = plan.seal * PAGE_TOKENS;
    plan.anchors = kind == CACHE_STEP_PREFILL ? count_anchors(method, &plan) : 0;
    if (!plan.anchors || !policy->keep_selected_only) return plan;
    plan.seal = 0;
    plan.after.dropped += plan.sealed - plan.anchors;
    return plan;
}
