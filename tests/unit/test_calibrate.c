/* Capture against what the backward pass delivers, rotated here in double precision; which tokens stay under a small budget; the
 * weights' formula; and calibration as a whole: the same bits for any number of threads, centroids that belong to their own layer,
 * head and side, interruption at every report, refused memory. */
#include "backend/cpu/codec/codec.h"
#include "base/half.h"
#include "base/memory.h"
#include "method/method.h"
#include "support/fixture_model.h"
#include "support/prepared.h"
#include "train/backward.h"
#include "train/calibrate.h"
#include "train/capture.h"

#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define ALL ((size_t)1 << 40) /* a budget that no test exhausts */

/* ---- This program's own base/memory, which can refuse. */

static size_t live, refused_after = SIZE_MAX;

void *memory_array(size_t count, size_t size) {
    void *memory;
    size_t left = 0;
#pragma omp critical(test_memory)
    {
        left = refused_after;
        if (left && left != SIZE_MAX) refused_after--;
    }
    if (left == 0 || (size && count > (SIZE_MAX - MEMORY_ALIGN) / size)) return NULL;
    if (posix_memalign(&memory, MEMORY_ALIGN, count * size + 1)) return NULL;
#pragma omp atomic update
    live++;
    return memory;
}

void *memory_zeros(size_t count, size_t size) {
    void *memory = memory_array(count, size);
    if (memory) memset(memory, 0, count * size);
    return memory;
}

void memory_free(void *memory) {
    if (!memory) return;
#pragma omp atomic update
    live--;
    free(memory);
}

/* ---- Models and texts */

static int32_t *random_tokens(const struct terse_model *model, size_t n) {
    uint32_t state = 1;
    int32_t *tokens = malloc(n * sizeof *tokens);
    assert_non_null(tokens);
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((state >> 8) % model->vocabulary);
    }
    return tokens;
}

/* ---- Capture */

/* Keeps the rows that a window's backward pass delivers, [layers][n][Hk][hd] of each kind. */
enum { K, V, DK, DV, KEPT };
struct kept {
    size_t per_layer;
    float *rows[KEPT];
};

static void keep_layer(void *user, uint32_t layer, const struct captured *rows) {
    struct kept *kept = user;
    const float *from[KEPT] = {rows->k, rows->v, rows->dk, rows->dv};
    for (int i = 0; i < KEPT; i++)
        if (from[i]) memcpy(kept->rows[i] + layer * kept->per_layer, from[i], kept->per_layer * sizeof(float));
}

static struct kept run_window(const struct terse_model *m, const int32_t *tokens, size_t n, bool gradients) {
    struct kept kept = {.per_layer = n * m->kv_heads * m->head_dim};
    struct backward_sink sink = {keep_layer, &kept};
    struct backward *backward;
    struct terse_error error;
    double loss;
    int32_t window[256], bos;
    bool add_bos;
    assert_in_range(n, 2, 256);
    memcpy(window, tokens, n * sizeof *window);
    bos = terse_token_bos(m, &add_bos);
    if (add_bos) window[0] = bos;
    for (int i = 0; i < KEPT; i++) assert_non_null(kept.rows[i] = calloc(m->layers * kept.per_layer, sizeof(float)));
    if (backward_new(m, n, gradients, &backward, &error)) fail_msg("%s", error.message);
    if (backward_run(backward, window, n, &sink, NULL, &loss, &error)) fail_msg("%s", error.message);
    backward_free(backward);
    return kept;
}

static void free_kept(struct kept *kept) {
    for (int i = 0; i < KEPT; i++) free(kept->rows[i]);
}

/* A head's row rotated to `position` in double precision; a gradient turns as its row, but is divided by the magnitude. */
static void rotate(const struct rope *rope, bool gradient, size_t position, const float *row, double *rotated) {
    size_t pairs = rope->n_rot / 2;
    for (size_t i = 0; i < rope->head_dim; i++) rotated[i] = (double)row[i];
    for (size_t i = 0; i < pairs; i++) {
        size_t a = rope->pairing == ROPE_ADJACENT ? 2 * i : i, b = rope->pairing == ROPE_ADJACENT ? 2 * i + 1 : i + pairs;
        double angle = (double)position * (double)rope->frequency[i], magnitude = (double)rope->magnitude;
        if (gradient) magnitude = 1 / magnitude;
        rotated[a] = magnitude * ((double)row[a] * cos(angle) - (double)row[b] * sin(angle));
        rotated[b] = magnitude * ((double)row[a] * sin(angle) + (double)row[b] * cos(angle));
    }
}

