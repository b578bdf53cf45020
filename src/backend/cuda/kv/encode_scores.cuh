/* Finds which of a sub-vector's centroids can be nearest to a row, by scores of tensor cores, for encode_centroids.cu; the search decides
 * among these by its exact sums (format/pq.h).
 *
 * A score is the search's value plus a bias of the row, which makes it positive, so that scores are compared as integers. Numbers
 * enter as two halves, y = yh + yl and z = zh + zl, of which the product of the lower two is left out.
 *
 * The bound: all |z| < 1 by the search's scale, and the sum Y of |y| is below 2^15, else every centroid is decided among. No
 * summand and no partial sum is larger than P = 2 bias + width / 2, as half <= width / 2 and Y < bias. With a unit of 2^-23 P: tensor cores
 * align the summands of a product to the largest one and cut off what is below, less than a unit for each of the 3 width + 3, and again for
 * each of at most as many partial sums; splitting numbers leaves |y| (2^-24 + 2 * 2^-23) + 2^-25 for each channel and 2^-22 half + 2^-24, at
 * most 4 units together; the exact sums' own roundings are half a unit for each channel. So a score is within 7 width + 10 units of its
 * row's bias plus the value, and 8 width + 16 are allowed. */
#ifndef TERSE_BACKEND_CUDA_KV_ENCODE_SCORES_CUH
#define TERSE_BACKEND_CUDA_KV_ENCODE_SCORES_CUH

#include "backend/cuda/kv/encode_shapes.cuh"

constexpr uint32_t SCORE_RUN = 16;   /* consecutive centroids of which the least score is kept */
constexpr uint32_t SCORE_GROUP = 64; /* centroids of a run of each of a quad's lanes: eight tiles of products */

/* Returns where in a row of staged numbers that of the j-th centroid is: a run is whole, and runs that lanes read together lie in different
 * banks. */
static __device__ inline uint32_t staged_place(uint32_t j) { return j + j / 16 * 4 + j / 128 * 8; }
/* Returns the numbers from row to row. */
static __device__ inline uint32_t staged_stride(uint32_t n) {
    return n < SCORE_GROUP ? n + n / 16 * 4 : (staged_place(n - 1) + 32) / 32 * 32;
}

/* The groups whose least scores a lane keeps. */
template <int WIDTH> constexpr uint32_t score_groups = WIDTH == 8 ? 2 : 4;

/* A score_rows has a lane's part of the left operands of all 64 tokens. Row 2 i + h is token 16 i + 8 h + lane / 4. A lane's words are pairs of
 * channels, those of lanes t = lane % 4 of 0 and 1 their halves, of 2 what these leave; lane 3 has the ones by which halves of squares enter. */
template <int WIDTH> struct score_rows {
    uint32_t a[4][WIDTH];
    float bias[8];
    uint32_t unbounded; /* a bit for each row that is too large */
};

template <int HD, int WIDTH>
static __device__ struct score_rows<WIDTH> score_rows_of(const float (*numbers)[NUMBERS_STRIDE], uint32_t part) {
    struct score_rows<WIDTH> rows;
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    rows.unbounded = 0;
#pragma unroll
    for (uint32_t row = 0; row < 8; row++) {
        float sum = 0;
#pragma unroll
        for (uint32_t q = 0; q < WIDTH / 2; q++) {
            const float *const at = &numbers[part * WIDTH + 2 * q][8 * row + g];
            const float y0 = -at[0], y1 = -at[NUMBERS_STRIDE];
            const uint32_t halves = two_halves(y0, y1), rests = two_halves(rest_of_half(y0), rest_of_half(y1));
            rows.a[row / 2][2 * q + row % 2] = t < 2 ? halves : t == 2 ? rests : q == 0 ? 0x3c003c00 : 0;
            sum = sum + (fabsf(y0) + fabsf(y1));
        }
        const bool bounded = sum < 0x1p15f;
        rows.bias[row] = bounded ? sum * 1.125f + 0x1p-6f : 1;
        if (!bounded) rows.unbounded |= 1u << row;
    }
    return rows;
}

