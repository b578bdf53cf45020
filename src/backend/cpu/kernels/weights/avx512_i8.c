/* matmul of weights of four, six and eight bits with AVX-512, by products of bytes (VNNI): vectors are fixed point, two bytes a number
 * and a step for each 32 numbers, so that four products are one instruction. The step is a power of two: numbers of few digits stay
 * exact.
 *
 * A unit is 128 weights, two registers of codes. Their pieces of 16 weights lie in the order of the format; a vector's are
 * brought into the same order once for all rows. A vector alone meets rows one after another, one stream of memory. Several meet them by
 * twos: codes are unpacked once for all of them, and what is loaded of a vector serves two rows. */
#include "backend/cpu/kernels/weights/avx512_common.h"
#include "backend/cpu/kernels/weights/init.h"

#include "backend/cpu/kernels/lanes/avx512_fixed.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

#define UNIT 128
#define PIECES 8              /* of a unit */
#define SEGMENT_UNITS 64      /* whose sum is one float: longer rows add up such sums */
#define LEAST_EXPONENT (-100) /* of a step */
#define AHEAD 4096            /* bytes: the processor's own prefetching of one stream keeps up with half the memory's rate */

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

/* 128 numbers of a vector as 256 high + low steps. */
struct fixed {
    _Alignas(64) int8_t high[UNIT];
    int8_t low[UNIT];
    float step[UNIT / 4];   /* of each four bytes */
    int32_t zero[UNIT / 4]; /* less what the code that means zero adds to the products; of lanes of blocks the first half */
    float sum[UNIT / 32];   /* of each 32 numbers */
};

