/* Template: matvec[] of the formats with codes of four, six and eight bits, 256 bits at a time, by products of 16-bit words. The
 * vector is fixed point, an int16 for each number and a step for each 32, so that an instruction multiplies sixteen numbers by
 * codes and adds the products in pairs, exactly. The step is a power of two: numbers of few digits stay exact. Included by avx2_i16.c
 * and avxvnni.c; FILL_FIXED(ops) fills the slots. Parameters:
 *
 *     ISA                                suffix of the functions
 *     add_products(sum, codes, words)    sum + two products in each dword
 *
 * A register of 32 bytes holds the codes of 32 or, nibbles, of 64 weights. They become words by shifts and masks: the even bytes
 * are one register of words, the odd ones another. The vector's words are brought into that order once for all rows, by quads of 64
 * numbers, four registers each. Codes are unsigned but in Q8_0; what the code that means zero adds is subtracted from the sum of
 * products, exactly again. Rows are read one after another, one stream of memory. */
#ifndef TERSE_BACKEND_CPU_KERNELS_WEIGHTS_FIXED_TEMPLATE_H
#define TERSE_BACKEND_CPU_KERNELS_WEIGHTS_FIXED_TEMPLATE_H

#include "backend/cpu/kernels/compiler.h"
#include "backend/cpu/kernels/weights/avx2_scales.h"
#include "format/weight_blocks.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>

#define QUAD 64
#define UNIT 128               /* weights that a step of the loops takes; a block of a K type is two units */
#define SEGMENT ((size_t)8192) /* numbers of the vector that are quantized at a time: they stay in the first-level cache */
#define LEAST_EXPONENT (-100)  /* of a step */
#define AHEAD 4096             /* bytes: the processor's own prefetching stops at the ends of the system's pages */

/* A segment of the vector. */
struct fixed {
    _Alignas(64) int16_t words[SEGMENT / QUAD][4][16];
    int32_t zero[SEGMENT / QUAD][2][8]; /* less what the code that means zero adds to the products */
    float step[SEGMENT / 32];
    float sum[SEGMENT / 32]; /* of each 32 numbers */
};

/* Which words a format wants. Of each 16 numbers the even ones and the odd ones are half a register each. */
struct order {
    bool nibbles_of_two; /* bytes of two blocks of 32 nibbles in a register, a block in each half of it */
    int zero;            /* the code that means zero */
    bool sums;
};

INLINE __m256i load_bytes(const void *p) { return _mm256_loadu_si256(p); }

/* ---- The vector ----------------------------------------------------------------------------------------------------------- */

/* The step of 32 numbers, in all lanes: NaN where one of them is not finite, 0 where they are next to nothing. A number is at most
 * 2^15 steps; those that round to 2^15 become 2^15 - 1. */
INLINE __m256 step_of(const __m256 x[4], __m256 *inverse) {
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    __m256i largest = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) /* as integers, NaN are the largest of all */
        largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(x[i]), _mm256_set1_epi32(0x7fffffff)));
    largest = _mm256_max_epi32(largest, _mm256_permute2x128_si256(largest, largest, 1));
    largest = _mm256_max_epi32(largest, _mm256_shuffle_epi32(largest, 0x4e));
    largest = _mm256_and_si256(_mm256_max_epi32(largest, _mm256_shuffle_epi32(largest, 0xb1)), exponent);
    __m256i step = _mm256_sub_epi32(largest, _mm256_set1_epi32(14 << 23));
    __m256i some = _mm256_cmpgt_epi32(step, _mm256_set1_epi32((127 + LEAST_EXPONENT - 1) << 23));
    __m256i infinite = _mm256_cmpeq_epi32(largest, exponent);
    *inverse = _mm256_castsi256_ps(_mm256_and_si256(_mm256_sub_epi32(_mm256_set1_epi32(254 << 23), step), some));
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(step, some), infinite));
}

/* 16 numbers as whole multiples of a step: the even ones, then the odd ones. */
INLINE __m256i words_of(__m256 a, __m256 b, __m256 inverse) {
    const __m256i parity = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    __m256i first = _mm256_cvtps_epi32(_mm256_mul_ps(a, inverse)), second = _mm256_cvtps_epi32(_mm256_mul_ps(b, inverse));
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8);
    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(words, parity), 0xd8);
}

