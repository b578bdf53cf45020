/* Reads weights as stored, 256 bits at a time: AVX2, FMA, F16C. One function per format turns 32 weights into four registers
 * holding the very floats of the scalar reference; weights/template.h makes dequantize[] and matmul[] of them.
 * format/weight_blocks.h has the formats. */
#include "backend/cpu/kernels/compiler.h"
#include "backend/cpu/kernels/weights/avx2_scales.h"
#include "backend/cpu/kernels/weights/init.h"
#include "format/weight_blocks.h"

#include <immintrin.h>

INLINE __m128i load_64(const void *p) { return _mm_loadl_epi64(p); }
INLINE __m128i load_128(const void *p) { return _mm_loadu_si128(p); }
INLINE __m256i load_256(const void *p) { return _mm256_loadu_si256(p); }

/* Repeats the half at `half` in all lanes; eight bytes are read, which every block has after its scale. */
INLINE __m256 spread_half(const void *half) { return _mm256_broadcastss_ps(_mm_cvtph_ps(load_64(half))); }

/* Converts 32 signed bytes to floats. */
INLINE void floats_of_bytes(__m256i bytes, __m256 w[4]) {
    __m128i low = _mm256_castsi256_si128(bytes), high = _mm256_extracti128_si256(bytes, 1);
    w[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low));
    w[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(low, 8)));
    w[2] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high));
    w[3] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(high, 8)));
}

/* Converts the four-bit codes of a block of 32 to floats less `zero`, in order. */
INLINE void floats_of_nibbles(const uint8_t codes[16], int zero, __m256 w[4]) {
    for (int i = 0; i < 2; i++) {
        __m256i both = _mm256_cvtepu8_epi32(load_64(codes + 8 * i));
        __m256i low = _mm256_and_si256(both, _mm256_set1_epi32(15)), high = _mm256_srli_epi32(both, 4);
        w[i] = _mm256_cvtepi32_ps(_mm256_sub_epi32(low, _mm256_set1_epi32(zero)));
        w[2 + i] = _mm256_cvtepi32_ps(_mm256_sub_epi32(high, _mm256_set1_epi32(zero)));
    }
}

INLINE void scale_all(__m256 w[4], __m256 scale) {
    for (int i = 0; i < 4; i++) w[i] = _mm256_mul_ps(scale, w[i]);
}
INLINE void scale_and_add_all(__m256 w[4], __m256 scale, __m256 min) {
    for (int i = 0; i < 4; i++) w[i] = _mm256_fmadd_ps(scale, w[i], min);
}
INLINE void scale_and_subtract_all(__m256 w[4], __m256 scale, __m256 min) {
    for (int i = 0; i < 4; i++) w[i] = _mm256_fmsub_ps(scale, w[i], min);
}

#define NO_SCALES(type) \
    INLINE void scales_##type(const struct weight_##type *block, float *scales) { (void)block, (void)scales; }

NO_SCALES(f32)
INLINE void unpack_f32(const struct weight_f32 *block, const float *scales, int g, __m256 w[4]) {
    (void)scales;
    for (int i = 0; i < 4; i++) w[i] = _mm256_loadu_ps(block[g].values + 8 * i);
}

NO_SCALES(f16)
INLINE void unpack_f16(const struct weight_f16 *block, const float *scales, int g, __m256 w[4]) {
    (void)scales;
    for (int i = 0; i < 4; i++) w[i] = _mm256_cvtph_ps(load_128(block[g].values + 8 * i));
}

NO_SCALES(bf16)
INLINE void unpack_bf16(const struct weight_bf16 *block, const float *scales, int g, __m256 w[4]) {
    (void)scales;
    for (int i = 0; i < 4; i++)
        w[i] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(block[g].values + 8 * i)), 16));
}

NO_SCALES(q8_0)
INLINE void unpack_q8_0(const struct weight_q8_0 *block, const float *scales, int g, __m256 w[4]) {
    (void)scales;
    for (int i = 0; i < 4; i++) w[i] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_64(block[g].codes + 8 * i)));
    scale_all(w, spread_half(&block[g].scale));
}

NO_SCALES(q4_0)
INLINE void unpack_q4_0(const struct weight_q4_0 *block, const float *scales, int g, __m256 w[4]) {
    (void)scales;
    floats_of_nibbles(block[g].codes, 8, w);
    scale_all(w, spread_half(&block[g].scale));
}

NO_SCALES(q4_1)
INLINE void unpack_q4_1(const struct weight_q4_1 *block, const float *scales, int g, __m256 w[4]) {
    (void)scales;
    floats_of_nibbles(block[g].codes, 0, w);
    scale_and_add_all(w, spread_half(&block[g].scale), spread_half(&block[g].min));
}

/* Returns the low four bits of a block's codes as bytes, in order; fifth_bits returns a byte of ones for every fifth bit that is
 * set. */
