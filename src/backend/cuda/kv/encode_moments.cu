/* This kernel finds the moments of a sequence's rows, to which transforms are fitted, as transform_fit_rows does
 * (format/transform_fit.h). A block takes a side of a layer and KV head, page after page; of heads of 256 channels each of four
 * blocks takes a quarter of the products. */
#include "backend/cuda/kv/transform_page.cuh"

#include "format/transform_fit.h"

#include <float.h>

#define GRID 16 /* threads to a row and a column of the products */
#define DEEP 16 /* tokens that are multiplied at a time */

static_assert(GRID * GRID == TRANSFORM_THREADS, "tiles of products");

template <int HD> struct products_shape {
    static constexpr int most = HD < 128 ? HD : 128, parts = HD / most,
                         own = most / GRID; /* a thread's rows and columns, GRID apart */
};

template <int HD> struct moments_memory {
    struct page_numbers<HD> z; /* rows, then coefficients */
    float rows[DEEP][HD + 1];  /* of size 1, while they are multiplied; + 1: columns lie in different banks */
    double sum[HD], back[HD];  /* of rows; of keys rotated back by their offset */
    double cosines[HD / 2], sines[HD / 2];
    float mean[HD], pre_rope_mean[HD];
    float unit[PAGE_TOKENS];
    /* These are by slot, of the pages so far. */
    double squares[PAGE_TOKENS];
    float least[PAGE_TOKENS], most[PAGE_TOKENS];
    uint32_t used[PAGE_TOKENS];
    float constant; /* size of what counts as the mean itself */
};

/* ---- Means */

template <int HD>
static __device__ void sum_page(const struct encode &e, const struct page_job &job, struct moments_memory<HD> &m) {
    const uint32_t c = threadIdx.x, offset = job.item->set.first % ROPE_RUN_TOKENS;
    if (c < HD) {
        double sum = 0;
        for (uint32_t i = 0; i < PAGE_TOKENS; i++)
            sum += (double)m.z.of[c][(i + c) % PAGE_TOKENS]; /* each thread in a bank of its own */
        m.sum[c] += sum;
    }
    if (job.side == CODEC_KEYS && c < e.pre_rope.pairs) {
        const struct pair_channels at = channels_of_pair(e.heads, c);
        double a = 0, b = 0, cosines = 0, sines = 0;
        for (uint32_t t = 0; t < job.count; t++) {
            const float2 angle = ((const float2 *)e.pre_rope.offsets)[(size_t)(offset + t) * (e.heads.n_rot / 2) + c];
            const double x = (double)m.z.of[at.a][t], y = (double)m.z.of[at.b][t];
            a += x * (double)angle.x + y * (double)angle.y;
            b += y * (double)angle.x - x * (double)angle.y;
            cosines += (double)angle.x;
            sines += (double)angle.y;
        }
        m.back[at.a] += a, m.back[at.b] += b;
        m.cosines[c] += cosines, m.sines[c] += sines;
    }
    __syncthreads();
}

static __device__ inline float mean_of(double sum, double n) { return isfinite(sum) ? (float)(sum / n) : 0; }

/* Sets the means. That of keys is the mean of what is left when their mean before rotation, rotated to their offsets, is
 * subtracted. */
template <int HD> static __device__ void set_means(const struct encode &e, double n, struct moments_memory<HD> &m) {
    const uint32_t i = threadIdx.x;
    if (i < e.pre_rope.pairs && i < HD / 2) {
        const struct pair_channels at = channels_of_pair(e.heads, i);
        const float a = mean_of(m.back[at.a], n), b = mean_of(m.back[at.b], n);
        m.pre_rope_mean[at.a] = a, m.pre_rope_mean[at.b] = b;
        m.sum[at.a] -= (double)a * m.cosines[i] - (double)b * m.sines[i];
        m.sum[at.b] -= (double)a * m.sines[i] + (double)b * m.cosines[i];
    }
    __syncthreads();
    if (i < HD) m.mean[i] = mean_of(m.sum[i], n);
    __syncthreads();
}

