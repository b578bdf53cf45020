/* Has what writing and reading pages of learned codecs share, in a block of 256 threads: rows of a page are copied to numbers by
 * channel, and back; for the codec transform there are products with a matrix and the levels of codes. Floats are multiplied and
 * summed in the order of the CPU's vector kernels; files that include this are compiled so that no product and sum are fused but
 * where fmaf says so. */
#ifndef TERSE_BACKEND_CUDA_KV_TRANSFORM_PAGE_CUH
#define TERSE_BACKEND_CUDA_KV_TRANSFORM_PAGE_CUH

#include "backend/cuda/kv/encode_common.cuh"
#include "format/transform_levels.h"

#define TRANSFORM_THREADS 256
#define TILE_DEPTH 16 /* of a matrix in shared memory at a time */
#define NO_PLANE 255

static __device__ inline const struct transform_view &view_of(const struct encode &e, const struct page_job &job) {
    const struct transform_view *own = job.item->rate.transforms[job.side];
    return (own ? own : (const struct transform_view *)e.learned[job.side])[job.place];
}

/* ---- Rows: numbers[channel][64 tokens] */

struct pair_channels {
    uint32_t a, b;
};

static __device__ inline struct pair_channels channels_of_pair(const struct head_view &heads, uint32_t pair) {
    return heads.pairing == ROPE_ADJACENT ? pair_channels{2 * pair, 2 * pair + 1} : pair_channels{pair, pair + heads.n_rot / 2};
}

/* Returns cosine and sine of a pair at the position of a page's run. */
static __device__ inline float2 run_angle(const struct encode &e, uint32_t first, uint32_t pair) {
    return ((const float2 *)e.run_angles)[(size_t)(first / ROPE_RUN_TOKENS) * (e.heads.n_rot / 2) + pair];
}

static __device__ inline float2 rotate_forth(float2 x, float2 angle) {
    return make_float2(fmaf(-x.y, angle.y, x.x * angle.x), fmaf(x.x, angle.y, x.y * angle.x));
}
static __device__ inline float2 rotate_back(float2 x, float2 angle) { return rotate_forth(x, make_float2(angle.x, -angle.y)); }

/* Rotates all pairs of keys' numbers back by the run's position, or forth; values stay as they are. */
template <bool BACK>
static __device__ void rotate_by_run(const struct encode &e, const struct page_job &job, float (*numbers)[PAGE_TOKENS]) {
    if (job.side != CODEC_KEYS) return;
    for (uint32_t i = threadIdx.x; i < e.heads.n_rot / 2 * PAGE_TOKENS; i += TRANSFORM_THREADS) {
        const uint32_t pair = i / PAGE_TOKENS, t = i % PAGE_TOKENS;
        const struct pair_channels at = channels_of_pair(e.heads, pair);
        const float2 angle = run_angle(e, job.item->set.first, pair), x = make_float2(numbers[at.a][t], numbers[at.b][t]);
        const float2 y = BACK ? rotate_back(x, angle) : rotate_forth(x, angle);
        numbers[at.a][t] = y.x;
        numbers[at.b][t] = y.y;
    }
    __syncthreads();
}

static __device__ inline void spread_halves(uint32_t word, float *low, float *high) {
    *low = __half2float(__ushort_as_half((unsigned short)(word & 0xffff)));
    *high = __half2float(__ushort_as_half((unsigned short)(word >> 16)));
}

/* Adds to keys' numbers factor times their mean before rotation, turned to their offsets, as pre_rope_add of kv/pre_rope.h does. */
static __device__ inline void add_pre_rope_mean(const struct encode &e, const struct page_job &job, float factor, const float *mean,
                                                float (*numbers)[PAGE_TOKENS]) {
    if (job.side != CODEC_KEYS) return;
    const uint32_t offset = job.item->set.first % ROPE_RUN_TOKENS;
    for (uint32_t i = threadIdx.x; i < e.pre_rope.pairs * PAGE_TOKENS; i += TRANSFORM_THREADS) {
        const uint32_t pair = i / PAGE_TOKENS, t = i % PAGE_TOKENS;
        const struct pair_channels at = channels_of_pair(e.heads, pair);
        const float2 angle = ((const float2 *)e.pre_rope.offsets)[(size_t)(offset + t) * (e.heads.n_rot / 2) + pair];
        const float a = factor * mean[at.a], b = factor * mean[at.b];
        numbers[at.a][t] = numbers[at.a][t] + (a * angle.x - b * angle.y);
        numbers[at.b][t] = numbers[at.b][t] + (a * angle.y + b * angle.x);
    }
    __syncthreads();
}

