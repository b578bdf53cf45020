/* Implements matmul of weights of four to eight bits with AVX-VNNI: weights/tiles_template.h with products that add
 * themselves to a sum. */
#include "backend/cpu/kernels/weights/init.h"

#include "backend/cpu/kernels/weights/avx2_tiles.h"
#define ZERO_IN_WORDS false
#include "backend/cpu/kernels/weights/tiles_fixed.h"

#define ISA avxvnni

INLINE ints start_bytes(int32_t zero) { return _mm256_set1_epi32(zero); }
INLINE ints add_bytes(ints sum, ints codes, const int32_t *number) {
    return _mm256_dpbusd_avx_epi32(sum, codes, _mm256_set1_epi32(*number));
}
INLINE floats end_bytes(const ints sum[1]) { return _mm256_cvtepi32_ps(sum[0]); }

#define SIGNED_ZERO 128
#define start_signed start_bytes
#define add_signed add_bytes
#define end_signed end_bytes

#define start_planes start_bytes
#define add_planes add_bytes
INLINE floats end_planes(const ints sum[2]) {
    return MM(fmadd_ps)(MM(cvtepi32_ps)(sum[0]), MM(set1_ps)(255), MM(cvtepi32_ps)(sum[1]));
}

INLINE ints start_words(int32_t zero) { return (void)zero, _mm256_setzero_si256(); }
INLINE ints add_words(ints sum, ints codes, const int32_t *number) {
    return _mm256_dpwssd_avx_epi32(sum, codes, _mm256_set1_epi32(*number));
}
INLINE floats end_words(const ints sum[1]) { return _mm256_cvtepi32_ps(sum[0]); }

#include "backend/cpu/kernels/weights/tiles_template.h"

#include "backend/cpu/kernels/weights/avx2_mxfp4.h"

void weights_init_avxvnni(struct weights_ops *ops) {
    FILL_TILES(ops);
    FILL_ONE(ops, MXFP4, mxfp4);
}
