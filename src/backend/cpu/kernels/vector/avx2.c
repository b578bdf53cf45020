/* Computes on half floats and vectors with AVX2, FMA and F16C: eight floats at a time. Simple loops finish element by element;
 * where an element needs the exponential, the last vector is loaded and stored under a mask. */
#include "backend/cpu/kernels/vector/exp_constants.h"
#include "backend/cpu/kernels/vector/init.h"
#include "base/half.h"
#include "format/page_layout.h"

#include <immintrin.h>
#include <math.h>

/* Returns a mask with all bits set in the first n lanes, n at most 8. */
static inline __m256i lane_mask(size_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline float sum_lanes(__m256 x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static void half_to_float_avx2(const uint16_t *half, float *out, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(half + i))));
    for (; i < n; i++) out[i] = half_to_float(half[i]);
}

static void float_to_half_avx2(const float *in, uint16_t *half, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(half + i), h);
    }
    for (; i < n; i++) half[i] = half_from_float(in[i]);
}

static float dot_avx2(const float *a, const float *b, size_t n) {
    __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (size_t j = 0; j < 4; j++) {
            sum[j] = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8 * j), _mm256_loadu_ps(b + i + 8 * j), sum[j]);
        }
    }
    for (; i + 8 <= n; i += 8) sum[0] = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), sum[0]);
    float total = sum_lanes(_mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3])));
    for (; i < n; i++) total += a[i] * b[i];
    return total;
}

static void axpy_avx2(float scale, const float *x, float *y, size_t n) {
    __m256 s = _mm256_set1_ps(scale);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_fmadd_ps(s, _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    for (; i < n; i++) y[i] += scale * x[i];
}

static void rms_norm_avx2(const float *x, const float *gain, float epsilon, float *out, size_t n) {
    float scale = 1 / sqrtf(dot_avx2(x, x, n) / (float)n + epsilon);
    __m256 s = _mm256_set1_ps(scale);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), s), _mm256_loadu_ps(gain + i)));
    }
    for (; i < n; i++) out[i] = x[i] * scale * gain[i];
}

/* Returns 2^n of lanes that hold whole numbers from -126 to 127. */
static inline __m256 power_of_two(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* Returns exp of each lane; -inf gives 0, +inf gives +inf, NaN stays (min and max return their second operand for it). */
static inline __m256 exp_lanes(__m256 d) {
    d = _mm256_min_ps(_mm256_set1_ps(EXP_HIGHEST), _mm256_max_ps(_mm256_set1_ps(EXP_LOWEST), d));
    __m256 n = _mm256_round_ps(_mm256_mul_ps(d, _mm256_set1_ps(EXP_LOG2_E)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(EXP_LN2_HIGH), d);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(EXP_LN2_LOW), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(EXP_C6), r, _mm256_set1_ps(EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C2));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1));
    /* 2^n may be subnormal or past the largest exponent, its two halves are not; only the second product can round. */
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    return _mm256_mul_ps(_mm256_mul_ps(p, power_of_two(half)), power_of_two(_mm256_sub_epi32(whole, half)));
}

static inline __m256 silu_mul_lanes(__m256 gate, __m256 up) {
    __m256 e = exp_lanes(_mm256_sub_ps(_mm256_setzero_ps(), gate));
    return _mm256_mul_ps(_mm256_div_ps(gate, _mm256_add_ps(_mm256_set1_ps(1), e)), up);
}

