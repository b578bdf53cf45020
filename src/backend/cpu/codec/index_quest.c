/* Implements the index quest (Quest, Tang et al. 2024, section 3.2). It keeps for each page of 16 tokens the least and the largest
 * number of each channel, which bound the product of a query with any of its keys: the sum over channels of max(q least, q most).
 * All tokens of a page get the page's bound. With bounds in half precision that is 2 bits per channel and token.
 *
 * Scores are the bound as a half float, in the order of integers. So that it fits, the query is scaled to a sum of magnitudes of 1:
 * no sum is then larger than the largest key. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/index.h"
#include "backend/cpu/kernels/select/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "base/half.h"

#include <math.h>
#include <string.h>

#define PAGE QUEST_PAGE_TOKENS
#define PAGES (PAGE_TOKENS / PAGE)
#define LARGEST 65504.0f /* half float */

static void fit(size_t hd, const float *rows, size_t n, size_t stride, const struct index_options *options, void *learned) {
    (void)hd, (void)rows, (void)n, (void)stride, (void)options, (void)learned;
}

/* Limits a number to the range of a half float; NaN becomes 0. */
static float bounded(float x) { return x > LARGEST ? LARGEST : x < -LARGEST ? -LARGEST : x == x ? x : 0; }

/* Returns the half next below x, so that bounds stay bounds; half_above does the opposite. */
static uint16_t half_below(float x) {
    uint16_t half = half_from_float(x);
    if (half_to_float(half) <= x) return half;
    return half & 0x8000 ? (uint16_t)(half + 1) : half == 0 ? 0x8001 : (uint16_t)(half - 1);
}

static uint16_t half_above(float x) { return half_below(-x) ^ 0x8000; }

/* Encodes one page as half least[hd], most[hd]. Pages without tokens hold zeros. */
static void encode_page(size_t hd, const float *rows, size_t n, uint16_t *bounds) {
    for (size_t c = 0; c < hd; c++) {
        float least = LARGEST, most = -LARGEST;
        for (size_t t = 0; t < n; t++) {
            float x = bounded(rows[t * hd + c]);
            least = x < least ? x : least;
            most = x > most ? x : most;
        }
        bounds[c] = half_below(least);
        bounds[hd + c] = half_above(most);
    }
}

static void encode(size_t hd, const void *learned, const float *rows, size_t n, void *page) {
    (void)learned;
    memset(page, 0, index_bytes(&index_quest, hd));
    for (size_t t = 0; t < n; t += PAGE)
        encode_page(hd, rows + t * hd, n - t < PAGE ? n - t : PAGE, (uint16_t *)page + t / PAGE * 2 * hd);
}

static size_t table_bytes(size_t hd) { return hd * sizeof(float); }

static void prepare(size_t hd, const void *learned, const float *q, size_t G, void *tables) {
    (void)learned;
    float *query = tables;
    double sum = 0;
    memset(query, 0, hd * sizeof *query);
    for (size_t g = 0; g < G; g++) vector_ops()->axpy(1 / (float)G, q + g * hd, query, hd);
    for (size_t c = 0; c < hd; c++) sum += fabs((double)query[c]);
    for (size_t c = 0; c < hd; c++) query[c] = sum > 0 && isfinite(sum) ? (float)((double)query[c] / sum) : 0;
}

static void scores(size_t hd, const void *tables, const void *page, uint16_t *to) {
    float bounds[PAGES];
    select_ops()->scores_quest(tables, hd, page, bounds);
    for (size_t p = 0; p < PAGES; p++) {
        uint16_t half = half_from_float(bounds[p]);
        half = half & 0x8000 ? (uint16_t)~half : half | 0x8000;
        for (size_t t = 0; t < PAGE; t++) to[p * PAGE + t] = half;
    }
}

const struct cpu_index cpu_index_quest = {
    .format = &index_quest, .fit = fit, .encode = encode, .table_bytes = table_bytes, .prepare = prepare, .scores = scores};