static double norm_of(const double *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* One KV head of a layer in one window: tokens[count] of the window are samples first, first + 1, ... */
static void check_head(const struct terse_model *m, const struct capture *capture, const struct capture_options *o,
                       const struct kept *kept, enum codec_side side, uint32_t layer, uint32_t head, size_t position,
                       const size_t *tokens, size_t count, size_t first) {
    size_t hd = m->head_dim, width = side == CODEC_KEYS ? 8 : 4, parts = hd / width, norm_width = o->side[side].norm_width;
    size_t spanned = norm_width > width ? norm_width : width; /* channels of the norm that is read */
    struct capture_reading reading = {side, layer, head, first, 1, count};
    float *rows = malloc(count * width * sizeof *rows), *norms = malloc(count * sizeof *norms);
    assert_true(rows && norms);
    for (size_t part = 0; part < parts; part++) {
        size_t from = norm_width > width ? 0 : part * width;
        capture_rows(capture, &reading, part * width, width, rows);
        capture_norms(capture, &reading, from, spanned, norms);
        for (size_t i = 0; i < count; i++) {
            size_t at = layer * kept->per_layer + (tokens[i] * m->kv_heads + head) * hd;
            size_t at_position = o->run ? tokens[i] % o->run : position + tokens[i];
            double row[CODEC_HEAD_DIM_MAX], gradient[CODEC_HEAD_DIM_MAX];
            struct rope still = m->sliding_rope.n_rot && model_slides(m, layer) ? m->sliding_rope : m->rope;
            if (!o->side[side].rotated) still.n_rot = 0;
            rotate(&still, false, at_position, kept->rows[side == CODEC_KEYS ? K : V] + at, row);
            rotate(&still, true, at_position, kept->rows[side == CODEC_KEYS ? DK : DV] + at, gradient);
            for (size_t c = 0; c < width; c++) {
                double expected = row[part * width + c], got = (double)rows[i * width + c];
                if (!(fabs(got - expected) <= 0x1.1p-11 * fabs(expected) + 1e-6))
                    fail_msg("side %d, layer %u, head %u, part %zu, token %zu: %g, not %g", side, layer, head, part, tokens[i], got,
                             expected);
            }
            double norm = norm_width ? norm_of(gradient + from, spanned) : 1;
            if (!(fabs((double)norms[i] - norm) <= 0x1.1p-8 * norm)) fail_msg("norm %g, not %g", (double)norms[i], norm);
        }
    }
    free(rows);
    free(norms);
}

enum norms { NO_NORMS, PARTS, ROWS };

/* Windows of 40 tokens of a text that has 7, all tokens of which stay, or as many as `kept` says. */
static void check_capture(const char *name, enum codec_rope rope, enum norms norms_of, uint32_t windows, size_t kept) {
    enum { WINDOW = 40, AVAILABLE = 7 };
    struct terse_model *m = fixture_model(name);
    int32_t *tokens = random_tokens(m, WINDOW * AVAILABLE + 5);
    size_t heads = (size_t)m->layers * m->kv_heads, total = windows * WINDOW, sample = 0;
    uint32_t key_norm = norms_of == PARTS  ? 8
                        : norms_of == ROWS ? m->head_dim
                                           : 0; /* of values, two norms make up one sub-vector's */
    uint32_t value_norm = norms_of == PARTS ? 2 : key_norm;
    size_t norms = key_norm ? m->head_dim / key_norm + m->head_dim / value_norm : 0;
    size_t bytes = heads * ((2 * m->head_dim + norms) * 2 + 2 * sizeof(float));
    struct capture_options o = {.side = {{true, rope != CODEC_ROPE_BEFORE, key_norm}, {true, false, value_norm}},
                                .run = rope == CODEC_ROPE_IN_RUN ? 16 : 0,
                                .window = WINDOW,
                                .windows = windows,
                                .positions = 400,
                                .budget = kept ? kept * bytes : ALL};
    struct capture *capture;
    struct terse_error error;
    if (capture_new(m, &o, tokens, WINDOW * AVAILABLE + 5, &capture, &error)) fail_msg("%s", error.message);
    if (!kept) kept = total;
    assert_int_equal(capture_tokens(capture), total);
    assert_int_equal(capture_samples(capture), kept);
    for (size_t i = 0; i < windows; i++) {
        size_t picked[WINDOW], count = 0;
        for (size_t t = i * WINDOW; t < (i + 1) * WINDOW; t++) /* evenly: the samples up to t are their share */
            if ((t + 1) * kept / total > t * kept / total) picked[count++] = t - i * WINDOW;
        size_t position = windows > 1 ? i * (400 - WINDOW) / (windows - 1) : 0;
        struct kept window = run_window(m, tokens + i * AVAILABLE / windows * WINDOW, WINDOW, norms > 0);
        for (size_t at = 0; at < 2 * heads; at++)
            check_head(m, capture, &o, &window, (enum codec_side)(at % 2), (uint32_t)(at / 2 / m->kv_heads),
                       (uint32_t)(at / 2 % m->kv_heads), position, picked, count, sample);
        free_kept(&window);
        sample += count;
    }
    assert_int_equal(sample, kept);
    capture_free(capture);
    free(tokens);
    terse_model_free(m);
}

static void rows_and_norms_are_those_of_the_backward_pass(void **state) {
    (void)state;
    const char *names[] = {"llama", "qwen3", "llama-untied", "gpt2"};
    for (int i = 0; i < 4; i++) check_capture(names[i], CODEC_ROPE_BEFORE, PARTS, 3, 0);
    check_capture("qwen2", CODEC_ROPE_BEFORE, ROWS, 2, 0);
    check_capture("llama", CODEC_ROPE_BEFORE, NO_NORMS, 7, 0);
}

/* Adjacent pairs and pairs across the head, a magnitude, layers that turn apart; after rotation the window's place among the positions
 * counts, in runs it does not. */
static void keys_are_rotated_by_their_frame(void **state) {
    (void)state;
    const char *names[] = {"llama", "qwen3", "mpt", "llama-yarn", "gemma3"};
    for (int i = 0; i < 5; i++) check_capture(names[i], CODEC_ROPE_AFTER, PARTS, 3, 0);
    check_capture("llama-3", CODEC_ROPE_AFTER, NO_NORMS, 1, 0);
    for (int i = 0; i < 5; i++) check_capture(names[i], CODEC_ROPE_IN_RUN, PARTS, 3, 0);
    check_capture("llama-3", CODEC_ROPE_IN_RUN, NO_NORMS, 2, 0);
}

static void a_small_budget_keeps_tokens_evenly(void **state) {
    (void)state;
    check_capture("llama", CODEC_ROPE_AFTER, PARTS, 3, 50);
    check_capture("llama", CODEC_ROPE_BEFORE, NO_NORMS, 5, 199);
    check_capture("qwen3", CODEC_ROPE_BEFORE, ROWS, 2, 1);
}

/* Every step-th sample is the same as all of them read one by one. */
static void samples_can_be_read_in_steps(void **state) {
    (void)state;
    struct terse_model *m = fixture_model("llama");
    int32_t *tokens = random_tokens(m, 100);
    struct capture_options o = {.side = {[CODEC_VALUES] = {true, false, m->head_dim}}, .window = 50, .budget = ALL};
    struct capture *capture;
    float all[100 * 8], norms[100], rows[100 * 8], step_norms[100];
    assert_int_equal(capture_new(m, &o, tokens, 100, &capture, NULL), TERSE_OK);
    assert_int_equal(capture_samples(capture), 100);
    const struct capture_reading every = {CODEC_VALUES, 1, 1, 0, 1, 100}, seventh = {CODEC_VALUES, 1, 1, 2, 7, 14};
    capture_rows(capture, &every, 12, 8, all);
    capture_rows(capture, &seventh, 12, 8, rows);
    capture_norms(capture, &every, 0, m->head_dim, norms);
    capture_norms(capture, &seventh, 0, m->head_dim, step_norms);
    for (size_t i = 0; i < 14; i++) {
        assert_memory_equal(rows + i * 8, all + (2 + 7 * i) * 8, 8 * sizeof *rows);
        assert_true(step_norms[i] == norms[2 + 7 * i]);
    }
    capture_free(capture);
    free(tokens);
    terse_model_free(m);
}

/* ---- Weights */

static void weights_are_powers_of_norms(void **state) {
    (void)state;
    const float norms[6] = {1e-9f, 2e-9f, 3e-9f, 0, 4e-9f, 1e-12f}, factors[6] = {1, 2, 1, 1, 0.5f, 1};
    for (uint32_t power = 0; power <= 2; power++) {
        for (int with = 0; with < 2; with++) {
            float weights[6];
            double sum = 0, least = INFINITY, expected[6], total = 0;
            memcpy(weights, norms, sizeof weights);
            calibrate_weigh(weights, with ? factors : NULL, 6, power, 7);
            for (int i = 0; i < 6; i++) {
                expected[i] = pow((double)norms[i] * 1e9, power) * (with ? pow((double)factors[i], 2) : 1);
                total += expected[i];
                sum += (double)weights[i];
                least = fmin(least, (double)weights[i]);
            }
            assert_true(fabs(sum / 6 - 1) < 1e-6);
            assert_true(least > 0 && least < 1e-2 + (power == 0));
            for (int i = 0; i < 6; i++) {
                if (expected[i] * 6 / total < 0.05) continue; /* what little the floor takes from the others */
                double ratio = (double)weights[i] / (expected[i] * 6 / total);
                if (fabs(ratio - 1) > 0.01) fail_msg("power %u, weight %d: %g of what it should be", power, i, ratio);
            }
        }
    }
    float none[3] = {0, 0, 0};
    calibrate_weigh(none, NULL, 3, 2, 4);
    for (int i = 0; i < 3; i++) assert_true(none[i] == 1);
}

/* Norms with tails as gradients have them: what is cut is all alike, no more than what was asked for, and the rest is in proportion. */
static void no_sample_outweighs_its_share(void **state) {
    (void)state;
    enum { N = 2000 };
    static float norms[N], weights[N];
    for (size_t i = 0; i < N; i++) norms[i] = powf((float)(i * 619 % N + 1) / N, -1.5f);
    for (double most = 2; most < 70; most *= 2) {
        double sum = 0, squares = 0, largest = 0, ratio = 0;
        size_t cut = 0;
        memcpy(weights, norms, sizeof weights);
        calibrate_weigh(weights, NULL, N, 1, most);
        for (size_t i = 0; i < N; i++) {
            sum += (double)weights[i];
            squares += (double)weights[i] * (double)weights[i];
            largest = fmax(largest, (double)weights[i]);
        }
        for (size_t i = 0; i < N; i++) {
            if ((double)weights[i] > largest * (1 - 1e-6)) cut++;
            if ((double)weights[i] < largest / 2 && norms[i] > 2) ratio = (double)weights[i] / (double)norms[i];
        }
        assert_true(fabs(sum / N - 1) < 1e-5);
        assert_true(largest <= most * 1.0001 && largest >= most * 0.99 && cut > 1);
        assert_true(sum * sum / squares >= N / most);
        for (size_t i = 0; i < N; i++)
            if ((double)weights[i] < largest / 2 && norms[i] > 2)
                assert_true(fabs((double)weights[i] / (double)norms[i] / ratio - 1) < 1e-3);
    }
    /* The more samples there are for each centroid, the less is cut; few are not made all alike. */
    assert_true(calibrate_most_weight(16384, 256) == 16 && calibrate_most_weight(1 << 20, 256) == 1024);
    assert_true(calibrate_most_weight(100, 256) == 4);
}

/* ---- Calibration */

static struct terse_calibration small(const char *method) {
    struct terse_calibration o = terse_calibration_defaults();
    o.method = method;
    o.corpus = "random";
    o.window = 100;
    o.windows = 4;
    o.threads = 1;
    return o;
}

static enum terse_status put(void *user, size_t i, struct terse_codebook *codebook, struct terse_error *error) {
    struct terse_codebook **codebooks = user;
    (void)error;
    assert_null(codebooks[i]);
    codebooks[i] = codebook;
    return TERSE_OK;
}

static struct terse_codebook *calibrate(const struct terse_model *m, const struct terse_calibration *o, size_t budget) {
    struct terse_codebook *codebook = NULL;
    struct terse_error error;
    int32_t *tokens = random_tokens(m, 600);
    if (calibrate_together(budget, m, o, 1, tokens, 600, (struct calibrate_sink){put, &codebook}, &error))
        fail_msg("%s", error.message);
    free(tokens);
    return codebook;
}

/* Its file, to be freed; the codebook is freed here. */
static char *bytes_of(struct terse_codebook *codebook, size_t *size) {
    char path[] = P_tmpdir "/test_calibrate_XXXXXX", part[64];
    struct terse_error error;
    int made = mkstemp(path);
    assert_true(made >= 0);
    close(made);
    if (terse_codebook_save(codebook, path, &error)) fail_msg("%s", error.message);
    terse_codebook_free(codebook);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    unlink(path);
    snprintf(part, sizeof part, "%s.part", path);
    assert_int_not_equal(access(part, F_OK), 0);
    return bytes;
}

static void check_same(const char *what, struct terse_codebook *a, struct terse_codebook *b, bool same) {
    size_t size_a, size_b;
    char *bytes_a = bytes_of(a, &size_a), *bytes_b = bytes_of(b, &size_b);
    if ((size_a == size_b && memcmp(bytes_a, bytes_b, size_a) == 0) != same)
        fail_msg("%s: codebooks are %s", what, same ? "not the same" : "the same");
    free(bytes_a);
    free(bytes_b);
}

/* One KV head: the gradients' work is split within it. With many threads they share a fit, with few each has its own. */
static void threads_change_no_bit(void **state) {
    (void)state;
    const char *names[] = {"llama-untied", "qwen3"};
    const char *methods[] = {"antkv-1", "million-4"};
    for (int i = 0; i < 2; i++) {
        struct terse_model *m = fixture_model(names[i]);
        struct terse_calibration o = small(methods[i]);
        int before = omp_get_max_threads();
        for (uint32_t threads = 2; threads <= 12; threads += threads == 3 ? 9 : 1) {
            struct terse_calibration more = o;
            more.threads = threads;
            check_same(names[i], calibrate(m, &o, ALL), calibrate(m, &more, ALL), true);
        }
        assert_int_equal(omp_get_max_threads(), before);
        terse_model_free(m);
    }
}

static void options_change_the_codebook(void **state) {
    (void)state;
    struct terse_model *m = fixture_model("llama");
    struct terse_calibration o = small("antkv-1"), other = o;
    check_same("again", calibrate(m, &o, ALL), calibrate(m, &other, ALL), true);
    other.seed = 2;
    check_same("seed", calibrate(m, &o, ALL), calibrate(m, &other, ALL), false);
    other = o;
    other.weighting = TERSE_WEIGHTING_NONE;
    check_same("weighting", calibrate(m, &o, ALL), calibrate(m, &other, ALL), false);
    other.weighting = TERSE_WEIGHTING_ROW;
    check_same("rows", calibrate(m, &o, ALL), calibrate(m, &other, ALL), false);
    other = o;
    other.windows = 3;
    check_same("windows", calibrate(m, &o, ALL), calibrate(m, &other, ALL), false);
    check_same("budget", calibrate(m, &o, ALL), calibrate(m, &o, 1), false);
    terse_model_free(m);
}

static void the_codebook_names_its_model_and_text(void **state) {
    (void)state;
    struct terse_model *m = fixture_model("llama");
    struct terse_calibration o = small("antkv-1");
    struct terse_codebook_info info;
    o.seed = 77;
    struct terse_codebook *codebook = calibrate(m, &o, ALL);
    terse_codebook_describe(codebook, &info);
    assert_string_equal(info.method, "antkv-1");
    assert_string_equal(info.model, m->name);
    assert_string_equal(info.corpus, "random");
    assert_non_null(strstr(info.weighting, "per sub-vector"));
    assert_true(info.of_norms);
    assert_int_equal(info.fingerprint, m->norms_fingerprint);
    assert_int_equal(info.tokens, 400);
    assert_int_equal(info.seed, 77);
    assert_false(info.shared);
    assert_true(info.effective_samples > 1 && info.effective_samples < 400);
    terse_codebook_free(codebook);
    /* Without weights every sample counts, of those that the budget leaves. */
    o = small("cq-1");
    o.windows = 0;
    codebook = calibrate(m, &o, m->layers * m->kv_heads * (4 * m->head_dim + 2 * sizeof(float)) * (size_t)300);
    terse_codebook_describe(codebook, &info);
    assert_string_equal(info.weighting, "none");
    assert_int_equal(info.tokens, 600);
    assert_true(fabs(info.effective_samples - 300) < 1e-6);
    terse_codebook_free(codebook);
    terse_model_free(m);
}

/* The first 4 tokens of each window are no samples; of the others, the effective ones are no fewer than what the largest weight leaves. */
static void few_tokens_do_not_decide(void **state) {
    (void)state;
    static const char *const methods[] = {"cq-1", "antkv-2", "commvq-1"};
    struct terse_model *m = fixture_model("gpt2");
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        struct terse_calibration o = small(methods[i]);
        struct terse_codebook_info info;
        o.windows = 0;
        struct terse_codebook *codebook = calibrate(m, &o, ALL);
        terse_codebook_describe(codebook, &info);
        assert_int_equal(info.tokens, 600);
        if (i == 0) assert_true(fabs(info.effective_samples - 6 * 96) < 1e-6);
        if (!(info.effective_samples >= 6 * 96 / calibrate_most_weight(6 * 96, 64)))
            fail_msg("%s: %g effective samples", methods[i], info.effective_samples);
        terse_codebook_free(codebook);
    }
    terse_model_free(m);
}

