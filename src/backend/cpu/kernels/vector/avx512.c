/* Computes on half floats and vectors with AVX-512: sixteen floats at a time, the last ones under a mask, so nothing past n is
 * touched. */
#include "backend/cpu/kernels/vector/exp_constants.h"
#include "backend/cpu/kernels/vector/init.h"
#include "format/page_layout.h"

#include <immintrin.h>
#include <math.h>

/* Returns a mask of the lanes of the last, partial vector of n elements; 0 when there is none. */
static inline __mmask16 tail_mask(size_t n) { return (__mmask16)((1u << (n & 15)) - 1); }

static void half_to_float_avx512(const uint16_t *half, float *out, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(half + i))));
    __mmask16 tail = tail_mask(n);
    if (tail) _mm512_mask_storeu_ps(out + i, tail, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(tail, half + i)));
}

static inline __m256i halves(__m512 x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

static void float_to_half_avx512(const float *in, uint16_t *half, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) _mm256_storeu_si256((__m256i *)(half + i), halves(_mm512_loadu_ps(in + i)));
    __mmask16 tail = tail_mask(n);
    if (tail) _mm256_mask_storeu_epi16(half + i, tail, halves(_mm512_maskz_loadu_ps(tail, in + i)));
}

static float dot_avx512(const float *a, const float *b, size_t n) {
    __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        for (size_t j = 0; j < 4; j++) {
            sum[j] = _mm512_fmadd_ps(_mm512_loadu_ps(a + i + 16 * j), _mm512_loadu_ps(b + i + 16 * j), sum[j]);
        }
    }
    for (; i + 16 <= n; i += 16) sum[0] = _mm512_fmadd_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i), sum[0]);
    __mmask16 tail = tail_mask(n);
    if (tail) sum[1] = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(tail, a + i), _mm512_maskz_loadu_ps(tail, b + i), sum[1]);
    return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
}

static void axpy_avx512(float scale, const float *x, float *y, size_t n) {
    __m512 s = _mm512_set1_ps(scale);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) _mm512_storeu_ps(y + i, _mm512_fmadd_ps(s, _mm512_loadu_ps(x + i), _mm512_loadu_ps(y + i)));
    __mmask16 tail = tail_mask(n);
    if (tail) {
        __m512 sum = _mm512_fmadd_ps(s, _mm512_maskz_loadu_ps(tail, x + i), _mm512_maskz_loadu_ps(tail, y + i));
        _mm512_mask_storeu_ps(y + i, tail, sum);
    }
}

static void rms_norm_avx512(const float *x, const float *gain, float epsilon, float *out, size_t n) {
    float scale = 1 / sqrtf(dot_avx512(x, x, n) / (float)n + epsilon);
    __m512 s = _mm512_set1_ps(scale);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        _mm512_storeu_ps(out + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), s), _mm512_loadu_ps(gain + i)));
    }
    __mmask16 tail = tail_mask(n);
    if (tail) {
        __m512 product = _mm512_mul_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(tail, x + i), s), _mm512_maskz_loadu_ps(tail, gain + i));
        _mm512_mask_storeu_ps(out + i, tail, product);
    }
}

/* Returns exp of each lane; -inf gives 0, +inf gives +inf, NaN stays (min and max return their second operand for it). */
static inline __m512 exp_lanes(__m512 d) {
    d = _mm512_min_ps(_mm512_set1_ps(EXP_HIGHEST), _mm512_max_ps(_mm512_set1_ps(EXP_LOWEST), d));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(d, _mm512_set1_ps(EXP_LOG2_E)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(EXP_LN2_HIGH), d);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(EXP_LN2_LOW), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(EXP_C6), r, _mm512_set1_ps(EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C2));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
    return _mm512_scalef_ps(_mm512_add_ps(p, _mm512_set1_ps(1)), n); /* rounds once, subnormal results included */
}

static inline __m512 silu_mul_lanes(__m512 gate, __m512 up) {
    __m512 e = exp_lanes(_mm512_sub_ps(_mm512_setzero_ps(), gate));
    return _mm512_mul_ps(_mm512_div_ps(gate, _mm512_add_ps(_mm512_set1_ps(1), e)), up);
}

static void silu_mul_avx512(float *gate, const float *up, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) _mm512_storeu_ps(gate + i, silu_mul_lanes(_mm512_loadu_ps(gate + i), _mm512_loadu_ps(up + i)));
    __mmask16 tail = tail_mask(n);
    if (tail) {
        __m512 product = silu_mul_lanes(_mm512_maskz_loadu_ps(tail, gate + i), _mm512_maskz_loadu_ps(tail, up + i));
        _mm512_mask_storeu_ps(gate + i, tail, product);
    }
}

static float exp_sum_avx512(float *x, float max, size_t n) {
    __m512 m = _mm512_set1_ps(max == -INFINITY ? 0 : max); /* see the scalar one */
    __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (size_t j = 0; j < 2; j++) {
            __m512 e = exp_lanes(_mm512_sub_ps(_mm512_loadu_ps(x + i + 16 * j), m));
            _mm512_storeu_ps(x + i + 16 * j, e);
            sum[j] = _mm512_add_ps(sum[j], e);
        }
    }
    for (; i < n; i += 16) {
        __mmask16 lanes = n - i >= 16 ? 0xffff : tail_mask(n);
        __m512 e = exp_lanes(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, x + i), m));
        _mm512_mask_storeu_ps(x + i, lanes, e);
        sum[0] = _mm512_mask_add_ps(sum[0], lanes, sum[0], e);
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(sum[0], sum[1]));
}

