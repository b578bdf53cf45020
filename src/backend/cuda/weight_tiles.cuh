/* Declares the layout of a matrix on the device, and how a warp reads it. The bytes are the file's (format/weight_blocks.h), in
 * another order: a tile is 16 rows by WIDTH weights, whole and without padding within it, and the tiles of 16 rows lie one after
 * the other. Rows and columns that the matrix does not have are zeros.
 *
 * A warp holds a tile in the layout of mma.m16n8k16's first operand. Lane 4 g + t has, of rows g and g + 8 and of each group of 32
 * weights, weights 4 t .. 4 t + 3 and 16 + 4 t .. 16 + 4 t + 3, in pairs:
 *
 *     pair 0  4t, 4t + 2      pair 1  4t + 1, 4t + 3      pair 2, 3  the same, 16 further on
 *
 * so that pairs 0 and 1 are one product's operand and pairs 2 and 3 the next one's. Vectors are laid out to match (rows.cu). A code
 * enters the product without conversion, as the bits of a half, which are the number q 2^-24, exactly, or with a half's sign -q
 * 2^-24. Where codes of four bits are a byte's upper ones they stay there, as 16 q.
 *
 * A tile is loaded CHUNK groups at a time: these types hold a chunk. Weight = unit size q + least. size is a group's, or that of
 * half a group (HALVES); unit, of types that have one (UNIT), is a row's of the tile. `least` times the sum of x is a product of
 * tensor cores too: of OFFSETS numbers of a row and a tile (offsets) with sums of x, whose unit (offset_unit) is chosen so that the
 * product counts in 2^-24 as the codes do: sums come times 2^-SUM_SCALE as two halves. */
#ifndef TERSE_BACKEND_CUDA_WEIGHT_TILES_CUH
#define TERSE_BACKEND_CUDA_WEIGHT_TILES_CUH

#include "backend/cuda/matrix.h"
#include "backend/cuda/ptx.cuh"
#include "gguf/gguf.h"

#include <cuda_fp16.h>

#define TILE_ROWS 16

#define SUM_SCALE 5 /* 32 numbers below 2^15 times 2^-5 are a half */

__device__ static constexpr float power_of_two(int n) {
    return n < 0 ? power_of_two(n + 1) / 2 : n > 0 ? power_of_two(n - 1) * 2 : 1;
}

/* A source has a tile's bytes: stored_tile in global memory, where they are read once, shared_tile in shared memory. */
struct stored_tile {
    const uint8_t *at;
    __device__ uint4 quad(int byte) const { return __ldcs((const uint4 *)(at + byte)); }
    __device__ uint2 pair(int byte) const { return *(const uint2 *)(at + byte); }
    __device__ uint32_t word(int byte) const { return *(const uint32_t *)(at + byte); }
    __device__ uint32_t half_word(int byte) const { return *(const uint16_t *)(at + byte); }
    __device__ uint32_t constant(uint32_t x) const { return x; }
};
struct shared_tile {
    uint32_t at;
    __device__ uint4 quad(int byte) const { return load_shared_quad(at + byte); }
    __device__ uint2 pair(int byte) const { return load_shared_pair(at + byte); }
    __device__ uint32_t word(int byte) const { return load_shared(at + byte); }
    __device__ uint32_t half_word(int byte) const { return load_shared_half(at + byte); }
    /* Keeps a constant in a register: the compiler does not know that `at` is below 2^24. */
    __device__ uint32_t constant(uint32_t x) const { return x + (at >> 24); }
};

/* These read the parts of a matrix that a lane needs of one row; `source` is the row's first block of the tile. */
__device__ static inline uint32_t word_at(const void *source, int byte) {
    const uint16_t *at = (const uint16_t *)((const char *)source + byte); /* blocks are even */
    return at[0] | (uint32_t)at[1] << 16;
}

