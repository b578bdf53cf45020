/* Reads keys and values by rows of centroids of 8 bits with AVX-512, for codes of more than eight bits. Tables of 4,096 centroids
 * are too large for look-ups in registers, and the number of lines of the second-level cache that reading takes bounds its speed;
 * four channels of a token are one dword, sixteen one load. */
#include "backend/cpu/kernels/pq/avx512_internal.h"
#include "backend/cpu/kernels/pq/code_planes.h"

/* Reads the 64 codes of twelve bits: words[2]. */
INLINE void codes_of_twelve_bits(const uint8_t *planes, __m512i *words) {
    __m512i bytes = _mm512_loadu_si512(planes);
    __m512i pairs = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(planes + PAGE_PQ_PART(8))));
    __m512i above = _mm512_and_si512(_mm512_or_si512(pairs, _mm512_slli_epi16(pairs, 4)), _mm512_set1_epi8(15));
    __m512i low = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(above));
    __m512i high = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(above, 1));
    words[0] = _mm512_or_si512(_mm512_cvtepu8_epi16(_mm512_castsi512_si256(bytes)), _mm512_slli_epi16(low, 8));
    words[1] = _mm512_or_si512(_mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(bytes, 1)), _mm512_slli_epi16(high, 8));
}

static __attribute__((noinline)) void codes_of_any_bits(const uint8_t *planes, unsigned bits, uint16_t *words) {
    code_planes_read(planes, bits, words);
}

/* Finds where the rows of sub-vector m's 64 codes begin in its table: at[4]. */
INLINE void row_offsets(const struct pq_codebook *p, const void *page, size_t m, __m512i *at) {
    const uint8_t *planes = (const uint8_t *)page + m * PAGE_PQ_PART(p->bits);
    const __m512i width = _mm512_set1_epi32((int)p->width);
    __m512i words[2];
    uint16_t codes[PAGE_TOKENS];
    if (p->bits == 12) {
        codes_of_twelve_bits(planes, words);
    } else {
        codes_of_any_bits(planes, p->bits, codes);
        words[0] = _mm512_loadu_si512(codes);
        words[1] = _mm512_loadu_si512(codes + 32);
    }
    UNROLL for (size_t v = 0; v < 4; v++) {
        __m256i part = v % 2 ? _mm512_extracti64x4_epi64(words[v / 2], 1) : _mm512_castsi512_si256(words[v / 2]);
        at[v] = _mm512_mullo_epi32(_mm512_cvtepu16_epi32(part), width);
    }
}

/* Finds the offsets of all sub-vectors. */
INLINE void all_row_offsets(const struct page_view *view, uint32_t (*offsets)[PAGE_TOKENS]) {
    const struct pq_codebook *p = view->p;
    for (size_t m = 0; m < p->parts; m++) {
        __m512i at[4];
        prefetch_step(view->page, m, PAGE_PQ_PART(p->bits));
        row_offsets(p, view->page, m, at);
        UNROLL for (size_t v = 0; v < 4; v++) _mm512_storeu_si512(offsets[m] + 16 * v, at[v]);
    }
}

static const uint8_t *centroid_rows_u8(const struct pq_codebook *p, size_t m) {
    return p->centroid_rows_u8 + m * pq_centroids(p) * p->width;
}

/* Loads the dword at `from` to those places of x that the mask has. */
INLINE __m256i load_dword(__m256i x, __mmask8 mask, const uint8_t *from) {
    __asm__("vpbroadcastd %1, %0%{%2%}" : "+v"(x) : "m"(*(const char(*)[4])from), "Yk"(mask));
    return x;
}

INLINE __m256i eight_dwords(const uint8_t *rows, const uint32_t *offsets) {
    __m256i x = _mm256_castsi128_si256(_mm_loadu_si32(rows + offsets[0]));
    UNROLL for (size_t i = 1; i < 8; i++) x = load_dword(x, (__mmask8)(1 << i), rows + offsets[i]);
    return x;
}

