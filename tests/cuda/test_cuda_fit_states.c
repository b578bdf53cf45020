/* Sessions of the GPU that fit to their own sequence: what was fitted, or waits to be, goes with forks, with states that either backend saves, with
 * cuts and with shared prefixes. test_cuda_session_fit compares what is found with the CPU's. */
#include "backend/cuda/device.h"
#include "backend/cuda/executor.h"
#include "backend/cuda/kv/ops.h"
#include "base/memory.h"
#include "kv/state_file.h"
#include "no_device.h"
#include "support/fixture_model.h"
#include "support/random_model.h"
#include "support/session_steps.h"
#include "support/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define BOUND 1e-2 /* of two backends' logits, as a part of the row's largest */
#define SAME 1e-4  /* of the GPU's, where a file has had the keys of the first tokens as they were before rotation */

enum {
    LEAST = FIT_TOKENS + SINKS,
    WAITING = LEAST - 5,
    FITTED = LEAST + 20,
    PIECE = 70,
    STEPS = 2,
    TOKENS = FITTED + PIECE + STEPS
};

static const struct backend backend = {.name = "cuda", .executor = &cuda_executor_ops, .kv = &cuda_kv_ops};
/* No kernel of the CPU takes vectors of products with these weights to 8 bits. */
static const struct random_model_spec spec = {"llama",    {TENSOR_F16, TENSOR_F16, TENSOR_F16}, 1, .heads = 2, .head_dim = 64,
                                              .layers = 1};
static struct terse_model *model;
static void *model_file;
static struct terse_model_info info;
static struct terse_engine *cpu, *gpu;
static struct terse_session_options options;
static int32_t *tokens;
/* Of each backend, after WAITING and FITTED tokens. The GPU has the first of them from the CPU, in a file; the other is a fork of one that is gone. */
static struct terse_session *cpu_waits, *cpu_fitted, *waits, *fitted;
static float *went_on; /* the GPU's logits after all tokens */
static char path[TEMPORARY_PATH];

/* Reads the tokens behind `fitted`'s: a prompt that seals a page, and single tokens. */
static void go_on(struct terse_session *session) {
    must_prefill(session, tokens + FITTED, PIECE);
    must_decode(session, tokens + FITTED + PIECE, STEPS);
}

static void fit(struct terse_session *session) {
    assert_int_equal(report_of(session).codes, 0);
    must_prefill(session, tokens + WAITING, FITTED - WAITING);
    assert_true(report_of(session).codes > 0);
}

static struct terse_session *by_file(const struct terse_session *session, struct terse_engine *on) {
    must_save(session, path);
    return must_load(on, &options, path);
}

static int read_tokens(void **state) {
    (void)state;
    temporary_template("fit", path);
    const int descriptor = mkstemp(path);
    if (descriptor < 0) return -1;
    close(descriptor);
    model = random_model_new(&spec, &model_file);
    terse_model_describe(model, &info);
    cpu = must_start(&backend_cpu, model, 2);
    gpu = must_start(&backend, model, 2);
    options = short_session_options("terse-8", 16);
    options.context = 2 * TOKENS;
    tokens = fixture_tokens(model, TOKENS);
    cpu_waits = must_open(cpu, &options);
    must_prefill(cpu_waits, tokens, WAITING);
    waits = by_file(cpu_waits, gpu);
    cpu_fitted = must_fork(cpu_waits);
    fit(cpu_fitted);
    struct terse_session *session = must_open(gpu, &options);
    must_prefill(session, tokens, FITTED);
    fitted = must_fork(session);
    go_on(session);
    if (!(went_on = malloc(info.vocabulary * sizeof *went_on))) return -1;
    memcpy(went_on, terse_session_logits(session), info.vocabulary * sizeof *went_on);
    terse_session_free(session);
    return 0;
}

static int release(void **state) {
    (void)state;
    struct terse_session *const sessions[] = {cpu_waits, cpu_fitted, waits, fitted};
    for (size_t i = 0; i < sizeof sessions / sizeof sessions[0]; i++) terse_session_free(sessions[i]);
    terse_engine_free(cpu);
    terse_engine_free(gpu);
    terse_model_free(model);
    memory_free(model_file);
    free(tokens);
    free(went_on);
    return unlink(path);
}

