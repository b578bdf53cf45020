/* Selects tokens with AVX2 and F16C: scores of indexes, top-k, packing. */
#include "backend/cpu/kernels/select/init.h"
#include "format/page_layout.h"

#include <immintrin.h>
#include <string.h>

/* Pages follow one another in memory, so the bytes that lie so far ahead are read soon (see lanes/sums_template.h). */
#define PREFETCH_BYTES 8192

/* ---- Scores: as avx512.c, half a page at a time */

static inline __m256i table_of(const uint8_t *table) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
}

static void scores_sign_avx2(const uint8_t *tables, size_t n, const uint8_t *planes, uint16_t *scores) {
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i all[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}, odd[2] = {all[0], all[0]};
    for (size_t j = 0; j < n; j++, tables += 32, planes += PAGE_TOKENS) {
        __builtin_prefetch((const void *)((uintptr_t)planes + PREFETCH_BYTES));
        __m256i low = table_of(tables), high = table_of(tables + 16);
        for (size_t half = 0; half < 2; half++) {
            __m256i codes = _mm256_loadu_si256((const __m256i *)(planes + 32 * half));
            __m256i a = _mm256_shuffle_epi8(low, _mm256_and_si256(codes, nibble));
            __m256i b = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble));
            all[half] = _mm256_add_epi16(all[half], _mm256_add_epi16(a, b));
            odd[half] = _mm256_add_epi16(odd[half], _mm256_add_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8)));
        }
    }
    for (size_t half = 0; half < 2; half++) {
        __m256i evens = _mm256_sub_epi16(all[half], _mm256_slli_epi16(odd[half], 8));
        __m256i first = _mm256_unpacklo_epi16(evens, odd[half]), second = _mm256_unpackhi_epi16(evens, odd[half]);
        _mm256_storeu_si256((__m256i *)(scores + 32 * half), _mm256_permute2x128_si256(first, second, 0x20));
        _mm256_storeu_si256((__m256i *)(scores + 32 * half + 16), _mm256_permute2x128_si256(first, second, 0x31));
    }
}

static inline __m256 halves(const uint16_t *x) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x)); }

static inline float add_lanes(__m256 x) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

static void scores_quest_avx2(const float *q, size_t hd, const void *page, float *bounds) {
    const uint16_t *least = page;
    for (size_t p = 0; p < PAGE_TOKENS / QUEST_PAGE_TOKENS; p++, least += 2 * hd) {
        __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        for (size_t c = 0; c < hd; c += 16) {
            for (size_t i = 0; i < 2; i++) {
                size_t at = c + 8 * i;
                __m256 x = _mm256_loadu_ps(q + at);
                __m256 larger = _mm256_max_ps(_mm256_mul_ps(x, halves(least + at)), _mm256_mul_ps(x, halves(least + hd + at)));
                sum[i] = _mm256_add_ps(sum[i], larger);
            }
        }
        bounds[p] = add_lanes(_mm256_add_ps(sum[0], sum[1]));
    }
}

/* ---- Counting and listing */

#define MOST_COUNTED 32767 /* by a counter of 16 bits whose sums are signed */

/* Returns all ones where x >= limit, for which AVX2 has no comparison of unsigned numbers. */
static inline __m256i at_least(__m256i x, __m256i limit) { return _mm256_cmpeq_epi16(_mm256_max_epu16(x, limit), x); }

static size_t add_counters(__m256i x) {
    __m256i pairs = _mm256_madd_epi16(x, _mm256_set1_epi16(1));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return (size_t)(_mm_cvtsi128_si32(four) + _mm_extract_epi32(four, 1));
}

static size_t count_scores_avx2(const uint16_t *scores, size_t n, uint16_t least) {
    const __m256i limit = _mm256_set1_epi16((short)least);
    size_t count = 0, i = 0;
    while (i + 32 <= n) {
        size_t steps = (n - i) / 32;
        __m256i a = _mm256_setzero_si256(), b = a;
        for (steps = steps < MOST_COUNTED ? steps : MOST_COUNTED; steps; steps--, i += 32) {
            a = _mm256_sub_epi16(a, at_least(_mm256_loadu_si256((const __m256i *)(scores + i)), limit));
            b = _mm256_sub_epi16(b, at_least(_mm256_loadu_si256((const __m256i *)(scores + i + 16)), limit));
        }
        count += add_counters(a) + add_counters(b);
    }
    for (; i < n; i++) count += scores[i] >= least;
    return count;
}