/* Loads the centroids of four channels of 16 tokens, a token in each dword. */
INLINE __m512i sixteen_dwords(const uint8_t *rows, const uint32_t *offsets) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(eight_dwords(rows, offsets)), eight_dwords(rows, offsets + 8), 1);
}

/* ---- Keys: the lanes are 16 tokens, the bytes four channels -------------------------------------------------------------- */

/* Scores tokens from 16 v to 16 (v + W) - 1. */
INLINE void score_some(size_t G, size_t v, size_t W, const struct page_view *view, uint32_t (*offsets)[PAGE_TOKENS],
                       const float *fixed, float *logits) {
    const struct pq_codebook *p = view->p;
    const size_t hd = pq_channels(p), apart = pq_i16_floats(p);
    const int8_t *bytes = (const int8_t *)fixed;
    __m512i high[MOST_QUERIES][4], low[MOST_QUERIES][4];
    UNROLL for (size_t g = 0; g < G; g++) { UNROLL for (size_t w = 0; w < W; w++) high[g][w] = low[g][w] = _mm512_setzero_si512(); }
    for (size_t m = 0; m < p->parts; m++) {
        const uint8_t *rows = centroid_rows_u8(p, m);
        __m512i x[4];
        for (size_t i = 0; i < p->width; i += 4, bytes += 4) {
            UNROLL for (size_t w = 0; w < W; w++) x[w] = sixteen_dwords(rows + i, offsets[m] + 16 * (v + w));
            UNROLL for (size_t g = 0; g < G; g++) {
                const int8_t *of = bytes + g * apart * sizeof(float);
                UNROLL for (size_t w = 0; w < W; w++) {
                    high[g][w] = add_u8_products(high[g][w], x[w], of);
                    low[g][w] = add_u8_products(low[g][w], x[w], of + hd);
                }
            }
        }
    }
    UNROLL for (size_t g = 0; g < G; g++) {
        const float *scale = fixed + g * apart + hd / 2;
        UNROLL for (size_t w = 0; w < W; w++) {
            vec sum = vec_fma(whole_floats(high[g][w], low[g][w]), vec_set(scale[0]), vec_set(scale[1]));
            vec_store(logits + g * PAGE_TOKENS + (v + w) * LANES, sum);
        }
    }
}

INLINE void score_rows(size_t G, const void *what, const float *fixed, float *logits) {
    const size_t W = G <= 3 ? 4 : G <= 6 ? 2 : 1; /* 24 sums at most */
    uint32_t offsets[KERNELS_MOST_CHANNELS / 4][PAGE_TOKENS];
    all_row_offsets(what, offsets);
    UNROLL for (size_t v = 0; v < 4; v += W) score_some(G, v, W, what, offsets, fixed, logits);
}

PQ_KERNELS(score_rows)

/* ---- Values: the lanes are 16 channels, the bytes four tokens ------------------------------------------------------------ */

/* Does what gather_parts does for four registers of dwords, a token in each: 16 channels of four tokens. */
INLINE void gather_tokens(const __m512i *x, __m512i *out) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 32, 33, 34, 35, 64, 65, 66, 67, 96, 97, 98, 99); /* of each channel */
    const __m512i even = _mm512_add_epi32(_mm512_mullo_epi32(first, _mm512_set1_epi32(0x01010101)), _mm512_set1_epi32(0x0c080400));
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(0x10101010));
    __m512i even_ab = _mm512_permutex2var_epi8(x[0], even, x[1]), odd_ab = _mm512_permutex2var_epi8(x[0], odd, x[1]);
    __m512i even_cd = _mm512_permutex2var_epi8(x[2], even, x[3]), odd_cd = _mm512_permutex2var_epi8(x[2], odd, x[3]);
    out[0] = _mm512_shuffle_i32x4(even_ab, even_cd, 0x88);
    out[1] = _mm512_shuffle_i32x4(odd_ab, odd_cd, 0x88);
    out[2] = _mm512_shuffle_i32x4(even_ab, even_cd, 0xdd);
    out[3] = _mm512_shuffle_i32x4(odd_ab, odd_cd, 0xdd);
}

