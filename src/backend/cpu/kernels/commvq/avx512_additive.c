/* Implements CommVQ's values with AVX-512. */
#include "backend/cpu/kernels/commvq/additive.h"
#include "backend/cpu/kernels/lanes/avx512.h"

#include <stdbool.h>

static inline vec vec_minus_size(vec a, vec b) { return _mm512_sub_ps(a, _mm512_abs_ps(b)); }

static inline vec vec_tag(vec x, const uint32_t *places) {
    const __m512i keep = _mm512_set1_epi32(~(ADDITIVE_MOST_CODES - 1));
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(_mm512_castps_si512(x), keep, _mm512_loadu_si512(places), 0xea)); /* x & keep | place */
}

static inline vec vec_least(vec a, vec b) { return _mm512_min_ps(a, b); }
static inline float vec_least_lane(vec a) { return _mm512_reduce_min_ps(a); }

static void accumulate_by_code_additive(const float *weights, size_t G, size_t n, const uint8_t *codes, float *code_sums);
#define ACCUMULATE_BY_CODE accumulate_by_code_additive

#include "backend/cpu/kernels/commvq/additive_template.h"

/* ---- Code sums. Weights become integers of which 64 sum to no more than 15 bits. All sums of four tokens' integers are a table of
 * 16, and the tables of the eight tokens of an octet are a register, where a permutation of 16-bit numbers looks up four tokens'
 * bits of 32 codes at once. Tables are made in registers: of all sums of two tokens, then of two of those. */

#define TOGETHER 4 /* queries whose sums lie in registers together */
#define OCTETS (PAGE_TOKENS / 8)

#define TIMES_4(x) x, x, x, x

/* Packing leaves the first of two tokens in these places, for eight pairs of tokens and four sums of each. */
static const uint16_t first_token[32] = {TIMES_4(0),  TIMES_4(2),  TIMES_4(8),  TIMES_4(10),
                                         TIMES_4(16), TIMES_4(18), TIMES_4(24), TIMES_4(26)};
/* These sums of the first and of the second pair make those of four tokens. */
#define FOURS(x) x, x + 1, x + 2, x + 3
static const uint16_t first_pair[32] = {FOURS(0), FOURS(0), FOURS(0), FOURS(0), FOURS(8), FOURS(8), FOURS(8), FOURS(8)};
static const uint16_t second_pair[32] = {TIMES_4(4),  TIMES_4(5),  TIMES_4(6),  TIMES_4(7),
                                         TIMES_4(12), TIMES_4(13), TIMES_4(14), TIMES_4(15)};

INLINE __m512i look_up(__m512i indices, __m512i table) { return _mm512_permutexvar_epi16(indices, table); }

/* Makes tables[OCTETS] of one query; returns the step of the integers, 0 where there is nothing to add. */
INLINE float make_tables(const float *weights, __m512i *tables) {
    const __m512i token = _mm512_loadu_si512(first_token), one = _mm512_set1_epi16(1), four = _mm512_set1_epi16(4);
    const __m512i pair = _mm512_loadu_si512(first_pair), second = _mm512_loadu_si512(second_pair);
    __m512i whole[4];
    vec size = vec_zero(), w[4];
    UNROLL for (size_t i = 0; i < 4; i++) {
        w[i] = vec_load(weights + i * LANES);
        size = vec_add(size, _mm512_abs_ps(w[i]));
    }
    float sum = _mm512_reduce_add_ps(size), scale = sum > ADDITIVE_NOTHING ? ADDITIVE_WEIGHTS / sum : 0;
    bool some = scale > 0;
    UNROLL for (size_t i = 0; i < 4; i++) whole[i] = _mm512_cvtps_epi32(vec_mul(w[i], vec_set(some ? scale : 0)));
    UNROLL for (size_t i = 0; i < 4; i++) {
        __m512i packed = _mm512_packs_epi32(whole[i / 2 * 2], whole[i / 2 * 2 + 1]),
                at = i % 2 ? _mm512_add_epi16(token, four) : token;
        __m512i twos = _mm512_add_epi16(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, at, packed),
                                        _mm512_maskz_permutexvar_epi16(0xcccccccc, _mm512_add_epi16(at, one), packed));
        UNROLL for (size_t o = 0; o < 2; o++) {
            __m512i by = _mm512_set1_epi16((short)(16 * o));
            tables[2 * i + o] =
                _mm512_add_epi16(look_up(_mm512_add_epi16(pair, by), twos), look_up(_mm512_add_epi16(second, by), twos));
        }
    }
    return some ? 1 / scale : 0;
}

INLINE void accumulate_by_code_some(size_t G, const float *weights, size_t n, const uint8_t *codes, float *code_sums) {
    const __m512i low = _mm512_set1_epi16(15), high = _mm512_set1_epi16(16);
    __m512i tables[TOGETHER][OCTETS];
    float steps[TOGETHER];
    UNROLL for (size_t g = 0; g < G; g++) steps[g] = make_tables(weights + g * PAGE_TOKENS, tables[g]);
    for (size_t i = 0; i < n; i += 2 * LANES) {
        __m512i sum[TOGETHER];
        UNROLL for (size_t g = 0; g < G; g++) sum[g] = _mm512_setzero_si512();
        UNROLL for (size_t o = 0; o < OCTETS; o++) {
            __m512i bits = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(codes + o * n + i)));
            __m512i first = _mm512_and_si512(bits, low), second = _mm512_or_si512(_mm512_srli_epi16(bits, 4), high);
            UNROLL for (size_t g = 0; g < G; g++) {
                sum[g] = _mm512_add_epi16(sum[g], look_up(first, tables[g][o]));
                sum[g] = _mm512_add_epi16(sum[g], look_up(second, tables[g][o]));
            }
        }
        UNROLL for (size_t g = 0; g < G; g++) {
            float *to = code_sums + g * n + i;
            vec a = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_castsi512_si256(sum[g])));
            vec b = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(sum[g], 1)));
            vec_store(to, vec_fma(a, vec_set(steps[g]), vec_load(to)));
            vec_store(to + LANES, vec_fma(b, vec_set(steps[g]), vec_load(to + LANES)));
        }
    }
}

static void accumulate_by_code_additive(const float *weights, size_t G, size_t n, const uint8_t *codes, float *code_sums) {
    for (size_t left = G, some; left > 0; left -= some, weights += some * PAGE_TOKENS, code_sums += some * n) {
        some = left < TOGETHER ? left : TOGETHER;
        if (some == 4) accumulate_by_code_some(4, weights, n, codes, code_sums);
        if (some == 3) accumulate_by_code_some(3, weights, n, codes, code_sums);
        if (some == 2) accumulate_by_code_some(2, weights, n, codes, code_sums);
        if (some == 1) accumulate_by_code_some(1, weights, n, codes, code_sums);
    }
}
