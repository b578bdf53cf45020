/* Decodes a page set by the layouts of one rate and encodes it by those of another, by way of rows of halves. Both take the page for the
 * first of its sequence, since rows that go from page to page need not be rotated by where they stand. */
#include "backend/cuda/kv/lower.h"

#include "backend/cuda/kv/views.h"

static struct encode_item item_of(const struct cache *cache, const struct page_set *set, device_half *rows) {
    struct page_set_view view = cache_page_view(set);
    view.first = 0, view.count = PAGE_TOKENS;
    return (struct encode_item){
        .set = view, .rows = {rows, rows + PAGE_TOKENS * cache->base.shape.head_dim}, .rate = cache_rate_view(cache, set->rate)};
}

static enum terse_status launch(const struct cache *cache, struct item_list *item, const struct page_set *set, device_half *rows,
                                cudaError_t (*kernels)(const struct encode *encode, cudaStream_t stream)) {
    const size_t hd = cache->base.shape.head_dim;
    item->host[0] = item_of(cache, set, rows);
    enum terse_status status = item_list_upload(item, 1, NULL);
    if (status) return status;
    struct encode encode = cache_encode(cache, item, 0, cache->base.shape.layers);
    encode.token_stride = hd;
    encode.head_stride = 2 * PAGE_TOKENS * hd;
    encode.layer_stride = cache->base.shape.kv_heads * encode.head_stride;
    return device_check(kernels(&encode, device_stream()), "lowering pages", NULL);
}

enum terse_status kv_lower(struct cache *cache, const struct page_set *from, const struct page_set *to) {
    const size_t bytes = cache_heads_of(&cache->base.shape) * 2 * PAGE_TOKENS * cache->base.shape.head_dim * sizeof(device_half);
    struct item_list item = {0}; /* the cache's own may be those of a step under way */
    device_half *rows = device_alloc(NULL, bytes, "lowering pages", NULL);
    enum terse_status status = rows ? item_list_reserve(&item, 1, NULL) : TERSE_E_MEMORY;
    if (!status) status = launch(cache, &item, from, rows, decode_pages);
    if (!status) status = launch(cache, &item, to, rows, encode_pages);
    if (!status) status = device_check(cudaStreamSynchronize(device_stream()), "lowering pages", NULL);
    item_list_free(&item);
    device_free(NULL, rows, bytes);
    return status;
}
