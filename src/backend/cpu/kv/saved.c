/* Writes and reads a cache's bytes in a saved state: as they lie in memory. */
#include "backend/cpu/kv/saved.h"

#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/exact.h"
#include "backend/cpu/kv/page_pool.h"

#include <string.h>

static size_t window_set_bytes(const struct cache *cache) {
    return cache_heads_of(&cache->base.shape) * 2 * cache->window_page_bytes;
}

static uint64_t fitted_bytes(const struct cache *cache) { return cache_heads_of(&cache->base.shape) * cache->fitted_bytes; }

static const uint8_t *chunk_of(const void *user, const struct page_set *set) {
    (void)user;
    return set->chunk;
}

void saved_write(const struct cache *cache, struct state_writer *writer) {
    const struct cache_base *base = &cache->base;
    size_t pages = extent_window_pages(&base->extent);
    state_writer_begin(writer, STATE_EXACT);
    state_writer_put(writer, cache->exact, exact_bytes(&base->shape, &base->method));
    state_writer_begin(writer, STATE_EXACT_LOGITS);
    state_writer_put(writer, cache->exact_logits, exact_logit_bytes(&base->shape, &base->method));
    state_writer_begin(writer, STATE_FITTED);
    state_writer_put(writer, cache->fitted, fitted_bytes(cache));
    fitted_save(base, writer);
    state_writer_begin(writer, STATE_ANCHORS);
    anchors_save(cache, writer);
    state_writer_begin(writer, STATE_WINDOW);
    for (size_t i = 0; i < pages; i++) state_writer_put(writer, cache->window_sets[i], window_set_bytes(cache));
    state_writer_begin(writer, STATE_PAGES);
    cache_save_pages(cache, writer, chunk_of, NULL);
}

enum terse_status saved_map_pages(struct cache *cache, struct state_file *file, const uint8_t *pages, size_t n,
                                  struct terse_error *error) {
    return block_table_map(&cache->base.pages, file, pages, n, error);
}

static enum terse_status load_window(struct cache *cache, const struct state_file *file, struct terse_error *error) {
    size_t pages = extent_window_pages(&cache->base.extent), each = window_set_bytes(cache);
    size_t bytes;
    const uint8_t *data = state_file_section(file, STATE_WINDOW, &bytes);
    if (bytes % each || bytes / each != pages) return state_file_refuse(file, STATE_WINDOW, "it is of another size", error);
    enum terse_status status = pool_reserve_window(cache, pages, error);
    for (size_t i = 0; i < pages && !status; i++) memcpy(cache->window_sets[i], data + i * each, each);
    return status;
}

/* Reads the first bytes of a section, behind which `others` lie. */
static enum terse_status load_bytes(const struct state_file *file, enum state_section section, void *to, uint64_t bytes,
                                    uint64_t others, struct terse_error *error) {
    const uint8_t *data = cache_saved_section(file, section, bytes + others, error);
    if (!data) return TERSE_E_FORMAT;
    if (bytes) memcpy(to, data, bytes);
    return TERSE_OK;
}

enum terse_status saved_read(struct cache *cache, struct state_file *file, struct terse_error *error) {
    const struct cache_base *base = &cache->base;
    enum terse_status status = anchors_load(cache, base->n_anchors, file, error);
    if (!status) status = load_window(cache, file, error);
    if (!status) status = load_bytes(file, STATE_EXACT, cache->exact, exact_bytes(&base->shape, &base->method), 0, error);
    if (!status)
        status =
            load_bytes(file, STATE_EXACT_LOGITS, cache->exact_logits, exact_logit_bytes(&base->shape, &base->method), 0, error);
    if (!status) status = load_bytes(file, STATE_FITTED, cache->fitted, fitted_bytes(cache), fitted_saved_bytes(base), error);
    return status;
}
