/* Chooses and packs tokens with AVX-512 (and its permutation of bytes, VBMI). */
#include "backend/cpu/kernels/select/init.h"
#include "format/page_layout.h"

#include <immintrin.h>
#include <string.h>

/* Blocks follow one another in memory, so the bytes that lie so far ahead are read soon (see sums_template.h). */
#define PREFETCH_BYTES 8192

/* ---- Scores */

/* Look-ups are bytes and sums 16 bits, apart for even tokens and odd ones. Whole registers added as 16-bit numbers hold the even
 * tokens' sums and, in carries that overflow, 256 times the odd ones', which their own sums then subtract. */
static void scores_sign_avx512(const uint8_t *tables, size_t n, const uint8_t *planes, uint16_t *scores) {
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512i all[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()}, odd[2] = {all[0], all[0]};
    for (size_t j = 0; j < n; j++, tables += 32, planes += PAGE_TOKENS) {
        __builtin_prefetch((const void *)((uintptr_t)planes + PREFETCH_BYTES));
        __m512i codes = _mm512_loadu_si512(planes);
        __m512i low = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)tables));
        __m512i high = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(tables + 16)));
        low = _mm512_shuffle_epi8(low, _mm512_and_si512(codes, nibble));
        high = _mm512_shuffle_epi8(high, _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble));
        all[0] = _mm512_add_epi16(all[0], low);
        all[1] = _mm512_add_epi16(all[1], high);
        odd[0] = _mm512_add_epi16(odd[0], _mm512_srli_epi16(low, 8));
        odd[1] = _mm512_add_epi16(odd[1], _mm512_srli_epi16(high, 8));
    }
    __m512i odds = _mm512_add_epi16(odd[0], odd[1]);
    __m512i evens = _mm512_sub_epi16(_mm512_add_epi16(all[0], all[1]), _mm512_slli_epi16(odds, 8));
    __m512i first = _mm512_unpacklo_epi16(evens, odds), second = _mm512_unpackhi_epi16(evens, odds); /* by quarters */
    const __m512i lower = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), upper = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    _mm512_storeu_si512(scores, _mm512_permutex2var_epi64(first, lower, second));
    _mm512_storeu_si512(scores + 32, _mm512_permutex2var_epi64(first, upper, second));
}

static void scores_quest_avx512(const float *q, size_t hd, const void *page, float *bounds) {
    const uint16_t *least = page;
    for (size_t p = 0; p < PAGE_TOKENS / QUEST_PAGE_TOKENS; p++, least += 2 * hd) {
        __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (size_t c = 0; c < hd; c += 32) {
            for (size_t i = 0; i < 2; i++) {
                const uint16_t *at = least + c + 16 * i;
                __m512 x = _mm512_loadu_ps(q + c + 16 * i);
                __m512 a = _mm512_mul_ps(x, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at)));
                __m512 b = _mm512_mul_ps(x, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(at + hd))));
                sum[i] = _mm512_add_ps(sum[i], _mm512_max_ps(a, b));
            }
        }
        bounds[p] = _mm512_reduce_add_ps(_mm512_add_ps(sum[0], sum[1]));
    }
}

/* ---- Counting and listing */

#define COUNTERS 4
#define MOST_COUNTED 32767 /* by a counter of 16 bits whose sums are signed */

static size_t count_scores_avx512(const uint16_t *scores, size_t n, uint16_t least) {
    const __m512i limit = _mm512_set1_epi16((short)least), one = _mm512_set1_epi16(1);
    size_t count = 0, i = 0;
    while (i + 32 * COUNTERS <= n) {
        size_t steps = (n - i) / (32 * COUNTERS);
        __m512i counter[COUNTERS] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
                                     _mm512_setzero_si512()};
        for (steps = steps < MOST_COUNTED ? steps : MOST_COUNTED; steps; steps--) {
            for (size_t j = 0; j < COUNTERS; j++, i += 32) {
                __mmask32 found = _mm512_cmpge_epu16_mask(_mm512_loadu_si512(scores + i), limit);
                counter[j] = _mm512_mask_add_epi16(counter[j], found, counter[j], one);
            }
        }
        for (size_t j = 0; j < COUNTERS; j++) count += (size_t)_mm512_reduce_add_epi32(_mm512_madd_epi16(counter[j], one));
    }
    for (; i < n; i += 32) {
        __mmask32 lanes = n - i >= 32 ? 0xffffffffu : ((__mmask32)1 << (n - i)) - 1;
        __m512i x = _mm512_maskz_loadu_epi16(lanes, scores + i);
        count += (size_t)__builtin_popcount(_mm512_mask_cmpge_epu16_mask(lanes, x, limit));
    }
    return count;
}

