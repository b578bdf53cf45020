/* Quantized weights lie in a row as blocks of 32 weights, or of 256 for the K types and IQ4_XS. The formats are ggml's.
 *
 * w is the weight, q its code; every code is unsigned but where said.
 *   Q8_0  w = scale q, q int8
 *   Q4_0  w = scale (q - 8)              Q5_0  w = scale (q - 16)
 *   Q4_1  w = scale q + min              Q5_1  w = scale q + min
 *   Q4_K  w = (scale s) q - min m        Q5_K  the same        one 6-bit s and m for each 32 weights
 *   Q6_K  w = (scale s) (q - 32)                               one int8 s for each 16 weights
 *   Q2_K  w = (scale s) q - min m                              one 4-bit s and m for each 16 weights
 *   Q3_K  w = (scale (s - 32)) (q - 4)                         one 6-bit s for each 16 weights
 *   IQ4_NL  w = scale value[q]                                 value: weight_iq4_values
 *   IQ4_XS  w = (scale (s - 32)) value[q]                      the same; one 6-bit s for each 32 weights
 *   MXFP4   w = 2^(exponent - 128) value[q]                    weight_fp4_values
 * The products of scale, s and q fit 24 bits, so only the last addition of a weight rounds: any order of the products, fused or
 * not, gives the same float, and every instruction set the same as the scalar one.
 *
 * Rows begin at even addresses, those of MXFP4 anywhere; nothing more is asked of them.
 */
#ifndef TERSE_FORMAT_WEIGHT_BLOCKS_H
#define TERSE_FORMAT_WEIGHT_BLOCKS_H

#include <stdint.h>
#include <string.h>

#define WEIGHT_BLOCK 32
#define WEIGHT_BLOCK_K 256

/* These are blocks of 32. Byte j of `codes` holds weight j in its low and weight j + 16 in its high four bits; bit i of `high`
 * (little-endian) is the fifth bit of weight i. */
struct weight_q8_0 {
    uint16_t scale; /* half */
    int8_t codes[32];
};
struct weight_q4_0 {
    uint16_t scale;
    uint8_t codes[16];
};
struct weight_q4_1 {
    uint16_t scale, min;
    uint8_t codes[16];
};
struct weight_q5_0 {
    uint16_t scale;
    uint8_t high[4];
    uint8_t codes[16];
};
struct weight_q5_1 {
    uint16_t scale, min;
    uint8_t high[4];
    uint8_t codes[16];
};

struct weight_iq4_nl {
    uint16_t scale;
    uint8_t codes[16];
};
struct weight_mxfp4 {
    uint8_t exponent;
    uint8_t codes[16];
};

/* These are the sixteen numbers of 4 bits (E2M1 of the OCP Microscaling Formats specification, 2023), times 2; -0 is 0. */
static const int8_t weight_fp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
static const int8_t weight_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* Returns 2^(exponent - 128), the unit of the numbers times 2; it is subnormal for exponents 0 and 1. */
static inline float weight_mxfp4_unit(uint8_t exponent) {
    uint32_t bits = exponent < 2 ? UINT32_C(0x00200000) << exponent : (uint32_t)(exponent - 1) << 23;
    float unit;
    memcpy(&unit, &bits, sizeof unit);
    return unit;
}

/* Blocks of 256 weights are eight groups of 32 in Q4_K and Q5_K. Byte i of the p-th 32 bytes of `codes` holds weight i of group 2p
 * in its low and of group 2p + 1 in its high four bits; bit g of high[i] is the fifth bit of weight i of group g. `scales` packs
 * (s, m) of group g: for g < 4 the low six bits of bytes g and 4 + g; for g >= 4 the low and the high four bits of byte 4 + g,
 * topped by the two high bits of byte g - 4 for s and of byte g for m. */
