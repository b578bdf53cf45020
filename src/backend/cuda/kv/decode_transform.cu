/* Reads pages of the codec transform back whole, as the CPU's transform.c does: multiplies levels by gains and sizes, and the
 * result by the basis, adds the means, and rotates keys by their run's position, so that they are rotated by their own. */
#include "backend/cuda/kv/transform_page.cuh"

template <int HD> struct decode_memory {
    float numbers[HD][PAGE_TOKENS]; /* components, then channels */
    union {
        float tile[TILE_DEPTH][HD];
        uint8_t codes[HD / 2 * PAGE_TRANSFORM_NIBBLE]; /* until the components are there */
    };
    float gains[PAGE_TOKENS];
    struct page_layout l;
};

template <int HD>
static __device__ void load_page(const struct page_job &job, const struct transform_view &view, struct decode_memory<HD> &m) {
    const uint32_t *from = (const uint32_t *)(job.page + PAGE_TOKENS);
    for (uint32_t i = threadIdx.x; i < m.l.layout.nibbles * PAGE_TRANSFORM_NIBBLE / 4u; i += TRANSFORM_THREADS)
        ((uint32_t *)m.codes)[i] = from[i];
    if (threadIdx.x < PAGE_TOKENS) m.gains[threadIdx.x] = fmaf(view.gain_step, (float)job.page[threadIdx.x], view.gain_least);
    __syncthreads();
}

/* Finds the components, up to a whole number of tiles; returns that number. */
template <int HD>
static __device__ uint32_t find_components(const struct page_job &job, const struct transform_view &view,
                                           struct decode_memory<HD> &m) {
    const uint32_t components = m.l.layout.quads * TRANSFORM_QUAD, depth = (components + TILE_DEPTH - 1) / TILE_DEPTH * TILE_DEPTH;
    const uint32_t t = threadIdx.x % PAGE_TOKENS;
    const auto nibble = [&](uint32_t n) { return unpack_nibble(job.side, m.codes + n * PAGE_TRANSFORM_NIBBLE, t); };
    for (uint32_t c = threadIdx.x / PAGE_TOKENS; c < depth; c += TRANSFORM_THREADS / PAGE_TOKENS)
        m.numbers[c][t] =
            c < components ? quad_level(m.l, c / TRANSFORM_QUAD, c % TRANSFORM_QUAD, nibble) * (m.gains[t] * view.size[c]) : 0;
    __syncthreads();
    return depth;
}

template <int HD> static __device__ void add_mean(const float *mean, float (*numbers)[PAGE_TOKENS]) {
    for (uint32_t i = threadIdx.x; i < HD * PAGE_TOKENS; i += TRANSFORM_THREADS)
        numbers[i / PAGE_TOKENS][i % PAGE_TOKENS] = numbers[i / PAGE_TOKENS][i % PAGE_TOKENS] + mean[i / PAGE_TOKENS];
    __syncthreads();
}

template <int HD>
static __global__ void __launch_bounds__(TRANSFORM_THREADS, HD > 128 ? 1 : 2)
    decode_transform_kernel(const __grid_constant__ struct encode e, struct encode_sides sides) {
    extern __shared__ __align__(16) uint8_t memory[];
    struct decode_memory<HD> &m = *(struct decode_memory<HD> *)memory;
    const struct page_job job = job_of_block(e, sides);
    const struct transform_view &view = view_of(e, job);
    load_layout(view.layout, &m.l);
    load_page(job, view, m);
    const uint32_t depth = find_components(job, view, m);
    struct product<HD> rows;
    multiply<HD, false>(integer_rows{view.basis, view.unit}, depth, m.numbers, m.tile, rows);
    store_product(rows, m.numbers);
    add_mean<HD>(view.mean, m.numbers);
    add_pre_rope_mean(e, job, 1, view.pre_rope_mean, m.numbers);
    rotate_by_run<false>(e, job, m.numbers);
    store_numbers<HD>(e, job, m.numbers);
}

template <int HD> static cudaError_t launch(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    const size_t bytes = sizeof(struct decode_memory<HD>);
    const cudaError_t result = allow_shared(decode_transform_kernel<HD>, bytes);
    if (result != cudaSuccess) return result;
    decode_transform_kernel<HD><<<encode_grid(encode, sides), TRANSFORM_THREADS, bytes, stream>>>(*encode, sides);
    return cudaGetLastError();
}

cudaError_t decode_transform(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
#define LAUNCH(hd) launch<hd>(encode, sides, stream)
    TRANSFORM_HEAD_DIMS(encode->heads, LAUNCH)
#undef LAUNCH
}
