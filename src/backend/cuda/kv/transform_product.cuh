/* Multiplies a page's numbers by a matrix on tensor cores, in a block of 256 threads, nearly as exactly as in floats: each factor is
 * the sum of two halves, which have 22 bits together, and the product of the lower two is left out. Each token's numbers are multiplied by
 * a power of two of its own that brings them into the halves' range, so that no token depends on another. */
#ifndef TERSE_BACKEND_CUDA_KV_TRANSFORM_PRODUCT_CUH
#define TERSE_BACKEND_CUDA_KV_TRANSFORM_PRODUCT_CUH

#include "backend/cuda/kv/encode_common.cuh"
#include "backend/cuda/ptx.cuh"

#define TRANSFORM_THREADS 256
#define PRODUCT_DEPTH 16                              /* numbers of a token that enter a product of a warp together */
#define TOKEN_PARTS (TRANSFORM_THREADS / PAGE_TOKENS) /* threads that share a token */
#define NUMBERS_STRIDE (PAGE_TOKENS + 8)              /* so that lanes that store a product lie in different banks */
#define HALVES_STRIDE (PAGE_TOKENS + 2)               /* so that lanes that load halves do */

template <int HD> struct page_numbers {
    union {
        float of[HD][NUMBERS_STRIDE];        /* [channel or component][token] */
        uint4 halves[HD / 4][HALVES_STRIDE]; /* while they are multiplied: of four numbers the two pairs, then the pairs of rests */
    };
    float most[TOKEN_PARTS][PAGE_TOKENS];
    float unit[PAGE_TOKENS]; /* of the halves, a power of two */
};

/* ---- Numbers as halves */

static __device__ inline uint32_t two_halves(float low, float high) {
    return __half_as_ushort(__float2half_rn(low)) | (uint32_t)__half_as_ushort(__float2half_rn(high)) << 16;
}

/* Returns what rounding to a half leaves. */
static __device__ inline float rest_of_half(float x) { return x - __half2float(__float2half_rn(x)); }

/* Returns two numbers as halves and what rounding to these leaves. */
static __device__ inline uint2 split_two(float low, float high) {
    const __half2 halves = __floats2half2_rn(low, high);
    const float2 rounded = __half22float2(halves);
    return make_uint2(*(const uint32_t *)&halves, two_halves(low - rounded.x, high - rounded.y));
}

static __device__ inline uint4 split_four(float a, float b, float c, float d) {
    const uint2 low = split_two(a, b), high = split_two(c, d);
    return make_uint4(low.x, high.x, low.y, high.y);
}

/* Returns the power of two that brings numbers, of which `most` is the largest, to between 2^14 and 2^15; 1 where it is 0 or not
 * finite. */
static __device__ inline float factor_of(float most) {
    const uint32_t exponent = __float_as_uint(most) >> 23;
    if (exponent == 0 || exponent == 255) return 1;
    const uint32_t own = 127 + 14 + 127 - exponent;
    return __uint_as_float((own < 253 ? own : 253) << 23);
}

/* Returns what is 1 / factor of such a power of two, exactly. */
static __device__ inline float inverse_of(float factor) { return __uint_as_float((2 * 127 << 23) - __float_as_uint(factor)); }

/* Turns the first `depth` numbers of each token, a multiple of 4, into halves. */
template <int HD> static __device__ void split_numbers(uint32_t depth, struct page_numbers<HD> &n) {
    constexpr uint32_t most_quads = HD / 4 / TOKEN_PARTS;
    const uint32_t t = threadIdx.x % PAGE_TOKENS, part = threadIdx.x / PAGE_TOKENS;
    float own[most_quads][4], most = 0;
#pragma unroll
    for (uint32_t i = 0; i < most_quads; i++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t c = 4 * (part + TOKEN_PARTS * i) + j;
            own[i][j] = depth == HD || c < depth ? n.of[c][t] : 0;
            most = fmaxf(most, fabsf(own[i][j]));
        }
    n.most[part][t] = most;
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < TOKEN_PARTS; i++) most = fmaxf(most, n.most[i][t]);
    const float factor = factor_of(most);
#pragma unroll
    for (uint32_t i = 0; i < most_quads; i++) {
        const uint32_t quad = part + TOKEN_PARTS * i;
        if (depth == HD || 4 * quad < depth)
            n.halves[quad][t] = split_four(own[i][0] * factor, own[i][1] * factor, own[i][2] * factor, own[i][3] * factor);
    }
    if (part == 0) n.unit[t] = inverse_of(factor);
    __syncthreads();
}

/* ---- Integers as halves. Words have two integers of 16 bits; the halves are 64 times smaller. */

#define INTEGER_UNIT 64.0f

static __device__ inline uint32_t subtract_halves(uint32_t x, uint32_t y) {
    const __half2 difference = __hsub2(*(const __half2 *)&x, *(const __half2 *)&y);
    return *(const uint32_t *)&difference;
}

static __device__ inline uint32_t add_halves(uint32_t x, uint32_t y) {
    const __half2 sum = __hadd2(*(const __half2 *)&x, *(const __half2 *)&y);
    return *(const uint32_t *)&sum;
}

