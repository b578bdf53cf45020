/* The data of a KV cache on the device, shared by the files of this folder:
 *
 *     view, append, encode, attend_*   kernels, and what they see
 *     tables                           what caches of one model and method share: where pages lie, transforms, angles
 *     state                            the data (this header)
 *     storage                          memory: made, copied, counted, released
 *     step                             a step of new tokens
 *     batch                            decoding steps of several caches
 *     rank, kept                       exact rows, and which tokens of a prompt are kept as such
 *     prompt                           steps of many tokens
 *     saved                            a cache's bytes in a file, by way of the host
 *     host                             kv_ops with keys, values and queries in the host's memory
 */
#ifndef TERSE_BACKEND_CUDA_KV_STATE_H
#define TERSE_BACKEND_CUDA_KV_STATE_H

#include "backend/cuda/device.h"
#include "backend/cuda/kv/attend_decode.h"
#include "backend/cuda/kv/encode.h"
#include "backend/cuda/kv/tables.h"
#include "kv/cache.h"

/* Tokens that are kept as halves outside the window: the first ones, then anchors. Device memory in one piece. */
struct exact_rows {
    device_half *rows; /* [layers][Hk][2][capacity][hd], keys rotated by their token; NULL: none */
    uint32_t *tokens;  /* of the anchors, [layers][Hk][capacity - cache_first_exact()], ascending */
    uint32_t capacity;
    size_t bytes; /* allocated; capacity may have become less */
};

/* Items of encoding or decoding pages, on the device and as they were made. */
struct item_list {
    struct encode_item *device, *host;
    size_t capacity, n;
};

struct cache {
    struct cache_base base;
    struct head_view heads;
    const struct kv_tables *tables;
    enum codec_id codec[2]; /* by side */

    struct page_set_view *views; /* on the device, of the sealed page sets */
    size_t view_capacity;
    size_t views_good; /* the first so many are as they should be */
    struct exact_rows exact;
    device_half *window; /* [layers][Hk][2][window_capacity][hd] */
    uint32_t window_capacity;
    uint64_t window_origin; /* token t lies in row (t - origin) % capacity */
    float *fitted; /* [layers][Hk][2][transform_fitted_floats(hd)], where the method has transforms of the weights; or NULL */
    struct sequence_view *view; /* on the device: of a step of many tokens */

    /* The step in progress. */
    uint64_t steps;          /* that were begun */
    struct item_list stored; /* sealed pages that a prompt reads */
    struct item_list sealed; /* pages that the step seals */
    device_half *rows[2];    /* of a step of many tokens: [row_capacity][Hk][hd], behind ROWS_IN_FRONT more */
    size_t row_capacity;
    struct exact_rows chosen; /* of a step that chooses anchors: what is to take the place of `exact` */
    float *choice;            /* what it works in */
    size_t choice_bytes;
    size_t n_ahead;            /* the first so many pages of the window are being or were encoded into the free page sets */
    cudaEvent_t written;       /* what is to be read of the cache on other streams than device_stream() must wait for */
    cudaEvent_t encoded_ahead; /* what a step that seals must wait for */

    struct host_step *host; /* host.c; NULL until it is needed */
};

/* Rows in front of those of a prompt: the first page may begin with tokens that were evicted. */
#define ROWS_IN_FRONT PAGE_TOKENS

static inline size_t cache_heads(const struct cache *cache) {
    return (size_t)cache->base.shape.layers * cache->base.shape.kv_heads;
}
/* Exact rows of the first tokens, when there are as many. */
static inline uint32_t cache_first_exact(const struct cache *cache) { return cache->base.method.parameters.exact; }

/* Halves from one layer, head or side of the window to the next. */
static inline size_t window_side_halves(const struct cache *cache) {
    return (size_t)cache->window_capacity * cache->base.shape.head_dim;
}