/* Layers that turn apart, parallel parts, norms of heads by head: every kind of learner. */
static void every_architecture_learns(void **state) {
    (void)state;
    static const char *const models[] = {"gemma3", "command-r", "command-r-norms"};
    static const char *const methods[] = {"terse-2", "antkv-1", "cq-1", "million-2", "commvq-1"};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        struct terse_model *m = fixture_model(models[i]);
        for (size_t j = 0; j < sizeof methods / sizeof methods[0]; j++) {
            struct terse_calibration o = small(methods[j]);
            struct terse_codebook *codebook = calibrate(m, &o, ALL);
            assert_int_equal(codebook_info(codebook)->layers, m->layers);
            assert_int_equal(codebook_info(codebook)->tokens, 400);
            terse_codebook_free(codebook);
        }
        terse_model_free(m);
    }
}

/* Mean squared error over a KV head's rows [n][hd] of what a codec makes of them with the centroids of some layer and head. */
static double error_with(const struct terse_codebook *codebook, enum codec_side side, uint32_t layer, uint32_t head,
                         const float *rows, size_t n) {
    const struct codebook_info *info = codebook_info(codebook);
    struct coding coding = side == CODEC_KEYS ? info->key : info->value;
    struct codec_shape shape = {.head_dim = info->head_dim,
                                .group = 1,
                                .width = coding.width,
                                .bits = coding.bits,
                                .learned = prepared_learned(codebook, side, layer, head)};
    void *block = memory_array(codec_page_bytes(coding.codec, shape, side), 1);
    float *decoded = malloc((size_t)64 * info->head_dim * sizeof *decoded);
    double sum = 0;
    assert_true(block && decoded);
    for (size_t first = 0; first < n; first += 64) {
        size_t count = n - first < 64 ? n - first : 64;
        cpu_codec_of(coding.codec)->encode(shape, side, rows + first * info->head_dim, count, block);
        cpu_codec_of(coding.codec)->decode(shape, side, block, decoded);
        for (size_t i = 0; i < count * info->head_dim; i++)
            sum += pow((double)decoded[i] - (double)rows[first * info->head_dim + i], 2);
    }
    memory_free(block);
    free(decoded);
    return sum / (double)n;
}

