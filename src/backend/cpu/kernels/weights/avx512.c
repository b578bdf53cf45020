/* Reads weights as stored, 512 bits at a time. One function per format turns 32 weights into two registers holding the very floats
 * of the scalar reference; weights/template.h makes dequantize[] and matmul[] of them, except for the matmul[] of avx512_tiles.c.
 * format/weight_blocks.h has the formats. */
#include "backend/cpu/kernels/weights/avx512_common.h"
#include "backend/cpu/kernels/weights/init.h"

INLINE __m128i load_64(const void *p) { return _mm_loadl_epi64(p); }
INLINE __m128i load_128(const void *p) { return _mm_loadu_si128(p); }
INLINE __m256i load_256(const void *p) { return _mm256_loadu_si256(p); }

/* Repeats the half at `half` in all lanes; eight bytes are read, which every block has after its scale. */
INLINE __m512 spread_half(const void *half) { return _mm512_broadcastss_ps(_mm_cvtph_ps(load_64(half))); }
/* Returns first, first + 1, ..., first + 15. */
INLINE __m512 counting_from(float first) {
    return _mm512_add_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_ps(first));
}

/* Converts 32 signed bytes to floats. */
INLINE void floats_of_bytes(__m256i bytes, __m512 w[2]) {
    w[0] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes)));
    w[1] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1)));
}

/* Looks up four-bit codes among the sixteen weights that their block can hold: vpermps uses only four bits of an index. */
INLINE void look_up_nibbles(const uint8_t codes[16], __m512 table, __m512 w[2]) {
    __m512i both = _mm512_cvtepu8_epi32(load_128(codes));
    w[0] = _mm512_permutexvar_ps(both, table);
    w[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), table);
}

#define NO_SCALES(type) \
    INLINE void scales_##type(const struct weight_##type *block, float *scales) { (void)block, (void)scales; }

NO_SCALES(f32)
INLINE void unpack_f32(const struct weight_f32 *block, const float *scales, int g, __m512 w[2]) {
    (void)scales;
    for (int i = 0; i < 2; i++) w[i] = _mm512_loadu_ps(block[g].values + 16 * i);
}

NO_SCALES(f16)
INLINE void unpack_f16(const struct weight_f16 *block, const float *scales, int g, __m512 w[2]) {
    (void)scales;
    for (int i = 0; i < 2; i++) w[i] = _mm512_cvtph_ps(load_256(block[g].values + 16 * i));
}

NO_SCALES(bf16)
INLINE void unpack_bf16(const struct weight_bf16 *block, const float *scales, int g, __m512 w[2]) {
    (void)scales;
    for (int i = 0; i < 2; i++)
        w[i] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_256(block[g].values + 16 * i)), 16));
}

NO_SCALES(q8_0)
INLINE void unpack_q8_0(const struct weight_q8_0 *block, const float *scales, int g, __m512 w[2]) {
    (void)scales;
    __m512 scale = spread_half(&block[g].scale);
    for (int i = 0; i < 2; i++)
        w[i] = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_128(block[g].codes + 16 * i))));
}

NO_SCALES(q4_0)
INLINE void unpack_q4_0(const struct weight_q4_0 *block, const float *scales, int g, __m512 w[2]) {
    (void)scales;
    look_up_nibbles(block[g].codes, _mm512_mul_ps(spread_half(&block[g].scale), counting_from(-8)), w);
}

NO_SCALES(q4_1)
INLINE void unpack_q4_1(const struct weight_q4_1 *block, const float *scales, int g, __m512 w[2]) {
    (void)scales;
    __m512 scale = spread_half(&block[g].scale), min = spread_half(&block[g].min);
    look_up_nibbles(block[g].codes, _mm512_fmadd_ps(scale, counting_from(0), min), w);
}

/* Returns the low four bits of a block's codes as bytes, in order; fifth_bits returns a byte of ones for every fifth bit that is
 * set. */
INLINE __m256i low_bits(const uint8_t codes[16]) {
    __m128i both = load_128(codes);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(both, 4), both), _mm256_set1_epi8(15));
}
INLINE __m256i fifth_bits(const uint8_t high[4]) {
    uint32_t mask;
    memcpy(&mask, high, sizeof mask);
    return _mm256_movm_epi8(mask);
}

