/* Keys by levels turned and met in words (backend/cpu/kernels/lanes/avx512_rotate.h): included once by avx512_product.c, after the look-ups in registers
 * and levels. A pair's unit is such that no number of a key in the block comes to more than TURNED_LARGEST; levels become words of it
 * by a factor of 16 bits, an offset, the gain as a part of the block's largest, and the mean. */

#define TURN_QUERIES 8 /* of a pass */

/* Two words each, of the first and the second channels of pairs. */
struct turn_words {
    int32_t factor[2][TURNED_MOST_PAIRS], offset[2][TURNED_MOST_PAIRS], mean[2][TURNED_MOST_PAIRS];
    float units[TURNED_MOST_PAIRS];
};

/* Of 16 pairs from the i-th on, where gains are at most `gain`. */
INLINE void turn_units(const struct product_code *p, const struct key_turn *turn, float gain, size_t i, struct turn_words *words) {
    const vec least = vec_set(1e-30f);
    vec step[2], low[2], mean[2] = {vec_zero(), vec_zero()}, unit = vec_zero();
    turned_load(turn, p->step, i, &step[0], &step[1]);
    turned_load(turn, p->low, i, &low[0], &low[1]);
    if (turn->gain) turned_load(turn, turn->mean, i, &mean[0], &mean[1]);
    for (size_t k = 0; k < 2; k++) {
        vec high = vec_fma(step[k], vec_set(255), low[k]), most = _mm512_max_ps(_mm512_abs_ps(low[k]), _mm512_abs_ps(high));
        most = vec_fma(most, vec_set(gain), _mm512_abs_ps(mean[k]));
        unit = _mm512_max_ps(unit, vec_mul(most, vec_set(1.0f / TURNED_LARGEST)));
    }
    __mmask16 some = _mm512_cmp_ps_mask(unit, least, _CMP_GT_OQ);
    vec inverse = _mm512_maskz_div_ps(some, vec_set(1), unit), shape = vec_mul(inverse, vec_set(gain));
    vec_store(words->units + i, unit);
    for (size_t k = 0; k < 2; k++) {
        turned_twice(vec_mul(vec_mul(step[k], shape), vec_set(256)), words->factor[k] + i);
        turned_twice(vec_fma(low[k], shape, vec_set(0.5f)), words->offset[k] + i); /* products are rounded down */
        turned_twice(vec_mul(mean[k], inverse), words->mean[k] + i);
    }
}

struct turned {
    const struct product_code *p;
    const struct key_turn *turn;
    const void *block;
    const struct turn_words *words;
    const struct turned_query *queries;
    __m512i gains[2], odd;           /* bytes: a mask that gcc 12 would make again for each channel */
    uint8_t (*levels)[BLOCK_TOKENS]; /* where they lie by row: those of both channels of TURNED_PAIRS pairs */
};

/* Words of a channel's levels: x[2], 64 tokens in order, as codes lie for words. */
INLINE void channel_words(bool gained, const struct turned *turned, __m512i levels, size_t k, size_t i, __m512i *x) {
    const struct turn_words *words = turned->words;
    const __m512i factor = _mm512_set1_epi32(words->factor[k][i]);
    const __m512i offset = _mm512_set1_epi32(words->offset[k][i]), mean = _mm512_set1_epi32(words->mean[k][i]);
    x[0] = _mm512_slli_epi16(levels, 8);
    x[1] = _mm512_and_si512(levels, turned->odd);
    UNROLL for (size_t h = 0; h < 2; h++) {
        x[h] = _mm512_add_epi16(_mm512_mulhi_epu16(x[h], factor), offset);
        if (gained) x[h] = _mm512_add_epi16(_mm512_mulhrs_epi16(x[h], turned->gains[h]), mean);
    }
}

/* How pairs lie and what is done with them. */
enum turn_way { KEPT, MET, ROWS_KEPT };

/* Levels of both channels of the i-th pair; adjacent channels are all read by the first reader. */
INLINE void pair_levels(enum turn_way way, bool adjacent, const struct turned *turned, size_t i, struct reader *readers,
                        __m512i *levels) {
    const size_t j = i % TURNED_PAIRS;
    if (way == ROWS_KEPT) {
        levels[0] = _mm512_loadu_si512(turned->levels[adjacent ? 2 * j : j]);
        levels[1] = _mm512_loadu_si512(turned->levels[adjacent ? 2 * j + 1 : TURNED_PAIRS + j]);
        return;
    }
    levels[0] = next_levels(4, &readers[0]);
    levels[1] = next_levels(4, &readers[adjacent ? 0 : 1]);
}

/* Pairs from the i-th to the one before `end`, both numbers of whose keys, turned, go to keys; when MET, TURNED_QUERIES queries meet
 * each as soon as it is turned, met[TURNED_QUERIES][4] being what they come to. */
INLINE void turn_some(enum turn_way way, bool gained, bool adjacent, const struct turned *turned, size_t i, size_t end,
                      __m512i (*keys)[4], __m512i (*met)[4]) {
    const struct product_code *p = turned->p;
    const size_t queries = way == MET ? TURNED_QUERIES : 0;
    struct reader readers[2];
    __m512i sum[TURNED_QUERIES][4];
    if (way != ROWS_KEPT) {
        readers[0] = reader_at(4, p, turned->block, FOR_WORDS, adjacent ? 2 * i : i);
        if (!adjacent) readers[1] = reader_at(4, p, turned->block, FOR_WORDS, i + turned->turn->pairs);
    }
    UNROLL for (size_t g = 0; g < queries; g++) { UNROLL for (size_t v = 0; v < 4; v++) sum[g][v] = _mm512_setzero_si512(); }
    for (; i < end; i++) {
        __m512i levels[2], re[2], im[2], key[4];
        pair_levels(way, adjacent, turned, i, readers, levels);
        channel_words(gained, turned, levels[0], 0, i, re);
        channel_words(gained, turned, levels[1], 1, i, im);
        turned_pair(re, im, turned->turn->words + i * 2 * BLOCK_TOKENS, way == MET ? key : *keys++);
        turned_add(queries, key, turned->queries, i, sum);
    }
    UNROLL for (size_t g = 0; g < queries; g++) { UNROLL for (size_t v = 0; v < 4; v++) met[g][v] = sum[g][v]; }
}