/* Rows of the text that was learned from are told best by the centroids of their own layer, head and side, and those are better
 * than what all share. */
static void centroids_are_those_of_their_own_head(void **state) {
    const char *method = *state;
    struct terse_model *m = fixture_model("llama");
    struct terse_calibration o = small(method);
    struct terse_codebook *own, *shared;
    int32_t *tokens = random_tokens(m, 600);
    uint32_t heads = m->layers * m->kv_heads;
    o.windows = 0;
    own = calibrate(m, &o, ALL);
    o.shared = true;
    shared = calibrate(m, &o, ALL);
    assert_true(codebook_info(shared)->shared);
    assert_ptr_equal(prepared_learned(shared, CODEC_KEYS, 0, 0), prepared_learned(shared, CODEC_KEYS, 1, 1));
    enum codec_rope rope = codebook_info(own)->key.codec->rope;
    struct capture_options options = {.side = {{true, rope != CODEC_ROPE_BEFORE, 0}, {true, false, 0}},
                                      .run = rope == CODEC_ROPE_IN_RUN ? ROPE_RUN_TOKENS : 0,
                                      .window = 100,
                                      .positions = m->context,
                                      .budget = ALL};
    struct capture *capture;
    float *rows = malloc((size_t)600 * m->head_dim * sizeof *rows);
    assert_non_null(rows);
    assert_int_equal(capture_new(m, &options, tokens, 600, &capture, NULL), TERSE_OK);
    for (uint32_t at = 0; at < 2 * heads; at++) {
        enum codec_side side = at < heads ? CODEC_KEYS : CODEC_VALUES;
        uint32_t head = at % heads;
        struct capture_reading reading = {side, head / m->kv_heads, head % m->kv_heads, 0, 1, 600};
        capture_rows(capture, &reading, 0, m->head_dim, rows);
        double least = error_with(own, side, head / m->kv_heads, head % m->kv_heads, rows, 600);
        for (uint32_t other = 0; other < heads; other++)
            if (other != head && !(least < error_with(own, side, other / m->kv_heads, other % m->kv_heads, rows, 600)))
                fail_msg("%s, side %d: head %u is told better by head %u", method, side, head, other);
        assert_true(least < error_with(own, (enum codec_side) !side, head / m->kv_heads, head % m->kv_heads, rows, 600));
        assert_true(least < error_with(shared, side, head / m->kv_heads, head % m->kv_heads, rows, 600));
    }
    capture_free(capture);
    terse_codebook_free(own);
    terse_codebook_free(shared);
    free(rows);
    free(tokens);
    terse_model_free(m);
}

