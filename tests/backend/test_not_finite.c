/* Models with a weight that is NaN or infinite: whatever tensor it is of, every way to read tokens and to calibrate says where numbers were first
 * seen not to be finite, and nothing is sampled from them. */
#include "base/memory.h"
#include "model/model.h"
#include "support/random_model.h"
#include "support/session_steps.h"
#include "terse_calibrate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PROMPT = 70, FEW = 5 };

static int32_t tokens[PROMPT]; /* token 0 first: a damaged first weight of the embeddings is its */

static struct terse_session *new_session(struct terse_engine *engine, const char *method, enum terse_prefill prefill) {
    struct terse_session_options options = terse_session_options_defaults();
    options.cache.method = method;
    options.prefill = prefill;
    return must_open(engine, &options);
}

static void check_message(const char *what, enum terse_status status, const struct terse_error *error, const char *where) {
    char wanted[128];
    if (status != TERSE_E_FORMAT) fail_msg("%s: status %d where numbers are not finite %s", what, (int)status, where);
    assert_int_equal(error->code, TERSE_E_FORMAT);
    assert_non_null(strstr(error->message, "not finite"));
    assert_non_null(strstr(error->message, "fetch it again"));
    snprintf(wanted, sizeof wanted, "first seen %s", where);
    if (!strstr(error->message, wanted)) fail_msg("%s: '%s' where it should be '%s'", what, error->message, wanted);
}

/* ---- Each way to read tokens */

static void check_refused(const char *what, struct terse_session *session, const char *where) {
    struct terse_session *copy;
    struct terse_error error;
    int32_t token;
    check_message(what, terse_session_sample(session, &token, &error), &error, where);
    assert_int_equal(token, -1);
    check_message(what, terse_session_decode(session, tokens, 1, NULL, &error), &error, where);
    check_message(what, terse_session_prefill(session, tokens, FEW, NULL, &error), &error, where);
    check_message(what, terse_session_fork(session, &copy, &error), &error, where);
    assert_null(terse_session_logits(session));
}

/* A decoding step leaves a session that says so again until it is reset; a prompt leaves it as it was. */
static void check_session(const char *what, struct terse_engine *engine, const char *method, const char *where) {
    static const enum terse_prefill ways[] = {TERSE_PREFILL_EXACT, TERSE_PREFILL_COMPRESSED, TERSE_PREFILL_PAPER};
    struct terse_error error;
    int32_t token;
    for (int i = 0; i < 3; i++) {
        struct terse_session *session = new_session(engine, method, ways[i]);
        check_message(what, terse_session_prefill(session, tokens, PROMPT, NULL, &error), &error, where);
        check_message(what, terse_session_prefill(session, tokens, FEW, NULL, &error), &error, where);
        assert_int_equal(terse_session_sample(session, &token, &error), TERSE_E_ARGUMENT); /* nothing was read */
        assert_int_equal(terse_session_length(session), 0);
        check_message(what,
                      terse_session_decode(session, tokens, 1, NULL, NULL) ? terse_session_sample(session, &token, &error) : 0,
                      &error, where);
        check_refused(what, session, where);
        terse_session_reset(session);
        assert_int_equal(terse_session_sample(session, &token, &error), TERSE_E_ARGUMENT);
        check_message(what, terse_session_decode(session, tokens, FEW, NULL, &error), &error, where);
        check_refused(what, session, where);
        terse_session_free(session);
    }
}

static void check_calibration(const char *what, const struct terse_model *model, const char *where) {
    static const char *const methods[] = {"cq-1", "antkv-1", "terse-2"}; /* without gradients, with them, and a profile */
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        struct terse_calibration options = terse_calibration_defaults();
        struct terse_codebook *codebook;
        struct terse_error error;
        options.method = methods[i];
        options.window = PROMPT;
        options.windows = 1;
        options.threads = 2;
        check_message(what, terse_calibrate(model, &options, tokens, PROMPT, &codebook, &error), &error, where);
        assert_null(codebook);
    }
}

static const char *where_of(const char *name) {
    if (!strncmp(name, "blk.0", 5)) return "behind layer 0 ";
    if (!strncmp(name, "blk.1", 5)) return "behind layer 1 ";
    return strstr(name, "embd") ? "in the embeddings" : "in its output";
}

