/* Computes in fixed point with AVX-512 (VNNI): numbers that are multiplied by codes of at most eight bits become whole multiples of
 * a step, as two signed bytes, 256 high + low. High and low bytes are summed separately and exactly: 256 numbers of FIXED_MOST
 * times 255 are less than 2^31. A third byte would cost half as much time again. */
#ifndef TERSE_BACKEND_CPU_KERNELS_LANES_AVX512_FIXED_H
#define TERSE_BACKEND_CPU_KERNELS_LANES_AVX512_FIXED_H

#include "backend/cpu/kernels/compiler.h"

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define FIXED_MOST 32639   /* 127 * 256 + 127: the high byte stays within a signed one */
#define COARSE_MOST 127    /* of one byte */
#define FIXED_LEAST 1e-30f /* numbers up to this are 0, so that inverses of steps are finite */

/* Returns the step for numbers up to `largest`, which is finer than that of halves. */
INLINE float fixed_step(float largest) { return largest > FIXED_LEAST ? largest / FIXED_MOST : 0; }

INLINE __m512 fixed_inverse(float step) { return _mm512_set1_ps(step > 0 ? 1 / step : 0); }

/* Rounds multiples of a step to high[16] and low[16]; returns the whole numbers. */
INLINE __m512i to_bytes(__m512 multiples, int8_t *high, int8_t *low) {
    __m512i whole = _mm512_cvtps_epi32(multiples);
    __m512i above = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8); /* less the low byte, which is signed */
    _mm_storeu_si128((__m128i *)high, _mm512_cvtepi32_epi8(above));
    _mm_storeu_si128((__m128i *)low, _mm512_cvtepi32_epi8(whole));
    return whole;
}

INLINE __m512 whole_floats(__m512i high, __m512i low) {
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
}

/* Does the same for two planes of bytes, or for one plane, which holds the whole numbers. */
INLINE __m512 plane_floats(size_t planes, __m512i high, __m512i low) {
    return planes == 2 ? whole_floats(high, low) : _mm512_cvtepi32_ps(high);
}

/* Adds to sum four products of a byte of `codes` and a signed one of `weights` in each dword. From an intrinsic, gcc 12 keeps every
 * sum of a loop twice, once in memory. */
INLINE __m512i add_products(__m512i sum, __m512i codes, __m512i weights) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(weights));
    return sum;
}

/* Loads sixteen bytes at each of four addresses that lie `apart`. */
INLINE __m512i four_pieces(const uint8_t *at, size_t apart) {
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)at));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(at + apart)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(at + 2 * apart)), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(at + 3 * apart)), 3);
}

/* Transposes 4 x 4 dwords in each 128-bit part: part l of to[d] has the d-th dword of part l of each x. */
INLINE void transpose_fours(const __m512i *x, __m512i *to) {
    __m512i low[2] = {_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpacklo_epi32(x[2], x[3])};
    __m512i high[2] = {_mm512_unpackhi_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[2], x[3])};
    to[0] = _mm512_unpacklo_epi64(low[0], low[1]);
    to[1] = _mm512_unpackhi_epi64(low[0], low[1]);
    to[2] = _mm512_unpacklo_epi64(high[0], high[1]);
    to[3] = _mm512_unpackhi_epi64(high[0], high[1]);
}

#endif
