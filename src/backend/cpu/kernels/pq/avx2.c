/* Implements product quantization with AVX2, FMA and F16C. Centroids of 8-bit codes, the usual ones, are put together in registers:
 * through memory, as the template does it, each would take one load and one store more, and loads and stores bound the speed. */
#include "backend/cpu/kernels/lanes/avx2.h"

typedef __m256i wide;
#define WIDE_PARTS 2

static inline wide wide_load(const uint16_t *x) { return _mm256_loadu_si256((const __m256i *)x); }
static inline void wide_store(uint16_t *to, wide x) { _mm256_storeu_si256((__m256i *)to, x); }
static inline wide wide_low_16(wide a, wide b) { return _mm256_unpacklo_epi16(a, b); }
static inline wide wide_high_16(wide a, wide b) { return _mm256_unpackhi_epi16(a, b); }
static inline wide wide_low_32(wide a, wide b) { return _mm256_unpacklo_epi32(a, b); }
static inline wide wide_high_32(wide a, wide b) { return _mm256_unpackhi_epi32(a, b); }
static inline wide wide_low_64(wide a, wide b) { return _mm256_unpacklo_epi64(a, b); }
static inline wide wide_high_64(wide a, wide b) { return _mm256_unpackhi_epi64(a, b); }

#include "backend/cpu/kernels/pq/avx2_internal.h"
#include "backend/cpu/kernels/pq/init.h"

static void decode_chunk(const struct pq_codebook *p, const void *page, size_t m, size_t n, uint16_t *halves);
#define DECODE_CHUNK decode_chunk
#include "backend/cpu/kernels/pq/template.h"

#define TABLE(width) (256 * (size_t)(width)) /* halves of a sub-vector's centroids */

/* These repeat the row of a code in every dword, or qword. Rows are put together by blending: loads that broadcast and blends run
 * on several ports, insertions, which compilers would make of intrinsics, on one. */
INLINE __m128i two_halves(const uint16_t *rows, uint8_t code) {
    __m128i x;
    __asm__("vpbroadcastd %1, %0" : "=x"(x) : "m"(*(const uint16_t(*)[2])(rows + 2 * (size_t)code)));
    return x;
}

INLINE __m128i four_halves(const uint16_t *rows, uint8_t code) {
    __m128i x;
    __asm__("vpbroadcastq %1, %0" : "=x"(x) : "m"(*(const uint16_t(*)[4])(rows + 4 * (size_t)code)));
    return x;
}

/* ---- Keys: eight tokens of a sub-vector are transposed ------------------------------------------------------------------ */

INLINE __m128i four_tokens(const uint16_t *rows, const uint8_t *codes) {
    __m128i x = _mm_blend_epi32(two_halves(rows, codes[0]), two_halves(rows, codes[1]), 2);
    return _mm_blend_epi32(x, _mm_blend_epi32(two_halves(rows, codes[2]), two_halves(rows, codes[3]), 8), 12);
}

INLINE __m128i two_tokens(const uint16_t *rows, const uint8_t *codes) {
    return _mm_blend_epi32(four_halves(rows, codes[0]), four_halves(rows, codes[1]), 12);
}

INLINE __m256i two_parts(__m128i low, __m128i high) { return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1); }

/* Stores two channels; each part of x has four tokens of one channel and four of the next. */
INLINE void store_channels(__m256i x, uint16_t *to) {
    x = _mm256_permute4x64_epi64(x, 0xd8);
    _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(x));
    _mm_storeu_si128((__m128i *)(to + PAGE_TOKENS), _mm256_extracti128_si256(x, 1));
}

INLINE void decode_twos(const uint16_t *rows, const uint8_t *codes, uint16_t *halves) {
    for (size_t t = 0; t < PAGE_TOKENS; t += 8) {
        __m256i x = two_parts(four_tokens(rows, codes + t), four_tokens(rows, codes + t + 4));
        __m256i first = _mm256_and_si256(x, _mm256_set1_epi32(0xffff)), second = _mm256_srli_epi32(x, 16);
        store_channels(_mm256_packus_epi32(first, second), halves + t);
    }
}

INLINE void decode_fours(const uint16_t *rows, const uint8_t *codes, uint16_t *halves) {
    for (size_t t = 0; t < PAGE_TOKENS; t += 8) {
        __m256i a = two_parts(two_tokens(rows, codes + t), two_tokens(rows, codes + t + 4));
        __m256i b = two_parts(two_tokens(rows, codes + t + 2), two_tokens(rows, codes + t + 6));
        __m256i even = _mm256_unpacklo_epi16(a, b), odd = _mm256_unpackhi_epi16(a, b); /* tokens alternate */
        store_channels(_mm256_unpacklo_epi16(even, odd), halves + t);
        store_channels(_mm256_unpackhi_epi16(even, odd), halves + t + 2 * PAGE_TOKENS);
    }
}

