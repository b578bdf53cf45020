/* Implements matmul of weights of four, six and eight bits with AVX-VNNI: weights/tiles_template.h with products that add
 * themselves to a sum. */
#include "backend/cpu/kernels/weights/init.h"

#include "backend/cpu/kernels/weights/avx2_tiles.h"
#include "backend/cpu/kernels/weights/tiles_fixed.h"

#define ISA avxvnni

INLINE ints start_bytes(const struct fixed_group *f) { return _mm256_set1_epi32(f->zero); }
INLINE ints add_bytes(ints sum, ints codes, const int32_t *number) {
    return _mm256_dpbusd_avx_epi32(sum, codes, _mm256_set1_epi32(*number));
}
INLINE ints end_bytes(ints sum, const struct fixed_group *f) { return (void)f, sum; }

INLINE ints start_words(const struct fixed_group *f) { return (void)f, _mm256_setzero_si256(); }
INLINE ints add_words(ints sum, ints codes, const int32_t *number) {
    return _mm256_dpwssd_avx_epi32(sum, codes, _mm256_set1_epi32(*number));
}
INLINE ints end_words(ints sum, const struct fixed_group *f) { return (void)f, sum; }

#include "backend/cpu/kernels/weights/tiles_template.h"

void weights_init_avxvnni(struct weights_ops *ops) { FILL_TILES(ops); }
