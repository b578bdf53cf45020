/* Learns from keys, writes and reads pages of the codec sign (backend/cpu/codec/sign.c) and of the index sign (index_sign.c): sums are
 * those of the CPU in the same order, so that the same rows give the same numbers and codes. Values are kivi's of two bits. */
#include "backend/cuda/kv/encode_rows.cuh"

#define CHUNK_ROWS 512 /* that are added up in single precision before double takes over */
#define WIDTH INDEX_SIGN_CHANNELS
#define CODES INDEX_SIGN_CODES
#define LEAST_ALPHA (1.0f / 1024)
#define MOST_MAGNITUDE 32768.0f

/* ---- Learning: a block takes FIT_GROUPS groups of four channels of a layer and head, since none needs to know of another. A thread takes
 * a group and a chunk of rows, and the block FIT_SLOTS chunks at a time. */

#define FIT_THREADS 128
#define FIT_GROUPS 2 /* half a sector of a row: fewer would read each sector more often, more would make too few blocks */
#define FIT_CHANNELS (FIT_GROUPS * WIDTH)
#define FIT_SLOTS (FIT_THREADS / FIT_GROUPS)

struct fit_job {
    const __half *rows; /* from the block's first channel on */
    size_t n, token_stride;
    uint32_t group, slot; /* the thread's */

    __device__ size_t chunks() const { return (n + CHUNK_ROWS - 1) / CHUNK_ROWS; }
    /* Returns how many slots have a chunk where slot 0 has chunk `first`. */
    __device__ uint32_t count(size_t first) const {
        return (uint32_t)(chunks() - first < FIT_SLOTS ? chunks() - first : FIT_SLOTS);
    }

    /* Calls each(x) with the four numbers of rows of the thread's chunk, if it has one. */
    template <class Each> __device__ void each_row(size_t first_chunk, Each each) const {
        const size_t first = (first_chunk + slot) * CHUNK_ROWS, end = first + CHUNK_ROWS < n ? first + CHUNK_ROWS : n;
#pragma unroll 16 /* loads, whose latency bounds the kernel, are on their way together */
        for (size_t r = first; r < end; r++) {
            const uint2 halves = __ldg((const uint2 *)(rows + r * token_stride + WIDTH * group));
            const float x[WIDTH] = {to_float(halves.x & 0xffff), to_float(halves.x >> 16), to_float(halves.y & 0xffff),
                                    to_float(halves.y >> 16)};
            each(x);
        }
    }
};

/* Computes mean[FIT_CHANNELS]. some[FIT_SLOTS][FIT_CHANNELS] is scratch. */
static __device__ void find_means(const fit_job &job, float *some, float *mean) {
    double sum = 0; /* of channel threadIdx.x */
    for (size_t first = 0; first < job.chunks(); first += FIT_SLOTS) {
        const uint32_t count = job.count(first);
        float own[WIDTH] = {0};
        job.each_row(first, [&](const float(&x)[WIDTH]) {
            for (int i = 0; i < WIDTH; i++) own[i] += x[i];
        });
        for (int i = 0; i < WIDTH; i++) some[job.slot * FIT_CHANNELS + WIDTH * job.group + i] = own[i];
        __syncthreads();
        for (uint32_t slot = 0; threadIdx.x < FIT_CHANNELS && slot < count; slot++)
            sum += (double)some[slot * FIT_CHANNELS + threadIdx.x];
        __syncthreads();
    }
    if (threadIdx.x < FIT_CHANNELS) mean[threadIdx.x] = (float)(sum / (double)job.n);
    __syncthreads();
}

/* Writes the centroids of four channels: the means of sums[16][4] by code; of a code that no key has, the mean magnitudes with its
 * signs. */
