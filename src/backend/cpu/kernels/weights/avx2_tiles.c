/* Implements matmul of weights of four to eight bits with AVX2: weights/tiles_template.h. Products of bytes are added up by twos as
 * words. A group of 32 numbers has sixteen products to a word, of codes at most 16 from the one that means zero; one of 16 has
 * eight, of codes at most 32 from it. So all of them and `zero` are at most 32,512, and it does no harm that sums wrap on the way. */
#include "backend/cpu/kernels/weights/init.h"

#include "backend/cpu/kernels/weights/avx2_tiles.h"
#define ZERO_IN_WORDS true
#include "backend/cpu/kernels/weights/tiles_fixed.h"

#define ISA avx2

/* Keeps the order of sums: left alone, gcc 12 adds up the products of a loop as a tree, whose nodes it keeps in memory. */
INLINE ints in_order(ints sum) {
    __asm__("" : "+x"(sum));
    return sum;
}

INLINE ints sum_of_pairs(ints words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }

INLINE ints start_bytes(int32_t zero) { return _mm256_set1_epi32(zero); }
INLINE ints add_bytes(ints sum, ints codes, const int32_t *number) {
    return in_order(_mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, _mm256_set1_epi32(*number))));
}
INLINE floats end_bytes(const ints sum[1]) { return _mm256_cvtepi32_ps(sum_of_pairs(sum[0])); }

/* Two products of bytes with signs fit a word, four do not. */
#define SIGNED_ZERO 0
INLINE ints start_signed(int32_t zero) { return (void)zero, _mm256_setzero_si256(); }
INLINE ints add_signed(ints sum, ints codes, const int32_t *number) {
    ints numbers = _mm256_sign_epi8(_mm256_set1_epi32(*number), codes);
    return in_order(_mm256_add_epi32(sum, sum_of_pairs(_mm256_maddubs_epi16(_mm256_abs_epi8(codes), numbers))));
}
INLINE floats end_signed(const ints sum[1]) { return _mm256_cvtepi32_ps(sum[0]); }

#define start_planes start_bytes
#define add_planes add_bytes
INLINE floats end_planes(const ints sum[2]) {
    return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_madd_epi16(sum[0], _mm256_set1_epi16(255)), sum_of_pairs(sum[1])));
}

INLINE floats multiply_codes(const struct codes *codes, const int16_t *words) {
    const __m256i *x = (const __m256i *)words;
    return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_madd_epi16(codes->words[0], x[0]), _mm256_madd_epi16(codes->words[1], x[1])));
}

#include "backend/cpu/kernels/weights/tiles_template.h"

#include "backend/cpu/kernels/weights/avx2_mxfp4.h"
#include "backend/cpu/kernels/weights/avx2_rows.h"

void weights_init_avx2_tiles(struct weights_ops *ops) {
    FILL_TILES(ops);
    FILL_ONE(ops, MXFP4, mxfp4);
    FILL_ONE(ops, Q6_K, q6_k);
    FILL_ONE(ops, Q8_0, q8_0);
}
