/* Product quantization and turned keys with AVX2, FMA and F16C. */
#include "kernels/avx2_lanes.h"

typedef __m256i wide;
#define WIDE_PARTS 2

static inline wide wide_load(const uint16_t *x) { return _mm256_loadu_si256((const __m256i *)x); }
static inline void wide_store(uint16_t *to, wide x) { _mm256_storeu_si256((__m256i *)to, x); }
static inline wide wide_low_16(wide a, wide b) { return _mm256_unpacklo_epi16(a, b); }
static inline wide wide_high_16(wide a, wide b) { return _mm256_unpackhi_epi16(a, b); }
static inline wide wide_low_32(wide a, wide b) { return _mm256_unpacklo_epi32(a, b); }
static inline wide wide_high_32(wide a, wide b) { return _mm256_unpackhi_epi32(a, b); }
static inline wide wide_low_64(wide a, wide b) { return _mm256_unpacklo_epi64(a, b); }
static inline wide wide_high_64(wide a, wide b) { return _mm256_unpackhi_epi64(a, b); }

#include "kernels/product_template.h"

void kernels_fill_avx2_product(struct kernels *k) { product_fill(k); }