/* Loads the page's rows, keys in the frame of their run; zeros where there is no token. */
template <int HD>
static __device__ void load_numbers(const struct encode &e, const struct page_job &job, float (*numbers)[PAGE_TOKENS]) {
    for (uint32_t i = threadIdx.x; i < HD / 8 * PAGE_TOKENS; i += TRANSFORM_THREADS) {
        const uint32_t t = i % PAGE_TOKENS, c = i / PAGE_TOKENS * 8;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (t < job.count) x = *(const uint4 *)(job.rows + t * e.token_stride + c);
        const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) spread_halves(words[k], &numbers[c + 2 * k][t], &numbers[c + 2 * k + 1][t]);
    }
    __syncthreads();
    rotate_by_run<true>(e, job, numbers);
}

/* Subtracts the mean from rows; sets zeros where there is no token. */
template <int HD> static __device__ void take_mean(const struct page_job &job, const float *mean, float (*numbers)[PAGE_TOKENS]) {
    for (uint32_t i = threadIdx.x; i < HD * PAGE_TOKENS; i += TRANSFORM_THREADS) {
        const uint32_t c = i / PAGE_TOKENS, t = i % PAGE_TOKENS;
        numbers[c][t] = t < job.count ? numbers[c][t] - mean[c] : 0;
    }
    __syncthreads();
}

static __device__ inline uint32_t two_halves(float low, float high) {
    return __half_as_ushort(__float2half_rn(low)) | (uint32_t)__half_as_ushort(__float2half_rn(high)) << 16;
}

/* Stores numbers as rows. Neighbouring threads write a sector of 32 bytes. */
template <int HD>
static __device__ void store_numbers(const struct encode &e, const struct page_job &job, const float (*numbers)[PAGE_TOKENS]) {
    for (uint32_t i = threadIdx.x; i < HD / 8 * PAGE_TOKENS; i += TRANSFORM_THREADS) {
        const uint32_t t = i / 2 % PAGE_TOKENS, c = (i / (2 * PAGE_TOKENS) * 2 + i % 2) * 8;
        if (t >= job.count) continue;
        *(uint4 *)(job.rows + t * e.token_stride + c) =
            make_uint4(two_halves(numbers[c][t], numbers[c + 1][t]), two_halves(numbers[c + 2][t], numbers[c + 3][t]),
                       two_halves(numbers[c + 4][t], numbers[c + 5][t]), two_halves(numbers[c + 6][t], numbers[c + 7][t]));
    }
}

/* ---- Products: out[r][t] = sum over k of matrix(r, k) numbers[k][t], in order of k. A thread has 4 tokens and HD / 16 rows. */

template <int HD> struct product { float sums[HD / 32][2][4]; };

static __device__ inline uint32_t product_token(void) { return threadIdx.x % 16 * 4; }
static __device__ inline uint32_t product_row(uint32_t g) { return 32 * g + threadIdx.x / 16 * 2; }

/* Loads matrix(r, k) for k in [first, first + TILE_DEPTH) to tile[k][r]. ROWS: the matrix lies as [r][k], else as [k][r]. */
/* An integer_rows is a matrix of integers whose rows have units. */
struct integer_rows {
    const int16_t *integers;
    const float *unit;
};

/* Loads four numbers of row r from column c on. */
template <int HD> static __device__ float4 load_four(const float *matrix, uint32_t r, uint32_t c) {
    return *(const float4 *)(matrix + (size_t)r * HD + c);
}
template <int HD> static __device__ float4 load_four(struct integer_rows matrix, uint32_t r, uint32_t c) {
    const short4 x = *(const short4 *)(matrix.integers + (size_t)r * HD + c);
    const float unit = matrix.unit[r];
    return make_float4(unit * (float)x.x, unit * (float)x.y, unit * (float)x.z, unit * (float)x.w);
}

