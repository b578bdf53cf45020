/* Has the reference for reading weights as stored: dequantize[] and matmul[], in plain C. format/weight_blocks.h has the formats.
 * The instruction sets' versions must give the same dequantized floats; their matmul may differ in the order of summation alone. */
#include "backend/cpu/kernels/weights/init.h"
#include "base/half.h"
#include "format/weight_blocks.h"

static void dequantize_f32_scalar(const void *row, float *out, size_t n) { memcpy(out, row, n * sizeof *out); }

static void dequantize_f16_scalar(const void *row, float *out, size_t n) {
    const uint16_t *half = row;
    for (size_t i = 0; i < n; i++) out[i] = half_to_float(half[i]);
}

static void dequantize_bf16_scalar(const void *row, float *out, size_t n) {
    const uint16_t *bfloat = row;
    for (size_t i = 0; i < n; i++) out[i] = bfloat_to_float(bfloat[i]);
}

static void dequantize_q8_0_scalar(const void *row, float *out, size_t n) {
    const struct weight_q8_0 *block = row;
    for (const float *end = out + n; out < end; out += WEIGHT_BLOCK, block++) {
        float scale = half_to_float(block->scale);
        for (int i = 0; i < WEIGHT_BLOCK; i++) out[i] = scale * (float)block->codes[i];
    }
}

/* Returns the code of weight i of a block of 32 with four-bit codes. */
static int low_code(const uint8_t codes[16], int i) { return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4; }
static int high_bit(const uint8_t high[4], int i) { return high[i / 8] >> i % 8 & 1; }

static void dequantize_q4_0_scalar(const void *row, float *out, size_t n) {
    const struct weight_q4_0 *block = row;
    for (const float *end = out + n; out < end; out += WEIGHT_BLOCK, block++) {
        float scale = half_to_float(block->scale);
        for (int i = 0; i < WEIGHT_BLOCK; i++) out[i] = scale * (float)(low_code(block->codes, i) - 8);
    }
}

static void dequantize_q4_1_scalar(const void *row, float *out, size_t n) {
    const struct weight_q4_1 *block = row;
    for (const float *end = out + n; out < end; out += WEIGHT_BLOCK, block++) {
        float scale = half_to_float(block->scale), min = half_to_float(block->min);
        for (int i = 0; i < WEIGHT_BLOCK; i++) out[i] = scale * (float)low_code(block->codes, i) + min;
    }
}

static void dequantize_q5_0_scalar(const void *row, float *out, size_t n) {
    const struct weight_q5_0 *block = row;
    for (const float *end = out + n; out < end; out += WEIGHT_BLOCK, block++) {
        float scale = half_to_float(block->scale);
        for (int i = 0; i < WEIGHT_BLOCK; i++)
            out[i] = scale * (float)(low_code(block->codes, i) + 16 * high_bit(block->high, i) - 16);
    }
}

static void dequantize_q5_1_scalar(const void *row, float *out, size_t n) {
    const struct weight_q5_1 *block = row;
    for (const float *end = out + n; out < end; out += WEIGHT_BLOCK, block++) {
        float scale = half_to_float(block->scale), min = half_to_float(block->min);
        for (int i = 0; i < WEIGHT_BLOCK; i++)
            out[i] = scale * (float)(low_code(block->codes, i) + 16 * high_bit(block->high, i)) + min;
    }
}

/* Writes scale s and min m of each group. */
static void group_scales(uint16_t scale, uint16_t min, const uint8_t packed[12], float scales[8], float mins[8]) {
    uint32_t words[4];
    uint8_t bytes[16];
    weight_group_scales(packed, words);
    memcpy(bytes, words, sizeof bytes);
    for (int g = 0; g < 8; g++) scales[g] = half_to_float(scale) * (float)bytes[g];
    for (int g = 0; g < 8; g++) mins[g] = half_to_float(min) * (float)bytes[8 + g];
}

static void dequantize_q4_k_scalar(const void *row, float *out, size_t n) {
    const struct weight_q4_k *block = row;
    for (const float *end = out + n; out < end; out += WEIGHT_BLOCK_K, block++) {
        float scales[8], mins[8];
        group_scales(block->scale, block->min, block->scales, scales, mins);
        for (int g = 0; g < 8; g++) {
            for (int i = 0; i < 32; i++) {
                int code = block->codes[32 * (g / 2) + i] >> 4 * (g % 2) & 15;
                out[32 * g + i] = scales[g] * (float)code - mins[g];
            }
        }
    }
}

