/* Template: matmul[] of the formats with codes of four, six and eight bits, 256 bits at a time, by products of 16-bit words. The
 * vectors are fixed point, an int16 for each number and a step for each 32, so that an instruction multiplies sixteen numbers by
 * codes and adds the products in pairs, exactly. The step is a power of two: numbers of few digits stay exact. Included by avx2_i16.c
 * and avxvnni.c; FILL_FIXED(ops) fills the slots. Parameters:
 *
 *     ISA                                suffix of the functions
 *     add_products(sum, codes, words)    sum + two products in each dword
 *
 * A register of 32 bytes holds the codes of 32 or, nibbles, of 64 weights. They become words by shifts and masks: the even bytes
 * are one register of words, the odd ones another. The vector's words are brought into that order once for all rows, by quads of 64
 * numbers, four registers each. Codes are unsigned but in Q8_0; what the code that means zero adds is subtracted from the sum of
 * products, exactly again. Rows are read one after another, one stream of memory; of several vectors some meet a row together, whose codes are
 * unpacked once for them. */
#ifndef TERSE_BACKEND_CPU_KERNELS_WEIGHTS_FIXED_TEMPLATE_H
#define TERSE_BACKEND_CPU_KERNELS_WEIGHTS_FIXED_TEMPLATE_H

#include "backend/cpu/kernels/compiler.h"
#include "backend/cpu/kernels/weights/avx2_scales.h"
#include "format/weight_blocks.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>

#define QUAD 64
#define UNIT 128              /* weights that a step of the loops takes; a block of a K type is two units */
#define SEGMENT_UNITS 64      /* whose sum is one float: longer rows add up such sums */
#define LEAST_EXPONENT (-100) /* of a step */
#define AHEAD 4096            /* bytes: the processor's own prefetching stops at the ends of the system's pages */

/* A unit of the vector. */
struct fixed {
    _Alignas(64) int16_t words[UNIT / QUAD][4][16];
    int32_t zero[UNIT / QUAD][2][8]; /* less what the code that means zero adds to the products */
    float step[UNIT / 32];
    float sum[UNIT / 32]; /* of each 32 numbers */
};

static size_t fixed_bytes(size_t n) { return (n + UNIT - 1) / UNIT * sizeof(struct fixed); }

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
    for (size_t u = 0; u * UNIT < n; u++, f++) {
        for (size_t q = 0; q < UNIT / QUAD; q++) {
            int16_t(*words)[16] = f->words[q];
            for (size_t i = 0; i < 2; i++) {
                size_t at = u * UNIT + q * QUAD + i * 32;
                fix_32(at < n ? x + at : NULL, order, i, words, f->step + 2 * q + i, f->sum + 2 * q + i);
            }
            for (size_t i = 0; i < 4 && order.zero; i++) {
                int32_t *zero = f->zero[q][order.nibbles_of_two ? 0 : i / 2];
                __m256i some = _mm256_madd_epi16(load_bytes(words[i]), _mm256_set1_epi16((short)-order.zero));
                if (order.nibbles_of_two ? i > 0 : i % 2 > 0) some = _mm256_add_epi32(some, load_bytes(zero));
                _mm256_storeu_si256((__m256i *)zero, some);
            }
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

/* The halves that four blocks begin with, as floats; eight bytes are read of each. */
INLINE __m128 four_scales(const void *first, size_t bytes) {
    __m128i half[4];
    for (size_t i = 0; i < 4; i++) half[i] = _mm_loadl_epi64((const void *)((const char *)first + i * bytes));
    return _mm_cvtph_ps(_mm_unpacklo_epi32(_mm_unpacklo_epi16(half[0], half[1]), _mm_unpacklo_epi16(half[2], half[3])));
}

/* Times step[4], in both halves of a register. */
INLINE __m256 times_steps(__m128 scales, const float *step) {
    return _mm256_castps128_ps256(_mm_mul_ps(scales, _mm_loadu_ps(step)));
}

/* Lane `a` to the first and lane `b` to the second half of a register. */
INLINE __m256 spread(__m256 x, int a, int b) { return _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(a, a, a, a, b, b, b, b)); }

#define VECTORS_MOST 2
typedef __m256 sums[VECTORS_MOST][2];
typedef const struct fixed *vectors[VECTORS_MOST];

/* sum[X] += a unit of four blocks times unit u of the X vectors. */
INLINE void unit_q4_0(size_t X, const struct weight_q4_0 *block, const struct fixed *const *x, size_t u, sums sum) {
    __m128 scale = four_scales(block, sizeof *block);
    __m256 scales[VECTORS_MOST];
    UNROLL for (size_t t = 0; t < X; t++) scales[t] = times_steps(scale, x[t][u].step);
    UNROLL for (int i = 0; i < 2; i++) {
        __m256i bytes = _mm256_set_m128i(_mm_loadu_si128((const __m128i *)block[2 * i + 1].codes),
                                         _mm_loadu_si128((const __m128i *)block[2 * i].codes));
        __m256i codes[4] = {even_low(bytes), odd_low(bytes), even_high(bytes), odd_high(bytes)};
        UNROLL for (size_t t = 0; t < X; t++) {
            __m256i products = load_bytes(x[t][u].zero[i][0]);
            UNROLL for (int j = 0; j < 4; j++) products = times_words(products, codes[j], x[t][u].words[i][j]);
            sum[t][i] = add_scaled(products, spread(scales[t], 2 * i, 2 * i + 1), sum[t][i]);
        }
    }
}

INLINE void unit_q8_0(size_t X, const struct weight_q8_0 *block, const struct fixed *const *x, size_t u, sums sum) {
    __m128 scale = four_scales(block, sizeof *block);
    __m256 scales[VECTORS_MOST];
    UNROLL for (size_t t = 0; t < X; t++) scales[t] = times_steps(scale, x[t][u].step);
    UNROLL for (int i = 0; i < 4; i++) {
        __m256i bytes = load_bytes(block[i].codes);
        __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), odd = _mm256_srai_epi16(bytes, 8);
        UNROLL for (size_t t = 0; t < X; t++) {
            const int16_t(*words)[16] = x[t][u].words[i / 2] + 2 * (i % 2);
            __m256i products = times_words(times_words(_mm256_setzero_si256(), even, words[0]), odd, words[1]);
            sum[t][i % 2] = add_scaled(products, spread(scales[t], i, i), sum[t][i % 2]);
        }
    }
}

