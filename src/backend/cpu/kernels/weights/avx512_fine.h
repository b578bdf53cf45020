/* Adds Q8_0 and Q6_K to the formats of weights/tiles_template.h, which is included before, for AVX-512: matmul_TYPE_avx512 and
 * fix_TYPE_avx512. Rows in their own order (weights/avx2_rows.h) are multiplied by one vector faster, and by eight more slowly. */
#ifndef TERSE_BACKEND_CPU_KERNELS_WEIGHTS_AVX512_FINE_H
#define TERSE_BACKEND_CPU_KERNELS_WEIGHTS_AVX512_FINE_H

#include "backend/cpu/kernels/weights/tiles_template.h"

/* Writes x[16]: of each four numbers the even ones, then the odd ones, as bytes of codes become words. A number is at most 2^15
 * steps; those that round to 2^15 become 2^15 - 1. */
INLINE void group_of_words(const float *x, int zero, struct fixed_group *f) {
    (void)zero;
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    const __m256i even_odd = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    __m256 in[2] = {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
    __m256i largest = _mm256_and_si256(largest_of(in, 2), exponent);
    __m256i step = _mm256_sub_epi32(largest, _mm256_set1_epi32(14 << 23));
    __m256i some = _mm256_cmpgt_epi32(step, _mm256_set1_epi32((127 + LEAST_EXPONENT - 1) << 23));
    __m256i infinite = _mm256_cmpeq_epi32(largest, exponent);
    __m256 inverse = _mm256_castsi256_ps(_mm256_and_si256(_mm256_sub_epi32(_mm256_set1_epi32(254 << 23), step), some));
    __m256i first = _mm256_cvtps_epi32(_mm256_mul_ps(in[0], inverse)), second = _mm256_cvtps_epi32(_mm256_mul_ps(in[1], inverse));
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8);
    _mm256_storeu_si256((__m256i *)f->numbers, _mm256_shuffle_epi8(words, even_odd));
    _mm_store_ss(&f->step, _mm256_castps256_ps128(_mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(step, some), infinite))));
    f->zero[0] = f->zero[1] = 0;
    f->sum = 0;
}

INLINE ints start_words(int32_t zero) { return (void)zero, _mm512_setzero_si512(); }
INLINE ints add_words(ints sum, ints codes, const int32_t *number) {
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*number));
    return sum;
}
INLINE floats end_words(const ints sum[1]) { return _mm512_cvtepi32_ps(sum[0]); }

MULTIPLY_ALL(words, words, 8, 1, NULL, 0, false)

/* Stores signed bytes as words: of a dword the even ones, then the odd ones. */
INLINE void store_words(ints bytes, ints words[2]) {
    words[0] = MM(srai_epi16)(MM(slli_epi16)(bytes, 8), 8);
    words[1] = MM(srai_epi16)(bytes, 8);
}

static void pack_q8_0(const uint8_t *at, size_t apart, struct part *tile) {
    ints d[4 * 17]; /* four pairs of seventeen dwords */
    UNROLL for (int k = 0; k < 4; k++) {
        UNROLL for (int p = k ? 4 * k + 1 : 0; p <= 4 * k + 4; p++) load_pieces(at + 16 * p, apart, d + 4 * p);
        const ints *pair = d + 17 * k;
        ints *words = tile->codes + 32 * k;
        tile->scale[4 * k] = tile->scale[4 * k + 1] = low_half(pair[0]);
        tile->scale[4 * k + 2] = tile->scale[4 * k + 3] = high_half(pair[8]);
        UNROLL for (int i = 0; i < 8; i++) {
            store_words(i ? pair[i] : first_codes(pair, 8, 2), words + 2 * i);
            store_words(pair[9 + i], words + 16 + 2 * i);
        }
    }
}

TILE_MATMUL(q8_0, WEIGHT_BLOCK, WORDS_OF_GROUP, group_of_words, 32, 0, VECTORS_MOST, pack_q8_0, words, NULL)

/* Packs one block: two halves, each of two pieces of 16 columns of four quarters. */
static void pack_q6_k(const uint8_t *at, size_t apart, struct part *tile) {
    const ints two = MM(set1_epi8)(48);
    ints of[4], end[4];
    load_pieces(at + offsetof(struct weight_q6_k, scales), apart, of);
    load_pieces(at + sizeof(struct weight_q6_k) - 16, apart, end);
    const floats scale = high_half(end[3]);
    UNROLL for (int g = 0; g < 16; g++) tile->scale[g] =
        MM(mul_ps)(scale, MM(cvtepi32_ps)(MM(srai_epi32)(MM(slli_epi32)(of[g / 4], 24 - 8 * (g % 4)), 24)));
    for (size_t i = 0; i < 4; i++) {
        const size_t half = i / 2, piece = i % 2;
        ints top[4], even[4], odd[4];
        load_pieces(at + offsetof(struct weight_q6_k, high) + 32 * half + 16 * piece, apart, top);
        load_pieces(at + 64 * half + 16 * piece, apart, even); /* quarters 0 and 2 */
        load_pieces(at + 64 * half + 32 + 16 * piece, apart, odd);
        UNROLL for (int r = 0; r < 4; r++) {
            ints *quarter = tile->codes + 4 * (8 * half + 2 * (size_t)r + piece);
            UNROLL for (int d = 0; d < 4; d++) {
                ints low = r % 2 ? odd[d] : even[d], high = top[d];
                high = r == 0   ? MM(slli_epi16)(high, 4)
                       : r == 1 ? MM(slli_epi16)(high, 2)
                       : r == 2 ? high
                                : MM(srli_epi16)(high, 2);
                quarter[d] = ints_or(r < 2 ? low_nibbles(low) : high_nibbles(low), ints_and(high, two));
            }
        }
    }
}

TILE_PLANES(q6_k, WEIGHT_BLOCK_K, 0, 32, pack_q6_k, planes, NULL)

#endif
