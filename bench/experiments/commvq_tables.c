/* Measures the error of CommVQ's key tables by group size and rounds (Li et al. 2025, tables 9 and 10 and figure 4): keys of some layers
 * and heads, tables learned on one text, errors on it and on another.
 *
 *     commvq_tables -f TEXT --test TEXT [options]
 *
 * prints of which commit it is, and then JSON. bench/experiments/quality.py calls it for docs/reports/commvq.md. A fit of R rounds contains those of fewer rounds, so four fits cover the paper's tables: one for
 * each group size with its number of entries, as many rounds as give 1 bit, and more for groups of 64 pairs. */
#include "backend/cpu/codec/commvq_search.h"
#include "base/memory.h"
#include "base/random.h"
#include "commit.h"
#include "console.h"
#include "model/model.h"
#include "options.h"
#include "text.h"
#include "train/capture.h"
#include "train/codec_learning.h"
#include "train/em.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEFAULT_MODEL PROJECT_DIR "/models/lab-27m-q8_0.gguf"
enum { WINDOW = 2048, TEST_WINDOWS = 4, MOST_HEADS = 64 };

/* These are the paper's shapes: the pairs of a group share a code of log2(entries) bits in each round. */
static const struct em_shape fits[] = {{8, 2, 8}, {16, 4, 8}, {32, 16, 8}, {64, 64, 24}};
#define FITS (sizeof fits / sizeof fits[0])

struct tables {
    const char *model_path, *learn, *test;
    int64_t windows, heads;
    struct terse_model *model;
    struct capture *learned, *held;
};

/* A keys holds normalized keys of one head, the two components of a pair half a head apart: rows[n][hd], weights[n]. */
struct keys {
    float *rows, *weights;
    size_t n;
};

static void keys_free(struct keys *keys) {
    memory_free(keys->rows);
    memory_free(keys->weights);
}

static struct codec_shape shape_of(const struct terse_model *m) {
    return (struct codec_shape){.head_dim = m->head_dim, .group = 1, .width = m->head_dim, .bits = COMMVQ_BITS};
}

static int keys_read(const struct tables *t, const struct capture *capture, size_t head, struct keys *keys) {
    size_t hd = t->model->head_dim;
    *keys = (struct keys){.n = capture_samples(capture)};
    const struct capture_reading reading = {
        CODEC_KEYS, (uint32_t)(head / t->model->kv_heads), (uint32_t)(head % t->model->kv_heads), 0, 1, keys->n};
    keys->rows = memory_array(keys->n, hd * sizeof *keys->rows);
    keys->weights = memory_array(keys->n, sizeof *keys->weights);
    if (!keys->rows || !keys->weights) return complain("no memory for %zu keys", keys->n);
    capture_rows(capture, &reading, 0, hd, keys->rows);
    return EXIT_OK;
}

/* Normalizes keys as calibration does for the codec; the weight of an error is the square of the key's size. */
static void keys_normalize(const struct terse_model *m, const float *parameters, struct keys *keys) {
    struct codec_shape shape = shape_of(m);
    uint8_t channels[CODEC_HEAD_DIM_MAX];
    float row[CODEC_HEAD_DIM_MAX];
    commvq_channels(shape, parameters, 0, channels);
    for (size_t p = 0; p < keys->n; p++) {
        float *x = keys->rows + p * m->head_dim;
        float factor = codec_normalize_row(&codec_commvq, shape, parameters, x);
        keys->weights[p] = factor * factor;
        memcpy(row, x, m->head_dim * sizeof *row);
        for (size_t j = 0; j < m->head_dim; j++) x[j] = row[channels[j]];
    }
}

/* Copies rows[n][2 g] of the g pairs from `pair` on. */
static void copy_group(const struct keys *keys, size_t hd, size_t pair, size_t g, float *rows) {
    for (size_t p = 0; p < keys->n; p++) {
        memcpy(rows + p * 2 * g, keys->rows + p * hd + pair, g * sizeof *rows);
        memcpy(rows + p * 2 * g + g, keys->rows + p * hd + hd / 2 + pair, g * sizeof *rows);
    }
}

static double square(const struct keys *keys, const float *rows, size_t width) {
    double sum = 0;
    for (size_t p = 0; p < keys->n; p++)
        for (size_t j = 0; j < width; j++) {
            double x = (double)rows[p * width + j];
            sum += (double)keys->weights[p] * x * x;
        }
    return sum;
}

