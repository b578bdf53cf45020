/* Product quantization and turned keys with AVX-512. */
#include "kernels/avx512_lanes.h"

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

#include "kernels/code_planes.h"
#include "kernels/fill.h"

#include <math.h>

#define LOOK_UP_QUERIES 4 /* that one pass serves: four sums each */

/* ---- Codes of up to eight bits: numbers looked up in registers, 64 at a time ------------------------------------------------------
 *
 * A permutation of bytes is a look-up of 64 bytes in a table of 64; tables of 128 and 256 are two and four of them under masks. A
 * number of 16 bits is two such look-ups, of its low and of its high byte, wherefore the centroids lie in planes. */

struct codes {
    __m512i bytes;
    __mmask64 second, third, fourth; /* codes in these quarters of a table of 256 */
};

/* code[64] by byte. With `order` those of the low halves of all parts come first: unpacking then gives tokens in order. */
static inline __attribute__((always_inline)) struct codes codes_load(const struct product_code *p, const void *block, size_t m,
                                                                     bool order) {
    const uint8_t *planes = (const uint8_t *)block + m * BLOCK_PQ_PART(p->bits);
    const __m512i halves = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    struct codes codes;
    if (p->bits == 8) {
        codes.bytes = _mm512_loadu_si512(planes);
    } else {
        uint16_t words[BLOCK_TOKENS];
        code_planes_read(planes, p->bits, words);
        codes.bytes = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(_mm512_loadu_si512(words))),
                                         _mm512_cvtepi16_epi8(_mm512_loadu_si512(words + 32)), 1);
    }
    if (order) codes.bytes = _mm512_permutexvar_epi64(halves, codes.bytes);
    __mmask64 bit7 = _mm512_movepi8_mask(codes.bytes), bit6 = _mm512_movepi8_mask(_mm512_slli_epi16(codes.bytes, 1));
    codes.second = _kandn_mask64(bit7, bit6);
    codes.third = _kandn_mask64(bit6, bit7);
    codes.fourth = _kand_mask64(bit6, bit7);
    return codes;
}

/* 64 look-ups in a table of 64 `quarters` bytes. */
static inline __attribute__((always_inline)) __m512i codes_look_up(size_t quarters, const struct codes *codes,
                                                                   const uint8_t *table) {
    __m512i x = _mm512_permutexvar_epi8(codes->bytes, _mm512_loadu_si512(table));
    if (quarters > 1) x = _mm512_mask_permutexvar_epi8(x, codes->second, codes->bytes, _mm512_loadu_si512(table + 64));
    if (quarters > 2) x = _mm512_mask_permutexvar_epi8(x, codes->third, codes->bytes, _mm512_loadu_si512(table + 128));
    if (quarters > 2) x = _mm512_mask_permutexvar_epi8(x, codes->fourth, codes->bytes, _mm512_loadu_si512(table + 192));
    return x;
}

static inline __attribute__((always_inline)) void decode_by_planes(size_t quarters, const struct product_code *p, const void *block,
                                                                   size_t m, size_t n, uint16_t *halves) {
    const uint8_t *planes = p->planes + m * p->width * 2 * 64 * quarters;
    for (size_t end = m + n; m < end; m++) {
        struct codes codes = codes_load(p, block, m, true);
        for (size_t i = 0; i < p->width; i++, planes += 2 * 64 * quarters, halves += BLOCK_TOKENS) {
            __m512i low = codes_look_up(quarters, &codes, planes), high = codes_look_up(quarters, &codes, planes + 64 * quarters);
            _mm512_storeu_si512(halves, _mm512_unpacklo_epi8(low, high));
            _mm512_storeu_si512(halves + 32, _mm512_unpackhi_epi8(low, high));
        }
    }
}

static void decode_by_rows(const struct product_code *p, const void *block, size_t m, size_t n, uint16_t *halves);