/* Adds the products of one tile of 16 tokens with a tile of 8 centroids to d. */
template <int WIDTH>
static __device__ void add_scores(float (&d)[4], const uint32_t (&a)[WIDTH], const uint32_t (&b)[WIDTH / 2]) {
    if constexpr (WIDTH == 2)
        mma_shallow(d, a[0], a[1], b[0]);
    else
#pragma unroll
        for (uint32_t s = 0; s < WIDTH / 4; s++) mma(d, a[4 * s], a[4 * s + 1], a[4 * s + 2], a[4 * s + 3], b[2 * s], b[2 * s + 1]);
}

/* Returns the runs of n staged centroids, 64 or a multiple of it, one of which may have the least value of a lane's tokens lane and lane +
 * 32, a bit each; best[2] are the least values of centroids before them. `z` are the staged rows of channels and `half` of halves. All
 * lanes of a warp call this. */
template <int WIDTH>
static __device__ uint2 nearest_runs(const struct score_rows<WIDTH> &rows, const float *z, const float *half, uint32_t n,
                                     const float (&best)[2]) {
    constexpr uint32_t most = score_groups<WIDTH>;
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, groups = n / SCORE_GROUP, stride = staged_stride(n);
    /* The selector makes a lane's word of a pair of channels of their halves (lanes 0 and 2), of the rests (1), or of a half of a square and its rest (3). */
    const uint32_t selector = t == 3 ? 0x5410 : t == 1 ? 0x7654 : 0x3210;
    const uint32_t step = t == 3 ? 0 : stride;
    const float *const from = (t == 3 ? half : z) + staged_place(SCORE_RUN * groups * (g / 2)) + g % 2;
    int least[most][8];
#pragma unroll
    for (uint32_t group = 0; group < most; group++) {
#pragma unroll
        for (uint32_t row = 0; row < 8; row++) least[group][row] = 0x7fffffff;
        if (group >= groups) continue;
#pragma unroll 2
        for (uint32_t tile = 0; tile < 8; tile++) {
            const float *const at = from + staged_place(SCORE_RUN * group) + 2 * tile;
            uint32_t b[WIDTH / 2];
#pragma unroll
            for (uint32_t q = 0; q < WIDTH / 2; q++) {
                const float z0 = at[2 * q * step], z1 = at[(2 * q + 1) * step];
                b[q] = permute(two_halves(z0, z1), two_halves(rest_of_half(z0), rest_of_half(z1)), selector);
            }
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                float d[4] = {rows.bias[2 * i], rows.bias[2 * i], rows.bias[2 * i + 1], rows.bias[2 * i + 1]};
                add_scores<WIDTH>(d, rows.a[i], b);
                least[group][2 * i] = least_of(least[group][2 * i], __float_as_int(d[0]), __float_as_int(d[1]));
                least[group][2 * i + 1] = least_of(least[group][2 * i + 1], __float_as_int(d[2]), __float_as_int(d[3]));
            }
        }
    }
    uint32_t near = 0; /* four bits for each row */
#pragma unroll
    for (uint32_t row = 0; row < 8; row++) {
        int own = least[0][row];
#pragma unroll
        for (uint32_t group = 1; group < most; group++) own = min(own, least[group][row]);
        own = min(own, __shfl_xor_sync(~0u, own, 1));
        own = min(own, __shfl_xor_sync(~0u, own, 2));
        const float before = __shfl_sync(~0u, best[row / 4], 8 * (row % 4) + g) + rows.bias[row];
        const float within = (2 * rows.bias[row] + WIDTH / 2) * (float)(2 * (8 * WIDTH + 16)) * 0x1p-23f;
        const int limit = __float_as_int(fminf(__int_as_float(own), before) + within);
#pragma unroll
        for (uint32_t group = 0; group < most; group++)
            if (group < groups && (least[group][row] <= limit || (rows.unbounded >> row & 1))) near |= 1u << (4 * row + group);
    }
    uint2 runs = make_uint2(0, 0);
#pragma unroll
    for (uint32_t other = 0; other < 4; other++) {
        const uint32_t of_quad = __shfl_sync(~0u, near, lane % 8 * 4 + other) >> (lane / 8 * 4);
        runs.x |= (of_quad & 15) << (groups * other);
        runs.y |= (of_quad >> 16 & 15) << (groups * other);
    }
    return runs;
}

#endif