/* step[4] or sum[4] of two units. */
INLINE __m256 of_two(const float *first, const float *second) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(first)), _mm_loadu_ps(second), 1);
}

/* A block, two units. Of 32 bytes the low four bits are one group, the high ones the next. */
INLINE void units_q4_k(size_t X, const struct weight_q4_k *block, const struct fixed *const *x, size_t u, sums sum) {
    float scale[VECTORS_MOST][8];
    __m128i bytes_of_groups = group_scale_bytes(block);
    __m256 s = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes_of_groups));
    __m256 m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes_of_groups, bytes_of_groups)));
    __m128 halves = _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)block));
    s = _mm256_mul_ps(s, _mm256_broadcastss_ps(halves));
    m = _mm256_mul_ps(m, _mm256_broadcastss_ps(_mm_movehdup_ps(halves)));
    UNROLL for (size_t t = 0; t < X; t++) {
        _mm256_storeu_ps(scale[t], _mm256_mul_ps(s, of_two(x[t][u].step, x[t][u + 1].step)));
        sum[t][0] = _mm256_fnmadd_ps(m, of_two(x[t][u].sum, x[t][u + 1].sum), sum[t][0]);
    }
    __asm__("" : "+m"(scale)); /* or gcc 12 spreads each scale by two shuffles instead of a load */
    UNROLL for (size_t i = 0; i < 4; i++) {
        __m256i bytes = load_bytes(block->codes + 32 * i), none = _mm256_setzero_si256();
        __m256i codes[4] = {even_low(bytes), odd_low(bytes), even_high(bytes), odd_high(bytes)};
        UNROLL for (size_t t = 0; t < X; t++) {
            const int16_t(*words)[16] = x[t][u + i / 2].words[i % 2];
            __m256i low = times_words(times_words(none, codes[0], words[0]), codes[1], words[1]);
            __m256i high = times_words(times_words(none, codes[2], words[2]), codes[3], words[3]);
            sum[t][0] = add_scaled(low, _mm256_set1_ps(scale[t][2 * i]), sum[t][0]);
            sum[t][1] = add_scaled(high, _mm256_set1_ps(scale[t][2 * i + 1]), sum[t][1]);
        }
    }
}

