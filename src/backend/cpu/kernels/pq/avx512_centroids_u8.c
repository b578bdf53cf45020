/* Reads keys and values by centroids of 8 bits, by channel, with AVX-512. */
#include "backend/cpu/kernels/pq/avx512_internal.h"

/* ---- Keys: the lanes are 16 tokens, the bytes four channels -------------------------------------------------------------- */

/* Writes pq_i16_floats floats for each query: int8 [2][hd], q times the channel's step; the step of these; the sum of q times the lows. */
void pq_avx512_quantize_query(const struct pq_codebook *p, const float *q, size_t G, float *fixed) {
    size_t hd = pq_channels(p);
    for (size_t g = 0; g < G; g++, q += hd, fixed += pq_i16_floats(p)) {
        __m512 x[KERNELS_MOST_CHANNELS / 16], most = _mm512_setzero_ps(), sum = _mm512_setzero_ps();
        for (size_t v = 0; v < hd / 16; v++) {
            __m512 of = _mm512_loadu_ps(q + 16 * v);
            x[v] = _mm512_mul_ps(of, _mm512_loadu_ps(p->step + 16 * v));
            most = _mm512_max_ps(most, _mm512_abs_ps(x[v]));
            sum = _mm512_fmadd_ps(of, _mm512_loadu_ps(p->low + 16 * v), sum);
        }
        float step = fixed_step(_mm512_reduce_max_ps(most));
        __m512 inverse = fixed_inverse(step);
        int8_t *high = (int8_t *)fixed, *low = high + hd;
        for (size_t v = 0; v < hd / 16; v++) to_bytes(_mm512_mul_ps(x[v], inverse), high + 16 * v, low + 16 * v);
        fixed[hd / 2] = step;
        fixed[hd / 2 + 1] = _mm512_reduce_add_ps(sum);
    }
}

/* Looks up the centroids of four channels, x[4], part l of x[r] having the tokens that lie from byte 16 l + 4 r on. */
INLINE void interleave_four(size_t quarters, struct reader *reader, __m512i *x) {
    __m512i at[4], low[2], high[2];
    UNROLL for (size_t i = 0; i < 4; i++) at[i] = next_channel(quarters, reader);
    UNROLL for (size_t i = 0; i < 2; i++) {
        low[i] = _mm512_unpacklo_epi8(at[2 * i], at[2 * i + 1]);
        high[i] = _mm512_unpackhi_epi8(at[2 * i], at[2 * i + 1]);
    }
    x[0] = _mm512_unpacklo_epi16(low[0], low[1]);
    x[1] = _mm512_unpackhi_epi16(low[0], low[1]);
    x[2] = _mm512_unpacklo_epi16(high[0], high[1]);
    x[3] = _mm512_unpackhi_epi16(high[0], high[1]);
}

/* Writes logits[64] of high[4], low[4], whose tokens lie as interleave_four leaves them. */
INLINE void fixed_to_logits(const __m512i *high, const __m512i *low, float step, float base, float *logits) {
    __m512 x[4], a[4];
    UNROLL for (size_t r = 0; r < 4; r++) {
        x[r] = _mm512_fmadd_ps(whole_floats(high[r], low[r]), _mm512_set1_ps(step), _mm512_set1_ps(base));
    }
    UNROLL for (size_t i = 0; i < 2; i++) {
        a[2 * i] = _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0x44);     /* parts 0 and 1 of both */
        a[2 * i + 1] = _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0xee); /* 2 and 3 */
    }
    UNROLL for (size_t i = 0; i < 2; i++) {
        _mm512_storeu_ps(logits + 32 * i, _mm512_shuffle_f32x4(a[i], a[2 + i], 0x88));
        _mm512_storeu_ps(logits + 32 * i + 16, _mm512_shuffle_f32x4(a[i], a[2 + i], 0xdd));
    }
}

#define U8_QUERIES 3 /* queries whose sums, eight registers each, leave registers for looking up */

