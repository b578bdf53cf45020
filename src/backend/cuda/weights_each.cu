/* Multiplies weights by vectors that all of them share: up to 16 (matvec.cuh), or up to 64 (matvec_wide.cuh). */
#include "backend/cuda/weights.h"

#include "backend/cuda/matvec_wide.cuh"

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

/* Launches a product with 17 vectors or more, a row of the grid for each EACH_FILLED of them. Returns false if there is no room. */
template <class TILE> static bool launch_wide(struct matvec_args a, cudaStream_t stream, cudaError_t *result) {
    const uint32_t shares = divide_up(a.n, EACH_FILLED), most = device_attribute(cudaDevAttrMultiProcessorCount) / shares,
                   blocks = a.units < most ? a.units : most;
    if (!choose_wide<TILE>(&a, device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin), blocks)) return false;
    const uint32_t bytes = wide_room_of<TILE>(a).bytes;
    *result = cudaFuncSetAttribute(matvec_wide<TILE>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (*result == cudaSuccess) *result = launch_early(matvec_wide<TILE>, dim3(blocks, shares), dim3(32 * WARPS), bytes, stream, a);
    return true;
}

/* Launches a product with all of its vectors. Returns false if it has no room for so many. */
template <class TILE> static bool launch_some(struct matvec_args a, cudaStream_t stream, cudaError_t *result) {
    if (a.n > EACH_ROWS) return launch_wide<TILE>(a, stream, result);
    if (!choose_way<TILE>(&a, device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin))) return false;
    *result = launch_tiles<TILE>(a, stream);
    return true;
}

/* Multiplies all vectors at once, unless rows are so long that fewer fit: then half as many, or a quarter and so on. */
template <class TILE> static cudaError_t multiply_tiles(const struct matvec_args &a, cudaStream_t stream) {
    cudaError_t result = cudaSuccess;
    for (uint32_t first = 0, count = a.n; first < a.n && result == cudaSuccess;) {
        const uint32_t n = a.n - first < count ? a.n - first : count;
        if (launch_some<TILE>(vectors_from(a, first, n), stream, &result))
            first += n;
        else if ((count = n / 2) == 0)
            return cudaErrorInvalidValue;
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
    a.sums = x->sums, a.n = n, a.apart = ROWS_APART(n), a.add = add;
    cudaError_t result = cudaSuccess;
    for (size_t i = 0; i < n_products && result == cudaSuccess;) {
        enum tensor_type type = products[i].w->type;
        const bool thirds = weights_form(type) == THIRDS;
        const size_t form_quads = (size_t)divide_up(products[i].w->columns, WIDTH_STEP) * WIDTH_STEP * a.apart / 8;
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