static void decode_chunk(const struct product_code *p, const void *block, size_t m, size_t n, uint16_t *halves) {
    if (!p->planes)
        decode_by_rows(p, block, m, n, halves);
    else if (p->bits == 8)
        decode_by_planes(4, p, block, m, n, halves);
    else if (p->bits == 7)
        decode_by_planes(2, p, block, m, n, halves);
    else
        decode_by_planes(1, p, block, m, n, halves);
}
#define DECODE_CHUNK decode_chunk

#include "kernels/product_template.h"

/* ---- Codes of eight bits met as they are decoded: a channel's 64 numbers go from the planes to the sums without memory between,
 * so that looking up, which is one port's work, and multiplying overlap. */

#define FUSED_QUERIES 6 /* whose sums, four registers each, leave room */

/* x[4] of one channel. */
INLINE void channel_floats(const struct codes *codes, const uint8_t *planes, vec *x) {
    __m512i low = codes_look_up(4, codes, planes), high = codes_look_up(4, codes, planes + 256);
    __m512i a = _mm512_unpacklo_epi8(low, high), b = _mm512_unpackhi_epi8(low, high);
    x[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(a));
    x[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(a, 1));
    x[2] = _mm512_cvtph_ps(_mm512_castsi512_si256(b));
    x[3] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(b, 1));
}

struct fused {
    const struct product_code *p;
    const void *block;
    const struct key_turn *turn;
};

INLINE void score_fused(size_t G_, const void *what, const float *q, float *logits) {
    const struct fused *fused = what;
    const struct product_code *p = fused->p;
    const size_t G = SMALLER(G_, FUSED_QUERIES), hd = product_channels(p);
    sums sum;
    sums_clear(G, 4, sum);
    for (size_t m = 0; m < p->parts; m++) {
        struct codes codes = codes_load(p, fused->block, m, true);
        for (size_t c = m * p->width; c < (m + 1) * p->width; c++) {
            vec x[4];
            channel_floats(&codes, p->planes + c * 512, x);
            sums_add(G, 4, q + c, hd, x, sum);
        }
    }
    sums_store(G, 4, sum, false, logits, BLOCK_TOKENS, LANES);
}

/* x = mean + gain x of channel c. */
INLINE void gain_floats(const struct key_turn *turn, size_t c, vec *x) {
    UNROLL for (size_t w = 0; w < 4; w++) x[w] = vec_fma(x[w], vec_load(turn->gain + w * LANES), vec_set(turn->mean[c]));
}

/* Two channels turned by the angles of the i-th pair. */
INLINE void fused_turn(size_t G, bool gain, const struct fused *fused, const struct codes *a_codes, const struct codes *b_codes,
                       size_t i, size_t first, size_t second, const float *q, sums sum) {
    const float *cosine = fused->turn->cosine + i * BLOCK_TOKENS, *sine = fused->turn->sine + i * BLOCK_TOKENS;
    size_t hd = product_channels(fused->p);
    vec a[4], b[4], x[4], y[4];
    channel_floats(a_codes, fused->p->planes + first * 512, a);
    channel_floats(b_codes, fused->p->planes + second * 512, b);
    if (gain) gain_floats(fused->turn, first, a);
    if (gain) gain_floats(fused->turn, second, b);
    UNROLL for (size_t w = 0; w < 4; w++) {
        vec c = vec_load(cosine + w * LANES), s = vec_load(sine + w * LANES);
        x[w] = vec_fnma(b[w], s, vec_mul(a[w], c));
        y[w] = vec_fma(b[w], c, vec_mul(a[w], s));
    }
    sums_add(G, 4, q + first, hd, x, sum);
    sums_add(G, 4, q + second, hd, y, sum);
}

