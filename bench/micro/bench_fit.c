/* Times what fits a sequence's transforms (terse-N), one thread, by shape of model: milliseconds of each part, and all of it against
 * the matrix products of a prefill of the 2048 tokens that it fits to, in the same run.
 *
 *     bench_fit [RATE]     bits of a component, 4 without it
 *
 * The moments of rows and the records (eigenvectors among them) are divided among threads and ranks; the importance, the sharing of
 * bits and the layouts are not. Rounds of the parts take turns; the fastest round of each counts. */
#include "backend/cpu/gemm.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "base/clock.h"
#include "base/eigen.h"
#include "base/memory.h"
#include "base/random.h"
#include "format/codebook_layouts.h"
#include "format/transform_fit.h"
#include "kv/cache.h"
#include "support/random_codebook.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 7
#define KINDS_OF_ROWS 3 /* sets whose rows are looked at; other sets cost the same */
#define GEMM_TOKENS 256 /* of a prefill's, whose products cost the same for each token */

static const struct kind {
    const char *name;
    uint32_t layers, kv_heads, head_dim, hidden;
    double weights; /* of a layer, which each token is multiplied by */
} kinds[] = {{"SmolLM2-135M", 30, 3, 64, 576, 3.54e6}, {"Qwen2.5-0.5B", 24, 2, 64, 896, 14.9e6}, {"8B", 32, 8, 128, 4096, 218e6}};

/* While they are timed, MOMENTS is all of a fit to rows, RECORDS what follows the moments: the fastest of each are subtracted. */
enum part { MOMENTS, EIGENVECTORS, RECORDS, IMPORTANCE, SHARING, LAYOUTS, PREFILL, PARTS };
static const char *const part_names[PARTS] = {"moments", "eigenvectors", "rest of records", "importance",
                                              "sharing", "layouts",      "prefill"};

static void fail(const char *message) {
    fprintf(stderr, "bench_fit: %s\n", message);
    exit(1);
}

static void check(enum terse_status status, const struct terse_error *error) {
    if (status) fail(error->message);
}

static void *array(size_t n, size_t size) {
    void *memory = memory_zeros(n, size);
    if (!memory) fail("no memory");
    return memory;
}

struct work {
    const struct kind *kind;
    struct method method;
    size_t hd, sets;
    float *rows;                /* [KINDS_OF_ROWS][FIT_TOKENS][hd] */
    uint8_t *profile, *records; /* [KINDS_OF_ROWS] of TRANSFORM_RECORD_STRIDE */
    float *metrics;             /* [KINDS_OF_ROWS][hd][hd] */
    float *sizes;               /* [2 sets][hd] */
    struct codebook_rows *own;  /* [2][sets] */
    double *matrix;             /* [hd][hd], and as many numbers of symmetric_eigen's */
    double *covariance;         /* [hd][hd] */
    float *x, *weights, *y;     /* [GEMM_TOKENS][hidden], [hidden][hidden], [GEMM_TOKENS][hidden] */
    double seconds[PARTS];      /* of the fastest round, of all sets and layers */
};

/* Makes rows whose components fall in size, in no channels' directions, and metrics and profiles as codebooks have them. */
static void make_rows(struct work *w) {
    const size_t hd = w->hd, stride = TRANSFORM_RECORD_STRIDE(hd);
    uint64_t seed = 1;
    float *floats = array(transform_parameter_floats((uint32_t)hd), sizeof *floats);
    struct terse_error error;
    for (size_t kind = 0; kind < KINDS_OF_ROWS; kind++) {
        codebook_parameters(w->method.learned, CODEC_VALUES, kind, floats);
        const struct transform_parameters own = transform_parameters_at(floats, (uint32_t)hd);
        transform_record_set(own, (uint32_t)hd, w->profile + kind * stride);
        check(transform_metric(own.basis, (uint32_t)hd, w->metrics + kind * hd * hd, &error), &error);
        for (size_t t = 0; t < FIT_TOKENS; t++) {
            float *row = w->rows + (kind * FIT_TOKENS + t) * hd;
            for (size_t c = 0; c < hd; c++) {
                const float z = (float)(random_uniform(random_next(&seed)) - 0.5) * exp2f(-6 * (float)c / (float)hd);
                for (size_t i = 0; i < hd; i++) row[i] += z * own.basis[(c + 1) % hd * hd + i];
            }
        }
    }
    memory_free(floats);
}

