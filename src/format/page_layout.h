/* This file says how 64 tokens of one layer, KV head and side (K or V) lie in memory, for each codec. It is plain C, included by
 * CPU and CUDA code alike.
 *
 * Keys are read as "for each channel, all tokens" (a logit is a sum over channels), values as "for each token, all channels", so
 * the two sides of one codec lie differently: keys channel-major, values token-major.
 *
 *   f16   keys   half k[hd][64]                                  values  half v[64][hd]
 *   q8_0  keys   half scale[hd/32][64]; int8 k[hd][64]           values  half scale[hd/32][64]; int8 v[64][hd]
 *   q4_0  keys   half scale[hd/32][64]; u8 k[hd/32][16][64]      values  half scale[hd/32][64]; u8 v[64][hd/32][16]
 *   kivi  keys   half scale[2][hd], zero[2][hd]; u8 k[hd][8 bits]
 *         values for each token u8 v[hd bits/8]; half {scale, zero}[hd/32]
 *   sign  keys   u8 sign[hd/8][64]; then what kivi of 2 bits has for values, of magnitudes
 *         values as kivi of 2 bits
 *   comm  keys   u8 gain[64]; for each sub-vector and round 64 codes of 12 bits in two planes, as pq's; zeros up to a multiple of
 *         64 bytes
 *   additive  values u8 gain[64]; u8 codes[8][bits of a code]: bit j of byte [o][i] is bit i of token 8 o + j's
 *   transform  u8 gain[64]; the layout's nibbles one after another, 128 bytes each, see below
 *   pq    keys and values: for each of the hd/width sub-vectors 64 codes of `bits` bits in at most four planes, see below; zeros
 *         up to a multiple of 64 bytes
 *
 * The scales of values lie channel-block-major too, but for kivi's, which stay with their token when it is gathered: a reader
 * multiplies 64 weights by 64 scales at once, then accumulates bare codes.
 *
 * q8_0 and q4_0 hold ggml's numbers, block of 32 channels by block: the same scale, the same codes, in another order. A q4_0 byte j
 * of a block of 32 channels holds channel j in its low and channel j + 16 in its high four bits, code 8 meaning zero. Every page is
 * a multiple of 64 bytes for hd a multiple of 32, and 64-byte aligned.
 *
 * kivi, `bits` 4 or 2: a row of n codes (64 tokens of a key's channel, hd channels of a value) is n bits / 8 bytes, of which byte j
 * holds numbers j, j + n bits / 8, j + 2 n bits / 8, ... from its lowest bits up. Scales of keys are of tokens 0 to 31 and 32 to
 * 63.
 *
 * sign: bit i of a byte of plane j is set where channel 8 j + i of the token's key is not below the mean; so are pages of the index
 * sign. Pages of the index quest: for each 16 tokens half least[hd], most[hd].
 *
 * pq (and vq): a code's bits are cut from the lowest up into parts of 8, 4, 2 and 1 bits, as the binary digits of `bits` say: 12 =
 * 8 + 4, 7 = 4 + 2 + 1. A part of p bits has a plane of 8 p bytes, in which token t's lie at bits p t to p t + p - 1, counted from
 * the lowest bit of the first byte; the planes follow one another. So 8-bit codes are bytes, 4-bit codes nibbles (the even token's
 * the lower), a single bit is one of a 64-bit mask, and no bit is wasted.
 *
 * transform: a nibble has four bits of four components i of 64 tokens t, in eight octets v = t / 8: bits 4 (v / 2 % 2) to the next
 * three of byte 64 (v / 4) + 32 (v % 2) + j, where j = 4 (t % 8) + i of keys and j = 16 (t % 8 / 4) + 4 i + t % 4 of values: the
 * components of a key, or the tokens of a value's component, are the four bytes of a word. So 64 bytes, masked or shifted, are the
 * codes of 16 tokens in a row. A nibble holds one plane or several, side by side (format/transform.h). */
#ifndef TERSE_FORMAT_PAGE_LAYOUT_H
#define TERSE_FORMAT_PAGE_LAYOUT_H

#define PAGE_TOKENS 64
#define ROPE_RUN_TOKENS 256 /* of a run, to whose first position keys are rotated: enum codec_rope */
#define SCALE_GROUP 32      /* channels that share a scale in q8_0 and q4_0 */

#define PAGE_BYTES_F16(hd) ((size_t)PAGE_TOKENS * (hd)*2)
#define PAGE_BYTES_Q8_0(hd) ((size_t)PAGE_TOKENS * ((hd) / SCALE_GROUP) * (2 + 32))
#define PAGE_BYTES_Q4_0(hd) ((size_t)PAGE_TOKENS * ((hd) / SCALE_GROUP) * (2 + 16))

#define PQ_BITS_MIN 4
#define PQ_BITS_MAX 12
#define PAGE_PQ_PART(bits) ((size_t)PAGE_TOKENS / 8 * (bits)) /* bytes of a sub-vector's planes */
#define PAGE_BYTES_PQ(parts, bits) (((size_t)(parts)*PAGE_PQ_PART(bits) + 63) / 64 * 64)

#define PAGE_BYTES_KIVI(hd, bits) ((size_t)(hd)*8 + (size_t)PAGE_TOKENS / 8 * (bits) * (hd))
#define PAGE_BYTES_SIGNS(hd) ((size_t)PAGE_TOKENS / 8 * (hd))
#define QUEST_PAGE_TOKENS 16
#define PAGE_BYTES_QUEST(hd) ((size_t)PAGE_TOKENS / QUEST_PAGE_TOKENS * 2 * 2 * (hd))

#define PAGE_BYTES_COMMVQ(subvectors, rounds) \
    (((size_t)PAGE_TOKENS + (size_t)(subvectors) * (rounds)*PAGE_PQ_PART(12) + 63) / 64 * 64)

#define PAGE_BYTES_ADDITIVE(bits) ((size_t)PAGE_TOKENS + (size_t)PAGE_TOKENS / 8 * (bits)) /* bits a multiple of 32 */

#define PAGE_TRANSFORM_NIBBLE 128
#define PAGE_BYTES_TRANSFORM(nibbles) ((size_t)PAGE_TOKENS + (size_t)(nibbles)*PAGE_TRANSFORM_NIBBLE)

#endif
