/* The caches of one model and method share these tables on the device: the layout of pages, what their codecs learned, the angles
 * of RoPE. They are made when the first of these caches is created, and released with the last. Thread-safe. */
#ifndef TERSE_BACKEND_CUDA_KV_TABLES_H
#define TERSE_BACKEND_CUDA_KV_TABLES_H

#include "backend/cuda/kv/append.h"
#include "kv/block_table.h"

struct kv_tables {
    uint64_t number; /* of no other tables in this process, even if they lie at the same address later */
    struct head_view heads;
    struct page_address *places; /* the host's, [rates][layers][Hk] */
    size_t page_set_bytes;
    struct place_view *place_views;     /* the device's */
    void *learned[2];                   /* the device's, by side: what its codec learned (codec.h); NULL: nothing */
    size_t n_rates;                     /* at which pages are held: 1, or more where they may be lowered */
    struct rate_view rates[RATE_VIEWS]; /* of pages that go by what the method learned; the first is empty: the above serves */
    struct rotary_view rotary;
    struct pre_rope_view pre_rope;
    float *prefill_parts; /* the device's: partial states of a prompt's attention, one after another's */
};

/* Returns the bytes that the kernels' views of all places take among tables. */
size_t place_views_bytes(const struct cache_shape *shape);
/* Return the bytes of a rate's tables beside those of the method's own rate, and write them to host[kv_rate_bytes] and
 * places[layers][Hk] in the form in which they will lie at `device`. `own` has the sides' views at the method's own rate, on the host. */
size_t kv_rate_bytes(const struct cache_shape *shape);
struct rate_view kv_rate_set(const struct cache_shape *shape, const struct method *at_rate,
                             const struct transform_view *const own[2], struct page_address *places, uint8_t *host,
                             uint8_t *device);

/* Returns the view that kernels have of the heads, without ALiBi's slopes. */
struct head_view kv_tables_heads(const struct cache_shape *shape);

/* Writes the kernels' views of n places. */
void place_views_set(const struct page_address *places, size_t n, struct place_view *views);

enum terse_status kv_tables_get(const struct cache_shape *shape, const struct method *method, const struct kv_tables **tables,
                                struct terse_error *error);
void kv_tables_release(const struct kv_tables *tables); /* accepts NULL */
/* Queues on device_stream() the angles of positions below `tokens`. Other caches see the rotary_view's new address from their next
 * step on. */
enum terse_status kv_tables_reserve(const struct kv_tables *tables, uint64_t tokens, struct terse_error *error);

#endif
