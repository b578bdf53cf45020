/* Implements the index sign (Self-Indexing KVCache, Yang et al. 2026, equations 1 to 8). A key, less the mean of each channel,
 * keeps one sign per channel; four channels' signs are a code, and 16 centroids for each four channels are the means of the keys
 * with that code. A query is multiplied by the centroids once, and each token is scored by a look-up for each four channels.
 *
 * Centring makes a sign worth a bit: the sign of a channel that is always positive tells nothing. It costs nothing, since it moves
 * all logits of a query alike.
 *
 * Zero counts as positive, here and everywhere. A code that no key has gets the mean magnitudes of its channels with its signs (the
 * released code divides 0 by 0 there), so that each centroid lies in its orthant. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/index.h"
#include "backend/cpu/kernels/select/ops.h"
#include "backend/cpu/kernels/vector/ops.h"

#include <math.h>
#include <string.h>

#define WIDTH INDEX_SIGN_CHANNELS
#define CODES INDEX_SIGN_CODES
#define MOST_SUBVECTORS (CODEC_HEAD_DIM_MAX / WIDTH)
#define CHUNK_ROWS 512 /* that are added up in single precision before double takes over */

struct index_options index_options_defaults(void) {
    return (struct index_options){.median = false};
}

/* ---- Learning: the middle of each channel, then one reading for the centroids */

static void find_means(size_t hd, const float *rows, size_t n, size_t stride, float *mean) {
    double sum[CODEC_HEAD_DIM_MAX] = {0};
    for (size_t first = 0; first < n; first += CHUNK_ROWS) {
        size_t end = n - first < CHUNK_ROWS ? n : first + CHUNK_ROWS;
        float some[CODEC_HEAD_DIM_MAX] = {0};
        for (size_t r = first; r < end; r++)
            for (size_t c = 0; c < hd; c++) some[c] += rows[r * stride + c];
        for (size_t c = 0; c < hd; c++) sum[c] += (double)some[c];
    }
    for (size_t c = 0; c < hd; c++) mean[c] = (float)(sum[c] / (double)n);
}