INLINE __m256i low_bits(const uint8_t codes[16]) {
    __m128i both = load_128(codes);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(both, 4), both), _mm256_set1_epi8(15));
}
INLINE __m256i fifth_bits(const uint8_t high[4]) {
    uint32_t word;
    memcpy(&word, high, sizeof word);
    const __m256i own_byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i own_bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i bits = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)word), own_byte), own_bit);
    return _mm256_cmpeq_epi8(bits, own_bit);
}

NO_SCALES(q5_0)
INLINE void unpack_q5_0(const struct weight_q5_0 *block, const float *scales, int g, __m256 w[4]) {
    (void)scales;
    __m256i less_16 = _mm256_andnot_si256(fifth_bits(block[g].high), _mm256_set1_epi8((char)0xf0));
    floats_of_bytes(_mm256_or_si256(low_bits(block[g].codes), less_16), w);
    scale_all(w, spread_half(&block[g].scale));
}

NO_SCALES(q5_1)
INLINE void unpack_q5_1(const struct weight_q5_1 *block, const float *scales, int g, __m256 w[4]) {
    (void)scales;
    __m256i plus_16 = _mm256_and_si256(fifth_bits(block[g].high), _mm256_set1_epi8(16));
    floats_of_bytes(_mm256_or_si256(low_bits(block[g].codes), plus_16), w);
    scale_and_add_all(w, spread_half(&block[g].scale), spread_half(&block[g].min));
}

/* Writes scale s of the eight groups, then min m. */
INLINE void group_scales(const void *block, const uint16_t *scale, const uint16_t *min, float *scales) {
    __m128i bytes = group_scale_bytes(block);
    __m256i s = _mm256_cvtepu8_epi32(bytes), m = _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes));
    _mm256_storeu_ps(scales, _mm256_mul_ps(spread_half(scale), _mm256_cvtepi32_ps(s)));
    _mm256_storeu_ps(scales + 8, _mm256_mul_ps(spread_half(min), _mm256_cvtepi32_ps(m)));
}

INLINE void scales_q4_k(const struct weight_q4_k *block, float *scales) { group_scales(block, &block->scale, &block->min, scales); }
INLINE void unpack_q4_k(const struct weight_q4_k *block, const float *scales, int g, __m256 w[4]) {
    for (int i = 0; i < 4; i++) {
        __m256i both = _mm256_cvtepu8_epi32(load_64(block->codes + 32 * (g / 2) + 8 * i));
        w[i] = _mm256_cvtepi32_ps(g % 2 ? _mm256_srli_epi32(both, 4) : _mm256_and_si256(both, _mm256_set1_epi32(15)));
    }
    scale_and_subtract_all(w, _mm256_set1_ps(scales[g]), _mm256_set1_ps(scales[8 + g]));
}

INLINE void scales_q5_k(const struct weight_q5_k *block, float *scales) { group_scales(block, &block->scale, &block->min, scales); }
INLINE void unpack_q5_k(const struct weight_q5_k *block, const float *scales, int g, __m256 w[4]) {
    __m256i low = load_256(block->codes + 32 * (g / 2)), high = load_256(block->high);
    low = _mm256_and_si256(_mm256_srli_epi16(low, 4 * (g % 2)), _mm256_set1_epi8(15));
    high = g < 4 ? _mm256_slli_epi16(high, 4 - g) : _mm256_srli_epi16(high, g - 4);
    floats_of_bytes(_mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(16))), w);
    scale_and_subtract_all(w, _mm256_set1_ps(scales[g]), _mm256_set1_ps(scales[8 + g]));
}

INLINE void scales_q6_k(const struct weight_q6_k *block, float *scales) {
    __m256 scale = _mm256_cvtph_ps(_mm_set1_epi16((short)block->scale));
    for (int i = 0; i < 16; i += 8) {
        __m256i s = _mm256_cvtepi8_epi32(load_64(block->scales + i));
        _mm256_storeu_ps(scales + i, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(s)));
    }
}
INLINE void unpack_q6_k(const struct weight_q6_k *block, const float *scales, int g, __m256 w[4]) {
    const int half = g / 4, quarter = g % 4;
    __m256i low = load_256(block->codes + 64 * half + 32 * (quarter % 2)), high = load_256(block->high + 32 * half);
    low = _mm256_and_si256(_mm256_srli_epi16(low, 4 * (quarter / 2)), _mm256_set1_epi8(15));
    high = quarter < 2 ? _mm256_slli_epi16(high, 4 - 2 * quarter) : _mm256_srli_epi16(high, 2 * quarter - 4);
    __m256i codes = _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(48)));
    floats_of_bytes(_mm256_sub_epi8(codes, _mm256_set1_epi8(32)), w);
    for (int i = 0; i < 4; i++) w[i] = _mm256_mul_ps(_mm256_set1_ps(scales[2 * g + i / 2]), w[i]);
}

/* Looks up four-bit codes, in order, as the signed bytes that a table has for them. */
INLINE __m256i look_up_codes(const uint8_t codes[16], const int8_t values[16]) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_128(values)), low_bits(codes));
}

