/* Has the code that codecs of integers with scales share as they encode and decode pages: a page's rows in shared memory, groups of
 * 32 channels, and the launch. A new codec's kernels begin with it.
 *
 * A block has its 64 rows in shared memory, as words of two halves with an odd number of words from row to row, so that threads
 * that read a channel of 32 tokens do not wait for one another. */
#ifndef TERSE_BACKEND_CUDA_KV_ENCODE_ROWS_CUH
#define TERSE_BACKEND_CUDA_KV_ENCODE_ROWS_CUH

#include "backend/cuda/kv/encode_common.cuh"

#define PAGE_THREADS 128
#define ROW_CHUNK 8 /* halves that are moved together */

/* ---- Halves */

static __device__ inline float to_float(uint32_t half) { return __half2float(__ushort_as_half((unsigned short)half)); }

/* Converts to half precision; NaN becomes the NaN that infinity less infinity gives on x86. */
static __device__ inline uint32_t to_half(float x) { return x != x ? 0xfe00u : __half_as_ushort(__float2half_rn(x)); }

static __device__ inline uint32_t rows_stride(uint32_t hd) { return hd / 2 + 1; }

/* Returns token t's channel c as a half. */
static __device__ inline uint32_t half_at(const uint32_t *rows, uint32_t stride, uint32_t t, uint32_t c) {
    return rows[t * stride + c / 2] >> (c % 2 * 16) & 0xffff;
}

/* Calls at(t, j) for all tokens before `count` and chunks of a row. */
template <class At> static __device__ inline void each_chunk(uint32_t hd, uint32_t count, At at) {
    const uint32_t chunks = hd / ROW_CHUNK;
    for (uint32_t i = threadIdx.x; i < count * chunks; i += PAGE_THREADS) at(i / chunks, i % chunks);
}

/* Loads rows[64] of a job; zeros where there is no token. */
static __device__ inline void load_rows(const struct encode &e, const struct page_job &job, uint32_t *rows) {
    const uint32_t hd = e.heads.head_dim, stride = rows_stride(hd);
    each_chunk(hd, PAGE_TOKENS, [&](uint32_t t, uint32_t j) {
        uint4 x = make_uint4(0, 0, 0, 0);
        if (t < job.count) x = *(const uint4 *)(job.rows + t * e.token_stride + ROW_CHUNK * j);
        uint32_t *to = rows + t * stride + ROW_CHUNK / 2 * j;
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    });
    __syncthreads();
}

static __device__ inline void store_rows(const struct encode &e, const struct page_job &job, const uint32_t *rows) {
    const uint32_t hd = e.heads.head_dim, stride = rows_stride(hd);
    __syncthreads();
    each_chunk(hd, job.count, [&](uint32_t t, uint32_t j) {
        const uint32_t *from = rows + t * stride + ROW_CHUNK / 2 * j;
        *(uint4 *)(job.rows + t * e.token_stride + ROW_CHUNK * j) = make_uint4(from[0], from[1], from[2], from[3]);
    });
}

/* Stores channel c of tokens 8 octet to 8 octet + 7 in rows. */
static __device__ inline void put_channel(uint32_t *rows, uint32_t stride, uint32_t c, uint32_t octet, const uint32_t halves[8]) {
    unsigned short *to = (unsigned short *)(rows + 8 * octet * stride) + c;
    for (uint32_t k = 0; k < 8; k++) to[2 * stride * k] = (unsigned short)halves[k];
}

/* Calls at(c, octet) for all channels and octets of tokens. */
template <class At> static __device__ inline void each_octet(uint32_t hd, At at) {
    for (uint32_t i = threadIdx.x; i < hd * (PAGE_TOKENS / 8); i += PAGE_THREADS) at(i / 8, i % 8);
}

/* ---- Groups of 32 channels that share a scale */

/* Calls at(t, group) in such an order that neighbouring threads write to neighbouring bytes. */
template <class At> static __device__ inline void each_group(uint32_t groups, int side, At at) {
    for (uint32_t i = threadIdx.x; i < PAGE_TOKENS * groups; i += PAGE_THREADS)
        if (side == CODEC_KEYS)
            at(i % PAGE_TOKENS, i / PAGE_TOKENS);
        else
            at(i / groups, i % groups);
}

static __device__ inline void load_group(const uint32_t *rows, uint32_t stride, uint32_t t, uint32_t group, uint32_t words[16]) {
#pragma unroll
    for (uint32_t j = 0; j < 16; j++) words[j] = rows[t * stride + group * 16 + j];
}

static __device__ inline float group_number(const uint32_t words[16], uint32_t j) {
    return to_float(words[j / 2] >> (j % 2 * 16) & 0xffff);
}

/* Returns the first number of largest magnitude. */
static __device__ inline float group_extreme(const uint32_t words[16]) {
    uint32_t most = 0, extreme = words[0] & 0xffff;
#pragma unroll
    for (uint32_t j = 0; j < 32; j++) {
        const uint32_t half = words[j / 2] >> (j % 2 * 16) & 0xffff, magnitude = half & 0x7fff;
        if (magnitude > most) most = magnitude, extreme = half;
    }
    return to_float(extreme);
}