INLINE int sum_of(__m256i x) {
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

/* x[32], or zeros when NULL, to half `half` of a quad. */
INLINE void fix_32(const float *x, struct order order, size_t half, int16_t words[4][16], float *step, float *sum) {
    __m256 numbers[4], inverse;
    for (int i = 0; i < 4; i++) numbers[i] = x ? _mm256_loadu_ps(x + 8 * i) : _mm256_setzero_ps();
    _mm_store_ss(step, _mm256_castps256_ps128(step_of(numbers, &inverse)));
    __m256i all = _mm256_setzero_si256();
    for (size_t i = 0; i < 2; i++) {
        __m256i both = words_of(numbers[2 * i], numbers[2 * i + 1], inverse);
        size_t first = 2 * (order.nibbles_of_two ? i : half), part = 8 * (order.nibbles_of_two ? half : i);
        _mm_storeu_si128((__m128i *)(words[first] + part), _mm256_castsi256_si128(both));
        _mm_storeu_si128((__m128i *)(words[first + 1] + part), _mm256_extracti128_si256(both, 1));
        all = _mm256_add_epi32(all, _mm256_madd_epi16(both, _mm256_set1_epi16(1)));
    }
    if (order.sums) *sum = *step * (float)sum_of(all);
}

/* x[n] and zeros up to whole units. */
INLINE void fix(const float *x, size_t n, struct order order, struct fixed *f) {
    for (size_t q = 0; q < (n + UNIT - 1) / UNIT * 2; q++) {
        int16_t(*words)[16] = f->words[q];
        for (size_t i = 0; i < 2; i++)
            fix_32(q * QUAD + i * 32 < n ? x + q * QUAD + i * 32 : NULL, order, i, words, f->step + 2 * q + i, f->sum + 2 * q + i);
        for (size_t i = 0; i < 4 && order.zero; i++) {
            int32_t *zero = f->zero[q][order.nibbles_of_two ? 0 : i / 2];
            __m256i some = _mm256_madd_epi16(load_bytes(words[i]), _mm256_set1_epi16((short)-order.zero));
            if (order.nibbles_of_two ? i > 0 : i % 2 > 0) some = _mm256_add_epi32(some, load_bytes(zero));
            _mm256_storeu_si256((__m256i *)zero, some);
        }
    }
}

/* ---- Weights -------------------------------------------------------------------------------------------------------------- */

/* The low four bits of even and of odd bytes, then the high four bits. */
INLINE __m256i even_low(__m256i bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi16(15)); }
INLINE __m256i odd_low(__m256i bytes) { return _mm256_and_si256(_mm256_srli_epi16(bytes, 8), _mm256_set1_epi16(15)); }
INLINE __m256i even_high(__m256i bytes) { return _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi16(15)); }
INLINE __m256i odd_high(__m256i bytes) { return _mm256_srli_epi16(bytes, 12); }

INLINE __m256i times_words(__m256i sum, __m256i codes, const int16_t words[16]) {
    return add_products(sum, codes, load_bytes(words));
}

INLINE __m256 add_scaled(__m256i products, __m256 scale, __m256 sum) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), scale, sum);
}

/* The halves that four blocks begin with, as floats times step[4]; eight bytes are read of each. */
INLINE __m256 four_scales(const void *first, size_t bytes, const float *step) {
    __m128i half[4];
    for (size_t i = 0; i < 4; i++) half[i] = _mm_loadl_epi64((const void *)((const char *)first + i * bytes));
    __m128i all = _mm_unpacklo_epi32(_mm_unpacklo_epi16(half[0], half[1]), _mm_unpacklo_epi16(half[2], half[3]));
    return _mm256_castps128_ps256(_mm_mul_ps(_mm_cvtph_ps(all), _mm_loadu_ps(step)));
}

/* Lane `a` to the first and lane `b` to the second half of a register. */
INLINE __m256 spread(__m256 x, int a, int b) { return _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(a, a, a, a, b, b, b, b)); }

