/* Product quantization and turned keys with AVX-512. */
#include "backend/cpu/kernels/lanes/avx512.h"

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

#include "backend/cpu/kernels/limits.h"
#include "backend/cpu/kernels/pq/code_planes.h"
#include "backend/cpu/kernels/pq/init.h"

#include <math.h>

#define LOOK_UP_QUERIES 4 /* that one pass serves: four sums each */

static void decode_chunk(const struct pq_codebook *p, const void *page, size_t m, size_t n, uint16_t *halves);
#define DECODE_CHUNK decode_chunk
#include "backend/cpu/kernels/pq/template.h"

#include "backend/cpu/kernels/lanes/avx512_fixed.h"

/* ---- Codes of up to eight bits: numbers looked up in registers, 64 at a time ------------------------------------------------
 *
 * A permutation of bytes is a look-up of 64 bytes in a table of 64 or, of two registers, 128; in 256 it is two of them under a mask. A
 * level is one such look-up; a number of 16 bits is two, of its low and of its high byte, wherefore such centroids lie in planes.
 */

struct codes {
    __m512i bytes;
    __mmask64 bit7; /* set in these codes */
};

/* Which token's code each byte has. For halves, such that unpacking two registers of bytes gives tokens in order; for words, such that
 * even bytes are tokens 0 to 31 and odd ones the others; for levels, byte j of the i-th dword is of token 16 j + i, so that one byte of
 * each dword makes 16 tokens in order. */
enum order { AS_THEY_ARE, FOR_HALVES, FOR_WORDS, FOR_LEVELS };

/* In memory: gcc 12 would make it of smaller numbers again and again. */
static const uint8_t order_for_words[64] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                            11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53,
                                            22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};

INLINE __m512i codes_in_order(enum order order, __m512i bytes) {
    if (order == FOR_HALVES) return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), bytes);
    if (order == AS_THEY_ARE) return bytes;
    if (order == FOR_WORDS) return _mm512_permutexvar_epi8(_mm512_loadu_si512(order_for_words), bytes);
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i each = _mm512_mullo_epi32(_mm512_set1_epi32(0x01010101), first);
    return _mm512_permutexvar_epi8(_mm512_add_epi32(each, _mm512_set1_epi32(0x30201000)), bytes);
}

static __attribute__((noinline)) void codes_of_fewer_bits(const uint8_t *planes, unsigned bits, uint8_t *bytes) {
    uint16_t words[PAGE_TOKENS];
    code_planes_read(planes, bits, words);
    for (size_t t = 0; t < PAGE_TOKENS; t++) bytes[t] = (uint8_t)words[t];
}

/* code[64] by byte: of eight bits, for a table of four quarters, as they lie. */
INLINE struct codes codes_load(size_t quarters, const struct pq_codebook *p, const void *page, size_t m, enum order order) {
    const size_t part = PAGE_PQ_PART(quarters == 4 ? 8 : p->bits);
    const uint8_t *planes = (const uint8_t *)page + m * part;
    uint8_t bytes[PAGE_TOKENS];
    struct codes codes;
    prefetch_step(page, m, part);
    if (quarters < 4) codes_of_fewer_bits(planes, p->bits, bytes);
    codes.bytes = _mm512_loadu_si512(quarters < 4 ? bytes : planes);
    codes.bytes = codes_in_order(order, codes.bytes);
    codes.bit7 = _mm512_movepi8_mask(codes.bytes);
    return codes;
}

/* 64 look-ups in a table of 64 `quarters` bytes. */
INLINE __m512i codes_look_up(size_t quarters, const struct codes *codes, const uint8_t *table) {
    const __m512i bytes = codes->bytes, first = _mm512_loadu_si512(table);
    if (quarters == 1) return _mm512_permutexvar_epi8(bytes, first);
    __m512i low = _mm512_permutex2var_epi8(first, bytes, _mm512_loadu_si512(table + 64));
    if (quarters == 2) return low;
    __m512i high = _mm512_permutex2var_epi8(_mm512_loadu_si512(table + 128), bytes, _mm512_loadu_si512(table + 192));
    return _mm512_mask_blend_epi8(codes->bit7, low, high);
}

/* Halves, looked up byte by byte: x[2], tokens in order of codes FOR_HALVES. */
INLINE void planes_halves(size_t quarters, const struct codes *codes, const uint8_t *planes, __m512i *x) {
    __m512i low = codes_look_up(quarters, codes, planes), high = codes_look_up(quarters, codes, planes + 64 * quarters);
    x[0] = _mm512_unpacklo_epi8(low, high);
    x[1] = _mm512_unpackhi_epi8(low, high);
}

