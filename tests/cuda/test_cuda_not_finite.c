/* Models with a weight that is NaN or infinite, on the GPU: prompts, steps that are launched kernel by kernel and as a graph, and steps of several
 * sessions say where numbers were first seen not to be finite, and what comes after them is not taken for it. */
#include "backend/cuda/device.h"
#include "backend/cuda/executor.h"
#include "backend/cuda/kv/ops.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "no_device.h"
#include "support/random_model.h"
#include "support/session_steps.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { PROMPT = 70, FEW = 5 };

static const struct backend backend = {.name = "cuda", .executor = &cuda_executor_ops, .kv = &cuda_kv_ops};
static int32_t tokens[PROMPT]; /* token 0 first: a damaged first weight of the embeddings is its */

static void check_message(const char *what, enum terse_status status, const struct terse_error *error, const char *where) {
    char wanted[128];
    if (status != TERSE_E_FORMAT) fail_msg("%s: status %d where numbers are not finite %s", what, (int)status, where);
    snprintf(wanted, sizeof wanted, "first seen %s", where);
    if (!strstr(error->message, wanted)) fail_msg("%s: '%s' where it should be '%s'", what, error->message, wanted);
}

static void check_session(const char *what, struct terse_engine *engine, const char *method, const char *where) {
    struct terse_session *session = must_open_method(engine, method);
    struct terse_error error;
    int32_t token;
    check_message(what, terse_session_prefill(session, tokens, PROMPT, NULL, &error), &error, where);
    assert_int_equal(terse_session_length(session), 0);
    for (int i = 0; i < 3; i++) { /* such a step comes for the first time, is captured, is replayed */
        check_message(what, terse_session_decode(session, tokens, 1, NULL, &error), &error, where);
        check_message(what, terse_session_sample(session, &token, &error), &error, where);
        terse_session_reset(session);
    }
    check_message(what, terse_session_decode(session, tokens, FEW, NULL, &error), &error, where);
    terse_session_free(session);
}

static void damage_is_noticed(void **state) {
    const struct random_model_spec *spec = *state;
    static const struct {
        const char *tensor, *where;
        float number;
    } rows[] = {
        {"token_embd.weight", "in the embeddings", INFINITY},  {"blk.0.attn_norm.weight", "behind layer 0 ", NAN},
        {"blk.0.attn_k.weight", "behind layer 0 ", NAN},       {"blk.1.attn_q.weight", "behind layer 1 ", NAN},
        {"blk.1.attn_v.weight", "behind layer 1 ", -INFINITY}, {"blk.1.attn_output.weight", "behind layer 1 ", NAN},
        {"blk.1.ffn_gate.weight", "behind layer 1 ", NAN},     {"blk.1.ffn_down.weight", "behind layer 1 ", NAN},
        {"output_norm.weight", "in its output", NAN},          {"output.weight", "in its output", INFINITY},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char what[128];
        void *file;
        struct terse_model *model = random_model_damaged(spec, rows[i].tensor, rows[i].number, &file);
        if (!model) continue;
        snprintf(what, sizeof what, "%s, %s", spec->architecture, rows[i].tensor);
        struct terse_engine *engine = must_start(&backend, model, 2);
        check_session(what, engine, strstr(rows[i].tensor, "attn_k") ? "q4_0" : "f16", rows[i].where);
        terse_engine_free(engine);
        terse_model_free(model);
        memory_free(file);
    }
}

/* The damage is of one token: after a step with it, others of the same engine go on. */
static void it_is_forgotten_once_said(void **state) {
    const struct random_model_spec *spec = *state;
    void *file;
    struct terse_model *model = random_model_damaged(spec, "token_embd.weight", NAN, &file);
    struct terse_engine *engine = must_start(&backend, model, 2);
    struct terse_session *sound = must_open_method(engine, "f16"), *damaged = must_open_method(engine, "f16");
    struct terse_error error;
    assert_true(spec->untied);
    if (terse_session_prefill(sound, tokens + 1, PROMPT - 1, NULL, &error)) fail_msg("%s", error.message);
    for (int i = 0; i < 3; i++) {
        check_message("a token", terse_session_decode(damaged, tokens, 1, NULL, &error), &error, "in the embeddings");
        terse_session_reset(damaged);
        if (terse_session_decode(sound, tokens + 1 + i, 1, NULL, &error)) fail_msg("%s", error.message);
    }
    struct terse_step_item items[2] = {{.session = sound, .tokens = tokens + 1, .n = 1},
                                       {.session = damaged, .tokens = tokens, .n = 1}};
    check_message("two sessions", terse_engine_step(engine, items, 2, &error), &error, "in the embeddings");
    check_message("two sessions", terse_session_decode(sound, tokens + 1, 1, NULL, &error), &error, "in the embeddings");
    terse_session_free(sound);
    terse_session_free(damaged);
    terse_engine_free(engine);
    terse_model_free(model);
    memory_free(file);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    for (int i = 1; i < PROMPT; i++) tokens[i] = 1 + i * 37 % 299;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(damage_is_noticed, (void *)&random_models[0]),
        cmocka_unit_test_prestate(damage_is_noticed, (void *)&random_models[1]),
        cmocka_unit_test_prestate(damage_is_noticed, (void *)&random_models[4]),
        cmocka_unit_test_prestate(it_is_forgotten_once_said, (void *)&random_models[1]),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
