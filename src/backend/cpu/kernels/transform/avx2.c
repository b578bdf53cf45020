/* Reads pages of the codec transform with AVX2: products of bytes are added in pairs to words of 16 bits. A key's products are at
 * most 127 times a code of 15 each, a value's 255 times. */
#include "backend/cpu/kernels/lanes/avx2.h"

#include "backend/cpu/kernels/lanes/sums_template.h"

#include "backend/cpu/kernels/lanes/avx2_products.h"

INLINE __m256i upper_codes(__m256i both, __m256i mask) { return _mm256_and_si256(_mm256_srli_epi32(both, 4), mask); }
/* A step's sums are at most 8 * 2 * 127 * 15 < 2^15. */
INLINE __m256i twice_sums(__m256i sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(2)); }
INLINE __m256i twice_upper_sums(__m256i sum) { return twice_sums(sum); }

#define OCTETS_TOGETHER 4 /* 2 * 255 * 15 * 4 < 2^15 */
#include "backend/cpu/kernels/transform/octets_template.h"

void transform_init_avx2(struct transform_ops *ops) { fill_octets(ops); }
