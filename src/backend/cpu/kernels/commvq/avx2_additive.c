/* Implements CommVQ's values with AVX2, FMA and F16C. */
#include "backend/cpu/kernels/commvq/additive.h"
#include "backend/cpu/kernels/lanes/avx2.h"

#include <string.h>

static inline vec vec_size(vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline vec vec_minus_size(vec a, vec b) { return _mm256_sub_ps(a, vec_size(b)); }

static inline vec vec_tag(vec x, const uint32_t *places) {
    const __m256i keep = _mm256_set1_epi32(~(ADDITIVE_MOST_CODES - 1));
    __m256i place = _mm256_loadu_si256((const __m256i *)places);
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(_mm256_castps_si256(x), keep), place));
}

static inline vec vec_least(vec a, vec b) { return _mm256_min_ps(a, b); }

static inline float vec_least_lane(vec a) {
    __m128 x = _mm_min_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_min_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_min_ss(x, _mm_movehdup_ps(x)));
}

static void accumulate_by_code_additive(const float *weights, size_t G, size_t n, const uint8_t *codes, float *code_sums);
#define ACCUMULATE_BY_CODE accumulate_by_code_additive

#include "backend/cpu/kernels/commvq/additive_template.h"

/* ---- Code sums. Weights become integers of which 64 sum to no more than 15 bits. All sums of four tokens' integers are a table of
 * 16, its low bytes apart from its high ones: a shuffle of bytes looks up those tokens' bits of 32 codes at once, four bits of each
 * code. Low bytes are summed in 16 bits; high ones in bytes, since the sum is wanted modulo 2^16. */

#define TOGETHER 2 /* queries whose sums lie in registers together */
#define QUADS (PAGE_TOKENS / 4)

struct quad {
    uint8_t low[16], high[16];
};

/* Makes quads[QUADS] of one query; returns the step of the integers, 0 where there is nothing to add. */
static float make_tables(const float *weights, struct quad *quads) {
    int32_t whole[PAGE_TOKENS];
    float sizes[LANES], sum = 0;
    vec size = vec_zero();
    for (size_t i = 0; i < PAGE_TOKENS; i += LANES) size = vec_add(size, vec_size(vec_load(weights + i)));
    vec_store(sizes, size);
    for (size_t i = 0; i < LANES; i++) sum += sizes[i];
    float scale = sum > ADDITIVE_NOTHING ? ADDITIVE_WEIGHTS / sum : 0;
    if (!(scale > 0)) return 0;
    for (size_t i = 0; i < PAGE_TOKENS; i += LANES)
        _mm256_storeu_si256((__m256i *)(whole + i), _mm256_cvtps_epi32(vec_mul(vec_load(weights + i), vec_set(scale))));
    const __m256i entries = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), byte = _mm256_set1_epi16(255);
    for (size_t q = 0; q < QUADS; q++) {
        __m256i entry = _mm256_setzero_si256();
        UNROLL for (int i = 0; i < 4; i++) {
            __m256i bit = _mm256_set1_epi16((short)(1 << i)), mask = _mm256_cmpeq_epi16(_mm256_and_si256(entries, bit), bit);
            entry = _mm256_add_epi16(entry, _mm256_and_si256(mask, _mm256_set1_epi16((short)whole[4 * q + (size_t)i])));
        }
        __m256i low = _mm256_and_si256(entry, byte), high = _mm256_srli_epi16(entry, 8);
        __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xd8);
        _mm256_storeu_si256((__m256i *)&quads[q], both);
    }
    return 1 / scale;
}

static inline __m256i table(const uint8_t *entries) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)entries));
}

struct bytes_sum {
    __m256i even, odd, high; /* 16-bit sums of low bytes, those of odd ones times 256 in `even` too; bytes */
};

INLINE void look_up(__m256i index, const struct quad *quad, struct bytes_sum *sum) {
    __m256i low = _mm256_shuffle_epi8(table(quad->low), index);
    sum->even = _mm256_add_epi16(sum->even, low);
    sum->odd = _mm256_add_epi16(sum->odd, _mm256_srli_epi16(low, 8));
    sum->high = _mm256_add_epi8(sum->high, _mm256_shuffle_epi8(table(quad->high), index));
}

/* Computes code_sums[32] += step * sum. */
INLINE void add_sum(const struct bytes_sum *sum, float step, float *code_sums) {
    __m256i even = _mm256_sub_epi16(sum->even, _mm256_slli_epi16(sum->odd, 8));
    even = _mm256_add_epi16(even, _mm256_slli_epi16(sum->high, 8));
    __m256i odd = _mm256_add_epi16(sum->odd, _mm256_and_si256(sum->high, _mm256_set1_epi16((short)0xff00)));
    __m256i first = _mm256_unpacklo_epi16(even, odd), second = _mm256_unpackhi_epi16(even, odd); /* 0-7 and 16-23, 8-15 and 24-31 */
    __m128i parts[4] = {_mm256_castsi256_si128(first), _mm256_castsi256_si128(second), _mm256_extracti128_si256(first, 1),
                        _mm256_extracti128_si256(second, 1)};
    UNROLL for (size_t i = 0; i < 4; i++) {
        vec x = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(parts[i]));
        vec_store(code_sums + i * LANES, vec_fma(x, vec_set(step), vec_load(code_sums + i * LANES)));
    }
}

INLINE void accumulate_by_code_some(size_t G, const float *weights, size_t n, const uint8_t *codes, float *code_sums) {
    const __m256i nibble = _mm256_set1_epi8(15);
    struct quad quads[TOGETHER][QUADS];
    float steps[TOGETHER];
    for (size_t g = 0; g < G; g++) {
        steps[g] = make_tables(weights + g * PAGE_TOKENS, quads[g]);
        if (steps[g] == 0) memset(quads[g], 0, sizeof quads[g]);
    }
    for (size_t i = 0; i < n; i += 32) {
        struct bytes_sum sum[TOGETHER];
        UNROLL for (size_t g = 0; g < G; g++) sum[g].even = sum[g].odd = sum[g].high = _mm256_setzero_si256();
        UNROLL for (size_t o = 0; o < 8; o++) {
            __m256i byte = _mm256_loadu_si256((const __m256i *)(codes + o * n + i));
            __m256i low = _mm256_and_si256(byte, nibble), high = _mm256_and_si256(_mm256_srli_epi16(byte, 4), nibble);
            UNROLL for (size_t g = 0; g < G; g++) {
                look_up(low, &quads[g][2 * o], &sum[g]);
                look_up(high, &quads[g][2 * o + 1], &sum[g]);
            }
        }
        UNROLL for (size_t g = 0; g < G; g++) add_sum(&sum[g], steps[g], code_sums + g * n + i);
    }
}

static void accumulate_by_code_additive(const float *weights, size_t G, size_t n, const uint8_t *codes, float *code_sums) {
    for (size_t left = G, some; left > 0; left -= some, weights += some * PAGE_TOKENS, code_sums += some * n) {
        some = left < TOGETHER ? left : TOGETHER;
        if (some == 2) accumulate_by_code_some(2, weights, n, codes, code_sums);
        if (some == 1) accumulate_by_code_some(1, weights, n, codes, code_sums);
    }
}