static void check_tensor(const struct random_model_spec *spec, const char *name, float number, bool all) {
    char what[160];
    void *file;
    struct terse_model *model = random_model_damaged(spec, name, number, &file);
    if (!model) return;
    snprintf(what, sizeof what, "%s, %s of %s", spec->architecture, name, isnan(number) ? "NaN" : "infinity");
    struct terse_engine *engine = must_start(&backend_cpu, model, 2);
    check_session(what, engine, "f16", where_of(name));
    if (all) check_session(what, engine, "q4_0", where_of(name));
    if (all) check_session(what, engine, "terse-2", where_of(name));
    terse_engine_free(engine);
    if (all) check_calibration(what, model, where_of(name));
    terse_model_free(model);
    memory_free(file);
}

static void check_sound(const struct terse_model *model) {
    struct terse_engine *engine = must_start(&backend_cpu, model, 2);
    struct terse_session *session = new_session(engine, "f16", TERSE_PREFILL_EXACT);
    struct terse_error error;
    if (terse_session_prefill(session, tokens, PROMPT, NULL, &error)) fail_msg("the sound model's prompt: %s", error.message);
    if (terse_session_decode(session, tokens, FEW, NULL, &error)) fail_msg("the sound model's step: %s", error.message);
    terse_session_reset(session);
    if (terse_session_prefill(session, tokens, FEW, NULL, &error)) fail_msg("the sound model's short prompt: %s", error.message);
    terse_session_reset(session);
    for (int i = 0; i < FEW; i++)
        if (terse_session_decode(session, tokens + i, 1, NULL, &error))
            fail_msg("the sound model's token %d: %s", i, error.message);
    terse_session_free(session);
    terse_engine_free(engine);
}

static void every_tensor_is_noticed(void **state) {
    const struct random_model_spec *spec = *state;
    void *file;
    struct terse_model *sound = random_model_new(spec, &file);
    check_sound(sound);
    uint64_t n = gguf_tensor_count(sound->gguf);
    for (uint64_t i = 0; i < n; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(sound->gguf, i);
        char name[65];
        snprintf(name, sizeof name, "%.*s", (int)t->name.size, t->name.data);
        check_tensor(spec, name, NAN, false);
    }
    terse_model_free(sound);
    memory_free(file);
}

static void every_way_notices(void **state) {
    const struct random_model_spec *spec = *state;
    check_tensor(spec, "blk.1.ffn_down.weight", NAN, true);
    check_tensor(spec, "blk.1.attn_v.weight", -INFINITY, true);
    check_tensor(spec, "output.weight", INFINITY, true);
    check_tensor(spec, "token_embd.weight", INFINITY, true);
}

/* Sessions of a step together: who brought the number is not known, so that all say it. */
static void steps_of_several_sessions_notice(void **state) {
    const struct random_model_spec *spec = *state;
    void *file;
    struct terse_model *model = random_model_damaged(spec, "token_embd.weight", NAN, &file);
    struct terse_engine *engine = must_start(&backend_cpu, model, 2);
    struct terse_error error;
    struct terse_step_item items[3];
    int32_t sound = 7;
    for (int i = 0; i < 3; i++) {
        struct terse_session *session = new_session(engine, "f16", TERSE_PREFILL_EXACT);
        items[i] = (struct terse_step_item){.session = session, .tokens = &sound, .n = 1};
    }
    if (spec->untied) assert_int_equal(terse_engine_step(engine, items, 3, &error), TERSE_OK); /* tied, logits show it */
    items[1].tokens = &tokens[0];
    check_message("several sessions", terse_engine_step(engine, items, 3, &error), &error,
                  spec->untied ? "in the embeddings" : "in ");
    for (int i = 0; i < 3; i++) {
        check_refused("several sessions", items[i].session, spec->untied ? "in the embeddings" : "in ");
        terse_session_free(items[i].session);
    }
    terse_engine_free(engine);
    terse_model_free(model);
    memory_free(file);
}

int main(void) {
    struct CMUnitTest tests[16];
    size_t n = 0;
    for (int i = 1; i < PROMPT; i++) tokens[i] = 1 + i * 37 % 299;
    for (size_t i = 0; i < n_random_models; i++)
        tests[n++] =
            (struct CMUnitTest){random_models[i].architecture, every_tensor_is_noticed, NULL, NULL, (void *)&random_models[i]};
    for (size_t i = 0; i < n_random_models; i++)
        tests[n++] = (struct CMUnitTest){"every way", every_way_notices, NULL, NULL, (void *)&random_models[i]};
    for (size_t i = 0; i < 2; i++)
        tests[n++] =
            (struct CMUnitTest){"several sessions", steps_of_several_sessions_notice, NULL, NULL, (void *)&random_models[i]};
    return _cmocka_run_group_tests("not finite", tests, n, NULL, NULL);
}