/* Floats, x[4] in order of codes FOR_LEVELS: a level, 64 times and added to the bits of 2^17, is a float that much larger, and one
 * multiplication makes it the number. */
INLINE void levels_floats(size_t quarters, const struct codes *codes, const struct pq_codebook *p, size_t c, vec *x) {
    const __m512i power = _mm512_castps_si512(_mm512_set1_ps(0x1p17f));
    __m512i levels = codes_look_up(quarters, codes, p->centroids_u8 + c * 64 * quarters);
    UNROLL for (size_t w = 0; w < 4; w++) {
        __m512i number = add_products(power, levels, _mm512_set1_epi32(64 << 8 * w));
        x[w] = _mm512_fmadd_ps(_mm512_castsi512_ps(number), _mm512_set1_ps(p->step[c]), _mm512_set1_ps(p->from[c]));
    }
}

INLINE void decode_in_registers(size_t quarters, const struct pq_codebook *p, const void *page, size_t m, size_t n,
                                uint16_t *halves) {
    size_t c = m * p->width;
    for (size_t end = m + n; m < end; m++) {
        struct codes codes = codes_load(quarters, p, page, m, p->centroids_u8 ? FOR_LEVELS : FOR_HALVES);
        for (size_t i = 0; i < p->width; i++, c++, halves += PAGE_TOKENS) {
            __m512i x[2];
            __m512 floats[4];
            if (!p->centroids_u8) {
                planes_halves(quarters, &codes, p->byte_planes + c * 2 * 64 * quarters, x);
                _mm512_storeu_si512(halves, x[0]);
                _mm512_storeu_si512(halves + 32, x[1]);
                continue;
            }
            levels_floats(quarters, &codes, p, c, floats);
            for (size_t w = 0; w < 4; w++) /* exact: all centroids are halves */
                _mm256_storeu_si256((__m256i *)(halves + 16 * w), _mm512_cvtps_ph(floats[w], _MM_FROUND_TO_NEAREST_INT));
        }
    }
}

/* Whether centroids are there by channel in either form. */
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

/* ---- Keys met as they are decoded: a channel's 64 numbers go from tables to the sums without memory between, so that looking up,
 * which is one port's work, and multiplying overlap. Eight bits only. */

#define FUSED_QUERIES 6 /* whose sums, four registers each, leave room */

struct fused {
    const struct pq_codebook *p;
    const void *page;
    const struct key_rotation *rotation;
};

INLINE struct codes fused_codes(const struct fused *fused, size_t m) {
    return codes_load(4, fused->p, fused->page, m, fused->p->centroids_u8 ? FOR_LEVELS : FOR_HALVES);
}

/* x[4] of one channel. */
INLINE void channel_floats(const struct pq_codebook *p, const struct codes *codes, size_t c, vec *x) {
    if (p->centroids_u8) {
        levels_floats(4, codes, p, c, x);
        return;
    }
    __m512i halves[2];
    planes_halves(4, codes, p->byte_planes + c * 512, halves);
    UNROLL for (size_t w = 0; w < 2; w++) {
        x[2 * w] = _mm512_cvtph_ps(_mm512_castsi512_si256(halves[w]));
        x[2 * w + 1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves[w], 1));
    }
}

INLINE void score_fused(size_t G_, const void *what, const float *q, float *logits) {
    const struct fused *fused = what;
    const struct pq_codebook *p = fused->p;
    const size_t G = SMALLER(G_, FUSED_QUERIES), hd = pq_channels(p);
    sums sum;
    sums_clear(G, 4, sum);
    for (size_t m = 0; m < p->parts; m++) {
        struct codes codes = fused_codes(fused, m);
        for (size_t c = m * p->width; c < (m + 1) * p->width; c++) {
            vec x[4];
            channel_floats(p, &codes, c, x);
            sums_add(G, 4, q + c, hd, x, sum);
        }
    }
    sums_store(G, 4, sum, false, logits, PAGE_TOKENS, LANES);
}

/* x = mean + gain x of channel c. */
INLINE void gain_floats(const struct key_rotation *rotation, size_t c, vec *x) {
    UNROLL for (size_t w = 0; w < 4; w++) x[w] = vec_fma(x[w], vec_load(rotation->gain + w * LANES), vec_set(rotation->mean[c]));
}

