/* Windows on the GPU: keys, values and their gradients of small models of every architecture that it computes are near the CPU's, and so are
 * losses; the same in every run; what is not finite is named. */
#include "backend/cuda/learning.h"
#include "base/memory.h"
#include "no_device.h"
#include "support/random_model.h"
#include "train/backward.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Bounds of differences from the CPU's as parts of the root of the mean square of a layer's rows, of which a difference is one, too: operands of
 * products are rounded to 11 bits on the way through the layers. The worst met in emulation stand beside them. */
#define ROWS_BOUND 4e-3      /* 1.1e-3 */
#define GRADIENTS_BOUND 1e-2 /* 3.0e-3 */
#define LOSS_BOUND 2e-3      /* 3.3e-5 */

#ifdef TERSE_EMULATED_CUDA
enum { TOKENS = 70 };
#else
enum { TOKENS = 400 };
#endif

enum { K, V, DK, DV, KEPT };
struct kept {
    const struct terse_model *model;
    size_t per_layer;
    float *rows[KEPT]; /* [layers][n][Hk][hd] */
    double loss;
};

static void keep_layer(void *user, uint32_t layer, const struct captured *captured) {
    const struct kept *kept = user;
    const float *from[KEPT] = {captured->k, captured->v, captured->dk, captured->dv};
    assert_int_equal(captured->n, TOKENS);
    for (int i = 0; i < KEPT; i++)
        if (from[i]) memcpy(kept->rows[i] + layer * kept->per_layer, from[i], kept->per_layer * sizeof(float));
}

static struct kept run_window(const struct learning_ops *ops, const struct terse_model *m, bool gradients, bool drawn) {
    struct kept kept = {.model = m, .per_layer = TOKENS * model_kv_width(m)};
    const struct backward_sink sink = {keep_layer, &kept};
    struct backward *backward;
    struct terse_error error;
    int32_t tokens[TOKENS];
    for (size_t i = 0; i < TOKENS; i++) tokens[i] = (int32_t)((7 + i * 37) % m->vocabulary);
    for (int i = 0; i < KEPT; i++) assert_non_null(kept.rows[i] = calloc(m->layers * kept.per_layer, sizeof(float)));
    if (backward_new(ops, m, TOKENS, gradients, NULL, &backward, &error)) fail_msg("%s", error.message);
    if (drawn) backward_draw_labels(backward, 1);
    if (backward_run(backward, tokens, TOKENS, &sink, NULL, &kept.loss, &error)) fail_msg("%s", error.message);
    backward_free(backward);
    return kept;
}

static void free_kept(struct kept *kept) {
    for (int i = 0; i < KEPT; i++) free(kept->rows[i]);
}

/* Returns the worst of all layers. */
static double apart(const struct kept *a, const struct kept *b, int what) {
    double worst = 0;
    for (uint32_t layer = 0; layer < a->model->layers; layer++) {
        double difference = 0, size = 0;
        for (size_t i = layer * a->per_layer; i < (layer + 1) * a->per_layer; i++) {
            assert_true(isfinite(a->rows[what][i]));
            difference += pow((double)a->rows[what][i] - (double)b->rows[what][i], 2);
            size += pow((double)b->rows[what][i], 2);
        }
        assert_true(size > 0);
        worst = fmax(worst, sqrt(difference / size));
    }
    return worst;
}

static void check_kept(const char *name, const struct kept *got, const struct kept *want, bool gradients) {
    const double rows = fmax(apart(got, want, K), apart(got, want, V));
    if (!(rows <= ROWS_BOUND)) fail_msg("%s: rows are %g apart", name, rows);
    if (!gradients) return;
    const double slopes = fmax(apart(got, want, DK), apart(got, want, DV)), loss = fabs(got->loss / want->loss - 1);
    if (!(slopes <= GRADIENTS_BOUND)) fail_msg("%s: gradients are %g apart", name, slopes);
    if (!(loss <= LOSS_BOUND)) fail_msg("%s: the loss is %g, not %g", name, got->loss, want->loss);
    print_message("%s: rows %.1e, gradients %.1e, loss %.1e apart\n", name, rows, slopes, loss);
}

static void windows_are_near_the_cpus(void **state) {
    const struct random_model_spec *spec = *state;
    void *file;
    struct terse_model *model = random_model_new(spec, &file);
    assert_int_equal(cuda_learning_ops.supports(model, NULL), TERSE_OK);
    for (int gradients = 0; gradients < 2; gradients++) {
        struct kept want = run_window(NULL, model, gradients, false), got = run_window(&cuda_learning_ops, model, gradients, false);
        check_kept(spec->architecture, &got, &want, gradients);
        free_kept(&want);
        free_kept(&got);
    }
    terse_model_free(model);
    memory_free(file);
}

