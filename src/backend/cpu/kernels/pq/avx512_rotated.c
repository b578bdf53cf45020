/* Keys stored before RoPE as centroids of 8 bits, rotated and multiplied in 16 bits (lanes/avx512_rotate.h) with AVX-512. A pair's
 * unit is such that no number of a key in the page comes to more than ROTATED_LARGEST; centroids become multiples of it by a factor
 * of 16 bits, an offset, the gain as a part of the page's largest, and the mean. */
#include "backend/cpu/kernels/lanes/avx512_rotate.h"
#include "backend/cpu/kernels/pq/avx512_internal.h"

#define ROTATE_QUERIES 8 /* of a pass */

/* What makes int16 of the centroids, twice each: [0] of the first channels of pairs, [1] of the second. */
struct pair_scales {
    int32_t factor[2][ROTATED_MOST_PAIRS], offset[2][ROTATED_MOST_PAIRS], mean[2][ROTATED_MOST_PAIRS];
    float units[ROTATED_MOST_PAIRS];
};

/* Of 16 pairs from the i-th on, where gains are at most `gain`. */
INLINE void rotate_units(const struct pq_codebook *p, const struct key_rotation *rotation, float gain, size_t i,
                         struct pair_scales *scales) {
    const vec least = vec_set(1e-30f);
    vec step[2], low[2], mean[2] = {vec_zero(), vec_zero()}, unit = vec_zero();
    rotated_load(rotation, p->step, i, &step[0], &step[1]);
    rotated_load(rotation, p->low, i, &low[0], &low[1]);
    if (rotation->gain) rotated_load(rotation, rotation->mean, i, &mean[0], &mean[1]);
    for (size_t k = 0; k < 2; k++) {
        vec high = vec_fma(step[k], vec_set(255), low[k]), most = _mm512_max_ps(_mm512_abs_ps(low[k]), _mm512_abs_ps(high));
        most = vec_fma(most, vec_set(gain), _mm512_abs_ps(mean[k]));
        unit = _mm512_max_ps(unit, vec_mul(most, vec_set(1.0f / ROTATED_LARGEST)));
    }
    __mmask16 some = _mm512_cmp_ps_mask(unit, least, _CMP_GT_OQ);
    vec inverse = _mm512_maskz_div_ps(some, vec_set(1), unit), shape = vec_mul(inverse, vec_set(gain));
    vec_store(scales->units + i, unit);
    for (size_t k = 0; k < 2; k++) {
        rotated_twice(vec_mul(vec_mul(step[k], shape), vec_set(256)), scales->factor[k] + i);
        rotated_twice(vec_fma(low[k], shape, vec_set(0.5f)), scales->offset[k] + i); /* products are rounded down */
        rotated_twice(vec_mul(mean[k], inverse), scales->mean[k] + i);
    }
}

struct rotated {
    const struct pq_codebook *p;
    const struct key_rotation *rotation;
    const void *page;
    const struct pair_scales *scales;
    const struct rotated_query *queries;
    __m512i gains[2], odd;      /* bytes: a mask that gcc 12 would make anew for each channel */
    uint8_t (*u8)[PAGE_TOKENS]; /* of codebooks by row: both channels of ROTATED_PAIRS pairs */
};

/* A channel's centroids as int16: x[2], 64 tokens in order, of codes FOR_I16. */
INLINE void channel_i16(bool gained, const struct rotated *rotated, __m512i u8, size_t k, size_t i, __m512i *x) {
    const struct pair_scales *scales = rotated->scales;
    const __m512i factor = _mm512_set1_epi32(scales->factor[k][i]);
    const __m512i offset = _mm512_set1_epi32(scales->offset[k][i]), mean = _mm512_set1_epi32(scales->mean[k][i]);
    x[0] = _mm512_slli_epi16(u8, 8);
    x[1] = _mm512_and_si512(u8, rotated->odd);
    UNROLL for (size_t h = 0; h < 2; h++) {
        x[h] = _mm512_add_epi16(_mm512_mulhi_epu16(x[h], factor), offset);
        if (gained) x[h] = _mm512_add_epi16(_mm512_mulhrs_epi16(x[h], rotated->gains[h]), mean);
    }
}

