/* Writing a cache's sections, and reading them: no number that is used as an address or a count is believed. */
#include "backend/cpu/kv/saved.h"

#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/exact.h"
#include "backend/cpu/kv/fit.h"
#include "backend/cpu/kv/page_pool.h"

#include <string.h>

#define MOST_TOKENS (UINT64_C(1) << 48) /* far from overflow of anything that is counted */

/* As they lie in the file, little-endian. */
struct saved_cache {
    uint64_t exact, first, window_first, length, dropped; /* struct extent */
    uint64_t prompt_end;
    uint64_t anchors; /* per layer, KV head and side */
    uint64_t fitted;  /* 1 or 0 */
};

struct saved_page_set {
    uint64_t first;
    uint32_t count, generated;
};

_Static_assert(sizeof(struct saved_cache) == 64 && sizeof(struct saved_page_set) == 16, "as docs/state-format.md has it");

static size_t heads(const struct cache *cache) { return (size_t)cache->shape.layers * cache->shape.kv_heads; }
static size_t window_set_bytes(const struct cache *cache) { return heads(cache) * 2 * cache->window_page_bytes; }

/* ---- Writing */

static void save_page_sets(const struct cache *cache, struct state_writer *writer) {
    for (size_t i = 0; i < cache->pages.n_sealed; i++) {
        const struct page_set *set = &cache->pages.sets[i];
        state_writer_put(writer, &(struct saved_page_set){set->first, set->count, set->generated}, sizeof(struct saved_page_set));
    }
}

/* One chunk of all sealed page sets. */
static void save_pages(const struct cache *cache, struct state_writer *writer) {
    static const enum codec_side sides[] = {CODEC_KEYS, CODEC_VALUES};
    for (uint32_t layer = 0; layer < cache->shape.layers; layer++) {
        for (uint32_t head = 0; head < cache->shape.kv_heads; head++) {
            const size_t *bytes = page_place(cache, layer, head)->bytes;
            for (size_t s = 0; s < 2; s++)
                for (size_t i = 0; i < cache->pages.n_sealed; i++)
                    state_writer_put(writer, page_at(cache, &cache->pages.sets[i], sides[s], layer, head), bytes[sides[s]]);
            for (size_t i = 0; cache->index_page_bytes && i < cache->pages.n_sealed; i++)
                state_writer_put(writer, own_index_page(cache, &cache->pages.sets[i], layer, head), cache->index_page_bytes);
        }
    }
}

void cache_save(const struct cache *cache, struct state_writer *writer) {
    const struct extent *e = &cache->extent;
    const struct saved_cache saved = {e->exact,   e->first,          e->window_first,      e->length,
                                      e->dropped, cache->prompt_end, cache->anchors.count, cache->fitted_ready};
    size_t pages = extent_window_pages(e);
    state_writer_begin(writer, STATE_CACHE);
    state_writer_put(writer, &saved, sizeof saved);
    state_writer_begin(writer, STATE_PAGE_SETS);
    save_page_sets(cache, writer);
    state_writer_begin(writer, STATE_EXACT);
    state_writer_put(writer, cache->exact, exact_bytes(&cache->shape, &cache->method));
    state_writer_begin(writer, STATE_EXACT_LOGITS);
    state_writer_put(writer, cache->exact_logits, exact_logit_bytes(&cache->shape, &cache->method));
    state_writer_begin(writer, STATE_FITTED);
    state_writer_put(writer, cache->fitted, heads(cache) * cache->fitted_bytes);
    state_writer_begin(writer, STATE_ANCHORS);
    anchors_save(cache, writer);
    state_writer_begin(writer, STATE_WINDOW);
    for (size_t i = 0; i < pages; i++) state_writer_put(writer, cache->window_sets[i], window_set_bytes(cache));
    state_writer_begin(writer, STATE_PAGES);
    save_pages(cache, writer);
}

/* ---- Reading */

/* The extent is one that steps can lead to: then plans are, too. */
static enum terse_status load_extent(struct cache *cache, const struct state_file *file, struct terse_error *error) {
    struct saved_cache saved;
    size_t bytes;
    const void *data = state_file_section(file, STATE_CACHE, &bytes);
    if (bytes != sizeof saved) return state_file_refuse(file, STATE_CACHE, "it is of another size", error);
    memcpy(&saved, data, sizeof saved);
    cache->extent = (struct extent){saved.exact, saved.first, saved.window_first, saved.length, saved.dropped};
    const struct extent *e = &cache->extent;
    struct policy_decision kept = cache->method.policy->retain(&cache->method.parameters, e->length);
    bool dropped = !e->dropped || cache->method.policy->keep_selected_only;
    bool ordered = e->exact <= e->window_first && e->window_first <= e->length && e->dropped <= e->length;
    if (e->length > MOST_TOKENS || e->exact != kept.exact || e->first != kept.first || !ordered || !dropped ||
        saved.prompt_end > e->length || saved.anchors > e->length || saved.fitted > 1)
        return state_file_refuse(file, STATE_CACHE, "its counts of tokens contradict one another", error);
    cache->prompt_end = saved.prompt_end;
    cache->fitted_ready = saved.fitted;
    cache->anchors.count = 0;
    return anchors_load(cache, (size_t)saved.anchors, file, error);
}