/* What kernels see of the cache in the step that it has begun. */
struct sequence_view cache_view(const struct cache *cache);
struct page_set_view cache_page_view(const struct cache *cache, const struct page_set *set);
/* Queued: the views of the sealed page sets are as they should be. */
enum terse_status cache_upload_views(struct cache *cache, struct terse_error *error);
enum terse_status item_list_reserve(struct item_list *list, size_t n, struct terse_error *error);
void item_list_free(struct item_list *list);
/* Queued: host[n] to the device. */
enum terse_status item_list_upload(struct item_list *list, size_t n, struct terse_error *error);
/* An encode of the cache's items, of layers [layer, layer + n_layers). */
struct encode cache_encode(const struct cache *cache, const struct item_list *list, uint32_t layer, uint32_t n_layers);
/* What is queued on device_stream() has written the cache: its event is recorded. */
enum terse_status cache_written(struct cache *cache, struct terse_error *error);
/* Forgets what was encoded ahead, when that is over. */
void cache_forget_ahead(struct cache *cache);

/* kept.c. Bytes of one anchor in all layers, heads and sides. */
size_t anchor_bytes(const struct cache_shape *shape);
/* Exact rows for n anchors in place of those that are there, whose numbers are lost. */
enum terse_status kept_resize(struct cache *cache, size_t n, struct terse_error *error);
/* Queued: the exact rows of another cache. */
enum terse_status kept_copy(struct cache *cache, const struct cache *from, struct terse_error *error);
void kept_reset(struct cache *cache); /* keeps the memory */
void kept_free(struct cache *cache);
/* What the plan's step needs to choose, if it does, with so many rows that its queries may read; and gives back. */
enum terse_status kept_reserve(struct cache *cache, size_t rows, struct terse_error *error);
void kept_release(struct cache *cache);
/* Queued: queries q[count][Hq][hd] of the step's tokens from `first` on, rotated; those that rank tokens are remembered. */
cudaError_t kept_observe(const struct cache *cache, const float *q, size_t first, size_t count);
/* Queued: the layer's anchors, of the tokens that the step seals, which are rows from `first` on of k, v[rows_before + plan.n][Hk][hd]. */
cudaError_t kept_choose(const struct cache *cache, uint32_t layer, const device_half *k, const device_half *v, size_t rows_before,
                        size_t first);
/* Those that were chosen take the place of the exact rows; cache_advance counts them. */
enum terse_status kept_commit(struct cache *cache, struct terse_error *error);

/* prompt.c: what a step of many tokens needs, and gives back. */
enum terse_status prompt_reserve(struct cache *cache, struct terse_error *error);
void prompt_release(struct cache *cache);
/* batch.c: encodes of the window's pages. */
enum terse_status window_seal(struct cache *cache, struct terse_error *error);
enum terse_status window_seal_ahead(struct cache *cache, struct terse_error *error);
size_t window_pages_ahead(const struct cache *cache, const struct plan *plan);
/* host.c */
void host_step_free(struct host_step *host);

/* saved.c: its part of kv_storage. */
void kv_saved_write(const struct cache *cache, struct state_writer *writer);
enum terse_status kv_saved_read_pages(struct cache *cache, struct state_file *file, const uint8_t *pages, size_t n,
                                      struct terse_error *error);
enum terse_status kv_saved_read(struct cache *cache, struct state_file *file, struct terse_error *error);
/* storage.c */
extern const struct kv_storage cuda_storage;
enum terse_status kv_create(const struct cache_shape *shape, const struct method *method, uint32_t threads, struct cache **cache,
                            struct terse_error *error);
void kv_destroy(struct cache *cache);
/* TERSE_E_UNSUPPORTED: the method does what it cannot do here. */
enum terse_status kv_refuse(const struct method *method, const char *why, struct terse_error *error);
/* host.c: its functions of kv_ops. */
enum terse_status kv_append(struct cache *cache, uint32_t layer, float *k, const float *v, struct terse_error *error);
size_t kv_queries_to_observe(const struct cache *cache, size_t needed);
enum terse_status kv_observe(struct cache *cache, const float *q, size_t first, size_t count, struct terse_error *error);
enum terse_status kv_attend(struct cache *cache, const float *q, size_t first, size_t count, float *out, struct terse_error *error);
enum terse_status kv_end_layer(struct cache *cache, struct terse_error *error);
enum terse_status kv_fill_random(struct cache *cache, size_t n, uint64_t seed, struct terse_error *error);
/* cache.c's, for the others. */
enum terse_status kv_begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error);
enum terse_status kv_commit(struct cache *cache, struct terse_error *error);

#endif