/* Adds to left[rounds] the squared error after each round; the codewords are subtracted from the rows. */
static int code_rows(struct em_shape shape, const float *tables, const struct keys *keys, float *rows, double *left) {
    struct commvq_search search;
    struct terse_error error;
    uint16_t *codes = memory_array(keys->n, sizeof *codes);
    int status = codes ? EXIT_OK : complain("no memory for %zu codes", keys->n);
    if (status == EXIT_OK && commvq_search_new(shape.pairs, shape.entries, &search, &error)) status = complain_error(&error);
    for (size_t r = 0; r < shape.rounds && status == EXIT_OK; r++) {
        const float *table = tables + r * shape.entries * 2 * shape.pairs;
        commvq_search_set(&search, table);
        commvq_search_nearest(&search, rows, keys->n, 2 * shape.pairs, codes);
        commvq_subtract(table, shape.pairs, shape.entries, codes, keys->n, rows, 2 * shape.pairs);
        left[r] += square(keys, rows, 2 * shape.pairs);
    }
    if (codes && status == EXIT_OK) commvq_search_free(&search);
    memory_free(codes);
    return status;
}

/* Returns the processor time of all threads together, in seconds. */
static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Fits one group's tables, and adds their errors on both sets of keys. */
static int fit_group(struct em_shape shape, size_t hd, size_t pair, const struct keys keys[2], double *left[2], double *seconds) {
    size_t width = 2 * shape.pairs;
    float *rows[2] = {memory_array(keys[0].n, width * sizeof(float)), memory_array(keys[1].n, width * sizeof(float))};
    float *tables = memory_array(shape.rounds * shape.entries, width * sizeof *tables);
    struct em_options options = em_options_defaults();
    struct terse_error error;
    int status = rows[0] && rows[1] && tables ? EXIT_OK : complain("no memory for %zu keys", keys[0].n);
    options.seed = random_mix(1 + pair);
    for (int set = 0; set < 2 && status == EXIT_OK; set++) copy_group(&keys[set], hd, pair, shape.pairs, rows[set]);
    if (status == EXIT_OK) {
        const struct em_points points = {rows[0], keys[0].n, width, keys[0].weights};
        double start = processor_seconds();
        if (em_fit(&points, shape, &options, tables, NULL, NULL, &error)) status = complain_error(&error);
        *seconds += processor_seconds() - start;
    }
    for (int set = 0; set < 2 && status == EXIT_OK; set++) status = code_rows(shape, tables, &keys[set], rows[set], left[set]);
    memory_free(rows[0]);
    memory_free(rows[1]);
    memory_free(tables);
    return console_interrupted() ? EXIT_INTERRUPTED : status;
}

/* Computes errors[2][rounds] of a head: on the keys learned from, on held-out keys. *seconds is the processor time of learning. */
static int fit_head(struct em_shape shape, size_t hd, const struct keys keys[2], double *errors, double *seconds) {
    double *left[2] = {errors, errors + shape.rounds};
    int status = EXIT_OK;
    memset(errors, 0, 2 * shape.rounds * sizeof *errors);
    *seconds = 0;
    for (size_t pair = 0; pair < hd / 2 && status == EXIT_OK; pair += shape.pairs)
        status = fit_group(shape, hd, pair, keys, left, seconds);
    for (int set = 0; set < 2; set++) {
        double whole = square(&keys[set], keys[set].rows, hd);
        for (size_t r = 0; r < shape.rounds; r++) left[set][r] /= whole;
    }
    return status;
}

static void add_errors(cJSON *fit, const char *name, const double *errors, size_t rounds) {
    cJSON *list = cJSON_GetObjectItem(fit, name);
    if (!list) list = cJSON_AddArrayToObject(fit, name);
    cJSON_AddItemToArray(list, cJSON_CreateDoubleArray(errors, (int)rounds));
}

/* Runs every fit whose group size divides the head. */
static int run_head(const struct tables *t, size_t head, cJSON *list) {
    struct codec_shape shape = shape_of(t->model);
    size_t hd = t->model->head_dim;
    struct keys keys[2] = {{0}};
    double errors[2 * COMMVQ_MOST_ROUNDS], seconds;
    float *parameters = memory_array(codec_parameters(&codec_commvq, shape), sizeof *parameters);
    int status = parameters ? EXIT_OK : complain("no memory for a head's frame");
    if (status == EXIT_OK) status = keys_read(t, t->learned, head, &keys[0]);
    if (status == EXIT_OK) status = keys_read(t, t->held, head, &keys[1]);
    if (status == EXIT_OK) {
        commvq_set_pairing(shape, parameters, t->model->rope.n_rot / 2, t->model->rope.pairing == ROPE_ADJACENT);
        codec_fit_normalization(&codec_commvq, shape, keys[0].rows, keys[0].n, parameters);
        keys_normalize(t->model, parameters, &keys[0]);
        keys_normalize(t->model, parameters, &keys[1]);
    }
    for (size_t i = 0; i < FITS && status == EXIT_OK; i++) {
        if (hd / 2 % fits[i].pairs) continue;
        status = fit_head(fits[i], hd, keys, errors, &seconds);
        cJSON *fit = cJSON_GetArrayItem(list, (int)i);
        add_errors(fit, "learned", errors, fits[i].rounds);
        add_errors(fit, "held_out", errors + fits[i].rounds, fits[i].rounds);
        add_errors(fit, "seconds", &seconds, 1);
    }
    keys_free(&keys[0]);
    keys_free(&keys[1]);
    memory_free(parameters);
    return status;
}