/* Whole sub-vectors are turned with themselves or with others. */
INLINE void fused_turns(size_t G, bool gain, const struct fused *fused, const float *q, float *logits) {
    const struct product_code *p = fused->p;
    const size_t pairs = fused->turn->pairs, w = p->width, turned = 2 * pairs / w, hd = product_channels(p);
    sums sum;
    sums_clear(G, 4, sum);
    for (size_t m = 0; fused->turn->adjacent && m < turned; m++) {
        struct codes codes = codes_load(p, fused->block, m, true);
        for (size_t c = m * w; c < (m + 1) * w; c += 2) fused_turn(G, gain, fused, &codes, &codes, c / 2, c, c + 1, q, sum);
    }
    for (size_t m = 0; !fused->turn->adjacent && m < turned / 2; m++) {
        struct codes a = codes_load(p, fused->block, m, true), b = codes_load(p, fused->block, m + turned / 2, true);
        for (size_t c = m * w; c < (m + 1) * w; c++) fused_turn(G, gain, fused, &a, &b, c, c, c + pairs, q, sum);
    }
    for (size_t m = turned; m < p->parts; m++) {
        struct codes codes = codes_load(p, fused->block, m, true);
        for (size_t c = m * w; c < (m + 1) * w; c++) {
            vec x[4];
            channel_floats(&codes, p->planes + c * 512, x);
            if (gain) gain_floats(fused->turn, c, x);
            sums_add(G, 4, q + c, hd, x, sum);
        }
    }
    sums_store(G, 4, sum, false, logits, BLOCK_TOKENS, LANES);
}

INLINE void turn_fused(size_t G, const void *what, const float *q, float *logits) {
    fused_turns(SMALLER(G, FUSED_QUERIES), false, what, q, logits);
}

INLINE void turn_fused_gained(size_t G, const void *what, const float *q, float *logits) {
    fused_turns(SMALLER(G, FUSED_QUERIES), true, what, q, logits);
}

EACH_PQ(score_fused)
EACH_PQ(turn_fused)
EACH_PQ(turn_fused_gained)

static void score_pq(const struct product_code *p, const float *q, size_t G, const void *block, float *logits) {
    struct fused fused = {.p = p, .block = block};
    if (p->planes && p->bits == 8 && G <= FUSED_QUERIES)
        score_fused_of[G - 1](&fused, q, logits);
    else
        score_pq_avx512(p, q, G, block, logits);
}

static void score_turned_pq(const struct product_code *p, const struct key_turn *turn, const float *q, size_t G, const void *block,
                            float *logits) {
    struct fused fused = {p, block, turn};
    bool whole = turn->adjacent ? p->width % 2 == 0 && 2 * turn->pairs % p->width == 0 : turn->pairs % p->width == 0;
    if (!p->planes || p->bits != 8 || G > FUSED_QUERIES || !whole)
        score_turned_pq_avx512(p, turn, q, G, block, logits);
    else if (turn->gain)
        turn_fused_gained_of[G - 1](&fused, q, logits);
    else
        turn_fused_of[G - 1](&fused, q, logits);
}

/* ---- Look-up by planes: tables in fixed point of 16 bits ----------------------------------------------------------------------------
 *
 * An entry is (product - the sub-vector's least) / step, the step that of the query's widest sub-vector. Low and high bytes are
 * summed apart, each in 16 bits: 256 sub-vectors come to 255 * 256 at most, and all to less than 2^24, which a float holds. Tables:
 * u8 [parts][G][2][entries] and, behind what product_floats would be without them, float step[G], base[G], the sums of the leasts. */

static float *table_scales(const struct product_code *p, size_t G, float *tables) {
    return tables + product_floats(p, G) - 2 * product_stride(G);
}

/* The products of 64 centroids with q[width], in the order that unpacking bytes leaves them in. */
static void products(const struct product_code *p, const uint8_t *low, const float *q, __m512 *sum) {
    size_t plane = PRODUCT_PLANE(p->bits);
    for (size_t v = 0; v < 4; v++) sum[v] = _mm512_setzero_ps();
    for (size_t i = 0; i < p->width; i++, low += 2 * plane) {
        __m512i a = _mm512_loadu_si512(low), b = _mm512_loadu_si512(low + plane), x[2];
        x[0] = _mm512_unpacklo_epi8(a, b);
        x[1] = _mm512_unpackhi_epi8(a, b);
        for (size_t v = 0; v < 4; v++) {
            __m256i halves = v % 2 ? _mm512_extracti64x4_epi64(x[v / 2], 1) : _mm512_castsi512_si256(x[v / 2]);
            sum[v] = _mm512_fmadd_ps(_mm512_set1_ps(q[i]), _mm512_cvtph_ps(halves), sum[v]);
        }
    }
}

