/* CommVQ's keys with AVX-512 (and its permutation of bytes, VBMI). */
#include "kernels/avx2_shorts.h"
#include "kernels/avx512_lanes.h"
#include "kernels/comm.h"

#include <stdbool.h>

static inline vec vec_shorts(const int16_t *x) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)x)));
}

static inline void vec_lower(vec s, vec j, vec *best, vec *at) {
    __mmask16 less = _mm512_cmp_ps_mask(s, *best, _CMP_LT_OQ);
    *best = _mm512_mask_mov_ps(*best, less, s);
    *at = _mm512_mask_mov_ps(*at, less, j);
}

static inline bool vec_any_less(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) != 0; }

static void channels_comm(const struct comm_code *c, const float *gains, const void *codes, float *channels);
#define CHANNELS channels_comm

#include "kernels/comm_template.h"

/* ---- Looked up in registers: a permutation of bytes is 64 look-ups in a table of 64, of which a round has two for each number,
 * and the indices are in order from the planes. Their sum still is a byte; it goes to sums of 16 bits, those of even bytes and of
 * odd ones. */

struct indices {
    __m512i a[COMM_MOST_ROUNDS], b[COMM_MOST_ROUNDS]; /* permutations look at six bits and let the others be */
};

/* Byte 2 t is token t's, byte 2 t + 1 that of token 32 + t. */
static void read_indices(const struct comm_code *c, const void *codes, size_t group, struct indices *indices) {
    const uint8_t *planes = (const uint8_t *)codes + group * c->rounds * COMM_PART;
    for (size_t r = 0; r < c->rounds; r++, planes += COMM_PART) {
        uint16_t code[BLOCK_TOKENS];
        code_planes_read(planes, COMM_BITS, code);
        __m512i first = _mm512_loadu_si512(code), second = _mm512_loadu_si512(code + 32);
        indices->a[r] = _mm512_or_si512(_mm512_and_si512(first, _mm512_set1_epi16(63)), _mm512_slli_epi16(second, 8));
        indices->b[r] = _mm512_or_si512(_mm512_srli_epi16(first, 6), _mm512_slli_epi16(_mm512_srli_epi16(second, 6), 8));
    }
}

INLINE void pair_channel(__m512i even, __m512i odd, int bias, float step, float mean, const float *gains, float *channel) {
    __m512i sum[2] = {_mm512_sub_epi16(even, _mm512_set1_epi16((short)bias)),
                      _mm512_sub_epi16(odd, _mm512_set1_epi16((short)bias))};
    UNROLL for (size_t i = 0; i < 4; i++) {
        __m256i half = i % 2 ? _mm512_extracti64x4_epi64(sum[i / 2], 1) : _mm512_castsi512_si256(sum[i / 2]);
        vec gain = vec_mul(vec_load(gains + i * LANES), vec_set(step)), x = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(half));
        vec_store(channel + i * LANES, vec_fma(gain, x, vec_set(mean)));
    }
}

static void channels_comm(const struct comm_code *c, const float *gains, const void *codes, float *channels) {
    const __m512i low = _mm512_set1_epi16(255);
    struct indices indices;
    if (!c->planes) {
        channels_by_rows(c, gains, codes, channels);
        return;
    }
    for (size_t k = 0; k < c->groups; k++) {
        const uint8_t *at = c->channels + k * 2 * c->pairs, *planes = c->planes + k * c->pairs * c->rounds * 3 * COMM_ENTRIES;
        read_indices(c, codes, k, &indices);
        for (size_t j = 0; j < c->pairs; j++) {
            __m512i re_even = _mm512_setzero_si512(), re_odd = re_even, im_even = re_even, im_odd = re_even;
            for (size_t r = 0; r < c->rounds; r++, planes += 3 * COMM_ENTRIES) {
                __m512i re = _mm512_loadu_si512(planes), im = _mm512_loadu_si512(planes + 64), a = indices.a[r], b = indices.b[r];
                __m512i x =
                    _mm512_add_epi8(_mm512_permutexvar_epi8(a, re), _mm512_permutexvar_epi8(b, _mm512_loadu_si512(planes + 128)));
                __m512i y = _mm512_add_epi8(_mm512_permutexvar_epi8(a, im), _mm512_permutexvar_epi8(b, re));
                re_even = _mm512_add_epi16(re_even, _mm512_and_si512(x, low));
                re_odd = _mm512_add_epi16(re_odd, _mm512_srli_epi16(x, 8));
                im_even = _mm512_add_epi16(im_even, _mm512_and_si512(y, low));
                im_odd = _mm512_add_epi16(im_odd, _mm512_srli_epi16(y, 8));
            }
            int bias = 128 * (int)c->rounds;
            float step = c->steps[k * c->stride + j];
            size_t first = at[j], second = at[c->pairs + j];
            pair_channel(re_even, re_odd, bias, step, c->mean[first], gains, channels + first * BLOCK_TOKENS);
            pair_channel(im_even, im_odd, bias, step, c->mean[second], gains, channels + second * BLOCK_TOKENS);
        }
    }
}
