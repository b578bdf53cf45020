/* Mean, sizes and range of gains of a sequence's rows, as the CPU's transform_fit_rows.c finds them: the mean of all rows first, then of each
 * page the squares of its components, each row taken to size 1, then their sum. In double precision, like there. */
#include "backend/cuda/kv/transform_page.cuh"

#include <float.h>

#define PRIOR_ROWS 128.0 /* for which the profile's sizes count */
#define GAIN_MARGIN 2    /* beyond the rows at hand, either way: others may be larger or smaller */
#define GAIN_LEAST 1e-6  /* of the size of the mean: what rounding leaves of a row that is the mean */

/* Sums over a page's rows. */
template <int HD> struct page_squares {
    double squares[HD], least, most; /* of sizes */
    uint32_t used;                   /* rows that say something of sizes */
};

/* Memory in which the fit of each layer, head and side is found: sides[n_layers][Hk][2], pages[n_layers][Hk][2][n]. */
template <int HD> struct fit_memory {
    double *constants; /* rows of this size or less are the mean */
    struct page_squares<HD> *pages;
};

struct fit_job {
    size_t number; /* of the launch's */
    uint32_t layer, head;
    int side;
    size_t place;
};

static __device__ struct fit_job fit_job_of(const struct encode &e, uint32_t head, int side) {
    const size_t number = ((size_t)blockIdx.y * e.heads.kv_heads + head) * 2 + (size_t)side;
    return {number, blockIdx.y, head, side, (size_t)(e.layer + blockIdx.y) * e.heads.kv_heads + head};
}

static __device__ float *fitted_at(float *fitted, const struct fit_job &job, uint32_t hd) {
    return fitted + (job.place * 2 + (size_t)job.side) * TRANSFORM_FITTED_FLOATS(hd);
}

static __device__ struct page_job page_of(const struct encode &e, const struct fit_job &job, uint32_t item) {
    struct page_job page = {};
    page.item = &e.items[item];
    page.head = job.head;
    page.side = job.side;
    page.place = job.place;
    page.rows = page.item->rows[job.side] + job.layer * e.layer_stride + job.head * e.head_stride;
    page.count = page.item->set.count;
    return page;
}

/* Finds the pair that a channel belongs to, and its partner in the pair; returns false if the channel is not rotated. */
static __device__ bool pair_of(const struct head_view &heads, uint32_t c, uint32_t *pair, uint32_t *other, bool *second) {
    if (c >= heads.n_rot) return false;
    *second = heads.pairing == ROPE_ADJACENT ? c % 2 : c >= heads.n_rot / 2;
    *pair = heads.pairing == ROPE_ADJACENT ? c / 2 : c % (heads.n_rot / 2);
    const struct pair_channels at = channels_of_pair(heads, *pair);
    *other = *second ? at.a : at.b;
    return true;
}

/* ---- The mean, a thread for each channel */

static __device__ double sum_channel(const struct encode &e, const struct fit_job &job, uint32_t c, uint32_t *rows) {
    uint32_t pair = 0, other = 0;
    bool second = false, rotated = job.side == CODEC_KEYS && pair_of(e.heads, c, &pair, &other, &second);
    double sum = 0;
    *rows = 0;
    for (uint32_t item = 0; item < e.n; item++) {
        const struct page_job page = page_of(e, job, item);
        const float2 angle = rotated ? run_angle(e, page.item->set.first, pair) : make_float2(1, 0);
#pragma unroll 8
        for (uint32_t t = 0; t < page.count; t++) {
            const __half *row = page.rows + t * e.token_stride;
            float x = __half2float(row[c]);
            if (rotated) {
                const float y = __half2float(row[other]);
                const float2 back = rotate_back(second ? make_float2(y, x) : make_float2(x, y), angle);
                x = second ? back.y : back.x;
            }
            sum += (double)x;
        }
        *rows += page.count;
    }
    return sum;
}

template <int HD>
static __global__ void __launch_bounds__(HD) fit_mean_kernel(const __grid_constant__ struct encode e, struct encode_sides sides,
                                                             struct fit_memory<HD> memory, float *fitted) {
    __shared__ float mean[HD];
    __shared__ double squares[HD];
    const int side = sides.first + (int)blockIdx.z;
    const struct fit_job job = fit_job_of(e, blockIdx.x, side);
    const uint32_t c = threadIdx.x;
    uint32_t rows;
    const double sum = sum_channel(e, job, c, &rows);
    mean[c] = isfinite(sum) && rows ? (float)(sum / (double)rows) : 0;
    fitted_at(fitted, job, HD)[c] = mean[c];
    __syncthreads();
    const float *inverse = ((const struct transform_view *)e.learned[side])[job.place].inverse + (size_t)c * HD;
    float z = 0;
    for (uint32_t ch = 0; ch < HD; ch++) z = fmaf(inverse[ch], mean[ch], z);
    squares[c] = (double)z * (double)z;
    __syncthreads();
    if (c) return;
    double square = 0;
    for (uint32_t i = 0; i < HD; i++) square += squares[i];
    memory.constants[job.number] = GAIN_LEAST * sqrt(square / HD);
}

/* ---- Squares, a block for each page */

template <int HD> struct squares_memory {
    float z[HD][PAGE_TOKENS], tile[TILE_DEPTH][HD];
    double size[PAGE_TOKENS], unit[PAGE_TOKENS]; /* of rows; 0: it says nothing */
};

