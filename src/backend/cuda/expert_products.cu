/* Multiplies weights of experts by the vectors of the rows that go to them. The grid is one of items (experts.h), a number that the
 * host knows, of which those that hold no rows end at once: so the host need not know which experts were chosen. */
#include "backend/cuda/expert_kernels.h"

#include "backend/cuda/matvec.cuh"

struct expert_args {
    struct matvec_args all; /* of item 0 and expert 0; n: the most rows of an item */
    const struct expert_item *items;
    size_t expert_bytes[PRODUCTS_MOST]; /* of a product's matrix */
    size_t form_stride, sums_stride;    /* from item to item */
};

/* Returns the arguments of an item. */
__device__ static inline struct matvec_args args_of(const struct expert_args &a, uint32_t item, const struct expert_item &of) {
    struct matvec_args own = a.all;
    own.n = of.rows;
    own.sums += item * a.sums_stride;
    if (own.sizes) own.sizes += item * EACH_ROWS;
    for (int i = 0; i < 3; i++)
        if (own.forms[i]) own.forms[i] += item * a.form_stride;
    for (int i = 0; i < PRODUCTS_MOST; i++) {
        struct matvec_product &p = own.products[i];
        p.data += of.expert * a.expert_bytes[i];
        p.out += (size_t)item * EACH_ROWS * p.rows;
        if (p.bias) p.bias += (size_t)of.expert * p.rows;
    }
    return own;
}

template <class TILE, int PARTS, bool SHARED>
__global__ void __launch_bounds__(32 * WARPS, 1) expert_tiles(const __grid_constant__ struct expert_args a) {
    extern __shared__ __align__(16) uint8_t memory[];
    let_next_kernel_begin();
    wait_for_kernels();
    const struct expert_item of = a.items[blockIdx.y];
    if (!of.rows) return;
    const struct matvec_args own = args_of(a, blockIdx.y, of);
    const int lane = threadIdx.x % 32;
    const matvec_room room = room_of<TILE>(own);
    tile_stream<TILE> tiles(own, memory, threadIdx.x / 32);
    for (uint32_t i = 0; i < own.depth; i++) tiles.fetch(lane);
    multiply_units<TILE, PARTS, SHARED>(own, memory, room, tiles, lane);
}

/* Few vectors lie in shared memory; where there are many, or they do not fit, they are read from global memory: two kernels for each
 * type. */
template <class TILE> static cudaError_t launch_items(struct expert_args a, uint32_t n_items, cudaStream_t stream) {
    const uint32_t shared_bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
                   multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
    if (!choose_way<TILE>(&a.all, shared_bytes, a.all.n <= PART)) return cudaErrorInvalidValue;
    const uint32_t bytes = room_of<TILE>(a.all).bytes, most = divide_up(multiprocessors, n_items);
    void (*kernel)(const struct expert_args) = a.all.shared ? expert_tiles<TILE, 1, true> : expert_tiles<TILE, 2, false>;
    cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (result != cudaSuccess) return result;
    return launch_early(kernel, dim3(a.all.units < most ? a.all.units : most, n_items), dim3(32 * WARPS), bytes, stream, a);
}

static cudaError_t launch(enum tensor_type type, const struct expert_args &a, uint32_t n_items, cudaStream_t stream) {
#define CALL(TILE) return launch_items<TILE>(a, n_items, stream)
    FOR_TILE_TYPE(type, CALL)
#undef CALL
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t experts_each(const struct device_product *products, size_t n_products, const struct device_vectors *x,
                                    const struct expert_item *items, uint32_t n_items, uint32_t rows_most, cudaStream_t stream) {
    cudaError_t result = cudaSuccess;
    for (size_t i = 0; i < n_products && result == cudaSuccess; i++) {
        const struct device_matrix *w = products[i].w;
        struct expert_args a = {};
        const bool thirds = weights_form(w->type) == THIRDS;
        const size_t padded = (size_t)divide_up(w->columns, WIDTH_STEP) * WIDTH_STEP, form_quads = padded * EACH_ROWS / 8;
        a.items = items;
        a.all.sums = x->sums, a.all.n = rows_most, a.all.columns = w->columns, a.all.apart = EACH_ROWS;
        for (int form = 0; form < 3; form++)
            a.all.forms[form] = thirds ? (const uint4 *)x->thirds + form * form_quads : (const uint4 *)(form ? x->low : x->high);
        a.all.sizes = thirds ? NULL : x->sizes;
        a.all.units = divide_up(w->rows, TILE_ROWS);
        a.all.products[0] = (struct matvec_product){w->data, w->bias, products[i].out, w->rows, a.all.units};
        a.expert_bytes[0] = w->bytes / w->count;
        a.form_stride = thirds ? 3 * form_quads : form_quads;
        a.sums_stride = padded / 32 * GROUP_SUMS * EACH_ROWS;
        result = launch(w->type, a, n_items, stream);
    }
    return result;
}