/* Returns a word's integers as halves and, exactly, what these leave. */
static __device__ inline uint2 split_integers(uint32_t word) {
    /* 1536 and a signed number of ten bits are a half, and so are 16 and a number of six bits by 64. */
    const uint32_t upper = subtract_halves((word >> 6 & 0x03ff03ff) ^ 0x66006600, 0x66006600),
                   lower = subtract_halves((word & 0x003f003f) | 0x4c004c00, 0x4c004c00), sum = add_halves(upper, lower);
    return make_uint2(sum, add_halves(subtract_halves(upper, sum), lower));
}

/* ---- Products */

/* The matrix's rows are dealt to the warps in blocks of 16; where there are few, two warps share the tokens of a block. */
template <int HD> struct product_shape {
    static constexpr uint32_t warps = TRANSFORM_THREADS / 32, blocks = HD / 16, shares = blocks <= warps / 2 ? 2 : 1,
                              own = (blocks * shares + warps - 1) / warps, /* blocks of a warp */
        tiles = PAGE_TOKENS / 8 / shares;                                  /* of 8 tokens */
};

#define TILES_TOGETHER 4 /* tiles that are multiplied in turn */

template <int HD> struct product {
    float sums[product_shape<HD>::own][product_shape<HD>::tiles / TILES_TOGETHER][TILES_TOGETHER][4];
};

/* A row_block has a lane's part of 16 rows and 16 columns of a matrix, as halves and what these leave: rows g = lane / 4 and g + 8 of the
 * first two of the four columns from 4 (lane % 4) on, then both of the others. */
struct row_block {
    uint32_t halves[4], rests[4];
};

/* Return whether the warp has a part in a product, which its i-th block is, and its first token. */
template <int HD> static __device__ bool has_part() {
    return threadIdx.x / 32 < product_shape<HD>::blocks * product_shape<HD>::shares;
}
template <int HD> static __device__ uint32_t product_block(uint32_t i) {
    return (threadIdx.x / 32 + product_shape<HD>::warps * i) % product_shape<HD>::blocks;
}
template <int HD> static __device__ uint32_t product_token() {
    return threadIdx.x / 32 / product_shape<HD>::blocks * 8 * product_shape<HD>::tiles;
}

/* Multiplies the first `depth` numbers of each token, which become halves. block_at(block, first) returns the lane's row_block of the
 * columns from `first` on. */
template <int HD, class BlockAt>
static __device__ void multiply(BlockAt block_at, uint32_t depth, struct page_numbers<HD> &n, struct product<HD> &out) {
    using shape = product_shape<HD>;
    constexpr uint32_t groups = shape::tiles / TILES_TOGETHER;
    const uint32_t lane = threadIdx.x % 32, first_token = product_token<HD>();
#pragma unroll
    for (uint32_t i = 0; i < shape::own * groups * TILES_TOGETHER * 4; i++)
        out.sums[i / (4 * TILES_TOGETHER * groups)][i / (4 * TILES_TOGETHER) % groups][i / 4 % TILES_TOGETHER][i % 4] = 0;
    struct row_block next[shape::own]; /* are asked for while those before are multiplied */
    const auto load = [&](uint32_t first) {
#pragma unroll
        for (uint32_t i = 0; i < shape::own; i++) next[i] = block_at(product_block<HD>(i), first);
    };
    load(0);
    split_numbers<HD>(depth, n);
    if (!has_part<HD>()) return;
#pragma unroll 1
    for (uint32_t first = 0; first < depth; first += PRODUCT_DEPTH) {
        struct row_block a[shape::own];
#pragma unroll
        for (uint32_t i = 0; i < shape::own; i++) a[i] = next[i];
        load(min(first + PRODUCT_DEPTH, depth - PRODUCT_DEPTH));
#pragma unroll
        for (uint32_t group = 0; group < groups; group++) {
            uint32_t b[TILES_TOGETHER][2], rests[TILES_TOGETHER][2];
#pragma unroll
            for (uint32_t j = 0; j < TILES_TOGETHER; j++) {
                const uint4 own = n.halves[first / 4 + lane % 4][first_token + 8 * (TILES_TOGETHER * group + j) + lane / 4];
                b[j][0] = own.x, b[j][1] = own.y, rests[j][0] = own.z, rests[j][1] = own.w;
            }
#pragma unroll
            for (uint32_t i = 0; i < shape::own; i++) mma_sums(out.sums[i][group], a[i].halves, a[i].rests, b, rests);
        }
    }
}

/* Stores the product over the numbers that were multiplied, once no thread reads them any more. unit_of(row) is the unit of a
 * row. */
template <int HD, class UnitOf>
static __device__ void store_product(const struct product<HD> &product, UnitOf unit_of, struct page_numbers<HD> &n) {
    using shape = product_shape<HD>;
    const uint32_t lane = threadIdx.x % 32, first_token = product_token<HD>();
    __syncthreads();
    if (has_part<HD>()) {
#pragma unroll
        for (uint32_t i = 0; i < shape::own; i++)
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                const uint32_t row = 16 * product_block<HD>(i) + 8 * k + lane / 4;
                const float unit = unit_of(row);
#pragma unroll
                for (uint32_t j = 0; j < shape::tiles; j++) {
                    const uint32_t t = first_token + 8 * j + lane % 4 * 2;
                    const float(&sums)[4] = product.sums[i][j / TILES_TOGETHER][j % TILES_TOGETHER];
                    *(float2 *)&n.of[row][t] = make_float2(sums[2 * k] * n.unit[t] * unit, sums[2 * k + 1] * n.unit[t + 1] * unit);
                }
            }
    }
    __syncthreads();
}

#endif
