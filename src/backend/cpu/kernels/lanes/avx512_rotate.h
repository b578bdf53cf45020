/* Computes RoPE and inner products of keys in 16 bits, with AVX-512 (VNNI): a register holds 32 tokens' int16, twice as many as
 * floats. Both numbers of a pair of channels are multiples of that pair's unit. A rotation is rounded products of int16; the inner
 * product with a query multiplies both numbers of a pair in one instruction, with exact sums of 32 bits over all pairs. The units
 * are folded into the queries. pq and commvq build on it, each with the units of its own codebook; the angles are those of struct
 * key_rotation (pq/pq.h).
 *
 * Pairs go in steps of ROTATED_PAIRS, each of which is rotated as a whole or not at all. */
#ifndef TERSE_BACKEND_CPU_KERNELS_LANES_AVX512_ROTATE_H
#define TERSE_BACKEND_CPU_KERNELS_LANES_AVX512_ROTATE_H

#include "backend/cpu/kernels/lanes/avx512.h"

#include "backend/cpu/kernels/compiler.h"
#include "backend/cpu/kernels/limits.h"
#include "backend/cpu/kernels/pq/pq.h"
#include "format/page_layout.h"

#define ROTATED_PAIRS 16
#define ROTATED_MOST_PAIRS (KERNELS_MOST_CHANNELS / 2)
#define ROTATED_LARGEST 23100 /* of a number in units: sqrt(2) times it and some roundings still are an int16 */
#define ROTATED_QUERY 65000   /* the sum of the magnitudes of a query's int16: times an int16 it stays below 2^31 */
#define ROTATED_QUERIES 4     /* that are scored together: their sums are half the registers */

/* A rotated_query holds two int16 of each pair, the real part low, and the step of the sums of products with them. */
struct rotated_query {
    int32_t pairs[ROTATED_MOST_PAIRS];
    float step;
};

/* Returns whether such a rotation can be made in 16 bits. */
INLINE bool rotated_serves(const struct key_rotation *rotation) { return rotation->i16 && rotation->pairs % ROTATED_PAIRS == 0; }

/* Loads both numbers of 16 pairs of a head's channels. */
INLINE void rotated_load(const struct key_rotation *rotation, const float *head, size_t pair, vec *re, vec *im) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    if (!rotation->adjacent && pair < rotation->pairs) {
        *re = vec_load(head + pair);
        *im = vec_load(head + rotation->pairs + pair);
        return;
    }
    vec a = vec_load(head + 2 * pair), b = vec_load(head + 2 * pair + LANES);
    *re = _mm512_permutex2var_ps(a, even, b);
    *im = _mm512_permutex2var_ps(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
}

/* Adds two products to sum in each dword. From an intrinsic, gcc 12 keeps every sum of a loop twice, once in memory. */
INLINE __m512i rotated_products(__m512i sum, __m512i key, __m512i query) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(key), "v"(query));
    return sum;
}

/* Interleaves 16 numbers of `low` and of `high` as int16. */
INLINE __m512i rotated_neighbours(vec low, vec high) {
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_cvtps_epi32(low), _mm512_slli_epi32(_mm512_cvtps_epi32(high), 16));
}

/* Writes 16 numbers as int16, each twice. */
INLINE void rotated_twice(vec x, int32_t *to) { _mm512_storeu_si512(to, rotated_neighbours(x, x)); }

/* Writes gains[64] as int16 in 32768ths of the largest magnitude, i16[2]; returns the largest. */
INLINE float rotated_gains(const float *gains, __m512i *i16) {
    vec most = vec_zero();
    for (size_t i = 0; i < PAGE_TOKENS; i += LANES) most = _mm512_max_ps(most, _mm512_abs_ps(vec_load(gains + i)));
    float largest = _mm512_reduce_max_ps(most);
    vec scale = vec_set(largest > 1e-30f ? 32767 / largest : 0);
    for (size_t i = 0; i < 2; i++) {
        __m256i a = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(vec_mul(vec_load(gains + 32 * i), scale)));
        __m256i b = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(vec_mul(vec_load(gains + 32 * i + LANES), scale)));
        i16[i] = _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
    }
    return largest * (32768.0f / 32767);
}