/* Decodes eight channels of `width`. */
INLINE void decode_eights(const uint16_t *rows, size_t width, const uint8_t *codes, uint16_t *halves) {
    for (size_t t = 0; t < PAGE_TOKENS; t += 8) {
        __m256i x[4];
        UNROLL for (size_t i = 0; i < 4; i++) {
            const uint16_t *low = rows + codes[t + i] * width, *high = rows + codes[t + i + 4] * width;
            x[i] = two_parts(_mm_loadu_si128((const __m128i *)low), _mm_loadu_si128((const __m128i *)high));
        }
        UNROLL for (size_t i = 0; i < 2; i++) {
            __m256i even = i ? _mm256_unpackhi_epi16(x[0], x[2]) : _mm256_unpacklo_epi16(x[0], x[2]);
            __m256i odd = i ? _mm256_unpackhi_epi16(x[1], x[3]) : _mm256_unpacklo_epi16(x[1], x[3]);
            store_channels(_mm256_unpacklo_epi16(even, odd), halves + t + 4 * i * PAGE_TOKENS);
            store_channels(_mm256_unpackhi_epi16(even, odd), halves + t + (4 * i + 2) * PAGE_TOKENS);
        }
    }
}

static void decode_chunk(const struct pq_codebook *p, const void *page, size_t m, size_t n, uint16_t *halves) {
    if (p->bits != 8 || (p->width != 2 && p->width != 4 && p->width % 8)) {
        decode_by_rows(p, page, m, n, halves);
        return;
    }
    for (; n > 0; n--, m++, halves += p->width * PAGE_TOKENS) {
        const uint8_t *codes = (const uint8_t *)page + m * PAGE_TOKENS;
        prefetch_step(codes, 0, PAGE_TOKENS);
        if (p->width == 2) decode_twos(pq_rows(p, m), codes, halves);
        if (p->width == 4) decode_fours(pq_rows(p, m), codes, halves);
        for (size_t i = 0; p->width % 8 == 0 && i < p->width; i += 8)
            decode_eights(pq_rows(p, m) + i, p->width, codes, halves + i * PAGE_TOKENS);
    }
}

/* ---- Values: eight channels of a token, multiplied by the weights at once ---------------------------------------------------- */

struct byte_codes {
    const struct pq_codebook *p;
    const uint8_t *codes; /* [parts][64] */
};

/* Returns eight channels of the token whose first code is at `codes`; `rows` is the table of that code's sub-vector. */
INLINE vec eight_channels(size_t width, const uint16_t *rows, const uint8_t *codes) {
    const size_t table = TABLE(width);
    __m128i x;
    if (width == 2) {
        __m128i a = two_halves(rows, *codes), b = two_halves(rows + table, codes[PAGE_TOKENS]);
        __m128i c = two_halves(rows + 2 * table, codes[2 * PAGE_TOKENS]), d = two_halves(rows + 3 * table, codes[3 * PAGE_TOKENS]);
        x = _mm_blend_epi32(_mm_blend_epi32(a, b, 2), _mm_blend_epi32(c, d, 8), 12);
    } else {
        x = _mm_blend_epi32(four_halves(rows, *codes), four_halves(rows + table, codes[PAGE_TOKENS]), 12);
    }
    return _mm256_cvtph_ps(x);
}

/* Adds to acc[G][16 of hd] the 16 channels from channel c on. */
INLINE void accumulate_sixteen(size_t G, size_t width, const struct byte_codes *b, size_t c, const float *weights, float *acc) {
    const size_t hd = pq_channels(b->p), parts = LANES / width;
    const uint16_t *rows = pq_rows(b->p, c / width), *next = rows + parts * TABLE(width);
    const uint8_t *codes = b->codes + c / width * PAGE_TOKENS;
    sums sum;
    sums_clear(G, 2, sum);
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        vec x[2] = {eight_channels(width, rows, codes + t), eight_channels(width, next, codes + parts * PAGE_TOKENS + t)};
        if (t < 2 * parts) prefetch_step(codes, t, PAGE_TOKENS);
        sums_add(G, 2, weights + t, PAGE_TOKENS, x, sum);
    }
    sums_store(G, 2, sum, true, acc + c, hd, LANES);
}

INLINE void accumulate_twos(size_t G, const void *what, const float *weights, float *acc) {
    const struct byte_codes *b = what;
    for (size_t c = 0; c < pq_channels(b->p); c += 2 * LANES) accumulate_sixteen(G, 2, b, c, weights, acc);
}

INLINE void accumulate_fours(size_t G, const void *what, const float *weights, float *acc) {
    const struct byte_codes *b = what;
    for (size_t c = 0; c < pq_channels(b->p); c += 2 * LANES) accumulate_sixteen(G, 4, b, c, weights, acc);
}

PQ_KERNELS(accumulate_twos)
PQ_KERNELS(accumulate_fours)

static void accumulate_pq(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *acc) {
    struct byte_codes b = {p, page};
    if (p->bits == 8 && (p->width == 2 || p->width == 4))
        call_pq_kernels(p->width == 2 ? accumulate_twos_of : accumulate_fours_of, &b, weights, PAGE_TOKENS, G, acc, pq_channels(p));
    else
        accumulate_pq_avx2(p, weights, G, page, acc);
}

static void score_pq(const struct pq_codebook *p, const float *q, size_t G, const void *page, float *logits) {
    (p->rows_i16 ? pq_avx2_score_rows : score_pq_avx2)(p, q, G, page, logits);
}

void pq_init_avx2(struct pq_ops *ops) {
    fill_pq(ops);
    ops->reads_rows_i16 = true;
    ops->score = score_pq;
    ops->quantize_query = pq_avx2_quantize_query;
    ops->score_i16 = pq_avx2_score_i16;
    ops->accumulate = accumulate_pq;
    ops->accumulate_int8 = accumulate_pq;
}
