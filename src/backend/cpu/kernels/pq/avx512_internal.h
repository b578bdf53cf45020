/* Has code that the AVX-512 files of this folder share: look-ups in registers, centroids of 8 bits as they are read, and weights as
 * bytes. avx512.c chooses among the ways; the others hold one each:
 *     avx512_lut.c              tables of a query's inner products, looked up
 *     avx512_centroids_u8.c     centroids as bytes by channel (up to 8-bit codes)
 *     avx512_centroid_rows.c    centroids as bytes by row (longer codes) */
#ifndef TERSE_BACKEND_CPU_KERNELS_PQ_AVX512_INTERNAL_H
#define TERSE_BACKEND_CPU_KERNELS_PQ_AVX512_INTERNAL_H

#include "backend/cpu/kernels/lanes/avx512.h"

#include "backend/cpu/kernels/lanes/avx512_fixed.h"
#include "backend/cpu/kernels/lanes/sums_template.h"
#include "backend/cpu/kernels/limits.h"
#include "backend/cpu/kernels/pq/code_planes.h"
#include "backend/cpu/kernels/pq/each_query_count.h"
#include "backend/cpu/kernels/pq/ops.h"

/* Each file has such a function for itself: with its body at hand, compilers know which registers a call leaves as they are, and
 * callers keep their sums in those. */
#define LOCAL static __attribute__((noinline, unused))

/* ---- Between the files --------------------------------------------------------------------------------------------------- */

/* These are prepare and look_up where centroids are there by channel (avx512_lut.c). */
void pq_avx512_prepare_lut(const struct pq_codebook *p, const float *q, size_t G, float *tables);
void pq_avx512_look_up_lut(const struct pq_codebook *p, const float *tables, size_t G, const void *page, float *logits);

/* These are quantize_query, score_i16, accumulate and accumulate_int8 where p->centroids_u8 (avx512_centroids_u8.c), and where
 * p->centroid_rows_u8 (avx512_centroid_rows.c); queries are the same for both. */
void pq_avx512_quantize_query(const struct pq_codebook *p, const float *q, size_t G, float *fixed);
void pq_avx512_score_u8(const struct pq_codebook *p, const float *fixed, size_t G, const void *page, float *logits);
void pq_avx512_accumulate_u8(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *acc);
void pq_avx512_accumulate_int8_u8(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *acc);
void pq_avx512_score_rows_u8(const struct pq_codebook *p, const float *fixed, size_t G, const void *page, float *logits);
void pq_avx512_accumulate_rows_u8(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *acc);

/* ---- Codes of up to eight bits: 64 look-ups in registers at a time ---
 *
 * A permutation of bytes is a look-up of 64 bytes in a table of 64 or, of two registers, 128; in 256 it is two of them under a
 * mask. An 8-bit centroid is one such look-up; a half is two, of its low and of its high byte, which is why such centroids lie in
 * byte planes. */

struct codes {
    __m512i bytes;
    __mmask64 bit7; /* set in these codes */
};

/* An order says which token's code each byte has. FOR_HALVES: such that unpacking two registers of bytes gives tokens in order. FOR_I16: even
 * bytes are tokens 0 to 31, odd ones the others. FOR_DWORDS: byte j of the i-th dword is of token 16 j + i, so that one byte of each dword makes
 * 16 tokens in order. */
enum order { AS_THEY_ARE, FOR_HALVES, FOR_I16, FOR_DWORDS };

/* This order lies in memory: gcc 12 would make it of smaller numbers again and again. */
static const uint8_t order_for_i16[64] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                          11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53,
                                          22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};

INLINE __m512i codes_in_order(enum order order, __m512i bytes) {
    if (order == FOR_HALVES) return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), bytes);
    if (order == AS_THEY_ARE) return bytes;
    if (order == FOR_I16) return _mm512_permutexvar_epi8(_mm512_loadu_si512(order_for_i16), bytes);
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i each = _mm512_mullo_epi32(_mm512_set1_epi32(0x01010101), first);
    return _mm512_permutexvar_epi8(_mm512_add_epi32(each, _mm512_set1_epi32(0x30201000)), bytes);
}

