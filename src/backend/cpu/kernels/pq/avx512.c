/* Implements product quantization with AVX-512: decoding by look-up in registers, keys scored as they are decoded, and the choice
 * among the ways that a codebook allows (avx512_internal.h). */
#include "backend/cpu/kernels/pq/avx512_internal.h"

typedef __m512i wide;
#define WIDE_PARTS 4

static inline wide wide_load(const uint16_t *x) { return _mm512_loadu_si512(x); }
static inline void wide_store(uint16_t *to, wide x) { _mm512_storeu_si512(to, x); }
static inline wide wide_low_16(wide a, wide b) { return _mm512_unpacklo_epi16(a, b); }
static inline wide wide_high_16(wide a, wide b) { return _mm512_unpackhi_epi16(a, b); }
static inline wide wide_low_32(wide a, wide b) { return _mm512_unpacklo_epi32(a, b); }
static inline wide wide_high_32(wide a, wide b) { return _mm512_unpackhi_epi32(a, b); }
static inline wide wide_low_64(wide a, wide b) { return _mm512_unpacklo_epi64(a, b); }
static inline wide wide_high_64(wide a, wide b) { return _mm512_unpackhi_epi64(a, b); }

#include "backend/cpu/kernels/pq/code_planes.h"
#include "backend/cpu/kernels/pq/init.h"

static void decode_chunk(const struct pq_codebook *p, const void *page, size_t m, size_t n, uint16_t *halves);
#define DECODE_CHUNK decode_chunk
#include "backend/cpu/kernels/pq/template.h"

/* Looks halves up byte by byte: x[2], tokens in order of codes FOR_HALVES. */
INLINE void planes_to_halves(size_t quarters, const struct codes *codes, const uint8_t *planes, __m512i *x) {
    __m512i low = codes_look_up(quarters, codes, planes), high = codes_look_up(quarters, codes, planes + 64 * quarters);
    x[0] = _mm512_unpacklo_epi8(low, high);
    x[1] = _mm512_unpackhi_epi8(low, high);
}

/* Looks floats up, x[4] in order of codes FOR_DWORDS: the byte, 64 times and added to the bits of 2^17, is a float that is larger
 * by so much; one multiplication makes it the centroid. */
INLINE void u8_to_floats(size_t quarters, const struct codes *codes, const struct pq_codebook *p, size_t c, vec *x) {
    const __m512i power = _mm512_castps_si512(_mm512_set1_ps(0x1p17f));
    __m512i u8 = codes_look_up(quarters, codes, p->centroids_u8 + c * 64 * quarters);
    UNROLL for (size_t w = 0; w < 4; w++) {
        __m512i number = add_products(power, u8, _mm512_set1_epi32(64 << 8 * w));
        x[w] = _mm512_fmadd_ps(_mm512_castsi512_ps(number), _mm512_set1_ps(p->step[c]), _mm512_set1_ps(p->from[c]));
    }
}

INLINE void decode_in_registers(size_t quarters, const struct pq_codebook *p, const void *page, size_t m, size_t n,
                                uint16_t *halves) {
    size_t c = m * p->width;
    for (size_t end = m + n; m < end; m++) {
        struct codes codes = codes_load(quarters, p, page, m, p->centroids_u8 ? FOR_DWORDS : FOR_HALVES);
        for (size_t i = 0; i < p->width; i++, c++, halves += PAGE_TOKENS) {
            __m512i x[2];
            __m512 floats[4];
            if (!p->centroids_u8) {
                planes_to_halves(quarters, &codes, p->byte_planes + c * 2 * 64 * quarters, x);
                _mm512_storeu_si512(halves, x[0]);
                _mm512_storeu_si512(halves + 32, x[1]);
                continue;
            }
            u8_to_floats(quarters, &codes, p, c, floats);
            for (size_t w = 0; w < 4; w++) /* exact: all centroids are halves */
                _mm256_storeu_si256((__m256i *)(halves + 16 * w), _mm512_cvtps_ph(floats[w], _MM_FROUND_TO_NEAREST_INT));
        }
    }
}

/* Returns whether the centroids are given by channel, in either form. */
static bool in_registers(const struct pq_codebook *p) { return p->byte_planes || p->centroids_u8; }

static void decode_chunk(const struct pq_codebook *p, const void *page, size_t m, size_t n, uint16_t *halves) {
    if (!in_registers(p))
        decode_by_rows(p, page, m, n, halves);
    else if (p->bits == 8)
        decode_in_registers(4, p, page, m, n, halves);
    else if (p->bits == 7)
        decode_in_registers(2, p, page, m, n, halves);
    else
        decode_in_registers(1, p, page, m, n, halves);
}