/* Scores n queries with u8[hd / 4][4], which are looked up or come from a call before, and may be kept for the next. */
INLINE void score_some(size_t n, size_t quarters, bool look_up, bool keep, const struct page_view *view, __m512i (*u8)[4],
                       const float *fixed, float *logits) {
    const struct pq_codebook *p = view->p;
    const size_t hd = pq_channels(p), apart = pq_i16_floats(p);
    const int8_t *bytes = (const int8_t *)fixed;
    struct reader reader = {.p = p, .page = view->page, .table = p->centroids_u8, .order = AS_THEY_ARE};
    __m512i high[U8_QUERIES][4], low[U8_QUERIES][4];
    UNROLL for (size_t g = 0; g < n; g++) { UNROLL for (size_t r = 0; r < 4; r++) high[g][r] = low[g][r] = _mm512_setzero_si512(); }
    for (size_t c = 0; c < hd; c += 4, bytes += 4) {
        __m512i x[4];
        if (look_up) interleave_four(quarters, &reader, x);
        UNROLL for (size_t r = 0; r < 4; r++) {
            if (keep) u8[c / 4][r] = x[r];
            if (!look_up) x[r] = u8[c / 4][r];
        }
        UNROLL for (size_t g = 0; g < n; g++) {
            const int8_t *of = bytes + g * apart * sizeof(float);
            UNROLL for (size_t r = 0; r < 4; r++) {
                high[g][r] = add_u8_products(high[g][r], x[r], of);
                low[g][r] = add_u8_products(low[g][r], x[r], of + hd);
            }
        }
    }
    UNROLL for (size_t g = 0; g < n; g++) {
        const float *scale = fixed + g * apart + hd / 2;
        fixed_to_logits(high[g], low[g], scale[0], scale[1], logits + g * PAGE_TOKENS);
    }
}

INLINE void score_u8(size_t G, size_t quarters, const struct page_view *view, const float *fixed, float *logits) {
    const size_t apart = pq_i16_floats(view->p), first = SMALLER(G, U8_QUERIES);
    __m512i u8[KERNELS_MOST_CHANNELS / 4][4];
    score_some(first, quarters, true, G > first, view, u8, fixed, logits);
    if (G > first)
        score_some(SMALLER(G - first, U8_QUERIES), quarters, false, false, view, u8, fixed + first * apart,
                   logits + first * PAGE_TOKENS);
    if (G > 2 * first)
        score_some(G - 2 * first, quarters, false, false, view, u8, fixed + 2 * first * apart, logits + 2 * first * PAGE_TOKENS);
}

INLINE void score_eight_bits(size_t G, const void *what, const float *fixed, float *logits) { score_u8(G, 4, what, fixed, logits); }
/* Does the same for codes of other widths. */
INLINE void score_fewer_bits(size_t G, const void *what, const float *fixed, float *logits) {
    const struct page_view *view = what;
    if (view->p->bits == 7)
        score_u8(G, 2, view, fixed, logits);
    else
        score_u8(G, 1, view, fixed, logits);
}
PQ_KERNELS(score_eight_bits)
PQ_KERNELS(score_fewer_bits)

/* ---- Values: the lanes are 16 channels, the bytes four tokens ------------------------------------------------------------ */

/* Looks up the centroids of four channels, x[4], part l of x[r] having tokens 16 l + 4 r to 16 l + 4 r + 3, a channel in each
 * dword. */
INLINE void transpose_four(size_t quarters, struct reader *reader, __m512i *x) {
    __m512i at[4];
    UNROLL for (size_t i = 0; i < 4; i++) at[i] = next_channel(quarters, reader);
    transpose_fours(at, x);
}

/* Moves part l of four registers to out[l]: 16 channels of four tokens. */
INLINE void gather_parts(__m512i a, __m512i b, __m512i c, __m512i d, __m512i *out) {
    __m512i even_ab = _mm512_shuffle_i32x4(a, b, 0x88), odd_ab = _mm512_shuffle_i32x4(a, b, 0xdd);
    __m512i even_cd = _mm512_shuffle_i32x4(c, d, 0x88), odd_cd = _mm512_shuffle_i32x4(c, d, 0xdd);
    out[0] = _mm512_shuffle_i32x4(even_ab, even_cd, 0x88);
    out[1] = _mm512_shuffle_i32x4(odd_ab, odd_cd, 0x88);
    out[2] = _mm512_shuffle_i32x4(even_ab, even_cd, 0xdd);
    out[3] = _mm512_shuffle_i32x4(odd_ab, odd_cd, 0xdd);
}