/* In small panels, in attention's small tiles, and with rows computed again, the same comes out, within the rounding of operands. */
static void pieces_change_little(void **state) {
    const struct random_model_spec *spec = *state;
    void *file;
    struct terse_model *model = random_model_new(spec, &file);
    struct learning_ops pieces = cuda_learning_ops;
    const size_t whole = learning_logit_bytes;
    struct kept want = run_window(NULL, model, true, false);
    pieces.panel = 32;
    pieces.logit_bytes = pieces.staying_bytes = 0;
    learning_logit_bytes = 16 * model->query_heads * ((TOKENS + 31) / 32 * 32) * sizeof(float); /* 16 tokens' */
    struct kept got = run_window(&pieces, model, true, false);
    learning_logit_bytes = whole;
    check_kept("in pieces", &got, &want, true);
    free_kept(&want);
    free_kept(&got);
    terse_model_free(model);
    memory_free(file);
}

/* Models that the GPU does not learn from go through the CPU's operations, to the same bits. */
static void others_are_the_cpus(void **state) {
    (void)state;
    void *file;
    struct terse_model *model = random_model_new(&random_layer_models[4], &file);
    assert_int_equal(cuda_learning_ops.supports(model, NULL), TERSE_E_UNSUPPORTED);
    struct kept want = run_window(NULL, model, true, false), got = run_window(&cuda_learning_ops, model, true, false);
    for (int i = 0; i < KEPT; i++) assert_memory_equal(got.rows[i], want.rows[i], model->layers * want.per_layer * sizeof(float));
    free_kept(&want);
    free_kept(&got);
    terse_model_free(model);
    memory_free(file);
}

/* Labels are drawn as the predictions have them: their mean loss is near the entropy, as the CPU's is; and every run draws the same. */
static void drawn_labels_repeat(void **state) {
    (void)state;
    void *file;
    struct terse_model *model = random_model_new(&random_models[0], &file);
    struct kept want = run_window(NULL, model, true, true), got = run_window(&cuda_learning_ops, model, true, true),
                again = run_window(&cuda_learning_ops, model, true, true);
    for (int i = 0; i < KEPT; i++) assert_memory_equal(got.rows[i], again.rows[i], model->layers * want.per_layer * sizeof(float));
    print_message("drawn: loss %g, the CPU's %g; gradients %.1e apart\n", got.loss, want.loss, apart(&got, &want, DV));
    assert_true(fabs(got.loss / want.loss - 1) <= 0.05); /* another label where two are next to each other */
    free_kept(&want);
    free_kept(&got);
    free_kept(&again);
    terse_model_free(model);
    memory_free(file);
}

static void numbers_that_are_not_finite_are_named(void **state) {
    (void)state;
    void *file;
    struct terse_error error;
    struct backward *backward;
    struct terse_model *model = random_model_damaged(&random_models[0], "blk.1.attn_v.weight", NAN, &file);
    int32_t tokens[TOKENS] = {0};
    const struct backward_sink sink = {keep_layer, NULL};
    assert_int_equal(backward_new(&cuda_learning_ops, model, TOKENS, true, NULL, &backward, &error), TERSE_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(backward_run(backward, tokens, TOKENS, &sink, NULL, &(double){0}, &error), TERSE_E_FORMAT);
        assert_non_null(strstr(error.message, "1"));
    }
    backward_free(backward);
    terse_model_free(model);
    memory_free(file);
}

#define TESTS_MOST 16

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    setenv("TERSE_CPU", "scalar", 1);
    struct CMUnitTest tests[TESTS_MOST] = {
        cmocka_unit_test(others_are_the_cpus), cmocka_unit_test(drawn_labels_repeat),
        cmocka_unit_test(numbers_that_are_not_finite_are_named),
        cmocka_unit_test_prestate(pieces_change_little, (void *)(uintptr_t)&random_models[1]),
        cmocka_unit_test_prestate(pieces_change_little, (void *)(uintptr_t)&random_layer_models[0])};
    size_t n = 5;
    for (size_t i = 0; i < n_random_models + 4; i++) {
        const struct random_model_spec *spec = i < n_random_models ? &random_models[i] : &random_layer_models[i - n_random_models];
        tests[n++] = (struct CMUnitTest){spec->architecture, windows_are_near_the_cpus, NULL, NULL, (void *)(uintptr_t)spec};
    }
    return _cmocka_run_group_tests("windows on the GPU", tests, n, NULL, NULL);
}
