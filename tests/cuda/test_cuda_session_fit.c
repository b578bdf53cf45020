/* Sessions on the GPU, without a profile or, with long prompts, beside one: every layer and KV head fits its transforms to its own rows as the CPU
 * does, once enough tokens are there, in a prompt and in decoding steps, and attention over the pages then gives the CPU's logits. The window gives
 * back the memory in which the tokens have waited. */
#include "backend/cuda/device.h"
#include "backend/cuda/executor.h"
#include "backend/cuda/kv/ops.h"
#include "base/memory.h"
#include "format/transform.h"
#include "kv/state_file.h"
#include "no_device.h"
#include "support/random_model.h"
#include "support/session_steps.h"
#include "support/temporary.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* The GPU fits to rows of halves that its own products made, the CPU to its floats: both differ by some 2^-11 in each layer. */
#define FIT_BOUND 1e-2
#define LOGITS_BOUND 2e-2 /* of a row's largest logit; codes of 8 bits add little to what test_executor allows */

enum { LEAST = FIT_TOKENS + SINKS, PROMPT = LEAST + 130, STEPS = 2, TOKENS = LEAST + 140 };

static const struct backend backend = {.name = "cuda", .executor = &cuda_executor_ops, .kv = &cuda_kv_ops};
static int32_t tokens[TOKENS];

struct reading {
    size_t prompt, steps; /* of single tokens behind it */
    bool learned;         /* with a profile, that of the weights */
};

struct outcome {
    float *logits;            /* [vocabulary], after the last step */
    struct state_file *state; /* the session, saved */
};

static struct outcome read_on(const struct backend *on, struct terse_model *model, const struct reading *reading,
                              uint32_t vocabulary) {
    char path[TEMPORARY_PATH];
    struct outcome outcome = {.logits = malloc(vocabulary * sizeof(float))};
    struct terse_engine *engine = must_start(on, model, 2);
    struct terse_session_options options = short_session_options("terse-8", 16);
    options.context = TOKENS;
    const struct terse_codebook *profile = NULL;
    if (reading->learned) assert_int_equal(engine_weight_profile(engine, &profile, NULL), TERSE_OK);
    options.cache.codebook = profile;
    struct terse_session *session = must_open(engine, &options);
    struct terse_error error;
    temporary_template("fit", path);
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0 && outcome.logits);
    close(descriptor);
    must_prefill(session, tokens, reading->prompt);
    must_decode(session, tokens + reading->prompt, reading->steps);
    memcpy(outcome.logits, terse_session_logits(session), vocabulary * sizeof(float));
    must_save(session, path);
    if (state_file_open(path, &outcome.state, &error)) fail_msg("%s", error.message);
    unlink(path);
    terse_session_free(session);
    terse_engine_free(engine);
    return outcome;
}

static void discard(struct outcome *outcome) {
    free(outcome->logits);
    state_file_close(outcome->state);
}

/* The length of the difference of two vectors, by that of the second. */
static double apart(const float *got, const float *want, size_t n) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += pow((double)got[i] - (double)want[i], 2);
        size += pow((double)want[i], 2);
    }
    return sqrt(difference / size);
}

/* The same of means before rotation, of which values have none. */
static double of_pre_rope(const float *got, const float *want, size_t n, bool values) {
    for (size_t i = 0; i < n && values; i++) assert_true(got[i] == 0 && want[i] == 0);
    return values ? 0 : apart(got, want, n);
}

/* products[hd][hd] = the sum over components of size^2 basis basis^T, the covariance that a record describes. */
static void describe(const void *record, uint32_t hd, float *products) {
    const struct transform_fitted own = transform_fitted_at(record, hd);
    float *basis = malloc((size_t)hd * hd * sizeof *basis);
    assert_non_null(basis);
    transform_record_basis(&own, hd, hd, basis);
    memset(products, 0, (size_t)hd * hd * sizeof *products);
    for (size_t c = 0; c < hd; c++)
        for (size_t i = 0; i < hd; i++)
            for (size_t j = 0; j < hd; j++)
                products[i * hd + j] += own.size[c] * own.size[c] * basis[c * hd + i] * basis[c * hd + j];
    free(basis);
}

