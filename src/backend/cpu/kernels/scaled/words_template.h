/* This template implements q8_0, and values of q4_0 whose weights take two bytes, by products of int16 (lanes/avx2_i16.h): a
 * query's numbers, and weights times scales, are fixed point. avx2_q.c and avxvnni_q.c include it once, with ISA defined; it
 * defines scaled_init_ISA_q.
 *
 * Codes of q4_0 are multiplied as they are stored, from 0 on; the surplus is subtracted by the sum of the numbers they are
 * multiplied by. */
#include "backend/cpu/kernels/limits.h"
#include "backend/cpu/kernels/scaled/init.h"

#define ZERO_Q4_0 8

/* ---- Keys: the lanes are 16 tokens, a dword has two channels ------------------------------------------------------------- */

static void PASTE(prepare_q8_0, ISA)(const float *q, size_t G, size_t hd, float *tables) {
    for (size_t g = 0; g < G; g++, q += hd, tables += hd) {
        __m256 x[KERNELS_MOST_ROW / LANES];
        for (size_t v = 0; v < hd / LANES; v++) x[v] = vec_load(q + LANES * v);
        fill_table(x, hd, tables);
    }
}

/* Adds the products of 32 channels, whose int16 of the first query are at q. */
INLINE void add_group(size_t G, const uint8_t *rows, size_t part, const int16_t *q, size_t hd, pair_sums sum) {
    for (size_t c = 0; c < SCALE_GROUP; c += 2, rows += 2 * PAGE_TOKENS) {
        __m256i codes[2];
        prefetch_step(rows + part * PAGE_TOKENS, 0, 32);
        split(8, 0, pair_rows_32(rows, rows + PAGE_TOKENS, part), codes);
        pair_sums_add(G, codes, q + c, 2 * hd, sum);
    }
}

/* Scores tokens first + 8 part to first + 8 part + 7 and those 16 further on. */
INLINE void score_sixteen(size_t G, const float *tables, size_t hd, const void *page, size_t first, size_t part, float *logits) {
    const size_t at = first + 8 * part;
    const uint16_t *scale = page;
    const uint8_t *codes = (const uint8_t *)(scale + hd / SCALE_GROUP * PAGE_TOKENS) + first;
    __m256 logit[TOGETHER][2], scales[2];
    UNROLL for (size_t g = 0; g < G; g++) logit[g][0] = logit[g][1] = _mm256_setzero_ps();
    for (size_t b = 0; b < hd / SCALE_GROUP; b++, scale += PAGE_TOKENS, codes += SCALE_GROUP * PAGE_TOKENS) {
        pair_sums sum;
        prefetch_step(scale + first, 0, 64);
        pair_sums_clear(G, sum);
        add_group(G, codes, part, table_i16(tables) + b * SCALE_GROUP, hd, sum);
        by_parity(vec_halves(scale + at), vec_halves(scale + at + 16), scales);
        UNROLL for (size_t g = 0; g < G; g++) {
            UNROLL for (size_t i = 0; i < 2; i++) logit[g][i] =
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[g][i]), scales[i], logit[g][i]);
        }
    }
    UNROLL for (size_t g = 0; g < G; g++) {
        __m256 step = _mm256_set1_ps(table_step(tables + g * hd, hd)), x[2];
        in_order(logit[g], x);
        UNROLL for (size_t i = 0; i < 2; i++) vec_store(logits + g * PAGE_TOKENS + at + 16 * i, _mm256_mul_ps(x[i], step));
    }
}

INLINE void score_q8_0(size_t G, const float *tables, size_t hd, const void *page, float *logits) {
    for (size_t first = 0; first < PAGE_TOKENS; first += 32) {
        score_sixteen(G, tables, hd, page, first, 0, logits);
        score_sixteen(G, tables, hd, page, first, 1, logits);
    }
}

PAGE_KERNELS_4(score_q8_0)
static void PASTE(score_q8_0, ISA)(const float *tables, size_t G, size_t hd, const void *page, float *logits) {
    call_page_kernels(score_q8_0_of, TOGETHER, tables, hd, G, hd, page, logits, PAGE_TOKENS);
}

/* ---- Values: the lanes are 16 channels, a dword has two tokens ----------------------------------------------------------- */

/* Adds to acc[G][16 of hd] the products of rows `length` apart, of channels 8 part to 8 part + 7 and those 16 more on. `ahead` is
 * the part of the page that these rows would fill if they lay together. */
