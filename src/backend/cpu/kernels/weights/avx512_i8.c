/* matvec of weights of four, six and eight bits with AVX-512, by products of bytes (VNNI): the vector is fixed point, two bytes a number
 * and a step for each 32 numbers, so that four products are one instruction. The step is a power of two: numbers of few digits stay
 * exact.
 *
 * A unit is 128 weights, two registers of codes. Their pieces of 16 weights lie in the order of the format; the vector's are
 * brought into the same order once for all rows. Rows are read one after another, one stream of memory. */
#include "backend/cpu/kernels/weights/avx512_common.h"
#include "backend/cpu/kernels/weights/init.h"

#include "backend/cpu/kernels/lanes/avx512_fixed.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

#define UNIT 128
#define PIECES 8               /* of a unit */
#define SEGMENT ((size_t)8192) /* numbers of the vector that are quantized at a time: they stay in the first-level cache */
#define LEAST_EXPONENT (-100)  /* of a step */
#define AHEAD 4096             /* bytes: the processor's own prefetching of one stream keeps up with half the memory's rate */

/* Which bytes a format wants: piece p lies in lane place[p] % 4 of register place[p] / 4. */
struct order {
    uint8_t place[PIECES];
    bool lanes_of_blocks; /* the same lane of both registers is one block's */
    int zero;             /* the code that means zero */
};
static const struct order order_q4_0 = {{0, 4, 1, 5, 2, 6, 3, 7}, true, 8};
static const struct order order_q8_0 = {{0, 1, 2, 3, 4, 5, 6, 7}, false, 128};
static const struct order order_q4_k = {{0, 1, 4, 5, 2, 3, 6, 7}, false, 0};
static const struct order order_q6_k = {{0, 1, 2, 3, 4, 5, 6, 7}, false, 32};

/* A segment of the vector as 256 high + low steps. */
struct fixed {
    int8_t high[SEGMENT / UNIT][UNIT], low[SEGMENT / UNIT][UNIT];
    float step[SEGMENT / UNIT][UNIT / 4]; /* of each four bytes */
    int32_t zero[SEGMENT / UNIT]
                [UNIT / 4];  /* less what the code that means zero adds to the products; of lanes of blocks the first half */
    float sum[SEGMENT / 32]; /* of each 32 numbers */
};

/* The step of 32 numbers: NaN where one of them is not finite, 0 where they are next to nothing. frexp takes longer than all the rest
 * of a short row: the exponent is read from the number's bits. */
static float step_of(__m512 a, __m512 b) {
    /* as integers, NaN are the largest of all */
    int32_t most =
        _mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(a)), _mm512_castps_si512(_mm512_abs_ps(b))));
    float largest, step;
    memcpy(&largest, &most, sizeof largest);
    if (!(largest <= FLT_MAX)) return NAN;
    double limit = (double)largest * 32768 / FIXED_MOST; /* less than 2^(exponent + 1), and 2^15 steps */
    uint64_t bits;
    memcpy(&bits, &limit, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023;
    if (exponent - 14 < LEAST_EXPONENT) return 0;
    uint32_t step_bits = (uint32_t)(exponent - 14 + 127) << 23;
    memcpy(&step, &step_bits, sizeof step);
    return step;
}

