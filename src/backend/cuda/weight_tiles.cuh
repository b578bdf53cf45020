/* How a matrix lies on the device, and how a warp reads it. The bytes are the file's (format/weight_blocks.h), in another order: a tile is 16
 * rows by WIDTH weights, whole and without padding within it, and the tiles of 16 rows lie one after the other. Rows and columns that the matrix
 * does not have are zeros.
 *
 * A warp holds a tile as mma.m16n8k16 wants its first operand. Lane 4 g + t has, of rows g and g + 8 and of each group of 32 weights,
 * weights 4 t .. 4 t + 3 and 16 + 4 t .. 16 + 4 t + 3, in pairs:
 *     pair 0  4t, 4t + 2      pair 1  4t + 1, 4t + 3      pair 2, 3  the same, 16 further on
 * so that pairs 0 and 1 are one product's operand and pairs 2 and 3 the next one's. Vectors are laid out to match (rows.cu). A code
 * is the bits of a half, so as a number q 2^-24, exactly, which the product takes as it is: no conversion. Weight = scale q + min, one scale and
 * min for a group, or for each half of it (HALVES).
 */
#ifndef TERSE_BACKEND_CUDA_WEIGHT_TILES_CUH
#define TERSE_BACKEND_CUDA_WEIGHT_TILES_CUH

#include "gguf/gguf.h"

#include <cuda_fp16.h>

#define TILE_ROWS 16

/* The parts of a matrix that a lane reads of one row, and where from: `source` is the row's first block of the tile. */
__device__ static inline uint32_t word_at(const void *source, int byte) {
    const uint16_t *at = (const uint16_t *)((const char *)source + byte); /* blocks are even */
    return at[0] | (uint32_t)at[1] << 16;
}