__device__ static inline uint32_t word_of(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
__device__ static inline float half_value(uint32_t bits) { return __half2float(__ushort_as_half((unsigned short)bits)); }

/* Returns the first, second or third eight bits of a number, as a number; their sum is the number. */
__device__ static inline float third_of(float x, int third) {
#pragma unroll
    for (int i = 0; i < third; i++) x -= __uint_as_float(__float_as_uint(x) & 0xffff0000);
    return __uint_as_float(__float_as_uint(x) & 0xffff0000);
}

/* Returns byte i of a word as a number, or a 16th of it, which goes with codes that are 16 times as large: the byte stands below
 * the implied bit of 2^23 or 2^19. */
#define EXPONENTS 0x4b490000
__device__ static inline float byte_value(uint32_t word, int i, bool upper, uint32_t exponents, float offset = 0) {
    return __uint_as_float(permute(word, exponents, (upper ? 0x6440 : 0x7440) | i)) -
           (upper ? 524288 + offset / 16 : 8388608 + offset);
}

/* Returns the halves s - offset of two bytes s of a word, by the selector: s becomes the last bits of a half between 1024 and 1279,
 * and `from`, the bits of 1024 + offset, is subtracted. */
__device__ static inline uint32_t halves_of_bytes(uint32_t word, uint32_t selector, uint16_t from) {
    uint32_t two = permute(word, 0x6464, selector);
    __half2 sizes = __hsub2(*(const __half2 *)&two, __half2half2(__ushort_as_half(from)));
    return *(const uint32_t *)&sizes;
}

/* ---- Types of 32 weights a block: four blocks to a tile */

/* A block_scales has scales, and mins where MIN, of a row's four blocks. */
template <bool MIN> struct block_scales {
    uint32_t words[MIN ? 4 : 2];
    static constexpr int BYTES = MIN ? 16 : 8;
    template <class SOURCE> __device__ void load(SOURCE from, int byte) {
        if (MIN) {
            uint4 v = from.quad(byte);
            for (int i = 0; i < 4; i++) words[i % (MIN ? 4 : 2)] = word_of(v, i);
        } else {
            uint2 v = from.pair(byte);
            words[0] = v.x, words[1] = v.y;
        }
    }
    __device__ float scale(int b) const { return half_value(MIN ? words[b % (MIN ? 4 : 2)] : words[b / 2] >> 16 * (b % 2)); }
    __device__ float min(int b) const { return half_value(words[b % (MIN ? 4 : 2)] >> 16); }

    /* Returns mins, or scales, of blocks 2i and 2i + 1 of a row, i = t mod 2, as halves. */
    template <class SOURCE> __device__ static uint32_t offsets(SOURCE from, int byte, int t) {
        if (!MIN) return from.word(byte + t % 2 * 4);
        uint2 two = from.pair(byte + t % 2 * 8);
        return permute(two.x, two.y, 0x7632);
    }
};

/* This type serves Q4_0, Q4_1, Q5_0 and Q5_1: BYTES a block, whose codes are the last 16 of them and whose fifth bits, where FIVE,
 * the four before. */
template <bool MIN, bool FIVE> struct tile_nibbles {
    static constexpr int WIDTH = 128, GROUPS = 4, HALVES = 1, BLOCK_BYTES = 18 + 2 * MIN + 4 * FIVE;
    static constexpr int HIGH = 1024, SCALES = HIGH + 256 * FIVE, BYTES = SCALES + 16 * block_scales<MIN>::BYTES;
    static constexpr int CHUNK = 4, OFFSETS = 4;
    static constexpr bool CODES = true, UNIT = false;
    static constexpr enum vector_form FORM = MIN || FIVE ? TWO_HALVES : ONE_HALF; /* one where the CPU takes 8 bits */
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
    template <class SOURCE> __device__ void load(SOURCE from, int lane, int) {
        for (int h = 0; h < 2; h++) {
            codes[h] = from.quad((h * 32 + lane) * 16);
            if (FIVE) high[h] = from.quad(HIGH + (lane / 4 + 8 * h) * 16);
            scales[h].load(from, SCALES + (lane / 4 + 8 * h) * block_scales<MIN>::BYTES);
        }
    }
    __device__ void pairs(int b, int h, int t, uint32_t pair[4], int = 0) const {
        uint32_t word = word_of(codes[h], b);
        for (int i = 0; i < 4; i++) pair[i] = word >> (i / 2 * 4 + i % 2 * 8) & 0x000f000f;
        for (int i = 0; FIVE && i < 2; i++) { /* four bits, of which each product puts two where they belong */
            uint32_t bits = word_of(high[h], b) >> (16 * i + 4 * t) & 15;
            pair[2 * i] |= bits * 0x00040010 & 0x00100010;
            pair[2 * i + 1] |= bits * 0x00020008 & 0x00100010;
        }
    }
    __device__ float size(int b, int h, int) const { return scales[h].scale(b); }
    template <class SOURCE> __device__ static float unit(SOURCE, int) { return 1; }
    template <class SOURCE> __device__ static float least(SOURCE from, int row, int b, int) {
        float first = half_value(from.half_word(SCALES + row * block_scales<MIN>::BYTES + (1 + MIN) * 2 * b + 2 * MIN));
        return MIN ? first : first * (FIVE ? -16 : -8);
    }
    template <class SOURCE> __device__ static uint32_t offsets(SOURCE from, int row, int t) {
        return block_scales<MIN>::offsets(from, SCALES + row * block_scales<MIN>::BYTES, t);
    }
    template <class SOURCE> __device__ static float offset_unit(SOURCE, int) {
        return (MIN ? 1 : FIVE ? -16 : -8) * power_of_two(SUM_SCALE - 24);
    }
};

/* Looks up the values plus 128 of eight codes of IQ4, which lie as those of a block: pairs of codes are unsigned then. */
__device__ static inline void iq4_pairs(uint32_t word, uint32_t pair[4]) {
    uint32_t values[2]; /* of 4t, 16 + 4t, 4t + 1, 16 + 4t + 1; of those 2 further on */
    for (int i = 0; i < 2; i++) {
        const uint32_t codes = word >> 16 * i, digits = codes & 0x7777;
        const uint32_t low = permute(0x3f2d1801, 0x766a5d4f, digits), high = permute(0xa6998d81, 0xf1d9c5b5, digits);
        values[i] = permute(low, high, (codes >> 1 & 0x4444) | 0x3210);
    }
    for (int i = 0; i < 4; i++)
        pair[i] = permute(values[0], values[1], i == 0 ? 0x3430 : i == 1 ? 0x3632 : i == 2 ? 0x3531 : 0x3733) & 0x00ff00ff;
}

/* This type serves IQ4_NL. */
struct tile_iq4_nl : tile_nibbles<false, false> {
    static constexpr enum vector_form FORM = TWO_HALVES;
    __device__ void pairs(int b, int h, int, uint32_t pair[4], int = 0) const { iq4_pairs(word_of(codes[h], b), pair); }
    template <class SOURCE> __device__ static float least(SOURCE from, int row, int b, int) {
        return -128 * half_value(from.half_word(SCALES + row * 8 + 2 * b));
    }
    template <class SOURCE> __device__ static float offset_unit(SOURCE, int) { return -128 * power_of_two(SUM_SCALE - 24); }
};

/* This type serves MXFP4: codes are signed, and have no offset. Blocks may lie at odd addresses. */
struct tile_mxfp4 {
    static constexpr int WIDTH = 128, GROUPS = 4, HALVES = 1, BLOCK_BYTES = 17, SCALES = 1024, BYTES = SCALES + 64;
    static constexpr int CHUNK = 4, OFFSETS = 0;
    static constexpr bool CODES = true, UNIT = false;
    static constexpr enum vector_form FORM = TWO_HALVES;
    uint4 codes[2];
    uint32_t exponents[2]; /* bytes of the four blocks */

    __device__ static void pack(const uint8_t *source, int blocks, uint8_t *tile, int lane, int h) {
        int t = lane % 4, row = lane / 4 + 8 * h;
        uint32_t code[4] = {0};
        for (int b = 0; b < blocks; b++)
            for (int i = 0; i < 4; i++) code[b] |= (uint32_t)source[b * BLOCK_BYTES + 1 + 4 * t + i] << 8 * i;
        ((uint4 *)tile)[h * 32 + lane] = make_uint4(code[0], code[1], code[2], code[3]);
        tile[SCALES + row * 4 + t] = t < blocks ? source[t * BLOCK_BYTES] : 0;
    }
    template <class SOURCE> __device__ void load(SOURCE from, int lane, int) {
        for (int h = 0; h < 2; h++) {
            codes[h] = from.quad((h * 32 + lane) * 16);
            exponents[h] = from.word(SCALES + (lane / 4 + 8 * h) * 4);
        }
    }
    /* Looks up the sizes of two times two codes at once, and puts a code's highest bit where a half has its sign. */
    __device__ void pairs(int b, int h, int, uint32_t pair[4], int = 0) const {
        const uint32_t word = word_of(codes[h], b);
        uint32_t sizes[2];
        for (int i = 0; i < 2; i++) sizes[i] = permute(0x03020100, 0x0c080604, word >> 16 * i & 0x7777);
        for (int i = 0; i < 4; i++) {
            const int bit = i / 2 * 4 + i % 2 * 8 + 3;
            pair[i] = permute(sizes[0], sizes[1], i == 0 ? 0x3430 : i == 1 ? 0x3632 : i == 2 ? 0x3531 : 0x3733) & 0x000f000f;
            pair[i] |= word << (15 - bit) & 0x80008000;
        }
    }
    /* Returns 2^(exponent - 128), as weight_mxfp4_unit() does. */
    __device__ float size(int b, int h, int) const {
        const uint32_t exponent = exponents[h] >> 8 * b & 0xff;
        return __uint_as_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
    }
    template <class SOURCE> __device__ static float unit(SOURCE, int) { return 1; }
    template <class SOURCE> __device__ static float least(SOURCE, int, int, int) { return 0; }
    template <class SOURCE> __device__ static uint32_t offsets(SOURCE, int, int) { return 0; }
    template <class SOURCE> __device__ static float offset_unit(SOURCE, int) { return 0; }
};

struct tile_q8_0 {
    static constexpr int WIDTH = 128, GROUPS = 4, HALVES = 1, BLOCK_BYTES = 34, SCALES = 2048, BYTES = SCALES + 128;
    static constexpr int CHUNK = 4, OFFSETS = 4;
    static constexpr bool CODES = true, UNIT = false;
    static constexpr enum vector_form FORM = TWO_HALVES;
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
    template <class SOURCE> __device__ void load(SOURCE from, int lane, int) {
        for (int h = 0; h < 2; h++) {
            for (int j = 0; j < 2; j++) codes[h][j] = from.quad(((j * 2 + h) * 32 + lane) * 16);
            scales[h].load(from, SCALES + (lane / 4 + 8 * h) * 8);
        }
    }
    __device__ void pairs(int b, int h, int, uint32_t pair[4], int = 0) const {
        for (int i = 0; i < 2; i++) {
            uint32_t w = word_of(codes[h][b / 2], 2 * (b % 2) + i); /* q + 128 */
            pair[2 * i] = (w ^ 0x00800080) & 0x00ff00ff;
            pair[2 * i + 1] = (w >> 8 ^ 0x00800080) & 0x00ff00ff;
        }
    }
    __device__ float size(int b, int h, int) const { return scales[h].scale(b); }
    template <class SOURCE> __device__ static float unit(SOURCE, int) { return 1; }
    template <class SOURCE> __device__ static float least(SOURCE from, int row, int b, int) {
        return -128 * half_value(from.half_word(SCALES + row * 8 + b * 2));
    }
    template <class SOURCE> __device__ static uint32_t offsets(SOURCE from, int row, int t) {
        return block_scales<false>::offsets(from, SCALES + row * 8, t);
    }
    template <class SOURCE> __device__ static float offset_unit(SOURCE, int) { return -128 * power_of_two(SUM_SCALE - 24); }
};

/* ---- Types of single weights: no sizes, no offsets */

struct plain_weights {
    static constexpr int HALVES = 1, OFFSETS = 0;
    static constexpr bool CODES = false, UNIT = false;
    __device__ float size(int, int, int) const { return 1; }
    template <class SOURCE> __device__ static float unit(SOURCE, int) { return 1; }
    template <class SOURCE> __device__ static float least(SOURCE, int, int, int) { return 0; }
    template <class SOURCE> __device__ static uint32_t offsets(SOURCE, int, int) { return 0; }
    template <class SOURCE> __device__ static float offset_unit(SOURCE, int) { return 0; }
};

/* This type serves F16 and BF16, which lie in pairs. */
template <enum vector_form X> struct tile_short : plain_weights {
    static constexpr int WIDTH = 64, GROUPS = 2, CHUNK = 2, BLOCK_BYTES = 2, BYTES = 2048;
    static constexpr enum vector_form FORM = X;
    uint4 values[2][2];

    /* Packs `weights` single weights. */
    __device__ static void pack(const uint8_t *source, int weights, uint8_t *tile, int lane, int h) {
        int t = lane % 4;
        for (int b = 0; b < GROUPS; b++) {
            uint32_t w[4] = {0};
            for (int i = 0; i < 8; i++) {
                int at = 32 * b + 16 * (i / 4) + 4 * t + i % 4;
                if (at < weights) w[i / 4 * 2 + i % 2] |= (uint32_t)((const uint16_t *)source)[at] << 16 * (i % 4 / 2);
            }
            ((uint4 *)tile)[(b * 2 + h) * 32 + lane] = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
    template <class SOURCE> __device__ void load(SOURCE from, int lane, int) {
        for (int h = 0; h < 2; h++)
            for (int b = 0; b < GROUPS; b++) values[h][b] = from.quad(((b * 2 + h) * 32 + lane) * 16);
    }
    __device__ void pairs(int b, int h, int, uint32_t pair[4], int = 0) const {
        for (int i = 0; i < 4; i++) pair[i] = word_of(values[h][b], i);
    }
    /* Returns number i of the lane's eight, in the file's order. */
    __device__ float number(int b, int h, int i) const {
        uint32_t bits = word_of(values[h][b], i / 4 * 2 + i % 2) >> 16 * (i % 4 / 2);
        return FORM == THIRDS ? __uint_as_float(bits << 16) : half_value(bits);
    }
};

/* This type serves F32: a weight is multiplied as three numbers of eight bits, whose sum it is. */
struct tile_f32 : plain_weights {
    static constexpr int WIDTH = 32, GROUPS = 1, CHUNK = 1, BLOCK_BYTES = 4, BYTES = 2048;
    static constexpr enum vector_form FORM = THIRDS;
    uint4 values[2][2];

    __device__ static void pack(const uint8_t *source, int weights, uint8_t *tile, int lane, int h) {
        for (int i = 0; i < 2; i++) {
            uint32_t w[4];
            for (int j = 0; j < 4; j++) {
                int at = 16 * i + lane % 4 * 4 + j;
                w[j] = at < weights ? word_at(source, 4 * at) : 0;
            }
            ((uint4 *)tile)[(i * 2 + h) * 32 + lane] = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
    template <class SOURCE> __device__ void load(SOURCE from, int lane, int) {
        for (int h = 0; h < 2; h++)
            for (int i = 0; i < 2; i++) values[h][i] = from.quad(((i * 2 + h) * 32 + lane) * 16);
    }
    __device__ void pairs(int, int h, int, uint32_t pair[4], int third = 0) const {
        for (int i = 0; i < 4; i++) {
            float x = third_of(number(0, h, i / 2 * 4 + i % 2), third), y = third_of(number(0, h, i / 2 * 4 + i % 2 + 2), third);
            pair[i] = permute(__float_as_uint(x), __float_as_uint(y), 0x7632);
        }
    }
    __device__ float number(int, int h, int i) const { return __uint_as_float(word_of(values[h][i / 4], i % 4)); }
};

/* ---- Types of 256 weights a block: one to a tile */

/* This type serves Q4_K and Q5_K. */
template <bool FIVE> struct tile_groups {
    static constexpr int WIDTH = 256, GROUPS = 8, HALVES = 1, BLOCK_BYTES = FIVE ? 176 : 144;
    static constexpr int HIGH = 2048, SCALES = HIGH + 512 * FIVE, BYTES = SCALES + 256;
    static constexpr int CHUNK = 4, OFFSETS = 8;
    static constexpr bool CODES = true, UNIT = true;
    static constexpr enum vector_form FORM = FIVE ? TWO_HALVES : ONE_HALF;
    uint4 codes[2], high; /* words of two runs, of each its t-th and (t + 4)-th; high: the same of both rows */
    uint32_t sizes[2];    /* bytes of the four groups */
    uint32_t exponents;
    int chunk;

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
    template <class SOURCE> __device__ void load(SOURCE from, int lane, int number) {
        chunk = number;
        exponents = from.constant(EXPONENTS);
        for (int h = 0; h < 2; h++) {
            codes[h] = from.quad(((chunk * 2 + h) * 32 + lane) * 16);
            sizes[h] = four_sizes(from, lane / 4 + 8 * h, chunk);
        }
        if (FIVE) high = from.quad(HIGH + lane * 16);
    }
    __device__ void pairs(int b, int h, int, uint32_t pair[4], int = 0) const {
        for (int i = 0; i < 4; i++) {
            uint32_t word = word_of(codes[h], 2 * (b / 2) + i / 2) >> i % 2 * 8;
            pair[i] = word & (b % 2 ? 0x00f000f0 : 0x000f000f);
            if (!FIVE) continue;
            int up = (b % 2 ? 8 : 4) - (4 * chunk + b) - i % 2 * 8; /* from the group's bit to above the code */
            uint32_t bits = word_of(high, 2 * h + i / 2);
            pair[i] |= (up < 0 ? bits >> -up : bits << up) & (b % 2 ? 0x01000100 : 0x00100010);
        }
    }
    /* Returns the bytes of a chunk's groups, as weight_group_scales() does. */
    template <class SOURCE> __device__ static uint32_t four_sizes(SOURCE from, int row, int chunk) {
        uint32_t low = from.word(SCALES + row * 16 + 4);
        return chunk ? (from.word(SCALES + row * 16 + 12) & 0x0f0f0f0f) | (low >> 2 & 0x30303030) : low & 0x3f3f3f3f;
    }
    template <class SOURCE> __device__ static uint32_t four_mins(SOURCE from, int row, int chunk) {
        uint2 v = from.pair(SCALES + row * 16 + 8);
        return chunk ? (v.y >> 4 & 0x0f0f0f0f) | (v.x >> 2 & 0x30303030) : v.x & 0x3f3f3f3f;
    }
    __device__ float size(int b, int h, int) const { return byte_value(sizes[h], b, b % 2, exponents); }
    template <class SOURCE> __device__ static float unit(SOURCE from, int row) {
        return half_value(from.half_word(SCALES + row * 16));
    }
    template <class SOURCE> __device__ static float least(SOURCE from, int row, int b, int) {
        return -half_value(from.half_word(SCALES + row * 16 + 2)) *
               byte_value(four_mins(from, row, b / 4), b % 4, false, EXPONENTS);
    }
    /* Returns mins of groups 2t and 2t + 1, again as the bits of halves. */
    template <class SOURCE> __device__ static uint32_t offsets(SOURCE from, int row, int t) {
        return permute(four_mins(from, row, t / 2), 0, t % 2 ? 0x4342 : 0x4140);
    }
    template <class SOURCE> __device__ static float offset_unit(SOURCE from, int row) {
        return half_value(from.half_word(SCALES + row * 16 + 2)) * -power_of_two(SUM_SCALE);
    }
};

struct tile_q6_k {
    static constexpr int WIDTH = 256, GROUPS = 8, HALVES = 2, BLOCK_BYTES = 210;
    static constexpr int HIGH = 2048, SIZES = 3072, SCALES = 3328, BYTES = 3360;
    static constexpr int CHUNK = 4, OFFSETS = 16;
    static constexpr bool CODES = true, UNIT = true;
    static constexpr enum vector_form FORM = TWO_HALVES;
    uint4 codes[2];          /* as tile_groups */
    uint2 high[2], sizes[2]; /* sizes: bytes, of half groups */
    uint32_t exponents;

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
    template <class SOURCE> __device__ void load(SOURCE from, int lane, int chunk) {
        exponents = from.constant(EXPONENTS);
        for (int h = 0; h < 2; h++) {
            codes[h] = from.quad(((chunk * 2 + h) * 32 + lane) * 16);
            high[h] = from.pair(HIGH + (h * 32 + lane) * 16 + chunk * 8);
            sizes[h] = from.pair(SIZES + (lane / 4 + 8 * h) * 16 + chunk * 8);
        }
    }
    __device__ void pairs(int b, int h, int, uint32_t pair[4], int = 0) const {
        for (int i = 0; i < 4; i++) {
            uint32_t word = word_of(codes[h], 2 * (b % 2) + i / 2) >> i % 2 * 8;
            uint32_t bits = i / 2 ? high[h].y : high[h].x; /* 2b and 2b + 1 of a byte: above the code */
            bits = i % 2 ? bits >> (4 + b % 2 * 2) : bits << (4 - b % 2 * 2);
            pair[i] = b / 2 ? (word & 0x00f000f0) | (bits & 0x03000300) : (word & 0x000f000f) | (bits & 0x00300030);
        }
    }
    __device__ float size(int b, int h, int half) const {
        uint32_t word = (b / 2 ? sizes[h].y : sizes[h].x) ^ 0x80808080; /* s + 128 */
        return byte_value(word, b % 2 * 2 + half, b / 2, exponents, 128);
    }
    template <class SOURCE> __device__ static float unit(SOURCE from, int row) {
        return half_value(from.half_word(SCALES + row * 2));
    }
    template <class SOURCE> __device__ static float least(SOURCE from, int row, int b, int half) {
        return unit(from, row) * -32 * (float)(int8_t)(from.half_word(SIZES + row * 16 + 2 * b) >> 8 * half);
    }
    /* Returns sizes 2t and 2t + 1, t < 8, as halves, from s + 128. */
    template <class SOURCE> __device__ static uint32_t offsets(SOURCE from, int row, int t) {
        return halves_of_bytes(from.half_word(SIZES + row * 16 + 2 * t) ^ 0x8080, 0x4140, 0x6480);
    }
    template <class SOURCE> __device__ static float offset_unit(SOURCE from, int row) {
        return unit(from, row) * -power_of_two(SUM_SCALE + 5 - 24);
    }
};

/* This type serves IQ4_XS. */
struct tile_iq4_xs {
    static constexpr int WIDTH = 256, GROUPS = 8, HALVES = 1, BLOCK_BYTES = 136, SCALES = 2048, BYTES = SCALES + 128;
    static constexpr int CHUNK = 4, OFFSETS = 8;
    static constexpr bool CODES = true, UNIT = true;
    static constexpr enum vector_form FORM = TWO_HALVES;
    uint4 codes[2];    /* a group's word each */
    uint32_t sizes[2]; /* bytes of the four groups */
    uint32_t exponents;

    __device__ static void pack(const uint8_t *source, int blocks, uint8_t *tile, int lane, int h) {
        int t = lane % 4, row = lane / 4 + 8 * h;
        for (int chunk = 0; chunk < 2; chunk++) {
            uint32_t w[4] = {0};
            for (int i = 0; blocks && i < 4; i++) w[i] = word_at(source, 8 + (4 * chunk + i) * 16 + 4 * t);
            ((uint4 *)tile)[(chunk * 2 + h) * 32 + lane] = make_uint4(w[0], w[1], w[2], w[3]);
        }
        if (t < 2) ((uint32_t *)(tile + SCALES))[row * 2 + t] = blocks ? word_at(source, 4 * t) : 0;
    }
    template <class SOURCE> __device__ void load(SOURCE from, int lane, int chunk) {
        exponents = from.constant(EXPONENTS);
        for (int h = 0; h < 2; h++) {
            codes[h] = from.quad(((chunk * 2 + h) * 32 + lane) * 16);
            sizes[h] = four_sizes(from, lane / 4 + 8 * h, chunk);
        }
    }
    __device__ void pairs(int b, int h, int, uint32_t pair[4], int = 0) const { iq4_pairs(word_of(codes[h], b), pair); }
    /* Returns the bytes s of a chunk's groups, as weight_iq4_xs_scale() does: spreads its four bits and its two. */
    template <class SOURCE> __device__ static uint32_t four_sizes(SOURCE from, int row, int chunk) {
        uint32_t low = from.half_word(SCALES + row * 8 + 4 + 2 * chunk),
                 high = from.half_word(SCALES + row * 8 + 2) >> 8 * chunk & 0xff;
        low = (low | low << 8) & 0x00ff00ff, low = (low | low << 4) & 0x0f0f0f0f;
        high = (high | high << 12) & 0x000f000f, high = (high | high << 6) & 0x03030303;
        return low | high << 4;
    }
    __device__ float size(int b, int h, int) const { return byte_value(sizes[h], b, false, exponents, 32); }
    template <class SOURCE> __device__ static float unit(SOURCE from, int row) {
        return half_value(from.half_word(SCALES + row * 8));
    }
    template <class SOURCE> __device__ static float least(SOURCE from, int row, int b, int) {
        return unit(from, row) * (-128 * byte_value(four_sizes(from, row, b / 4), b % 4, false, EXPONENTS, 32));
    }
    /* Returns sizes of groups 2t and 2t + 1 as halves. */
    template <class SOURCE> __device__ static uint32_t offsets(SOURCE from, int row, int t) {
        return halves_of_bytes(four_sizes(from, row, t / 2), t % 2 ? 0x4342 : 0x4140, 0x6420);
    }
    template <class SOURCE> __device__ static float offset_unit(SOURCE from, int row) {
        return unit(from, row) * (-128 * power_of_two(SUM_SCALE - 24));
    }
};

/* These are the two bits of Q2_K and Q3_K, [16 rows][64 bytes]; a lane has of a half its t-th and (t + 4)-th words. */
struct tile_two_bits {
    uint2 codes[2];

    __device__ static void pack(const uint8_t *source, bool there, uint8_t *tile, int lane, int h) {
        uint32_t w[4] = {0};
        for (int i = 0; there && i < 4; i++) w[i] = word_at(source, i / 2 * 32 + i % 2 * 16 + lane % 4 * 4);
        ((uint4 *)tile)[h * 32 + lane] = make_uint4(w[0], w[1], w[2], w[3]);
    }
    template <class SOURCE> __device__ void load(SOURCE from, int lane, int chunk) {
        for (int h = 0; h < 2; h++) codes[h] = from.pair((h * 32 + lane) * 16 + chunk * 8);
    }
    __device__ uint32_t pair(int b, int h, int i) const {
        return (i / 2 ? codes[h].y : codes[h].x) >> (2 * b + i % 2 * 8) & 0x00030003;
    }
};

struct tile_q2_k {
    static constexpr int WIDTH = 256, GROUPS = 8, HALVES = 2, BLOCK_BYTES = 84, SIZES = 1024, SCALES = 1280, BYTES = SCALES + 64;
    static constexpr int CHUNK = 4, OFFSETS = 16;
    static constexpr bool CODES = true, UNIT = true;
    static constexpr enum vector_form FORM = TWO_HALVES;
    struct tile_two_bits codes;
    uint2 sizes[2]; /* bytes of half groups: s in the low, m in the high four bits */
    uint32_t exponents;

    __device__ static void pack(const uint8_t *source, int blocks, uint8_t *tile, int lane, int h) {
        int t = lane % 4, row = lane / 4 + 8 * h;
        tile_two_bits::pack(source + 16, blocks, tile, lane, h);
        ((uint32_t *)(tile + SIZES))[row * 4 + t] = blocks ? word_at(source, 4 * t) : 0;
        if (t == 0) ((uint32_t *)(tile + SCALES))[row] = blocks ? word_at(source, 80) : 0;
    }
    template <class SOURCE> __device__ void load(SOURCE from, int lane, int chunk) {
        exponents = from.constant(EXPONENTS);
        codes.load(from, lane, chunk);
        for (int h = 0; h < 2; h++) sizes[h] = from.pair(SIZES + (lane / 4 + 8 * h) * 16 + chunk * 8);
    }
    __device__ void pairs(int b, int h, int, uint32_t pair[4], int = 0) const {
        for (int i = 0; i < 4; i++) pair[i] = codes.pair(b, h, i);
    }
    __device__ float size(int b, int h, int half) const {
        return byte_value((b / 2 ? sizes[h].y : sizes[h].x) & 0x0f0f0f0f, b % 2 * 2 + half, false, exponents);
    }
    template <class SOURCE> __device__ static float unit(SOURCE from, int row) {
        return half_value(from.half_word(SCALES + row * 4));
    }
    template <class SOURCE> __device__ static float least(SOURCE from, int row, int b, int half) {
        const uint32_t m = from.half_word(SIZES + row * 16 + 2 * b) >> (8 * half + 4) & 15;
        return -half_value(from.half_word(SCALES + row * 4 + 2)) * (float)m;
    }
    /* Returns m of half groups 2t and 2t + 1, t < 8, as the bits of halves. */
    template <class SOURCE> __device__ static uint32_t offsets(SOURCE from, int row, int t) {
        return permute(from.half_word(SIZES + row * 16 + 2 * t) >> 4 & 0x0f0f, 0, 0x4140);
    }
    template <class SOURCE> __device__ static float offset_unit(SOURCE from, int row) {
        return half_value(from.half_word(SCALES + row * 4 + 2)) * -power_of_two(SUM_SCALE);
    }
};

struct tile_q3_k {
    static constexpr int WIDTH = 256, GROUPS = 8, HALVES = 2, BLOCK_BYTES = 110;
    static constexpr int HIGH = 1024, SIZES = 1536, SCALES = 1728, BYTES = SCALES + 32;
    static constexpr int CHUNK = 4, OFFSETS = 16;
    static constexpr bool CODES = true, UNIT = true;
    static constexpr enum vector_form FORM = TWO_HALVES;
    struct tile_two_bits codes;
    uint2 high[2];        /* the third bits, a group's in a bit of each byte */
    uint32_t sizes[2][2]; /* bytes of half groups */
    uint32_t exponents;
    int chunk;

    __device__ static void pack(const uint8_t *source, int blocks, uint8_t *tile, int lane, int h) {
        int t = lane % 4, row = lane / 4 + 8 * h;
        tile_two_bits::pack(source + 32, blocks, tile, lane, h);
        ((uint2 *)(tile + HIGH))[h * 32 + lane] =
            blocks ? make_uint2(word_at(source, 4 * t), word_at(source, 16 + 4 * t)) : make_uint2(0, 0);
        if (t < 3) ((uint32_t *)(tile + SIZES))[row * 3 + t] = blocks ? word_at(source, 96 + 4 * t) : 0;
        if (t == 3) ((uint16_t *)(tile + SCALES))[row] = blocks ? *(const uint16_t *)(source + 108) : 0;
    }
    template <class SOURCE> __device__ void load(SOURCE from, int lane, int number) {
        chunk = number;
        exponents = from.constant(EXPONENTS);
        codes.load(from, lane, chunk);
        for (int h = 0; h < 2; h++) {
            high[h] = from.pair(HIGH + (h * 32 + lane) * 8);
            for (int i = 0; i < 2; i++) sizes[h][i] = four_sizes(from, lane / 4 + 8 * h, 2 * chunk + i);
        }
    }
    __device__ void pairs(int b, int h, int, uint32_t pair[4], int = 0) const {
        for (int i = 0; i < 4; i++) {
            int up = 2 - (4 * chunk + b) - i % 2 * 8; /* from the group's bit to above the code */
            uint32_t bits = i / 2 ? high[h].y : high[h].x;
            pair[i] = codes.pair(b, h, i) | ((up < 0 ? bits >> -up : bits << up) & 0x00040004);
        }
    }
    /* Returns the bytes s of half groups 4i to 4i + 3, as weight_q3_k_scales() does. */
    template <class SOURCE> __device__ static uint32_t four_sizes(SOURCE from, int row, int i) {
        const uint32_t low = from.word(SIZES + row * 12 + i % 2 * 4), top = from.word(SIZES + row * 12 + 8);
        return (low >> 4 * (i / 2) & 0x0f0f0f0f) | (top >> 2 * i & 0x03030303) << 4;
    }
    __device__ float size(int b, int h, int half) const {
        return byte_value(sizes[h][b / 2], b % 2 * 2 + half, false, exponents, 32);
    }
    template <class SOURCE> __device__ static float unit(SOURCE from, int row) {
        return half_value(from.half_word(SCALES + row * 2));
    }
    template <class SOURCE> __device__ static float least(SOURCE from, int row, int b, int half) {
        return unit(from, row) * (-4 * byte_value(four_sizes(from, row, b / 2), b % 2 * 2 + half, false, EXPONENTS, 32));
    }
    /* Returns sizes 2t and 2t + 1, t < 8, as halves. */
    template <class SOURCE> __device__ static uint32_t offsets(SOURCE from, int row, int t) {
        return halves_of_bytes(four_sizes(from, row, t / 2), t % 2 ? 0x4342 : 0x4140, 0x6420);
    }
    template <class SOURCE> __device__ static float offset_unit(SOURCE from, int row) {
        return unit(from, row) * -power_of_two(SUM_SCALE + 2 - 24);
    }
};

typedef tile_short<TWO_HALVES> tile_f16;
typedef tile_short<THIRDS> tile_bf16;
typedef tile_nibbles<false, false> tile_q4_0;
typedef tile_nibbles<true, false> tile_q4_1;
typedef tile_nibbles<false, true> tile_q5_0;
typedef tile_nibbles<true, true> tile_q5_1;
typedef tile_groups<false> tile_q4_k;
typedef tile_groups<true> tile_q5_k;

/* Calls CALL(tile type) for a tensor type. */
#define FOR_TILE_TYPE(type, CALL) \
    switch (type) { \
    case TENSOR_F32: CALL(tile_f32); break; \
    case TENSOR_BF16: CALL(tile_bf16); break; \
    case TENSOR_F16: CALL(tile_f16); break; \
    case TENSOR_Q8_0: CALL(tile_q8_0); break; \
    case TENSOR_Q4_0: CALL(tile_q4_0); break; \
    case TENSOR_Q4_1: CALL(tile_q4_1); break; \
    case TENSOR_Q5_0: CALL(tile_q5_0); break; \
    case TENSOR_Q5_1: CALL(tile_q5_1); break; \
    case TENSOR_Q4_K: CALL(tile_q4_k); break; \
    case TENSOR_Q5_K: CALL(tile_q5_k); break; \
    case TENSOR_Q6_K: CALL(tile_q6_k); break; \
    case TENSOR_Q2_K: CALL(tile_q2_k); break; \
    case TENSOR_Q3_K: CALL(tile_q3_k); break; \
    case TENSOR_IQ4_NL: CALL(tile_iq4_nl); break; \
    case TENSOR_IQ4_XS: CALL(tile_iq4_xs); break; \
    case TENSOR_MXFP4: CALL(tile_mxfp4); break; \
    default: break; \
    }

#endif
