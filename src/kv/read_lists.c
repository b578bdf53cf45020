/* Makes read lists: the shared one from a plan, of which it writes only the changes, and memory for those of KV heads. */
#include "kv/read_lists.h"

#include "base/memory.h"
#include "base/size.h"

#include <string.h>

void read_lists_free(struct read_lists *lists) {
    memory_free(lists->pages);
    memory_free(lists->own);
    *lists = (struct read_lists){0};
}

/* ---- The shared list */

static enum terse_status reserve(struct read_lists *lists, size_t n, struct terse_error *error) {
    if (n <= lists->capacity) return TERSE_OK;
    size_t capacity = size_max(n, lists->capacity + lists->capacity / 4);
    struct read_page *pages = memory_array(capacity, sizeof *pages);
    if (!pages) return status_no_memory(error, capacity * sizeof *pages, "a step's pages");
    if (lists->good) memcpy(pages, lists->pages, lists->good * sizeof *pages);
    memory_free(lists->pages);
    lists->pages = pages;
    lists->capacity = capacity;
    return TERSE_OK;
}

static struct read_page page_of(const struct block_table *table, size_t i, uint64_t from) {
    const struct page_set *set = &table->sets[i];
    const uint64_t live = page_set_is_here(set) ? read_slots_of(set->first, set->count, from, UINT64_MAX) : 0;
    return (struct read_page){.live = live, .page = (uint32_t)i};
}

/* Returns the first token that any of the new tokens sees. The oldest of them sees furthest back: what it does not see is too old
 * for all. */
static uint64_t first_seen(const struct plan *plan, const struct method *method) {
    return plan_first_seen(plan, method->parameters.window, 0);
}

enum terse_status read_lists_begin(struct read_lists *lists, const struct block_table *table, const struct plan *plan,
                                   const struct method *method, size_t anchors, struct terse_error *error) {
    const size_t sealed = table->n_sealed, n = sealed + plan->seal;
    const uint64_t seen = first_seen(plan, method), from = seen > plan->before.first ? seen : plan->before.first,
                   older = from > lists->from ? from : lists->from;
    size_t masked = 0, good = size_min(lists->good, sealed);
    enum terse_status status = reserve(lists, n, error);
    if (status) return status;
    for (; from != lists->from && masked < good && table->sets[masked].first < older; masked++)
        lists->pages[masked] = page_of(table, masked, from);
    for (size_t i = good; i < n; i++) lists->pages[i] = page_of(table, i, from);
    lists->stale_low = size_max(lists->stale_low, masked);
    lists->stale_high = size_min(lists->stale_high, good);
    lists->good = sealed; /* the others are not sealed yet: the step may be given up */
    lists->from = from;
    lists->n_kept = method->policy->keep_selected_only ? (uint32_t)anchors : 0;
    lists->by_head = false;
    read_lists_set_sealed(lists, table, plan, method, false);
    return TERSE_OK;
}

void read_lists_set_sealed(struct read_lists *lists, const struct block_table *table, const struct plan *plan,
                           const struct method *method, bool sealed) {
    const struct extent *extent = sealed ? &plan->after : &plan->before;
    const uint64_t first = sealed ? plan->after.window_first : plan->grid, seen = first_seen(plan, method);
    lists->shared = (struct read_list){.pages = lists->pages,
                                       .n_pages = (uint32_t)(table->n_sealed + (sealed ? plan->seal : 0)),
                                       .rows_begin = (uint32_t)(seen < extent->exact ? seen : extent->exact),
                                       .rows_end = (uint32_t)extent->exact,
                                       .n_kept = lists->n_kept,
                                       .moved = plan->by_index ? plan_evicted(plan) : 0,
                                       .window_first = first > lists->from ? first : lists->from};
}

void read_lists_changed(struct read_lists *lists, size_t first) { lists->good = size_min(lists->good, first); }

void read_lists_copied(struct read_lists *lists) {
    lists->stale_low = 0;
    lists->stale_high = lists->good;
}

void read_lists_forget_copy(struct read_lists *lists) { lists->stale_high = 0; }

/* ---- Lists of KV heads */

/* Returns the bytes of a KV head's list, of its pages, and of the tokens whose rows are exact. */
static size_t own_bytes(const struct read_lists *lists, size_t pages) {
    return sizeof *lists->own + pages * (sizeof *lists->own_pages + sizeof *lists->own_exact);
}

enum terse_status read_lists_reserve_own(struct read_lists *lists, size_t heads, struct terse_error *error) {
    const size_t pages = lists->capacity;
    if (heads > lists->own_heads || pages > lists->own_capacity) {
        memory_free(lists->own);
        lists->own_heads = lists->own_capacity = 0;
        lists->own = memory_array(heads, own_bytes(lists, pages));
        if (!lists->own) return status_no_memory(error, heads * own_bytes(lists, pages), "what KV heads read");
        lists->own_pages = (struct read_page *)(void *)(lists->own + heads);
        lists->own_exact = (struct read_exact *)(void *)(lists->own_pages + heads * pages);
        lists->own_heads = heads;
        lists->own_capacity = pages;
    }
    for (uint32_t head = 0; head < heads; head++) read_lists_own(lists, head);
    lists->by_head = true;
    return TERSE_OK;
}

size_t read_lists_bytes(const struct read_lists *lists) {
    return lists->capacity * sizeof *lists->pages + lists->own_heads * own_bytes(lists, lists->own_capacity);
}

struct read_list *read_lists_own(const struct read_lists *lists, uint32_t head) {
    lists->own[head] = lists->shared;
    return &lists->own[head];
}

/* ---- Exact rows in place of codes */

void read_exact_set(const struct read_list *list, const struct block_table *table, const uint32_t *const anchors[2], size_t n,
                    struct read_exact *exact) {
    for (int side = 0; side < 2; side++) {
        const uint32_t *tokens = anchors[side];
        uint64_t last = 0;
        for (size_t i = 0, at = 0; i < list->n_pages; i++) {
            const struct page_set *set = &table->sets[list->pages[i].page];
            uint64_t slots = 0;
            if (set->first < last) at = 0; /* pages read whole follow those of which tokens were chosen */
            while (at < n && tokens[at] < set->first) at++;
            exact[i].row[side] = (uint32_t)at;
            for (; at < n && tokens[at] < set->first + set->count; at++) slots |= (uint64_t)1 << (tokens[at] - set->first);
            exact[i].slots[side] = slots;
            last = set->first;
        }
    }
}