template <int HD> static __device__ void find_means(const struct encode &e, uint32_t head, int side, struct moments_memory<HD> &m) {
    uint32_t n = 0;
    for (uint32_t c = threadIdx.x; c < HD; c += TRANSFORM_THREADS) {
        m.sum[c] = m.back[c] = m.cosines[c / 2] = m.sines[c / 2] = 0;
        m.pre_rope_mean[c] = 0;
    }
    __syncthreads();
    for (uint32_t item = 0; item < e.n; item++) {
        const struct page_job job = rows_of_item(e, blockIdx.y, item, head, side);
        load_numbers<HD>(e, job, {}, m.z.of);
        sum_page(e, job, m);
        n += job.count;
    }
    set_means(e, (double)n, m);
}

/* ---- Coefficients */

template <int HD> static __device__ float size_of(const struct moments_memory<HD> &m, uint32_t t) {
    float square = 0;
#pragma unroll 8
    for (uint32_t c = 0; c < HD; c++) square = square + m.z.of[c][t] * m.z.of[c][t];
    return sqrtf(square / (float)HD);
}

template <int HD> static __device__ void begin_sizes(const struct transform_view &profile, struct moments_memory<HD> &m) {
    for (uint32_t i = threadIdx.x; i < HD * PAGE_TOKENS; i += TRANSFORM_THREADS)
        m.z.of[i / PAGE_TOKENS][i % PAGE_TOKENS] = i % PAGE_TOKENS ? 0 : m.mean[i / PAGE_TOKENS];
    __syncthreads();
    find_coefficients<HD>(profile, m.z);
    const uint32_t t = threadIdx.x;
    if (t == 0) m.constant = TRANSFORM_GAIN_LEAST * size_of(m, 0);
    if (t < PAGE_TOKENS) m.squares[t] = 0, m.least[t] = FLT_MAX, m.most[t] = 0, m.used[t] = 0;
    __syncthreads();
}

template <int HD> static __device__ void take_sizes(struct moments_memory<HD> &m) {
    const uint32_t t = threadIdx.x;
    if (t < PAGE_TOKENS) {
        const float size = size_of(m, t), unit = 1 / size;
        const bool counts = size > m.constant && isfinite(size) && isfinite(unit);
        m.unit[t] = counts ? unit : 0;
        if (counts) {
            m.squares[t] += (double)size * (double)size;
            m.least[t] = fminf(m.least[t], size);
            m.most[t] = fmaxf(m.most[t], size);
            m.used[t]++;
        }
    }
    __syncthreads();
}

/* ---- Products */

template <int HD> struct products { float sums[products_shape<HD>::own][products_shape<HD>::own]; };

/* Adds the products of a page's coefficients; a thread's rows are from `row` on, its columns from `column` on. */
template <int HD>
static __device__ void add_products(uint32_t row, uint32_t column, struct moments_memory<HD> &m, struct products<HD> &to) {
    constexpr int own = products_shape<HD>::own;
    for (uint32_t first = 0; first < PAGE_TOKENS; first += DEEP) {
        for (uint32_t i = threadIdx.x; i < HD * DEEP; i += TRANSFORM_THREADS) {
            const uint32_t c = i / DEEP, t = i % DEEP;
            const float unit = m.unit[first + t];
            m.rows[t][c] = unit > 0 ? m.z.of[c][first + t] * unit : 0; /* rows that are not finite count as 0 */
        }
        __syncthreads();
#pragma unroll 2
        for (uint32_t t = 0; t < DEEP; t++) {
            float a[own], b[own];
#pragma unroll
            for (int i = 0; i < own; i++) a[i] = m.rows[t][row + GRID * i], b[i] = m.rows[t][column + GRID * i];
#pragma unroll
            for (int i = 0; i < own; i++)
#pragma unroll
                for (int j = 0; j < own; j++) to.sums[i][j] = fmaf(a[i], b[j], to.sums[i][j]);
        }
        __syncthreads();
    }
}