/* Returns integers that order as floats do. */
static uint32_t order_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static float from_order(uint32_t order) {
    uint32_t bits = order & 0x80000000u ? order & 0x7fffffffu : ~order;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#define SOME 16 /* channels whose medians are found together: a cache line of a row */

/* Computes lower medians of `count` channels, eight bits of them in each of four sweeps: earlier sweeps tell which numbers begin
 * alike. */
static void find_some_medians(size_t count, const float *rows, size_t n, size_t stride, float *median) {
    uint32_t known[SOME] = {0}, histogram[SOME][256];
    size_t rank[SOME];
    for (size_t c = 0; c < count; c++) rank[c] = (n - 1) / 2;
    for (unsigned shift = 24;; shift -= 8) {
        memset(histogram, 0, sizeof histogram);
        for (size_t r = 0; r < n; r++) {
            for (size_t c = 0; c < count; c++) {
                uint32_t order = order_of(rows[r * stride + c]);
                histogram[c][order >> shift & 255] += (uint64_t)order >> shift >> 8 == (uint64_t)known[c] >> shift >> 8;
            }
        }
        for (size_t c = 0; c < count; c++) {
            uint32_t byte = 0;
            while (histogram[c][byte] <= rank[c]) rank[c] -= histogram[c][byte++];
            known[c] |= byte << shift;
        }
        if (!shift) break;
    }
    for (size_t c = 0; c < count; c++) median[c] = from_order(known[c]);
}

static void find_medians(size_t hd, const float *rows, size_t n, size_t stride, float *median) {
    for (size_t c = 0; c < hd; c += SOME) find_some_medians(hd - c < SOME ? hd - c : SOME, rows + c, n, stride, median + c);
}

typedef float four __attribute__((vector_size(16)));
typedef int32_t four_flags __attribute__((vector_size(16)));

/* Computes sums[subvectors][16] and counts[subvectors][16] of rows - mean. */
static void add_rows(size_t hd, const float *rows, size_t n, size_t stride, const float *mean, four (*sums)[CODES],
                     uint32_t (*counts)[CODES]) {
    const four_flags bits = {1, 2, 4, 8};
    for (size_t r = 0; r < n; r++) {
        for (size_t g = 0; g < hd / WIDTH; g++) {
            four x, m;
            memcpy(&x, rows + r * stride + g * WIDTH, sizeof x);
            memcpy(&m, mean + g * WIDTH, sizeof m);
            x -= m;
            four_flags set = (x >= 0) & bits;
            unsigned code = (unsigned)(set[0] | set[1] | set[2] | set[3]);
            sums[g][code] += x;
            counts[g][code]++;
        }
    }
}

/* Computes the means of the keys of each code; magnitude[4] stands in for codes that have none. */
static void set_centroids(const double (*sums)[WIDTH], const uint32_t *counts, float *centroids) {
    double magnitude[WIDTH] = {0};
    uint64_t all = 0;
    for (size_t code = 0; code < CODES; code++) {
        all += counts[code];
        for (size_t i = 0; i < WIDTH; i++) magnitude[i] += fabs(sums[code][i]);
    }
    for (size_t code = 0; code < CODES; code++) {
        for (size_t i = 0; i < WIDTH; i++) {
            double size = magnitude[i] / (double)all, from_none = code >> i & 1 ? size : -size;
            centroids[code * WIDTH + i] = (float)(counts[code] ? sums[code][i] / counts[code] : from_none);
        }
    }
}

static void find_centroids(size_t hd, const float *rows, size_t n, size_t stride, const float *mean, float *centroids) {
    double sums[MOST_SUBVECTORS][CODES][WIDTH] = {{{0}}};
    uint32_t counts[MOST_SUBVECTORS][CODES] = {{0}};
    for (size_t first = 0; first < n; first += CHUNK_ROWS) {
        four some[MOST_SUBVECTORS][CODES];
        memset(some, 0, sizeof some);
        add_rows(hd, rows + first * stride, n - first < CHUNK_ROWS ? n - first : CHUNK_ROWS, stride, mean, some, counts);
        for (size_t i = 0; i < hd / WIDTH * CODES; i++)
            for (size_t j = 0; j < WIDTH; j++) sums[i / CODES][i % CODES][j] += (double)some[i / CODES][i % CODES][j];
    }
    for (size_t g = 0; g < hd / WIDTH; g++)
        set_centroids((const double(*)[WIDTH])sums[g], counts[g], centroids + g * CODES * WIDTH);
}

static void fit(size_t hd, const float *rows, size_t n, size_t stride, const struct index_options *options, void *learned) {
    float *mean = learned, *centroids = mean + hd;
    (options->median ? find_medians : find_means)(hd, rows, n, stride, mean);
    find_centroids(hd, rows, n, stride, mean, centroids);
}

/* ---- Pages: code planes [hd/8][64] */

static void encode(size_t hd, const void *learned, const float *rows, size_t n, void *page) {
    const float *mean = index_sign_learned(hd, learned).mean;
    uint8_t *planes = page;
    memset(page, 0, index_bytes(&index_sign, hd));
    for (size_t t = 0; t < n; t++)
        for (size_t j = 0; j < hd / 8; j++) planes[j * PAGE_TOKENS + t] = index_sign_code(rows + t * hd + j * 8, mean + j * 8);
}

/* ---- Reading: u8 tables[hd/4][16], then step and base */

#define SCALE_BYTES 64

static size_t table_bytes(size_t hd) { return hd / WIDTH * CODES + SCALE_BYTES; }

void index_sign_scale(size_t hd, const void *tables, float *step, float *base) {
    const uint8_t *at = (const uint8_t *)tables + hd / WIDTH * CODES;
    memcpy(step, at, sizeof *step);
    memcpy(base, at + sizeof *step, sizeof *base);
}

static void mean_query(size_t hd, const float *q, size_t G, float *mean) {
    memset(mean, 0, hd * sizeof *mean);
    for (size_t g = 0; g < G; g++) vector_ops()->axpy(1 / (float)G, q + g * hd, mean, hd);
}

/* Computes products[16] of the centroids of four channels with the query; returns the least of them. */
static float meet(const float *q, const float *centroids, float *products, float *span) {
    float least = INFINITY, most = -INFINITY;
    for (size_t code = 0; code < CODES; code++) {
        const float *c = centroids + code * WIDTH;
        products[code] = q[0] * c[0] + q[1] * c[1] + q[2] * c[2] + q[3] * c[3];
        least = products[code] < least ? products[code] : least;
        most = products[code] > most ? products[code] : most;
    }
    *span = most - least;
    return least;
}

static void prepare(size_t hd, const void *learned, const float *q, size_t G, void *tables) {
    const float *centroids = index_sign_learned(hd, learned).centroids;
    float mean[CODEC_HEAD_DIM_MAX], products[MOST_SUBVECTORS][CODES], least[MOST_SUBVECTORS], widest = 0, base = 0;
    uint8_t *entries = tables;
    mean_query(hd, q, G, mean);
    for (size_t g = 0; g < hd / WIDTH; g++) {
        float span;
        least[g] = meet(mean + g * WIDTH, centroids + g * CODES * WIDTH, products[g], &span);
        widest = span > widest ? span : widest;
        base += least[g];
    }
    float step = widest / 255, inverse = step > 0 && isfinite(1 / step) ? 1 / step : 0;
    for (size_t i = 0; i < hd / WIDTH * CODES; i++) {
        float entry = (products[i / CODES][i % CODES] - least[i / CODES]) * inverse + 0.5f;
        entries[i] = (uint8_t)(entry > 0 ? (entry < 255 ? entry : 255) : 0); /* NaN gives 0 */
    }
    memset(entries + hd / WIDTH * CODES, 0, SCALE_BYTES);
    memcpy(entries + hd / WIDTH * CODES, &step, sizeof step);
    memcpy(entries + hd / WIDTH * CODES + sizeof step, &base, sizeof base);
}

/* Scores a page. At most 64 sub-vectors of at most 255 each fit 16 bits. */
static void scores(size_t hd, const void *tables, const void *page, uint16_t *to) {
    select_ops()->scores_sign(tables, hd / 8, page, to);
}

const struct cpu_index cpu_index_sign = {
    .format = &index_sign, .fit = fit, .encode = encode, .table_bytes = table_bytes, .prepare = prepare, .scores = scores};

/* ---- The table */

const struct cpu_index *cpu_index_of(const struct index *index) {
    static const struct cpu_index *const indexes[INDEX_COUNT] = {[INDEX_SIGN] = &cpu_index_sign, [INDEX_QUEST] = &cpu_index_quest};
    return indexes[index->id];
}
