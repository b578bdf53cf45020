/* How 64 tokens of one layer, KV head and side (K or V) lie in memory, for each codec. Plain C, included by CPU and CUDA alike.
 *
 * Keys are read as "for each channel, all tokens" (a logit is a sum over channels), values as "for each token, all channels", so
 * the two sides of one codec lie differently: keys channel-major, values token-major.
 *
 *   f16   keys   half k[hd][64]                                  values  half v[64][hd]
 *   q8_0  keys   half scale[hd/32][64]; int8 k[hd][64]           values  half scale[hd/32][64]; int8 v[64][hd]
 *   q4_0  keys   half scale[hd/32][64]; u8 k[hd/32][16][64]      values  half scale[hd/32][64]; u8 v[64][hd/32][16]
 *
 * The scales of values lie channel-block-major too: a reader multiplies 64 weights by 64 scales at once, then mixes bare codes.
 *
 * q8_0 and q4_0 hold ggml's numbers, block of 32 channels by block: the same scale, the same codes, in another order. A q4_0 byte
 * j of a block of 32 channels holds channel j in its low and channel j + 16 in its high four bits, code 8 meaning zero.
 * Every block is a multiple of 64 bytes for hd a multiple of 32, and 64-byte aligned.
 */
#ifndef TERSE_CODEC_BLOCK_LAYOUT_H
#define TERSE_CODEC_BLOCK_LAYOUT_H

#define BLOCK_TOKENS 64
#define BLOCK_QK 32 /* channels that share a scale in q8_0 and q4_0 */

#define BLOCK_BYTES_F16(hd) ((size_t)BLOCK_TOKENS * (hd) * 2)
#define BLOCK_BYTES_Q8_0(hd) ((size_t)BLOCK_TOKENS * ((hd) / BLOCK_QK) * (2 + 32))
#define BLOCK_BYTES_Q4_0(hd) ((size_t)BLOCK_TOKENS * ((hd) / BLOCK_QK) * (2 + 16))

#endif
