/* Implements matmul of weights of four, six and eight bits with AVX2: weights/tiles_template.h. Eight products of a code of four
 * bits and a byte, by twos, are at most 8 * 2 * 15 * 127, so they are added up as words. */
#include "backend/cpu/kernels/weights/init.h"

#include "backend/cpu/kernels/weights/avx2_tiles.h"
#include "backend/cpu/kernels/weights/tiles_fixed.h"

#define ISA avx2

/* Keeps the order of sums: left alone, gcc 12 adds up the products of a loop as a tree, whose nodes it keeps in memory. */
INLINE ints in_order(ints sum) {
    __asm__("" : "+x"(sum));
    return sum;
}

INLINE ints start_bytes(const struct fixed_group *f) { return (void)f, _mm256_setzero_si256(); }
INLINE ints add_bytes(ints sum, ints codes, const int32_t *number) {
    return in_order(_mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, _mm256_set1_epi32(*number))));
}
INLINE ints end_bytes(ints sum, const struct fixed_group *f) {
    return _mm256_add_epi32(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)), _mm256_set1_epi32(f->zero));
}

INLINE ints start_words(const struct fixed_group *f) { return (void)f, _mm256_setzero_si256(); }
INLINE ints add_words(ints sum, ints codes, const int32_t *number) {
    return in_order(_mm256_add_epi32(sum, _mm256_madd_epi16(codes, _mm256_set1_epi32(*number))));
}
INLINE ints end_words(ints sum, const struct fixed_group *f) { return (void)f, sum; }

#include "backend/cpu/kernels/weights/tiles_template.h"

void weights_init_avx2_tiles(struct weights_ops *ops) { FILL_TILES(ops); }
