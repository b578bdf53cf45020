/* Reads pages of the codec transform back whole, as the CPU's transform.c does: multiplies levels by gains and sizes, and the
 * result by the basis, adds the means, and rotates keys by their run's position, so that they are rotated by their own. */
#include "backend/cuda/kv/decode_transform.cuh"
#include "backend/cuda/kv/transform_page.cuh"

#define BASIS_STRIDE(hd) ((hd) + 8) /* so that rows that are loaded together lie in different banks, but for two by two */

template <int HD> struct decode_memory {
    struct page_numbers<HD> numbers; /* components, then channels */
    int16_t basis[HD][BASIS_STRIDE(HD)];
    alignas(16) uint8_t codes[HD / 2 * PAGE_TRANSFORM_NIBBLE];
    float gains[PAGE_TOKENS];
    struct page_layout l;
};

/* Returns how many components are multiplied, a whole number of PRODUCT_DEPTH. */
template <int HD> static __device__ uint32_t depth_of(const struct decode_memory<HD> &m) {
    return (m.l.layout.quads * TRANSFORM_QUAD + PRODUCT_DEPTH - 1) / PRODUCT_DEPTH * PRODUCT_DEPTH;
}

template <int HD> static __device__ void ask_for_basis(const struct transform_view &view, struct decode_memory<HD> &m) {
    for (uint32_t i = threadIdx.x; i < depth_of(m) * (HD / 8); i += TRANSFORM_THREADS)
        copy_async<16>(shared_address(&m.basis[i / (HD / 8)][i % (HD / 8) * 8]), view.basis + 8 * (size_t)i);
    commit_copies();
}

template <int HD>
static __device__ void load_page(const struct page_job &job, const struct transform_view &view, struct decode_memory<HD> &m) {
    const uint32_t *from = (const uint32_t *)(job.page + PAGE_TOKENS);
    for (uint32_t i = threadIdx.x; i < m.l.layout.nibbles * PAGE_TRANSFORM_NIBBLE / 4u; i += TRANSFORM_THREADS)
        ((uint32_t *)m.codes)[i] = from[i];
    if (threadIdx.x < PAGE_TOKENS) {
        const uint8_t code = job.page[threadIdx.x];
        m.gains[threadIdx.x] = code < TRANSFORM_NO_MEAN_GAINS ? TRANSFORM_NO_MEAN_GAIN(view.gain, code)
                                                              : fmaf(view.gain_step, (float)code, view.gain_zero);
    }
    __syncthreads();
}

/* Finds the components, in units of their rows of the basis. */
template <int HD>
static __device__ void find_components(const struct page_job &job, const struct transform_view &view, struct decode_memory<HD> &m) {
    const uint32_t t = threadIdx.x % PAGE_TOKENS;
    const float gain = m.gains[t];
    for (uint32_t quad = threadIdx.x / PAGE_TOKENS; quad < depth_of(m) / TRANSFORM_QUAD; quad += TOKEN_PARTS) {
        float levels[TRANSFORM_QUAD] = {};
        if (quad < m.l.layout.quads)
            quad_levels(
                m.l, quad, [&](uint32_t n) { return unpack_nibble(job.side, m.codes + n * PAGE_TRANSFORM_NIBBLE, t); }, levels);
#pragma unroll
        for (uint32_t i = 0; i < TRANSFORM_QUAD; i++)
            m.numbers.of[quad * TRANSFORM_QUAD + i][t] = levels[i] * (gain * view.step[quad * TRANSFORM_QUAD + i]);
    }
    __syncthreads();
}

/* Loads a lane's part of 16 channels and 16 components, from `first` on, of the transposed basis. For load_matrices_transposed a lane
 * names a row of a matrix: a component, of which pairs alternate between two matrices. */
template <int HD>
static __device__ struct row_block load_channels(const struct decode_memory<HD> &m, uint32_t block, uint32_t first) {
    const uint32_t lane = threadIdx.x % 32, component = lane % 8 / 2 * 4 + lane % 2 + lane / 16 * 2;
    uint32_t r[4];
    load_matrices_transposed(r, shared_address(&m.basis[first + component][16 * block + lane / 8 % 2 * 8]));
    const uint2 own[4] = {split_integers(r[0]), split_integers(r[1]), split_integers(r[2]), split_integers(r[3])};
    return {{own[0].x, own[1].x, own[2].x, own[3].x}, {own[0].y, own[1].y, own[2].y, own[3].y}};
}

/* Multiplies components by the basis. */
template <int HD> static __device__ void find_channels(struct decode_memory<HD> &m) {
    const uint32_t depth = depth_of(m);
    struct product<HD> product;
    wait_copies<0>();
    __syncthreads();
    multiply<HD>([&](uint32_t block, uint32_t first) { return load_channels(m, block, first); }, depth, m.numbers, product);
    store_product<HD>(
        product, [](uint32_t) { return INTEGER_UNIT; }, m.numbers);
}

template <int HD>
static __global__ void __launch_bounds__(TRANSFORM_THREADS, HD > 128 ? 1 : 2)
    decode_transform_kernel(const __grid_constant__ struct encode e, struct encode_sides sides) {
    extern __shared__ __align__(16) uint8_t memory[];
    struct decode_memory<HD> &m = *(struct decode_memory<HD> *)memory;
    const struct page_job job = job_of_block(e, sides);
    const struct transform_view &view = view_of(e, job);
    load_layout(view.layout, &m.l);
    ask_for_basis(view, m);
    load_page(job, view, m);
    find_components(job, view, m);
    find_channels(m);
    const bool no_mean = job.page[threadIdx.x % PAGE_TOKENS] < TRANSFORM_NO_MEAN_GAINS;
    change_frame<HD, false>(e, job, {view.pre_rope_mean, view.mean, no_mean}, m.numbers.of);
    store_numbers<HD>(e, job, m.numbers.of);
}

template <int HD> static cudaError_t launch(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    const size_t bytes = sizeof(struct decode_memory<HD>);
    const cudaError_t result = allow_shared(decode_transform_kernel<HD>, bytes);
    if (result != cudaSuccess) return result;
    decode_transform_kernel<HD><<<encode_grid(encode, sides), TRANSFORM_THREADS, bytes, stream>>>(*encode, sides);
    return cudaGetLastError();
}

cudaError_t decode_transform(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    if (decode_transform_has_tiles(&encode->heads)) return decode_transform_tiles(encode, sides, stream);
#define LAUNCH(hd) launch<hd>(encode, sides, stream)
    TRANSFORM_HEAD_DIMS(encode->heads, LAUNCH)
#undef LAUNCH
}