/* Tokens, and sums of log2 of mean squares of hidden states as they enter the layers, in units of 2^-16. */
static void compare_sums(const uint8_t *got, const uint8_t *want, uint32_t layers) {
    int64_t a[8], b[8];
    assert_true(1 + layers <= 8);
    memcpy(a, got, (1 + layers) * sizeof *a);
    memcpy(b, want, (1 + layers) * sizeof *b);
    assert_int_equal(a[0], b[0]);
    for (uint32_t i = 1; i <= layers && a[0]; i++)
        if (!(fabs((double)(a[i] - b[i])) / 65536 <= FIT_BOUND * (double)a[0]))
            fail_msg("layer %u: the residual stream has 2^%g, not 2^%g", i - 1, (double)a[i] / (double)a[0] / 65536,
                     (double)b[i] / (double)b[0] / 65536);
}

static void compare_fits(const struct random_model_spec *spec, const struct outcome *got, const struct outcome *want) {
    size_t hd = spec->head_dim, bytes[2];
    size_t side = memory_round_up(TRANSFORM_RECORD_BYTES(hd), MEMORY_ALIGN), sides = (size_t)spec->layers * spec->kv_heads * 2;
    const uint8_t *own = state_file_section(got->state, STATE_FITTED, &bytes[0]);
    const uint8_t *cpus = state_file_section(want->state, STATE_FITTED, &bytes[1]);
    float *products = malloc(2 * hd * hd * sizeof *products);
    assert_non_null(products);
    const size_t sums = (1 + (size_t)spec->layers) * sizeof(int64_t); /* of the residual stream, before the records */
    assert_int_equal(bytes[0], sums + sides * side);
    assert_int_equal(bytes[1], sums + sides * side);
    compare_sums(own, cpus, spec->layers);
    own += sums, cpus += sums;
    for (size_t i = 0; i < sides; i++) {
        struct transform_fitted a = transform_fitted_at(own + i * side, spec->head_dim);
        struct transform_fitted b = transform_fitted_at(cpus + i * side, spec->head_dim);
        describe(own + i * side, spec->head_dim, products);
        describe(cpus + i * side, spec->head_dim, products + hd * hd);
        double mean = apart(a.mean, b.mean, hd), covariance = apart(products, products + hd * hd, hd * hd);
        double least = fabs((double)(a.gain_least / b.gain_least) - 1), most = fabs((double)(a.gain_most / b.gain_most) - 1);
        double gain = fabs((double)(a.gain / b.gain) - 1), turning = of_pre_rope(a.pre_rope_mean, b.pre_rope_mean, hd, i % 2);
        if (!(mean <= FIT_BOUND && covariance <= FIT_BOUND && least <= FIT_BOUND && most <= FIT_BOUND && gain <= FIT_BOUND &&
              turning <= FIT_BOUND))
            fail_msg(
                "layer %zu, KV head %zu, %s: mean, covariance, gains and mean before rotation are %g, %g, %g, %g, %g and %g from "
                "the CPU's",
                i / 2 / spec->kv_heads, i / 2 % spec->kv_heads, i % 2 ? "values" : "keys", mean, covariance, least, most, gain,
                turning);
    }
    free(products);
}

static void check(const struct random_model_spec *spec, const struct reading *reading) {
    void *file;
    struct terse_model *model = random_model_new(spec, &file);
    struct terse_model_info info;
    terse_model_describe(model, &info);
    for (size_t i = 0; i < TOKENS; i++) tokens[i] = (int32_t)((7 + i * i * 37) % info.vocabulary);
    struct outcome want = read_on(&backend_cpu, model, reading, info.vocabulary);
    struct outcome got = read_on(&backend, model, reading, info.vocabulary);
    compare_fits(spec, &got, &want);
    const double logits = logits_apart(got.logits, want.logits, info.vocabulary);
    print_message("%s, %u heads of %u, prompt of %zu: %.1e\n", spec->architecture, spec->kv_heads, spec->head_dim, reading->prompt,
                  logits);
    assert_true(logits <= LOGITS_BOUND);
    discard(&got);
    discard(&want);
    terse_model_free(model);
    memory_free(file);
}

