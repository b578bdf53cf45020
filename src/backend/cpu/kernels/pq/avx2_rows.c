/* Reads keys by 16-bit centroids with AVX2, codes of at most eight bits. A dword has two channels; rows of several tokens are put
 * together in a register as they lie, so that nothing is transposed: a token's dwords are summed at the end. Queries are fixed
 * point. */
#include "backend/cpu/kernels/lanes/avx2_i16.h"

#include "backend/cpu/kernels/pq/avx2_internal.h"
#include "backend/cpu/kernels/pq/code_planes.h"

#define CHUNK 64 /* channels whose centroids stay in the first-level cache while a page's tokens are read */

/* ---- Queries: int16 [hd], q times the channel's step; the step of that; the sum of q times the lows -------------------------- */

void pq_avx2_quantize_query(const struct pq_codebook *p, const float *q, size_t G, float *fixed) {
    const size_t hd = pq_channels(p);
    for (size_t g = 0; g < G; g++, q += hd, fixed += pq_i16_floats(p)) {
        __m256 x[KERNELS_MOST_CHANNELS / LANES], sum = _mm256_setzero_ps();
        for (size_t v = 0; v < hd / LANES; v++) {
            __m256 of = vec_load(q + v * LANES);
            x[v] = _mm256_mul_ps(of, vec_load(p->step + v * LANES));
            sum = _mm256_fmadd_ps(of, vec_load(p->low + v * LANES), sum);
        }
        fill_table(x, hd, fixed);
        fixed[hd / 2 + 1] = _mm_cvtss_f32(sum_of(1, &sum));
    }
}

/* ---- Rows: `piece` channels of 16 / piece tokens in a register --------------------------------------------------------------- */

/* Repeats two channels in every dword. Loads that broadcast and blends run on several ports, insertions, which compilers would make
 * of intrinsics, on one. */
INLINE __m256i two_channels(const int16_t *row) {
    __m256i x;
    __asm__("vpbroadcastd %1, %0" : "=x"(x) : "m"(*(const int16_t(*)[2])row));
    return x;
}

INLINE __m256i four_channels(const int16_t *row) {
    __m256i x;
    __asm__("vpbroadcastq %1, %0" : "=x"(x) : "m"(*(const int16_t(*)[4])row));
    return x;
}

INLINE __m256i eight_channels(const int16_t *row) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)row)); }

/* Repeats the channels that a query has at `q` in every place. */
INLINE __m256i piece_everywhere(size_t piece, const int16_t *q) {
    return piece == 2 ? two_channels(q) : piece == 4 ? four_channels(q) : eight_channels(q);
}

INLINE __m256i rows_of_tokens(size_t piece, const int16_t *rows, size_t width, const uint8_t *codes) {
    if (piece == 2) {
        __m256i x[4];
        UNROLL for (size_t i = 0; i < 4; i++) x[i] =
            _mm256_blend_epi32(two_channels(rows + codes[2 * i] * width), two_channels(rows + codes[2 * i + 1] * width), 0xaa);
        return _mm256_blend_epi32(_mm256_blend_epi32(x[0], x[1], 0x0c), _mm256_blend_epi32(x[2], x[3], 0xc0), 0xf0);
    }
    if (piece == 4) {
        __m256i a = _mm256_blend_epi32(four_channels(rows + codes[0] * width), four_channels(rows + codes[1] * width), 0x0c);
        __m256i b = _mm256_blend_epi32(four_channels(rows + codes[2] * width), four_channels(rows + codes[3] * width), 0xc0);
        return _mm256_blend_epi32(a, b, 0xf0);
    }
    __m256i a = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(rows + codes[0] * width)));
    return _mm256_inserti128_si256(a, _mm_loadu_si128((const __m128i *)(rows + codes[1] * width)), 1);
}

/* ---- Scores ------------------------------------------------------------------------------------------------------------------ */

/* Adds one number for each token, made of the dwords of two registers of tokens: 16 tokens, 8 or 4, as the piece has 2 channels, 4 or 8. */
INLINE void add_logits(size_t piece, const __m256i *sum, float step, float base, float *logits) {
    if (piece == 2) {
        UNROLL for (size_t i = 0; i < 2; i++) {
            __m256 x = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[i]), _mm256_set1_ps(step), _mm256_set1_ps(base));
            vec_store(logits + i * LANES, _mm256_add_ps(x, vec_load(logits + i * LANES)));
        }
        return;
    }
    __m256i two = _mm256_hadd_epi32(sum[0], sum[1]);
    if (piece == 4) {
        two = _mm256_permute4x64_epi64(two, 0xd8);
        __m256 x = _mm256_fmadd_ps(_mm256_cvtepi32_ps(two), _mm256_set1_ps(step), _mm256_set1_ps(base));
        vec_store(logits, _mm256_add_ps(x, vec_load(logits)));
        return;
    }
    two = _mm256_hadd_epi32(two, two);
    __m128i four = _mm_unpacklo_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
    __m128 x = _mm_fmadd_ps(_mm_cvtepi32_ps(four), _mm_set1_ps(step), _mm_set1_ps(base));
    _mm_storeu_ps(logits, _mm_add_ps(x, _mm_loadu_ps(logits)));
}