/* Less what `zero`, the code that means zero, adds to the products of register v of a unit. */
INLINE __m512i zero_products(int zero, const struct fixed *f, size_t u, size_t v) {
    const __m512i codes = _mm512_set1_epi8((char)zero), none = _mm512_setzero_si512();
    __m512i high = _mm512_dpbusd_epi32(none, codes, _mm512_loadu_si512(f->high[u] + 64 * v));
    __m512i low = _mm512_dpbusd_epi32(none, codes, _mm512_loadu_si512(f->low[u] + 64 * v));
    return _mm512_sub_epi32(none, _mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
}

/* x[n] and zeros up to whole units. Formats without a code that means zero, which are those with a minimum, want sums instead. */
static void fix(const float *x, size_t n, const struct order *order, struct fixed *f) {
    for (size_t u = 0; u * UNIT < n; u++) {
        for (size_t p = 0; p < PIECES; p += 2) {
            const size_t at = u * UNIT + p * 16, first = order->place[p], second = order->place[p + 1];
            const bool some = at < n;
            __m512 a = some ? _mm512_loadu_ps(x + at) : _mm512_setzero_ps(), b = some ? _mm512_loadu_ps(x + at + 16) : a;
            float step = step_of(a, b);
            __m512 inverse = fixed_inverse(step);
            int8_t *high = f->high[u], *low = f->low[u];
            __m512i whole = _mm512_add_epi32(to_bytes(_mm512_mul_ps(a, inverse), high + 16 * first, low + 16 * first),
                                             to_bytes(_mm512_mul_ps(b, inverse), high + 16 * second, low + 16 * second));
            _mm_storeu_ps(f->step[u] + 4 * first, _mm_set1_ps(step));
            _mm_storeu_ps(f->step[u] + 4 * second, _mm_set1_ps(step));
            if (!order->zero) f->sum[at / 32] = step * (float)_mm512_reduce_add_epi32(whole);
        }
        if (!order->zero) continue;
        __m512i zero[2] = {zero_products(order->zero, f, u, 0), zero_products(order->zero, f, u, 1)};
        if (order->lanes_of_blocks) zero[0] = _mm512_add_epi32(zero[0], zero[1]);
        for (size_t v = 0; v < 2; v++) _mm512_storeu_si512(f->zero[u] + 16 * v, zero[v]);
    }
}

INLINE __m512i bytes_at(const int8_t *bytes) { return _mm512_loadu_si512(bytes); }

/* Products of the codes of one register with those of the vector, four to a lane. */
INLINE __m512i high_products(__m512i codes, const struct fixed *f, size_t u, size_t v, __m512i sum) {
    return _mm512_dpbusd_epi32(sum, codes, bytes_at(f->high[u] + 64 * v));
}
INLINE __m512i low_products(__m512i codes, const struct fixed *f, size_t u, size_t v, __m512i sum) {
    return _mm512_dpbusd_epi32(sum, codes, bytes_at(f->low[u] + 64 * v));
}

INLINE __m512 add_scaled(__m512i high, __m512i low, __m512 scale, __m512 sum) {
    return _mm512_fmadd_ps(whole_floats(high, low), scale, sum);
}

INLINE __m512i low_nibbles(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }

/* Lanes are blocks. */
INLINE __m512 unit_q4_0(const struct weight_q4_0 *block, const struct fixed *f, size_t u, __m512 sum) {
    const __m512i words = _mm512_castsi256_si512(_mm256_setr_epi16(0, 0, 0, 0, 9, 9, 9, 9, 18, 18, 18, 18, 27, 27, 27, 27));
    __m512i codes = four_pieces(block->codes, sizeof *block);
    __m512i first = low_nibbles(codes), second = low_nibbles(_mm512_srli_epi16(codes, 4));
    __m512i high = high_products(second, f, u, 1, high_products(first, f, u, 0, _mm512_setzero_si512()));
    __m512i low = low_products(second, f, u, 1, low_products(first, f, u, 0, _mm512_loadu_si512(f->zero[u])));
    __m512 scale = _mm512_mul_ps(spread_halves(block, words), _mm512_loadu_ps(f->step[u]));
    return add_scaled(high, low, scale, sum);
}

/* Two lanes are a block; codes are signed, and so taken as 128 more. */
INLINE __m512 unit_q8_0(const struct weight_q8_0 *block, const struct fixed *f, size_t u, __m512 sum) {
    const __m512i words = _mm512_castsi256_si512(_mm256_setr_epi16(0, 0, 0, 0, 0, 0, 0, 0, 17, 17, 17, 17, 17, 17, 17, 17));
    for (size_t v = 0; v < 2; v++, block += 2) {
        __m512i codes = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)block[0].codes));
        codes = _mm512_inserti64x4(codes, _mm256_loadu_si256((const __m256i *)block[1].codes), 1);
        codes = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
        __m512i high = high_products(codes, f, u, v, _mm512_setzero_si512());
        __m512i low = low_products(codes, f, u, v, _mm512_loadu_si512(f->zero[u] + 16 * v));
        sum = add_scaled(high, low, _mm512_mul_ps(spread_halves(block, words), _mm512_loadu_ps(f->step[u] + 16 * v)), sum);
    }
    return sum;
}

/* Two units. Of 64 bytes of codes the low four bits are groups 0 and 2 of four, the high ones groups 1 and 3. */
INLINE __m512 units_q4_k(const struct weight_q4_k *block, const struct fixed *f, size_t u, __m512 sum) {
    __m512 scales = group_scales(block);
    for (size_t i = 0; i < 2; i++) {
        __m512i codes = _mm512_loadu_si512(block->codes + 64 * i);
        for (size_t v = 0; v < 2; v++) {
            __m512i some = low_nibbles(v ? _mm512_srli_epi16(codes, 4) : codes), zero = _mm512_setzero_si512();
            __m512i of = _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2),
                                          _mm512_set1_epi32((int)(4 * i + v)));
            __m512 scale = _mm512_mul_ps(_mm512_permutexvar_ps(of, scales), _mm512_loadu_ps(f->step[u + i] + 16 * v));
            sum = add_scaled(high_products(some, f, u + i, v, zero), low_products(some, f, u + i, v, zero), scale, sum);
        }
    }
    __m512 sums = _mm512_castps256_ps512(_mm256_loadu_ps(f->sum + 4 * u));
    return _mm512_mask3_fnmadd_ps(_mm512_shuffle_f32x4(scales, scales, 0x0e), sums, sum, 0xff);
}