/* Returns all of `equal` but the first *skip. */
static inline __mmask32 skip_equal(__mmask32 equal, size_t *skip) {
    size_t count = (size_t)__builtin_popcount(equal);
    if (count <= *skip) {
        *skip -= count;
        return 0;
    }
    for (; *skip; --*skip) equal &= equal - 1;
    return equal;
}

static size_t list_scores_avx512(const uint16_t *scores, size_t n, uint16_t threshold, size_t skip, uint32_t *tokens) {
    const __m512i limit = _mm512_set1_epi16((short)threshold);
    __m512i place = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    uint32_t *to = tokens;
    for (size_t i = 0; i < n; i += 32) {
        __mmask32 lanes = n - i >= 32 ? 0xffffffffu : ((__mmask32)1 << (n - i)) - 1;
        __m512i x = _mm512_maskz_loadu_epi16(lanes, scores + i);
        __mmask32 found = _mm512_mask_cmpge_epu16_mask(lanes, x, limit);
        if (skip) {
            __mmask32 equal = _mm512_mask_cmpeq_epi16_mask(lanes, x, limit);
            found = (found & ~equal) | skip_equal(equal, &skip);
        }
        for (unsigned half = 0; half < 2; half++, found >>= 16) {
            __mmask16 these = (__mmask16)found;
            unsigned count = (unsigned)__builtin_popcount(these);
            _mm512_mask_storeu_epi32(to, (__mmask16)((1u << count) - 1), _mm512_maskz_compress_epi32(these, place));
            place = _mm512_add_epi32(place, _mm512_set1_epi32(16));
            to += count;
        }
    }
    return (size_t)(to - tokens);
}

/* ---- Packing: a plane of 64 bytes is permuted at once, narrower ones are widened to bytes before and made narrow again */

struct gathered {
    __m512i from;    /* byte of each slot */
    __mmask64 slots; /* that are written */
};

static inline __m256i to_nibbles(__m512i x) {
    return _mm512_cvtepi16_epi8(_mm512_maddubs_epi16(x, _mm512_set1_epi16(1 + (16 << 8))));
}

static inline __m128i to_pairs(__m512i x) {
    __m512i fours = _mm512_madd_epi16(_mm512_maddubs_epi16(x, _mm512_set1_epi16(1 + (4 << 8))), _mm512_set1_epi32(1 + (16 << 16)));
    return _mm512_cvtepi32_epi8(fours);
}

static inline __m512i from_nibbles(const uint8_t *plane) {
    __m512i x = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)plane));
    return _mm512_and_si512(_mm512_or_si512(x, _mm512_slli_epi16(x, 4)), _mm512_set1_epi8(15));
}

static inline __m512i from_pairs(const uint8_t *plane) {
    __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)plane));
    x = _mm512_or_si512(x, _mm512_slli_epi32(x, 12));
    return _mm512_and_si512(_mm512_or_si512(x, _mm512_slli_epi32(x, 6)), _mm512_set1_epi8(3));
}

static const uint8_t ascending[PAGE_TOKENS] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
    32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

static struct gathered gathered_slots(const uint8_t *slots, size_t n, size_t at) {
    const __mmask64 all = n < 64 ? ((__mmask64)1 << n) - 1 : ~(__mmask64)0;
    const __m512i places = _mm512_loadu_si512(ascending);
    struct gathered gathered = {.slots = all << at};
    gathered.from =
        _mm512_permutexvar_epi8(_mm512_sub_epi8(places, _mm512_set1_epi8((char)at)), _mm512_maskz_loadu_epi8(all, slots));
    return gathered;
}