/* One entry of fixed point for each of 64 products: back to bytes as they were unpacked. */
static void to_fixed_point(const float *floats, __m512 least, __m512 inverse, uint8_t *low, size_t plane) {
    const __m512i byte = _mm512_set1_epi16(255);
    __m512i words[2];
    for (size_t v = 0; v < 2; v++) {
        __m512 a = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(floats + 32 * v), least), inverse);
        __m512 b = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(floats + 32 * v + 16), least), inverse);
        words[v] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtusepi32_epi16(_mm512_cvtps_epu32(a))),
                                      _mm512_cvtusepi32_epi16(_mm512_cvtps_epu32(b)), 1);
    }
    _mm512_storeu_si512(low, _mm512_packus_epi16(_mm512_and_si512(words[0], byte), _mm512_and_si512(words[1], byte)));
    _mm512_storeu_si512(low + plane, _mm512_packus_epi16(_mm512_srli_epi16(words[0], 8), _mm512_srli_epi16(words[1], 8)));
}

/* All of a query's products to floats[parts][G][entries], of which `query` is the g-th; its step and base. */
static void query_products(const struct product_code *p, const float *q, size_t G, float *floats, float *step, float *base) {
    size_t entries = PRODUCT_PLANE(p->bits), plane = entries;
    float widest = 0;
    *base = 0;
    for (size_t m = 0; m < p->parts; m++, q += p->width, floats += G * entries) {
        __m512 least = _mm512_set1_ps(INFINITY), most = _mm512_set1_ps(-INFINITY), sum[4];
        for (size_t j = 0; j < entries; j += 64) {
            products(p, p->planes + m * p->width * 2 * plane + j, q, sum);
            for (size_t v = 0; v < 4; v++) {
                least = _mm512_min_ps(least, sum[v]);
                most = _mm512_max_ps(most, sum[v]);
                _mm512_storeu_ps(floats + j + 16 * v, sum[v]);
            }
        }
        float low = _mm512_reduce_min_ps(least), span = _mm512_reduce_max_ps(most) - low;
        if (span > widest) widest = span;
        *base += low;
    }
    *step = widest > 1e-32f ? widest / 65535 : 0; /* that its inverse be finite */
}

static void prepare_planes(const struct product_code *p, const float *q, size_t G, float *tables) {
    size_t entries = PRODUCT_PLANE(p->bits), hd = product_channels(p);
    float *step = table_scales(p, G, tables), *base = step + G, floats[256];
    uint8_t *bytes = (uint8_t *)tables;
    for (size_t g = 0; g < G; g++) query_products(p, q + g * hd, G, tables + g * entries, &step[g], &base[g]);
    /* In place: what is written ends before what is still to be read. */
    for (size_t i = 0; i < p->parts * G; i++, bytes += 2 * entries) {
        float scale = step[i % G];
        __m512 least = _mm512_set1_ps(INFINITY), inverse = _mm512_set1_ps(scale > 0 ? 1 / scale : 0);
        memcpy(floats, tables + i * entries, entries * sizeof *floats);
        for (size_t j = 0; j < entries; j += 16) least = _mm512_min_ps(least, _mm512_loadu_ps(floats + j));
        least = _mm512_set1_ps(_mm512_reduce_min_ps(least));
        for (size_t j = 0; j < entries; j += 64) to_fixed_point(floats + j, least, inverse, bytes + j, entries);
    }
}

