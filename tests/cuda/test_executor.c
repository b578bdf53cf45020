/* Models on the GPU: logits near the CPU's for every architecture and way to cut a text into steps, the same greedy tokens, and of a step of
 * several sessions each what it gets alone, bit for bit. */
#include "base/memory.h"
#include "engine/session.h"
#include "model_logits.h"
#include "no_device.h"
#include "support/project_file.h"
#include "support/temporary.h"
#include "terse_calibrate.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* The bound where tokens are kept by their attention: random weights make scores nearly equal, so the backends keep different tokens here and there;
 * test_cuda_anchors checks that their scores are as high. One of 128 tokens moved a row by 2.7 % on an H100. */
#ifdef TERSE_EMULATED_CUDA
#define KEPT_BOUND BOUND
#else
#define KEPT_BOUND 5e-2
#endif

#define GREEDY 40
#ifdef TERSE_EMULATED_CUDA
#define LOGITS 75 /* tokens; enough of them for a product of many rows, and single ones */
#else
#define LOGITS 150
#endif

static struct terse_model *load_model(void) {
    struct terse_model *model;
    struct terse_error error;
    if (terse_model_load(must_find_project_file("models/lab-27m-q8_0.gguf"), &model, &error)) fail_msg("%s", error.message);
    return model;
}

/* ---- Logits */