/* Methods learn the same together as apart, where the same norms are kept; samples are normalized last and once. */
static void methods_can_learn_together(void **state) {
    (void)state;
    enum { N = 5 };
    struct terse_model *m = fixture_model("llama");
    struct terse_calibration o[N] = {small("antkv-2"), small("antkv-2"), small("cq-2"), small("antkv-2"), small("cq-2")};
    struct terse_codebook *together[N] = {NULL};
    struct calibrate_sink sink = {put, together};
    struct terse_error error;
    int32_t *tokens = random_tokens(m, 600);
    o[1].power = 1;
    o[3].weighting = TERSE_WEIGHTING_NONE;
    o[4].weighting = TERSE_WEIGHTING_SUBVECTOR;
    if (calibrate_together(ALL, m, o, N, tokens, 600, sink, &error)) fail_msg("%s", error.message);
    for (int i = 0; i < N; i++) check_same("together and apart", together[i], calibrate(m, &o[i], ALL), true);
    memset(together, 0, sizeof together);
    o[4] = small("million-2");
    assert_int_equal(calibrate_together(ALL, m, o, N, tokens, 600, sink, &error), TERSE_E_UNSUPPORTED);
    for (int i = 0; i < N; i++) assert_null(together[i]);
    o[0] = small("cq-2"); /* has no normalization, so it can learn with any of the others */
    o[4] = small("antkv-2");
    o[4].shared = true;
    assert_int_equal(calibrate_together(ALL, m, o, N, tokens, 600, sink, &error), TERSE_E_UNSUPPORTED);
    free(tokens);
    terse_model_free(m);
}

