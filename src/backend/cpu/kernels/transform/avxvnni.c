/* Reads pages of the codec transform with AVX-VNNI: products of four bytes add themselves to a dword. */
#include "backend/cpu/kernels/lanes/avx2.h"

#include "backend/cpu/kernels/lanes/sums_template.h"

#undef ISA
#define ISA avxvnni

#include "backend/cpu/kernels/lanes/avxvnni_products.h"

/* Upper codes are multiplied where they lie, as 16 times as much. */
INLINE __m256i upper_codes(__m256i both, __m256i mask) { return _mm256_and_si256(both, _mm256_slli_epi32(mask, 4)); }
INLINE __m256i twice_sums(__m256i sum) { return _mm256_slli_epi32(sum, 1); }
INLINE __m256i twice_upper_sums(__m256i sum) { return _mm256_srai_epi32(sum, 3); }

#define OCTETS_TOGETHER 8
#include "backend/cpu/kernels/transform/octets_template.h"

void transform_init_avxvnni(struct transform_ops *ops) { fill_octets(ops); }