template <int HD>
static __global__ void __launch_bounds__(TRANSFORM_THREADS, HD > 128 ? 1 : 2)
    fit_squares_kernel(const __grid_constant__ struct encode e, struct encode_sides sides, struct fit_memory<HD> memory,
                       float *fitted) {
    extern __shared__ __align__(16) uint8_t shared[];
    struct squares_memory<HD> &m = *(struct squares_memory<HD> *)shared;
    const int side = sides.first + (int)blockIdx.z;
    const struct fit_job job = fit_job_of(e, blockIdx.x % e.heads.kv_heads, side);
    const uint32_t item = blockIdx.x / e.heads.kv_heads;
    const struct page_job page = page_of(e, job, item);
    struct page_squares<HD> *to = &memory.pages[job.number * e.n + item];
    load_centred<HD>(e, page, fitted_at(fitted, job, HD), m.z);
    struct product<HD> z;
    multiply<HD, true>(((const struct transform_view *)e.learned[side])[job.place].inverse, HD, m.z, m.tile, z);
    store_product(z, m.z);
    for (uint32_t t = threadIdx.x; t < PAGE_TOKENS; t += TRANSFORM_THREADS) {
        double square = 0;
        for (uint32_t c = 0; c < HD; c++) square += (double)m.z[c][t] * (double)m.z[c][t];
        const double size = sqrt(square / HD);
        const bool says = t < page.count && size > memory.constants[job.number] && isfinite(size);
        m.size[t] = says ? size : 0;
        m.unit[t] = says ? 1 / (size * size) : 0;
    }
    __syncthreads();
    for (uint32_t c = threadIdx.x; c < HD; c += TRANSFORM_THREADS) {
        double sum = 0;
        for (uint32_t k = 0; k < PAGE_TOKENS; k++) {
            const uint32_t t = (c + k) % PAGE_TOKENS; /* threads of a warp each in a bank of their own */
            if (m.unit[t] > 0) sum += (double)m.z[c][t] * (double)m.z[c][t] * m.unit[t];
        }
        to->squares[c] = sum;
    }
    if (threadIdx.x) return;
    double least = INFINITY, most = 0;
    uint32_t used = 0;
    for (uint32_t t = 0; t < PAGE_TOKENS; t++) {
        if (!(m.size[t] > 0)) continue;
        used++;
        least = fmin(least, m.size[t]);
        most = fmax(most, m.size[t]);
    }
    to->least = least, to->most = most, to->used = used;
}

/* ---- All of them */

template <int HD>
static __global__ void __launch_bounds__(HD) fit_sizes_kernel(const __grid_constant__ struct encode e, struct encode_sides sides,
                                                              struct fit_memory<HD> memory, float *fitted) {
    const int side = sides.first + (int)blockIdx.z;
    const struct fit_job job = fit_job_of(e, blockIdx.x, side);
    const struct transform_view &view = ((const struct transform_view *)e.learned[side])[job.place];
    const struct page_squares<HD> *pages = memory.pages + job.number * e.n;
    float *size = fitted_at(fitted, job, HD) + HD, *gains = size + HD;
    const uint32_t c = threadIdx.x;
    double squares = 0, least = INFINITY, most = 0;
    uint32_t used = 0;
    for (uint32_t item = 0; item < e.n; item++) {
        squares += pages[item].squares[c];
        used += pages[item].used;
        least = fmin(least, pages[item].least);
        most = fmax(most, pages[item].most);
    }
    const double prior = (double)view.size[c] * (double)view.size[c];
    size[c] = (float)sqrt((squares + PRIOR_ROWS * prior) / ((double)used + PRIOR_ROWS));
    if (c) return;
    gains[0] = used ? (float)(least / GAIN_MARGIN) : view.gain_least;
    gains[1] = used ? (float)fmin(most * GAIN_MARGIN, (double)FLT_MAX) : view.gain_least + 255 * view.gain_step;
}

template <int HD> static cudaError_t launch(const struct encode *e, struct encode_sides sides, float *fitted, cudaStream_t stream) {
    const size_t jobs = (size_t)e->n_layers * e->heads.kv_heads * 2, shared = sizeof(struct squares_memory<HD>);
    const size_t page_bytes = jobs * e->n * sizeof(struct page_squares<HD>);
    const dim3 of_jobs(e->heads.kv_heads, e->n_layers, (unsigned)sides.n),
        of_pages(e->heads.kv_heads * e->n, e->n_layers, (unsigned)sides.n);
    void *scratch = NULL;
    cudaError_t result = allow_shared(fit_squares_kernel<HD>, shared);
    if (result == cudaSuccess) result = cudaMallocAsync(&scratch, page_bytes + jobs * sizeof(double), stream);
    if (result != cudaSuccess) return result;
    struct fit_memory<HD> memory = {
        (double *)((uint8_t *)scratch + page_bytes), (struct page_squares<HD> *)scratch
    };
    fit_mean_kernel<HD><<<of_jobs, HD, 0, stream>>>(*e, sides, memory, fitted);
    fit_squares_kernel<HD><<<of_pages, TRANSFORM_THREADS, shared, stream>>>(*e, sides, memory, fitted);
    fit_sizes_kernel<HD><<<of_jobs, HD, 0, stream>>>(*e, sides, memory, fitted);
    result = cudaGetLastError();
    const cudaError_t freed = cudaFreeAsync(scratch, stream);
    return result != cudaSuccess ? result : freed;
}

cudaError_t fit_transforms(const struct encode *encode, struct encode_sides sides, float *fitted, cudaStream_t stream) {
#define LAUNCH(hd) launch<hd>(encode, sides, fitted, stream)
    TRANSFORM_HEAD_DIMS(encode->heads, LAUNCH)
#undef LAUNCH
}