/* A profile is the same whatever rate it is learned for, and knows its model whatever its weights' quantization. */
static void a_profile_serves_every_rate(void **state) {
    (void)state;
    struct terse_model *m = fixture_model("llama");
    struct terse_calibration o = small("terse-2"), other = small("terse-0.5"), both[2] = {small("antkv-1"), small("terse-2")};
    struct terse_codebook *together[2] = {NULL};
    struct calibrate_sink sink = {put, together};
    struct terse_error error;
    int32_t *tokens = random_tokens(m, 600);
    if (calibrate_together(ALL, m, both, 2, tokens, 600, sink, &error)) fail_msg("%s", error.message);
    const struct codebook_info *info = codebook_info(together[1]);
    assert_string_equal(info->method, "terse");
    assert_true(info->fingerprint_of == CODEBOOK_OF_NORMS && info->fingerprint == m->norms_fingerprint);
    assert_true(info->fingerprint != m->fingerprint && codebook_is_profile(info) &&
                !codebook_is_profile(codebook_info(together[0])));
    check_same("together and apart", together[0], calibrate(m, &both[0], ALL), true);
    check_same("together and apart", together[1], calibrate(m, &o, ALL), true);
    check_same("rates", calibrate(m, &o, ALL), calibrate(m, &other, ALL), true);
    free(tokens);
    terse_model_free(m);
}