INLINE void accumulate_planes(size_t G, size_t quarters, size_t planes, const struct page_view *view, const float *weights,
                              float *acc) {
    const struct pq_codebook *p = view->p;
    const size_t hd = pq_channels(p);
    struct reader reader = {.p = p, .page = view->page, .table = p->centroids_u8, .order = AS_THEY_ARE};
    struct weights_bytes bytes;
    __m512i x[2][U8_CHANNELS / 4][4];
    all_weights_to_bytes(G, planes, weights, &bytes);
    UNROLL for (size_t i = 0; i < U8_CHANNELS / 4; i++) transpose_four(quarters, &reader, x[0][i]);
    for (size_t c = 0; c < hd; c += U8_CHANNELS) {
        __m512i high[MOST_QUERIES], low[MOST_QUERIES], (*now)[4] = x[c / U8_CHANNELS % 2], (*next)[4] = x[1 - c / U8_CHANNELS % 2];
        bool more = c + U8_CHANNELS < hd;
        UNROLL for (size_t g = 0; g < G; g++) high[g] = low[g] = _mm512_setzero_si512();
        UNROLL for (size_t r = 0; r < 4; r++) {
            __m512i by_token[4], at[4];
            gather_parts(now[0][r], now[1][r], now[2][r], now[3][r], by_token);
            UNROLL for (size_t l = 0; l < 4; l++) {
                if (more) at[l] = next_channel(quarters, &reader);
                UNROLL for (size_t g = 0; g < G; g++) {
                    high[g] = add_u8_products(high[g], by_token[l], bytes.of[g][0] + 16 * l + 4 * r);
                    if (planes == 2) low[g] = add_u8_products(low[g], by_token[l], bytes.of[g][1] + 16 * l + 4 * r);
                }
            }
            if (more) transpose_fours(at, next[r]);
        }
        add_accumulated(G, planes, p, c, high, low, &bytes, acc);
    }
}

INLINE void accumulate_u8(size_t G, size_t quarters, const struct page_view *view, const float *weights, float *acc) {
    accumulate_planes(G, quarters, 2, view, weights, acc);
}
INLINE void accumulate_int8_u8(size_t G, size_t quarters, const struct page_view *view, const float *weights, float *acc) {
    accumulate_planes(G, quarters, 1, view, weights, acc);
}

INLINE void accumulate_eight_bits(size_t G, const void *what, const float *weights, float *acc) {
    accumulate_u8(G, 4, what, weights, acc);
}
/* Does the same for codes of other widths. */
INLINE void accumulate_fewer_bits(size_t G, const void *what, const float *weights, float *acc) {
    const struct page_view *view = what;
    if (view->p->bits == 7)
        accumulate_u8(G, 2, view, weights, acc);
    else
        accumulate_u8(G, 1, view, weights, acc);
}
PQ_KERNELS(accumulate_eight_bits)
PQ_KERNELS(accumulate_fewer_bits)

INLINE void accumulate_int8_eight_bits(size_t G, const void *what, const float *weights, float *acc) {
    accumulate_int8_u8(G, 4, what, weights, acc);
}
/* Does the same for codes of other widths. */
INLINE void accumulate_int8_fewer_bits(size_t G, const void *what, const float *weights, float *acc) {
    const struct page_view *view = what;
    if (view->p->bits == 7)
        accumulate_int8_u8(G, 2, view, weights, acc);
    else
        accumulate_int8_u8(G, 1, view, weights, acc);
}
PQ_KERNELS(accumulate_int8_eight_bits)
PQ_KERNELS(accumulate_int8_fewer_bits)

void pq_avx512_score_u8(const struct pq_codebook *p, const float *fixed, size_t G, const void *page, float *logits) {
    struct page_view view = {.p = p, .page = page};
    pq_kernel *const *of = p->bits == 8 ? score_eight_bits_of : score_fewer_bits_of;
    call_pq_kernels(of, &view, fixed, pq_i16_floats(p), G, logits, PAGE_TOKENS);
}

void pq_avx512_accumulate_u8(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *acc) {
    struct page_view view = {.p = p, .page = page};
    pq_kernel *const *of = p->bits == 8 ? accumulate_eight_bits_of : accumulate_fewer_bits_of;
    call_pq_kernels(of, &view, weights, PAGE_TOKENS, G, acc, pq_channels(p));
}

void pq_avx512_accumulate_int8_u8(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *acc) {
    struct page_view view = {.p = p, .page = page};
    pq_kernel *const *of = p->bits == 8 ? accumulate_int8_eight_bits_of : accumulate_int8_fewer_bits_of;
    call_pq_kernels(of, &view, weights, PAGE_TOKENS, G, acc, pq_channels(p));
}