/* sum[2] += a unit of four blocks. */
INLINE void unit_q4_0(const struct weight_q4_0 *block, const struct fixed *f, size_t u, __m256 sum[2]) {
    __m256 scales = four_scales(block, sizeof *block, f->step + 4 * u);
    for (int i = 0; i < 2; i++) {
        const int16_t(*words)[16] = f->words[2 * u + (size_t)i];
        __m256i bytes = _mm256_set_m128i(_mm_loadu_si128((const __m128i *)block[2 * i + 1].codes),
                                         _mm_loadu_si128((const __m128i *)block[2 * i].codes));
        __m256i products = load_bytes(f->zero[2 * u + (size_t)i][0]);
        products = times_words(products, even_low(bytes), words[0]);
        products = times_words(products, odd_low(bytes), words[1]);
        products = times_words(products, even_high(bytes), words[2]);
        products = times_words(products, odd_high(bytes), words[3]);
        sum[i] = add_scaled(products, spread(scales, 2 * i, 2 * i + 1), sum[i]);
    }
}

INLINE void unit_q8_0(const struct weight_q8_0 *block, const struct fixed *f, size_t u, __m256 sum[2]) {
    __m256 scales = four_scales(block, sizeof *block, f->step + 4 * u);
    for (int i = 0; i < 4; i++) {
        const int16_t(*words)[16] = f->words[2 * u + (size_t)i / 2] + 2 * (i % 2);
        __m256i bytes = load_bytes(block[i].codes);
        __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), odd = _mm256_srai_epi16(bytes, 8);
        __m256i products = times_words(times_words(_mm256_setzero_si256(), even, words[0]), odd, words[1]);
        sum[i % 2] = add_scaled(products, spread(scales, i, i), sum[i % 2]);
    }
}

/* A block, two units. Of 32 bytes the low four bits are one group, the high ones the next. */
INLINE void units_q4_k(const struct weight_q4_k *block, const struct fixed *f, size_t u, __m256 sum[2]) {
    float scale[8];
    __m128i bytes_of_groups = group_scale_bytes(block);
    __m256 s = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes_of_groups));
    __m256 m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes_of_groups, bytes_of_groups)));
    __m128 halves = _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)block));
    s = _mm256_mul_ps(s, _mm256_broadcastss_ps(halves));
    m = _mm256_mul_ps(m, _mm256_broadcastss_ps(_mm_movehdup_ps(halves)));
    _mm256_storeu_ps(scale, _mm256_mul_ps(s, _mm256_loadu_ps(f->step + 4 * u)));
    sum[0] = _mm256_fnmadd_ps(m, _mm256_loadu_ps(f->sum + 4 * u), sum[0]);
    __asm__("" : "+m"(scale)); /* or gcc 12 spreads each scale by two shuffles instead of a load */
    UNROLL for (size_t i = 0; i < 4; i++) {
        const int16_t(*words)[16] = f->words[2 * u + i];
        __m256i bytes = load_bytes(block->codes + 32 * i), none = _mm256_setzero_si256();
        __m256i low = times_words(times_words(none, even_low(bytes), words[0]), odd_low(bytes), words[1]);
        __m256i high = times_words(times_words(none, even_high(bytes), words[2]), odd_high(bytes), words[3]);
        sum[0] = add_scaled(low, _mm256_set1_ps(scale[2 * i]), sum[0]);
        sum[1] = add_scaled(high, _mm256_set1_ps(scale[2 * i + 1]), sum[1]);
    }
}