/* logits[64] of the sums of bytes: as words with the odd tokens' bytes above them, and of the odd tokens alone. */
static void sums_to_logits(const __m512i *sum, float step, float base, float *logits) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    __m512i low_even = _mm512_sub_epi16(sum[0], _mm512_slli_epi16(sum[1], 8));
    __m512i high_even = _mm512_sub_epi16(sum[2], _mm512_slli_epi16(sum[3], 8));
    for (int v = 0; v < 2; v++) {
        __m512i part[4] = {low_even, high_even, sum[1], sum[3]};
        for (size_t i = 0; i < 4; i++) {
            __m256i words = v ? _mm512_extracti64x4_epi64(part[i], 1) : _mm512_castsi512_si256(part[i]);
            part[i] = _mm512_cvtepu16_epi32(words);
        }
        __m512i even = _mm512_add_epi32(part[0], _mm512_slli_epi32(part[1], 8));
        __m512i odd = _mm512_add_epi32(part[2], _mm512_slli_epi32(part[3], 8));
        vec a = _mm512_cvtepi32_ps(_mm512_permutex2var_epi32(even, first, odd));
        vec b = _mm512_cvtepi32_ps(_mm512_permutex2var_epi32(even, last, odd));
        _mm512_storeu_ps(logits + 32 * v, _mm512_fmadd_ps(a, _mm512_set1_ps(step), _mm512_set1_ps(base)));
        _mm512_storeu_ps(logits + 32 * v + 16, _mm512_fmadd_ps(b, _mm512_set1_ps(step), _mm512_set1_ps(base)));
    }
}

/* n queries of G, whose first table is at `table`. */
INLINE void look_up_planes(size_t n, size_t quarters, const struct product_code *p, const uint8_t *table, size_t G,
                           const float *step, const void *block, float *logits) {
    __m512i sum[LOOK_UP_QUERIES][4];
    UNROLL for (size_t g = 0; g < n; g++) { UNROLL for (size_t i = 0; i < 4; i++) sum[g][i] = _mm512_setzero_si512(); }
    for (size_t m = 0; m < p->parts; m++, table += G * 2 * 64 * quarters) {
        struct codes codes = codes_load(p, block, m, false);
        UNROLL for (size_t g = 0; g < n; g++) {
            const uint8_t *from = table + g * 2 * 64 * quarters;
            __m512i low = codes_look_up(quarters, &codes, from), high = codes_look_up(quarters, &codes, from + 64 * quarters);
            sum[g][0] = _mm512_add_epi16(sum[g][0], low);
            sum[g][1] = _mm512_add_epi16(sum[g][1], _mm512_srli_epi16(low, 8));
            sum[g][2] = _mm512_add_epi16(sum[g][2], high);
            sum[g][3] = _mm512_add_epi16(sum[g][3], _mm512_srli_epi16(high, 8));
        }
    }
    UNROLL for (size_t g = 0; g < n; g++) sums_to_logits(sum[g], step[g], step[G + g], logits + g * BLOCK_TOKENS);
}

static __attribute__((noinline)) void look_up_eight_bits(size_t n, const struct product_code *p, const uint8_t *table, size_t G,
                                                         const float *step, const void *block, float *logits) {
    if (n == 4)
        look_up_planes(4, 4, p, table, G, step, block, logits);
    else if (n == 3)
        look_up_planes(3, 4, p, table, G, step, block, logits);
    else if (n == 2)
        look_up_planes(2, 4, p, table, G, step, block, logits);
    else
        look_up_planes(1, 4, p, table, G, step, block, logits);
}

static __attribute__((noinline)) void look_up_fewer_bits(size_t n, const struct product_code *p, const uint8_t *table, size_t G,
                                                         const float *step, const void *block, float *logits) {
    for (size_t g = 0; g < n; g++) {
        const uint8_t *from = table + g * 2 * PRODUCT_PLANE(p->bits);
        if (p->bits == 7)
            look_up_planes(1, 2, p, from, G, step + g, block, logits + g * BLOCK_TOKENS);
        else
            look_up_planes(1, 1, p, from, G, step + g, block, logits + g * BLOCK_TOKENS);
    }
}

