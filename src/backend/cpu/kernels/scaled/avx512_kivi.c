/* Implements kivi of 4 and 2 bits with AVX-512, by products of bytes (lanes/avx512_i8.h): a query times a channel's scales, and a
 * weight times a token's, are fixed point, made for each page. Codes count from 0; the zero points contribute a sum of their
 * own. */
#include "backend/cpu/kernels/lanes/avx512_i8.h"
#include "backend/cpu/kernels/limits.h"
#include "backend/cpu/kernels/scaled/init.h"

#include "backend/cpu/kernels/scaled/avx512_rows.h"

/* ---- Keys: the lanes are 16 tokens, the bytes four channels -------------------------------------------------------------- */

#define HALVES (PAGE_TOKENS / SCALE_GROUP) /* groups of tokens that share scales */

/* A `scaled` holds queries times the scales of a group of tokens, a byte each, channels by place_of within each 64, and their sum;
 * and <query, keys of the middle code>, exactly, so that rounding a query matters only for a code's distance from the middle. */
struct scaled {
    _Alignas(64) int8_t bytes[KERNELS_MOST_ROW / PAGE_TOKENS][TOGETHER][PAGE_TOKENS];
    float step[TOGETHER], base[TOGETHER];
    int32_t sum[TOGETHER];
};

/* Returns twice the middle code. */
INLINE int most_code(unsigned bits) { return (1 << bits) - 1; }

INLINE void scale_queries(size_t G, unsigned bits, const float *q, const float *scale, const float *zero, size_t hd,
                          struct scaled *s) {
    const __m512 middle = _mm512_set1_ps(0.5f * (float)most_code(bits));
    __m512 most[TOGETHER], sum[TOGETHER], wholes[TOGETHER], x[4];
    float inverse[TOGETHER];
    UNROLL for (size_t g = 0; g < G; g++) most[g] = sum[g] = wholes[g] = _mm512_setzero_ps();
    for (size_t c = 0; c < hd; c += 16) {
        __m512 of = _mm512_loadu_ps(scale + c), key = _mm512_fmadd_ps(of, middle, _mm512_loadu_ps(zero + c));
        UNROLL for (size_t g = 0; g < G; g++) {
            __m512 number = _mm512_loadu_ps(q + g * hd + c);
            most[g] = larger_of(most[g], _mm512_mul_ps(number, of));
            sum[g] = _mm512_fmadd_ps(number, key, sum[g]);
        }
    }
    fixed_steps(join_lanes(LARGEST, G, most), COARSE_MOST, s->step, inverse);
    _mm_storeu_ps(s->base, join_lanes(SUM, G, sum));
    for (size_t c = 0; c < hd; c += PAGE_TOKENS) {
        UNROLL for (size_t g = 0; g < G; g++) {
            UNROLL for (size_t v = 0; v < 4; v++) {
                const size_t at = c + 16 * v;
                x[v] = at < hd ? _mm512_mul_ps(_mm512_loadu_ps(q + g * hd + at), _mm512_loadu_ps(scale + at)) : _mm512_setzero_ps();
            }
            __m512i all = to_plane(x, inverse[g], s->bytes[c / PAGE_TOKENS][g]);
            wholes[g] = join(WHOLE_SUM, wholes[g], _mm512_castsi512_ps(all));
        }
    }
    _mm_storeu_si128((__m128i *)s->sum, _mm_castps_si128(join_lanes(WHOLE_SUM, G, wholes)));
}

/* Reads the codes of four channels: to[h][part] are those of tokens 32 h + 16 part to 32 h + 16 part + 15, for h = 1 sixteen times
 * them. */
