/* Implements matmul of Q8_0 and Q6_K, whose codes are multiplied as words by activations of 16 bits, for AVX2 and AVX-VNNI:
 * matmul_TYPE_ISA and fix_TYPE_ISA. It is included after weights/tiles_template.h, and multiply_codes(codes, words) comes from the
 * file that includes it: as floats, the sums of 32 products in each lane.
 *
 * A row is read from its beginning to its end, and lanes are columns. So the memory is read as one stream, codes stay in the order
 * that they have, and sums across lanes come once a row: a tile, whose lanes are rows, pays for the other order with each code. 256
 * columns have a step in common, and with the scales of each 32 a sum of their own. A product is the same sum whatever other rows
 * and vectors it is computed with. docs/reports/batches.md has figures. */
#ifndef TERSE_BACKEND_CPU_KERNELS_WEIGHTS_AVX2_ROWS_H
#define TERSE_BACKEND_CPU_KERNELS_WEIGHTS_AVX2_ROWS_H

#include "backend/cpu/kernels/weights/tiles_template.h"

/* ---- Vectors -------------------------------------------------------------------------------------------------------------- */

#define Q6_K_ZERO 32

/* 256 numbers, those past the last being zeros. */
struct fixed_strip {
    _Alignas(64) int16_t words[STRIP];
    float less[STRIP / 16]; /* with Q6_K: what the code that means zero adds to the products of each 16, negative */
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

/* Brings the even ones of each 32 words to the front, as bytes of codes become words, and sums up each 16. */
static void fix_for_bytes(struct fixed_strip *f) {
    for (size_t i = 0; i < STRIP; i += 32) {
        int16_t own[32];
        int32_t all[2] = {0};
        memcpy(own, f->words + i, sizeof own);
        for (size_t j = 0; j < 16; j++) {
            all[0] += own[j];
            all[1] += own[16 + j];
            f->words[i + j] = own[2 * j];
            f->words[i + 16 + j] = own[2 * j + 1];
        }
        for (size_t j = 0; j < 2; j++) f->less[i / 16 + j] = (float)(-Q6_K_ZERO * all[j]);
    }
}

static void PASTE(fix_q8_0, ISA)(const float *x, size_t n, void *fixed) {
    struct fixed_strip *f = fixed;
    for (size_t i = 0; i < n; i += STRIP) fix_strip(x + i, n - i < STRIP ? n - i : STRIP, f++);
}
static void PASTE(fix_q6_k, ISA)(const float *x, size_t n, void *fixed) {
    PASTE(fix_q8_0, ISA)(x, n, fixed);
    struct fixed_strip *f = fixed;
    for (size_t i = 0; i < n; i += STRIP) fix_for_bytes(f++);
}
static size_t fixed_bytes_q8_0(size_t n) { return (n + STRIP - 1) / STRIP * sizeof(struct fixed_strip); }
#define fixed_bytes_q6_k fixed_bytes_q8_0

/* ---- Codes: strips of 256, of which codes_TYPE returns 32 as words ----------------------------------------------------------- */

#define BLOCKS_q8_0 (STRIP / WEIGHT_BLOCK)
#define BLOCKS_q6_k 1

struct scales {
    floats of[2];
};

INLINE struct scales scales_q8_0(const struct weight_q8_0 *block) {
    const __m128i halves =
        _mm_setr_epi16((short)block[0].scale, (short)block[1].scale, (short)block[2].scale, (short)block[3].scale,
                       (short)block[4].scale, (short)block[5].scale, (short)block[6].scale, (short)block[7].scale);
    return (struct scales){{_mm256_cvtph_ps(halves)}};
}
INLINE struct codes codes_q8_0(const struct weight_q8_0 *block, const struct scales *scales, int k) {
    const __m128i *half = (const __m128i *)block[k].codes;
    return (struct codes){{_mm256_cvtepi8_epi16(_mm_loadu_si128(half)), _mm256_cvtepi8_epi16(_mm_loadu_si128(half + 1))},
                          _mm256_permutevar8x32_ps(scales->of[0], _mm256_set1_epi32(k))};
}

INLINE struct scales scales_q6_k(const struct weight_q6_k *block) {
    const floats scale = _mm256_cvtph_ps(_mm_set1_epi16((short)block->scale));
    struct scales scales;
    UNROLL for (int i = 0; i < 2; i++) {
        const __m128i bytes = _mm_loadl_epi64((const void *)(block->scales + 8 * i));
        scales.of[i] = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
    }
    return scales;
}
INLINE struct codes codes_q6_k(const struct weight_q6_k *block, const struct scales *scales, int k) {
    const int half = k / 4, quarter = k % 4, first = 2 * k % 8;
    const ints both = _mm256_loadu_si256((const __m256i *)(block->codes + 64 * half + 32 * (quarter % 2)));
    ints high = _mm256_loadu_si256((const __m256i *)(block->high + 32 * half));
    high = quarter < 2 ? _mm256_slli_epi16(high, 4 - 2 * quarter) : quarter == 3 ? _mm256_srli_epi16(high, 2) : high;
    const ints codes = ints_or(quarter < 2 ? low_nibbles(both) : high_nibbles(both), ints_and(high, _mm256_set1_epi8(48)));
    return (struct codes){{ints_and(codes, _mm256_set1_epi16(255)), _mm256_srli_epi16(codes, 8)},
                          _mm256_permutevar8x32_ps(scales->of[half], _mm256_setr_epi32(first, first, first, first, first + 1,
                                                                                       first + 1, first + 1, first + 1))};
}

INLINE floats start_q8_0(const struct scales *scales, const struct fixed_strip *f) {
    return (void)scales, (void)f, _mm256_setzero_ps();
}
INLINE floats start_q6_k(const struct scales *scales, const struct fixed_strip *f) {
    return _mm256_fmadd_ps(scales->of[0], _mm256_load_ps(f->less), _mm256_mul_ps(scales->of[1], _mm256_load_ps(f->less + 8)));
}

/* ---- Products ------------------------------------------------------------------------------------------------------------- */

#define AHEAD 8192 /* bytes from what is multiplied to what is prefetched */

INLINE float sum_of_lanes(floats x) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

#define MULTIPLY_ROW(type, X) \
    static void multiply_##type##_##X(const void *w, size_t n, const void *const *x, float *y, size_t stride) { \
        const struct weight_##type *row = w; \
        floats total[X]; \
        UNROLL for (size_t t = 0; t < X; t++) total[t] = _mm256_setzero_ps(); \
        for (size_t i = 0; i < n; i += STRIP, row += BLOCKS_##type) { \
            const struct weight_##type *block = row; \
            struct weight_##type rest[BLOCKS_##type]; \
            if (n - i < STRIP) { \
                memset(rest, 0, sizeof rest); \
                memcpy(rest, row, (n - i) / (STRIP / BLOCKS_##type) * sizeof *row); \
                block = rest; \
            } \
            const struct scales scales = scales_##type(block); \
            const struct fixed_strip *own[X]; \
            floats sum[X]; \
            UNROLL for (size_t t = 0; t < X; t++) { \
                own[t] = (const struct fixed_strip *)x[t] + i / STRIP; \
                sum[t] = start_##type(&scales, own[t]); \
            } \
            UNROLL for (int k = 0; k < 8; k++) { \
                if (k % (int)(64 / (sizeof rest / 8)) == 0) \
                    __builtin_prefetch((const void *)((uintptr_t)row + AHEAD + (size_t)k * sizeof rest / 8)); \
                const struct codes codes = codes_##type(block, &scales, k); \
                UNROLL for (size_t t = 0; t < X; t++) sum[t] = \
                    _mm256_fmadd_ps(multiply_codes(&codes, own[t]->words + 32 * k), codes.scale, sum[t]); \
            } \
            UNROLL for (size_t t = 0; t < X; t++) total[t] = _mm256_fmadd_ps(sum[t], _mm256_set1_ps(own[t]->step), total[t]); \
        } \
        UNROLL for (size_t t = 0; t < X; t++) y[t * stride] = sum_of_lanes(total[t]); \
    }

#define MULTIPLY_ROWS(type) \
    MULTIPLY_ROW(type, 1) \
    MULTIPLY_ROW(type, 2) \
    MULTIPLY_ROW(type, 4) \
    MULTIPLY_ROW(type, 8) \
    static void PASTE(matmul_##type, ISA)(const void *w, size_t row_bytes, size_t rows, size_t n, const void *const *x, \
                                          size_t count, float *y, size_t stride) { \
        static void (*const multiply[])(const void *w, size_t n, const void *const *x, float *y, size_t stride) = { \
            multiply_##type##_1, multiply_##type##_2, multiply_##type##_4, multiply_##type##_8}; \
        for (size_t r = 0; r < rows; r++) { \
            for (size_t t = 0, of = 3; t < count; t += (size_t)1 << of) { \
                while ((size_t)1 << of > count - t) of--; \
                multiply[of]((const char *)w + r * row_bytes, n, x + t, y + t * stride + r, stride); \
            } \
        } \
    }
MULTIPLY_ROWS(q8_0)
MULTIPLY_ROWS(q6_k)

#endif