static size_t fixed_bytes(size_t n) { return (n + UNIT - 1) / UNIT * sizeof(struct fixed); }

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
INLINE __m512i zero_products(int zero, const struct fixed *f, size_t v) {
    const __m512i codes = _mm512_set1_epi8((char)zero), none = _mm512_setzero_si512();
    __m512i high = _mm512_dpbusd_epi32(none, codes, _mm512_loadu_si512(f->high + 64 * v));
    __m512i low = _mm512_dpbusd_epi32(none, codes, _mm512_loadu_si512(f->low + 64 * v));
    return _mm512_sub_epi32(none, _mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
}

/* x[n] and zeros up to whole units. Formats without a code that means zero, which are those with a minimum, want sums instead. */
static void fix(const float *x, size_t n, const struct order *order, struct fixed *f) {
    for (size_t u = 0; u * UNIT < n; u++, f++) {
        for (size_t p = 0; p < PIECES; p += 2) {
            const size_t at = u * UNIT + p * 16, first = order->place[p], second = order->place[p + 1];
            const bool some = at < n;
            __m512 a = some ? _mm512_loadu_ps(x + at) : _mm512_setzero_ps(), b = some ? _mm512_loadu_ps(x + at + 16) : a;
            float step = step_of(a, b);
            __m512 inverse = fixed_inverse(step);
            int8_t *high = f->high, *low = f->low;
            __m512i whole = _mm512_add_epi32(to_bytes(_mm512_mul_ps(a, inverse), high + 16 * first, low + 16 * first),
                                             to_bytes(_mm512_mul_ps(b, inverse), high + 16 * second, low + 16 * second));
            _mm_storeu_ps(f->step + 4 * first, _mm_set1_ps(step));
            _mm_storeu_ps(f->step + 4 * second, _mm_set1_ps(step));
            if (!order->zero) f->sum[p / 2] = step * (float)_mm512_reduce_add_epi32(whole);
        }
        if (!order->zero) continue;
        __m512i zero[2] = {zero_products(order->zero, f, 0), zero_products(order->zero, f, 1)};
        if (order->lanes_of_blocks) zero[0] = _mm512_add_epi32(zero[0], zero[1]);
        for (size_t v = 0; v < 2; v++) _mm512_storeu_si512(f->zero + 16 * v, zero[v]);
    }
}

/* ---- Products: of R rows of weights and X vectors, constants both */

#define ROWS_MOST 2
#define VECTORS_MOST 4

typedef __m512 sums[ROWS_MOST][VECTORS_MOST];
typedef const struct fixed *vectors[VECTORS_MOST];

/* A load that serves R products: left alone, gcc 12 makes one of it for each. */
INLINE __m512i load_for(size_t R, const void *at) {
    __m512i x = _mm512_loadu_si512(at);
    if (R > 1) __asm__("" : "+v"(x));
    return x;
}

INLINE __m512 add_scaled(__m512i high, __m512i low, __m512 scale, __m512 sum) {
    return _mm512_fmadd_ps(whole_floats(high, low), scale, sum);
}

/* sum += a register of codes of each row, which has one scale in each lane, times register v of unit u. `zero`: the format has a code that
 * means zero. */
INLINE void add_register(size_t R, size_t X, const __m512i *codes, const __m512 *scale, bool zero, const struct fixed *const *x,
                         size_t u, size_t v, sums sum) {
    UNROLL for (size_t t = 0; t < X; t++) {
        const struct fixed *f = x[t] + u;
        __m512i high = load_for(R, f->high + 64 * v), low = load_for(R, f->low + 64 * v);
        __m512i from = zero ? load_for(R, f->zero + 16 * v) : _mm512_setzero_si512();
        __m512 step = _mm512_castsi512_ps(load_for(R, f->step + 16 * v));
        UNROLL for (size_t r = 0; r < R; r++) sum[r][t] =
            add_scaled(_mm512_dpbusd_epi32(_mm512_setzero_si512(), codes[r], high), _mm512_dpbusd_epi32(from, codes[r], low),
                       _mm512_mul_ps(scale[r], step), sum[r][t]);
    }
}

INLINE __m512i low_nibbles(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }

/* Lanes are blocks. */
INLINE void unit_q4_0(size_t R, size_t X, const struct weight_q4_0 *const *block, const struct fixed *const *x, size_t u,
                      sums sum) {
    const __m512i words = _mm512_castsi256_si512(_mm256_setr_epi16(0, 0, 0, 0, 9, 9, 9, 9, 18, 18, 18, 18, 27, 27, 27, 27));
    __m512i first[ROWS_MOST], second[ROWS_MOST];
    __m512 scale[ROWS_MOST];
    UNROLL for (size_t r = 0; r < R; r++) {
        __m512i codes = four_pieces(block[r]->codes, sizeof *block[r]);
        first[r] = low_nibbles(codes);
        second[r] = low_nibbles(_mm512_srli_epi16(codes, 4));
        scale[r] = spread_halves(block[r], words);
    }
    UNROLL for (size_t t = 0; t < X; t++) {
        const struct fixed *f = x[t] + u;
        __m512i high[2] = {load_for(R, f->high), load_for(R, f->high + 64)},
                low[2] = {load_for(R, f->low), load_for(R, f->low + 64)};
        __m512i zero = load_for(R, f->zero);
        __m512 step = _mm512_castsi512_ps(load_for(R, f->step));
        UNROLL for (size_t r = 0; r < R; r++) {
            __m512i above = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), first[r], high[0]), second[r], high[1]);
            __m512i below = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, first[r], low[0]), second[r], low[1]);
            sum[r][t] = add_scaled(above, below, _mm512_mul_ps(scale[r], step), sum[r][t]);
        }
    }
}

/* Two lanes are a block; codes are signed, and so taken as 128 more. */
INLINE void unit_q8_0(size_t R, size_t X, const struct weight_q8_0 *const *block, const struct fixed *const *x, size_t u,
                      sums sum) {
    const __m512i words = _mm512_castsi256_si512(_mm256_setr_epi16(0, 0, 0, 0, 0, 0, 0, 0, 17, 17, 17, 17, 17, 17, 17, 17));
    for (size_t v = 0; v < 2; v++) {
        __m512i codes[ROWS_MOST];
        __m512 scale[ROWS_MOST];
        UNROLL for (size_t r = 0; r < R; r++) {
            const struct weight_q8_0 *two = block[r] + 2 * v;
            codes[r] = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)two[0].codes));
            codes[r] = _mm512_inserti64x4(codes[r], _mm256_loadu_si256((const __m256i *)two[1].codes), 1);
            codes[r] = _mm512_xor_si512(codes[r], _mm512_set1_epi8(-128));
            scale[r] = spread_halves(two, words);
        }
        add_register(R, X, codes, scale, true, x, u, v, sum);
    }
}

