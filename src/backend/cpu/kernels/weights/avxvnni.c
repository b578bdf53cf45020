/* Implements matmul of weights of four to eight bits with AVX-VNNI: weights/tiles_template.h with products that add
 * themselves to a sum. */
#include "backend/cpu/kernels/weights/init.h"

#include "backend/cpu/kernels/weights/avx2_tiles.h"
#define ZERO_IN_WORDS false
#include "backend/cpu/kernels/weights/tiles_fixed.h"

#include "backend/cpu/kernels/weights/vnni_sums.h"

#define ISA avxvnni

INLINE ints add_bytes(ints sum, ints codes, const int32_t *number) {
    return _mm256_dpbusd_avx_epi32(sum, codes, _mm256_set1_epi32(*number));
}
INLINE floats multiply_codes(const struct codes *codes, const int16_t *words) {
    const __m256i *x = (const __m256i *)words;
    return _mm256_cvtepi32_ps(_mm256_dpwssd_avx_epi32(_mm256_madd_epi16(codes->words[0], x[0]), codes->words[1], x[1]));
}

#include "backend/cpu/kernels/weights/tiles_template.h"

#include "backend/cpu/kernels/weights/avx2_mxfp4.h"
#include "backend/cpu/kernels/weights/avx2_rows.h"

void weights_init_avxvnni(struct weights_ops *ops) {
    FILL_TILES(ops);
    FILL_ONE(ops, MXFP4, mxfp4);
    FILL_ONE(ops, Q6_K, q6_k);
    FILL_ONE(ops, Q8_0, q8_0);
}