INLINE void four_keys(unsigned bits, const uint8_t *codes, __m512i (*to)[2]) {
    const __m512i low = _mm512_set1_epi8((char)((1 << bits) - 1)), high = _mm512_slli_epi32(low, 4);
    const __m512i first =
        _mm512_setr_epi32(0x60402000, 0x61412101, 0x62422202, 0x63432303, 0x64442404, 0x65452505, 0x66462606, 0x67472707,
                          0x68482808, 0x69492909, 0x6a4a2a0a, 0x6b4b2b0b, 0x6c4c2c0c, 0x6d4d2d0d, 0x6e4e2e0e, 0x6f4f2f0f);
    __m512i x = _mm512_loadu_si512(codes), part[2];
    if (bits == 2) {
        part[0] = by_fours(x);
        part[1] = _mm512_srli_epi32(part[0], 2);
    } else {
        __m512i y = _mm512_loadu_si512(codes + 64);
        part[0] = _mm512_permutex2var_epi8(x, first, y);
        part[1] = _mm512_permutex2var_epi8(x, _mm512_or_si512(first, _mm512_set1_epi8(16)), y);
    }
    UNROLL for (size_t p = 0; p < 2; p++) {
        to[0][p] = _mm512_and_si512(part[p], low);
        to[1][p] = _mm512_and_si512(part[p], high);
    }
}

INLINE void score_codes(size_t G, unsigned bits, const struct scaled *s, size_t hd, const uint8_t *codes, float *logits) {
    __m512i sum[TOGETHER][HALVES][2];
    UNROLL for (size_t g = 0; g < G; g++) sum[g][0][0] = sum[g][0][1] = sum[g][1][0] = sum[g][1][1] = _mm512_setzero_si512();
    for (size_t c = 0; c < hd; c += 4) {
        __m512i x[HALVES][2];
        prefetch_step(codes, c / 4, 32 * bits);
        four_keys(bits, codes + c * 8 * bits, x);
        UNROLL for (size_t g = 0; g < G; g++) {
            UNROLL for (size_t h = 0; h < HALVES; h++) {
                __m512i q = four_bytes(s[h].bytes[c / PAGE_TOKENS][g] + place_of(c % PAGE_TOKENS));
                sum[g][h][0] = add_products(sum[g][h][0], x[h][0], q);
                sum[g][h][1] = add_products(sum[g][h][1], x[h][1], q);
            }
        }
    }
    UNROLL for (size_t g = 0; g < G; g++) {
        UNROLL for (size_t h = 0; h < HALVES; h++) {
            const __m512 step = _mm512_set1_ps(s[h].step[g] / (h ? 32 : 2)), base = _mm512_set1_ps(s[h].base[g]);
            const __m512i middle = _mm512_set1_epi32(s[h].sum[g] * most_code(bits) * (h ? 16 : 1));
            UNROLL for (size_t part = 0; part < 2; part++) {
                __m512i twice = _mm512_sub_epi32(_mm512_slli_epi32(sum[g][h][part], 1), middle);
                _mm512_storeu_ps(logits + g * PAGE_TOKENS + h * SCALE_GROUP + 16 * part,
                                 _mm512_fmadd_ps(step, _mm512_cvtepi32_ps(twice), base));
            }
        }
    }
}

INLINE void score_kivi(size_t G, unsigned bits, const float *q, size_t hd, const void *page, float *logits) {
    struct scaled s[HALVES]; /* too large to be cleared */
    float scale[2 * HALVES * KERNELS_MOST_ROW], *zero = scale + HALVES * hd;
    const uint16_t *halves = page;
    for (size_t i = 0; i < 2 * HALVES * hd; i += 32) {
        prefetch_step(halves + i, 0, 64);
        vec_store(scale + i, vec_halves(halves + i));
        vec_store(scale + i + 16, vec_halves(halves + i + 16));
    }
    for (size_t h = 0; h < HALVES; h++) scale_queries(G, bits, q, scale + h * hd, zero + h * hd, hd, &s[h]);
    score_codes(G, bits, s, hd, (const uint8_t *)(halves + 2 * HALVES * hd), logits);
}

INLINE void score_kivi_4(size_t G, const float *q, size_t hd, const void *page, float *logits) {
    score_kivi(G, 4, q, hd, page, logits);
}
INLINE void score_kivi_2(size_t G, const float *q, size_t hd, const void *page, float *logits) {
    score_kivi(G, 2, q, hd, page, logits);
}

PAGE_KERNELS_4(score_kivi_4)
static void score_kivi_4_avx512(const float *q, size_t G, size_t hd, const void *page, float *logits) {
    call_page_kernels(score_kivi_4_of, TOGETHER, q, hd, G, hd, page, logits, PAGE_TOKENS);
}
PAGE_KERNELS_4(score_kivi_2)
static void score_kivi_2_avx512(const float *q, size_t G, size_t hd, const void *page, float *logits) {
    call_page_kernels(score_kivi_2_of, TOGETHER, q, hd, G, hd, page, logits, PAGE_TOKENS);
}