/* Two channels turned by the angles of the i-th pair. */
INLINE void fused_rotate(size_t G, bool gain, const struct fused *fused, const struct codes *a_codes, const struct codes *b_codes,
                         size_t i, size_t first, size_t second, const float *q, sums sum) {
    const float *cosine = fused->rotation->cosine + i * PAGE_TOKENS, *sine = fused->rotation->sine + i * PAGE_TOKENS;
    size_t hd = pq_channels(fused->p);
    vec a[4], b[4], x[4], y[4];
    channel_floats(fused->p, a_codes, first, a);
    channel_floats(fused->p, b_codes, second, b);
    if (gain) gain_floats(fused->rotation, first, a);
    if (gain) gain_floats(fused->rotation, second, b);
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
    const struct pq_codebook *p = fused->p;
    const size_t pairs = fused->rotation->pairs, w = p->width, rotated = 2 * pairs / w, hd = pq_channels(p);
    sums sum;
    sums_clear(G, 4, sum);
    for (size_t m = 0; fused->rotation->adjacent && m < rotated; m++) {
        struct codes codes = fused_codes(fused, m);
        for (size_t c = m * w; c < (m + 1) * w; c += 2) fused_rotate(G, gain, fused, &codes, &codes, c / 2, c, c + 1, q, sum);
    }
    for (size_t m = 0; !fused->rotation->adjacent && m < rotated / 2; m++) {
        struct codes a = fused_codes(fused, m), b = fused_codes(fused, m + rotated / 2);
        for (size_t c = m * w; c < (m + 1) * w; c++) fused_rotate(G, gain, fused, &a, &b, c, c, c + pairs, q, sum);
    }
    for (size_t m = rotated; m < p->parts; m++) {
        struct codes codes = fused_codes(fused, m);
        for (size_t c = m * w; c < (m + 1) * w; c++) {
            vec x[4];
            channel_floats(p, &codes, c, x);
            if (gain) gain_floats(fused->rotation, c, x);
            sums_add(G, 4, q + c, hd, x, sum);
        }
    }
    sums_store(G, 4, sum, false, logits, PAGE_TOKENS, LANES);
}

INLINE void rotate_fused(size_t G, const void *what, const float *q, float *logits) {
    fused_turns(SMALLER(G, FUSED_QUERIES), false, what, q, logits);
}

INLINE void rotate_fused_gained(size_t G, const void *what, const float *q, float *logits) {
    fused_turns(SMALLER(G, FUSED_QUERIES), true, what, q, logits);
}

EACH_PQ(score_fused)
EACH_PQ(rotate_fused)
EACH_PQ(rotate_fused_gained)

/* ---- Look-up by planes: tables in fixed point of 16 bits --------------------------------------------------------------------
 *
 * An entry is (product - the sub-vector's least) / step, the step that of the query's widest sub-vector. Low and high bytes are
 * summed apart, each in 16 bits: 256 sub-vectors come to 255 * 256 at most, and all to less than 2^24, which a float holds. Tables:
 * u8 [parts][G][2][entries] and, behind what pq_table_floats would be without them, float step[G], base[G], the sums of the leasts.
 */

static float *table_scales(const struct pq_codebook *p, size_t G, float *tables) {
    return tables + pq_table_floats(p, G) - 2 * pq_stride(G);
}

/* Channel c of the 64 centroids from the j-th on, in the order that unpacking bytes leaves them in: x[4]. */
static void centroid_floats(const struct pq_codebook *p, size_t c, size_t j, __m512 *x) {
    size_t plane = PQ_CHANNEL_ENTRIES(p->bits);
    const uint8_t *from = p->centroids_u8 ? p->centroids_u8 + c * plane + j : p->byte_planes + c * 2 * plane + j;
    __m512i a = _mm512_loadu_si512(from), b = p->centroids_u8 ? _mm512_setzero_si512() : _mm512_loadu_si512(from + plane);
    __m512i words[2] = {_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)};
    for (size_t v = 0; v < 4; v++) {
        __m256i part = v % 2 ? _mm512_extracti64x4_epi64(words[v / 2], 1) : _mm512_castsi512_si256(words[v / 2]);
        x[v] = p->centroids_u8 ? _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(part)), _mm512_set1_ps(p->step[c]),
                                                 _mm512_set1_ps(p->low[c]))
                               : _mm512_cvtph_ps(part);
    }
}

