/* Products of weights as they are stored with up to 16 vectors. A block of threads takes 16 rows, its warps their tiles by turns; sums of a group
 * of 32 are the tensor cores', scaled and summed in fp32, and those of the warps are added in order at last. */
#include "backend/cuda/weights.h"

#include "backend/cuda/ptx.cuh"
#include "backend/cuda/weight_tiles.cuh"

#define WARPS 8
#define CODE_UNIT 16777216.f /* 2^24: codes enter as multiples of its inverse */

__host__ __device__ static inline uint32_t divide_up(uint32_t n, uint32_t by) { return (n + by - 1) / by; }

struct matvec_product {
    const uint8_t *data;
    const float *bias;
    float *out;
    uint32_t rows, blocks; /* blocks of threads of this product and those before it */
};

struct matvec_args {
    struct matvec_product products[PRODUCTS_MOST];
    const uint4 *high, *low;
    const float *sums, *plain, *sizes;
    uint32_t columns, n;
    bool add;
};

__device__ static inline const struct matvec_product *product_of(const struct matvec_args &a, uint32_t *block) {
    uint32_t i = 0;
    while (*block >= a.products[i].blocks) i++;
    *block -= i ? a.products[i - 1].blocks : 0;
    return &a.products[i];
}

/* total[rows g and g + 8][vectors 2t, 2t + 1] += this of a group's products. */
__device__ static inline void add_scaled(float total[4], const float sum[4], const float s[2], const float m[2], float2 of_x) {
    total[0] = fmaf(s[0], sum[0], fmaf(m[0], of_x.x, total[0]));
    total[1] = fmaf(s[0], sum[1], fmaf(m[0], of_x.y, total[1]));
    total[2] = fmaf(s[1], sum[2], fmaf(m[1], of_x.x, total[2]));
    total[3] = fmaf(s[1], sum[3], fmaf(m[1], of_x.y, total[3]));
}

/* Vectors 8 part + 0 .. 7 of a group, for the lane. */
__device__ static inline uint4 vector_words(const uint4 *x, uint32_t group, int part, int lane, uint32_t n) {
    return 8 * part + lane / 4 < n ? x[(group * EACH_ROWS + 8 * part) * 4 + lane] : make_uint4(0, 0, 0, 0);
}

template <class TILE, int PARTS>
__device__ static inline void multiply_group(const TILE &tile, int b, uint32_t group, const struct matvec_args &a, int lane,
                                             float total[PARTS][4]) {
    uint32_t pair[2][4];
    float s[2][2], m[2][2]; /* [row][half] */
    for (int h = 0; h < 2; h++) {
        tile.pairs(b, h, lane % 4, pair[h]);
        tile.scale(b, h, s[h], m[h]);
    }
    for (int part = 0; part < PARTS; part++) {
        uint4 high = vector_words(a.high, group, part, lane, a.n), low = make_uint4(0, 0, 0, 0);
        if (TILE::LOW) low = vector_words(a.low, group, part, lane, a.n);
        float sum[2][4] = {};
        for (int i = 0; i < 2; i++) {
            const uint32_t *w = pair[0] + 2 * i, *below = pair[1] + 2 * i;
            float(&to)[4] = sum[TILE::HALVES == 2 ? i : 0];
            mma(to, w[0], below[0], w[1], below[1], word_of(high, 2 * i), word_of(high, 2 * i + 1));
            if (TILE::LOW) mma(to, w[0], below[0], w[1], below[1], word_of(low, 2 * i), word_of(low, 2 * i + 1));
        }
        for (int i = 0; i < TILE::HALVES; i++) {
            const float own_s[2] = {s[0][i], s[1][i]}, own_m[2] = {m[0][i], m[1][i]};
            float2 of_x = make_float2(0, 0);
            if (TILE::CODES)
                of_x = *(const float2 *)(a.sums +
                                         (group * GROUP_SUMS + (TILE::HALVES == 2 ? i
                                                                : TILE::LOW       ? 2
                                                                                  : 3)) *
                                             EACH_ROWS +
                                         8 * part + 2 * (lane % 4));
            add_scaled(total[part], sum[i], own_s, own_m, of_x);
        }
    }
}

