/* Multiplies weights by up to 16 vectors that all of them share (matvec.cuh). */
#include "backend/cuda/weights.h"

#include "backend/cuda/matvec.cuh"

template <class TILE, int PARTS, bool SHARED>
__global__ void __launch_bounds__(32 * WARPS, 1) matvec_tiles(const __grid_constant__ struct matvec_args a) {
    extern __shared__ __align__(16) uint8_t memory[];
    const int lane = threadIdx.x % 32;
    const matvec_room room = room_of<TILE>(a);
    tile_stream<TILE> tiles(a, memory, threadIdx.x / 32);
    for (uint32_t i = 0; i < a.depth; i++) tiles.fetch(lane);
    let_next_kernel_begin();
    wait_for_kernels();
    multiply_units<TILE, PARTS, SHARED>(a, memory, room, tiles, lane);
}

/* Launches as many blocks of threads as there are multiprocessors, or fewer if there are fewer units. */
template <class TILE> static cudaError_t launch_tiles(const struct matvec_args &a, cudaStream_t stream) {
    uint32_t bytes = room_of<TILE>(a).bytes, most = device_attribute(cudaDevAttrMultiProcessorCount);
    void (*kernel)(const struct matvec_args) = a.n <= PART ? a.shared ? matvec_tiles<TILE, 1, true> : matvec_tiles<TILE, 1, false>
                                               : a.shared ? matvec_tiles<TILE, 2, true>
                                                           : matvec_tiles<TILE, 2, false>;
    cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (result != cudaSuccess) return result;
    return launch_early(kernel, dim3(a.units < most ? a.units : most), dim3(32 * WARPS), bytes, stream, a);
}

/* Returns the product with `count` vectors from `first` on. */
static struct matvec_args vectors_from(const struct matvec_args &a, uint32_t first, uint32_t count) {
    struct matvec_args own = a;
    own.n = count, own.sums += first;
    if (a.sizes) own.sizes += first;
    for (const uint4 *&form : own.forms)
        if (form) form += first * 4;
    for (struct matvec_product &p : own.products) p.out += (size_t)first * p.rows;
    return own;
}

/* Multiplies all vectors at once, unless rows are so long that fewer fit. */
template <class TILE> static cudaError_t multiply_tiles(const struct matvec_args &a, cudaStream_t stream) {
    const uint32_t shared_bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    cudaError_t result = cudaSuccess;
    for (uint32_t first = 0, count = a.n; first < a.n && result == cudaSuccess; first += count) {
        struct matvec_args own = vectors_from(a, first, a.n - first < count ? a.n - first : count);
        while (!choose_way<TILE>(&own, shared_bytes)) {
            if ((count = own.n / 2) == 0) return cudaErrorInvalidValue;
            own = vectors_from(a, first, count);
        }
        result = launch_tiles<TILE>(own, stream);
    }
    return result;
}

/* Launches products of one type. */
static cudaError_t launch(enum tensor_type type, const struct matvec_args *a, cudaStream_t stream) {
#define CALL(TILE) return multiply_tiles<TILE>(*a, stream)
    FOR_TILE_TYPE(type, CALL)
#undef CALL
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t weights_each(const struct device_product *products, size_t n_products, const struct device_vectors *x,
                                    uint32_t n, bool add, cudaStream_t stream) {
    struct matvec_args a = {};
    a.sums = x->sums, a.n = n, a.add = add;
    cudaError_t result = cudaSuccess;
    for (size_t i = 0; i < n_products && result == cudaSuccess;) {
        enum tensor_type type = products[i].w->type;
        const bool thirds = weights_form(type) == THIRDS;
        const size_t form_quads = (size_t)divide_up(products[i].w->columns, WIDTH_STEP) * WIDTH_STEP * EACH_ROWS / 8;
        for (int form = 0; form < 3; form++)
            a.forms[form] = thirds ? (const uint4 *)x->thirds + form * form_quads : (const uint4 *)(form ? x->low : x->high);
        a.sizes = thirds ? NULL : x->sizes;
        a.units = 0;
        for (uint32_t k = 0; i < n_products && products[i].w->type == type; i++, k++) {
            const struct device_matrix *w = products[i].w;
            a.units += divide_up(w->rows, TILE_ROWS);
            a.products[k] = (struct matvec_product){w->data, w->bias, products[i].out, w->rows, a.units};
            a.columns = w->columns;
        }
        result = launch(type, &a, stream);
    }
    return result;
}