struct sub_vectors {
    const struct pq_codebook *p;
    size_t m, n;          /* [m, m + n) */
    const uint8_t *codes; /* [n][64] */
    const uint8_t *page;  /* where they lie in the page */
};

INLINE void score_chunk(size_t G, size_t piece, size_t width, const struct sub_vectors *s, const float *fixed, float *logits) {
    const struct pq_codebook *p = s->p;
    const size_t m = s->m, n = s->n, share = n * p->bits / 8; /* bytes of a token */
    const size_t tokens = 16 / piece, table = pq_centroids(p) * width, apart = pq_i16_floats(p), hd = pq_channels(p);
    for (size_t t = 0; t < PAGE_TOKENS; t += 2 * tokens) {
        const int16_t *rows = p->rows_i16 + m * table, *q = (const int16_t *)fixed + m * width;
        const uint8_t *at = s->codes + t;
        __m256i sum[TOGETHER][2];
        prefetch_step(s->page + t * share, 0, 2 * tokens * share);
        UNROLL for (size_t g = 0; g < G; g++) sum[g][0] = sum[g][1] = _mm256_setzero_si256();
        for (size_t k = 0; k < n; k++, at += PAGE_TOKENS, rows += table, q += width) {
            for (size_t c = 0; c < width; c += piece) {
                __m256i x = rows_of_tokens(piece, rows + c, width, at), y = rows_of_tokens(piece, rows + c, width, at + tokens);
                UNROLL for (size_t g = 0; g < G; g++) {
                    __m256i w = piece_everywhere(piece, q + 2 * g * apart + c);
                    sum[g][0] = add_products(sum[g][0], x, w);
                    sum[g][1] = add_products(sum[g][1], y, w);
                }
            }
        }
        UNROLL for (size_t g = 0; g < G; g++) {
            const float *scale = fixed + g * apart + hd / 2;
            add_logits(piece, sum[g], scale[0], m ? 0 : scale[1], logits + g * PAGE_TOKENS + t);
        }
    }
}

INLINE void score_rows(size_t G, const void *what, const float *fixed, float *logits) {
    const struct sub_vectors *s = what;
    const size_t width = s->p->width;
    if (width == 2)
        score_chunk(G, 2, 2, s, fixed, logits);
    else if (width == 4)
        score_chunk(G, 4, 4, s, fixed, logits);
    else if (width == 8)
        score_chunk(G, 8, 8, s, fixed, logits);
    else if (width % 8 == 0)
        score_chunk(G, 8, width, s, fixed, logits);
    else
        score_chunk(G, 2, width, s, fixed, logits);
}

#undef MOST_QUERIES
#define MOST_QUERIES TOGETHER
#include "backend/cpu/kernels/pq/each_query_count.h"
PQ_KERNELS(score_rows)

void pq_avx2_score_i16(const struct pq_codebook *p, const float *fixed, size_t G, const void *page, float *logits) {
    const size_t part = PAGE_PQ_PART(p->bits), step = p->width < CHUNK ? CHUNK / p->width : 1;
    uint8_t bytes[CHUNK * PAGE_TOKENS / 2];
    memset(logits, 0, G * PAGE_TOKENS * sizeof *logits);
    for (size_t m = 0, n; m < p->parts; m += n) {
        const uint8_t *codes = (const uint8_t *)page + m * part;
        n = SMALLER(step, p->parts - m);
        for (size_t k = 0; p->bits < 8 && k < n; k++) {
            uint16_t wide[PAGE_TOKENS];
            code_planes_read(codes + k * part, p->bits, wide);
            for (size_t t = 0; t < PAGE_TOKENS; t++) bytes[k * PAGE_TOKENS + t] = (uint8_t)wide[t];
        }
        struct sub_vectors s = {p, m, n, p->bits < 8 ? bytes : codes, codes};
        call_pq_kernels(score_rows_of, &s, fixed, pq_i16_floats(p), G, logits, PAGE_TOKENS);
    }
}

void pq_avx2_score_rows(const struct pq_codebook *p, const float *q, size_t G, const void *page, float *logits) {
    float fixed[TOGETHER * (KERNELS_MOST_CHANNELS / 2 + 2)];
    for (size_t g = 0, n; g < G; g += n) {
        n = SMALLER(G - g, TOGETHER);
        pq_avx2_quantize_query(p, q + g * pq_channels(p), n, fixed);
        pq_avx2_score_i16(p, fixed, n, page, logits + g * PAGE_TOKENS);
    }
}