NO_SCALES(q5_0)
INLINE void unpack_q5_0(const struct weight_q5_0 *block, const float *scales, int g, __m512 w[2]) {
    (void)scales;
    __m256i less_16 = _mm256_andnot_si256(fifth_bits(block[g].high), _mm256_set1_epi8((char)0xf0));
    __m512 scale = spread_half(&block[g].scale);
    floats_of_bytes(_mm256_or_si256(low_bits(block[g].codes), less_16), w);
    for (int i = 0; i < 2; i++) w[i] = _mm512_mul_ps(scale, w[i]);
}

NO_SCALES(q5_1)
INLINE void unpack_q5_1(const struct weight_q5_1 *block, const float *scales, int g, __m512 w[2]) {
    (void)scales;
    __m256i plus_16 = _mm256_and_si256(fifth_bits(block[g].high), _mm256_set1_epi8(16));
    __m512 scale = spread_half(&block[g].scale), min = spread_half(&block[g].min);
    floats_of_bytes(_mm256_or_si256(low_bits(block[g].codes), plus_16), w);
    for (int i = 0; i < 2; i++) w[i] = _mm512_fmadd_ps(scale, w[i], min);
}

INLINE void scales_q4_k(const struct weight_q4_k *block, float *scales) { _mm512_storeu_ps(scales, group_scales(block)); }
INLINE void unpack_q4_k(const struct weight_q4_k *block, const float *scales, int g, __m512 w[2]) {
    __m512 table = _mm512_fmsub_ps(_mm512_set1_ps(scales[g]), counting_from(0), _mm512_set1_ps(scales[8 + g]));
    for (int i = 0; i < 2; i++) {
        __m512i both = _mm512_cvtepu8_epi32(load_128(block->codes + 32 * (g / 2) + 16 * i));
        w[i] = _mm512_permutexvar_ps(g % 2 ? _mm512_srli_epi32(both, 4) : both, table);
    }
}

INLINE void scales_q5_k(const struct weight_q5_k *block, float *scales) { _mm512_storeu_ps(scales, group_scales(block)); }
INLINE void unpack_q5_k(const struct weight_q5_k *block, const float *scales, int g, __m512 w[2]) {
    __m256i low = load_256(block->codes + 32 * (g / 2)), high = load_256(block->high);
    low = _mm256_and_si256(_mm256_srli_epi16(low, 4 * (g % 2)), _mm256_set1_epi8(15));
    high = g < 4 ? _mm256_slli_epi16(high, 4 - g) : _mm256_srli_epi16(high, g - 4);
    __m512 scale = _mm512_set1_ps(scales[g]), min = _mm512_set1_ps(scales[8 + g]);
    floats_of_bytes(_mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(16))), w);
    for (int i = 0; i < 2; i++) w[i] = _mm512_fmsub_ps(scale, w[i], min);
}

INLINE void scales_q6_k(const struct weight_q6_k *block, float *scales) {
    __m512i s = _mm512_cvtepi8_epi32(load_128(block->scales));
    __m512 scale = _mm512_cvtph_ps(_mm256_set1_epi16((short)block->scale));
    _mm512_storeu_ps(scales, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(s)));
}
INLINE void unpack_q6_k(const struct weight_q6_k *block, const float *scales, int g, __m512 w[2]) {
    const int half = g / 4, quarter = g % 4;
    __m256i low = load_256(block->codes + 64 * half + 32 * (quarter % 2)), high = load_256(block->high + 32 * half);
    low = _mm256_and_si256(_mm256_srli_epi16(low, 4 * (quarter / 2)), _mm256_set1_epi8(15));
    high = quarter < 2 ? _mm256_slli_epi16(high, 4 - 2 * quarter) : _mm256_srli_epi16(high, 2 * quarter - 4);
    __m256i codes = _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(48)));
    floats_of_bytes(_mm256_sub_epi8(codes, _mm256_set1_epi8(32)), w);
    for (int i = 0; i < 2; i++) w[i] = _mm512_mul_ps(_mm512_set1_ps(scales[2 * g + i]), w[i]);
}

/* Returns a table of sixteen signed bytes times a unit. */
INLINE __m512 table_of(const int8_t values[16], __m512 unit) {
    return _mm512_mul_ps(unit, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_128(values))));
}

NO_SCALES(iq4_nl)
INLINE void unpack_iq4_nl(const struct weight_iq4_nl *block, const float *scales, int g, __m512 w[2]) {
    (void)scales;
    look_up_nibbles(block[g].codes, table_of(weight_iq4_values, spread_half(&block[g].scale)), w);
}