static void dequantize_q5_k_scalar(const void *row, float *out, size_t n) {
    const struct weight_q5_k *block = row;
    for (const float *end = out + n; out < end; out += WEIGHT_BLOCK_K, block++) {
        float scales[8], mins[8];
        group_scales(block->scale, block->min, block->scales, scales, mins);
        for (int g = 0; g < 8; g++) {
            for (int i = 0; i < 32; i++) {
                int code = (block->codes[32 * (g / 2) + i] >> 4 * (g % 2) & 15) | (block->high[i] >> g & 1) << 4;
                out[32 * g + i] = scales[g] * (float)code - mins[g];
            }
        }
    }
}

static void dequantize_q6_k_scalar(const void *row, float *out, size_t n) {
    const struct weight_q6_k *block = row;
    for (const float *end = out + n; out < end; out += WEIGHT_BLOCK_K, block++) {
        float scale = half_to_float(block->scale);
        for (int i = 0; i < WEIGHT_BLOCK_K; i++) {
            int half = i / 128, quarter = i / 32 % 4;
            int low = block->codes[64 * half + 32 * (quarter % 2) + i % 32] >> 4 * (quarter / 2) & 15;
            int high = block->high[32 * half + i % 32] >> 2 * quarter & 3;
            out[i] = scale * (float)block->scales[i / 16] * (float)((low | high << 4) - 32);
        }
    }
}

/* Looks up four-bit codes in a table, times `unit`. */
static void look_up_codes(const uint8_t codes[16], const int8_t values[16], float unit, float out[32]) {
    for (int i = 0; i < WEIGHT_BLOCK; i++) out[i] = unit * (float)values[low_code(codes, i)];
}

static void dequantize_iq4_nl_scalar(const void *row, float *out, size_t n) {
    const struct weight_iq4_nl *block = row;
    for (const float *end = out + n; out < end; out += WEIGHT_BLOCK, block++)
        look_up_codes(block->codes, weight_iq4_values, half_to_float(block->scale), out);
}

static void dequantize_mxfp4_scalar(const void *row, float *out, size_t n) {
    const struct weight_mxfp4 *block = row;
    for (const float *end = out + n; out < end; out += WEIGHT_BLOCK, block++)
        look_up_codes(block->codes, weight_fp4_values, weight_mxfp4_unit(block->exponent), out);
}

static void dequantize_iq4_xs_scalar(const void *row, float *out, size_t n) {
    const struct weight_iq4_xs *block = row;
    for (const float *end = out + n; out < end; out += WEIGHT_BLOCK_K, block++) {
        for (int g = 0; g < 8; g++) {
            float unit = half_to_float(block->scale) * (float)(weight_iq4_xs_scale(block, g) - 32);
            look_up_codes(block->codes + 16 * g, weight_iq4_values, unit, out + 32 * g);
        }
    }
}

/* Returns the low two bits of weight i of a block of Q2_K or Q3_K. */
static int two_bits(const uint8_t codes[64], int i) { return codes[i / 128 * 32 + i % 32] >> 2 * (i / 32 % 4) & 3; }

static void dequantize_q2_k_scalar(const void *row, float *out, size_t n) {
    const struct weight_q2_k *block = row;
    for (const float *end = out + n; out < end; out += WEIGHT_BLOCK_K, block++) {
        float scale = half_to_float(block->scale), min = half_to_float(block->min);
        for (int i = 0; i < WEIGHT_BLOCK_K; i++) {
            int s = block->scales[i / 16] & 15, m = block->scales[i / 16] >> 4;
            out[i] = scale * (float)s * (float)two_bits(block->codes, i) - min * (float)m;
        }
    }
}

static void dequantize_q3_k_scalar(const void *row, float *out, size_t n) {
    const struct weight_q3_k *block = row;
    for (const float *end = out + n; out < end; out += WEIGHT_BLOCK_K, block++) {
        float scale = half_to_float(block->scale);
        uint32_t words[4];
        uint8_t s[16];
        weight_q3_k_scales(block->scales, words);
        memcpy(s, words, sizeof s);
        for (int i = 0; i < WEIGHT_BLOCK_K; i++) {
            int code = two_bits(block->codes, i) | (block->high[i % 32] >> i / 32 & 1) << 2;
            out[i] = scale * (float)(s[i / 16] - 32) * (float)(code - 4);
        }
    }
}