/* Keys are kept for all queries, by channel or by row, or scored at once. */
enum rotate_way { KEPT, SCORED, ROWS_KEPT };

/* Centroids of both channels of the i-th pair; adjacent channels are all read by the first reader. */
INLINE void pair_centroids(enum rotate_way way, bool adjacent, const struct rotated *rotated, size_t i, struct reader *readers,
                           __m512i *u8) {
    const size_t j = i % ROTATED_PAIRS;
    if (way == ROWS_KEPT) {
        u8[0] = _mm512_loadu_si512(rotated->u8[adjacent ? 2 * j : j]);
        u8[1] = _mm512_loadu_si512(rotated->u8[adjacent ? 2 * j + 1 : ROTATED_PAIRS + j]);
        return;
    }
    u8[0] = next_channel(4, &readers[0]);
    u8[1] = next_channel(4, &readers[adjacent ? 0 : 1]);
}

/* Pairs from the i-th to the one before `end`: both numbers of the rotated keys go to keys[...][4]; when SCORED, ROTATED_QUERIES
 * queries are multiplied by each pair as soon as it is rotated, and total[ROTATED_QUERIES][4] receives the sums. */
INLINE void rotate_some(enum rotate_way way, bool gained, bool adjacent, const struct rotated *rotated, size_t i, size_t end,
                        __m512i (*keys)[4], __m512i (*total)[4]) {
    const struct pq_codebook *p = rotated->p;
    const size_t queries = way == SCORED ? ROTATED_QUERIES : 0;
    struct reader readers[2];
    __m512i sum[ROTATED_QUERIES][4];
    if (way != ROWS_KEPT) {
        readers[0] = reader_at(4, p, rotated->page, FOR_I16, adjacent ? 2 * i : i);
        if (!adjacent) readers[1] = reader_at(4, p, rotated->page, FOR_I16, i + rotated->rotation->pairs);
    }
    UNROLL for (size_t g = 0; g < queries; g++) { UNROLL for (size_t v = 0; v < 4; v++) sum[g][v] = _mm512_setzero_si512(); }
    for (; i < end; i++) {
        __m512i u8[2], re[2], im[2], key[4];
        pair_centroids(way, adjacent, rotated, i, readers, u8);
        channel_i16(gained, rotated, u8[0], 0, i, re);
        channel_i16(gained, rotated, u8[1], 1, i, im);
        rotated_pair(re, im, rotated->rotation->i16 + i * 2 * PAGE_TOKENS, way == SCORED ? key : *keys++);
        rotated_add(queries, key, rotated->queries, i, sum);
    }
    UNROLL for (size_t g = 0; g < queries; g++) { UNROLL for (size_t v = 0; v < 4; v++) total[g][v] = sum[g][v]; }
}

typedef void rotate_some_pairs(const struct rotated *rotated, size_t i, __m512i (*to)[4]);

/* Functions of their own, with results in memory: so gcc 12 keeps the sums of a pass in registers. */
#define ROTATE_SOME(name, gained, adjacent) \
    static __attribute__((noinline)) void name##_kept(const struct rotated *rotated, size_t i, __m512i(*keys)[4]) { \
        rotate_some(KEPT, gained, adjacent, rotated, i, i + ROTATED_PAIRS, keys, NULL); \
    } \
    static __attribute__((noinline)) void name##_scored(const struct rotated *rotated, size_t i, __m512i(*total)[4]) { \
        rotate_some(SCORED, gained, adjacent, rotated, i, rotated->rotation->pairs, NULL, total); \
    } \
    static __attribute__((noinline)) void name##_rows_kept(const struct rotated *rotated, size_t i, __m512i(*keys)[4]) { \
        rotate_some(ROWS_KEPT, gained, adjacent, rotated, i, i + ROTATED_PAIRS, keys, NULL); \
    }

ROTATE_SOME(rotate_apart, false, false)
ROTATE_SOME(rotate_adjacent, false, true)
ROTATE_SOME(rotate_apart_gained, true, false)
ROTATE_SOME(rotate_adjacent_gained, true, true)

