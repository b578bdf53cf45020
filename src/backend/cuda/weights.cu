/* Puts weights where kernels need them, and reads them back as numbers. */
#include "backend/cuda/weights.h"

#include "backend/cuda/weight_tiles.cuh"

#define WARPS 4

__host__ __device__ static inline uint32_t divide_up(uint32_t n, uint32_t by) { return (n + by - 1) / by; }

extern "C" enum vector_form weights_form(enum tensor_type type) {
#define CALL(TILE) return TILE::FORM
    FOR_TILE_TYPE(type, CALL)
#undef CALL
    return TWO_HALVES;
}

extern "C" size_t weights_bytes(enum tensor_type type, uint32_t rows, uint32_t columns) {
#define CALL(TILE) return (size_t)divide_up(rows, TILE_ROWS) * divide_up(columns, TILE::WIDTH) * TILE::BYTES
    FOR_TILE_TYPE(type, CALL)
#undef CALL
    return 0;
}

/* ---- To tiles: a warp a tile */

template <class TILE>
__global__ void pack_tiles(const uint8_t *source, size_t row_bytes, uint32_t rows, uint32_t columns, uint8_t *tiles) {
    uint32_t across = divide_up(columns, TILE::WIDTH), lane = threadIdx.x % 32;
    uint32_t tile = blockIdx.x * WARPS + threadIdx.x / 32, k = tile % across;
    if (tile / across >= divide_up(rows, TILE_ROWS)) return;
    uint32_t units = TILE::CODES ? TILE::WIDTH / TILE::GROUPS * (TILE::WIDTH == 256 ? 8 : 1) : 1; /* weights of a block */
    uint32_t left = (columns - k * TILE::WIDTH) / units, whole = TILE::WIDTH / units;
    for (int h = 0; h < 2; h++) {
        uint32_t row = tile / across * TILE_ROWS + lane / 4 + 8 * h;
        size_t at = (size_t)row * row_bytes + (size_t)k * whole * TILE::BLOCK_BYTES;
        TILE::pack(source + at, row >= rows ? 0 : left < whole ? left : whole, tiles + (size_t)tile * TILE::BYTES, lane, h);
    }
}

extern "C" cudaError_t weights_pack(const struct device_matrix *w, const void *source, size_t row_bytes, uint32_t first,
                                    uint32_t count, cudaStream_t stream) {
    if (!count) return cudaSuccess;
#define CALL(TILE) \
    { \
        uint32_t across = divide_up(w->columns, TILE::WIDTH), tiles = divide_up(count, TILE_ROWS) * across; \
        pack_tiles<TILE><<<divide_up(tiles, WARPS), 32 * WARPS, 0, stream>>>( \
            (const uint8_t *)source, row_bytes, count, w->columns, w->data + (size_t)(first / TILE_ROWS) * across * TILE::BYTES); \
    }
    FOR_TILE_TYPE(w->type, CALL)
#undef CALL
    return cudaGetLastError();
}

/* ---- To numbers */

/* Returns the lane's 8 weights of group b of the chunk, of row g + 8 h. */
template <class TILE>
__device__ static inline void numbers_of(const TILE &tile, stored_tile from, int chunk, int b, int h, int lane, float out[8]) {
    if constexpr (!TILE::CODES) {
        for (int i = 0; i < 8; i++) out[i] = tile.number(b, h, i);
        return;
    }
    const int row = lane / 4 + 8 * h;
    uint32_t pair[4];
    tile.pairs(b, h, lane % 4, pair);
    for (int i = 0; i < 8; i++) {
        /* Weights 4t, 4t + 1, 4t + 2, 4t + 3 lie in pairs 0, 1, 0, 1. */
        uint32_t bits = (i % 4 < 2 ? pair[i / 4 * 2 + i % 2] : pair[i / 4 * 2 + i % 2] >> 16) & 0xffff;
        int half = TILE::HALVES == 2 ? i / 4 : 0;
        out[i] = fmaf(TILE::unit(from, row) * tile.size(b, h, half), half_value(bits) * power_of_two(24),
                      TILE::least(from, row, chunk * TILE::CHUNK + b, half));
    }
}

__device__ static inline __half nearest_half(float x) {
    return __float2half(fabsf(x) < INFINITY ? fminf(fmaxf(x, -65504.f), 65504.f) : x);
}

