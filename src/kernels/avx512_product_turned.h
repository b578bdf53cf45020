/* Keys by levels turned and met in words (kernels/avx512_turned.h): included once by avx512_product.c, after the look-ups in registers
 * and levels. A pair's unit is such that no number of a key in the block comes to more than TURNED_LARGEST; levels become words of it
 * by two products, of 15 and 16 bits, an offset, the gain as a part of the block's largest, and the mean. */

#define TURN_LEVEL 127 /* what makes 15 bits of a level */
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
        unit = _mm512_max_ps(unit, vec_mul(step[k], vec_set(gain / (TURN_LEVEL - 0.1f)))); /* or its factor would be no word */
    }
    __mmask16 some = _mm512_cmp_ps_mask(unit, least, _CMP_GT_OQ);
    vec inverse = _mm512_maskz_div_ps(some, vec_set(1), unit), shape = vec_mul(inverse, vec_set(gain));
    vec_store(words->units + i, unit);
    for (size_t k = 0; k < 2; k++) {
        turned_twice(vec_mul(vec_mul(step[k], shape), vec_set(32768.0f / TURN_LEVEL)), words->factor[k] + i);
        turned_twice(vec_mul(low[k], shape), words->offset[k] + i);
        turned_twice(vec_mul(mean[k], inverse), words->mean[k] + i);
    }
}

/* Words of the next channel: x[2], 64 tokens in order, as codes lie for words. */
INLINE void channel_words(bool gained, struct reader *reader, const struct turn_words *words, size_t k, size_t i,
                          const __m512i *gains, __m512i *x) {
    __m512i levels = next_levels(4, reader), factor = _mm512_set1_epi32(words->factor[k][i]);
    __m512i offset = _mm512_set1_epi32(words->offset[k][i]), mean = _mm512_set1_epi32(words->mean[k][i]);
    UNROLL for (size_t h = 0; h < 2; h++) {
        x[h] = _mm512_maddubs_epi16(levels, _mm512_set1_epi16(h ? TURN_LEVEL << 8 : TURN_LEVEL));
        x[h] = _mm512_add_epi16(_mm512_mulhrs_epi16(x[h], factor), offset);
        if (gained) x[h] = _mm512_add_epi16(_mm512_mulhrs_epi16(x[h], gains[h]), mean);
    }
}

struct turned {
    const struct product_code *p;
    const struct key_turn *turn;
    const void *block;
    const struct turn_words *words;
    const struct turned_query *queries;
    __m512i gains[2];
};

/* logits[n][64] of n queries. */
INLINE void meet_turned(bool gained, bool adjacent, const struct turned *turned, size_t n, float *logits) {
    const struct product_code *p = turned->p;
    const size_t pairs = turned->turn->pairs;
    struct reader first = {.p = p, .block = turned->block, .table = p->levels, .order = FOR_WORDS}, second = first;
    second.part = pairs / p->width;
    second.table += pairs * 256;
    vec met[TURN_QUERIES][4];
    for (size_t g = 0; g < n; g++) {
        UNROLL for (size_t v = 0; v < 4; v++) met[g][v] = vec_zero();
    }
    for (size_t i = 0; i < pairs; i += TURNED_PAIRS) {
        __m512i keys[TURNED_PAIRS][4];
        for (size_t j = 0; j < TURNED_PAIRS; j++) {
            __m512i re[2], im[2];
            channel_words(gained, &first, turned->words, 0, i + j, turned->gains, re);
            channel_words(gained, adjacent ? &first : &second, turned->words, 1, i + j, turned->gains, im);
            turned_pair(re, im, turned->turn->words + (i + j) * 2 * BLOCK_TOKENS, keys[j]);
        }
        turned_meet_all(n, (const __m512i(*)[4])keys, turned->queries, i, met);
    }
    for (size_t g = 0; g < n; g++) turned_logits(met[g], turned->queries[g].step, logits + g * BLOCK_TOKENS);
}

static __attribute__((noinline)) void meet_adjacent(const struct turned *turned, size_t n, float *logits) {
    if (turned->turn->gain)
        meet_turned(true, true, turned, n, logits);
    else
        meet_turned(false, true, turned, n, logits);
}

static __attribute__((noinline)) void meet_apart(const struct turned *turned, size_t n, float *logits) {
    if (turned->turn->gain)
        meet_turned(true, false, turned, n, logits);
    else
        meet_turned(false, false, turned, n, logits);
}

/* Whether keys can be turned so: all channels are, by whole sub-vectors. */
static bool turns_in_words(const struct product_code *p, const struct key_turn *turn) {
    return p->levels && p->bits == 8 && turned_serves(turn) && 2 * turn->pairs == product_channels(p) &&
           (turn->adjacent || turn->pairs % p->width == 0);
}

static void score_in_words(const struct product_code *p, const struct key_turn *turn, const float *q, size_t G, const void *block,
                           float *logits) {
    const size_t hd = product_channels(p);
    struct turn_words words;
    struct turned_query queries[TURN_QUERIES];
    struct turned turned = {.p = p, .turn = turn, .block = block, .words = &words, .queries = queries};
    float gain = turn->gain ? turned_gains(turn->gain, turned.gains) : 1;
    for (size_t i = 0; i < turn->pairs; i += TURNED_PAIRS) turn_units(p, turn, gain, i, &words);
    for (size_t n; G > 0; G -= n, logits += n * BLOCK_TOKENS) {
        n = SMALLER(G, TURN_QUERIES);
        for (size_t g = 0; g < n; g++, q += hd) turned_take(turn, q, turn->pairs, words.units, &queries[g]);
        (turn->adjacent ? meet_adjacent : meet_apart)(&turned, n, logits);
    }
}