static int print_json(cJSON *root) {
    char *text = cJSON_Print(root);
    if (text) printf("commit %s\n%s\n", build_commit(), text);
    cJSON_free(text);
    return text ? EXIT_OK : complain("no memory for the result");
}

static int run(const struct tables *t) {
    size_t all = (size_t)t->model->layers * t->model->kv_heads, count = (size_t)t->heads < all ? (size_t)t->heads : all;
    cJSON *root = cJSON_CreateObject(), *heads = cJSON_AddArrayToObject(root, "heads"), *list;
    int status = EXIT_OK;
    cJSON_AddNumberToObject(root, "samples", (double)capture_samples(t->learned));
    cJSON_AddNumberToObject(root, "test_samples", (double)capture_samples(t->held));
    list = cJSON_AddArrayToObject(root, "fits");
    for (size_t i = 0; i < FITS; i++) {
        cJSON *fit = cJSON_CreateObject();
        cJSON_AddNumberToObject(fit, "pairs", (double)fits[i].pairs);
        cJSON_AddNumberToObject(fit, "entries", (double)fits[i].entries);
        cJSON_AddItemToArray(list, fit);
    }
    for (size_t i = 0; i < count && status == EXIT_OK; i++) {
        size_t head = (2 * i + 1) * all / (2 * count);
        cJSON_AddItemToArray(heads, cJSON_CreateNumber((double)head));
        status = run_head(t, head, list);
        progress_show(NULL, "heads", i + 1, count);
    }
    progress_clear();
    if (status == EXIT_OK) status = print_json(root);
    cJSON_Delete(root);
    return status;
}

static int capture_text(const struct tables *t, const char *path, uint32_t windows, struct capture **capture) {
    struct capture_options options = {
        .window = WINDOW, .windows = windows, .positions = t->model->context, .seed = 1, .budget = (size_t)1 << 30};
    struct terse_error error;
    char *text = NULL;
    int32_t *tokens = NULL;
    size_t n_bytes, n;
    options.side[CODEC_KEYS].kept = true;
    options.progress.report = progress_show;
    int status = text_read(path, &text, &n_bytes);
    if (status == EXIT_OK) status = text_tokenize(t->model, text, n_bytes, TERSE_TOKENIZE_ADD_SPECIAL, &tokens, &n);
    if (status == EXIT_OK && capture_new(t->model, &options, tokens, n, capture, &error)) status = complain_error(&error);
    progress_clear();
    free(tokens);
    free(text);
    return status;
}

static enum options_result parse(struct tables *t, int argc, char **argv) {
    const struct option options[] = {
        {"-m, --model", "FILE", OPTION_TEXT, &t->model_path, 0, 0, "GGUF model"},
        {"-f, --file", "FILE", OPTION_TEXT, &t->learn, 0, 0, "text to learn from"},
        {"--test", "FILE", OPTION_TEXT, &t->test, 0, 0, "held-out text"},
        {"--chunks", "K", OPTION_INTEGER, &t->windows, 1, 4096, "windows of 2048 tokens to learn from"},
        {"--heads", "N", OPTION_INTEGER, &t->heads, 1, MOST_HEADS, "KV heads to measure, spread evenly over all layers"},
    };
    const struct option_set set = {
        .usage = "commvq_tables -f TEXT --test TEXT [options]",
        .about = "Errors of CommVQ's key tables by group size and rounds.\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
    };
    return options_parse(&set, argc, argv);
}

int main(int argc, char **argv) {
    struct tables t = {.model_path = DEFAULT_MODEL, .windows = 16, .heads = 8};
    struct terse_error error;
    console_begin("commvq_tables");
    enum options_result parsed = parse(&t, argc - 1, argv + 1);
    if (parsed != OPTIONS_GO) return console_end(parsed == OPTIONS_HELP ? EXIT_OK : EXIT_FAILED);
    int status = t.learn && t.test ? EXIT_OK : complain("give -f TEXT and --test TEXT");
    if (status == EXIT_OK && terse_model_load(t.model_path, &t.model, &error)) status = complain_error(&error);
    if (status == EXIT_OK && t.model->head_dim > 2 * COMMVQ_MOST_PAIRS)
        status = complain("heads of %u channels are not supported, only up to %d", t.model->head_dim, 2 * COMMVQ_MOST_PAIRS);
    if (status == EXIT_OK) status = capture_text(&t, t.learn, (uint32_t)t.windows, &t.learned);
    if (status == EXIT_OK) status = capture_text(&t, t.test, TEST_WINDOWS, &t.held);
    if (status == EXIT_OK) status = run(&t);
    capture_free(t.learned);
    capture_free(t.held);
    terse_model_free(t.model);
    return console_end(status);
}