/* Two units. Of 64 bytes of codes the low four bits are groups 0 and 2 of four, the high ones groups 1 and 3. */
INLINE void units_q4_k(size_t R, size_t X, const struct weight_q4_k *const *block, const struct fixed *const *x, size_t u,
                       sums sum) {
    __m512 scales[ROWS_MOST];
    UNROLL for (size_t r = 0; r < R; r++) scales[r] = group_scales(block[r]);
    for (size_t i = 0; i < 2; i++) {
        for (size_t v = 0; v < 2; v++) {
            const __m512i of = _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2),
                                                _mm512_set1_epi32((int)(4 * i + v)));
            __m512i codes[ROWS_MOST];
            __m512 scale[ROWS_MOST];
            UNROLL for (size_t r = 0; r < R; r++) {
                __m512i both = _mm512_loadu_si512(block[r]->codes + 64 * i);
                codes[r] = low_nibbles(v ? _mm512_srli_epi16(both, 4) : both);
                scale[r] = _mm512_permutexvar_ps(of, scales[r]);
            }
            add_register(R, X, codes, scale, false, x, u + i, v, sum);
        }
    }
    UNROLL for (size_t t = 0; t < X; t++) {
        __m256 some = _mm256_set_m128(_mm_loadu_ps(x[t][u + 1].sum), _mm_loadu_ps(x[t][u].sum));
        UNROLL for (size_t r = 0; r < R; r++) sum[r][t] =
            _mm512_mask3_fnmadd_ps(_mm512_shuffle_f32x4(scales[r], scales[r], 0x0e), _mm512_castps256_ps512(some), sum[r][t], 0xff);
    }
}

/* Two units. Of 64 bytes of codes the low four bits are runs 0 and 1 of four, the high ones runs 2 and 3; a run has a scale for each
 * half of it. */
INLINE void units_q6_k(size_t R, size_t X, const struct weight_q6_k *const *block, const struct fixed *const *x, size_t u,
                       sums sum) {
    const __m512i run_0_and_1 = _mm512_setr_epi64(0x0004000400040004, 0x0004000400040004, 0x0004000400040004, 0x0004000400040004,
                                                  0x0002000200020002, 0x0002000200020002, 0x0002000200020002, 0x0002000200020002);
    const __m512i run_2_and_3 = _mm512_sub_epi16(_mm512_set1_epi16(4), run_0_and_1);
    __m512 scales[ROWS_MOST];
    UNROLL for (size_t r = 0; r < R; r++) {
        scales[r] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)block[r]->scales)));
        scales[r] = _mm512_mul_ps(scales[r], _mm512_cvtph_ps(_mm256_set1_epi16((short)block[r]->scale)));
    }
    for (size_t i = 0; i < 2; i++) {
        for (size_t v = 0; v < 2; v++) {
            const __m512i of = _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                                                _mm512_set1_epi32((int)(8 * i + 4 * v)));
            __m512i codes[ROWS_MOST];
            __m512 scale[ROWS_MOST];
            UNROLL for (size_t r = 0; r < R; r++) {
                __m512i both = _mm512_loadu_si512(block[r]->codes + 64 * i);
                __m512i high = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(block[r]->high + 32 * i)));
                __m512i top = v ? _mm512_srlv_epi16(high, run_2_and_3) : _mm512_sllv_epi16(high, run_0_and_1);
                codes[r] = low_nibbles(v ? _mm512_srli_epi16(both, 4) : both);
                codes[r] = _mm512_or_si512(codes[r], _mm512_and_si512(top, _mm512_set1_epi8(48)));
                scale[r] = _mm512_permutexvar_ps(of, scales[r]);
            }
            add_register(R, X, codes, scale, true, x, u + i, v, sum);
        }
    }
}

/* ---- Matrices */

INLINE void fetch_ahead(const void *block, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch((const void *)((uintptr_t)block + AHEAD + at));
}

