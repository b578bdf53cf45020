/* Implements matmul of Q8_0, whose codes are multiplied as words by activations of 16 bits, for AVX2 and AVX-VNNI: matmul_q8_0_ISA and
 * fix_q8_0_ISA. It is included after weights/tiles_template.h, and multiply_codes(codes, words) comes from the file that includes it: as
 * floats, the sums of a block's products in each lane.
 *
 * A row is read from its beginning to its end, and lanes are columns. So the memory is read as one stream, codes stay in the order that
 * they have, and sums across lanes come once a row: a tile, whose lanes are rows, pays for the other order with each code, which
 * takes longer than multiplying codes of a byte each. 256 columns have a step in common, and with the scale of each block a sum of
 * their own. A product is the same sum whatever other rows and vectors it is computed with. docs/reports/batches.md has figures. */
#ifndef TERSE_BACKEND_CPU_KERNELS_WEIGHTS_AVX2_Q8_0_H
#define TERSE_BACKEND_CPU_KERNELS_WEIGHTS_AVX2_Q8_0_H

#include "backend/cpu/kernels/weights/tiles_template.h"

/* ---- Vectors -------------------------------------------------------------------------------------------------------------- */

/* 256 numbers, those past the last being zeros. */
struct fixed_strip {
    _Alignas(64) int16_t words[STRIP];
    float step;
};

/* Writes x[n], n a multiple of 32 and at most 256. A number is at most 2^15 steps; those that round to 2^15 become 2^15 - 1. */
static void fix_strip(const float *x, size_t n, struct fixed_strip *f) {
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    __m256 in[STRIP / 8];
    for (size_t i = 0; i < STRIP / 8; i++) in[i] = 8 * i < n ? _mm256_loadu_ps(x + 8 * i) : _mm256_setzero_ps();
    __m256i largest = _mm256_and_si256(largest_of(in, STRIP / 8), exponent);
    __m256i step = _mm256_sub_epi32(largest, _mm256_set1_epi32(14 << 23));
    __m256i some = _mm256_cmpgt_epi32(step, _mm256_set1_epi32((127 + LEAST_EXPONENT - 1) << 23));
    __m256i infinite = _mm256_cmpeq_epi32(largest, exponent);
    __m256 inverse = _mm256_castsi256_ps(_mm256_and_si256(_mm256_sub_epi32(_mm256_set1_epi32(254 << 23), step), some));
    for (size_t i = 0; i < STRIP / 8; i += 2) {
        __m256i first = _mm256_cvtps_epi32(_mm256_mul_ps(in[i], inverse)),
                second = _mm256_cvtps_epi32(_mm256_mul_ps(in[i + 1], inverse));
        _mm256_store_si256((__m256i *)(f->words + 8 * i), _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8));
    }
    _mm_store_ss(&f->step, _mm256_castps256_ps128(_mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(step, some), infinite))));
}

static void PASTE(fix_q8_0, ISA)(const float *x, size_t n, void *fixed) {
    struct fixed_strip *f = fixed;
    for (size_t i = 0; i < n; i += STRIP) fix_strip(x + i, n - i < STRIP ? n - i : STRIP, f++);
}
static size_t fixed_bytes_q8_0(size_t n) { return (n + STRIP - 1) / STRIP * sizeof(struct fixed_strip); }

/* ---- Products ------------------------------------------------------------------------------------------------------------- */

#define BLOCKS_OF_STRIP (STRIP / WEIGHT_BLOCK)
#define AHEAD 8192 /* bytes from what is multiplied to what is prefetched */

INLINE struct codes load_codes(const int8_t codes[WEIGHT_BLOCK]) {
    const __m128i *half = (const __m128i *)codes;
    return (struct codes){{_mm256_cvtepi8_epi16(_mm_loadu_si128(half)), _mm256_cvtepi8_epi16(_mm_loadu_si128(half + 1))}};
}
INLINE float sum_of_lanes(floats x) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

INLINE __m256 scales_of_blocks(const struct weight_q8_0 *block) {
    const __m128i halves =
        _mm_setr_epi16((short)block[0].scale, (short)block[1].scale, (short)block[2].scale, (short)block[3].scale,
                       (short)block[4].scale, (short)block[5].scale, (short)block[6].scale, (short)block[7].scale);
    return _mm256_cvtph_ps(halves);
}

#define MULTIPLY_ROW(X) \
    static void multiply_row_##X(const struct weight_q8_0 *row, size_t n, const void *const *x, float *y, size_t stride) { \
        floats total[X]; \
        UNROLL for (size_t t = 0; t < X; t++) total[t] = _mm256_setzero_ps(); \
        for (size_t i = 0; i < n; i += STRIP, row += BLOCKS_OF_STRIP) { \
            const struct weight_q8_0 *block = row; \
            struct weight_q8_0 rest[BLOCKS_OF_STRIP]; \
            if (n - i < STRIP) { \
                memset(rest, 0, sizeof rest); \
                memcpy(rest, row, (n - i) / WEIGHT_BLOCK * sizeof *row); \
                block = rest; \
            } \
            float scales[BLOCKS_OF_STRIP]; \
            _mm256_storeu_ps(scales, scales_of_blocks(block)); \
            const struct fixed_strip *own[X]; \
            floats sum[X]; \
            UNROLL for (size_t t = 0; t < X; t++) { \
                own[t] = (const struct fixed_strip *)x[t] + i / STRIP; \
                sum[t] = _mm256_setzero_ps(); \
            } \
            UNROLL for (size_t b = 0; b < BLOCKS_OF_STRIP; b++) { \
                __builtin_prefetch((const void *)((uintptr_t)(row + b) + AHEAD)); \
                const struct codes codes = load_codes(block[b].codes); \
                UNROLL for (size_t t = 0; t < X; t++) sum[t] = \
                    _mm256_fmadd_ps(multiply_codes(&codes, own[t]->words + b * WEIGHT_BLOCK), _mm256_set1_ps(scales[b]), sum[t]); \
            } \
            UNROLL for (size_t t = 0; t < X; t++) total[t] = _mm256_fmadd_ps(sum[t], _mm256_set1_ps(own[t]->step), total[t]); \
        } \
        UNROLL for (size_t t = 0; t < X; t++) y[t * stride] = sum_of_lanes(total[t]); \
    }
MULTIPLY_ROW(1)
MULTIPLY_ROW(2)
MULTIPLY_ROW(4)
MULTIPLY_ROW(8)

static void PASTE(matmul_q8_0, ISA)(const void *w, size_t row_bytes, size_t rows, size_t n, const void *const *x, size_t count,
                                    float *y, size_t stride) {
    static void (*const multiply[])(const struct weight_q8_0 *row, size_t n, const void *const *x, float *y,
                                    size_t stride) = {multiply_row_1, multiply_row_2, multiply_row_4, multiply_row_8};
    for (size_t r = 0; r < rows; r++) {
        const struct weight_q8_0 *row = (const void *)((const char *)w + r * row_bytes);
        for (size_t t = 0, of = 3; t < count; t += (size_t)1 << of) {
            while ((size_t)1 << of > count - t) of--;
            multiply[of](row, n, x + t, y + t * stride + r, stride);
        }
    }
}

#endif