/* The products of 64 centroids of sub-vector m with q[width]. */
static void products(const struct pq_codebook *p, size_t m, size_t j, const float *q, __m512 *sum) {
    for (size_t v = 0; v < 4; v++) sum[v] = _mm512_setzero_ps();
    for (size_t i = 0; i < p->width; i++) {
        __m512 x[4];
        centroid_floats(p, m * p->width + i, j, x);
        for (size_t v = 0; v < 4; v++) sum[v] = _mm512_fmadd_ps(_mm512_set1_ps(q[i]), x[v], sum[v]);
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
static void query_products(const struct pq_codebook *p, const float *q, size_t G, float *floats, float *step, float *base) {
    size_t entries = PQ_CHANNEL_ENTRIES(p->bits);
    float widest = 0;
    *base = 0;
    for (size_t m = 0; m < p->parts; m++, q += p->width, floats += G * entries) {
        __m512 least = _mm512_set1_ps(INFINITY), most = _mm512_set1_ps(-INFINITY), sum[4];
        for (size_t j = 0; j < entries; j += 64) {
            products(p, m, j, q, sum);
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

static void prepare_planes(const struct pq_codebook *p, const float *q, size_t G, float *tables) {
    size_t entries = PQ_CHANNEL_ENTRIES(p->bits), hd = pq_channels(p);
    float *step = table_scales(p, G, tables), *base = step + G, floats[256];
    uint8_t *bytes = (uint8_t *)tables;
    for (size_t g = 0; g < G; g++) query_products(p, q + g * hd, G, tables + g * entries, &step[g], &base[g]);
    /* In place: what is written ends before what is still to be read. */
    for (size_t i = 0; i < p->parts * G; i++, bytes += 2 * entries) {
        float scale = step[i % G];
        __m512 least = _mm512_set1_ps(INFINITY), inverse = fixed_inverse(scale);
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
INLINE void look_up_planes(size_t n, size_t quarters, const struct pq_codebook *p, const uint8_t *table, size_t G,
                           const float *step, const void *page, float *logits) {
    __m512i sum[LOOK_UP_QUERIES][4];
    UNROLL for (size_t g = 0; g < n; g++) { UNROLL for (size_t i = 0; i < 4; i++) sum[g][i] = _mm512_setzero_si512(); }
    for (size_t m = 0; m < p->parts; m++, table += G * 2 * 64 * quarters) {
        struct codes codes = codes_load(quarters, p, page, m, AS_THEY_ARE);
        UNROLL for (size_t g = 0; g < n; g++) {
            const uint8_t *from = table + g * 2 * 64 * quarters;
            __m512i low = codes_look_up(quarters, &codes, from), high = codes_look_up(quarters, &codes, from + 64 * quarters);
            sum[g][0] = _mm512_add_epi16(sum[g][0], low);
            sum[g][1] = _mm512_add_epi16(sum[g][1], _mm512_srli_epi16(low, 8));
            sum[g][2] = _mm512_add_epi16(sum[g][2], high);
            sum[g][3] = _mm512_add_epi16(sum[g][3], _mm512_srli_epi16(high, 8));
        }
    }
    UNROLL for (size_t g = 0; g < n; g++) sums_to_logits(sum[g], step[g], step[G + g], logits + g * PAGE_TOKENS);
}

static __attribute__((noinline)) void look_up_eight_bits(size_t n, const struct pq_codebook *p, const uint8_t *table, size_t G,
                                                         const float *step, const void *page, float *logits) {
    if (n == 4)
        look_up_planes(4, 4, p, table, G, step, page, logits);
    else if (n == 3)
        look_up_planes(3, 4, p, table, G, step, page, logits);
    else if (n == 2)
        look_up_planes(2, 4, p, table, G, step, page, logits);
    else
        look_up_planes(1, 4, p, table, G, step, page, logits);
}

static __attribute__((noinline)) void look_up_fewer_bits(size_t n, const struct pq_codebook *p, const uint8_t *table, size_t G,
                                                         const float *step, const void *page, float *logits) {
    for (size_t g = 0; g < n; g++) {
        const uint8_t *from = table + g * 2 * PQ_CHANNEL_ENTRIES(p->bits);
        if (p->bits == 7)
            look_up_planes(1, 2, p, from, G, step + g, page, logits + g * PAGE_TOKENS);
        else
            look_up_planes(1, 1, p, from, G, step + g, page, logits + g * PAGE_TOKENS);
    }
}

#include "backend/cpu/kernels/pq/avx512_centroids_u8.h"

#include "backend/cpu/kernels/pq/avx512_centroid_rows.h"

#include "backend/cpu/kernels/lanes/avx512_rotate.h"

#include "backend/cpu/kernels/pq/avx512_rotated.h"

static void score_i16_pq(const struct pq_codebook *p, const float *fixed, size_t G, const void *page, float *logits) {
    struct fused fused = {.p = p, .page = page};
    special_pq *const *of = p->centroid_rows_u8 ? score_rows_of : p->bits == 8 ? score_eight_bits_of : score_fewer_bits_of;
    serve_pq(of, &fused, fixed, pq_i16_floats(p), G, logits, PAGE_TOKENS);
}

static void score_pq(const struct pq_codebook *p, const float *q, size_t G, const void *page, float *logits) {
    struct fused fused = {.p = p, .page = page};
    float fixed[MOST_QUERIES * (KERNELS_MOST_CHANNELS / 2 + 2)];
    for (size_t g = 0, n; pq_reads_u8(p) && g < G; g += n) {
        n = SMALLER(G - g, MOST_QUERIES);
        quantize_query_pq(p, q + g * pq_channels(p), n, fixed);
        score_i16_pq(p, fixed, n, page, logits + g * PAGE_TOKENS);
    }
    if (!pq_reads_u8(p) && p->byte_planes && p->bits == 8 && G <= FUSED_QUERIES)
        score_fused_of[G - 1](&fused, q, logits);
    else if (!pq_reads_u8(p))
        score_pq_avx512(p, q, G, page, logits);
}

static void accumulate_pq(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *acc) {
    struct fused fused = {.p = p, .page = page};
    special_pq *const *of = p->bits == 8 ? accumulate_eight_bits_of : accumulate_fewer_bits_of;
    if (p->centroid_rows_u8) of = p->width % LEVEL_CHANNELS ? accumulate_narrow_rows_of : accumulate_broad_rows_of;
    if (pq_reads_u8(p))
        serve_pq(of, &fused, weights, PAGE_TOKENS, G, acc, pq_channels(p));
    else
        accumulate_pq_avx512(p, weights, G, page, acc);
}

static void accumulate_int8_pq(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *acc) {
    struct fused fused = {.p = p, .page = page};
    special_pq *const *of = p->bits == 8 ? accumulate_int8_eight_bits_of : accumulate_int8_fewer_bits_of;
    if (p->centroids_u8)
        serve_pq(of, &fused, weights, PAGE_TOKENS, G, acc, pq_channels(p));
    else
        accumulate_pq(p, weights, G, page, acc);
}

static void score_rotated_pq(const struct pq_codebook *p, const struct key_rotation *rotation, const float *q, size_t G,
                             const void *page, float *logits) {
    struct fused fused = {p, page, rotation};
    bool whole = rotation->adjacent ? p->width % 2 == 0 && 2 * rotation->pairs % p->width == 0 : rotation->pairs % p->width == 0;
    if (turns_in_words(p, rotation))
        score_in_words(p, rotation, q, G, page, logits);
    else if (!in_registers(p) || p->bits != 8 || G > FUSED_QUERIES || !whole)
        score_rotated_pq_avx512(p, rotation, q, G, page, logits);
    else if (rotation->gain)
        rotate_fused_gained_of[G - 1](&fused, q, logits);
    else
        rotate_fused_of[G - 1](&fused, q, logits);
}

static void prepare_pq(const struct pq_codebook *p, const float *q, size_t G, float *tables) {
    (in_registers(p) ? prepare_planes : prepare_pq_avx512)(p, q, G, tables);
}

static void look_up_pq(const struct pq_codebook *p, const float *tables, size_t G, const void *page, float *logits) {
    if (!in_registers(p)) {
        look_up_pq_avx512(p, tables, G, page, logits);
        return;
    }
    const float *step = tables + pq_table_floats(p, G) - 2 * pq_stride(G);
    for (size_t g = 0; g < G;) {
        size_t passes = (G - g + LOOK_UP_QUERIES - 1) / LOOK_UP_QUERIES, n = (G - g) / passes;
        const uint8_t *table = (const uint8_t *)tables + g * 2 * PQ_CHANNEL_ENTRIES(p->bits);
        (p->bits == 8 ? look_up_eight_bits : look_up_fewer_bits)(n, p, table, G, step + g, page, logits + g * PAGE_TOKENS);
        g += n;
    }
}

void pq_init_avx512(struct pq_ops *ops) {
    fill_pq(ops);
    ops->has_register_lut = true;
    ops->score = score_pq;
    ops->quantize_query = quantize_query_pq;
    ops->score_i16 = score_i16_pq;
    ops->score_rotated = score_rotated_pq;
    ops->accumulate = accumulate_pq;
    ops->accumulate_int8 = accumulate_int8_pq;
    ops->prepare = prepare_pq;
    ops->look_up = look_up_pq;
}
