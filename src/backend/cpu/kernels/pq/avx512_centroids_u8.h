/* Keys and values by levels with AVX-512: included once by avx512_product.c, after the look-ups in registers. An instruction adds to
 * each of 16 numbers four products of bytes: levels, and what they are weighed with as fixed point (backend/cpu/kernels/lanes/avx512_fixed.h). */

/* sum + levels times four bytes in each dword. As intrinsics, gcc 12 brings what is fetched in a loop to memory as whole registers before
 * it. */
INLINE __m512i add_weighed(__m512i sum, __m512i levels, const int8_t *four) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(levels), "m"(*(const char(*)[4])four));
    return sum;
}

#define LEVEL_CHANNELS 16 /* that are looked up, turned over into memory of the first-level cache and then met */

/* ---- Keys by levels: the lanes are 16 tokens, the bytes four channels ---------------------------------------------------- */

/* Of each query, pq_i16_floats floats: int8 [2][hd], q times the channel's step; the step of that; the sum of q times the lows. */
static void quantize_query_pq(const struct pq_codebook *p, const float *q, size_t G, float *fixed) {
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

/* Levels of one channel after another. */
struct reader {
    const struct pq_codebook *p;
    const void *page;
    const uint8_t *table; /* of the next channel */
    size_t part, left;    /* the next sub-vector, and channels left of the one before */
    struct codes codes;   /* of that */
    enum order order;
};

INLINE __m512i next_levels(size_t quarters, struct reader *reader) {
    if (!reader->left) {
        reader->codes = codes_load(quarters, reader->p, reader->page, reader->part++, reader->order);
        reader->left = reader->p->width;
    }
    reader->left--;
    __m512i levels = codes_look_up(quarters, &reader->codes, reader->table);
    reader->table += 64 * quarters;
    return levels;
}

/* A reader of the channels from the c-th on. */
INLINE struct reader reader_at(size_t quarters, const struct pq_codebook *p, const void *page, enum order order, size_t c) {
    struct reader reader = {
        .p = p, .page = page, .table = p->centroids_u8 + c * 64 * quarters, .part = c / p->width, .order = order};
    size_t passed = c % p->width;
    if (passed) {
        reader.codes = codes_load(quarters, p, page, reader.part++, order);
        reader.left = p->width - passed;
    }
    return reader;
}

/* Levels of four channels to x[4], part l of x[r] having the tokens that lie from byte 16 l + 4 r on. */
INLINE void four_levels(size_t quarters, struct reader *reader, __m512i *x) {
    __m512i at[4], low[2], high[2];
    UNROLL for (size_t i = 0; i < 4; i++) at[i] = next_levels(quarters, reader);
    UNROLL for (size_t i = 0; i < 2; i++) {
        low[i] = _mm512_unpacklo_epi8(at[2 * i], at[2 * i + 1]);
        high[i] = _mm512_unpackhi_epi8(at[2 * i], at[2 * i + 1]);
    }
    x[0] = _mm512_unpacklo_epi16(low[0], low[1]);
    x[1] = _mm512_unpackhi_epi16(low[0], low[1]);
    x[2] = _mm512_unpacklo_epi16(high[0], high[1]);
    x[3] = _mm512_unpackhi_epi16(high[0], high[1]);
}

/* logits[64] of high[4], low[4] as four_levels lays tokens out. */
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

#define LEVELS_TOGETHER 3 /* queries whose sums, eight registers each, leave room for looking up */

/* n queries, levels[hd / 4][4] looked up or from a pass before, and kept for another. */
INLINE void score_pass(size_t n, size_t quarters, bool look_up, bool keep, const struct fused *fused, __m512i (*levels)[4],
                       const float *fixed, float *logits) {
    const struct pq_codebook *p = fused->p;
    const size_t hd = pq_channels(p), apart = pq_i16_floats(p);
    const int8_t *bytes = (const int8_t *)fixed;
    struct reader reader = {.p = p, .page = fused->page, .table = p->centroids_u8, .order = AS_THEY_ARE};
    __m512i high[LEVELS_TOGETHER][4], low[LEVELS_TOGETHER][4];
    UNROLL for (size_t g = 0; g < n; g++) { UNROLL for (size_t r = 0; r < 4; r++) high[g][r] = low[g][r] = _mm512_setzero_si512(); }
    for (size_t c = 0; c < hd; c += 4, bytes += 4) {
        __m512i x[4];
        if (look_up) four_levels(quarters, &reader, x);
        UNROLL for (size_t r = 0; r < 4; r++) {
            if (keep) levels[c / 4][r] = x[r];
            if (!look_up) x[r] = levels[c / 4][r];
        }
        UNROLL for (size_t g = 0; g < n; g++) {
            const int8_t *of = bytes + g * apart * sizeof(float);
            UNROLL for (size_t r = 0; r < 4; r++) {
                high[g][r] = add_weighed(high[g][r], x[r], of);
                low[g][r] = add_weighed(low[g][r], x[r], of + hd);
            }
        }
    }
    UNROLL for (size_t g = 0; g < n; g++) {
        const float *scale = fixed + g * apart + hd / 2;
        fixed_to_logits(high[g], low[g], scale[0], scale[1], logits + g * PAGE_TOKENS);
    }
}

INLINE void score_levels(size_t G, size_t quarters, const struct fused *fused, const float *fixed, float *logits) {
    const size_t apart = pq_i16_floats(fused->p), first = SMALLER(G, LEVELS_TOGETHER);
    __m512i levels[KERNELS_MOST_CHANNELS / 4][4];
    score_pass(first, quarters, true, G > first, fused, levels, fixed, logits);
    if (G > first)
        score_pass(SMALLER(G - first, LEVELS_TOGETHER), quarters, false, false, fused, levels, fixed + first * apart,
                   logits + first * PAGE_TOKENS);
    if (G > 2 * first)
        score_pass(G - 2 * first, quarters, false, false, fused, levels, fixed + 2 * first * apart,
                   logits + 2 * first * PAGE_TOKENS);
}

/* Of name_levels(G, quarters, fused, in, out): name_eight_bits, and name_fewer_bits for all others. */
#define BY_BITS(name) \
    INLINE void name##_eight_bits(size_t G, const void *what, const float *in, float *out) { name##_levels(G, 4, what, in, out); } \
    INLINE void name##_fewer_bits(size_t G, const void *what, const float *in, float *out) { \
        const struct fused *fused = what; \
        if (fused->p->bits == 7) \
            name##_levels(G, 2, fused, in, out); \
        else \
            name##_levels(G, 1, fused, in, out); \
    } \
    EACH_PQ(name##_eight_bits) \
    EACH_PQ(name##_fewer_bits)

BY_BITS(score)

/* ---- Values by levels: the lanes are 16 channels, the bytes four tokens ----------------------------------------------------- */

/* Of one query: bytes[planes][64], their step, and the sum of the weights. */
static void weights_to_bytes(size_t planes, const float *weights, int8_t *bytes, float *step, float *sum) {
    __m512 w[4], all = _mm512_setzero_ps(), most = _mm512_setzero_ps();
    for (size_t v = 0; v < 4; v++) {
        w[v] = _mm512_loadu_ps(weights + 16 * v);
        all = _mm512_add_ps(all, w[v]);
        most = _mm512_max_ps(most, _mm512_abs_ps(w[v]));
    }
    *step = fixed_step(_mm512_reduce_max_ps(most)) * (planes == 2 ? 1 : (float)FIXED_MOST / COARSE_MOST);
    *sum = _mm512_reduce_add_ps(all);
    __m512 inverse = fixed_inverse(*step);
    for (size_t v = 0; v < 4; v++) {
        __m512 multiples = _mm512_mul_ps(w[v], inverse);
        if (planes == 2)
            to_bytes(multiples, bytes + 16 * v, bytes + PAGE_TOKENS + 16 * v);
        else
            _mm_storeu_si128((__m128i *)(bytes + 16 * v), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(multiples)));
    }
}

struct weights_bytes {
    int8_t of[MOST_QUERIES][2][PAGE_TOKENS];
    float step[MOST_QUERIES], sum[MOST_QUERIES];
};

INLINE void all_weights_to_bytes(size_t G, size_t planes, const float *weights, struct weights_bytes *bytes) {
    for (size_t g = 0; g < G; g++)
        weights_to_bytes(planes, weights + g * PAGE_TOKENS, bytes->of[g][0], &bytes->step[g], &bytes->sum[g]);
}

/* acc[G][hd] += 16 channels from c on, levels weighed by high and low bytes, or by high ones that are whole numbers. */
INLINE void add_accumulated(size_t G, size_t planes, const struct pq_codebook *p, size_t c, const __m512i *high, const __m512i *low,
                            const struct weights_bytes *bytes, float *acc) {
    vec c_step = vec_load(p->step + c), c_low = vec_load(p->low + c);
    UNROLL for (size_t g = 0; g < G; g++) {
        float *at = acc + g * pq_channels(p) + c;
        vec to = vec_fma(c_low, vec_set(bytes->sum[g]), vec_load(at));
        vec sum = plane_floats(planes, high[g], low[g]);
        vec_store(at, vec_fma(vec_mul(c_step, vec_set(bytes->step[g])), sum, to));
    }
}

/* Levels of four channels to x[4], part l of x[r] having tokens 16 l + 4 r to 16 l + 4 r + 3, a channel in each dword. */
INLINE void four_channels(size_t quarters, struct reader *reader, __m512i *x) {
    __m512i at[4];
    UNROLL for (size_t i = 0; i < 4; i++) at[i] = next_levels(quarters, reader);
    transpose_fours(at, x);
}

/* Part l of four registers to out[l]: 16 channels of four tokens. */
INLINE void gather_parts(__m512i a, __m512i b, __m512i c, __m512i d, __m512i *out) {
    __m512i even_ab = _mm512_shuffle_i32x4(a, b, 0x88), odd_ab = _mm512_shuffle_i32x4(a, b, 0xdd);
    __m512i even_cd = _mm512_shuffle_i32x4(c, d, 0x88), odd_cd = _mm512_shuffle_i32x4(c, d, 0xdd);
    out[0] = _mm512_shuffle_i32x4(even_ab, even_cd, 0x88);
    out[1] = _mm512_shuffle_i32x4(odd_ab, odd_cd, 0x88);
    out[2] = _mm512_shuffle_i32x4(even_ab, even_cd, 0xdd);
    out[3] = _mm512_shuffle_i32x4(odd_ab, odd_cd, 0xdd);
}

INLINE void accumulate_planes(size_t G, size_t quarters, size_t planes, const struct fused *fused, const float *weights,
                              float *acc) {
    const struct pq_codebook *p = fused->p;
    const size_t hd = pq_channels(p);
    struct reader reader = {.p = p, .page = fused->page, .table = p->centroids_u8, .order = AS_THEY_ARE};
    struct weights_bytes bytes;
    __m512i x[2][LEVEL_CHANNELS / 4][4];
    all_weights_to_bytes(G, planes, weights, &bytes);
    UNROLL for (size_t i = 0; i < LEVEL_CHANNELS / 4; i++) four_channels(quarters, &reader, x[0][i]);
    for (size_t c = 0; c < hd; c += LEVEL_CHANNELS) {
        __m512i high[MOST_QUERIES], low[MOST_QUERIES], (*now)[4] = x[c / LEVEL_CHANNELS % 2],
                                                       (*next)[4] = x[1 - c / LEVEL_CHANNELS % 2];
        bool more = c + LEVEL_CHANNELS < hd;
        UNROLL for (size_t g = 0; g < G; g++) high[g] = low[g] = _mm512_setzero_si512();
        UNROLL for (size_t r = 0; r < 4; r++) {
            __m512i by_token[4], at[4];
            gather_parts(now[0][r], now[1][r], now[2][r], now[3][r], by_token);
            UNROLL for (size_t l = 0; l < 4; l++) {
                if (more) at[l] = next_levels(quarters, &reader);
                UNROLL for (size_t g = 0; g < G; g++) {
                    high[g] = add_weighed(high[g], by_token[l], bytes.of[g][0] + 16 * l + 4 * r);
                    if (planes == 2) low[g] = add_weighed(low[g], by_token[l], bytes.of[g][1] + 16 * l + 4 * r);
                }
            }
            if (more) transpose_fours(at, next[r]);
        }
        add_accumulated(G, planes, p, c, high, low, &bytes, acc);
    }
}

INLINE void accumulate_levels(size_t G, size_t quarters, const struct fused *fused, const float *weights, float *acc) {
    accumulate_planes(G, quarters, 2, fused, weights, acc);
}
INLINE void accumulate_int8_levels(size_t G, size_t quarters, const struct fused *fused, const float *weights, float *acc) {
    accumulate_planes(G, quarters, 1, fused, weights, acc);
}

BY_BITS(accumulate)
BY_BITS(accumulate_int8)