INLINE void accumulate_sixteen(size_t G, size_t part, const struct scaled_weights *w, const uint8_t *row, size_t length,
                               const uint8_t *ahead, size_t hd, float *acc) {
    pair_sums sum;
    pair_sums_clear(G, sum);
    for (size_t t = 0; t < PAGE_TOKENS; t += 2, row += 2 * length, ahead += SCALE_GROUP) {
        __m256i codes[2];
        prefetch_step(ahead, 0, 32);
        split(8, 0, pair_rows_32(row, row + length, part), codes);
        pair_sums_add(G, codes, w->i16[0] + t, PAGE_TOKENS, sum);
    }
    UNROLL for (size_t g = 0; g < G; g++) pair_sums_store(sum[g], w->step[g], 0, true, 16, acc + g * hd + 8 * part);
}

INLINE void accumulate_bytes(size_t G, const struct scaled_weights *w, const uint8_t *rows, size_t length, const uint8_t *ahead,
                             size_t hd, float *acc) {
    accumulate_sixteen(G, 0, w, rows, length, ahead, hd, acc);
    accumulate_sixteen(G, 1, w, rows, length, ahead + PAGE_TOKENS * SCALE_GROUP / 2, hd, acc);
}

INLINE void accumulate_nibbles(size_t G, const struct scaled_weights *w, const uint8_t *rows, size_t length, const uint8_t *ahead,
                               size_t hd, float *acc) {
    __m256i pairs[PAGE_TOKENS / 2];
    pair_rows(rows, length, PAGE_TOKENS, ahead, pairs);
    UNROLL for (size_t high = 0; high < 2; high++) {
        pair_sums sum;
        pair_sums_clear(G, sum);
        for (size_t t = 0; t < PAGE_TOKENS; t += 2) {
            __m256i codes[2];
            split(4, high ? 4 : 0, pairs[t / 2], codes);
            pair_sums_add(G, codes, w->i16[0] + t, PAGE_TOKENS, sum);
        }
        UNROLL for (size_t g = 0; g < G; g++) {
            pair_sums_subtract(g, ZERO_Q4_0, w->sum[g], sum);
            pair_sums_store(sum[g], w->step[g], 0, true, 8, acc + g * hd + 16 * high);
        }
    }
}

INLINE void accumulate_codes(size_t G, bool nibbles, const float *weights, size_t hd, const void *page, float *acc) {
    const size_t step = nibbles ? SCALE_GROUP / 2 : SCALE_GROUP, length = hd / SCALE_GROUP * step;
    const uint16_t *scale = page;
    const uint8_t *codes = (const uint8_t *)(scale + hd / SCALE_GROUP * PAGE_TOKENS);
    for (size_t b = 0; b < hd / SCALE_GROUP; b++, scale += PAGE_TOKENS) {
        __m256 scales[PAGE_TOKENS / LANES];
        struct scaled_weights w;
        prefetch_step(scale, 0, PAGE_TOKENS * 2);
        UNROLL for (size_t v = 0; v < PAGE_TOKENS / LANES; v++) scales[v] = vec_halves(scale + v * LANES);
        scale_and_quantize(G, nibbles, weights, scales, &w);
        const uint8_t *rows = codes + b * step, *ahead = codes + b * step * PAGE_TOKENS;
        if (nibbles)
            accumulate_nibbles(G, &w, rows, length, ahead, hd, acc + b * SCALE_GROUP);
        else
            accumulate_bytes(G, &w, rows, length, ahead, hd, acc + b * SCALE_GROUP);
    }
}

INLINE void accumulate_q8_0(size_t G, const float *weights, size_t hd, const void *page, float *acc) {
    accumulate_codes(G, false, weights, hd, page, acc);
}
INLINE void accumulate_q4_0(size_t G, const float *weights, size_t hd, const void *page, float *acc) {
    accumulate_codes(G, true, weights, hd, page, acc);
}

PAGE_KERNELS_4(accumulate_q8_0)
static void PASTE(accumulate_q8_0, ISA)(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    call_page_kernels(accumulate_q8_0_of, TOGETHER, weights, PAGE_TOKENS, G, hd, page, acc, hd);
}
PAGE_KERNELS_4(accumulate_q4_0)
static void PASTE(accumulate_q4_0, ISA)(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    call_page_kernels(accumulate_q4_0_of, TOGETHER, weights, PAGE_TOKENS, G, hd, page, acc, hd);
}

void PASTE(PASTE(scaled_init, ISA), q)(struct scaled_ops *ops) {
    ops->prepare_q8_0 = PASTE(prepare_q8_0, ISA);
    ops->score_q8_0 = PASTE(score_q8_0, ISA);
    ops->accumulate_q8_0 = PASTE(accumulate_q8_0, ISA);
    ops->accumulate_q4_0 = PASTE(accumulate_q4_0, ISA);
}