static float max_avx512(const float *x, size_t n) {
    __m512 m[2] = {_mm512_set1_ps(-INFINITY), _mm512_set1_ps(-INFINITY)};
    size_t i = 0;
    for (; i + 32 <= n; i += 32) { /* the accumulator second: it is what max returns for a NaN */
        m[0] = _mm512_max_ps(_mm512_loadu_ps(x + i), m[0]);
        m[1] = _mm512_max_ps(_mm512_loadu_ps(x + i + 16), m[1]);
    }
    for (; i < n; i += 16) {
        __mmask16 lanes = n - i >= 16 ? 0xffff : tail_mask(n);
        m[0] = _mm512_max_ps(_mm512_mask_loadu_ps(m[0], lanes, x + i), m[0]);
    }
    return _mm512_reduce_max_ps(_mm512_max_ps(m[0], m[1]));
}

static float max_pages_avx512(const float *x, size_t n, size_t stride) {
    __m512 m[4];
    for (size_t j = 0; j < 4; j++) m[j] = _mm512_set1_ps(-INFINITY);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < 4; j++) m[j] = _mm512_max_ps(_mm512_loadu_ps(x + i * stride + 16 * j), m[j]);
    return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(m[0], m[1]), _mm512_max_ps(m[2], m[3])));
}

/* Returns exp, as a power of two, of lanes that are not positive. Added to 1.5 * 2^23, a number is rounded to an integer, which is
 * then in the sum's lowest bits; they go to the exponent. NaN stays. */
static inline __m512 exp_lanes_down(__m512 d) {
    const __m512 rounder = _mm512_set1_ps(12582912), log2_e = _mm512_set1_ps(EXP_LOG2_E);
    __m512 t = _mm512_max_ps(_mm512_set1_ps(EXP2_LOWEST), _mm512_mul_ps(d, log2_e)), bits = _mm512_add_ps(t, rounder);
    __m512 r = _mm512_sub_ps(t, _mm512_sub_ps(bits, rounder));
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(EXP2_C5), r, _mm512_set1_ps(EXP2_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP2_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP2_C2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP2_C1));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1));
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(bits), 23)));
}

static float exp_pages_avx512(float *x, float max, size_t n, size_t stride) {
    const __m512 m = _mm512_set1_ps(max);
    __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < 4; j++) {
            float *at = x + i * stride + 16 * j;
            __m512 e = max == -INFINITY ? _mm512_setzero_ps() : exp_lanes_down(_mm512_sub_ps(_mm512_loadu_ps(at), m));
            _mm512_storeu_ps(at, e);
            sum[j] = _mm512_add_ps(sum[j], e);
        }
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
}

/* The table lies in sixteen registers, of which a permutation looks up in two; the codes' upper bits choose among them. */
static void look_up_gains_avx512(const float *table, const uint8_t *codes, float *out) {
    __m512 part[16];
    for (size_t i = 0; i < 16; i++) part[i] = _mm512_loadu_ps(table + 16 * i);
    for (size_t t = 0; t < PAGE_TOKENS; t += 16) {
        __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(codes + t)));
        __m512 x[8];
        for (size_t i = 0; i < 8; i++) x[i] = _mm512_permutex2var_ps(part[2 * i], code, part[2 * i + 1]);
        for (size_t n = 4, bit = 32; n > 0; n /= 2, bit *= 2) {
            __mmask16 set = _mm512_test_epi32_mask(code, _mm512_set1_epi32((int)bit));
            for (size_t i = 0; i < n; i++) x[i] = _mm512_mask_blend_ps(set, x[2 * i], x[2 * i + 1]);
        }
        _mm512_storeu_ps(out + t, x[0]);
    }
}

static float scale_weights_avx512(const float *weights, const float *gains, float *scaled) {
    __m512 sum = _mm512_setzero_ps();
    for (size_t t = 0; t < PAGE_TOKENS; t += 16) {
        __m512 weight = _mm512_loadu_ps(weights + t);
        sum = _mm512_add_ps(sum, weight);
        _mm512_storeu_ps(scaled + t, _mm512_mul_ps(weight, _mm512_loadu_ps(gains + t)));
    }
    return _mm512_reduce_add_ps(sum);
}

void vector_init_avx512(struct vector_ops *ops) {
    ops->scale_weights = scale_weights_avx512;
    ops->look_up_gains = look_up_gains_avx512;
    ops->half_to_float = half_to_float_avx512;
    ops->float_to_half = float_to_half_avx512;
    ops->dot = dot_avx512;
    ops->axpy = axpy_avx512;
    ops->rms_norm = rms_norm_avx512;
    ops->silu_mul = silu_mul_avx512;
    ops->exp_sum = exp_sum_avx512;
    ops->max = max_avx512;
    ops->max_pages = max_pages_avx512;
    ops->exp_pages = exp_pages_avx512;
}