/* Returns sixteen channels of four tokens, one after the other. */
INLINE __m512i four_rows(const uint8_t *rows, const uint32_t *offsets) {
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(rows + offsets[0])));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(rows + offsets[1])), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(rows + offsets[2])), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(rows + offsets[3])), 3);
}

/* Loads channels c to c + 15 of tokens t to t + 15: x[l] has tokens t + 4 l to t + 4 l + 3. */
INLINE void sixteen_channels(bool broad, const struct pq_codebook *p, uint32_t (*offsets)[PAGE_TOKENS], size_t c, size_t t,
                             __m512i *x) {
    if (broad) {
        const size_t m = c / p->width;
        const uint8_t *rows = centroid_rows_u8(p, m) + c % p->width;
        UNROLL for (size_t l = 0; l < 4; l++) x[l] = codes_in_order(FOR_DWORDS, four_rows(rows, offsets[m] + t + 4 * l));
        return;
    }
    __m512i fours[4];
    UNROLL for (size_t i = 0; i < 4; i++) {
        const size_t at = c + 4 * i, m = at / p->width;
        fours[i] = sixteen_dwords(centroid_rows_u8(p, m) + at % p->width, offsets[m] + t);
    }
    gather_tokens(fours, x);
}

INLINE void accumulate_rows(size_t G, bool broad, const struct page_view *view, const float *weights, float *acc) {
    const struct pq_codebook *p = view->p;
    const size_t hd = pq_channels(p);
    struct weights_bytes bytes;
    uint32_t offsets[KERNELS_MOST_CHANNELS / 4][PAGE_TOKENS];
    all_row_offsets(view, offsets);
    all_weights_to_bytes(G, 2, weights, &bytes);
    for (size_t c = 0; c < hd; c += U8_CHANNELS) {
        __m512i high[MOST_QUERIES], low[MOST_QUERIES];
        UNROLL for (size_t g = 0; g < G; g++) high[g] = low[g] = _mm512_setzero_si512();
        for (size_t t = 0; t < PAGE_TOKENS; t += 16) {
            __m512i x[4];
            sixteen_channels(broad, p, offsets, c, t, x);
            UNROLL for (size_t l = 0; l < 4; l++) {
                UNROLL for (size_t g = 0; g < G; g++) {
                    high[g] = add_u8_products(high[g], x[l], bytes.of[g][0] + t + 4 * l);
                    low[g] = add_u8_products(low[g], x[l], bytes.of[g][1] + t + 4 * l);
                }
            }
        }
        add_accumulated(G, 2, p, c, high, low, &bytes, acc);
    }
}

INLINE void accumulate_broad_rows(size_t G, const void *what, const float *weights, float *acc) {
    accumulate_rows(G, true, what, weights, acc);
}
INLINE void accumulate_narrow_rows(size_t G, const void *what, const float *weights, float *acc) {
    accumulate_rows(G, false, what, weights, acc);
}

PQ_KERNELS(accumulate_broad_rows)
PQ_KERNELS(accumulate_narrow_rows)

void pq_avx512_score_rows_u8(const struct pq_codebook *p, const float *fixed, size_t G, const void *page, float *logits) {
    struct page_view view = {.p = p, .page = page};
    call_pq_kernels(score_rows_of, &view, fixed, pq_i16_floats(p), G, logits, PAGE_TOKENS);
}

void pq_avx512_accumulate_rows_u8(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *acc) {
    struct page_view view = {.p = p, .page = page};
    pq_kernel *const *of = p->width % U8_CHANNELS ? accumulate_narrow_rows_of : accumulate_broad_rows_of;
    call_pq_kernels(of, &view, weights, PAGE_TOKENS, G, acc, pq_channels(p));
}