/* Tables of fewer rounds are taken from those of more that were learned of the same samples, whichever was asked for first, and from
 * no others. */
static void tables_learn_together(void **state) {
    (void)state;
    enum { N = 3 };
    struct terse_model *m = fixture_model("llama");
    struct terse_calibration o[N] = {small("commvq-1"), small("commvq-2"), small("commvq-1")};
    struct terse_codebook *together[N] = {NULL};
    struct terse_error error;
    int32_t *tokens = random_tokens(m, 600);
    for (int i = 0; i < N; i++) o[i].weighting = TERSE_WEIGHTING_ROW; /* norms of whole heads, whatever else is learned */
    o[2].power = 1;
    if (calibrate_together(ALL, m, o, N, tokens, 600, (struct calibrate_sink){put, together}, &error))
        fail_msg("%s", error.message);
    for (int i = 0; i < N; i++) check_same("together and apart", together[i], calibrate(m, &o[i], ALL), true);
    free(tokens);
    terse_model_free(m);
}

/* ---- Interruption and errors */

struct watch {
    uint64_t calls, allowed, done, total, stages;
    char what[64];
    pthread_t caller;
};

static bool watch_report(void *user, const char *what, uint64_t done, uint64_t total) {
    struct watch *watch = user;
    assert_true(pthread_equal(watch->caller, pthread_self()));
    if (strcmp(what, watch->what) != 0) {
        assert_int_equal(watch->done, watch->total); /* a stage is finished before the next */
        snprintf(watch->what, sizeof watch->what, "%s", what);
        watch->done = 0;
        watch->stages++;
    }
    assert_true(done >= watch->done && done <= total);
    watch->done = done;
    watch->total = total;
    return ++watch->calls <= watch->allowed;
}

static enum terse_status calibrate_watched(const struct terse_model *m, const char *method, uint32_t threads, struct watch *watch) {
    struct terse_calibration o = small(method);
    struct terse_codebook *codebook;
    struct terse_error error;
    int32_t *tokens = random_tokens(m, 200);
    o.threads = threads;
    o.progress = (struct terse_progress){watch_report, watch};
    watch->caller = pthread_self();
    enum terse_status status = terse_calibrate(m, &o, tokens, 200, &codebook, &error);
    assert_true(status == (codebook ? TERSE_OK : TERSE_E_INTERRUPTED));
    if (status) assert_null(strchr(error.message, '\n'));
    terse_codebook_free(codebook);
    free(tokens);
    return status;
}

static void every_report_may_stop_it(void **state) {
    (void)state;
    struct terse_model *m = fixture_model("llama");
    for (uint32_t threads = 1; threads <= 2; threads++) {
        for (int weighted = 0; weighted < 2; weighted++) {
            const char *method = weighted ? "antkv-1" : "cq-1";
            struct watch whole = {.allowed = UINT64_MAX};
            size_t before = live;
            assert_int_equal(calibrate_watched(m, method, threads, &whole), TERSE_OK);
            assert_int_equal(whole.stages, 2);
            assert_int_equal(whole.done, whole.total);
            assert_string_equal(whole.what, "centroids");
            /* Few of the reports are the first of their kind; with several threads their number varies, so the last ones are left, and
             * a run on a busy machine may end before as many as are allowed. */
            for (uint64_t allowed = 0; allowed < whole.calls / 2; allowed += 1 + allowed / 4) {
                struct watch watch = {.allowed = allowed};
                enum terse_status status = calibrate_watched(m, method, threads, &watch);
                assert_int_equal(status, threads > 1 && watch.calls <= allowed ? TERSE_OK : TERSE_E_INTERRUPTED);
                if (threads == 1) assert_int_equal(watch.calls, allowed + 1);
            }
            assert_int_equal(live, before);
        }
    }
    terse_model_free(m);
}