NO_SCALES(mxfp4)
INLINE void unpack_mxfp4(const struct weight_mxfp4 *block, const float *scales, int g, __m512 w[2]) {
    (void)scales;
    look_up_nibbles(block[g].codes, table_of(weight_fp4_values, _mm512_set1_ps(weight_mxfp4_unit(block[g].exponent))), w);
}

INLINE void scales_iq4_xs(const struct weight_iq4_xs *block, float *scales) {
    _mm256_storeu_ps(scales, _mm256_mul_ps(_mm512_castps512_ps256(spread_half(&block->scale)), iq4_xs_scales(block)));
}
INLINE void unpack_iq4_xs(const struct weight_iq4_xs *block, const float *scales, int g, __m512 w[2]) {
    look_up_nibbles(block->codes + 16 * g, table_of(weight_iq4_values, _mm512_set1_ps(scales[g])), w);
}

/* Returns the two bits of the 32 weights of group g of Q2_K or Q3_K. */
INLINE __m256i two_bits(const uint8_t codes[64], int g) {
    return _mm256_and_si256(_mm256_srli_epi16(load_256(codes + g / 4 * 32), g % 4 * 2), _mm256_set1_epi8(3));
}

INLINE void scales_q2_k(const struct weight_q2_k *block, float *scales) {
    __m512i both = _mm512_cvtepu8_epi32(load_128(block->scales));
    __m512i s = _mm512_and_si512(both, _mm512_set1_epi32(15)), m = _mm512_srli_epi32(both, 4);
    __m512 scale = _mm512_cvtph_ps(_mm256_set1_epi16((short)block->scale)),
           min = _mm512_cvtph_ps(_mm256_set1_epi16((short)block->min));
    _mm512_storeu_ps(scales, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(s)));
    _mm512_storeu_ps(scales + 16, _mm512_mul_ps(min, _mm512_cvtepi32_ps(m)));
}
INLINE void unpack_q2_k(const struct weight_q2_k *block, const float *scales, int g, __m512 w[2]) {
    floats_of_bytes(two_bits(block->codes, g), w);
    for (int i = 0; i < 2; i++)
        w[i] = _mm512_fmsub_ps(_mm512_set1_ps(scales[2 * g + i]), w[i], _mm512_set1_ps(scales[16 + 2 * g + i]));
}

INLINE void scales_q3_k(const struct weight_q3_k *block, float *scales) {
    __m512 s = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q3_k_scale_bytes(block->scales)));
    _mm512_storeu_ps(scales, _mm512_mul_ps(_mm512_cvtph_ps(_mm256_set1_epi16((short)block->scale)), s));
}
INLINE void unpack_q3_k(const struct weight_q3_k *block, const float *scales, int g, __m512 w[2]) {
    __mmask32 unset = _mm256_testn_epi8_mask(load_256(block->high), _mm256_set1_epi8((char)(1 << g)));
    __m256i codes = two_bits(block->codes, g);
    floats_of_bytes(_mm256_mask_sub_epi8(codes, unset, codes, _mm256_set1_epi8(4)), w);
    for (int i = 0; i < 2; i++) w[i] = _mm512_mul_ps(_mm512_set1_ps(scales[2 * g + i]), w[i]);
}

#define VECTOR __m512
#define LANES 16
INLINE __m512 vector_zero(void) { return _mm512_setzero_ps(); }
INLINE __m512 vector_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vector_store(float *p, __m512 v) { _mm512_storeu_ps(p, v); }
INLINE __m512 vector_fma(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }

INLINE void store_sums(__m512 sums[4][2], float *y, size_t rows) {
    __m128 q[4];
    for (int j = 0; j < 4; j++) {
        __m512 sum = _mm512_add_ps(sums[j][0], sums[j][1]);
        __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
        q[j] = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    }
    _MM_TRANSPOSE4_PS(q[0], q[1], q[2], q[3]);
    __mmask8 wanted = (__mmask8)(rows < 4 ? (1u << rows) - 1 : 15u);
    _mm_mask_storeu_ps(y, wanted, _mm_add_ps(_mm_add_ps(q[0], q[1]), _mm_add_ps(q[2], q[3])));
}

#include "backend/cpu/kernels/weights/template.h"

FLOAT_WEIGHT_KERNELS(avx512)
BYTE_DEQUANTIZERS(avx512)
BLOCK_MATMUL(mxfp4, avx512)

void weights_init_avx512(struct weights_ops *ops) {
    FILL_FLOAT_WEIGHTS(ops, avx512);
    FILL_BYTE_DEQUANTIZERS(ops, avx512);
    FILL_MATMUL(ops, MXFP4, mxfp4, avx512);
}