template <int HD, bool ROWS, class Matrix> static __device__ void load_tile(Matrix matrix, uint32_t first, float (*tile)[HD]) {
    for (uint32_t i = threadIdx.x; i < HD * TILE_DEPTH / 4; i += TRANSFORM_THREADS) {
        if (ROWS) {
            const uint32_t r = i % HD, k = i / HD * 4;
            const float4 x = load_four<HD>(matrix, r, first + k);
            tile[k][r] = x.x, tile[k + 1][r] = x.y, tile[k + 2][r] = x.z, tile[k + 3][r] = x.w;
        } else {
            const uint32_t r = i % (HD / 4) * 4, k = i / (HD / 4);
            *(float4 *)&tile[k][r] = load_four<HD>(matrix, first + k, r);
        }
    }
}

/* Multiplies `depth` numbers of each token, rounded up to TILE_DEPTH; numbers past `depth` must be 0. */
template <int HD, bool ROWS, class Matrix>
static __device__ void multiply(Matrix matrix, uint32_t depth, const float (*numbers)[PAGE_TOKENS], float (*tile)[HD],
                                struct product<HD> &out) {
#pragma unroll
    for (uint32_t i = 0; i < HD / 4; i++) out.sums[i / 8][i / 4 % 2][i % 4] = 0;
    for (uint32_t first = 0; first < depth; first += TILE_DEPTH) {
        load_tile<HD, ROWS>(matrix, first, tile);
        __syncthreads();
#pragma unroll 4
        for (uint32_t k = 0; k < TILE_DEPTH; k++) {
            const float4 x = *(const float4 *)&numbers[first + k][product_token()];
#pragma unroll
            for (uint32_t g = 0; g < HD / 32; g++) {
                const float2 a = *(const float2 *)&tile[k][product_row(g)];
                float(&sums)[2][4] = out.sums[g];
                sums[0][0] = fmaf(a.x, x.x, sums[0][0]), sums[0][1] = fmaf(a.x, x.y, sums[0][1]);
                sums[0][2] = fmaf(a.x, x.z, sums[0][2]), sums[0][3] = fmaf(a.x, x.w, sums[0][3]);
                sums[1][0] = fmaf(a.y, x.x, sums[1][0]), sums[1][1] = fmaf(a.y, x.y, sums[1][1]);
                sums[1][2] = fmaf(a.y, x.z, sums[1][2]), sums[1][3] = fmaf(a.y, x.w, sums[1][3]);
            }
        }
        __syncthreads();
    }
}

/* Stores the product over the numbers that were multiplied, once no thread reads them any more. */
template <int HD> static __device__ void store_product(const struct product<HD> &out, float (*numbers)[PAGE_TOKENS]) {
#pragma unroll
    for (uint32_t i = 0; i < HD / 16; i++) {
        const float(&sums)[4] = out.sums[i / 2][i % 2];
        *(float4 *)&numbers[product_row(i / 2) + i % 2][product_token()] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    }
    __syncthreads();
}

/* Turns numbers less their means into coefficients in a view's basis, times sizes. */
template <int HD>
static __device__ void find_coefficients(const struct transform_view &view, float (*numbers)[PAGE_TOKENS], float (*tile)[HD]) {
    struct product<HD> product;
    multiply<HD, true>(view.metric, HD, numbers, tile, product);
    store_product(product, numbers);
    multiply<HD, true>(integer_rows{view.basis, view.unit}, HD, numbers, tile, product);
    store_product(product, numbers);
}

/* ---- Layouts */

/* A page_layout has a layout, and tables that follow from it, in shared memory. */
struct page_layout {
    struct transform_layout layout;
    uint32_t first[TRANSFORM_QUADS_MAX], second[TRANSFORM_QUADS_MAX]; /* planes of a quad, or NO_PLANE */
    int8_t levels[TRANSFORM_TABLES][16];
};

static __constant__ int8_t device_levels[TRANSFORM_TABLES][16] = TRANSFORM_LEVELS;