/* Multiplies all rows of a matrix by X vectors, R rows at a time: past the last row that row again. Blocks that are left when whole units
 * end are copied. */
#define ROWS_KERNEL(name, type, per, unit, units, R, X) \
    static void name(const char *w, size_t row_bytes, size_t rows, size_t n, const void *const *vector, float *y, size_t stride) { \
        vectors x; \
        for (size_t t = 0; t < X; t++) x[t] = vector[t]; \
        for (size_t first = 0; first < rows; first += R) { \
            const struct weight_##type *block[ROWS_MOST]; \
            float total[ROWS_MOST][VECTORS_MOST] = {0}; \
            for (size_t r = 0; r < R; r++) block[r] = (const void *)(w + SMALLER(first + r, rows - 1) * row_bytes); \
            for (size_t i = 0, u = 0; i < n;) { \
                const size_t end = SMALLER(n, i + SEGMENT_UNITS * UNIT); \
                sums sum; \
                UNROLL for (size_t r = 0; r < R; r++) { UNROLL for (size_t t = 0; t < X; t++) sum[r][t] = _mm512_setzero_ps(); } \
                for (; i + UNIT * units <= end; i += UNIT * units, u += units) { \
                    UNROLL for (size_t r = 0; r < R; r++) fetch_ahead(block[r], per * sizeof *block[r]); \
                    unit(R, X, block, x, u, sum); \
                    UNROLL for (size_t r = 0; r < R; r++) block[r] += per; \
                } \
                if (i < end) { \
                    struct weight_##type last[ROWS_MOST][per] = {0}; \
                    const struct weight_##type *of[ROWS_MOST]; \
                    for (size_t r = 0; r < R; r++) { \
                        memcpy(last[r], block[r], (end - i) * per / (UNIT * units) * sizeof *last[r]); \
                        of[r] = last[r]; \
                    } \
                    unit(R, X, of, x, u, sum); \
                    i = end; \
                } \
                UNROLL for (size_t r = 0; r < R; r++) { \
                    UNROLL for (size_t t = 0; t < X; t++) total[r][t] += _mm512_reduce_add_ps(sum[r][t]); \
                } \
            } \
            for (size_t r = 0; r < R && first + r < rows; r++) \
                for (size_t t = 0; t < X; t++) y[t * stride + first + r] = total[r][t]; \
        } \
    }

#define MATMUL(type, per, unit, units) \
    ROWS_KERNEL(one_##type, type, per, unit, units, 1, 1) \
    ROWS_KERNEL(two_##type, type, per, unit, units, 2, 2) \
    ROWS_KERNEL(four_##type, type, per, unit, units, 2, 4) \
    static void matmul_##type##_avx512(const void *w, size_t row_bytes, size_t rows, size_t n, const void *const *x, size_t count, \
                                       float *y, size_t stride) { \
        size_t t = 0; \
        for (; t + 4 <= count; t += 4) four_##type(w, row_bytes, rows, n, x + t, y + t * stride, stride); \
        for (; t + 2 <= count; t += 2) two_##type(w, row_bytes, rows, n, x + t, y + t * stride, stride); \
        if (t < count) one_##type(w, row_bytes, rows, n, x + t, y + t * stride, stride); \
    } \
    static void fix_##type##_avx512(const float *x, size_t n, void *fixed) { fix(x, n, &order_##type, fixed); }

MATMUL(q4_0, 4, unit_q4_0, 1)
MATMUL(q8_0, 4, unit_q8_0, 1)
MATMUL(q4_k, 1, units_q4_k, 2)
MATMUL(q6_k, 1, units_q6_k, 2)

#define FILL(TYPE, type) \
    ops->fixed_bytes[TENSOR_##TYPE] = fixed_bytes; \
    ops->fix[TENSOR_##TYPE] = fix_##type##_avx512; \
    ops->matmul[TENSOR_##TYPE] = matmul_##type##_avx512; \
    ops->gemm_rows[TENSOR_##TYPE] = 48

void weights_init_avx512_i8(struct weights_ops *ops) {
    FILL(Q4_0, q4_0);
    FILL(Q8_0, q8_0);
    FILL(Q4_K, q4_k);
    FILL(Q6_K, q6_k);
}
