/* Gives and takes a cache's bytes: they are saved as they lie in memory. */
#include "backend/cpu/kv/saved.h"

#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/page_pool.h"

#include <string.h>

static size_t window_set_bytes(const struct cache *cache) { return cache_heads_of(&cache->base.shape) * window_bytes(cache); }

/* Returns where a piece lies that is one array; NULL: it is none. */
static void *array_of(const struct cache *cache, enum cache_piece piece) {
    void *const arrays[CACHE_PIECES] = {
        [CACHE_EXACT] = cache->exact, [CACHE_EXACT_LOGITS] = cache->exact_logits, [CACHE_LEARNED] = cache->fitted};
    return arrays[piece];
}

int saved_export(const struct cache *cache, enum cache_piece piece, const struct cache_sink *sink) {
    const void *array = array_of(cache, piece);
    if (array) sink->put(sink->user, array, cache_piece_bytes(cache, piece));
    if (piece == CACHE_ANCHORS) anchors_export(cache, sink);
    for (size_t i = 0; piece == CACHE_WINDOW && i < cache_window_pages(cache); i++)
        sink->put(sink->user, cache->window_sets[i], window_set_bytes(cache));
    return 0;
}

enum terse_status saved_import(struct cache *cache, const uint8_t *const pieces[CACHE_PIECES], struct terse_error *error) {
    const size_t pages = cache_window_pages(cache), each = window_set_bytes(cache);
    enum terse_status status = anchors_import(cache, pieces[CACHE_ANCHORS], error);
    if (!status) status = pool_reserve_window(cache, pages, error);
    if (status) return status;
    for (size_t i = 0; i < pages; i++) memcpy(cache->window_sets[i], pieces[CACHE_WINDOW] + i * each, each);
    for (int piece = 0; piece < CACHE_PIECES; piece++) {
        void *array = array_of(cache, (enum cache_piece)piece);
        if (array) memcpy(array, pieces[piece], cache_piece_bytes(cache, (enum cache_piece)piece));
    }
    return TERSE_OK;
}