static __device__ void set_centroids(const double *sums, const uint32_t *counts, float *centroids) {
    double magnitude[WIDTH] = {0};
    uint64_t all = 0;
    for (uint32_t code = 0; code < CODES; code++) {
        all += counts[code];
        for (uint32_t i = 0; i < WIDTH; i++) magnitude[i] += fabs(sums[code * WIDTH + i]);
    }
    for (uint32_t code = 0; code < CODES; code++)
        for (uint32_t i = 0; i < WIDTH; i++) {
            const double size = magnitude[i] / (double)all, from_none = code >> i & 1 ? size : -size;
            centroids[code * WIDTH + i] = (float)(counts[code] ? sums[code * WIDTH + i] / counts[code] : from_none);
        }
}

/* A thread adds up its rows by code, in columns of its own. */
struct fit_sums {
    float sum[CODES * WIDTH][FIT_THREADS];
    uint32_t count[CODES][FIT_THREADS];
};

/* Computes centroids[FIT_GROUPS][16][4]. */
static __device__ void find_centroids(const fit_job &job, const float *mean, fit_sums &some, float *centroids) {
    __shared__ double sums[FIT_GROUPS * CODES * WIDTH];
    __shared__ uint32_t counts[FIT_GROUPS * CODES];
    const uint32_t own = threadIdx.x;
    float middle[WIDTH];
    for (uint32_t i = 0; i < WIDTH; i++) middle[i] = mean[WIDTH * job.group + i];
    for (uint32_t i = own; i < FIT_GROUPS * CODES * WIDTH; i += FIT_THREADS) sums[i] = 0;
    for (uint32_t i = own; i < FIT_GROUPS * CODES; i += FIT_THREADS) counts[i] = 0;
    for (size_t first = 0; first < job.chunks(); first += FIT_SLOTS) {
        const uint32_t count = job.count(first);
        for (uint32_t i = 0; i < CODES * WIDTH; i++) some.sum[i][own] = 0;
        for (uint32_t i = 0; i < CODES; i++) some.count[i][own] = 0;
        job.each_row(first, [&](const float(&x)[WIDTH]) {
            float centred[WIDTH];
            uint32_t code = 0;
            for (uint32_t i = 0; i < WIDTH; i++) {
                centred[i] = x[i] - middle[i];
                code |= (uint32_t)(centred[i] >= 0) << i;
            }
            for (uint32_t i = 0; i < WIDTH; i++) some.sum[code * WIDTH + i][own] += centred[i];
            some.count[code][own]++;
        });
        __syncthreads();
        for (uint32_t i = own; i < FIT_GROUPS * CODES * WIDTH; i += FIT_THREADS)
            for (uint32_t slot = 0; slot < count; slot++)
                sums[i] += (double)some.sum[i % (CODES * WIDTH)][slot * FIT_GROUPS + i / (CODES * WIDTH)];
        for (uint32_t i = own; i < FIT_GROUPS * CODES; i += FIT_THREADS)
            for (uint32_t slot = 0; slot < count; slot++) counts[i] += some.count[i % CODES][slot * FIT_GROUPS + i / CODES];
        __syncthreads();
    }
    if (own < FIT_GROUPS) set_centroids(sums + own * CODES * WIDTH, counts + own * CODES, centroids + own * CODES * WIDTH);
}

/* Computes the largest |key - mean| of each channel. */
static __device__ void find_largest(const fit_job &job, const float *mean, float *largest) {
    __shared__ uint32_t most[FIT_CHANNELS];
    float own[WIDTH] = {0};
    if (threadIdx.x < FIT_CHANNELS) most[threadIdx.x] = 0;
    __syncthreads();
    for (size_t first = 0; first < job.chunks(); first += FIT_SLOTS)
        job.each_row(first, [&](const float(&x)[WIDTH]) {
            for (uint32_t i = 0; i < WIDTH; i++) {
                const float size = fabsf(x[i] - mean[WIDTH * job.group + i]);
                own[i] = size > own[i] ? size : own[i];
            }
        });
    for (uint32_t i = 0; i < WIDTH; i++) /* bits order as magnitudes do */
        atomicMax(&most[WIDTH * job.group + i], __float_as_uint(own[i]));
    __syncthreads();
    if (threadIdx.x < FIT_CHANNELS) largest[threadIdx.x] = __uint_as_float(most[threadIdx.x]);
}

