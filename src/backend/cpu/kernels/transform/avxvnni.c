/* Pages of the codec transform with AVX-VNNI: products of four bytes add themselves to a dword. */
#include "backend/cpu/kernels/lanes/avx2.h"

#include "backend/cpu/kernels/lanes/sums_template.h"

#undef ISA
#define ISA avxvnni

/* From an intrinsic, gcc 12 keeps sums in memory. */
INLINE __m256i more_products(__m256i sum, __m256i a, __m256i b) {
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
}

INLINE __m256i first_products(__m256i a, __m256i b) { return more_products(_mm256_setzero_si256(), a, b); }
INLINE __m256i whole_sums(__m256i sum) { return sum; }

#define SUM_RANGE 1000 /* no group of planes has more */
#define SUM_OCTETS 8

#include "backend/cpu/kernels/transform/octets_template.h"

void transform_init_avxvnni(struct transform_ops *ops) { fill_octets(ops); }