static void silu_mul_avx2(float *gate, const float *up, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(gate + i, silu_mul_lanes(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
    if (i == n) return;
    __m256i tail = lane_mask(n - i);
    _mm256_maskstore_ps(gate + i, tail, silu_mul_lanes(_mm256_maskload_ps(gate + i, tail), _mm256_maskload_ps(up + i, tail)));
}

static float exp_sum_avx2(float *x, float max, size_t n) {
    __m256 m = _mm256_set1_ps(max == -INFINITY ? 0 : max); /* see the scalar one */
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (size_t j = 0; j < 2; j++) {
            __m256 e = exp_lanes(_mm256_sub_ps(_mm256_loadu_ps(x + i + 8 * j), m));
            _mm256_storeu_ps(x + i + 8 * j, e);
            sum[j] = _mm256_add_ps(sum[j], e);
        }
    }
    for (; i < n; i += 8) {
        __m256i lanes = lane_mask(n - i >= 8 ? 8 : n - i);
        __m256 e = exp_lanes(_mm256_sub_ps(_mm256_maskload_ps(x + i, lanes), m));
        _mm256_maskstore_ps(x + i, lanes, e);
        sum[0] = _mm256_add_ps(sum[0], _mm256_and_ps(e, _mm256_castsi256_ps(lanes)));
    }
    return sum_lanes(_mm256_add_ps(sum[0], sum[1]));
}

static float max_avx2(const float *x, size_t n) {
    __m256 m[2] = {_mm256_set1_ps(-INFINITY), _mm256_set1_ps(-INFINITY)};
    size_t i = 0;
    for (; i + 16 <= n; i += 16) { /* the accumulator second: it is what max returns for a NaN */
        m[0] = _mm256_max_ps(_mm256_loadu_ps(x + i), m[0]);
        m[1] = _mm256_max_ps(_mm256_loadu_ps(x + i + 8), m[1]);
    }
    float lanes[8];
    _mm256_storeu_ps(lanes, _mm256_max_ps(m[0], m[1]));
    float max = -INFINITY;
    for (size_t j = 0; j < 8; j++) max = lanes[j] > max ? lanes[j] : max;
    for (; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

static float max_pages_avx2(const float *x, size_t n, size_t stride) {
    __m256 m[8];
    for (size_t j = 0; j < 8; j++) m[j] = _mm256_set1_ps(-INFINITY);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < 8; j++) m[j] = _mm256_max_ps(_mm256_loadu_ps(x + i * stride + 8 * j), m[j]);
    for (size_t j = 0; j < 4; j++) m[j] = _mm256_max_ps(m[j], m[j + 4]);
    float lanes[16];
    _mm256_storeu_ps(lanes, _mm256_max_ps(m[0], m[1]));
    _mm256_storeu_ps(lanes + 8, _mm256_max_ps(m[2], m[3]));
    return max_avx2(lanes, 16);
}

/* Returns exp, as a power of two, of lanes that are not positive. Added to 1.5 * 2^23, a number is rounded to an integer, which is
 * then in the sum's lowest bits; they go to the exponent. NaN stays. */
static inline __m256 exp_lanes_down(__m256 d) {
    const __m256 rounder = _mm256_set1_ps(12582912), log2_e = _mm256_set1_ps(EXP_LOG2_E);
    __m256 t = _mm256_max_ps(_mm256_set1_ps(EXP2_LOWEST), _mm256_mul_ps(d, log2_e)), bits = _mm256_add_ps(t, rounder);
    __m256 r = _mm256_sub_ps(t, _mm256_sub_ps(bits, rounder));
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(EXP2_C5), r, _mm256_set1_ps(EXP2_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP2_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP2_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP2_C1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1));
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(bits), 23)));
}

static float exp_pages_avx2(float *x, float max, size_t n, size_t stride) {
    const __m256 m = _mm256_set1_ps(max);
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < PAGE_TOKENS / 8; j++) {
            float *at = x + i * stride + 8 * j;
            __m256 e = max == -INFINITY ? _mm256_setzero_ps() : exp_lanes_down(_mm256_sub_ps(_mm256_loadu_ps(at), m));
            _mm256_storeu_ps(at, e);
            sum[j % 2] = _mm256_add_ps(sum[j % 2], e);
        }
    }
    return sum_lanes(_mm256_add_ps(sum[0], sum[1]));
}

static float scale_weights_avx2(const float *weights, const float *gains, float *scaled) {
    __m256 sum = _mm256_setzero_ps();
    for (size_t t = 0; t < PAGE_TOKENS; t += 8) {
        __m256 weight = _mm256_loadu_ps(weights + t);
        sum = _mm256_add_ps(sum, weight);
        _mm256_storeu_ps(scaled + t, _mm256_mul_ps(weight, _mm256_loadu_ps(gains + t)));
    }
    return sum_lanes(sum);
}

void vector_init_avx2(struct vector_ops *ops) {
    ops->scale_weights = scale_weights_avx2;
    ops->half_to_float = half_to_float_avx2;
    ops->float_to_half = float_to_half_avx2;
    ops->dot = dot_avx2;
    ops->axpy = axpy_avx2;
    ops->rms_norm = rms_norm_avx2;
    ops->silu_mul = silu_mul_avx2;
    ops->exp_sum = exp_sum_avx2;
    ops->max = max_avx2;
    ops->max_pages = max_pages_avx2;
    ops->exp_pages = exp_pages_avx2;
}