template <int HD> static __device__ void write_numbers(const struct moments_memory<HD> &m, float *to) {
    if (threadIdx.x) return;
    double squares = 0;
    float least = FLT_MAX, most = 0;
    uint32_t used = 0;
    for (uint32_t t = 0; t < PAGE_TOKENS; t++) {
        squares += m.squares[t];
        least = fminf(least, m.least[t]);
        most = fmaxf(most, m.most[t]);
        used += m.used[t];
    }
    to[MOMENTS_USED] = (float)used;
    to[MOMENTS_GAIN] = used ? fminf((float)sqrt(squares / (double)used), FLT_MAX) : 0;
    to[MOMENTS_LEAST] = used ? least : 0;
    to[MOMENTS_MOST] = most;
}

template <int HD>
static __global__ void __launch_bounds__(TRANSFORM_THREADS, HD > 128 ? 1 : 2)
    moments_kernel(const __grid_constant__ struct encode e, struct encode_sides sides, float *moments) {
    extern __shared__ __align__(16) uint8_t memory[];
    struct moments_memory<HD> &m = *(struct moments_memory<HD> *)memory;
    constexpr int parts = products_shape<HD>::parts, most = products_shape<HD>::most, own = products_shape<HD>::own;
    const uint32_t head = blockIdx.x, side_of = blockIdx.z / (parts * parts), part = blockIdx.z % (parts * parts);
    const int side = sides.first + (int)side_of;
    const uint32_t row = part / parts * most + threadIdx.x / GRID, column = part % parts * most + threadIdx.x % GRID;
    const struct transform_view &profile =
        ((const struct transform_view *)e.learned[side])[(size_t)(e.layer + blockIdx.y) * e.heads.kv_heads + head];
    struct products<HD> products = {};
    find_means(e, head, side, m);
    begin_sizes(profile, m);
    for (uint32_t item = 0; item < e.n; item++) {
        const struct page_job job = rows_of_item(e, blockIdx.y, item, head, side);
        load_numbers<HD>(e, job, {m.pre_rope_mean, m.mean}, m.z.of);
        find_coefficients<HD>(profile, m.z);
        take_sizes(m);
        add_products(row, column, m, products);
    }
    float *const to =
        moments + (((size_t)blockIdx.y * e.heads.kv_heads + head) * (unsigned)sides.n + side_of) * ENCODE_MOMENTS_FLOATS(HD);
#pragma unroll
    for (int i = 0; i < own; i++)
#pragma unroll
        for (int j = 0; j < own; j++) to[(row + GRID * i) * HD + column + GRID * j] = products.sums[i][j];
    if (part) return;
    for (uint32_t c = threadIdx.x; c < HD; c += TRANSFORM_THREADS) {
        to[HD * HD + c] = m.mean[c];
        to[HD * HD + HD + c] = m.pre_rope_mean[c];
    }
    write_numbers(m, to + HD * HD + 2 * HD);
}

template <int HD>
static cudaError_t launch(const struct encode *encode, struct encode_sides sides, float *moments, cudaStream_t stream) {
    const size_t bytes = sizeof(struct moments_memory<HD>);
    const unsigned parts = products_shape<HD>::parts;
    const cudaError_t result = allow_shared(moments_kernel<HD>, bytes);
    if (result != cudaSuccess) return result;
    moments_kernel<HD>
        <<<dim3(encode->heads.kv_heads, encode->n_layers, (unsigned)sides.n * parts * parts), TRANSFORM_THREADS, bytes, stream>>>(
            *encode, sides, moments);
    return cudaGetLastError();
}

cudaError_t encode_moments(const struct encode *encode, struct encode_sides sides, float *moments, cudaStream_t stream) {
#define LAUNCH(hd) launch<hd>(encode, sides, moments, stream)
    TRANSFORM_HEAD_DIMS(encode->heads, LAUNCH)
#undef LAUNCH
}
