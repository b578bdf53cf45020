/* CommVQ's values with AVX-512. */
#include "kernels/avx512_lanes.h"
#include "kernels/kernels.h"

static inline vec vec_minus_size(vec a, vec b) { return _mm512_sub_ps(a, _mm512_abs_ps(b)); }

static inline vec vec_tag(vec x, const uint32_t *places) {
    const __m512i keep = _mm512_set1_epi32(~(ADDITIVE_MOST_CODES - 1));
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(_mm512_castps_si512(x), keep, _mm512_loadu_si512(places), 0xea)); /* x & keep | place */
}

static inline vec vec_least(vec a, vec b) { return _mm512_min_ps(a, b); }
static inline float vec_least_lane(vec a) { return _mm512_reduce_min_ps(a); }

static void tally_additive(const float *weights, size_t G, size_t n, const uint8_t *codes, float *tallies);
#define TALLY tally_additive

#include "kernels/additive_template.h"

/* ---- Tallies. Weights become integers of which 64 make no more than 15 bits. All sums of four tokens' are a table of 16, twice in a
 * register, where a permutation of 16-bit numbers looks 32 codes' bits of those tokens up at once, by four bits of each, and lets the
 * bits above be. */

#define TOGETHER 4 /* queries whose sums lie in registers together */
#define QUADS (BLOCK_TOKENS / 4)

/* tables[QUADS] of one query; returns what an integer stands for, 0 where there is nothing to add. */
static float make_tables(const float *weights, __m512i *tables) {
    static const uint16_t bits[4] = {0xaaaa, 0xcccc, 0xf0f0, 0xff00};
    int32_t pairs[BLOCK_TOKENS];
    __m512i mask[4];
    vec size = vec_zero(), w[4];
    UNROLL for (size_t i = 0; i < 4; i++) {
        w[i] = vec_load(weights + i * LANES);
        size = vec_add(size, _mm512_abs_ps(w[i]));
        mask[i] = _mm512_movm_epi16((__mmask32)bits[i] * 0x10001u);
    }
    float sum = _mm512_reduce_add_ps(size), scale = sum > ADDITIVE_NOTHING ? ADDITIVE_WEIGHTS / sum : 0;
    if (!(scale > 0)) return 0;
    UNROLL for (size_t i = 0; i < 4; i++) {
        __m512i x = _mm512_cvtps_epi32(vec_mul(w[i], vec_set(scale)));
        x = _mm512_or_si512(_mm512_slli_epi32(x, 16), _mm512_and_si512(x, _mm512_set1_epi32(0xffff)));
        _mm512_storeu_si512(pairs + i * LANES, x);
    }
    for (size_t q = 0; q < QUADS; q++) {
        __m512i entry = _mm512_and_si512(mask[0], _mm512_set1_epi32(pairs[4 * q]));
        UNROLL for (size_t i = 1; i < 4; i++) entry =
            _mm512_add_epi16(entry, _mm512_and_si512(mask[i], _mm512_set1_epi32(pairs[4 * q + i])));
        tables[q] = entry;
    }
    return 1 / scale;
}

INLINE void tally_some(size_t G, const float *weights, size_t n, const uint8_t *codes, float *tallies) {
    __m512i tables[TOGETHER][QUADS];
    float steps[TOGETHER];
    for (size_t g = 0; g < G; g++) {
        steps[g] = make_tables(weights + g * BLOCK_TOKENS, tables[g]);
        for (size_t q = 0; steps[g] == 0 && q < QUADS; q++) tables[g][q] = _mm512_setzero_si512();
    }
    for (size_t i = 0; i < n; i += 2 * LANES) {
        __m512i sum[TOGETHER];
        UNROLL for (size_t g = 0; g < G; g++) sum[g] = _mm512_setzero_si512();
        UNROLL for (size_t o = 0; o < 8; o++) {
            __m512i low = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(codes + o * n + i)));
            __m512i high = _mm512_srli_epi16(low, 4);
            UNROLL for (size_t g = 0; g < G; g++) {
                sum[g] = _mm512_add_epi16(sum[g], _mm512_permutexvar_epi16(low, tables[g][2 * o]));
                sum[g] = _mm512_add_epi16(sum[g], _mm512_permutexvar_epi16(high, tables[g][2 * o + 1]));
            }
        }
        UNROLL for (size_t g = 0; g < G; g++) {
            float *to = tallies + g * n + i;
            vec first = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_castsi512_si256(sum[g])));
            vec second = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(sum[g], 1)));
            vec_store(to, vec_fma(first, vec_set(steps[g]), vec_load(to)));
            vec_store(to + LANES, vec_fma(second, vec_set(steps[g]), vec_load(to + LANES)));
        }
    }
}

static void tally_additive(const float *weights, size_t G, size_t n, const uint8_t *codes, float *tallies) {
    for (size_t left = G, some; left > 0; left -= some, weights += some * BLOCK_TOKENS, tallies += some * n) {
        some = left < TOGETHER ? left : TOGETHER;
        if (some == 4) tally_some(4, weights, n, codes, tallies);
        if (some == 3) tally_some(3, weights, n, codes, tallies);
        if (some == 2) tally_some(2, weights, n, codes, tallies);
        if (some == 1) tally_some(1, weights, n, codes, tallies);
    }
}