/* ---- Codes of 8 numbers */

static __device__ inline uint32_t byte_of(uint2 bytes, uint32_t k) { return (k < 4 ? bytes.x : bytes.y) >> (k % 4 * 8) & 0xff; }

/* Writes a chunk of a row. */
static __device__ inline void store_chunk(const struct encode &e, const struct page_job &job, uint32_t t, uint32_t j,
                                          const uint32_t halves[8]) {
    uint4 *to = (uint4 *)(job.rows + t * e.token_stride + ROW_CHUNK * j);
    *to = make_uint4(halves[0] | halves[1] << 16, halves[2] | halves[3] << 16, halves[4] | halves[5] << 16,
                     halves[6] | halves[7] << 16);
}

/* ---- Groups of kivi, which has an offset beside the scale */

struct kivi_group {
    uint32_t scale, zero; /* halves */
    float z, inverse;
};

/* Fits a group to the numbers x(0) to x(n - 1); all 0 if there are none. */
template <int BITS, class Number> static __device__ struct kivi_group kivi_fit(uint32_t n, Number x) {
    struct kivi_group group = {0, 0, 0, 0};
    if (!n) return group;
    float least = x(0), most = least;
    for (uint32_t i = 1; i < n; i++) {
        least = fminf(least, x(i));
        most = fmaxf(most, x(i));
    }
    group.zero = to_half(least);
    group.scale = to_half(__fdiv_rn(__fsub_rn(most, least), (float)((1 << BITS) - 1)));
    const float s = to_float(group.scale);
    group.z = to_float(group.zero);
    group.inverse = s > 0 ? __fdiv_rn(1, s) : 0;
    return group;
}

template <int BITS> static __device__ uint32_t kivi_code(const struct kivi_group &group, float x) {
    const float levels = (float)((1 << BITS) - 1), code = __fadd_rn(__fmul_rn(__fsub_rn(x, group.z), group.inverse), 0.5f);
    return (uint32_t)(code > 0 ? (code < levels ? code : levels) : 0);
}

/* Writes numbers of `count` tokens by groups of 32 channels: u32 page[64][codes, {scale, zero}[groups]], where byte j of the codes has
 * channels j, j + hd BITS / 8, ...; zeros where there is no token. The i-th number of group b is x(words, b, i), of the group's words
 * of rows[64] in shared memory, which are lost. */
template <int BITS, class Number>
static __device__ void write_kivi_tokens(uint32_t hd, uint32_t count, uint32_t *rows, uint32_t *page, Number x) {
    const uint32_t groups = hd / SCALE_GROUP, stride = rows_stride(hd), words_of_row = hd * BITS / 32,
                   page_words = words_of_row + groups;
    /* Codes become bytes where the group's numbers were. */
    const auto write_group = [&](uint32_t t, uint32_t b) {
        uint32_t words[16], bytes[8] = {0};
        struct kivi_group group = {0, 0, 0, 0};
        load_group(rows, stride, t, b, words);
        if (t < count) {
            group = kivi_fit<BITS>(SCALE_GROUP, [&](uint32_t i) { return x(words, b, i); });
#pragma unroll
            for (uint32_t i = 0; i < SCALE_GROUP; i++) bytes[i / 4] |= kivi_code<BITS>(group, x(words, b, i)) << (i % 4 * 8);
        }
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) rows[t * stride + b * 16 + k] = bytes[k];
        page[t * page_words + words_of_row + b] = group.scale | group.zero << 16;
    };
    each_group(groups, CODEC_VALUES, write_group);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < PAGE_TOKENS * words_of_row; i += PAGE_THREADS) {
        const uint32_t t = i / words_of_row, w = i % words_of_row;
        uint32_t packed = 0;
#pragma unroll
        for (uint32_t k = 0; k < 8 / BITS; k++) {
            const uint32_t word = w + k * words_of_row; /* of the token's bytes */
            packed |= rows[t * stride + word / 8 * 16 + word % 8] << (k * BITS);
        }
        page[t * page_words + w] = packed;
    }
}

/* ---- Launches */

/* A page_task is a block's work on its page, with its rows in shared memory. */
typedef void page_task(const struct encode &e, const struct page_job &job, uint32_t *rows);

template <page_task *TASK>
static __global__ void __launch_bounds__(PAGE_THREADS)
    pages_kernel(const __grid_constant__ struct encode e, struct encode_sides sides) {
    extern __shared__ uint32_t rows[];
    TASK(e, job_of_block(e, sides), rows);
}

template <page_task *TASK>
static cudaError_t launch_pages(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    const size_t shared = PAGE_TOKENS * (encode->heads.head_dim / 2 + 1) * sizeof(uint32_t);
    pages_kernel<TASK><<<encode_grid(encode, sides), PAGE_THREADS, shared, stream>>>(*encode, sides);
    return cudaGetLastError();
}

#endif