static void refuse(const struct terse_model *m, const struct terse_calibration *o, size_t n, enum terse_status code,
                   const char *says) {
    struct terse_codebook *codebook = (void *)&code;
    struct terse_error error;
    int32_t tokens[200] = {0};
    assert_int_equal(terse_calibrate(m, o, tokens, n, &codebook, &error), code);
    assert_null(codebook);
    if (!strstr(error.message, says)) fail_msg("no '%s' in: %s", says, error.message);
    assert_null(strchr(error.message, '\n'));
}

static void wrong_options_are_refused(void **state) {
    (void)state;
    struct terse_model *m = fixture_model("llama");
    struct terse_calibration o = small("f16");
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "f16 learns nothing");
    o.method = "streaming-100";
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "learns nothing");
    o.method = "antkv-5";
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "unknown KV method");
    o = small("antkv-1");
    refuse(m, &o, 99, TERSE_E_ARGUMENT, "99 tokens, too few for a window of 100");
    o.window = m->context + 1;
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "the model's context");
    o.window = 1;
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "windows of 1 tokens");
    o = small("terse-2");
    o.shared = true;
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "do without --shared");
    o = small("terse-2");
    o.window = SINKS;
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "make them longer");
    o = small("antkv-1");
    o.power = 3;
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "power");
    o = small("antkv-1");
    o.weighting = (enum terse_weighting)9;
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "weighting");
    o = small("antkv-1");
    o.threads = 2000;
    refuse(m, &o, 200, TERSE_E_ARGUMENT, "2000 threads");
    terse_model_free(m);
}

static void tokens_outside_the_vocabulary_are_refused(void **state) {
    (void)state;
    struct terse_model *m = fixture_model("llama");
    struct terse_calibration o = small("antkv-1");
    struct terse_codebook *codebook;
    int32_t *tokens = random_tokens(m, 200);
    size_t before = live;
    tokens[150] = (int32_t)m->vocabulary;
    assert_int_equal(terse_calibrate(m, &o, tokens, 200, &codebook, NULL), TERSE_E_ARGUMENT);
    assert_null(codebook);
    assert_int_equal(live, before);
    free(tokens);
    terse_model_free(m);
}

static void refused_memory_leaves_nothing(void **state) {
    struct terse_model *m = fixture_model("llama-untied");
    struct terse_calibration o = small(*state);
    int32_t *tokens = random_tokens(m, 200);
    enum terse_status status = TERSE_E_MEMORY;
    size_t before = live;
    for (size_t allowed = 0; status; allowed += 1 + allowed / 64) {
        struct terse_codebook *codebook;
        struct terse_error error;
        refused_after = allowed;
        status = terse_calibrate(m, &o, tokens, 200, &codebook, &error);
        refused_after = SIZE_MAX;
        assert_true(status == (codebook ? TERSE_OK : TERSE_E_MEMORY));
        terse_codebook_free(codebook);
        assert_int_equal(live, before);
    }
    free(tokens);
    terse_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_norms_are_those_of_the_backward_pass),
        cmocka_unit_test(keys_are_rotated_by_their_frame),
        cmocka_unit_test(a_small_budget_keeps_tokens_evenly),
        cmocka_unit_test(samples_can_be_read_in_steps),
        cmocka_unit_test(methods_can_learn_together),
        cmocka_unit_test(a_profile_serves_every_rate),
        cmocka_unit_test(tables_learn_together),
        cmocka_unit_test(weights_are_powers_of_norms),
        cmocka_unit_test(no_sample_outweighs_its_share),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(options_change_the_codebook),
        cmocka_unit_test(the_codebook_names_its_model_and_text),
        cmocka_unit_test(few_tokens_do_not_decide),
        cmocka_unit_test(every_architecture_learns),
        cmocka_unit_test_prestate(centroids_are_those_of_their_own_head, "antkv-1"),
        cmocka_unit_test_prestate(centroids_are_those_of_their_own_head, "cq-2"),
        cmocka_unit_test_prestate(centroids_are_those_of_their_own_head, "million-4"),
        cmocka_unit_test_prestate(centroids_are_those_of_their_own_head, "commvq-2"),
        cmocka_unit_test(every_report_may_stop_it),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(tokens_outside_the_vocabulary_are_refused),
        cmocka_unit_test_prestate(refused_memory_leaves_nothing, "antkv-0.375"),
        cmocka_unit_test_prestate(refused_memory_leaves_nothing, "terse-1"),
    };
    return cmocka_run_group_tests_name("calibrate", tests, NULL, NULL);
}
