/* Owns how the variants are fitted. index_sign encodes and scores with what was fitted, except for kmeans' encoder. */
#include "recall_index.h"
#include "backend/cpu/codec/index.h"

#include "backend/cpu/codec/codec.h"
#include "base/memory.h"
#include "train/kmeans.h"

#include <math.h>
#include <string.h>

#define WIDTH INDEX_SIGN_CHANNELS
#define CODES INDEX_SIGN_CODES
#define KMEANS_ROUNDS 20 /* the paper's, section 4.4 */

/* These return the parts of `learned` that index_sign_learned reads. */
static float *mean_in(void *learned) { return learned; }
static float *centroids_in(size_t hd, void *learned) { return (float *)learned + hd; }

/* ---- Centres and centroids */

static void fit_base(bool median, size_t hd, const float *rows, size_t n, size_t stride, void *learned) {
    const struct index_options options = {.median = median};
    cpu_index_sign.fit(hd, rows, n, stride, &options, learned);
}

/* Sets every centroid's channel i to size[i] or -size[i], by the bit of the code. */
static void set_signed(size_t hd, const float *size, float *centroids) {
    for (size_t c = 0; c < hd; c++)
        for (unsigned code = 0; code < CODES; code++)
            centroids[(c / WIDTH * CODES + code) * WIDTH + c % WIDTH] = code >> c % WIDTH & 1 ? size[c] : -size[c];
}

static void set_ones(size_t hd, float *centroids) {
    float ones[CODEC_HEAD_DIM_MAX];
    for (size_t c = 0; c < hd; c++) ones[c] = 1;
    set_signed(hd, ones, centroids);
}

static void fit_median(size_t hd, const float *rows, size_t n, size_t stride, const struct index_options *options, void *learned) {
    (void)options;
    fit_base(true, hd, rows, n, stride, learned);
}

static void fit_signs(size_t hd, const float *rows, size_t n, size_t stride, const struct index_options *options, void *learned) {
    (void)options;
    fit_base(false, hd, rows, n, stride, learned);
    set_ones(hd, centroids_in(hd, learned));
}

static void fit_magnitudes(size_t hd, const float *rows, size_t n, size_t stride, const struct index_options *options,
                           void *learned) {
    double sum[CODEC_HEAD_DIM_MAX] = {0};
    float size[CODEC_HEAD_DIM_MAX];
    (void)options;
    fit_base(false, hd, rows, n, stride, learned);
    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < hd; c++) sum[c] += fabs((double)rows[t * stride + c] - (double)mean_in(learned)[c]);
    for (size_t c = 0; c < hd; c++) size[c] = (float)(sum[c] / (double)n);
    set_signed(hd, size, centroids_in(hd, learned));
}

/* Computes the means of uncentred keys for each pattern of signs; 0 for a pattern that no key has. */
static void fit_raw(size_t hd, const float *rows, size_t n, size_t stride, const struct index_options *options, void *learned) {
    float *centroids = centroids_in(hd, learned);
    (void)options;
    memset(learned, 0, index_learned_bytes(&index_sign, hd));
    for (size_t g = 0; g < hd / WIDTH; g++) {
        double sum[CODES][WIDTH] = {{0}};
        size_t count[CODES] = {0};
        for (size_t t = 0; t < n; t++) {
            const float *x = rows + t * stride + g * WIDTH;
            unsigned code = (x[0] >= 0) | (x[1] >= 0) << 1 | (x[2] >= 0) << 2 | (x[3] >= 0) << 3;
            count[code]++;
            for (size_t i = 0; i < WIDTH; i++) sum[code][i] += (double)x[i];
        }
        for (size_t code = 0; code < CODES; code++)
            for (size_t i = 0; i < WIDTH; i++)
                if (count[code]) centroids[(g * CODES + code) * WIDTH + i] = (float)(sum[code][i] / (double)count[code]);
    }
}

static void fit_raw_signs(size_t hd, const float *rows, size_t n, size_t stride, const struct index_options *options,
                          void *learned) {
    (void)rows, (void)n, (void)stride, (void)options;
    memset(learned, 0, hd * sizeof(float));
    set_ones(hd, centroids_in(hd, learned));
}

/* ---- k-means: codes are not patterns of signs */