__device__ static inline uint32_t *words_of(uint4 *v) { return &v->x; }
__device__ static inline uint32_t word_of(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
__device__ static inline float half_value(uint32_t bits) { return __half2float(__ushort_as_half((unsigned short)bits)); }
__device__ static inline uint4 read_once(const void *at) { return __ldcs((const uint4 *)at); }

/* Codes of 4 bits in words: pairs of the bytes' low (shift 0) or high four bits (shift 4). */
__device__ static inline void nibble_pairs(uint32_t word, int shift, uint32_t pair[2]) {
    pair[0] = word >> shift & 0x000f000f;
    pair[1] = word >> (shift + 8) & 0x000f000f;
}

/* ---- Types of 32 weights a block: four blocks to a tile */

/* Scales, and mins where MIN, of a row's four blocks. */
template <bool MIN> struct block_scales {
    uint32_t words[MIN ? 4 : 2];
    static constexpr int BYTES = MIN ? 16 : 8;
    __device__ void load(const uint8_t *at) {
        if (MIN) {
            uint4 v = *(const uint4 *)at;
            for (int i = 0; i < 4; i++) words[i % (MIN ? 4 : 2)] = word_of(v, i);
        } else {
            uint2 v = *(const uint2 *)at;
            words[0] = v.x, words[1] = v.y;
        }
    }
    __device__ float scale(int b) const { return half_value(MIN ? words[b % (MIN ? 4 : 2)] : words[b / 2] >> 16 * (b % 2)); }
    __device__ float min(int b) const { return half_value(words[b % (MIN ? 4 : 2)] >> 16); }
};

/* Q4_0, Q4_1, Q5_0, Q5_1: BYTES a block, whose codes are the last 16 of them and whose fifth bits, where FIVE, the four before. */
template <bool MIN, bool FIVE> struct tile_nibbles {
    static constexpr int WIDTH = 128, GROUPS = 4, HALVES = 1, BLOCK_BYTES = 18 + 2 * MIN + 4 * FIVE;
    static constexpr int HIGH = 1024, SCALES = HIGH + 256 * FIVE, BYTES = SCALES + 16 * block_scales<MIN>::BYTES;
    static constexpr bool LOW = MIN || FIVE, CODES = true; /* vectors to 22 bits; to 11 where the CPU takes 8 */
    uint4 codes[2], high[2];
    block_scales<MIN> scales[2];

    __device__ static void pack(const uint8_t *source, int blocks, uint8_t *tile, int lane, int h) {
        int t = lane % 4, row = lane / 4 + 8 * h;
        uint32_t code[4] = {0}, top[4] = {0};
        for (int b = 0; b < blocks; b++) {
            code[b] = word_at(source, b * BLOCK_BYTES + BLOCK_BYTES - 16 + 4 * t);
            if (FIVE) top[b] = word_at(source, b * BLOCK_BYTES + BLOCK_BYTES - 20);
        }
        ((uint4 *)tile)[h * 32 + lane] = make_uint4(code[0], code[1], code[2], code[3]);
        if (t) return;
        if (FIVE) ((uint4 *)(tile + HIGH))[row] = make_uint4(top[0], top[1], top[2], top[3]);
        for (int b = 0; b < 4; b++)
            for (int i = 0; i <= MIN; i++)
                ((uint16_t *)(tile + SCALES))[(row * 4 + b) * (1 + MIN) + i] =
                    b < blocks ? *(const uint16_t *)(source + b * BLOCK_BYTES + 2 * i) : 0;
    }
    __device__ void load(const uint8_t *tile, int lane) {
        for (int h = 0; h < 2; h++) {
            codes[h] = read_once(tile + (h * 32 + lane) * 16);
            if (FIVE) high[h] = read_once(tile + HIGH + (lane / 4 + 8 * h) * 16);
            scales[h].load(tile + SCALES + (lane / 4 + 8 * h) * block_scales<MIN>::BYTES);
        }
    }
    __device__ void pairs(int b, int h, int t, uint32_t pair[4]) const {
        nibble_pairs(word_of(codes[h], b), 0, pair);
        nibble_pairs(word_of(codes[h], b), 4, pair + 2);
        for (int i = 0; FIVE && i < 2; i++) {
            uint32_t bits = word_of(high[h], b) >> (16 * i + 4 * t);
            pair[2 * i] |= (bits << 4 & 0x10) | (bits << 18 & 0x100000);
            pair[2 * i + 1] |= (bits << 3 & 0x10) | (bits << 17 & 0x100000);
        }
    }
    __device__ void scale(int b, int h, float *s, float *m) const {
        *s = scales[h].scale(b);
        *m = MIN ? scales[h].min(b) : *s * (FIVE ? -16 : -8);
    }
};

struct tile_q8_0 {
    static constexpr int WIDTH = 128, GROUPS = 4, HALVES = 1, BLOCK_BYTES = 34, SCALES = 2048, BYTES = SCALES + 128;
    static constexpr bool LOW = true, CODES = true;
    uint4 codes[2][2];
    block_scales<false> scales[2];

    __device__ static void pack(const uint8_t *source, int blocks, uint8_t *tile, int lane, int h) {
        int t = lane % 4, row = lane / 4 + 8 * h;
        for (int j = 0; j < 2; j++) {
            uint32_t w[4] = {0};
            for (int i = 0; i < 4; i++)
                if (2 * j + i / 2 < blocks) w[i] = word_at(source, (2 * j + i / 2) * BLOCK_BYTES + 2 + 16 * (i % 2) + 4 * t);
            ((uint4 *)tile)[(j * 2 + h) * 32 + lane] = make_uint4(w[0], w[1], w[2], w[3]);
        }
        for (int b = 0; t == 0 && b < 4; b++)
            ((uint16_t *)(tile + SCALES))[row * 4 + b] = b < blocks ? *(const uint16_t *)(source + b * BLOCK_BYTES) : 0;
    }
    __device__ void load(const uint8_t *tile, int lane) {
        for (int h = 0; h < 2; h++) {
            for (int j = 0; j < 2; j++) codes[h][j] = read_once(tile + ((j * 2 + h) * 32 + lane) * 16);
            scales[h].load(tile + SCALES + (lane / 4 + 8 * h) * 8);
        }
    }
    __device__ void pairs(int b, int h, int t, uint32_t pair[4]) const {
        for (int i = 0; i < 2; i++) {
            uint32_t w = word_of(codes[h][b / 2], 2 * (b % 2) + i) ^ 0x80808080; /* q + 128 */
            pair[2 * i] = w & 0x00ff00ff;
            pair[2 * i + 1] = w >> 8 & 0x00ff00ff;
        }
    }
    __device__ void scale(int b, int h, float *s, float *m) const {
        *s = scales[h].scale(b);
        *m = -128 * *s;
    }
};

struct tile_f16 {
    static constexpr int WIDTH = 128, GROUPS = 4, HALVES = 1, BLOCK_BYTES = 64, BYTES = 4096;
    static constexpr bool LOW = true, CODES = false;
    uint4 values[2][4];

    /* `blocks` counts single weights here. */
    __device__ static void pack(const uint8_t *source, int weights, uint8_t *tile, int lane, int h) {
        int t = lane % 4;
        for (int b = 0; b < 4; b++) {
            uint32_t w[4] = {0};
            for (int i = 0; i < 8; i++) {
                int at = 32 * b + 16 * (i / 4) + 4 * t + i % 4;
                if (at < weights) w[i / 2] |= (uint32_t)((const uint16_t *)source)[at] << 16 * (i % 2);
            }
            ((uint4 *)tile)[(b * 2 + h) * 32 + lane] = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
    __device__ void load(const uint8_t *tile, int lane) {
        for (int h = 0; h < 2; h++)
            for (int b = 0; b < 4; b++) values[h][b] = read_once(tile + ((b * 2 + h) * 32 + lane) * 16);
    }
    __device__ void pairs(int b, int h, int t, uint32_t pair[4]) const {
        for (int i = 0; i < 2; i++) {
            uint32_t x = word_of(values[h][b], 2 * i), y = word_of(values[h][b], 2 * i + 1);
            pair[2 * i] = __byte_perm(x, y, 0x5410);
            pair[2 * i + 1] = __byte_perm(x, y, 0x7632);
        }
    }
    __device__ void scale(int b, int h, float *s, float *m) const { *s = 1, *m = 0; }
};

/* ---- Types of 256 weights a block: one to a tile */

/* Q4_K and Q5_K. */
template <bool FIVE> struct tile_groups {
    static constexpr int WIDTH = 256, GROUPS = 8, HALVES = 1, BLOCK_BYTES = FIVE ? 176 : 144;
    static constexpr int HIGH = 2048, SCALES = HIGH + 512 * FIVE, BYTES = SCALES + 256;
    static constexpr bool LOW = FIVE, CODES = true;
    uint4 codes[2][2], high; /* words of runs 0, 1; 2, 3: a run's t-th and (t + 4)-th; high: the same of both rows */
    uint4 scales[2];         /* scale, min and the packed bytes */

    __device__ static void pack(const uint8_t *source, int blocks, uint8_t *tile, int lane, int h) {
        int t = lane % 4, row = lane / 4 + 8 * h;
        for (int j = 0; j < 2; j++) {
            uint32_t w[4] = {0};
            for (int i = 0; blocks && i < 4; i++)
                w[i] = word_at(source, BLOCK_BYTES - 128 + (2 * j + i / 2) * 32 + 16 * (i % 2) + 4 * t);
            ((uint4 *)tile)[(j * 2 + h) * 32 + lane] = make_uint4(w[0], w[1], w[2], w[3]);
        }
        for (int i = 0; FIVE && i < 2; i++)
            ((uint32_t *)(tile + HIGH))[lane * 4 + 2 * h + i] = blocks ? word_at(source, 16 + 16 * i + 4 * t) : 0;
        ((uint32_t *)(tile + SCALES))[row * 4 + t] = blocks ? word_at(source, 4 * t) : 0;
    }
    __device__ void load(const uint8_t *tile, int lane) {
        for (int h = 0; h < 2; h++) {
            for (int j = 0; j < 2; j++) codes[h][j] = read_once(tile + ((j * 2 + h) * 32 + lane) * 16);
            scales[h] = read_once(tile + SCALES + (lane / 4 + 8 * h) * 16);
        }
        if (FIVE) high = read_once(tile + HIGH + lane * 16);
    }
    __device__ void pairs(int b, int h, int t, uint32_t pair[4]) const {
        for (int i = 0; i < 2; i++) {
            nibble_pairs(word_of(codes[h][b / 4], 2 * (b / 2 % 2) + i), 4 * (b % 2), pair + 2 * i);
            if (!FIVE) continue;
            uint32_t bits = word_of(high, 2 * h + i) >> b;
            pair[2 * i] |= (bits & 0x00010001) << 4;
            pair[2 * i + 1] |= (bits >> 8 & 0x00010001) << 4;
        }
    }
    __device__ void scale(int b, int h, float *s, float *m) const {
        const uint4 &v = scales[h]; /* weight_group_scales() */
        uint32_t sizes = b < 4 ? v.y & 0x3f3f3f3f : (v.w & 0x0f0f0f0f) | (v.y >> 2 & 0x30303030);
        uint32_t mins = b < 4 ? v.z & 0x3f3f3f3f : (v.w >> 4 & 0x0f0f0f0f) | (v.z >> 2 & 0x30303030);
        *s = half_value(v.x) * (float)(sizes >> 8 * (b % 4) & 0xff);
        *m = -half_value(v.x >> 16) * (float)(mins >> 8 * (b % 4) & 0xff);
    }
};

struct tile_q6_k {
    static constexpr int WIDTH = 256, GROUPS = 8, HALVES = 2, BLOCK_BYTES = 210;
    static constexpr int HIGH = 2048, SIZES = 3072, SCALES = 3328, BYTES = 3360;
    static constexpr bool LOW = true, CODES = true;
    uint4 codes[2][2], high[2]; /* as tile_groups; high: of both halves of the block */
    uint4 sizes[2];
    uint32_t scales[2];

    __device__ static void pack(const uint8_t *source, int blocks, uint8_t *tile, int lane, int h) {
        int t = lane % 4, row = lane / 4 + 8 * h;
        for (int j = 0; j < 3; j++) {
            uint32_t w[4] = {0};
            for (int i = 0; blocks && i < 4; i++) w[i] = word_at(source, (2 * j + i / 2) * 32 + 16 * (i % 2) + 4 * t);
            ((uint4 *)tile)[(j * 2 + h) * 32 + lane] = make_uint4(w[0], w[1], w[2], w[3]);
        }
        ((uint32_t *)(tile + SIZES))[row * 4 + t] = blocks ? word_at(source, 192 + 4 * t) : 0;
        if (t == 0) ((uint16_t *)(tile + SCALES))[row] = blocks ? *(const uint16_t *)(source + 208) : 0;
    }
    __device__ void load(const uint8_t *tile, int lane) {
        for (int h = 0; h < 2; h++) {
            for (int j = 0; j < 2; j++) codes[h][j] = read_once(tile + ((j * 2 + h) * 32 + lane) * 16);
            high[h] = read_once(tile + HIGH + (h * 32 + lane) * 16);
            sizes[h] = read_once(tile + SIZES + (lane / 4 + 8 * h) * 16);
            scales[h] = ((const uint16_t *)(tile + SCALES))[lane / 4 + 8 * h];
        }
    }
    __device__ void pairs(int b, int h, int t, uint32_t pair[4]) const {
        int half = b / 4, run = b % 4;
        for (int i = 0; i < 2; i++) {
            uint32_t bits = word_of(high[h], 2 * half + i) >> 2 * run;
            nibble_pairs(word_of(codes[h][half], 2 * (run % 2) + i), 4 * (run / 2), pair + 2 * i);
            pair[2 * i] |= (bits & 0x00030003) << 4;
            pair[2 * i + 1] |= (bits >> 8 & 0x00030003) << 4;
        }
    }
    __device__ void scale(int b, int h, float *s, float *m) const {
        uint32_t word = word_of(sizes[h], b / 2) >> 16 * (b % 2);
        for (int i = 0; i < 2; i++) {
            s[i] = half_value(scales[h]) * (float)(int8_t)(word >> 8 * i);
            m[i] = -32 * s[i];
        }
    }
};

typedef tile_nibbles<false, false> tile_q4_0;
typedef tile_nibbles<true, false> tile_q4_1;
typedef tile_nibbles<false, true> tile_q5_0;
typedef tile_nibbles<true, true> tile_q5_1;
typedef tile_groups<false> tile_q4_k;
typedef tile_groups<true> tile_q5_k;

/* Calls CALL(tile type) for a tensor type that lies in tiles; F32 and BF16 lie in rows, as in the file. */
#define FOR_TILE_TYPE(type, CALL) \
    switch (type) { \
    case TENSOR_F16: CALL(tile_f16); break; \
    case TENSOR_Q8_0: CALL(tile_q8_0); break; \
    case TENSOR_Q4_0: CALL(tile_q4_0); break; \
    case TENSOR_Q4_1: CALL(tile_q4_1); break; \
    case TENSOR_Q5_0: CALL(tile_q5_0); break; \
    case TENSOR_Q5_1: CALL(tile_q5_1); break; \
    case TENSOR_Q4_K: CALL(tile_q4_k); break; \
    case TENSOR_Q5_K: CALL(tile_q5_k); break; \
    case TENSOR_Q6_K: CALL(tile_q6_k); break; \
    default: break; \
    }

#endif
