/* Writes and reads the sections of a cache in a saved state (docs/state-format.md), the same bytes on all backends. It checks every
 * number before it uses it as an address or a count. */
#include "kv/cache.h"

#include "base/size.h"

#include <string.h>

/* These structs lie in the file as they are, little-endian. */
struct saved_cache {
    uint64_t exact, first, window_first, length, dropped; /* struct extent */
    uint64_t prompt_end;
    uint64_t anchors; /* per layer, KV head and side */
    uint64_t fitted;  /* 1: codecs and indexes were fitted to the sequence; plus 2 enum fitted_saved */
};

struct saved_page_set {
    uint64_t first;
    uint32_t count, generated;
};

_Static_assert(sizeof(struct saved_cache) == 64 && sizeof(struct saved_page_set) == 16, "as docs/state-format.md has it");

/* ---- Writing */

void cache_save(const struct cache *cache, struct state_writer *writer) {
    const struct cache_base *base = cache_base_of(cache);
    const struct extent *e = &base->extent;
    const struct saved_cache saved = {
        e->exact,   e->first,         e->window_first, e->length,
        e->dropped, base->prompt_end, base->n_anchors, base->fitted_ready + 2 * (uint64_t)fitted_saved(base)};
    state_writer_begin(writer, STATE_CACHE);
    state_writer_put(writer, &saved, sizeof saved);
    state_writer_begin(writer, STATE_PAGE_SETS);
    for (size_t i = 0; i < base->pages.n_sealed; i++) {
        const struct page_set *set = &base->pages.sets[i];
        state_writer_put(writer, &(struct saved_page_set){set->first, set->count, set->generated}, sizeof(struct saved_page_set));
    }
    base->storage->save(cache, writer);
}

void cache_save_pages(const struct cache *cache, struct state_writer *writer,
                      const uint8_t *(*chunk)(const void *user, const struct page_set *set), const void *user) {
    const struct cache_base *base = cache_base_of(cache);
    size_t end = 0; /* of a page set's pages */
    for (size_t head = 0; head < cache_heads_of(&base->shape); head++) {
        const struct page_address *place = &base->places[head];
        const size_t bytes[] = {place->bytes[CODEC_KEYS], place->bytes[CODEC_VALUES], base->index_page_bytes};
        size_t before = place->offset; /* bytes of a page set's pages before this one */
        for (size_t kind = 0; kind < sizeof bytes / sizeof bytes[0]; before += bytes[kind++])
            for (size_t i = 0; bytes[kind] && i < base->pages.n_sealed; i++) {
                const struct page_set *set = &base->pages.sets[i];
                state_writer_put(writer, chunk(user, set) + set->chunk_sets * before + set->index * bytes[kind], bytes[kind]);
            }
        end = before;
    }
    for (size_t left = (base->page_set_bytes - end) * base->pages.n_sealed, n; left; left -= n) { /* layouts may not fill it */
        static const uint8_t zeros[4096];
        n = size_min(left, sizeof zeros);
        state_writer_put(writer, zeros, n);
    }
}

/* ---- Reading */

/* Reads the extent, and refuses one that no steps lead to, so that plans made from it are sound. */
static enum terse_status load_extent(struct cache_base *base, const struct state_file *file, struct terse_error *error) {
    const struct policy *policy = base->method.policy;
    struct saved_cache saved;
    const uint8_t *data = cache_saved_section(file, STATE_CACHE, sizeof saved, error);
    if (!data) return TERSE_E_FORMAT;
    memcpy(&saved, data, sizeof saved);
    base->extent = (struct extent){saved.exact, saved.first, saved.window_first, saved.length, saved.dropped};
    const struct extent *e = &base->extent;
    struct policy_decision kept = policy->retain(&base->method.parameters, e->length);
    bool dropped = !e->dropped || policy->keep_selected_only;
    bool ordered = e->exact <= e->window_first && e->window_first <= e->length && e->dropped <= e->length;
    if (e->length > base->storage->most_tokens || e->exact != kept.exact || e->first != kept.first || !ordered || !dropped ||
        saved.prompt_end > e->length || saved.anchors > e->length || saved.fitted / 2 > FITTED_SUMS)
        return state_file_refuse(file, STATE_CACHE, "its counts of tokens contradict one another", error);
    if (saved.anchors && !policy->anchors) return state_file_refuse(file, STATE_ANCHORS, "it is of another size", error);
    base->prompt_end = saved.prompt_end;
    base->fitted_ready = saved.fitted & 1;
    base->n_anchors = (size_t)saved.anchors;
    return fitted_load(base, (enum fitted_saved)(saved.fitted / 2), file, error);
}