typedef void turn_some_pairs(const struct turned *turned, size_t i, __m512i (*to)[4]);

/* Functions of their own: with what they come to in memory, gcc 12 keeps the sums of a pass in registers. */
#define TURN_SOME(name, gained, adjacent) \
    static __attribute__((noinline)) void name##_kept(const struct turned *turned, size_t i, __m512i(*keys)[4]) { \
        turn_some(KEPT, gained, adjacent, turned, i, i + TURNED_PAIRS, keys, NULL); \
    } \
    static __attribute__((noinline)) void name##_met(const struct turned *turned, size_t i, __m512i(*met)[4]) { \
        turn_some(MET, gained, adjacent, turned, i, turned->turn->pairs, NULL, met); \
    } \
    static __attribute__((noinline)) void name##_rows_kept(const struct turned *turned, size_t i, __m512i(*keys)[4]) { \
        turn_some(ROWS_KEPT, gained, adjacent, turned, i, i + TURNED_PAIRS, keys, NULL); \
    }

TURN_SOME(turn_apart, false, false)
TURN_SOME(turn_adjacent, false, true)
TURN_SOME(turn_apart_gained, true, false)
TURN_SOME(turn_adjacent_gained, true, true)

/* Levels of both channels of TURNED_PAIRS pairs from the i-th on, where they lie by row. */
static void levels_of_rows(const struct turned *turned, size_t i) {
    const bool adjacent = turned->turn->adjacent;
    channels_of_rows(turned->p, turned->block, adjacent ? 2 * i : i, turned->levels);
    channels_of_rows(turned->p, turned->block, adjacent ? 2 * i + TURNED_PAIRS : turned->turn->pairs + i,
                     turned->levels + TURNED_PAIRS);
}

/* logits[n][64] of n queries. */
static void meet_turned(const struct turned *turned, size_t n, float *logits) {
    static turn_some_pairs *const some[3][2][2] = {
        {{turn_apart_kept, turn_adjacent_kept}, {turn_apart_gained_kept, turn_adjacent_gained_kept}},
        {{turn_apart_met, turn_adjacent_met}, {turn_apart_gained_met, turn_adjacent_gained_met}},
        {{turn_apart_rows_kept, turn_adjacent_rows_kept}, {turn_apart_gained_rows_kept, turn_adjacent_gained_rows_kept}}};
    const enum turn_way way = turned->p->level_rows ? ROWS_KEPT : n == TURNED_QUERIES ? MET : KEPT;
    turn_some_pairs *turn_pairs = some[way][turned->turn->gain != NULL][turned->turn->adjacent];
    __m512i met[TURN_QUERIES][4], keys[TURNED_PAIRS][4];
    if (way == MET) turn_pairs(turned, 0, met);
    for (size_t g = 0; way != MET && g < n; g++) {
        UNROLL for (size_t v = 0; v < 4; v++) met[g][v] = _mm512_setzero_si512();
    }
    for (size_t i = 0; way != MET && i < turned->turn->pairs; i += TURNED_PAIRS) {
        if (way == ROWS_KEPT) levels_of_rows(turned, i);
        turn_pairs(turned, i, keys);
        turned_meet_all(n, (const __m512i(*)[4])keys, turned->queries, i, met);
    }
    for (size_t g = 0; g < n; g++) turned_logits(met[g], turned->queries[g].step, logits + g * BLOCK_TOKENS);
}

/* Whether keys can be turned so: all channels are, by whole sub-vectors. */
static bool turns_in_words(const struct product_code *p, const struct key_turn *turn) {
    if (!turned_serves(turn) || 2 * turn->pairs != product_channels(p)) return false;
    if (p->level_rows) return p->width % 16 == 0;
    return p->levels && p->bits == 8 && (turn->adjacent || turn->pairs % p->width == 0);
}

static void score_in_words(const struct product_code *p, const struct key_turn *turn, const float *q, size_t G, const void *block,
                           float *logits) {
    const size_t hd = product_channels(p);
    struct turn_words words;
    struct turned_query queries[TURN_QUERIES];
    uint8_t levels[2 * TURNED_PAIRS][BLOCK_TOKENS];
    struct turned turned = {.p = p, .turn = turn, .block = block, .words = &words, .queries = queries, .levels = levels};
    turned.odd = _mm512_set1_epi16((short)0xff00);
    float gain = turn->gain ? turned_gains(turn->gain, turned.gains) : 1;
    for (size_t i = 0; i < turn->pairs; i += TURNED_PAIRS) turn_units(p, turn, gain, i, &words);
    for (size_t n; G > 0; G -= n, q += n * hd, logits += n * BLOCK_TOKENS) {
        n = SMALLER(G, TURN_QUERIES);
        for (size_t g = 0; g < n; g++) turned_take(turn, q + g * hd, turn->pairs, words.units, &queries[g]);
        meet_turned(&turned, n, logits);
    }
}