static void fit_kmeans(size_t hd, const float *rows, size_t n, size_t stride, const struct index_options *options, void *learned) {
    struct kmeans_options how = kmeans_options_defaults();
    struct terse_error error;
    (void)options;
    how.rounds = KMEANS_ROUNDS;
    how.tolerance = 0;
    fit_base(false, hd, rows, n, stride, learned);
    for (size_t g = 0; g < hd / WIDTH; g++) {
        const struct kmeans_points points = {rows + g * WIDTH, n, WIDTH, stride, NULL};
        float *centroids = centroids_in(hd, learned) + g * CODES * WIDTH;
        bool fitted = kmeans_fit(&points, CODES, &how, centroids, NULL, &error) == TERSE_OK;
        for (size_t i = 0; i < CODES * WIDTH; i++)
            centroids[i] = fitted ? centroids[i] - mean_in(learned)[g * WIDTH + i % WIDTH] : NAN;
    }
}

static unsigned nearest(const float *x, const float *mean, const float *centroids) {
    unsigned best = 0;
    float least = INFINITY;
    for (unsigned code = 0; code < CODES; code++) {
        float distance = 0;
        for (size_t i = 0; i < WIDTH; i++) {
            float d = x[i] - mean[i] - centroids[code * WIDTH + i];
            distance += d * d;
        }
        if (distance < least) {
            least = distance;
            best = code;
        }
    }
    return best;
}

static void encode_kmeans(size_t hd, const void *learned, const float *rows, size_t n, void *page) {
    const struct index_sign_learned known = index_sign_learned(hd, learned);
    uint8_t *planes = page;
    memset(page, 0, index_bytes(&index_sign, hd));
    for (size_t t = 0; t < n; t++)
        for (size_t g = 0; g < hd / WIDTH; g++) {
            unsigned code = nearest(rows + t * hd + g * WIDTH, known.mean + g * WIDTH, known.centroids + g * CODES * WIDTH);
            planes[g / 2 * PAGE_TOKENS + t] |= (uint8_t)(code << g % 2 * 4);
        }
}

/* ---- The table */

typedef void (*fit_function)(size_t, const float *, size_t, size_t, const struct index_options *, void *);

static const struct variant {
    const char *name;
    fit_function fit;
} variants[] = {{"median", fit_median}, {"signs", fit_signs},         {"magnitudes", fit_magnitudes},
                {"raw", fit_raw},       {"raw-signs", fit_raw_signs}, {"kmeans", fit_kmeans}};
#define VARIANTS (sizeof variants / sizeof variants[0])

const struct cpu_index *index_variant(const char *name) {
    static struct index formats[VARIANTS];
    static struct cpu_index made[VARIANTS];
    if (strcmp(name, index_sign.name) == 0) return &cpu_index_sign;
    if (strcmp(name, index_quest.name) == 0) return &cpu_index_quest;
    for (size_t i = 0; i < VARIANTS; i++) {
        if (strcmp(name, variants[i].name) != 0) continue;
        if (made[i].format) return &made[i];
        made[i] = cpu_index_sign;
        made[i].fit = variants[i].fit;
        if (variants[i].fit == fit_kmeans) made[i].encode = encode_kmeans;
        formats[i] = (struct index){INDEX_SIGN, variants[i].name}; /* of its own: pages of keys do not begin with it */
        made[i].format = &formats[i];
        return &made[i];
    }
    return NULL;
}

double index_sign_error(const struct cpu_index *index, size_t hd, const void *learned, const float *rows, size_t n, size_t stride) {
    const struct index_sign_learned known = index_sign_learned(hd, learned);
    double left = 0, whole = 0;
    uint8_t page[PAGE_TOKENS / 8 * CODEC_HEAD_DIM_MAX];
    for (size_t t = 0; t < n; t++) {
        const float *x = rows + t * stride;
        index->encode(hd, learned, x, 1, page);
        for (size_t c = 0; c < hd; c++) {
            unsigned code = page[c / 8 * PAGE_TOKENS] >> c % 8 / WIDTH * WIDTH & (CODES - 1);
            double centred = (double)x[c] - (double)known.mean[c];
            double error = centred - (double)known.centroids[(c / WIDTH * CODES + code) * WIDTH + c % WIDTH];
            whole += centred * centred;
            left += error * error;
        }
    }
    return whole > 0 ? left / whole : 0;
}