/* Returns a bit for each of 32 tokens. */
static inline uint32_t flags(__m256i first, __m256i second) {
    return (uint32_t)_mm256_movemask_epi8(_mm256_permute4x64_epi64(_mm256_packs_epi16(first, second), 0xd8));
}

static size_t list_scores_avx2(const uint16_t *scores, size_t n, uint16_t threshold, size_t skip, uint32_t *tokens) {
    const __m256i limit = _mm256_set1_epi16((short)threshold);
    size_t count = 0, i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(scores + i)), b = _mm256_loadu_si256((const __m256i *)(scores + i + 16));
        uint32_t found = flags(at_least(a, limit), at_least(b, limit));
        if (skip) {
            uint32_t equal = flags(_mm256_cmpeq_epi16(a, limit), _mm256_cmpeq_epi16(b, limit));
            found &= ~equal;
            for (; skip && equal; skip--) equal &= equal - 1;
            found |= equal;
        }
        for (; found; found &= found - 1) tokens[count++] = (uint32_t)i + (uint32_t)__builtin_ctz(found);
    }
    for (; i < n; i++) {
        if (scores[i] < threshold) continue;
        if (scores[i] == threshold && skip)
            skip--;
        else
            tokens[count++] = (uint32_t)i;
    }
    return count;
}

/* ---- Packing: a few tokens of many planes, one by one */

static inline void gather_halves(const uint8_t *in, const uint8_t *slots, size_t n, uint8_t *out, size_t at) {
    for (size_t i = 0; i < n; i++) memcpy(out + 2 * (at + i), in + 2 * slots[i], 2);
}

static inline void gather_bytes(const uint8_t *in, const uint8_t *slots, size_t n, uint8_t *out, size_t at) {
    for (size_t i = 0; i < n; i++) out[at + i] = in[slots[i]];
}

/* Gathers a plane of 1, 2 or 4 bits. */
static inline void gather_parts(unsigned part, const uint8_t *in, const uint8_t *slots, size_t n, uint8_t *out, size_t at) {
    const unsigned mask = (1u << part) - 1;
    for (size_t i = 0; i < n; i++) {
        size_t read = slots[i] * (size_t)part, written = (at + i) * part;
        unsigned code = in[read / 8] >> read % 8 & mask;
        out[written / 8] = (uint8_t)((out[written / 8] & ~(mask << written % 8)) | code << written % 8);
    }
}

static void gather_codes_avx2(const void *from, size_t parts, unsigned bits, const uint8_t *slots, size_t n, void *to, size_t at) {
    const uint8_t *in = from;
    uint8_t *out = to;
    for (size_t m = 0; m < parts; m++, in += PAGE_PQ_PART(bits), out += PAGE_PQ_PART(bits)) {
        size_t done = 0;
        if (bits & 16) gather_halves(in, slots, n, out, at), done += PAGE_PQ_PART(16);
        if (bits & 8) gather_bytes(in + done, slots, n, out + done, at), done += PAGE_PQ_PART(8);
        if (bits & 4) gather_parts(4, in + done, slots, n, out + done, at), done += PAGE_PQ_PART(4);
        if (bits & 2) gather_parts(2, in + done, slots, n, out + done, at), done += PAGE_PQ_PART(2);
        if (bits & 1) gather_parts(1, in + done, slots, n, out + done, at);
    }
}

void select_init_avx2(struct select_ops *ops) {
    ops->scores_sign = scores_sign_avx2;
    ops->scores_quest = scores_quest_avx2;
    ops->count_scores = count_scores_avx2;
    ops->list_scores = list_scores_avx2;
    ops->gather_codes = gather_codes_avx2;
}