static void check_near(const char *what, const struct terse_session *session, const float *want, double bound) {
    const double apart = logits_apart(terse_session_logits(session), want, info.vocabulary);
    print_message("%s: %.1e\n", what, apart);
    assert_true(apart <= bound);
}

/* Fails the test unless both sessions, saved, have the same bytes in a section, or do not, as `same` says. */
static void compare_section(const struct terse_session *one, const struct terse_session *other, enum state_section section,
                            bool same) {
    const struct terse_session *const both[] = {one, other};
    struct state_file *file[2];
    const void *data[2];
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        struct terse_error error;
        must_save(both[i], path);
        if (state_file_open(path, &file[i], &error)) fail_msg("%s", error.message);
        data[i] = state_file_section(file[i], section, &bytes[i]);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_true(bytes[0] > 0);
    assert_int_equal(memcmp(data[0], data[1], bytes[0]) == 0, same);
    for (int i = 0; i < 2; i++) state_file_close(file[i]);
}

/* ---- Forks */

/* A fork of a fork reads what the CPU's session did, another reads other tokens: neither fits to the other's. */
static void forks_that_wait_fit_by_themselves(void **state) {
    (void)state;
    struct terse_session *fork = must_fork(waits), *alike = must_fork(fork), *other = must_fork(waits),
                         *twin = must_fork(cpu_waits);
    fit(fork);
    check_near("a fork that waited", fork, terse_session_logits(cpu_fitted), BOUND);
    must_prefill(other, tokens, FITTED - WAITING);
    must_prefill(twin, tokens, FITTED - WAITING);
    go_on(other);
    go_on(twin);
    check_near("one that fitted to other tokens", other, terse_session_logits(twin), BOUND);
    compare_section(fork, other, STATE_FITTED, false);
    fit(alike);
    check_same_logits(alike, fork);
    compare_section(alike, fork, STATE_FITTED, true);
    terse_session_free(fork);
    terse_session_free(alike);
    terse_session_free(other);
    terse_session_free(twin);
}

/* ---- Saved states */

static void states_of_the_gpu_go_on_on_both(void **state) {
    (void)state;
    struct terse_session *on_gpu = by_file(fitted, gpu), *on_cpu = by_file(fitted, cpu);
    compare_section(on_gpu, fitted, STATE_FITTED, true);
    compare_section(on_cpu, fitted, STATE_FITTED, true);
    compare_section(on_gpu, fitted, STATE_PAGES, true);
    compare_section(on_cpu, fitted, STATE_PAGES, true);
    go_on(on_gpu);
    go_on(on_cpu);
    check_near("a state of the GPU on the GPU", on_gpu, went_on, SAME);
    check_near("a state of the GPU on the CPU", on_cpu, went_on, BOUND);
    terse_session_free(on_gpu);
    terse_session_free(on_cpu);
}

static void states_of_the_cpu_go_on_on_the_gpu(void **state) {
    (void)state;
    struct terse_session *on_gpu = by_file(cpu_fitted, gpu), *on_cpu = must_fork(cpu_fitted);
    compare_section(on_gpu, cpu_fitted, STATE_FITTED, true);
    compare_section(on_gpu, cpu_fitted, STATE_PAGES, true);
    go_on(on_gpu);
    go_on(on_cpu);
    check_near("a state of the CPU on the GPU", on_gpu, terse_session_logits(on_cpu), BOUND);
    terse_session_free(on_gpu);
    terse_session_free(on_cpu);
}