static __device__ float *own_learned_of(const struct fit_sign &fit) {
    return fit.own_learned + ((size_t)(fit.layer + blockIdx.y) * fit.kv_heads + blockIdx.x) * fit.learned_floats;
}
static __device__ float *alpha_of(const struct fit_sign &fit) { return own_learned_of(fit) + fit.head_dim * (1 + CODES); }

static __global__ void __launch_bounds__(FIT_THREADS) fit_sign_kernel(const __grid_constant__ struct fit_sign fit) {
    __shared__ fit_sums some;
    __shared__ float mean[FIT_CHANNELS];
    const uint32_t channel = blockIdx.z * FIT_CHANNELS;
    const fit_job job = {fit.rows + blockIdx.y * fit.layer_stride + blockIdx.x * fit.head_stride + channel, fit.n, fit.token_stride,
                         threadIdx.x % FIT_GROUPS, threadIdx.x / FIT_GROUPS};
    float *const learned = own_learned_of(fit);
    find_means(job, some.sum[0], mean);
    if (threadIdx.x < FIT_CHANNELS) learned[channel + threadIdx.x] = mean[threadIdx.x];
    find_centroids(job, mean, some, learned + fit.head_dim + channel * CODES);
    if (fit.alpha) find_largest(job, mean, alpha_of(fit) + channel);
}

/* Makes alpha[hd] of the largest |key - mean| of each channel, none much smaller than that of the head. */
static __global__ void __launch_bounds__(FIT_THREADS) set_alpha_kernel(const __grid_constant__ struct fit_sign fit) {
    __shared__ uint32_t most;
    float *const alpha = alpha_of(fit);
    if (!threadIdx.x) most = 0;
    __syncthreads();
    for (uint32_t c = threadIdx.x; c < fit.head_dim; c += FIT_THREADS) atomicMax(&most, __float_as_uint(alpha[c]));
    __syncthreads();
    const float largest = __uint_as_float(most);
    const float least = largest > 0 && largest < INFINITY ? fmaxf(largest * LEAST_ALPHA, 1e-30f) : 1;
    for (uint32_t c = threadIdx.x; c < fit.head_dim; c += FIT_THREADS)
        alpha[c] = alpha[c] > least && alpha[c] < INFINITY ? alpha[c] : least;
}

cudaError_t fit_sign(const struct fit_sign *fit, cudaStream_t stream) {
    fit_sign_kernel<<<dim3(fit->kv_heads, fit->n_layers, fit->head_dim / FIT_CHANNELS), FIT_THREADS, 0, stream>>>(*fit);
    if (fit->alpha) set_alpha_kernel<<<dim3(fit->kv_heads, fit->n_layers), FIT_THREADS, 0, stream>>>(*fit);
    return cudaGetLastError();
}

/* ---- Pages */

static __device__ const float *learned_at(const struct encode &e, const struct page_job &job) {
    return e.own_learned + job.place * e.learned_floats;
}

/* Writes planes u8 [hd / 8][64] of rows in shared memory. */
static __device__ void write_signs(const struct encode &e, const struct page_job &job, const uint32_t *rows, uint8_t *planes) {
    const uint32_t hd = e.heads.head_dim, stride = rows_stride(hd);
    const float *mean = learned_at(e, job);
    for (uint32_t i = threadIdx.x; i < hd / 8 * PAGE_TOKENS; i += PAGE_THREADS) {
        const uint32_t t = i % PAGE_TOKENS, c = i / PAGE_TOKENS * 8;
        uint32_t code = 0;
        for (uint32_t k = 0; k < 8; k++)
            code |= (uint32_t)(__fsub_rn(to_float(half_at(rows, stride, t, c + k)), mean[c + k]) >= 0) << k;
        planes[i] = t < job.count ? (uint8_t)code : 0;
    }
}

