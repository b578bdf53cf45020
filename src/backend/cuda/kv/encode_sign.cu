/* Learns from keys, writes and reads pages of the codec sign (backend/cpu/codec/sign.c) and of the index sign (index_sign.c): sums are
 * those of the CPU in the same order, so that the same rows give the same numbers and codes. Values are kivi's of two bits. */
#include "backend/cuda/kv/encode_rows.cuh"

#define CHUNK_ROWS 512 /* that are added up in single precision before double takes over */
#define WIDTH INDEX_SIGN_CHANNELS
#define CODES INDEX_SIGN_CODES
#define LEAST_ALPHA (1.0f / 1024)
#define MOST_MAGNITUDE 32768.0f

/* ---- Learning: a block takes a layer and head. Its threads take a chunk of rows and four channels each, some chunks at a time. */

#define FIT_THREADS 128

struct fit_job {
    const __half *rows;
    size_t n, token_stride;
    uint32_t hd, groups, slots; /* groups of four channels, chunks at a time */
    uint32_t group, slot;       /* the thread's; a slot of `slots` or more has nothing to do */

    /* Calls each(x) with the four numbers of rows of the thread's i-th chunk. */
    template <class Each> __device__ void each_row(size_t chunk, Each each) const {
        const size_t first = chunk * CHUNK_ROWS, end = first + CHUNK_ROWS < n ? first + CHUNK_ROWS : n;
#pragma unroll 4
        for (size_t r = first; r < end; r++) {
            const uint2 halves = *(const uint2 *)(rows + r * token_stride + WIDTH * group);
            const float x[WIDTH] = {to_float(halves.x & 0xffff), to_float(halves.x >> 16), to_float(halves.y & 0xffff),
                                    to_float(halves.y >> 16)};
            each(x);
        }
    }
    __device__ size_t chunks() const { return (n + CHUNK_ROWS - 1) / CHUNK_ROWS; }
};

/* Computes mean[hd]. some[slots][hd] is scratch. */
static __device__ void find_means(const fit_job &job, float *some, float *mean) {
    double sum[CODEC_HEAD_DIM_MAX / FIT_THREADS] = {0}; /* of channels threadIdx.x, threadIdx.x + FIT_THREADS, ... */
    for (size_t first = 0; first < job.chunks(); first += job.slots) {
        const uint32_t count = (uint32_t)(job.chunks() - first < job.slots ? job.chunks() - first : job.slots);
        if (job.slot < count) {
            float own[WIDTH] = {0};
            job.each_row(first + job.slot, [&](const float(&x)[WIDTH]) {
                for (int i = 0; i < WIDTH; i++) own[i] += x[i];
            });
            for (int i = 0; i < WIDTH; i++) some[job.slot * job.hd + WIDTH * job.group + i] = own[i];
        }
        __syncthreads();
        for (uint32_t k = 0, c = threadIdx.x; c < job.hd; c += FIT_THREADS, k++)
            for (uint32_t slot = 0; slot < count; slot++) sum[k] += (double)some[slot * job.hd + c];
        __syncthreads();
    }
    for (uint32_t k = 0, c = threadIdx.x; c < job.hd; c += FIT_THREADS, k++) mean[c] = (float)(sum[k] / (double)job.n);
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

/* Computes the centroids. sums[groups][16][4], counts[groups][16] and some[16][4][FIT_THREADS] are scratch. */
static __device__ void find_centroids(const fit_job &job, const float *mean, double *sums, uint32_t *counts, float *some,
                                      float *centroids) {
    for (uint32_t i = threadIdx.x; i < job.groups * CODES * WIDTH; i += FIT_THREADS) sums[i] = 0;
    for (uint32_t i = threadIdx.x; i < job.groups * CODES; i += FIT_THREADS) counts[i] = 0;
    __syncthreads();
    for (size_t first = 0; first < job.chunks(); first += job.slots) {
        const uint32_t count = (uint32_t)(job.chunks() - first < job.slots ? job.chunks() - first : job.slots);
        for (uint32_t i = 0; i < CODES * WIDTH; i++) some[i * FIT_THREADS + threadIdx.x] = 0;
        if (job.slot < count)
            job.each_row(first + job.slot, [&](const float(&x)[WIDTH]) {
                float centred[WIDTH];
                uint32_t code = 0;
                for (uint32_t i = 0; i < WIDTH; i++) {
                    centred[i] = x[i] - mean[WIDTH * job.group + i];
                    code |= (uint32_t)(centred[i] >= 0) << i;
                }
                for (uint32_t i = 0; i < WIDTH; i++) some[(code * WIDTH + i) * FIT_THREADS + threadIdx.x] += centred[i];
                atomicAdd(&counts[job.group * CODES + code], 1u);
            });
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < job.groups * CODES * WIDTH; i += FIT_THREADS)
            for (uint32_t slot = 0; slot < count; slot++)
                sums[i] += (double)some[i % (CODES * WIDTH) * FIT_THREADS + slot * job.groups + i / (CODES * WIDTH)];
        __syncthreads();
    }
    for (uint32_t g = threadIdx.x; g < job.groups; g += FIT_THREADS)
        set_centroids(sums + g * CODES * WIDTH, counts + g * CODES, centroids + g * CODES * WIDTH);
}

