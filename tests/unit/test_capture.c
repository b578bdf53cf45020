/* Capture: samples and norms are what the backward pass delivers, rotated here in double precision; which tokens stay under a small
 * budget; how samples are read. */
#include "support/fixture_model.h"
#include "train/backward.h"
#include "train/capture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ALL ((size_t)1 << 40) /* a budget that no test exhausts */

/* The rows that a window's backward pass delivers, [layers][n][Hk][hd] of each. */
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
    if (backward_new(NULL, m, n, gradients, NULL, &backward, &error)) fail_msg("%s", error.message);
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
    int32_t *tokens = fixture_tokens(m, WINDOW * AVAILABLE + 5);
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
    int32_t *tokens = fixture_tokens(m, 100);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_norms_are_those_of_the_backward_pass),
        cmocka_unit_test(keys_are_rotated_by_their_frame),
        cmocka_unit_test(a_small_budget_keeps_tokens_evenly),
        cmocka_unit_test(samples_can_be_read_in_steps),
    };
    return cmocka_run_group_tests_name("capture", tests, NULL, NULL);
}