/* Makes sizes of all sets that fall as those of models do, some faster than others, and gains. */
static void make_sizes(struct work *w) {
    uint64_t seed = 2;
    for (size_t i = 0; i < 2 * w->sets; i++) {
        const float fall = 2 + 8 * (float)random_uniform(random_next(&seed));
        for (size_t c = 0; c < w->hd; c++) {
            const float noise = 1 - 0.5f / (float)w->hd * (float)random_uniform(random_next(&seed));
            w->sizes[i * w->hd + c] = c ? w->sizes[i * w->hd + c - 1] * noise * exp2f(-fall / (float)w->hd) : 4;
        }
        w->own[i] = (struct codebook_rows){w->sizes + i * w->hd, exp2f(4 * (float)random_uniform(random_next(&seed))), 1};
    }
}

static void begin(struct work *w, const struct kind *kind, double rate) {
    const size_t hd = kind->head_dim, hidden = kind->hidden, stride = TRANSFORM_RECORD_STRIDE(hd);
    struct terse_cache_options options = terse_cache_options_defaults();
    struct terse_error error;
    options.method = "terse-4";
    *w = (struct work){.kind = kind, .hd = hd, .sets = (size_t)kind->layers * kind->kv_heads};
    check(method_resolve(&options, kind->head_dim, &w->method, &error), &error);
    w->method.key.rate = w->method.value.rate = rate;
    check(random_codebook(&w->method, kind->layers, kind->kv_heads, kind->head_dim, 0, false, &error), &error);
    w->rows = array(KINDS_OF_ROWS * FIT_TOKENS * hd, sizeof *w->rows);
    w->profile = array(KINDS_OF_ROWS, stride);
    w->records = array(KINDS_OF_ROWS, stride);
    w->metrics = array(KINDS_OF_ROWS * hd * hd, sizeof *w->metrics);
    w->sizes = array(2 * w->sets * hd, sizeof *w->sizes);
    w->own = array(2 * w->sets, sizeof *w->own);
    w->matrix = array(2 * hd * hd + hd + symmetric_eigen_scratch(hd), sizeof *w->matrix);
    w->covariance = array(hd * hd, sizeof *w->covariance);
    w->x = array(GEMM_TOKENS * hidden, sizeof *w->x);
    w->weights = array(hidden * hidden, sizeof *w->weights);
    w->y = array(GEMM_TOKENS * hidden, sizeof *w->y);
    for (size_t i = 0; i < hidden * hidden; i++) w->weights[i] = (float)(i % 7);
    for (int i = 0; i < PARTS; i++) w->seconds[i] = INFINITY;
    make_rows(w);
    make_sizes(w);
}

static void end(struct work *w) {
    terse_codebook_free((struct terse_codebook *)w->method.learned);
    void *const all[] = {w->rows,   w->profile,    w->records, w->metrics, w->sizes, w->own,
                         w->matrix, w->covariance, w->x,       w->weights, w->y};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) memory_free(all[i]);
}

static void note(struct work *w, enum part part, double seconds) { w->seconds[part] = fmin(w->seconds[part], seconds); }