/* A block, two units. A register of 32 codes has a scale for each half of it. */
INLINE void units_q6_k(const struct weight_q6_k *block, const struct fixed *f, size_t u, __m256 sum[2]) {
    const __m256 one = _mm256_cvtph_ps(_mm_set1_epi16((short)block->scale));
    UNROLL for (size_t half = 0; half < 2; half++) {
        __m256 scales = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(block->scales + 8 * half))));
        __m256 steps = _mm256_castps128_ps256(_mm_loadu_ps(f->step + 4 * (u + half)));
        scales = _mm256_mul_ps(scales, _mm256_permutevar8x32_ps(steps, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)));
        scales = _mm256_mul_ps(scales, one);
        __m256i high = load_bytes(block->high + 32 * half);
        UNROLL for (int run = 0; run < 4; run++) {
            const size_t quad = 2 * (u + half) + (size_t)run / 2, of = (size_t)run % 2;
            __m256i low = load_bytes(block->codes + 64 * half + 32 * of), top;
            low = _mm256_and_si256(run < 2 ? low : _mm256_srli_epi16(low, 4), _mm256_set1_epi8(15));
            top = run < 2 ? _mm256_slli_epi16(high, 4 - 2 * run) : run == 2 ? high : _mm256_srli_epi16(high, 2);
            __m256i codes = _mm256_or_si256(low, _mm256_and_si256(top, _mm256_set1_epi8(48)));
            __m256i even = _mm256_and_si256(codes, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(codes, 8);
            __m256i products = times_words(load_bytes(f->zero[quad][of]), even, f->words[quad][2 * of]);
            products = times_words(products, odd, f->words[quad][2 * of + 1]);
            sum[of] = add_scaled(products, spread(scales, 2 * run, 2 * run + 1), sum[of]);
        }
    }
}

/* ---- Matrices ------------------------------------------------------------------------------------------------------------- */

INLINE void fetch_ahead(const void *block, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch((const void *)((uintptr_t)block + AHEAD + at));
}

INLINE float sum_of_lanes(__m256 x) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

/* y[rows] (+)= of a segment; `add`: of a later one than the first. Blocks that are left when whole units end are copied. */
#define SEGMENT_KERNEL(type, per, unit, units) \
    static void segment_##type(const char *w, size_t row_bytes, size_t rows, size_t n, const struct fixed *f, bool add, \
                               float *y) { \
        for (size_t r = 0; r < rows; r++, w += row_bytes) { \
            const struct weight_##type *block = (const void *)w; \
            __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}; \
            size_t i = 0, u = 0; \
            for (; i + UNIT * units <= n; i += UNIT * units, u += units, block += per) { \
                fetch_ahead(block, per * sizeof *block); \
                unit(block, f, u, sum); \
            } \
            if (i < n) { \
                struct weight_##type last[per] = {0}; \
                memcpy(last, block, (n - i) * per / (UNIT * units) * sizeof *last); \
                unit(last, f, u, sum); \
            } \
            float all = sum_of_lanes(_mm256_add_ps(sum[0], sum[1])); \
            y[r] = add ? y[r] + all : all; \
        } \
    }

#define MATVEC_KERNEL(type, weights, ...) \
    static void PASTE(matvec_##type, ISA)(const void *w, size_t row_bytes, size_t rows, size_t n, const float *x, float *y) { \
        struct fixed f; \
        if (!n) memset(y, 0, rows * sizeof *y); \
        for (size_t at = 0; at < n; at += SEGMENT) { \
            size_t count = n - at < SEGMENT ? n - at : SEGMENT; \
            fix(x + at, count, (struct order){__VA_ARGS__}, &f); \
            segment_##type((const char *)w + at / weights * sizeof(struct weight_##type), row_bytes, rows, count, &f, at > 0, y); \
        } \
    }

SEGMENT_KERNEL(q4_0, 4, unit_q4_0, 1)
SEGMENT_KERNEL(q8_0, 4, unit_q8_0, 1)
SEGMENT_KERNEL(q4_k, 1, units_q4_k, 2)
SEGMENT_KERNEL(q6_k, 1, units_q6_k, 2)
MATVEC_KERNEL(q4_0, 32, .nibbles_of_two = true, .zero = 8)
MATVEC_KERNEL(q8_0, 32, .zero = 0)
MATVEC_KERNEL(q4_k, 256, .sums = true)
MATVEC_KERNEL(q6_k, 256, .zero = 32)

#define FILL_FIXED(ops) \
    FILL_ONE(ops, Q4_0, q4_0); \
    FILL_ONE(ops, Q8_0, q8_0); \
    FILL_ONE(ops, Q4_K, q4_k); \
    FILL_ONE(ops, Q6_K, q6_k)
#define FILL_ONE(ops, TYPE, type) \
    (ops)->matvec[TENSOR_##TYPE] = PASTE(matvec_##type, ISA); \
    (ops)->gemm_rows[TENSOR_##TYPE] = 12

#endif