/* The CPU's, which the GPU has loaded and saved again. */
static void states_that_wait_fit_where_they_are_loaded(void **state) {
    (void)state;
    struct terse_session *on_gpu = by_file(waits, gpu), *on_cpu = by_file(waits, cpu);
    compare_section(on_cpu, cpu_waits, STATE_WINDOW, true);
    compare_section(on_gpu, cpu_waits, STATE_WINDOW, true);
    fit(on_gpu);
    fit(on_cpu);
    compare_section(on_cpu, cpu_fitted, STATE_FITTED, true);
    check_near("a state that waits, on the GPU", on_gpu, terse_session_logits(cpu_fitted), BOUND);
    check_near("a state that waits, on the CPU", on_cpu, terse_session_logits(cpu_fitted), SAME);
    terse_session_free(on_gpu);
    terse_session_free(on_cpu);
}

/* ---- Cuts */

/* Cut in a sealed page it goes on by what was fitted; without a page left it waits, and fits to what it reads then. */
static void a_cut_keeps_the_fit_as_long_as_a_page(void **state) {
    (void)state;
    struct terse_session *cut = must_fork(fitted), *twin = by_file(fitted, cpu);
    must_truncate(cut, 500);
    must_truncate(twin, 500);
    compare_section(cut, fitted, STATE_FITTED, true);
    go_on(cut);
    go_on(twin);
    check_near("what is left of a cut session", cut, terse_session_logits(twin), BOUND);
    must_truncate(cut, SINKS);
    must_truncate(twin, SINKS);
    assert_int_equal(report_of(cut).codes, 0);
    must_prefill(cut, tokens + PIECE, FITTED);
    must_prefill(twin, tokens + PIECE, FITTED);
    assert_true(report_of(cut).codes > 0);
    compare_section(cut, fitted, STATE_FITTED, false);
    check_near("what it reads then", cut, terse_session_logits(twin), BOUND);
    terse_session_free(twin);
    twin = by_file(cut, cpu); /* whose pages go by the fit that is saved with them */
    go_on(cut);
    go_on(twin);
    check_near("its pages", cut, terse_session_logits(twin), BOUND);
    terse_session_free(cut);
    terse_session_free(twin);
}

/* ---- Prefixes */

/* A prompt that leaves a kept one behind the tokens that both fit to goes on by what that fitted: as a fork of it that is cut there, and, but for
 * codes of tokens that a prompt of its own reads exactly, as the CPU does. One that leaves it earlier begins anew. */
static void a_prompt_that_begins_alike_goes_by_the_fit(void **state) {
    enum { ALIKE = LEAST + 10 };
    (void)state;
    int32_t *other = fixture_tokens(model, TOKENS);
    struct terse_session *cut = must_fork(fitted), *next, *on_cpu = must_open(cpu, &options);
    size_t held;
    for (size_t i = ALIKE; i < TOKENS; i++) other[i] = (tokens[i] + 1) % (int32_t)info.vocabulary;
    must_keep_prefix(gpu, fitted);
    next = must_open_with_prefix(gpu, &options, other, TOKENS, &held);
    assert_in_range(held, LEAST, ALIKE);
    compare_section(next, fitted, STATE_FITTED, true);
    must_truncate(cut, held);
    must_prefill(next, other + held, TOKENS - held);
    must_prefill(cut, other + held, TOKENS - held);
    must_prefill(on_cpu, other, TOKENS);
    check_same_logits(next, cut);
    check_near("behind a shared prefix", next, terse_session_logits(on_cpu), 2 * BOUND);
    terse_session_free(next);
    other[LEAST - 1] = (tokens[LEAST - 1] + 1) % (int32_t)info.vocabulary;
    next = must_open_with_prefix(gpu, &options, other, TOKENS, &held);
    assert_int_equal(held, 0);
    terse_session_free(next);
    terse_session_free(cut);
    terse_session_free(on_cpu);
    terse_engine_drop_prefixes(gpu);
    free(other);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks_that_wait_fit_by_themselves),          cmocka_unit_test(states_of_the_gpu_go_on_on_both),
        cmocka_unit_test(states_that_wait_fit_where_they_are_loaded), cmocka_unit_test(states_of_the_cpu_go_on_on_the_gpu),
        cmocka_unit_test(a_cut_keeps_the_fit_as_long_as_a_page),      cmocka_unit_test(a_prompt_that_begins_alike_goes_by_the_fit),
    };
    return cmocka_run_group_tests(tests, read_tokens, release);
}