/* Fails the test unless the GPU's logits and pages are the same. */
static void compare_outcomes(struct terse_model *model, const struct reading *one, const struct reading *other) {
    struct terse_model_info info;
    terse_model_describe(model, &info);
    struct outcome a = read_on(&backend, model, one, info.vocabulary), b = read_on(&backend, model, other, info.vocabulary);
    size_t bytes[2];
    const void *pages = state_file_section(a.state, STATE_PAGES, &bytes[0]),
               *others = state_file_section(b.state, STATE_PAGES, &bytes[1]);
    assert_int_equal(bytes[0], bytes[1]);
    assert_true(bytes[0] > 0);
    assert_memory_equal(pages, others, bytes[0]);
    assert_memory_equal(a.logits, b.logits, info.vocabulary * sizeof *a.logits);
    discard(&a);
    discard(&b);
}

/* Shapes of which the first is llama's, the others qwen2's with biases, which give keys a large mean. */
static const struct random_model_spec specs[] = {
    {"llama", {TENSOR_Q8_0, TENSOR_F16, TENSOR_Q4_0}, 2, .heads = 2, .head_dim = 64, .layers = 2},
    {"qwen2", {TENSOR_Q8_0, TENSOR_F16, TENSOR_Q4_0}, 1, .heads = 2, .head_dim = 128, .layers = 2, .qkv_bias = true},
    {"qwen2", {TENSOR_Q8_0, TENSOR_F16, TENSOR_Q4_0}, 3, .heads = 3, .head_dim = 64, .layers = 1, .qkv_bias = true},
};

static void a_prompt_is_fitted_to_as_on_the_cpu(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) check(&specs[i], &(struct reading){PROMPT, STEPS, false});
}

/* The prompt ends a few tokens before the cache has as many as it waits for, and its window then seals most of them in one decoding step. */
static void decoded_tokens_are_fitted_to_as_on_the_cpu(void **state) {
    (void)state;
    check(&specs[0], &(struct reading){LEAST - 5, 10, false});
}

#ifdef TERSE_EMULATED_CUDA
#define N_PROFILE_LENGTHS 1 /* a length takes half a minute */
#else
#define N_PROFILE_LENGTHS 2
#endif

/* Beside a profile the same, where a prompt has as many tokens. One with fewer has codes at once, and fits nothing. */
static void a_profile_changes_nothing_of_long_prompts(void **state) {
    static const struct reading lengths[2] = {{LEAST, 3, true}, {PROMPT, STEPS, true}};
    (void)state;
    void *file;
    struct terse_model *model = random_model_new(&specs[0], &file);
    for (size_t i = 0; i < N_PROFILE_LENGTHS; i++) {
        struct reading without = lengths[i];
        without.learned = false;
        check(&specs[0], &lengths[i]);
        compare_outcomes(model, &lengths[i], &without);
    }
    terse_model_free(model);
    memory_free(file);
}

static void short_prompts_go_by_the_profile(void **state) {
    static const struct reading reading = {500, 2, true};
    (void)state;
    void *file;
    struct terse_model *model = random_model_new(&specs[0], &file);
    struct terse_model_info info;
    size_t bytes[2];
    terse_model_describe(model, &info);
    struct outcome want = read_on(&backend_cpu, model, &reading, info.vocabulary);
    struct outcome got = read_on(&backend, model, &reading, info.vocabulary);
    (void)state_file_section(got.state, STATE_FITTED, &bytes[0]);
    (void)state_file_section(got.state, STATE_PAGES, &bytes[1]);
    assert_true(bytes[0] == 0 && bytes[1] > 0);
    assert_true(logits_apart(got.logits, want.logits, info.vocabulary) <= LOGITS_BOUND);
    discard(&got);
    discard(&want);
    terse_model_free(model);
    memory_free(file);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    setenv("TERSE_CPU", "scalar", 1); /* the others take vectors of some products to 8 bits only */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_is_fitted_to_as_on_the_cpu),
        cmocka_unit_test(decoded_tokens_are_fitted_to_as_on_the_cpu),
        cmocka_unit_test(a_profile_changes_nothing_of_long_prompts),
        cmocka_unit_test(short_prompts_go_by_the_profile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