struct weight_q4_k {
    uint16_t scale, min;
    uint8_t scales[12];
    uint8_t codes[128];
};
struct weight_q5_k {
    uint16_t scale, min;
    uint8_t scales[12];
    uint8_t high[32];
    uint8_t codes[128];
};
/* A block is two halves of 128 weights, each of four quarters of 32 with 64 bytes of `codes` and 32 of `high`. Quarter r has the
 * low (r < 2) or high four bits of codes[32 (r mod 2) + i] and, above them, bits 2r and 2r + 1 of high[i]. `scales` has one s for
 * each 16 weights. */
struct weight_q6_k {
    uint8_t codes[128];
    uint8_t high[64];
    int8_t scales[16];
    uint16_t scale;
};

/* A block is two halves of 128 weights, each of four quarters of 32 that share 32 bytes of `codes`: quarter r has bits 2r and 2r +
 * 1 of byte i. A byte of `scales` has s in its low and m in its high four bits. */
struct weight_q2_k {
    uint8_t scales[16];
    uint8_t codes[64];
    uint16_t scale, min;
};
/* `codes` are as in Q2_K; above them stands bit 4 h + r of high[i] for quarter r of half h. s of 16 weights, k = 0 .. 15, is the
 * low (k < 8) or high four bits of scales[k mod 8], topped by bits 2 (k / 4) and the next of scales[8 + k mod 4]. */
struct weight_q3_k {
    uint8_t high[32];
    uint8_t codes[64];
    uint8_t scales[12];
    uint16_t scale;
};
/* A block is eight groups of 32, each with `codes` like a block of 32. s of group g is the low (g even) or high four bits of low[g
 * / 2], topped by bits 2 g and 2 g + 1 of `high`. */
struct weight_iq4_xs {
    uint16_t scale, high;
    uint8_t low[4];
    uint8_t codes[128];
};

/* These structs hold 32 weights of the types that have no blocks, for kernels that go by 32. */
struct weight_f32 {
    float values[32];
};
struct weight_f16 {
    uint16_t values[32];
};
struct weight_bf16 {
    uint16_t values[32];
};

/* Writes the s of groups 0 to 7, then the m of groups 0 to 7, a byte each, four bytes to a word. */
static inline void weight_group_scales(const uint8_t scales[12], uint32_t words[4]) {
    uint32_t packed[3];
    memcpy(packed, scales, sizeof packed);
    words[0] = packed[0] & 0x3f3f3f3f;
    words[1] = (packed[2] & 0x0f0f0f0f) | (packed[0] >> 2 & 0x30303030);
    words[2] = packed[1] & 0x3f3f3f3f;
    words[3] = (packed[2] >> 4 & 0x0f0f0f0f) | (packed[1] >> 2 & 0x30303030);
}

/* Writes the 16 s of a block of Q3_K, a byte each, four bytes to a word. */
static inline void weight_q3_k_scales(const uint8_t scales[12], uint32_t words[4]) {
    uint32_t packed[3];
    memcpy(packed, scales, sizeof packed);
    for (int i = 0; i < 4; i++) words[i] = (packed[i % 2] >> 4 * (i / 2) & 0x0f0f0f0f) | (packed[2] >> 2 * i & 0x03030303) << 4;
}

/* Returns s of group g. */
static inline int weight_iq4_xs_scale(const struct weight_iq4_xs *block, int g) {
    return (block->low[g / 2] >> 4 * (g % 2) & 15) | (block->high >> 2 * g & 3) << 4;
}

_Static_assert(sizeof(struct weight_q8_0) == 34 && sizeof(struct weight_q4_0) == 18 && sizeof(struct weight_q4_1) == 20,
               "no padding");
_Static_assert(sizeof(struct weight_q5_0) == 22 && sizeof(struct weight_q5_1) == 24, "no padding");
_Static_assert(sizeof(struct weight_iq4_nl) == 18 && sizeof(struct weight_mxfp4) == 17 && sizeof(struct weight_iq4_xs) == 136,
               "no padding");
_Static_assert(sizeof(struct weight_q2_k) == 84 && sizeof(struct weight_q3_k) == 110, "no padding");
_Static_assert(sizeof(struct weight_q4_k) == 144 && sizeof(struct weight_q5_k) == 176 && sizeof(struct weight_q6_k) == 210,
               "no padding");

#endif