/* Loads the layout. All threads call this; they may read it after their next barrier. */
static __device__ inline void load_layout(const struct transform_layout &from, struct page_layout *to) {
    static_assert(sizeof(struct transform_layout) % 4 == 0, "words of a layout");
    for (uint32_t i = threadIdx.x; i < sizeof from / 4; i += TRANSFORM_THREADS)
        ((uint32_t *)&to->layout)[i] = ((const uint32_t *)&from)[i];
    for (uint32_t i = threadIdx.x; i < sizeof device_levels; i += TRANSFORM_THREADS)
        to->levels[i / 16][i % 16] = device_levels[i / 16][i % 16];
    for (uint32_t q = threadIdx.x; q < TRANSFORM_QUADS_MAX; q += TRANSFORM_THREADS) to->first[q] = NO_PLANE, to->second[q] = 0;
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < to->layout.planes; p += TRANSFORM_THREADS) {
        atomicMin(&to->first[to->layout.plane[p].quad], p);
        atomicMax(&to->second[to->layout.plane[p].quad], p);
    }
    __syncthreads();
    for (uint32_t q = threadIdx.x; q < TRANSFORM_QUADS_MAX; q += TRANSFORM_THREADS)
        if (to->second[q] == to->first[q] || to->first[q] == NO_PLANE) to->second[q] = NO_PLANE;
}

/* Returns the integer level of component i by a plane. nibble(n) is a token's 16 bits of the n-th nibble, component 0 the lowest. */
template <class Nibble>
static __device__ int32_t plane_integer(const struct page_layout &l, uint32_t p, uint32_t i, Nibble nibble) {
    const struct transform_plane plane = l.layout.plane[p];
    const uint32_t written = plane.table % 4u + 1, old = 15u >> written, stream = l.layout.stream;
    uint32_t bits = nibble(plane.nibble) >> 4 * i & 15;
    if (old) {
        const uint32_t first = l.layout.nibbles - stream > 1 ? stream + 1 : stream;
        const bool wraps = plane.nibble == first;
        const uint32_t before = wraps ? stream : plane.nibble == stream ? l.layout.nibbles - 1u : plane.nibble - 1u;
        bits = (bits & ~old) | (nibble(before) >> 4 * (wraps ? (i + 3) % 4 : i) & old);
    }
    const uint32_t window = (bits << written | bits >> (4 - written)) & 15;
    return l.levels[plane.table / 4u][window];
}

/* Returns the same in units of the component's size. */
template <class Nibble> static __device__ float plane_level(const struct page_layout &l, uint32_t p, uint32_t i, Nibble nibble) {
    return l.layout.plane[p].scale * (float)plane_integer(l, p, i, nibble);
}

/* Returns the level of component i by all planes of a quad. */
template <class Nibble> static __device__ float quad_level(const struct page_layout &l, uint32_t quad, uint32_t i, Nibble nibble) {
    const float level = plane_level(l, l.first[quad], i, nibble);
    return l.second[quad] == NO_PLANE ? level : level + plane_level(l, l.second[quad], i, nibble);
}

/* ---- Nibbles in a page (format/page_layout.h) */

/* Returns the first octet of tokens whose codes the w-th word of a nibble has, in its bytes' lower four bits; those of the second
 * octet after it are in the upper ones. */
static __device__ inline uint32_t word_octet(uint32_t w) { return w / 16 * 4 + w / 8 % 2; }

/* Returns the w-th word of a nibble of which token t's 16 bits are own[t]. */
static __device__ inline uint32_t pack_word(int side, uint32_t w, const uint16_t *own) {
    const uint32_t octet = word_octet(w), r = w % 8;
    uint32_t word = 0;
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) { /* bytes: components of a key, tokens of a value's component */
        const uint32_t t = side == CODEC_KEYS ? r : r / 4 * 4 + k, shift = 4 * (side == CODEC_KEYS ? k : r % 4);
        word |= (own[8 * octet + t] >> shift & 15u) << (8 * k) | (own[8 * (octet + 2) + t] >> shift & 15u) << (8 * k + 4);
    }
    return word;
}

/* Returns token t's 16 bits of a nibble's bytes. */
static __device__ inline uint32_t unpack_nibble(int side, const uint8_t *bytes, uint32_t t) {
    const uint8_t *octet = bytes + t / 32 * 64 + t / 8 % 2 * 32;
    const uint32_t shift = t / 16 % 2 * 4;
    uint32_t own = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t byte = octet[side == CODEC_KEYS ? 4 * (t % 8) + i : 16 * (t % 8 / 4) + 4 * i + t % 4];
        own |= (byte >> shift & 15) << (4 * i);
    }
    return own;
}

/* Calls the launch for the heads' head_dim. */
#define TRANSFORM_HEAD_DIMS(heads, launch) \
    switch ((heads).head_dim) { \
    case 64: return launch(64); \
    case 96: return launch(96); \
    case 128: return launch(128); \
    case 256: return launch(256); \
    default: return cudaErrorNotSupported; \
    }

#endif
