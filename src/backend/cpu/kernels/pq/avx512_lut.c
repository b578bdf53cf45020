/* Looks up a query's inner products with all centroids, in registers, with AVX-512. */
#include "backend/cpu/kernels/pq/avx512_internal.h"

#include <math.h>
#include <string.h>

#define LOOK_UP_QUERIES 4 /* that are scored together: four sums each */

/* Tables are fixed point of 16 bits. An entry is (product - the sub-vector's least) / step, the step that of the query's widest
 * sub-vector. Low and high bytes are summed apart, each in 16 bits: 256 sub-vectors sum to 255 * 256 at most, and all bytes to less
 * than 2^24, which a float holds. Tables: u8 [parts][G][2][entries] and, behind what pq_table_floats would be without them, float
 * step[G], base[G], the sums of the leasts. */

static float *table_scales(const struct pq_codebook *p, size_t G, float *tables) {
    return tables + pq_table_floats(p, G) - 2 * pq_stride(G);
}

/* Converts channel c of the 64 centroids from the j-th on to floats, in the order that unpacking bytes leaves them in: x[4]. */
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

/* Computes the products of 64 centroids of sub-vector m with q[width]. */
static void products(const struct pq_codebook *p, size_t m, size_t j, const float *q, __m512 *sum) {
    for (size_t v = 0; v < 4; v++) sum[v] = _mm512_setzero_ps();
    for (size_t i = 0; i < p->width; i++) {
        __m512 x[4];
        centroid_floats(p, m * p->width + i, j, x);
        for (size_t v = 0; v < 4; v++) sum[v] = _mm512_fmadd_ps(_mm512_set1_ps(q[i]), x[v], sum[v]);
    }
}

/* Writes one entry of fixed point for each of 64 products, as bytes again as they were unpacked. */
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

/* Writes all of a query's products to floats[parts][G][entries], of which `query` is the g-th; returns its step and base. */
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
        float low = _mm512_reduce_min_ps(least), range = _mm512_reduce_max_ps(most) - low;
        if (range > widest) widest = range;
        *base += low;
    }
    *step = widest > 1e-32f ? widest / 65535 : 0; /* that its inverse be finite */
}

void pq_avx512_prepare_lut(const struct pq_codebook *p, const float *q, size_t G, float *tables) {
    size_t entries = PQ_CHANNEL_ENTRIES(p->bits), hd = pq_channels(p);
    float *step = table_scales(p, G, tables), *base = step + G, floats[256];
    uint8_t *bytes = (uint8_t *)tables;
    for (size_t g = 0; g < G; g++) query_products(p, q + g * hd, G, tables + g * entries, &step[g], &base[g]);
    /* This works in place: the written bytes end before those that are still to be read. */
    for (size_t i = 0; i < p->parts * G; i++, bytes += 2 * entries) {
        float scale = step[i % G];
        __m512 least = _mm512_set1_ps(INFINITY), inverse = fixed_inverse(scale);
        memcpy(floats, tables + i * entries, entries * sizeof *floats);
        for (size_t j = 0; j < entries; j += 16) least = _mm512_min_ps(least, _mm512_loadu_ps(floats + j));
        least = _mm512_set1_ps(_mm512_reduce_min_ps(least));
        for (size_t j = 0; j < entries; j += 64) to_fixed_point(floats + j, least, inverse, bytes + j, entries);
    }
}

/* Writes logits[64] of the sums of bytes: as 16-bit sums with the odd tokens' bytes above them, and of the odd tokens alone. */
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

/* Looks up for n queries of G, whose first table is at `table`. */
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

void pq_avx512_look_up_lut(const struct pq_codebook *p, const float *tables, size_t G, const void *page, float *logits) {
    const float *step = tables + pq_table_floats(p, G) - 2 * pq_stride(G);
    for (size_t g = 0; g < G;) {
        size_t calls = (G - g + LOOK_UP_QUERIES - 1) / LOOK_UP_QUERIES, n = (G - g) / calls;
        const uint8_t *table = (const uint8_t *)tables + g * 2 * PQ_CHANNEL_ENTRIES(p->bits);
        (p->bits == 8 ? look_up_eight_bits : look_up_fewer_bits)(n, p, table, G, step + g, page, logits + g * PAGE_TOKENS);
        g += n;
    }
}