static void gather_halves(const struct gathered *gathered, size_t planes, const uint8_t *from, uint8_t *to) {
    const __m512i first = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(gathered->from));
    const __m512i second = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(gathered->from, 1));
    const __mmask32 low = (__mmask32)gathered->slots, high = (__mmask32)(gathered->slots >> 32);
    for (size_t m = 0; m < planes; m++, from += 128, to += 128) {
        __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 64);
        if (low) _mm512_mask_storeu_epi16(to, low, _mm512_permutex2var_epi16(a, first, b));
        if (high) _mm512_mask_storeu_epi16(to + 64, high, _mm512_permutex2var_epi16(a, second, b));
    }
}

static inline void gather_bytes(const struct gathered *gathered, const uint8_t *from, uint8_t *to) {
    _mm512_mask_storeu_epi8(to, gathered->slots, _mm512_permutexvar_epi8(gathered->from, _mm512_loadu_si512(from)));
}

static inline void gather_nibbles(const struct gathered *gathered, __m256i written, const uint8_t *from, uint8_t *to) {
    __m256i x = to_nibbles(_mm512_permutexvar_epi8(gathered->from, from_nibbles(from))), old = _mm256_loadu_si256((__m256i *)to);
    _mm256_storeu_si256((__m256i *)to, _mm256_or_si256(_mm256_and_si256(written, x), _mm256_andnot_si256(written, old)));
}

static inline void gather_pairs(const struct gathered *gathered, __m128i written, const uint8_t *from, uint8_t *to) {
    __m128i x = to_pairs(_mm512_permutexvar_epi8(gathered->from, from_pairs(from))), old = _mm_loadu_si128((__m128i *)to);
    _mm_storeu_si128((__m128i *)to, _mm_or_si128(_mm_and_si128(written, x), _mm_andnot_si128(written, old)));
}

static inline void gather_bits(const struct gathered *gathered, const uint8_t *from, uint8_t *to) {
    uint64_t in, old;
    memcpy(&in, from, sizeof in);
    memcpy(&old, to, sizeof old);
    in = _mm512_movepi8_mask(_mm512_permutexvar_epi8(gathered->from, _mm512_movm_epi8(in)));
    old = (old & ~gathered->slots) | (in & gathered->slots);
    memcpy(to, &old, sizeof old);
}

/* Gathers codes of several planes each. */
static void gather_planes(const struct gathered *gathered, size_t parts, unsigned bits, const uint8_t *in, uint8_t *out) {
    const __m256i nibbles = to_nibbles(_mm512_maskz_set1_epi8(gathered->slots, 15));
    const __m128i pairs = to_pairs(_mm512_maskz_set1_epi8(gathered->slots, 3));
    for (size_t m = 0; m < parts; m++, in += PAGE_PQ_PART(bits), out += PAGE_PQ_PART(bits)) {
        size_t done = 0;
        if (bits & 8) gather_bytes(gathered, in + done, out + done), done += PAGE_PQ_PART(8);
        if (bits & 4) gather_nibbles(gathered, nibbles, in + done, out + done), done += PAGE_PQ_PART(4);
        if (bits & 2) gather_pairs(gathered, pairs, in + done, out + done), done += PAGE_PQ_PART(2);
        if (bits & 1) gather_bits(gathered, in + done, out + done);
    }
}

static void gather_codes_avx512(const void *from, size_t parts, unsigned bits, const uint8_t *slots, size_t n, void *to,
                                size_t at) {
    if (!n) return;
    const struct gathered gathered = gathered_slots(slots, n, at);
    if (bits == 16) {
        gather_halves(&gathered, parts, from, to);
    } else if (bits == 8) {
        for (size_t m = 0; m < parts * PAGE_TOKENS; m += PAGE_TOKENS)
            gather_bytes(&gathered, (const uint8_t *)from + m, (uint8_t *)to + m);
    } else {
        gather_planes(&gathered, parts, bits, from, to);
    }
}

void select_init_avx512(struct select_ops *ops) {
    ops->scores_sign = scores_sign_avx512;
    ops->scores_quest = scores_quest_avx512;
    ops->count_scores = count_scores_avx512;
    ops->list_scores = list_scores_avx512;
    ops->gather_codes = gather_codes_avx512;
}