/* Pages follow one another up to the window; only where tokens of prompts were dropped may some be missing, as many as were. */
static bool follow(const struct cache *cache) {
    const struct extent *e = &cache->extent;
    bool selects = cache->method.policy->keep_selected_only;
    uint64_t missing = 0, wanted = selects ? e->dropped + cache->anchors.count : 0, end = e->exact;
    for (size_t i = 0; i <= cache->pages.n_sealed; i++) {
        const struct page_set *set = i < cache->pages.n_sealed ? &cache->pages.sets[i] : NULL;
        uint64_t first = set ? set->first : e->window_first;
        if (first < end || first > e->length) return false;
        if (i == 0 && cache->method.policy->oldest_leave) end = first; /* what is older was evicted */
        missing += first - end;
        end = set ? first + set->count : end;
        if (i == 0 && cache->method.policy->oldest_leave && first > e->first) return false;
    }
    return missing == wanted;
}

static enum terse_status load_page_sets(struct cache *cache, struct state_file *file, struct terse_error *error) {
    size_t bytes, page_bytes, n;
    const uint8_t *sets = state_file_section(file, STATE_PAGE_SETS, &bytes);
    const uint8_t *pages = state_file_section(file, STATE_PAGES, &page_bytes);
    n = bytes / sizeof(struct saved_page_set);
    if (bytes % sizeof(struct saved_page_set) || n > UINT32_MAX || page_bytes / cache->page_set_bytes != n ||
        page_bytes % cache->page_set_bytes)
        return state_file_refuse(file, STATE_PAGE_SETS, "there are not as many pages", error);
    enum terse_status status = page_table_map(&cache->pages, file, pages, n, error);
    if (status) return status;
    for (size_t i = 0; i < n; i++) {
        struct saved_page_set saved;
        memcpy(&saved, sets + i * sizeof saved, sizeof saved);
        if (!saved.count || saved.count > PAGE_TOKENS || saved.generated > 1)
            return state_file_refuse(file, STATE_PAGE_SETS, "a page of so many tokens", error);
        cache->pages.sets[i].first = saved.first;
        cache->pages.sets[i].count = saved.count;
        cache->pages.sets[i].generated = saved.generated;
    }
    if (!follow(cache)) return state_file_refuse(file, STATE_PAGE_SETS, "pages do not follow one another", error);
    if (n && fit_pending(cache)) return state_file_refuse(file, STATE_CACHE, "pages without what was fitted to them", error);
    return TERSE_OK;
}

static enum terse_status load_window(struct cache *cache, const struct state_file *file, struct terse_error *error) {
    size_t bytes, pages = extent_window_pages(&cache->extent), each = window_set_bytes(cache);
    const uint8_t *data = state_file_section(file, STATE_WINDOW, &bytes);
    if (bytes % each || bytes / each != pages) return state_file_refuse(file, STATE_WINDOW, "it is of another size", error);
    enum terse_status status = pool_reserve_window(cache, pages, error);
    for (size_t i = 0; i < pages && !status; i++) memcpy(cache->window_sets[i], data + i * each, each);
    return status;
}

static enum terse_status load_bytes(const struct state_file *file, enum state_section section, void *to, uint64_t wanted,
                                    struct terse_error *error) {
    size_t bytes;
    const void *data = state_file_section(file, section, &bytes);
    if (bytes != wanted) return state_file_refuse(file, section, "it is of another size", error);
    if (bytes) memcpy(to, data, bytes);
    return TERSE_OK;
}

enum terse_status cache_load(struct cache *cache, struct state_file *file, struct terse_error *error) {
    const struct cache_shape *shape = &cache->shape;
    const struct method *method = &cache->method;
    enum terse_status status = load_extent(cache, file, error);
    if (!status) status = load_page_sets(cache, file, error);
    if (!status) status = load_window(cache, file, error);
    if (!status) status = load_bytes(file, STATE_EXACT, cache->exact, exact_bytes(shape, method), error);
    if (!status) status = load_bytes(file, STATE_EXACT_LOGITS, cache->exact_logits, exact_logit_bytes(shape, method), error);
    if (!status) status = load_bytes(file, STATE_FITTED, cache->fitted, heads(cache) * cache->fitted_bytes, error);
    return status;
}