NO_SCALES(iq4_nl)
INLINE void unpack_iq4_nl(const struct weight_iq4_nl *block, const float *scales, int g, __m256 w[4]) {
    (void)scales;
    floats_of_bytes(look_up_codes(block[g].codes, weight_iq4_values), w);
    scale_all(w, spread_half(&block[g].scale));
}

NO_SCALES(mxfp4)
INLINE void unpack_mxfp4(const struct weight_mxfp4 *block, const float *scales, int g, __m256 w[4]) {
    (void)scales;
    floats_of_bytes(look_up_codes(block[g].codes, weight_fp4_values), w);
    scale_all(w, _mm256_set1_ps(weight_mxfp4_unit(block[g].exponent)));
}

INLINE void scales_iq4_xs(const struct weight_iq4_xs *block, float *scales) {
    _mm256_storeu_ps(scales, _mm256_mul_ps(spread_half(&block->scale), iq4_xs_scales(block)));
}
INLINE void unpack_iq4_xs(const struct weight_iq4_xs *block, const float *scales, int g, __m256 w[4]) {
    floats_of_bytes(look_up_codes(block->codes + 16 * g, weight_iq4_values), w);
    scale_all(w, _mm256_set1_ps(scales[g]));
}

/* Returns the two bits of the 32 weights of group g of Q2_K or Q3_K. */
INLINE __m256i two_bits(const uint8_t codes[64], int g) {
    return _mm256_and_si256(_mm256_srli_epi16(load_256(codes + g / 4 * 32), g % 4 * 2), _mm256_set1_epi8(3));
}

INLINE void scales_q2_k(const struct weight_q2_k *block, float *scales) {
    __m256 scale = _mm256_cvtph_ps(_mm_set1_epi16((short)block->scale)), min = _mm256_cvtph_ps(_mm_set1_epi16((short)block->min));
    for (int i = 0; i < 16; i += 8) {
        __m256i both = _mm256_cvtepu8_epi32(load_64(block->scales + i));
        __m256i s = _mm256_and_si256(both, _mm256_set1_epi32(15)), m = _mm256_srli_epi32(both, 4);
        _mm256_storeu_ps(scales + i, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(s)));
        _mm256_storeu_ps(scales + 16 + i, _mm256_mul_ps(min, _mm256_cvtepi32_ps(m)));
    }
}
INLINE void unpack_q2_k(const struct weight_q2_k *block, const float *scales, int g, __m256 w[4]) {
    floats_of_bytes(two_bits(block->codes, g), w);
    for (int i = 0; i < 4; i++)
        w[i] = _mm256_fmsub_ps(_mm256_set1_ps(scales[2 * g + i / 2]), w[i], _mm256_set1_ps(scales[16 + 2 * g + i / 2]));
}

INLINE void scales_q3_k(const struct weight_q3_k *block, float *scales) {
    __m256 scale = _mm256_cvtph_ps(_mm_set1_epi16((short)block->scale));
    __m128i s = q3_k_scale_bytes(block->scales);
    for (int i = 0; i < 2; i++, s = _mm_srli_si128(s, 8))
        _mm256_storeu_ps(scales + 8 * i, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(s))));
}
INLINE void unpack_q3_k(const struct weight_q3_k *block, const float *scales, int g, __m256 w[4]) {
    __m256i bit = _mm256_set1_epi8((char)(1 << g));
    __m256i unset = _mm256_cmpeq_epi8(_mm256_and_si256(load_256(block->high), bit), _mm256_setzero_si256());
    floats_of_bytes(_mm256_sub_epi8(two_bits(block->codes, g), _mm256_and_si256(unset, _mm256_set1_epi8(4))), w);
    for (int i = 0; i < 4; i++) w[i] = _mm256_mul_ps(_mm256_set1_ps(scales[2 * g + i / 2]), w[i]);
}

#define VECTOR __m256
#define LANES 8
INLINE __m256 vector_zero(void) { return _mm256_setzero_ps(); }
INLINE __m256 vector_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void vector_store(float *p, __m256 v) { _mm256_storeu_ps(p, v); }
INLINE __m256 vector_fma(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }

INLINE void store_sums(__m256 sums[4][2], float *y, size_t rows) {
    __m128 q[4];
    for (int j = 0; j < 4; j++) {
        __m256 sum = _mm256_add_ps(sums[j][0], sums[j][1]);
        q[j] = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
    }
    _MM_TRANSPOSE4_PS(q[0], q[1], q[2], q[3]);
    __m128i wanted = _mm_cmplt_epi32(_mm_setr_epi32(0, 1, 2, 3), _mm_set1_epi32(rows < 4 ? (int)rows : 4));
    _mm_maskstore_ps(y, wanted, _mm_add_ps(_mm_add_ps(q[0], q[1]), _mm_add_ps(q[2], q[3])));
}

#include "backend/cpu/kernels/weights/template.h"

FLOAT_WEIGHT_KERNELS(avx2)
BYTE_DEQUANTIZERS(avx2)

void weights_init_avx2(struct weights_ops *ops) {
    FILL_FLOAT_WEIGHTS(ops, avx2);
    FILL_BYTE_DEQUANTIZERS(ops, avx2);
}
