/* Declares the kernels' view of a cache. */
#ifndef TERSE_BACKEND_CUDA_KV_VIEWS_H
#define TERSE_BACKEND_CUDA_KV_VIEWS_H

#include "backend/cuda/kv/state.h"

/* Returns the kernels' view of the cache in the step that it has begun. */
struct sequence_view cache_view(const struct cache *cache);
/* Returns the tables of pages of a rate. */
struct rate_view cache_rate_view(const struct cache *cache, uint32_t rate);
struct page_set_view cache_page_view(const struct page_set *set);
/* Makes room on the device for n page sets and list entries, which are lost where it grows. */
enum terse_status cache_reserve_views(struct cache *cache, size_t n, struct terse_error *error);
/* Queues the upload of the sealed page sets and of the entries of the step's read list that have changed. */
enum terse_status cache_upload_views(struct cache *cache, struct terse_error *error);
enum terse_status item_list_reserve(struct item_list *list, size_t n, struct terse_error *error);
void item_list_free(struct item_list *list);
/* Queues the copy of host[n] to the device. */
enum terse_status item_list_upload(struct item_list *list, size_t n, struct terse_error *error);
/* Returns what fits codec sign and index sign of layers [layer, layer + n_layers) to n rows of keys, so many halves apart by token, head and
 * layer. */
struct fit_sign cache_fit_sign(const struct cache *cache, uint32_t layer, uint32_t n_layers, const device_half *rows, size_t n,
                               size_t token_stride, size_t head_stride, size_t layer_stride);
/* Returns an encode of the cache's items, of layers [layer, layer + n_layers). */
struct encode cache_encode(const struct cache *cache, const struct item_list *list, uint32_t layer, uint32_t n_layers);

#endif