/* Sums `step` weights at a time and adds up those sums: the error grows with step + n / step, not with n. */
static void matmul_in_steps(void (*dequantize)(const void *row, float *out, size_t n), size_t step, size_t step_bytes,
                            const void *w, size_t row_bytes, size_t rows, size_t n, const void *const *x, size_t count, float *y,
                            size_t stride) {
    float weights[WEIGHT_BLOCK_K];
    for (size_t r = 0; r < rows; r++) {
        const unsigned char *row = (const unsigned char *)w + r * row_bytes;
        for (size_t t = 0; t < count; t++) y[t * stride + r] = 0;
        for (size_t i = 0; i < n; i += step, row += step_bytes) {
            size_t some = n - i < step ? n - i : step;
            dequantize(row, weights, some);
            for (size_t t = 0; t < count; t++) {
                const float *own = (const float *)x[t] + i;
                float part = 0;
                for (size_t j = 0; j < some; j++) part += weights[j] * own[j];
                y[t * stride + r] += part;
            }
        }
    }
}

#define MATMUL(type, step, step_bytes) \
    static void matmul_##type##_scalar(const void *w, size_t row_bytes, size_t rows, size_t n, const void *const *x, size_t count, \
                                       float *y, size_t stride) { \
        matmul_in_steps(dequantize_##type##_scalar, step, step_bytes, w, row_bytes, rows, n, x, count, y, stride); \
    }
MATMUL(f32, 32, 32 * sizeof(float))
MATMUL(f16, 32, 32 * sizeof(uint16_t))
MATMUL(bf16, 32, 32 * sizeof(uint16_t))
MATMUL(q8_0, WEIGHT_BLOCK, sizeof(struct weight_q8_0))
MATMUL(q4_0, WEIGHT_BLOCK, sizeof(struct weight_q4_0))
MATMUL(q4_1, WEIGHT_BLOCK, sizeof(struct weight_q4_1))
MATMUL(q5_0, WEIGHT_BLOCK, sizeof(struct weight_q5_0))
MATMUL(q5_1, WEIGHT_BLOCK, sizeof(struct weight_q5_1))
MATMUL(q4_k, WEIGHT_BLOCK_K, sizeof(struct weight_q4_k))
MATMUL(q5_k, WEIGHT_BLOCK_K, sizeof(struct weight_q5_k))
MATMUL(q6_k, WEIGHT_BLOCK_K, sizeof(struct weight_q6_k))

MATMUL(iq4_nl, WEIGHT_BLOCK, sizeof(struct weight_iq4_nl))
MATMUL(mxfp4, WEIGHT_BLOCK, sizeof(struct weight_mxfp4))
MATMUL(iq4_xs, WEIGHT_BLOCK_K, sizeof(struct weight_iq4_xs))
MATMUL(q2_k, WEIGHT_BLOCK_K, sizeof(struct weight_q2_k))
MATMUL(q3_k, WEIGHT_BLOCK_K, sizeof(struct weight_q3_k))

#define FILL(TYPE, type) \
    ops->dequantize[TENSOR_##TYPE] = dequantize_##type##_scalar; \
    ops->matmul[TENSOR_##TYPE] = matmul_##type##_scalar; \
    ops->gemm_rows[TENSOR_##TYPE] = 6

void weights_init_scalar(struct weights_ops *ops) {
    FILL(F32, f32);
    FILL(F16, f16);
    FILL(BF16, bf16);
    FILL(Q8_0, q8_0);
    FILL(Q4_0, q4_0);
    FILL(Q4_1, q4_1);
    FILL(Q5_0, q5_0);
    FILL(Q5_1, q5_1);
    FILL(Q4_K, q4_k);
    FILL(Q5_K, q5_k);
    FILL(Q6_K, q6_k);
    FILL(IQ4_NL, iq4_nl);
    FILL(MXFP4, mxfp4);
    FILL(IQ4_XS, iq4_xs);
    FILL(Q2_K, q2_k);
    FILL(Q3_K, q3_k);
}
