/* The data of a KV cache on the device, shared by the files of this folder:
 *
 *     view, append, encode, attend_*   kernels, and what they see
 *     tables                           what caches of one model and method share: where pages lie, transforms, angles
 *     state                            the data (this header)
 *     cache                            the life of a cache, its steps, the accounting
 *     batch                            decoding steps of several caches
 *     rank, kept                       exact rows, and which tokens of a prompt are kept as such
 *     prompt                           steps of many tokens
 *     fork                             a cache cut short, and one more of the same sequence
 *     saved                            a cache written to a file and read from it, by way of the host
 *     host                             kv_ops with keys, values and queries in the host's memory
 */
#ifndef TERSE_BACKEND_CUDA_KV_STATE_H
#define TERSE_BACKEND_CUDA_KV_STATE_H

#include "backend/cuda/device.h"
#include "backend/cuda/kv/attend_decode.h"
#include "backend/cuda/kv/encode.h"
#include "backend/cuda/kv/tables.h"
#include "kv/page_table.h"
#include "kv/plan.h"

#define NO_LAYER UINT32_MAX

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
    struct cache_shape shape;
    struct method method;
    struct head_view heads;
    const struct kv_tables *tables;
    enum codec_id codec[2]; /* by side */

    struct extent extent;
    uint64_t prompt_end;      /* the last prompt ended before this token; pages from here on are generated */
    struct kv_budget *budget; /* of all that reports call resident; NULL: there is none */
    struct page_table pages;
    struct page_set_view *views; /* on the device, of the sealed page sets */
    size_t view_capacity;
    size_t views_good; /* the first so many are as they should be */
    struct exact_rows exact;
    size_t n_anchors;
    device_half *window; /* [layers][Hk][2][window_capacity][hd] */
    uint32_t window_capacity;
    uint64_t window_origin; /* token t lies in row (t - origin) % capacity */
    float *fitted; /* [layers][Hk][2][transform_fitted_floats(hd)], where the method has transforms of the weights; or NULL */
    bool fitted_ready;
    struct sequence_view *view; /* on the device: of a step of many tokens */

    /* The step in progress. */
    struct plan plan;
    bool in_step;
    uint32_t layers_ended;
    uint32_t layer;          /* host.c: whose keys and values were appended; NO_LAYER: none */
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
    struct cache_counters counters;
};

/* Rows in front of those of a prompt: the first page may begin with tokens that were evicted. */
#define ROWS_IN_FRONT PAGE_TOKENS

static inline size_t cache_heads(const struct cache *cache) { return (size_t)cache->shape.layers * cache->shape.kv_heads; }
/* Exact rows of the first tokens, when there are as many. */
static inline uint32_t cache_first_exact(const struct cache *cache) { return cache->method.parameters.exact; }

/* Halves from one layer, head or side of the window to the next. */
static inline size_t window_side_halves(const struct cache *cache) {
    return (size_t)cache->window_capacity * cache->shape.head_dim;
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
/* Whether the cache still has to learn from the first pages that are sealed. */
static inline bool cache_fit_pending(const struct cache *cache) { return cache->fitted && !cache->fitted_ready; }
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
/* Those that were chosen are the cache's. */
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

/* fork.c, saved.c, host.c: their functions of kv_ops. */
enum terse_status kv_truncate(struct cache *cache, uint64_t n, struct terse_error *error);
uint64_t kv_common_prefix(const struct cache *cache, uint64_t n, uint64_t prompt);
enum terse_status kv_fork(const struct cache *cache, struct cache **copy, struct terse_error *error);
void kv_save(const struct cache *cache, struct state_writer *writer);
enum terse_status kv_load(struct cache *cache, struct state_file *file, struct terse_error *error);
void kv_map(const struct cache *cache, struct terse_token_share *shares, size_t n);
enum terse_status kv_append(struct cache *cache, uint32_t layer, float *k, const float *v, struct terse_error *error);
size_t kv_queries_to_observe(const struct cache *cache, size_t needed);
enum terse_status kv_observe(struct cache *cache, const float *q, size_t first, size_t count, struct terse_error *error);
enum terse_status kv_attend(struct cache *cache, const float *q, size_t first, size_t count, float *out, struct terse_error *error);
enum terse_status kv_end_layer(struct cache *cache, struct terse_error *error);
enum terse_status kv_fill_random(struct cache *cache, size_t n, uint64_t seed, struct terse_error *error);
/* cache.c's, for the others. */
enum terse_status kv_create(const struct cache_shape *shape, const struct method *method, uint32_t threads, struct cache **cache,
                            struct terse_error *error);
enum terse_status kv_limit(struct cache *cache, struct kv_budget *budget, struct terse_error *error);
void kv_destroy(struct cache *cache);
void kv_reset(struct cache *cache);
enum terse_status kv_begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error);
enum terse_status kv_commit(struct cache *cache, struct terse_error *error);

#endif
