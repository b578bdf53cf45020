/* Computes on half floats and vectors with NEON (AArch64): four floats at a time, then element by element. The last elements that
 * need the exponential go through a padded copy. */
#include "backend/cpu/kernels/vector/exp_constants.h"
#include "backend/cpu/kernels/vector/init.h"
#include "base/half.h"
#include "format/page_layout.h"

#include <arm_neon.h>
#include <math.h>
#include <string.h>

static void half_to_float_neon(const uint16_t *half, float *out, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(out + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(half + i))));
    for (; i < n; i++) out[i] = half_to_float(half[i]);
}

static void float_to_half_neon(const float *in, uint16_t *half, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) vst1_u16(half + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(in + i))));
    for (; i < n; i++) half[i] = half_from_float(in[i]);
}

static float dot_neon(const float *a, const float *b, size_t n) {
    float32x4_t sum[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (size_t j = 0; j < 4; j++) sum[j] = vfmaq_f32(sum[j], vld1q_f32(a + i + 4 * j), vld1q_f32(b + i + 4 * j));
    }
    for (; i + 4 <= n; i += 4) sum[0] = vfmaq_f32(sum[0], vld1q_f32(a + i), vld1q_f32(b + i));
    float total = vaddvq_f32(vaddq_f32(vaddq_f32(sum[0], sum[1]), vaddq_f32(sum[2], sum[3])));
    for (; i < n; i++) total += a[i] * b[i];
    return total;
}

static void axpy_neon(float scale, const float *x, float *y, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(y + i, vfmaq_n_f32(vld1q_f32(y + i), vld1q_f32(x + i), scale));
    for (; i < n; i++) y[i] += scale * x[i];
}

static void rms_norm_neon(const float *x, const float *gain, float epsilon, float *out, size_t n) {
    float scale = 1 / sqrtf(dot_neon(x, x, n) / (float)n + epsilon);
    size_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(out + i, vmulq_f32(vmulq_n_f32(vld1q_f32(x + i), scale), vld1q_f32(gain + i)));
    for (; i < n; i++) out[i] = x[i] * scale * gain[i];
}

/* Returns 2^n of lanes that hold whole numbers from -126 to 127. */
static inline float32x4_t power_of_two(int32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}

/* Returns exp of each lane; -inf gives 0, +inf gives +inf, NaN stays (min and max return it). */
static inline float32x4_t exp_lanes(float32x4_t d) {
    d = vminq_f32(vmaxq_f32(d, vdupq_n_f32(EXP_LOWEST)), vdupq_n_f32(EXP_HIGHEST));
    float32x4_t n = vrndnq_f32(vmulq_n_f32(d, EXP_LOG2_E));
    float32x4_t r = vfmsq_f32(d, n, vdupq_n_f32(EXP_LN2_HIGH));
    r = vfmsq_f32(r, n, vdupq_n_f32(EXP_LN2_LOW));
    float32x4_t p = vfmaq_f32(vdupq_n_f32(EXP_C5), r, vdupq_n_f32(EXP_C6));
    p = vfmaq_f32(vdupq_n_f32(EXP_C4), p, r);
    p = vfmaq_f32(vdupq_n_f32(EXP_C3), p, r);
    p = vfmaq_f32(vdupq_n_f32(EXP_C2), p, r);
    p = vaddq_f32(vfmaq_f32(r, p, vmulq_f32(r, r)), vdupq_n_f32(1));
    /* 2^n may be subnormal or past the largest exponent, its two halves are not; only the second product can round. */
    int32x4_t whole = vcvtq_s32_f32(n), half = vshrq_n_s32(whole, 1);
    return vmulq_f32(vmulq_f32(p, power_of_two(half)), power_of_two(vsubq_s32(whole, half)));
}

static inline float32x4_t silu_mul_lanes(float32x4_t gate, float32x4_t up) {
    return vmulq_f32(vdivq_f32(gate, vaddq_f32(vdupq_n_f32(1), exp_lanes(vnegq_f32(gate)))), up);
}

static void silu_mul_neon(float *gate, const float *up, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(gate + i, silu_mul_lanes(vld1q_f32(gate + i), vld1q_f32(up + i)));
    if (i == n) return;
    float g[4] = {0}, u[4] = {0};
    memcpy(g, gate + i, (n - i) * sizeof *g);
    memcpy(u, up + i, (n - i) * sizeof *u);
    vst1q_f32(g, silu_mul_lanes(vld1q_f32(g), vld1q_f32(u)));
    memcpy(gate + i, g, (n - i) * sizeof *g);
}

static float exp_sum_neon(float *x, float max, size_t n) {
    float32x4_t m = vdupq_n_f32(max == -INFINITY ? 0 : max), sum = vdupq_n_f32(0); /* see the scalar one */
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        float32x4_t e = exp_lanes(vsubq_f32(vld1q_f32(x + i), m));
        vst1q_f32(x + i, e);
        sum = vaddq_f32(sum, e);
    }
    float total = vaddvq_f32(sum);
    if (i == n) return total;
    float e[4] = {0};
    memcpy(e, x + i, (n - i) * sizeof *e);
    vst1q_f32(e, exp_lanes(vsubq_f32(vld1q_f32(e), m)));
    for (size_t j = 0; i < n; i++, j++) {
        x[i] = e[j];
        total += e[j];
    }
    return total;
}

static float max_neon(const float *x, size_t n) {
    float32x4_t m = vdupq_n_f32(-INFINITY);
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        float32x4_t v = vld1q_f32(x + i);
        m = vbslq_f32(vcgtq_f32(v, m), v, m); /* false for a NaN */
    }
    float max = vmaxvq_f32(m);
    for (; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

static float max_pages_neon(const float *x, size_t n, size_t stride) {
    float max = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        float most = max_neon(x + i * stride, PAGE_TOKENS);
        max = most > max ? most : max;
    }
    return max;
}

static float exp_pages_neon(float *x, float max, size_t n, size_t stride) {
    float32x4_t m = vdupq_n_f32(max == -INFINITY ? 0 : max), sum[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < PAGE_TOKENS / 4; j++) {
            float *at = x + i * stride + 4 * j;
            float32x4_t e = exp_lanes(vsubq_f32(vld1q_f32(at), m));
            vst1q_f32(at, e);
            sum[j % 2] = vaddq_f32(sum[j % 2], e);
        }
    }
    return vaddvq_f32(vaddq_f32(sum[0], sum[1]));
}

static float scale_weights_neon(const float *weights, const float *gains, float *scaled) {
    float32x4_t sum = vdupq_n_f32(0);
    for (size_t t = 0; t < PAGE_TOKENS; t += 4) {
        float32x4_t weight = vld1q_f32(weights + t);
        sum = vaddq_f32(sum, weight);
        vst1q_f32(scaled + t, vmulq_f32(weight, vld1q_f32(gains + t)));
    }
    float32x2_t two = vadd_f32(vget_low_f32(sum), vget_high_f32(sum));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

void vector_init_neon(struct vector_ops *ops) {
    ops->scale_weights = scale_weights_neon;
    ops->half_to_float = half_to_float_neon;
    ops->float_to_half = float_to_half_neon;
    ops->dot = dot_neon;
    ops->axpy = axpy_neon;
    ops->rms_norm = rms_norm_neon;
    ops->silu_mul = silu_mul_neon;
    ops->exp_sum = exp_sum_neon;
    ops->max = max_neon;
    ops->max_pages = max_pages_neon;
    ops->exp_pages = exp_pages_neon;
}