/* A block, two units. A register of 32 codes has a scale for each half of it. */
INLINE void units_q6_k(size_t X, const struct weight_q6_k *block, const struct fixed *const *x, size_t u, sums sum) {
    const __m256 one = _mm256_cvtph_ps(_mm_set1_epi16((short)block->scale));
    UNROLL for (size_t half = 0; half < 2; half++) {
        __m256 own = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(block->scales + 8 * half))));
        __m256 scales[VECTORS_MOST];
        UNROLL for (size_t t = 0; t < X; t++) {
            __m256 steps = _mm256_castps128_ps256(_mm_loadu_ps(x[t][u + half].step));
            scales[t] = _mm256_mul_ps(own, _mm256_permutevar8x32_ps(steps, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)));
            scales[t] = _mm256_mul_ps(scales[t], one);
        }
        __m256i high = load_bytes(block->high + 32 * half);
        UNROLL for (int run = 0; run < 4; run++) {
            const size_t quad = (size_t)run / 2, of = (size_t)run % 2;
            __m256i low = load_bytes(block->codes + 64 * half + 32 * of), top;
            low = _mm256_and_si256(run < 2 ? low : _mm256_srli_epi16(low, 4), _mm256_set1_epi8(15));
            top = run < 2 ? _mm256_slli_epi16(high, 4 - 2 * run) : run == 2 ? high : _mm256_srli_epi16(high, 2);
            __m256i codes = _mm256_or_si256(low, _mm256_and_si256(top, _mm256_set1_epi8(48)));
            __m256i even = _mm256_and_si256(codes, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(codes, 8);
            UNROLL for (size_t t = 0; t < X; t++) {
                const struct fixed *f = x[t] + u + half;
                __m256i products = times_words(load_bytes(f->zero[quad][of]), even, f->words[quad][2 * of]);
                products = times_words(products, odd, f->words[quad][2 * of + 1]);
                sum[t][of] = add_scaled(products, spread(scales[t], 2 * run, 2 * run + 1), sum[t][of]);
            }
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

/* Multiplies all rows of a matrix by X vectors. Blocks that are left when whole units end are copied. */
#define ROWS_KERNEL(name, type, per, unit, units, X) \
    static void name(const char *w, size_t row_bytes, size_t rows, size_t n, const void *const *vector, float *y, size_t stride) { \
        vectors x; \
        for (size_t t = 0; t < X; t++) x[t] = vector[t]; \
        for (size_t r = 0; r < rows; r++, w += row_bytes) { \
            const struct weight_##type *block = (const void *)w; \
            float total[VECTORS_MOST] = {0}; \
            for (size_t i = 0, u = 0; i < n;) { \
                const size_t end = SMALLER(n, i + SEGMENT_UNITS * UNIT); \
                sums sum; \
                UNROLL for (size_t t = 0; t < X; t++) sum[t][0] = sum[t][1] = _mm256_setzero_ps(); \
                for (; i + UNIT * units <= end; i += UNIT * units, u += units, block += per) { \
                    fetch_ahead(block, per * sizeof *block); \
                    unit(X, block, x, u, sum); \
                } \
                if (i < end) { \
                    struct weight_##type last[per] = {0}; \
                    memcpy(last, block, (end - i) * per / (UNIT * units) * sizeof *last); \
                    unit(X, last, x, u, sum); \
                    i = end; \
                } \
                UNROLL for (size_t t = 0; t < X; t++) total[t] += sum_of_lanes(_mm256_add_ps(sum[t][0], sum[t][1])); \
            } \
            for (size_t t = 0; t < X; t++) y[t * stride + r] = total[t]; \
        } \
    }

#define MATMUL_KERNEL(type, per, unit, units, ...) \
    ROWS_KERNEL(one_##type, type, per, unit, units, 1) \
    ROWS_KERNEL(two_##type, type, per, unit, units, 2) \
    static void PASTE(matmul_##type, ISA)(const void *w, size_t row_bytes, size_t rows, size_t n, const void *const *x, \
                                          size_t count, float *y, size_t stride) { \
        size_t t = 0; \
        for (; t + 2 <= count; t += 2) two_##type(w, row_bytes, rows, n, x + t, y + t * stride, stride); \
        if (t < count) one_##type(w, row_bytes, rows, n, x + t, y + t * stride, stride); \
    } \
    static void PASTE(fix_##type, ISA)(const float *x, size_t n, void *fixed) { fix(x, n, (struct order){__VA_ARGS__}, fixed); }

MATMUL_KERNEL(q4_0, 4, unit_q4_0, 1, .nibbles_of_two = true, .zero = 8)
MATMUL_KERNEL(q8_0, 4, unit_q8_0, 1, .zero = 0)
MATMUL_KERNEL(q4_k, 1, units_q4_k, 2, .sums = true)
MATMUL_KERNEL(q6_k, 1, units_q6_k, 2, .zero = 32)

#define FILL_FIXED(ops) \
    FILL_ONE(ops, Q4_0, q4_0); \
    FILL_ONE(ops, Q8_0, q8_0); \
    FILL_ONE(ops, Q4_K, q4_k); \
    FILL_ONE(ops, Q6_K, q6_k)
#define FILL_ONE(ops, TYPE, type) \
    (ops)->fixed_bytes[TENSOR_##TYPE] = fixed_bytes; \
    (ops)->fix[TENSOR_##TYPE] = PASTE(fix_##type, ISA); \
    (ops)->matmul[TENSOR_##TYPE] = PASTE(matmul_##type, ISA); \
    (ops)->gemm_rows[TENSOR_##TYPE] = 48

#endif
