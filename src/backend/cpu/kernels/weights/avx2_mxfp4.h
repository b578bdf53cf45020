/* Adds MXFP4 to the formats of weights/tiles_template.h, which is included before, for AVX2 and AVX-VNNI: matmul_mxfp4_ISA and fix_mxfp4_ISA.
 * AVX-512 multiplies it faster as floats. Models are trained in this format, so that their weights have no error beside which that of
 * activations in 8 bits would be small: they have 16. */
#ifndef TERSE_BACKEND_CPU_KERNELS_WEIGHTS_AVX2_MXFP4_H
#define TERSE_BACKEND_CPU_KERNELS_WEIGHTS_AVX2_MXFP4_H

#include "backend/cpu/kernels/weights/tiles_template.h"

#define FP4_ZERO 12 /* with this codes are not negative */

/* Packs fours of blocks of seventeen dwords, which are 1, 2, 3 and 0 bytes off the dwords. */
static void pack_mxfp4(const uint8_t *at, size_t apart, struct part *tile) {
    const ints one = _mm256_set1_epi32(1), table = table_of(weight_fp4_values, FP4_ZERO);
    ints d[4 * 9];
    UNROLL for (int p = 0; p < 8; p++) load_pieces(at + 16 * p, apart, d + 4 * p);
    load_pieces(at + STRIP / WEIGHT_BLOCK * sizeof(struct weight_mxfp4) - 16, apart, d + 30); /* nothing behind them is read */
    UNROLL for (int k = 0; k < 8; k++) {
        const ints *block = d + 17 * (k / 4) + 4 * (k % 4);
        const ints exponent = ints_and(_mm256_srli_epi32(block[0], 8 * (k % 4)), _mm256_set1_epi32(255));
        const ints normal = _mm256_slli_epi32(_mm256_sub_epi32(exponent, one), 23); /* as in weight_mxfp4_unit */
        const ints subnormal = _mm256_slli_epi32(_mm256_add_epi32(_mm256_min_epi32(exponent, one), one), 21);
        tile->scale[2 * k] = tile->scale[2 * k + 1] = _mm256_castsi256_ps(_mm256_max_epi32(normal, subnormal));
        ints *codes = tile->codes + 8 * k;
        UNROLL for (int i = 0; i < 4; i++) {
            const ints both = k % 4 == 3 ? block[1 + i] : i ? block[i] : first_codes(block, 4, k % 4 + 1);
            codes[i] = _mm256_shuffle_epi8(table, low_nibbles(both));
            codes[4 + i] = _mm256_shuffle_epi8(table, high_nibbles(both));
        }
    }
}

TILE_PLANES(mxfp4, WEIGHT_BLOCK, 16, FP4_ZERO, pack_mxfp4, planes, NULL)

#endif
