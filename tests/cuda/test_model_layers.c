/* Models of layers of other kinds on the GPU: windows, caps, norms behind layers or of each head, attention beside the
 * feed-forward layer, longrope, experts. Their logits are near the CPU's. */
#include "base/memory.h"
#include "model_logits.h"
#include "no_device.h"
#include "support/temporary.h"

#include <stdio.h>
#include <terse_calibrate.h>
#include <unistd.h>

/* Enough tokens for a product of many rows; steps of one token, which come again, and of some. */
static const struct way ways[] = {{"a prompt and single tokens", 66, 1, true}, {"a prompt and steps of 4", 61, 4, true}};
#ifdef TERSE_EMULATED_CUDA
enum { LOGITS = 69 };
#else
enum { LOGITS = 400 };
#endif

static void logits_are_near_the_cpus(void **state) {
    const struct random_model_spec *spec = *state;
    void *file;
    struct terse_model *model = random_model_new(spec, &file);
#ifdef TERSE_EMULATED_CUDA
    check_logits(spec->architecture, model, "f16", &ways[(spec - random_layer_models) % 2], 1, LOGITS); /* one, by turns */
#else
    check_logits(spec->architecture, model, "f16", ways, sizeof ways / sizeof ways[0], LOGITS);
#endif
    terse_model_free(model);
    memory_free(file);
}

/* A cache of two parts, of layers that slide and of others, is forked, cut, saved, and loaded by either backend. */
static void sessions_of_both_kinds_of_layers_go_on(void **state) {
    (void)state;
    enum { PROMPT = 80, AFTER = 2 };
    char path[TEMPORARY_PATH];
    void *file;
    struct terse_model *model = random_model_new(&random_layer_models[1], &file);
    struct terse_engine *engines[2] = {must_start(&backend_cpu, model, 2), must_start(&backend, model, 2)};
    const struct terse_session_options options = short_session_options("q4_0", 0);
    struct terse_model_info info;
    terse_model_describe(model, &info);
    for (int i = 0; i < PROMPT + AFTER; i++) tokens[i] = (7 + i * 37) % (int)info.vocabulary;
    temporary_template("parts", path);
    const int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    struct terse_session *session = must_open(engines[1], &options);
    must_prefill(session, tokens, PROMPT);
    must_save(session, path);
    struct terse_session *others[] = {must_fork(session), must_load(engines[1], &options, path),
                                      must_load(engines[0], &options, path)};
    must_decode(session, tokens + PROMPT, AFTER);
    for (int i = 0; i < 3; i++) { /* exact keys are rotated once more when they are loaded */
        must_decode(others[i], tokens + PROMPT, AFTER);
        assert_true(logits_apart(terse_session_logits(others[i]), terse_session_logits(session), info.vocabulary) <=
                    (i ? BOUND : 0));
    }
    must_truncate(others[0], PROMPT + 1);
    must_decode(others[0], tokens + PROMPT + 1, AFTER - 1);
    check_same_logits(others[0], session);
    for (int i = 0; i < 3; i++) terse_session_free(others[i]);
    terse_session_free(session);
    for (int i = 0; i < 2; i++) terse_engine_free(engines[i]);
    unlink(path);
    terse_model_free(model);
    memory_free(file);
}

/* Each layer goes by its own part of a codebook, though layers that slide are held apart from the others. */
static void layers_go_by_their_own_codebook(void **state) {
    (void)state;
    static const char *const methods[] = {"terse-4", "cq-2"};
    enum { PROMPT = 200, AFTER = 2 };
    void *file;
    struct terse_model *model = random_model_new(&random_layer_models[1], &file);
    struct terse_model_info info;
    terse_model_describe(model, &info);
    for (int i = 0; i < PROMPT + AFTER; i++) tokens[i] = (7 + i * 37) % (int)info.vocabulary;
    for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
        struct terse_engine *engines[2] = {must_start(&backend_cpu, model, 2), must_start(&backend, model, 2)};
        struct terse_session *sessions[2];
        struct terse_codebook *codebook;
        struct terse_session_options options = short_session_options(methods[m], 16);
        assert_int_equal(terse_codebook_random(model, methods[m], &codebook, NULL), TERSE_OK);
        options.cache.codebook = codebook;
        for (int i = 0; i < 2; i++) {
            sessions[i] = must_open(engines[i], &options);
            must_prefill(sessions[i], tokens, PROMPT);
            must_decode(sessions[i], tokens + PROMPT, AFTER);
        }
        const double apart = logits_apart(terse_session_logits(sessions[1]), terse_session_logits(sessions[0]), info.vocabulary);
        print_message("%s: %.1e\n", methods[m], apart);
        assert_true(apart <= BOUND);
        for (int i = 0; i < 2; i++) terse_session_free(sessions[i]);
        for (int i = 0; i < 2; i++) terse_engine_free(engines[i]);
        terse_codebook_free(codebook);
    }
    terse_model_free(model);
    memory_free(file);
}

/* A step of more tokens than layers that slide take in other caches: its parts go together. */
static void steps_that_choose_go_beside_layers_that_slide(void **state) {
    (void)state;
    enum { PROMPT = 200, AFTER = 40 };
    void *file;
    struct terse_model *model = random_model_new(&random_layer_models[1], &file);
    struct terse_engine *engines[2] = {must_start(&backend_cpu, model, 2), must_start(&backend, model, 2)};
    const struct terse_session_options options = short_session_options("quest-64", 0);
    struct terse_session *sessions[2];
    struct terse_model_info info;
    struct terse_error error;
    terse_model_describe(model, &info);
    for (int i = 0; i < PROMPT + AFTER; i++) tokens[i] = (7 + i * 37) % (int)info.vocabulary;
    for (int i = 0; i < 2; i++) {
        sessions[i] = must_open(engines[i], &options);
        must_prefill(sessions[i], tokens, PROMPT);
        if (terse_session_decode(sessions[i], tokens + PROMPT, AFTER, NULL, &error)) fail_msg("%s", error.message);
    }
    const double apart = logits_apart(terse_session_logits(sessions[1]), terse_session_logits(sessions[0]), info.vocabulary);
    print_message("quest-64: %.1e\n", apart);
    assert_true(apart <= BOUND);
    for (int i = 0; i < 2; i++) terse_session_free(sessions[i]);
    for (int i = 0; i < 2; i++) terse_engine_free(engines[i]);
    terse_model_free(model);
    memory_free(file);
}

#define TESTS_MOST 16

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    setenv("TERSE_CPU", "scalar", 1); /* the others take vectors of some products to 8 bits only */
    struct CMUnitTest tests[TESTS_MOST] = {cmocka_unit_test(sessions_of_both_kinds_of_layers_go_on),
                                           cmocka_unit_test(layers_go_by_their_own_codebook),
                                           cmocka_unit_test(steps_that_choose_go_beside_layers_that_slide)};
    size_t n = 3;
    for (size_t i = 0; i < n_random_layer_models && n < TESTS_MOST; i++)
        tests[n++] = (struct CMUnitTest){random_layer_models[i].architecture, logits_are_near_the_cpus, NULL, NULL,
                                         (void *)(uintptr_t)&random_layer_models[i]};
    return _cmocka_run_group_tests("models on the GPU", tests, n, NULL, NULL);
}