/* Two units. Of 64 bytes of codes the low four bits are runs 0 and 1 of four, the high ones runs 2 and 3; a run has a scale for each
 * half of it. */
INLINE __m512 units_q6_k(const struct weight_q6_k *block, const struct fixed *f, size_t u, __m512 sum) {
    const __m512i run_0_and_1 = _mm512_setr_epi64(0x0004000400040004, 0x0004000400040004, 0x0004000400040004, 0x0004000400040004,
                                                  0x0002000200020002, 0x0002000200020002, 0x0002000200020002, 0x0002000200020002);
    const __m512i run_2_and_3 = _mm512_sub_epi16(_mm512_set1_epi16(4), run_0_and_1);
    __m512 scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)block->scales)));
    scales = _mm512_mul_ps(scales, _mm512_cvtph_ps(_mm256_set1_epi16((short)block->scale)));
    for (size_t i = 0; i < 2; i++) {
        __m512i codes = _mm512_loadu_si512(block->codes + 64 * i);
        __m512i high = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(block->high + 32 * i)));
        for (size_t v = 0; v < 2; v++) {
            __m512i some = low_nibbles(v ? _mm512_srli_epi16(codes, 4) : codes), zero = _mm512_setzero_si512();
            __m512i top = v ? _mm512_srlv_epi16(high, run_2_and_3) : _mm512_sllv_epi16(high, run_0_and_1);
            some = _mm512_or_si512(some, _mm512_and_si512(top, _mm512_set1_epi8(48)));
            __m512i of = _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                                          _mm512_set1_epi32((int)(8 * i + 4 * v)));
            __m512 scale = _mm512_mul_ps(_mm512_permutexvar_ps(of, scales), _mm512_loadu_ps(f->step[u + i] + 16 * v));
            __m512i low = low_products(some, f, u + i, v, _mm512_loadu_si512(f->zero[u + i] + 16 * v));
            sum = add_scaled(high_products(some, f, u + i, v, zero), low, scale, sum);
        }
    }
    return sum;
}

INLINE void fetch_ahead(const void *block, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch((const void *)((uintptr_t)block + AHEAD + at));
}

/* y[rows] (+)= of a segment; `add`: of a later one than the first. Blocks that are left when whole units end are copied. */
#define SEGMENT_KERNEL(type, per, unit, units) \
    static void segment_##type(const char *w, size_t row_bytes, size_t rows, size_t n, const struct fixed *f, bool add, \
                               float *y) { \
        for (size_t r = 0; r < rows; r++, w += row_bytes) { \
            const struct weight_##type *block = (const void *)w; \
            __m512 sum = _mm512_setzero_ps(); \
            size_t i = 0, u = 0; \
            for (; i + UNIT * units <= n; i += UNIT * units, u += units, block += per) { \
                fetch_ahead(block, per * sizeof *block); \
                sum = unit(block, f, u, sum); \
            } \
            if (i < n) { \
                struct weight_##type last[per] = {0}; \
                memcpy(last, block, (n - i) * per / (UNIT * units) * sizeof *last); \
                sum = unit(last, f, u, sum); \
            } \
            float all = _mm512_reduce_add_ps(sum); \
            y[r] = add ? y[r] + all : all; \
        } \
    }

#define MATVEC_KERNEL(type, weights) \
    static void matvec_##type##_avx512(const void *w, size_t row_bytes, size_t rows, size_t n, const float *x, float *y) { \
        struct fixed f; \
        if (!n) memset(y, 0, rows * sizeof *y); \
        for (size_t at = 0; at < n; at += SEGMENT) { \
            size_t count = n - at < SEGMENT ? n - at : SEGMENT; \
            fix(x + at, count, &order_##type, &f); \
            segment_##type((const char *)w + at / weights * sizeof(struct weight_##type), row_bytes, rows, count, &f, at > 0, y); \
        } \
    }

SEGMENT_KERNEL(q4_0, 4, unit_q4_0, 1)
SEGMENT_KERNEL(q8_0, 4, unit_q8_0, 1)
SEGMENT_KERNEL(q4_k, 1, units_q4_k, 2)
SEGMENT_KERNEL(q6_k, 1, units_q6_k, 2)
MATVEC_KERNEL(q4_0, 32)
MATVEC_KERNEL(q8_0, 32)
MATVEC_KERNEL(q4_k, 256)
MATVEC_KERNEL(q6_k, 256)

#define FILL(TYPE, type) \
    ops->matvec[TENSOR_##TYPE] = matvec_##type##_avx512; \
    ops->gemm_rows[TENSOR_##TYPE] = 6

void weights_init_avx512_i8(struct weights_ops *ops) {
    FILL(Q4_0, q4_0);
    FILL(Q8_0, q8_0);
    FILL(Q4_K, q4_k);
    FILL(Q6_K, q6_k);
}