/* ---- Values: the lanes are 16 channels, the bytes four tokens ------------------------------------------------------------ */

/* A group holds weights times scales of 32 channels, and the sums of weights times zeros. */
struct group {
    struct scaled_weights weights;
    float base[TOGETHER];
};

/* A scales holds the scales and zeros of 64 tokens as floats. */
struct scales {
    __m512 scale[MOST_GROUPS][4], zero[MOST_GROUPS][4];
};

INLINE void load_scales(const struct rows *rows, size_t groups, struct scales *s) {
    __m512i pairs[4 + MOST_GROUPS];
    for (size_t v = 0; v < 4; v++) {
        prefetch_step(rows->at, v, 16 * rows->length);
        transpose_pairs(rows, 16 * v, pairs);
        for (size_t b = 0; b < groups; b++) {
            s->scale[b][v] = scale_of(pairs[4 + b]);
            s->zero[b][v] = zero_of(pairs[4 + b]);
        }
    }
}

INLINE void scale_groups(size_t G, size_t planes, const float *weights, const struct rows *rows, size_t groups, struct group *to) {
    struct scales s; /* too large to be cleared */
    load_scales(rows, groups, &s);
    for (size_t b = 0; b < groups; b++) {
        __m512 sum[TOGETHER];
        UNROLL for (size_t g = 0; g < G; g++) {
            sum[g] = _mm512_setzero_ps();
            UNROLL for (size_t v = 0; v < 4; v++) sum[g] =
                _mm512_fmadd_ps(_mm512_loadu_ps(weights + g * PAGE_TOKENS + 16 * v), s.zero[b][v], sum[g]);
        }
        _mm_storeu_ps(to[b].base, join_lanes(SUM, G, sum));
        scale_and_quantize(G, planes, weights, s.scale[b], &to[b].weights);
    }
}

/* A two_codes is two of the codes that 16 bytes of rows hold, as `bits` say from bit `shift` on; for bytes (8) those of 16 bytes
 * and of the next 16. They are of channels from first and second on. */
struct two_codes {
    const uint8_t *rows;
    size_t length, first, second;
    int shift;
};

INLINE void accumulate_two(size_t G, int bits, size_t planes, const struct group *w, const struct two_codes *two, size_t hd,
                           float *acc) {
    const __m512i mask = _mm512_set1_epi8((char)((1 << bits) - 1)), shift = _mm512_set1_epi32(two->shift);
    const __m512i above = _mm512_set1_epi8((char)(((1 << bits) - 1) << bits));
    const size_t first = two->first / SCALE_GROUP, second = two->second / SCALE_GROUP;
    const uint8_t *rows = two->rows;
    __m512i sum[TOGETHER][2][2];
    UNROLL for (size_t g = 0; g < G; g++) sum[g][0][0] = sum[g][0][1] = sum[g][1][0] = sum[g][1][1] = _mm512_setzero_si512();
    for (size_t t = 0; t < PAGE_TOKENS; t += 4, rows += 4 * two->length) {
        __m512i a = four_rows(rows, two->length), b;
        if (bits == 2) a = _mm512_srlv_epi32(a, shift);
        b = bits == 8 ? four_rows(rows + 16, two->length) : _mm512_and_si512(a, above); /* 2^bits times the codes */
        if (bits < 8) a = _mm512_and_si512(a, mask);
        UNROLL for (size_t g = 0; g < G; g++) {
            add_planes(planes, a, w[first].weights.bytes[g], t, sum[g][0]);
            add_planes(planes, b, w[second].weights.bytes[g], t, sum[g][1]);
        }
    }
    UNROLL for (size_t g = 0; g < G; g++) {
        UNROLL for (size_t i = 0; i < 2; i++) {
            size_t group = i ? second : first;
            float *to = acc + g * hd + (i ? two->second : two->first);
            __m512 x = _mm512_add_ps(_mm512_loadu_ps(to), _mm512_set1_ps(w[group].base[g]));
            float step = w[group].weights.step[g] / (float)(i && bits < 8 ? 1 << bits : 1);
            x = _mm512_fmadd_ps(_mm512_set1_ps(step), plane_floats(planes, sum[g][i][0], sum[g][i][1]), x);
            _mm512_storeu_ps(to, x);
        }
    }
}