static const struct way ways[] = {
    {"one prompt", SIZE_MAX, 1, false},       {"a prompt and single tokens", 70, 1, true}, {"prompts of 37", 37, 37, false},
    {"a prompt and steps of 3", 70, 3, true}, {"a prompt and steps of 23", 64, 23, true},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

static void logits_are_near_the_cpus(void **state) {
    const struct random_model_spec *spec = *state;
    void *file;
    struct terse_model *model = random_model_new(spec, &file);
    check_logits(spec->architecture, model, "f16", ways, WAYS, LOGITS);
    terse_model_free(model);
    memory_free(file);
}

static void logits_of_the_default_model_are_near_the_cpus(void **state) {
    (void)state;
    struct terse_model *model = load_model();
    check_logits("lab-27m", model, "f16", ways, WAYS, 150);
    terse_model_free(model);
}

/* ---- Tokens */

static int32_t likeliest(const struct terse_session *session, uint32_t vocabulary) {
    const float *logits = terse_session_logits(session);
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocabulary; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

static void greedy(struct terse_engine *engine, const char *text, uint32_t vocabulary, int32_t out[GREEDY]) {
    struct terse_session *session = must_open_method(engine, "f16");
    struct terse_error error;
    size_t n;
    assert_non_null(session);
    if (terse_tokenize(terse_engine_model(engine), text, strlen(text), 0, tokens, TOKENS_MOST, &n, &error))
        fail_msg("%s", error.message);
    assert_in_range(n, 1, TOKENS_MOST);
    if (terse_session_prefill(session, tokens, n, NULL, &error)) fail_msg("%s", error.message);
    for (int i = 0; i < GREEDY; i++) {
        out[i] = likeliest(session, vocabulary);
        if (terse_session_decode(session, &out[i], 1, NULL, &error)) fail_msg("%s", error.message);
    }
    terse_session_free(session);
}

static void greedy_tokens_are_the_cpus(void **state) {
    (void)state;
    static const char text[] = "The river rises in the hills to the north of the town, and it was first crossed by a bridge in";
    struct terse_model *model = load_model();
    struct terse_engine *engines[2] = {must_start(&backend_cpu, model, 2), must_start(&backend, model, 2)};
    struct terse_model_info info;
    int32_t out[2][GREEDY];
    terse_model_describe(model, &info);
    for (int i = 0; i < 2; i++) greedy(engines[i], text, info.vocabulary, out[i]);
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    for (int i = 0; i < 2; i++) terse_engine_free(engines[i]);
    terse_model_free(model);
}

/* ---- Several sessions */

#ifdef TERSE_EMULATED_CUDA
enum { SESSIONS = 5, STEPS = 3 };
#else
enum { SESSIONS = 20, STEPS = 20 };
#endif

static size_t prompt_of(size_t i) { return 20 + i * 67 % 300; }
static size_t count_at(size_t step, size_t i) { return (step + i) % 5 == 2 ? 3 : 1; }

static void a_step_gives_each_what_it_gets_alone(void **state) {
    (void)state;
    static const char *const methods[] = {"f16", "q8_0", "mat-64", "snapkv-128", "q4_0"};
    const size_t n_methods = sizeof methods / sizeof methods[0];
    void *file;
    struct terse_model *model = random_model_new(&random_models[0], &file);
    struct terse_engine *engine = must_start(&backend, model, 2);
    struct terse_session *together[SESSIONS], *alone[SESSIONS];
    struct terse_model_info info;
    struct terse_error error;
    terse_model_describe(model, &info);
    for (int i = 0; i < TOKENS_MOST; i++) tokens[i] = (i * 37) % (int)info.vocabulary;
    for (size_t i = 0; i < SESSIONS; i++) {
        struct terse_session **both[] = {&together[i], &alone[i]};
        for (int side = 0; side < 2; side++) {
            assert_non_null(*both[side] = must_open_method(engine, methods[i % n_methods]));
            if (terse_session_prefill(*both[side], tokens, prompt_of(i), NULL, &error)) fail_msg("%s", error.message);
        }
    }
    for (size_t step = 0; step < STEPS; step++) {
        struct terse_step_item items[SESSIONS];
        for (size_t i = 0; i < SESSIONS; i++)
            items[i] = (struct terse_step_item){together[i], tokens + step * 7 + i, count_at(step, i), NULL, TERSE_OK};
        if (terse_engine_step(engine, items, SESSIONS, &error)) fail_msg("%s", error.message);
        for (size_t i = 0; i < SESSIONS; i++) {
            if (terse_session_decode(alone[i], tokens + step * 7 + i, count_at(step, i), NULL, &error))
                fail_msg("%s", error.message);
            if (memcmp(terse_session_logits(together[i]), terse_session_logits(alone[i]), info.vocabulary * sizeof(float)) != 0)
                fail_msg("step %zu: logits of session %zu are not those of it alone", step, i);
        }
    }
    for (size_t i = 0; i < SESSIONS; i++) {
        terse_session_free(together[i]);
        terse_session_free(alone[i]);
    }
    terse_engine_free(engine);
    terse_model_free(model);
    memory_free(file);
}

/* ---- What kernels do not compute */

/* Takes the model over. */
static void refuses_model(struct terse_model *model, const char *says) {
    struct terse_engine_options options = terse_engine_options_defaults();
    struct terse_engine *engine;
    struct terse_error error;
    assert_int_equal(engine_new(&backend, model, &options, &engine, &error), TERSE_E_UNSUPPORTED);
    assert_null(engine);
    if (!strstr(error.message, says) || strchr(error.message, '\n')) fail_msg("'%s' does not say '%s'", error.message, says);
    terse_model_free(model);
}

static void refuses_fixture(const char *path, const char *says) {
    struct terse_model *model;
    struct terse_error error;
    if (terse_model_load(must_find_project_file(path), &model, &error)) fail_msg("%s", error.message);
    refuses_model(model, says);
}

static void layers_of_other_kinds_are_refused(void **state) {
    (void)state;
    refuses_fixture("tests/fixtures/models/qwen3next.gguf", "qwen3next models with recurrent layers");
    refuses_fixture("tests/fixtures/models/deepseek2.gguf", "deepseek2 models with latent attention");
}

/* ---- Tokens chosen by attention */

/* Logits of every token after a prompt, of which a part is kept, or a part is exact; the weights are random, so that scores are near one another, and a
 * token or two that another backend keeps move logits more than rounding. */
static void chosen_tokens_give_logits_near_the_cpus(const char *method, double anchor_percent, double bound) {
    enum { PROMPT = 230, AFTER = 6 };
    void *file;
    struct terse_model *model = random_model_new(&random_models[0], &file);
    struct terse_model_info info;
    struct terse_codebook *codebook = NULL;
    struct terse_error error;
    float *logits[2];
    terse_model_describe(model, &info);
    if (strncmp(method, "antkv", 5) == 0 && terse_codebook_random(model, method, &codebook, &error)) fail_msg("%s", error.message);
    for (size_t i = 0; i < PROMPT + AFTER; i++) tokens[i] = (int32_t)((7 + i * i * 37) % info.vocabulary);
    for (int on = 0; on < 2; on++) {
        struct terse_engine *engine = must_start(on ? &backend : &backend_cpu, model, 2);
        struct terse_session_options options = terse_session_options_defaults();
        options.cache.method = method;
        options.cache.codebook = codebook;
        options.cache.anchor_percent = anchor_percent;
        struct terse_session *session = must_open(engine, &options);
        assert_non_null(logits[on] = malloc(AFTER * info.vocabulary * sizeof(float)));
        if (terse_session_prefill(session, tokens, PROMPT, NULL, &error)) fail_msg("%s", error.message);
        for (size_t i = 0; i < AFTER; i++) {
            if (terse_session_decode(session, tokens + PROMPT + i, 1, NULL, &error)) fail_msg("%s", error.message);
            memcpy(logits[on] + i * info.vocabulary, terse_session_logits(session), info.vocabulary * sizeof(float));
        }
        terse_session_free(session);
        terse_engine_free(engine);
    }
    struct rows rows[2] = {{logits[1], info.vocabulary, 0, AFTER}, {logits[0], info.vocabulary, 0, AFTER}};
    compare("llama", method, &rows[0], &rows[1], bound);
    for (int on = 0; on < 2; on++) free(logits[on]);
    terse_codebook_free(codebook);
    terse_model_free(model);
    memory_free(file);
}

static void logits_of_what_is_kept_are_near_the_cpus(void **state) {
    (void)state;
    chosen_tokens_give_logits_near_the_cpus("snapkv-128", -1, KEPT_BOUND);
}

static void logits_where_rows_are_replaced_are_near_the_cpus(void **state) {
    (void)state;
    chosen_tokens_give_logits_near_the_cpus("mat-128", -1, KEPT_BOUND);
}

static void logits_beside_anchors_are_near_the_cpus(void **state) {
    (void)state;
    chosen_tokens_give_logits_near_the_cpus("q8_0", 5, KEPT_BOUND);
    /* Of two random centroids that are as near, either may be taken: this alone makes 1.3 %, without anchors as with them. */
    chosen_tokens_give_logits_near_the_cpus("antkv-2", -1, 5e-2);
}

/* ---- Sampling from what stays on the device */

enum { SAMPLERS = 4, DRAWS = 8 };

/* Four sessions that draw from the likeliest tokens, and four of the same that ask for all logits before; steps of all of them, and of one
 * side. Settings: the defaults, greedy, one that needs all logits, one that mostly does not find enough among the likeliest. */
static void samples_are_those_of_all_logits(void **state) {
    (void)state;
    void *file;
    struct terse_model *model = random_model_new(&random_models[0], &file);
    struct terse_engine *engine = must_start(&backend, model, 2);
    struct terse_session *sessions[2][SAMPLERS];
    struct terse_model_info info;
    struct terse_error error;
    size_t held = 0;
    terse_model_describe(model, &info);
    for (int i = 0; i < TOKENS_MOST; i++) tokens[i] = (i * 37) % (int)info.vocabulary;
    for (int asks = 0; asks < 2; asks++)
        for (size_t i = 0; i < SAMPLERS; i++) {
            struct terse_sampling sampling = terse_sampling_defaults();
            sampling.temperature = i == 1 ? 0 : 1.5f;
            if (i == 2) sampling.top_k = 0;
            if (i == 3) sampling.repeat_penalty = 1e6f, sampling.repeat_last = 4096;
            sampling.seed = i;
            sessions[asks][i] = must_open_method(engine, "q4_0");
            if (terse_session_set_sampling(sessions[asks][i], &sampling, &error) ||
                terse_session_prefill(sessions[asks][i], tokens, 30 + 10 * i, NULL, &error))
                fail_msg("%s", error.message);
        }
    for (size_t draw = 0; draw < DRAWS; draw++) {
        struct terse_step_item items[2 * SAMPLERS];
        int32_t token[2][SAMPLERS];
        for (int asks = 0; asks < 2; asks++)
            for (size_t i = 0; i < SAMPLERS; i++) {
                struct terse_session *s = sessions[asks][i];
                if (asks) assert_non_null(terse_session_logits(s));
                held += !asks && s->logits_held;
                if (terse_session_sample(s, &token[asks][i], &error)) fail_msg("%s", error.message);
                items[asks * SAMPLERS + i] = (struct terse_step_item){s, &token[asks][i], 1, NULL, TERSE_OK};
            }
        assert_memory_equal(token[0], token[1], sizeof token[0]);
        size_t together = draw % 2 ? 2 * SAMPLERS : SAMPLERS;
        for (size_t first = 0; first < 2 * SAMPLERS; first += together)
            if (terse_engine_step(engine, items + first, together, &error)) fail_msg("%s", error.message);
    }
    assert_true(held >= 2 * (DRAWS - 1));
    for (size_t i = 0; i < SAMPLERS; i++) { /* what is held is fetched when it is wanted, also by a fork */
        struct terse_session *fork;
        const float *wanted = terse_session_logits(sessions[1][i]);
        if (terse_session_fork(sessions[0][i], &fork, &error)) fail_msg("%s", error.message);
        assert_memory_equal(terse_session_logits(sessions[0][i]), wanted, info.vocabulary * sizeof *wanted);
        assert_memory_equal(terse_session_logits(fork), wanted, info.vocabulary * sizeof *wanted);
        terse_session_free(fork);
        for (int asks = 0; asks < 2; asks++) terse_session_free(sessions[asks][i]);
    }
    terse_engine_free(engine);
    terse_model_free(model);
    memory_free(file);
}

/* ---- Saving on another thread */

#define SAVES_LEAST 5

struct saver {
    const struct terse_session *session;
    const char *path[2]; /* of what is expected, and of what is saved again and again */
    atomic_bool done;
    atomic_int saves, failures;
};

static bool same_files(const char *const path[2]) {
    FILE *files[2] = {fopen(path[0], "rb"), fopen(path[1], "rb")};
    int a = 0, b = 0;
    while (files[0] && files[1] && a == b && a != EOF) {
        a = fgetc(files[0]);
        b = fgetc(files[1]);
    }
    for (int i = 0; i < 2; i++)
        if (files[i]) fclose(files[i]);
    return a == EOF && b == EOF;
}

static void *save_again_and_again(void *user) {
    struct saver *saver = user;
    while (!saver->done) {
        if (terse_session_save(saver->session, saver->path[1], NULL) || !same_files(saver->path)) saver->failures++;
        saver->saves++;
    }
    return NULL;
}

/* Steps that come for the first time, are captured and are replayed. */
static void a_session_is_saved_beside_steps_of_another(void **state) {
    (void)state;
    char paths[2][TEMPORARY_PATH];
    struct saver saver = {.path = {paths[0], paths[1]}};
    void *file;
    struct terse_model *model = random_model_new(&random_models[0], &file);
    struct terse_engine *engine = must_start(&backend, model, 2);
    struct terse_session *saved = must_open_method(engine, "q4_0"), *other = must_open_method(engine, "q4_0");
    struct terse_model_info info;
    struct terse_error error;
    pthread_t thread;
    for (int i = 0; i < 2; i++) {
        temporary_template("saves", paths[i]);
        int descriptor = mkstemp(paths[i]);
        assert_true(descriptor >= 0);
        close(descriptor);
    }
    terse_model_describe(model, &info);
    for (int i = 0; i < TOKENS_MOST; i++) tokens[i] = (i * 37) % (int)info.vocabulary;
    if (terse_session_prefill(saved, tokens, 150, NULL, &error) || terse_session_prefill(other, tokens, 20, NULL, &error) ||
        terse_session_decode(saved, tokens, 1, NULL, &error) || terse_session_save(saved, paths[0], &error))
        fail_msg("%s", error.message);
    saver.session = saved;
    assert_int_equal(pthread_create(&thread, NULL, save_again_and_again, &saver), 0);
    enum terse_status status = TERSE_OK;
    for (size_t step = 0; !status && (step < 9 || saver.saves < SAVES_LEAST); step++) {
        if (step % 50 == 49) terse_session_reset(other); /* the saver may be slow, and the context ends */
        status = terse_session_decode(other, tokens + step % 50, 1 + step / 3 % 3, NULL, &error);
    }
    saver.done = true;
    pthread_join(thread, NULL); /* before a failure gives back what it reads */
    if (status) fail_msg("%s", error.message);
    assert_int_equal(saver.failures, 0);
    for (int i = 0; i < 2; i++) unlink(paths[i]);
    terse_session_free(saved);
    terse_session_free(other);
    terse_engine_free(engine);
    terse_model_free(model);
    memory_free(file);
}

/* ---- What goes wrong */

static void a_model_that_does_not_fit_is_refused(void **state) {
    (void)state;
    struct terse_model *model = load_model();
    struct terse_engine *engine;
    struct terse_error error;
    size_t left = 0, total = 0;
    assert_int_equal(cudaMemGetInfo(&left, &total), cudaSuccess);
    void *most = device_alloc(NULL, left - ((size_t)256 << 20), "most of it", &error);
    assert_non_null(most);
    assert_int_equal(engine_new(&backend, model, NULL, &engine, &error), TERSE_E_MEMORY);
    assert_null(engine);
    assert_non_null(strstr(error.message, "--device cpu"));
    device_free(NULL, most, left - ((size_t)256 << 20));
    engine = must_start(&backend, model, 2);
    terse_engine_free(engine);
    terse_model_free(model);
}

#define TESTS_MOST 18

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    setenv("TERSE_CPU", "scalar", 1); /* the others take vectors of some products to 8 bits only */
    struct CMUnitTest tests[TESTS_MOST] = {cmocka_unit_test(layers_of_other_kinds_are_refused),
                                           cmocka_unit_test(a_step_gives_each_what_it_gets_alone),
                                           cmocka_unit_test(a_session_is_saved_beside_steps_of_another),
                                           cmocka_unit_test(logits_of_what_is_kept_are_near_the_cpus),
                                           cmocka_unit_test(logits_beside_anchors_are_near_the_cpus),
                                           cmocka_unit_test(logits_where_rows_are_replaced_are_near_the_cpus),
                                           cmocka_unit_test(samples_are_those_of_all_logits),
                                           cmocka_unit_test(greedy_tokens_are_the_cpus),
                                           cmocka_unit_test(a_model_that_does_not_fit_is_refused),
                                           cmocka_unit_test(logits_of_the_default_model_are_near_the_cpus)};
#ifdef TERSE_EMULATED_CUDA
    size_t n = 7; /* the others take an hour there */
#else
    size_t n = 10;
#endif
    for (size_t i = 0; i < n_random_models && n < TESTS_MOST; i++)
        tests[n++] = (struct CMUnitTest){random_models[i].architecture, logits_are_near_the_cpus, NULL, NULL,
                                         (void *)(uintptr_t)&random_models[i]};
    return _cmocka_run_group_tests("models on the GPU", tests, n, NULL, NULL);
}