/* ---- Keys are scored as they are decoded: a channel's 64 numbers go from tables to the sums without memory between, so that
 * looking up, which is one port's work, and multiplying overlap. This serves codes of eight bits only. */

#define FUSED_QUERIES 6 /* whose sums, four registers each, leave registers for decoding */

INLINE struct codes fused_codes(const struct page_view *view, size_t m) {
    return codes_load(4, view->p, view->page, m, view->p->centroids_u8 ? FOR_DWORDS : FOR_HALVES);
}

/* Decodes x[4] of one channel. */
INLINE void channel_floats(const struct pq_codebook *p, const struct codes *codes, size_t c, vec *x) {
    if (p->centroids_u8) {
        u8_to_floats(4, codes, p, c, x);
        return;
    }
    __m512i halves[2];
    planes_to_halves(4, codes, p->byte_planes + c * 512, halves);
    UNROLL for (size_t w = 0; w < 2; w++) {
        x[2 * w] = _mm512_cvtph_ps(_mm512_castsi512_si256(halves[w]));
        x[2 * w + 1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves[w], 1));
    }
}

INLINE void score_fused(size_t G_, const void *what, const float *q, float *logits) {
    const struct page_view *view = what;
    const struct pq_codebook *p = view->p;
    const size_t G = SMALLER(G_, FUSED_QUERIES), hd = pq_channels(p);
    sums sum;
    sums_clear(G, 4, sum);
    for (size_t m = 0; m < p->parts; m++) {
        struct codes codes = fused_codes(view, m);
        for (size_t c = m * p->width; c < (m + 1) * p->width; c++) {
            vec x[4];
            channel_floats(p, &codes, c, x);
            sums_add(G, 4, q + c, hd, x, sum);
        }
    }
    sums_store(G, 4, sum, false, logits, PAGE_TOKENS, LANES);
}

PQ_KERNELS(score_fused)

/* ---- Functions: the way that a codebook allows ------------------------------------------------------------------------------- */

static void score_i16_pq(const struct pq_codebook *p, const float *fixed, size_t G, const void *page, float *logits) {
    (p->centroid_rows_u8 ? pq_avx512_score_rows_u8 : pq_avx512_score_u8)(p, fixed, G, page, logits);
}

static void score_pq(const struct pq_codebook *p, const float *q, size_t G, const void *page, float *logits) {
    struct page_view view = {.p = p, .page = page};
    float fixed[MOST_QUERIES * (KERNELS_MOST_CHANNELS / 2 + 2)];
    for (size_t g = 0, n; pq_reads_u8(p) && g < G; g += n) {
        n = SMALLER(G - g, MOST_QUERIES);
        pq_avx512_quantize_query(p, q + g * pq_channels(p), n, fixed);
        score_i16_pq(p, fixed, n, page, logits + g * PAGE_TOKENS);
    }
    if (!pq_reads_u8(p) && p->byte_planes && p->bits == 8 && G <= FUSED_QUERIES)
        score_fused_of[G - 1](&view, q, logits);
    else if (!pq_reads_u8(p))
        score_pq_avx512(p, q, G, page, logits);
}

static void accumulate_pq(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *acc) {
    if (p->centroid_rows_u8)
        pq_avx512_accumulate_rows_u8(p, weights, G, page, acc);
    else if (p->centroids_u8)
        pq_avx512_accumulate_u8(p, weights, G, page, acc);
    else
        accumulate_pq_avx512(p, weights, G, page, acc);
}

static void accumulate_int8_pq(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *acc) {
    (p->centroids_u8 ? pq_avx512_accumulate_int8_u8 : accumulate_pq)(p, weights, G, page, acc);
}

static void prepare_pq(const struct pq_codebook *p, const float *q, size_t G, float *tables) {
    (in_registers(p) ? pq_avx512_prepare_lut : prepare_pq_avx512)(p, q, G, tables);
}

static void look_up_pq(const struct pq_codebook *p, const float *tables, size_t G, const void *page, float *logits) {
    (in_registers(p) ? pq_avx512_look_up_lut : look_up_pq_avx512)(p, tables, G, page, logits);
}

void pq_init_avx512(struct pq_ops *ops) {
    fill_pq(ops);
    ops->has_register_lut = true;
    ops->reads_rows_i16 = false;
    ops->score = score_pq;
    ops->quantize_query = pq_avx512_quantize_query;
    ops->score_i16 = score_i16_pq;
    ops->accumulate = accumulate_pq;
    ops->accumulate_int8 = accumulate_int8_pq;
    ops->prepare = prepare_pq;
    ops->look_up = look_up_pq;
}
