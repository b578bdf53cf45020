/* Computes what a step seals, keeps and evicts. */
#include "kv/plan.h"

size_t extent_window_pages(const struct extent *extent) {
    return (size_t)((extent->length - extent->window_first + PAGE_TOKENS - 1) / PAGE_TOKENS);
}

static size_t count_anchors(const struct method *method, const struct plan *plan) {
    return method->policy->anchors ? method->policy->anchors(&method->parameters, plan->n, plan->sealed) : 0;
}

struct plan plan_step(const struct method *method, const struct extent *before, enum cache_step_kind kind, size_t n) {
    struct plan plan = {.kind = kind, .n = n, .before = *before};
    uint64_t length = before->length + n;
    struct policy_decision kept = method->policy->retain(&method->parameters, length);
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
    uint64_t full = unsealed >= tail + PAGE_TOKENS ? (unsealed - tail) / PAGE_TOKENS : 0;
    uint64_t evicted = kept.first > plan.grid ? (kept.first - plan.grid) / PAGE_TOKENS : 0;
    plan.skip = (size_t)(evicted < full ? evicted : full);
    plan.seal = (size_t)full - plan.skip;
    plan.shift = (size_t)(full > evicted ? full : evicted);
    plan.after.window_first = plan.grid + plan.shift * PAGE_TOKENS;
    plan.sealed = plan.seal * PAGE_TOKENS;
    plan.anchors = kind == CACHE_STEP_PREFILL ? count_anchors(method, &plan) : 0;
    if (!plan.anchors || !method->policy->keep_selected_only) return plan;
    plan.seal = 0;
    plan.after.dropped += plan.sealed - plan.anchors;
    return plan;
}