/* ---- Values by levels: sums of products of bytes -----------------------------------------------------------------------------------
 *
 * An instruction adds to each of 16 numbers four products of unsigned and signed bytes. So 16 channels are the lanes, four tokens
 * their bytes: look-ups give 64 tokens of a channel, and turning over 16 channels of them gives 16 registers of that form. Weights
 * are fixed point of two signed bytes, in steps of each query's largest / 32639, which is finer than halves; high and low bytes are
 * summed apart, exactly. A third byte would cost a third more time. */

#define LEVEL_QUERIES 6 /* two sums each, beside 16 registers of levels */

struct levels {
    const struct product_code *p;
    const uint8_t *bytes; /* [hd][64] */
};

/* Of one query: bytes[2][64], high and low ones of 32639 weight / largest, the step, and the sum of the weights. */
static void weights_to_bytes(const float *weights, int8_t *bytes, float *step, float *sum) {
    __m512 w[4], all = _mm512_setzero_ps(), most = _mm512_setzero_ps();
    for (size_t v = 0; v < 4; v++) {
        w[v] = _mm512_loadu_ps(weights + 16 * v);
        all = _mm512_add_ps(all, w[v]);
        most = _mm512_max_ps(most, _mm512_abs_ps(w[v]));
    }
    float largest = _mm512_reduce_max_ps(most);
    *step = largest > 1e-30f ? largest / 32639 : 0; /* that its inverse be finite */
    *sum = _mm512_reduce_add_ps(all);
    __m512 inverse = _mm512_set1_ps(*step > 0 ? 1 / *step : 0);
    for (size_t v = 0; v < 4; v++) {
        __m512i x = _mm512_cvtps_epi32(_mm512_mul_ps(w[v], inverse));
        __m512i high = _mm512_srai_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(128)), 8); /* less the low byte, which is signed */
        _mm_storeu_si128((__m128i *)(bytes + 16 * v), _mm512_cvtepi32_epi8(high));
        _mm_storeu_si128((__m128i *)(bytes + 64 + 16 * v), _mm512_cvtepi32_epi8(x));
    }
}

/* out[i], dword j = in[j], dword i */
INLINE void turn_over_16(const __m512i *in, __m512i *out) {
    __m512i a[16], b[16];
    UNROLL for (size_t i = 0; i < 8; i++) {
        a[2 * i] = _mm512_unpacklo_epi32(in[2 * i], in[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(in[2 * i], in[2 * i + 1]);
    }
    UNROLL for (size_t i = 0; i < 4; i++) { /* b[4 i + j], part l: rows 4 i to 4 i + 3 of column 4 l + j */
        b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    UNROLL for (size_t j = 0; j < 4; j++) {
        __m512i even_a = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88), odd_a = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd);
        __m512i even_b = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88), odd_b = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
        out[j] = _mm512_shuffle_i32x4(even_a, even_b, 0x88);
        out[4 + j] = _mm512_shuffle_i32x4(odd_a, odd_b, 0x88);
        out[8 + j] = _mm512_shuffle_i32x4(even_a, even_b, 0xdd);
        out[12 + j] = _mm512_shuffle_i32x4(odd_a, odd_b, 0xdd);
    }
}