template <class TILE> __global__ void tiles_to_halves(const uint8_t *tiles, uint32_t rows, uint32_t columns, __half *out) {
    uint32_t across = divide_up(columns, TILE::WIDTH), stride = divide_up(columns, 32) * 32, lane = threadIdx.x % 32, t = lane % 4;
    uint32_t at = blockIdx.x * WARPS + threadIdx.x / 32, k = at % across * TILE::WIDTH;
    if (at / across >= divide_up(rows, TILE_ROWS)) return;
    const stored_tile from = {tiles + (size_t)at * TILE::BYTES};
#pragma unroll
    for (int chunk = 0; chunk < TILE::GROUPS / TILE::CHUNK; chunk++) {
        TILE tile;
        tile.load(from, lane, chunk);
#pragma unroll
        for (int i = 0; i < 2 * TILE::CHUNK; i++) {
            int h = i % 2, b = i / 2;
            uint32_t row = at / across * TILE_ROWS + lane / 4 + 8 * h, column = k + 32 * (chunk * TILE::CHUNK + b);
            if (row >= rows || column >= stride) continue;
            float w[8];
            numbers_of(tile, from, chunk, b, h, lane, w);
            __half *to = out + (size_t)row * stride + column + 4 * t;
            for (int j = 0; j < 8; j += 2)
                *(__half2 *)(to + j / 4 * 16 + j % 4) = __halves2half2(nearest_half(w[j]), nearest_half(w[j + 1]));
        }
    }
}

extern "C" cudaError_t weights_halves(const struct device_matrix *w, uint32_t first, uint32_t count, void *halves,
                                      cudaStream_t stream) {
#define CALL(TILE) \
    { \
        uint32_t across = divide_up(w->columns, TILE::WIDTH), tiles = divide_up(count, TILE_ROWS) * across; \
        tiles_to_halves<TILE><<<divide_up(tiles, WARPS), 32 * WARPS, 0, stream>>>( \
            w->data + (size_t)(first / TILE_ROWS) * across * TILE::BYTES, count, w->columns, (__half *)halves); \
    }
    FOR_TILE_TYPE(w->type, CALL)
#undef CALL
    return cudaGetLastError();
}

/* ---- Rows of an embedding: a warp takes a row's part of a tile, and leaves the other rows */

template <class TILE>
__global__ void gather_tiles(const uint8_t *tiles, const int32_t *ids, uint32_t columns, float *out, bool add) {
    uint32_t across = divide_up(columns, TILE::WIDTH), lane = threadIdx.x % 32, id = ids[blockIdx.y];
    uint32_t k = blockIdx.x * WARPS + threadIdx.x / 32;
    if (k >= across) return;
    const stored_tile from = {tiles + ((size_t)(id / TILE_ROWS) * across + k) * TILE::BYTES};
#pragma unroll
    for (int chunk = 0; chunk < TILE::GROUPS / TILE::CHUNK; chunk++) {
        TILE tile;
        tile.load(from, lane, chunk);
#pragma unroll
        for (int i = 0; i < 2 * TILE::CHUNK; i++) {
            int h = i % 2, b = i / 2;
            if (id % TILE_ROWS != lane / 4 + 8 * h) continue;
            float w[8];
            numbers_of(tile, from, chunk, b, h, lane, w);
            for (int j = 0; j < 8; j++) {
                uint32_t column = k * TILE::WIDTH + 32 * (chunk * TILE::CHUNK + b) + j / 4 * 16 + 4 * (lane % 4) + j % 4;
                float *to = out + (size_t)blockIdx.y * columns + column;
                if (column < columns) *to = add ? *to + w[j] : w[j];
            }
        }
    }
}

#define GATHER_MOST 32768 /* rows of a launch */

extern "C" cudaError_t weights_gather(const struct device_matrix *w, const int32_t *ids, uint32_t n, float *out, bool add,
                                      cudaStream_t stream) {
    for (uint32_t first = 0; first < n; first += GATHER_MOST, ids += GATHER_MOST, out += (size_t)GATHER_MOST * w->columns) {
        uint32_t count = n - first < GATHER_MOST ? n - first : GATHER_MOST;
#define CALL(TILE) \
    gather_tiles<TILE><<<dim3(divide_up(divide_up(w->columns, TILE::WIDTH), WARPS), count), 32 * WARPS, 0, stream>>>( \
        w->data, ids, w->columns, out, add)
        FOR_TILE_TYPE(w->type, CALL)
#undef CALL
    }
    return cudaGetLastError();
}