/* Returns whether pages follow one another up to the window; only where tokens of prompts were dropped may some be missing, as many
 * as were. */
static bool follow(const struct cache_base *base) {
    const struct extent *e = &base->extent;
    const struct policy *policy = base->method.policy;
    uint64_t missing = 0, wanted = policy->keep_selected_only ? e->dropped + base->n_anchors : 0, end = e->exact;
    for (size_t i = 0; i <= base->pages.n_sealed; i++) {
        const struct page_set *set = i < base->pages.n_sealed ? &base->pages.sets[i] : NULL;
        uint64_t first = set ? set->first : e->window_first;
        if (first < end || first > e->length) return false;
        if (i == 0 && policy->oldest_leave) end = first; /* what is older was evicted */
        missing += first - end;
        end = set ? first + set->count : end;
        if (i == 0 && policy->oldest_leave && first > e->first) return false;
    }
    return missing == wanted;
}

static enum terse_status load_page_sets(struct cache *cache, struct state_file *file, struct terse_error *error) {
    struct cache_base *base = cache_base(cache);
    size_t bytes, page_bytes, n;
    const uint8_t *sets = state_file_section(file, STATE_PAGE_SETS, &bytes);
    const uint8_t *pages = state_file_section(file, STATE_PAGES, &page_bytes);
    n = bytes / sizeof(struct saved_page_set);
    if (bytes % sizeof(struct saved_page_set) || n > UINT32_MAX || page_bytes / base->page_set_bytes != n ||
        page_bytes % base->page_set_bytes)
        return state_file_refuse(file, STATE_PAGE_SETS, "there are not as many pages", error);
    enum terse_status status = base->storage->load_pages(cache, file, pages, n, error);
    if (status) return status;
    for (size_t i = 0; i < n; i++) {
        struct saved_page_set saved;
        memcpy(&saved, sets + i * sizeof saved, sizeof saved);
        if (!saved.count || saved.count > PAGE_TOKENS || saved.generated > 1 || saved.first > base->storage->most_tokens)
            return state_file_refuse(file, STATE_PAGE_SETS, "a page of so many tokens", error);
        base->pages.sets[i].first = saved.first;
        base->pages.sets[i].count = saved.count;
        base->pages.sets[i].generated = saved.generated;
    }
    if (!follow(base)) return state_file_refuse(file, STATE_PAGE_SETS, "pages do not follow one another", error);
    if (n && cache_fit_pending(base)) return state_file_refuse(file, STATE_CACHE, "pages without what was fitted to them", error);
    return TERSE_OK;
}

const uint8_t *cache_saved_section(const struct state_file *file, enum state_section section, uint64_t bytes,
                                   struct terse_error *error) {
    size_t there;
    const uint8_t *data = state_file_section(file, section, &there);
    if (there == bytes) return data;
    state_file_refuse(file, section, "it is of another size", error);
    return NULL;
}

enum terse_status cache_load(struct cache *cache, struct state_file *file, struct terse_error *error) {
    struct cache_base *base = cache_base(cache);
    enum terse_status status = load_extent(base, file, error);
    if (!status && base->fitted.layouts) status = base->storage->layouts_changed(cache, error);
    if (!status) status = load_page_sets(cache, file, error);
    return status ? status : base->storage->load(cache, file, error);
}
