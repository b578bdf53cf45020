/* Has the code that encoding and decoding share: finding the page that a block works on. A launch has a block for each page:
 * blockIdx.x = item * Hk + head, y the layer, z the side. */
#ifndef TERSE_BACKEND_CUDA_KV_ENCODE_COMMON_CUH
#define TERSE_BACKEND_CUDA_KV_ENCODE_COMMON_CUH

#ifndef TERSE_UNFUSED
#error "needs -fmad=false, for the CPU's bytes: name the file kv/encode_*.cu or decode_*.cu (cmake/unfused.cmake)"
#endif

#include "backend/cuda/kv/encode_kernels.h"

#include <stdint.h>

struct page_job {
    const struct encode_item *item;
    uint32_t head;
    int side;
    size_t place; /* of the layer and head in [layers][Hk] */
    uint8_t *page;
    __half *rows;
    uint32_t count; /* slots that hold tokens */
};

static __device__ inline const struct place_view *places_of(const struct encode &e, const struct encode_item &item) {
    return item.rate.places ? item.rate.places : e.places;
}

/* Returns the rows of an item in a head of a layer, which is counted from the launch's first; `page` is NULL. */
static __device__ inline struct page_job rows_of_item(const struct encode &e, uint32_t layer, uint32_t item, uint32_t head,
                                                      int side) {
    struct page_job job = {};
    job.item = &e.items[item];
    job.head = head;
    job.side = side;
    job.place = (size_t)(e.layer + layer) * e.heads.kv_heads + head;
    job.rows = job.item->rows[side] + layer * e.layer_stride + head * e.head_stride;
    job.count = job.item->set.count;
    return job;
}

/* Does the same, with the page. */
static __device__ inline struct page_job page_of_item(const struct encode &e, uint32_t layer, uint32_t item, uint32_t head,
                                                      int side) {
    struct page_job job = rows_of_item(e, layer, item, head, side);
    job.page = page_address(&job.item->set, places_of(e, *job.item) + job.place, job.side);
    return job;
}

static __device__ inline struct page_job job_of_block(const struct encode &e, struct encode_sides sides) {
    const uint32_t kv_heads = e.heads.kv_heads;
    return page_of_item(e, blockIdx.y, blockIdx.x / kv_heads, blockIdx.x % kv_heads, sides.first + (int)blockIdx.z);
}

static inline dim3 encode_grid(const struct encode *e, struct encode_sides sides) {
    return dim3(e->n * e->heads.kv_heads, e->n_layers, (unsigned)sides.n);
}

/* Allows a kernel so much shared memory. */
template <class Kernel> static inline cudaError_t allow_shared(Kernel *kernel, size_t bytes) {
    if (bytes <= 48 * 1024) return cudaSuccess;
    return cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

#endif