INLINE void mix_levels(size_t G_, const void *what, const float *weights, float *acc) {
    const struct levels *levels = what;
    const size_t G = SMALLER(G_, LEVEL_QUERIES), hd = product_channels(levels->p);
    int32_t fours[LEVEL_QUERIES][2][16]; /* four weights in each */
    float step[LEVEL_QUERIES], sum[LEVEL_QUERIES];
    for (size_t g = 0; g < G; g++) weights_to_bytes(weights + g * BLOCK_TOKENS, (int8_t *)fours[g], &step[g], &sum[g]);
    for (size_t c = 0; c < hd; c += 16) {
        __m512i by_channel[16], by_token[16], high[LEVEL_QUERIES], low[LEVEL_QUERIES];
        UNROLL_16 for (size_t i = 0; i < 16; i++) by_channel[i] = _mm512_loadu_si512(levels->bytes + (c + i) * BLOCK_TOKENS);
        turn_over_16(by_channel, by_token);
        UNROLL for (size_t g = 0; g < G; g++) high[g] = low[g] = _mm512_setzero_si512();
        UNROLL_16 for (size_t t = 0; t < 16; t++) {
            UNROLL for (size_t g = 0; g < G; g++) {
                high[g] = _mm512_dpbusd_epi32(high[g], by_token[t], _mm512_set1_epi32(fours[g][0][t]));
                low[g] = _mm512_dpbusd_epi32(low[g], by_token[t], _mm512_set1_epi32(fours[g][1][t]));
            }
        }
        __m512 c_step = _mm512_loadu_ps(levels->p->step + c), c_low = _mm512_loadu_ps(levels->p->low + c);
        UNROLL for (size_t g = 0; g < G; g++) {
            __m512 whole = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[g], 8), low[g]));
            __m512 to = _mm512_fmadd_ps(c_low, _mm512_set1_ps(sum[g]), _mm512_loadu_ps(acc + g * hd + c));
            to = _mm512_fmadd_ps(_mm512_mul_ps(c_step, _mm512_set1_ps(step[g])), whole, to);
            _mm512_storeu_ps(acc + g * hd + c, to);
        }
    }
}

EACH_PQ(mix_levels)

INLINE void levels_of(size_t quarters, const struct product_code *p, const void *block, uint8_t *bytes) {
    const uint8_t *table = p->levels;
    for (size_t m = 0; m < p->parts; m++) {
        struct codes codes = codes_load(p, block, m, false);
        for (size_t i = 0; i < p->width; i++, table += 64 * quarters, bytes += BLOCK_TOKENS)
            _mm512_storeu_si512(bytes, codes_look_up(quarters, &codes, table));
    }
}

static void mix_pq(const struct product_code *p, const float *weights, size_t G, const void *block, float *acc) {
    uint8_t bytes[KERNELS_MOST_CHANNELS * BLOCK_TOKENS];
    struct levels levels = {p, bytes};
    size_t hd = product_channels(p);
    if (!p->levels) {
        mix_pq_avx512(p, weights, G, block, acc);
        return;
    }
    if (p->bits == 8)
        levels_of(4, p, block, bytes);
    else if (p->bits == 7)
        levels_of(2, p, block, bytes);
    else
        levels_of(1, p, block, bytes);
    for (size_t g = 0; g < G;) {
        size_t passes = (G - g + LEVEL_QUERIES - 1) / LEVEL_QUERIES, n = (G - g) / passes;
        mix_levels_of[n - 1](&levels, weights + g * BLOCK_TOKENS, acc + g * hd);
        g += n;
    }
}

static void prepare_pq(const struct product_code *p, const float *q, size_t G, float *tables) {
    (p->planes ? prepare_planes : prepare_pq_avx512)(p, q, G, tables);
}

static void look_up_pq(const struct product_code *p, const float *tables, size_t G, const void *block, float *logits) {
    if (!p->planes) {
        look_up_pq_avx512(p, tables, G, block, logits);
        return;
    }
    const float *step = tables + product_floats(p, G) - 2 * product_stride(G);
    for (size_t g = 0; g < G;) {
        size_t passes = (G - g + LOOK_UP_QUERIES - 1) / LOOK_UP_QUERIES, n = (G - g) / passes;
        const uint8_t *table = (const uint8_t *)tables + g * 2 * PRODUCT_PLANE(p->bits);
        (p->bits == 8 ? look_up_eight_bits : look_up_fewer_bits)(n, p, table, G, step + g, block, logits + g * BLOCK_TOKENS);
        g += n;
    }
}

void kernels_fill_avx512_product(struct kernels *k) {
    product_fill(k);
    k->planes_pq = true;
    k->score_pq = score_pq;
    k->score_turned_pq = score_turned_pq;
    k->mix_pq = mix_pq;
    k->prepare_pq = prepare_pq;
    k->look_up_pq = look_up_pq;
}