/* Computes alpha[hd], the largest |key - mean|; most[hd + 1] is scratch. */
static __device__ void find_alpha(const fit_job &job, const float *mean, uint32_t *most, float *alpha) {
    for (uint32_t c = threadIdx.x; c <= job.hd; c += FIT_THREADS) most[c] = 0;
    __syncthreads();
    float own[WIDTH] = {0};
    for (size_t chunk = job.slot; job.slot < job.slots && chunk < job.chunks(); chunk += job.slots)
        job.each_row(chunk, [&](const float(&x)[WIDTH]) {
            for (uint32_t i = 0; i < WIDTH; i++) {
                const float size = fabsf(x[i] - mean[WIDTH * job.group + i]);
                own[i] = size > own[i] ? size : own[i];
            }
        });
    for (uint32_t i = 0; i < WIDTH && job.slot < job.slots; i++) /* bits order as magnitudes do */
        atomicMax(&most[WIDTH * job.group + i], __float_as_uint(own[i]));
    __syncthreads();
    for (uint32_t c = threadIdx.x; c < job.hd; c += FIT_THREADS) atomicMax(&most[job.hd], most[c]);
    __syncthreads();
    const float largest = __uint_as_float(most[job.hd]);
    const float least = largest > 0 && largest < INFINITY ? fmaxf(largest * LEAST_ALPHA, 1e-30f) : 1;
    for (uint32_t c = threadIdx.x; c < job.hd; c += FIT_THREADS) {
        const float size = __uint_as_float(most[c]);
        alpha[c] = size > least && size < INFINITY ? size : least;
    }
}

static __global__ void __launch_bounds__(FIT_THREADS) fit_sign_kernel(const __grid_constant__ struct fit_sign fit) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float mean[CODEC_HEAD_DIM_MAX];
    const uint32_t hd = fit.head_dim, groups = hd / WIDTH;
    fit_job job;
    job.rows = fit.rows + blockIdx.y * fit.layer_stride + blockIdx.x * fit.head_stride;
    job.n = fit.n, job.token_stride = fit.token_stride, job.hd = hd, job.groups = groups, job.slots = FIT_THREADS / groups;
    job.group = threadIdx.x % groups, job.slot = threadIdx.x / groups;
    float *const learned = fit.own_learned + ((size_t)(fit.layer + blockIdx.y) * fit.kv_heads + blockIdx.x) * fit.learned_floats;
    double *const sums = (double *)shared;
    float *const some = (float *)(sums + groups * CODES * WIDTH);
    uint32_t *const counts = (uint32_t *)(some + CODES * WIDTH * FIT_THREADS);
    find_means(job, some, mean);
    for (uint32_t c = threadIdx.x; c < hd; c += FIT_THREADS) learned[c] = mean[c];
    find_centroids(job, mean, sums, counts, some, learned + hd);
    __syncthreads();
    if (fit.alpha) find_alpha(job, mean, (uint32_t *)some, learned + hd + hd * CODES);
}

cudaError_t fit_sign(const struct fit_sign *fit, cudaStream_t stream) {
    const size_t groups = fit->head_dim / WIDTH, shared = groups * CODES * (WIDTH * sizeof(double) + sizeof(uint32_t)) +
                                                          CODES * WIDTH * FIT_THREADS * sizeof(float);
    const cudaError_t result = allow_shared(fit_sign_kernel, shared);
    if (result != cudaSuccess) return result;
    fit_sign_kernel<<<dim3(fit->kv_heads, fit->n_layers), FIT_THREADS, shared, stream>>>(*fit);
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