static __device__ void write_sign_keys(const struct encode &e, const struct page_job &job, uint32_t *rows) {
    const uint32_t hd = e.heads.head_dim;
    const float *mean = learned_at(e, job), *alpha = mean + hd + hd * CODES;
    load_rows(e, job, rows);
    write_signs(e, job, rows, job.page);
    __syncthreads();
    write_kivi_tokens<2>(hd, job.count, rows, (uint32_t *)(job.page + PAGE_BYTES_SIGNS(hd)),
                         [&](const uint32_t *words, uint32_t b, uint32_t i) {
                             const uint32_t c = b * SCALE_GROUP + i;
                             const float x = __fmul_rn(fabsf(__fsub_rn(group_number(words, i), mean[c])), __fdiv_rn(1, alpha[c]));
                             return x < MOST_MAGNITUDE ? x : MOST_MAGNITUDE;
                         });
}

static __device__ void read_sign_keys(const struct encode &e, const struct page_job &job, uint32_t *rows) {
    const uint32_t hd = e.heads.head_dim, groups = hd / SCALE_GROUP, words_of_row = hd / 16;
    const float *mean = learned_at(e, job), *alpha = mean + hd + hd * CODES;
    const uint32_t *page = (const uint32_t *)(job.page + PAGE_BYTES_SIGNS(hd));
    (void)rows;
    each_chunk(hd, job.count, [&](uint32_t t, uint32_t j) {
        const uint32_t *token = page + t * (words_of_row + groups), pair = token[words_of_row + j / 4],
                       signs = job.page[j * PAGE_TOKENS + t];
        const float s = to_float(pair & 0xffff), z = to_float(pair >> 16);
        uint32_t halves[8];
        for (uint32_t k = 0; k < 8; k++) {
            const uint32_t c = 8 * j + k, byte = c % (hd / 4), code = token[byte / 4] >> (byte % 4 * 8 + c / (hd / 4) * 2) & 3;
            const float x = __fmul_rn(alpha[c], __fadd_rn(z, __fmul_rn(s, (float)code)));
            halves[k] = to_half(__fadd_rn(mean[c], signs >> k & 1 ? x : -x));
        }
        store_chunk(e, job, t, j, halves);
    });
}

static __device__ void write_index_signs(const struct encode &e, const struct page_job &job, uint32_t *rows) {
    load_rows(e, job, rows);
    write_signs(e, job, rows, index_address(&job.item->set, places_of(e, *job.item) + job.place, e.index_bytes));
}

/* Launches a task for keys, and kivi's of two bits for values. */
template <page_task *KEYS>
static cudaError_t launch_sign(const struct encode *encode, struct encode_sides sides,
                               cudaError_t (*values)(const struct encode *, struct encode_sides, cudaStream_t),
                               cudaStream_t stream) {
    cudaError_t result = cudaSuccess;
    if (sides.first == CODEC_KEYS) result = launch_pages<KEYS>(encode, encode_sides{CODEC_KEYS, 1}, stream);
    if (result != cudaSuccess || sides.first + sides.n <= CODEC_VALUES) return result;
    return values(encode, encode_sides{CODEC_VALUES, 1}, stream);
}

cudaError_t encode_sign(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    return launch_sign<write_sign_keys>(encode, sides, encode_kivi_2, stream);
}
cudaError_t decode_sign(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    return launch_sign<read_sign_keys>(encode, sides, decode_kivi_2, stream);
}
cudaError_t encode_index_sign(const struct encode *encode, cudaStream_t stream) {
    return launch_pages<write_index_signs>(encode, encode_sides{CODEC_KEYS, 1}, stream);
}