template <class TILE, int PARTS> __global__ void __launch_bounds__(32 * WARPS) matvec_tiles(const struct matvec_args a) {
    __shared__ float sums[WARPS][TILE_ROWS][8 * PARTS];
    uint32_t block = blockIdx.x, across = divide_up(a.columns, TILE::WIDTH), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const struct matvec_product *p = product_of(a, &block);
    const uint8_t *row = p->data + (size_t)block * across * TILE::BYTES;
    float total[PARTS][4] = {};
    TILE tile;
    if (warp < across) tile.load(row + (size_t)warp * TILE::BYTES, lane);
    for (uint32_t k = warp; k < across; k += WARPS) {
        TILE next = tile;
        if (k + WARPS < across) next.load(row + (size_t)(k + WARPS) * TILE::BYTES, lane);
#pragma unroll
        for (int b = 0; b < TILE::GROUPS; b++) multiply_group<TILE, PARTS>(tile, b, k * TILE::GROUPS + b, a, lane, total);
        tile = next;
    }
    for (int part = 0; part < PARTS; part++)
        for (int i = 0; i < 4; i++) sums[warp][lane / 4 + i / 2 * 8][8 * part + 2 * (lane % 4) + i % 2] = total[part][i];
    __syncthreads();
    uint32_t r = threadIdx.x % TILE_ROWS, vector = threadIdx.x / TILE_ROWS, at = block * TILE_ROWS + r;
    if (vector >= a.n || at >= p->rows) return;
    float y = 0;
    for (int w = 0; w < WARPS; w++) y += sums[w][r][vector];
    y *= (TILE::CODES ? CODE_UNIT : 1) * a.sizes[vector];
    if (p->bias) y += p->bias[at];
    float *out = p->out + (size_t)vector * p->rows + at;
    *out = a.add ? *out + y : y;
}

/* ---- F32 and BF16: a warp a row, in fp32 */

template <bool WIDE, int VECTORS> __global__ void matvec_rows(const struct matvec_args a) {
    uint32_t block = blockIdx.x, lane = threadIdx.x % 32;
    const struct matvec_product *p = product_of(a, &block);
    uint32_t at = block * WARPS + threadIdx.x / 32;
    if (at >= p->rows) return;
    const uint8_t *row = p->data + (size_t)at * a.columns * (WIDE ? 4 : 2);
    float total[VECTORS] = {};
#pragma unroll 2
    for (uint32_t i = lane; i < a.columns; i += 32) {
        float w = WIDE ? ((const float *)row)[i] : __uint_as_float((uint32_t)((const uint16_t *)row)[i] << 16);
        for (int v = 0; v < VECTORS; v++)
            if (v < a.n) total[v] = fmaf(w, a.plain[(size_t)v * a.columns + i], total[v]);
    }
    for (int v = 0; v < VECTORS; v++) {
        for (int apart = 16; apart; apart /= 2) total[v] += __shfl_xor_sync(~0u, total[v], apart);
        if (lane || v >= a.n) continue;
        float y = total[v] + (p->bias ? p->bias[at] : 0), *out = p->out + (size_t)v * p->rows + at;
        *out = a.add ? *out + y : y;
    }
}

/* Products of one type. */
static void launch(enum tensor_type type, const struct matvec_args *a, uint32_t blocks, cudaStream_t stream) {
    if (type == TENSOR_F32 || type == TENSOR_BF16) {
        bool wide = type == TENSOR_F32;
        void (*kernel)(const struct matvec_args) = a->n == 1   ? wide ? matvec_rows<true, 1> : matvec_rows<false, 1>
                                                     : a->n <= 4 ? wide ? matvec_rows<true, 4> : matvec_rows<false, 4>
                                                     : wide ? matvec_rows<true, 16>
                                                               : matvec_rows<false, 16>;
        kernel<<<blocks, 32 * WARPS, 0, stream>>>(*a);
    }
#define CALL(TILE) \
    if (a->n <= 8) \
        matvec_tiles<TILE, 1><<<blocks, 32 * WARPS, 0, stream>>>(*a); \
    else \
        matvec_tiles<TILE, 2><<<blocks, 32 * WARPS, 0, stream>>>(*a)
    FOR_TILE_TYPE(type, CALL)
#undef CALL
}

extern "C" cudaError_t weights_each(const struct device_product *products, size_t n_products, const struct device_vectors *x,
                                    uint32_t n, bool add, cudaStream_t stream) {
    struct matvec_args a = {};
    a.high = (const uint4 *)x->high, a.low = (const uint4 *)x->low;
    a.sums = x->sums, a.plain = x->plain, a.sizes = x->sizes;
    a.n = n, a.add = add;
    for (size_t i = 0; i < n_products;) {
        enum tensor_type type = products[i].w->type;
        uint32_t per_block = type == TENSOR_F32 || type == TENSOR_BF16 ? WARPS : TILE_ROWS, blocks = 0;
        for (uint32_t k = 0; i < n_products && products[i].w->type == type; i++, k++) {
            const struct device_matrix *w = products[i].w;
            blocks += divide_up(w->rows, per_block);
            a.products[k] = (struct matvec_product){w->data, w->bias, products[i].out, w->rows, blocks};
            a.columns = w->columns;
        }
        launch(type, &a, blocks, stream);
    }
    return cudaGetLastError();
}