/* Times a kind's rows in three ways: all of the fit, what follows the moments, and the eigenvectors alone. */
static void time_records(struct work *w, size_t kind) {
    const size_t hd = w->hd, stride = TRANSFORM_RECORD_STRIDE(hd);
    const double all = 2 * (double)w->sets;
    const float *rows = w->rows + kind * FIT_TOKENS * hd;
    struct terse_error error;
    double start = clock_now();
    check(transform_fit_rows(vector_ops()->multiply, w->profile + kind * stride, w->metrics + kind * hd * hd, (uint32_t)hd, rows,
                             FIT_TOKENS, NULL, w->records + kind * stride, &error),
          &error);
    note(w, MOMENTS, all * (clock_now() - start));
    for (size_t i = 0; i < hd; i++)
        for (size_t j = 0; j < hd; j++) {
            double sum = 0;
            for (size_t t = 0; t < 256; t++) sum += (double)rows[t * hd + i] * (double)rows[t * hd + j];
            w->covariance[i * hd + j] = sum;
        }
    memcpy(w->matrix, w->covariance, hd * hd * sizeof *w->matrix);
    start = clock_now();
    symmetric_eigen(w->matrix, hd, w->matrix + 2 * hd * hd, w->matrix + hd * hd, w->matrix + 2 * hd * hd + hd);
    note(w, EIGENVECTORS, all * (clock_now() - start));
    const struct transform_row_moments moments = {
        .mean = rows, .products = w->covariance, .used = FIT_TOKENS, .gain = 1, .least = 0.1f, .most = 10};
    start = clock_now();
    check(transform_fit_moments(w->profile + kind * stride, (uint32_t)hd, &moments, w->records + kind * stride, &error), &error);
    note(w, RECORDS, all * (clock_now() - start));
}

/* Times the whole making of layouts, and its parts. */
static void time_layouts(struct work *w) {
    const size_t hd = w->hd, sets = w->sets, quads = hd / TRANSFORM_QUAD;
    const struct codebook_rows *const rows[2] = {w->own, w->own + sets};
    struct terse_error error;
    float *importance = array(2 * sets, sizeof *importance);
    uint8_t *bits = array(2 * sets, quads);
    struct transform_share *shares = array(2 * sets, sizeof *shares);
    struct transform_layout *layout = array(1, sizeof *layout);
    double start = clock_now();
    check(codebook_importance(w->method.learned, rows, false, (float *[2]){importance, importance + sets}, &error), &error);
    note(w, IMPORTANCE, clock_now() - start);
    for (size_t i = 0; i < 2 * sets; i++)
        shares[i] = (struct transform_share){.importance = importance[i], .size = w->own[i].size, .quad_bits = bits + i * quads};
    start = clock_now();
    check(transform_share_bits(shares, 2 * sets, (uint32_t)hd, w->method.key.rate, &error), &error);
    note(w, SHARING, clock_now() - start);
    start = clock_now();
    for (size_t i = 0; i < 2 * sets; i++) transform_layout_set(bits + i * quads, (uint32_t)hd, layout);
    note(w, LAYOUTS, clock_now() - start);
    memory_free(importance);
    memory_free(bits);
    memory_free(shares);
    memory_free(layout);
}

static void time_prefill(struct work *w) {
    const size_t n = w->kind->hidden;
    const double products = FIT_TOKENS / (double)GEMM_TOKENS * w->kind->layers * w->kind->weights / ((double)n * (double)n);
    const double start = clock_now();
    gemm(true, GEMM_TOKENS, n, n, w->x, n, w->weights, n, false, w->y, n);
    note(w, PREFILL, products * (clock_now() - start));
}

static void print(struct work *w) {
    double all = 0;
    w->seconds[MOMENTS] -= w->seconds[RECORDS];
    w->seconds[RECORDS] -= w->seconds[EIGENVECTORS];
    for (int i = 0; i < PREFILL; i++) all += w->seconds[i];
    for (int i = 0; i < PARTS; i++) printf("%-14s %-16s %9.2f ms\n", w->kind->name, part_names[i], 1e3 * w->seconds[i]);
    printf("%-14s %-16s %9.2f ms, %.4f of the prefill's products\n", w->kind->name, "all", 1e3 * all, all / w->seconds[PREFILL]);
}

int main(int argc, char **argv) {
    const double rate = argc > 1 ? atof(argv[1]) : 4;
    if (!(rate > 0 && rate <= TRANSFORM_BITS_MAX)) fail("RATE must be above 0 and at most 8");
    omp_set_num_threads(1);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        static struct work w;
        begin(&w, &kinds[i], rate);
        for (int round = 0; round < ROUNDS; round++) {
            time_records(&w, (size_t)round % KINDS_OF_ROWS);
            time_layouts(&w);
            time_prefill(&w);
        }
        print(&w);
        end(&w);
    }
    return 0;
}