/* Centroids of both channels of ROTATED_PAIRS pairs from the i-th on, of codebooks by row. */
static void read_rows(const struct rotated *rotated, size_t i) {
    const bool adjacent = rotated->rotation->adjacent;
    pq_avx512_channels_of_rows_u8(rotated->p, rotated->page, adjacent ? 2 * i : i, rotated->u8);
    pq_avx512_channels_of_rows_u8(rotated->p, rotated->page, adjacent ? 2 * i + ROTATED_PAIRS : rotated->rotation->pairs + i,
                                  rotated->u8 + ROTATED_PAIRS);
}

/* logits[n][64] of n queries. */
static void score_pass_rotated(const struct rotated *rotated, size_t n, float *logits) {
    static rotate_some_pairs *const some[3][2][2] = {
        {{rotate_apart_kept, rotate_adjacent_kept}, {rotate_apart_gained_kept, rotate_adjacent_gained_kept}},
        {{rotate_apart_scored, rotate_adjacent_scored}, {rotate_apart_gained_scored, rotate_adjacent_gained_scored}},
        {{rotate_apart_rows_kept, rotate_adjacent_rows_kept}, {rotate_apart_gained_rows_kept, rotate_adjacent_gained_rows_kept}}};
    const enum rotate_way way = rotated->p->centroid_rows_u8 ? ROWS_KEPT : n == ROTATED_QUERIES ? SCORED : KEPT;
    rotate_some_pairs *rotate_pairs = some[way][rotated->rotation->gain != NULL][rotated->rotation->adjacent];
    __m512i total[ROTATE_QUERIES][4], keys[ROTATED_PAIRS][4];
    if (way == SCORED) rotate_pairs(rotated, 0, total);
    for (size_t g = 0; way != SCORED && g < n; g++) {
        UNROLL for (size_t v = 0; v < 4; v++) total[g][v] = _mm512_setzero_si512();
    }
    for (size_t i = 0; way != SCORED && i < rotated->rotation->pairs; i += ROTATED_PAIRS) {
        if (way == ROWS_KEPT) read_rows(rotated, i);
        rotate_pairs(rotated, i, keys);
        rotated_score_all(n, (const __m512i(*)[4])keys, rotated->queries, i, total);
    }
    for (size_t g = 0; g < n; g++) rotated_logits(total[g], rotated->queries[g].step, logits + g * PAGE_TOKENS);
}

/* All channels are rotated, by whole sub-vectors. */
bool pq_avx512_rotates_i16(const struct pq_codebook *p, const struct key_rotation *rotation) {
    if (!rotated_serves(rotation) || 2 * rotation->pairs != pq_channels(p)) return false;
    if (p->centroid_rows_u8) return p->width % 16 == 0;
    return p->centroids_u8 && p->bits == 8 && (rotation->adjacent || rotation->pairs % p->width == 0);
}

void pq_avx512_score_rotated_i16(const struct pq_codebook *p, const struct key_rotation *rotation, const float *q, size_t G,
                                 const void *page, float *logits) {
    const size_t hd = pq_channels(p);
    struct pair_scales scales;
    struct rotated_query queries[ROTATE_QUERIES];
    uint8_t u8[2 * ROTATED_PAIRS][PAGE_TOKENS];
    struct rotated rotated = {.p = p, .rotation = rotation, .page = page, .scales = &scales, .queries = queries, .u8 = u8};
    rotated.odd = _mm512_set1_epi16((short)0xff00);
    float gain = rotation->gain ? rotated_gains(rotation->gain, rotated.gains) : 1;
    for (size_t i = 0; i < rotation->pairs; i += ROTATED_PAIRS) rotate_units(p, rotation, gain, i, &scales);
    for (size_t n; G > 0; G -= n, q += n * hd, logits += n * PAGE_TOKENS) {
        n = SMALLER(G, ROTATE_QUERIES);
        for (size_t g = 0; g < n; g++) rotated_query_set(rotation, q + g * hd, rotation->pairs, scales.units, &queries[g]);
        score_pass_rotated(&rotated, n, logits);
    }
}