/* Accumulates 2-bit codes whose sixteen bytes would reach beyond 32 channels: unpacks them to bytes [64][hd] first. */
INLINE void accumulate_bytes(size_t G, size_t planes, const struct group *w, const struct rows *rows, size_t hd, float *acc) {
    uint8_t bytes[PAGE_TOKENS * KERNELS_MOST_CHANNELS];
    spread_codes(rows, hd, bytes);
    for (size_t c = 0; c < hd; c += SCALE_GROUP)
        accumulate_two(G, 8, planes, w, &(struct two_codes){bytes + c, hd, c, c + 16, 0}, hd, acc);
}

INLINE void accumulate_kivi(size_t G, int bits, size_t planes, const float *weights, size_t hd, const void *page, float *acc) {
    uint8_t padded[PAGE_TOKENS * PADDED_ROW];
    struct group w[MOST_GROUPS];
    const struct rows rows = rows_of(page, hd, (unsigned)bits, padded);
    scale_groups(G, planes, weights, &rows, hd / SCALE_GROUP, w);
    if (bits == 2 && hd % 64) {
        accumulate_bytes(G, planes, w, &rows, hd, acc);
        return;
    }
    for (size_t at = 0; at < rows.codes; at += 16) {
        for (int shift = 0; shift < 8; shift += 2 * bits) {
            size_t first = at + (size_t)(shift / bits) * rows.codes;
            accumulate_two(G, bits, planes, w, &(struct two_codes){rows.at + at, rows.length, first, first + rows.codes, shift}, hd,
                           acc);
        }
    }
}

INLINE void accumulate_kivi_4(size_t G, const float *weights, size_t hd, const void *page, float *acc) {
    accumulate_kivi(G, 4, 2, weights, hd, page, acc);
}
INLINE void accumulate_kivi_2(size_t G, const float *weights, size_t hd, const void *page, float *acc) {
    accumulate_kivi(G, 2, 2, weights, hd, page, acc);
}
INLINE void accumulate_int8_kivi_4(size_t G, const float *weights, size_t hd, const void *page, float *acc) {
    accumulate_kivi(G, 4, 1, weights, hd, page, acc);
}
INLINE void accumulate_int8_kivi_2(size_t G, const float *weights, size_t hd, const void *page, float *acc) {
    accumulate_kivi(G, 2, 1, weights, hd, page, acc);
}

PAGE_KERNELS_4(accumulate_kivi_4)
static void accumulate_kivi_4_avx512(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    call_page_kernels(accumulate_kivi_4_of, TOGETHER, weights, PAGE_TOKENS, G, hd, page, acc, hd);
}
PAGE_KERNELS_4(accumulate_kivi_2)
static void accumulate_kivi_2_avx512(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    call_page_kernels(accumulate_kivi_2_of, TOGETHER, weights, PAGE_TOKENS, G, hd, page, acc, hd);
}
PAGE_KERNELS_4(accumulate_int8_kivi_4)
static void accumulate_int8_kivi_4_avx512(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    call_page_kernels(accumulate_int8_kivi_4_of, TOGETHER, weights, PAGE_TOKENS, G, hd, page, acc, hd);
}
PAGE_KERNELS_4(accumulate_int8_kivi_2)
static void accumulate_int8_kivi_2_avx512(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    call_page_kernels(accumulate_int8_kivi_2_of, TOGETHER, weights, PAGE_TOKENS, G, hd, page, acc, hd);
}

void scaled_init_avx512_kivi(struct scaled_ops *ops) {
    ops->int8_is_faster = true;
    ops->score_kivi_4 = score_kivi_4_avx512;
    ops->score_kivi_2 = score_kivi_2_avx512;
    ops->accumulate_kivi_4 = accumulate_kivi_4_avx512;
    ops->accumulate_kivi_2 = accumulate_kivi_2_avx512;
    ops->accumulate_int8_kivi_4 = accumulate_int8_kivi_4_avx512;
    ops->accumulate_int8_kivi_2 = accumulate_int8_kivi_2_avx512;
}