/* Quantizes q[2 pairs], times units[pairs], which may be 0. */
INLINE void rotated_query_set(const struct key_rotation *rotation, const float *q, size_t pairs, const float *units,
                              struct rotated_query *query) {
    float numbers[2][ROTATED_MOST_PAIRS];
    vec most = vec_zero(), sizes = vec_zero(); /* what is not finite stays so in their sum */
    for (size_t i = 0; i < pairs; i += LANES) {
        vec re, im, unit = vec_load(units + i);
        if (i < rotation->pairs) unit = vec_mul(unit, vec_set(rotation->magnitude * (32768.0f / 32767)));
        rotated_load(rotation, q, i, &re, &im);
        re = vec_mul(re, unit);
        im = vec_mul(im, unit);
        vec size = vec_add(_mm512_abs_ps(re), _mm512_abs_ps(im));
        most = _mm512_max_ps(most, size);
        sizes = vec_add(sizes, size);
        vec_store(numbers[0] + i, re);
        vec_store(numbers[1] + i, im);
    }
    /* No number is more than half of ROTATED_QUERY, or it would not be an int16. */
    float sum = _mm512_reduce_add_ps(sizes), largest = 2 * _mm512_reduce_max_ps(most);
    float all = largest > sum ? largest : sum;
    bool some = !(all <= 1e-30f);
    vec inverse = vec_set(some ? ROTATED_QUERY / all : 0);
    query->step = some ? all / ROTATED_QUERY : 0;
    for (size_t i = 0; i < pairs; i += LANES) {
        vec re = vec_mul(vec_load(numbers[0] + i), inverse), im = vec_mul(vec_load(numbers[1] + i), inverse);
        _mm512_storeu_si512(query->pairs + i, rotated_neighbours(re, im));
    }
}

/* Rotates a pair's numbers re[2], im[2] of 64 tokens in order by angles[2][64] (cosine, sine) unless NULL. Both numbers of a token
 * become neighbours in key[4], tokens in the order of rotated_logits. */
INLINE void rotated_pair(const __m512i *re, const __m512i *im, const int16_t *angles, __m512i *key) {
    UNROLL for (size_t i = 0; i < 2; i++) {
        __m512i x = re[i], y = im[i];
        if (angles) {
            __m512i cosine = _mm512_loadu_si512(angles + 32 * i), sine = _mm512_loadu_si512(angles + PAGE_TOKENS + 32 * i);
            x = _mm512_sub_epi16(_mm512_mulhrs_epi16(re[i], cosine), _mm512_mulhrs_epi16(im[i], sine));
            y = _mm512_add_epi16(_mm512_mulhrs_epi16(re[i], sine), _mm512_mulhrs_epi16(im[i], cosine));
        }
        key[2 * i] = _mm512_unpacklo_epi16(x, y);
        key[2 * i + 1] = _mm512_unpackhi_epi16(x, y);
    }
}

/* Adds to sum[G][4] the products of a pair's key[4] with that pair of G queries. */
INLINE void rotated_add(size_t G, const __m512i *key, const struct rotated_query *queries, size_t pair, __m512i (*sum)[4]) {
    UNROLL for (size_t g = 0; g < G; g++) {
        const __m512i query = _mm512_set1_epi32(queries[g].pairs[pair]);
        UNROLL for (size_t v = 0; v < 4; v++) sum[g][v] = rotated_products(sum[g][v], key[v], query);
    }
}

/* Adds to total[G][4] the products of keys[ROTATED_PAIRS][4] with G queries' pairs from `first` on. */
INLINE void rotated_score(size_t G, const __m512i (*keys)[4], const struct rotated_query *queries, size_t first,
                          __m512i (*total)[4]) {
    __m512i sum[ROTATED_QUERIES][4];
    UNROLL for (size_t g = 0; g < G; g++) { UNROLL for (size_t v = 0; v < 4; v++) sum[g][v] = total[g][v]; }
    for (size_t j = 0; j < ROTATED_PAIRS; j++) rotated_add(G, keys[j], queries, first + j, sum);
    UNROLL for (size_t g = 0; g < G; g++) { UNROLL for (size_t v = 0; v < 4; v++) total[g][v] = sum[g][v]; }
}

INLINE void rotated_score_all(size_t G, const __m512i (*keys)[4], const struct rotated_query *queries, size_t first,
                              __m512i (*total)[4]) {
    for (; G >= 4; G -= 4, queries += 4, total += 4) rotated_score(4, keys, queries, first, total);
    if (G == 3) rotated_score(3, keys, queries, first, total);
    if (G == 2) rotated_score(2, keys, queries, first, total);
    if (G == 1) rotated_score(1, keys, queries, first, total);
}

/* Writes logits[64] of one query's sums. */
INLINE void rotated_logits(const __m512i *total, float step, float *logits) {
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    UNROLL for (size_t i = 0; i < 2; i++) {
        vec a = _mm512_cvtepi32_ps(_mm512_permutex2var_epi32(total[2 * i], low, total[2 * i + 1]));
        vec b = _mm512_cvtepi32_ps(_mm512_permutex2var_epi32(total[2 * i], high, total[2 * i + 1]));
        vec_store(logits + 32 * i, vec_mul(a, vec_set(step)));
        vec_store(logits + 32 * i + LANES, vec_mul(b, vec_set(step)));
    }
}

#endif