/* Reads codes[64] of fewer than eight bits, a byte each. */
LOCAL void codes_to_bytes(const uint8_t *planes, unsigned bits, uint8_t *bytes) {
    uint16_t words[PAGE_TOKENS];
    code_planes_read(planes, bits, words);
    for (size_t t = 0; t < PAGE_TOKENS; t++) bytes[t] = (uint8_t)words[t];
}

/* Loads code[64] by byte: those of eight bits, for a table of four quarters, as they lie. */
INLINE struct codes codes_load(size_t quarters, const struct pq_codebook *p, const void *page, size_t m, enum order order) {
    const size_t part = PAGE_PQ_PART(quarters == 4 ? 8 : p->bits);
    const uint8_t *planes = (const uint8_t *)page + m * part;
    uint8_t bytes[PAGE_TOKENS];
    struct codes codes;
    prefetch_step(page, m, part);
    if (quarters < 4) codes_to_bytes(planes, p->bits, bytes);
    codes.bytes = _mm512_loadu_si512(quarters < 4 ? bytes : planes);
    codes.bytes = codes_in_order(order, codes.bytes);
    codes.bit7 = _mm512_movepi8_mask(codes.bytes);
    return codes;
}

/* Does 64 look-ups in a table of 64 `quarters` bytes. */
INLINE __m512i codes_look_up(size_t quarters, const struct codes *codes, const uint8_t *table) {
    const __m512i bytes = codes->bytes, first = _mm512_loadu_si512(table);
    if (quarters == 1) return _mm512_permutexvar_epi8(bytes, first);
    __m512i low = _mm512_permutex2var_epi8(first, bytes, _mm512_loadu_si512(table + 64));
    if (quarters == 2) return low;
    __m512i high = _mm512_permutex2var_epi8(_mm512_loadu_si512(table + 128), bytes, _mm512_loadu_si512(table + 192));
    return _mm512_mask_blend_epi8(codes->bit7, low, high);
}

/* ---- Centroids of 8 bits: an instruction adds to each of 16 numbers four products of bytes, centroids times what they are
 * multiplied by as fixed point (lanes/avx512_fixed.h) ---- */

/* Adds to sum four 8-bit centroids times four bytes in each dword. From intrinsics, gcc 12 expands the bytes to whole registers in
 * memory before the loop. */
INLINE __m512i add_u8_products(__m512i sum, __m512i u8, const int8_t *four) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(u8), "m"(*(const char(*)[4])four));
    return sum;
}

/* A page_view is a page as the kernels for each number of queries get it. */
struct page_view {
    const struct pq_codebook *p;
    const void *page;
};

#define U8_CHANNELS 16 /* that are looked up, transposed and then multiplied together */

/* A reader reads the centroids of one channel after another. */
struct reader {
    const struct pq_codebook *p;
    const void *page;
    const uint8_t *table; /* of the next channel */
    size_t part, left;    /* the next sub-vector, and channels left of the one before */
    struct codes codes;   /* of that */
    enum order order;
};

INLINE __m512i next_channel(size_t quarters, struct reader *reader) {
    if (!reader->left) {
        reader->codes = codes_load(quarters, reader->p, reader->page, reader->part++, reader->order);
        reader->left = reader->p->width;
    }
    reader->left--;
    __m512i u8 = codes_look_up(quarters, &reader->codes, reader->table);
    reader->table += 64 * quarters;
    return u8;
}

/* Makes a reader of the channels from the c-th on. */
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

/* Quantizes the weights of one query to bytes[planes][64]; returns their step and the sum of the weights. */
LOCAL void weights_to_bytes(size_t planes, const float *weights, int8_t *bytes, float *step, float *sum) {
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

/* Adds to acc[G][hd] 16 channels from c on: sums of centroids times the weights' high and low bytes, or, of one plane, times whole
 * weights. */
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

#endif
