/* Takes sessions along the same tokens in two ways, and compares their logits. */
#include "support/session_ways.h"

#include "support/session_steps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static struct terse_session *new_session(struct terse_engine *engine, const char *method) {
    const struct terse_session_options options = short_session_options(method, 32);
    return must_open(engine, &options);
}

void check_batch(struct terse_engine *engine, const char *const methods[3], const int32_t *tokens) {
    enum { SESSIONS = 3, DECODED = 70 };
    struct terse_session *together[SESSIONS], *alone[SESSIONS];
    struct terse_error error;
    for (size_t i = 0; i < SESSIONS; i++) {
        together[i] = new_session(engine, methods[i]);
        alone[i] = new_session(engine, methods[i]);
        must_prefill(together[i], tokens + 10 * i, 50 + 61 * i);
        must_prefill(alone[i], tokens + 10 * i, 50 + 61 * i);
    }
    for (size_t t = 0; t < DECODED; t++) {
        struct terse_step_item items[SESSIONS];
        for (size_t i = 0; i < SESSIONS; i++) {
            items[i] = (struct terse_step_item){.session = together[i], .tokens = tokens + 300 + t + i, .n = 1};
            must_decode(alone[i], tokens + 300 + t + i, 1);
        }
        if (terse_engine_step(engine, items, SESSIONS, &error)) fail_msg("%s", error.message);
    }
    for (size_t i = 0; i < SESSIONS; i++) {
        check_same_logits(together[i], alone[i]);
        terse_session_free(together[i]);
        terse_session_free(alone[i]);
    }
}

void check_fork(struct terse_engine *engine, const char *method, const int32_t *tokens) {
    enum { PROMPT = 300, AFTER = 80 };
    const int32_t *texts[] = {tokens + PROMPT, tokens + 70}; /* what the origin and the fork go on with */
    struct terse_session *sessions[2] = {new_session(engine, method)};
    must_prefill(sessions[0], tokens, PROMPT);
    sessions[1] = must_fork(sessions[0]);
    check_same_logits(sessions[1], sessions[0]);
    must_decode(sessions[1], texts[1], AFTER);
    must_decode(sessions[0], texts[0], AFTER);
    for (size_t i = 0; i < 2; i++) {
        struct terse_session *alone = new_session(engine, method);
        must_prefill(alone, tokens, PROMPT);
        must_decode(alone, texts[i], AFTER);
        check_same_logits(sessions[i], alone);
        terse_session_free(alone);
    }
    terse_session_free(sessions[0]);
    terse_session_free(sessions[1]);
}

static bool stop_late(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user;
    (void)what;
    return 3 * done < 2 * total;
}

void check_stopped_prompt(struct terse_engine *engine, const int32_t *tokens, size_t first, size_t n) {
    struct terse_session_options options = short_session_options("q8_0", 32);
    options.progress.report = stop_late;
    struct terse_session *session = must_open(engine, &options), *other = new_session(engine, "q8_0");
    struct terse_error error;
    if (first) {
        must_decode(session, tokens, first);
        must_decode(other, tokens, first);
    }
    assert_int_equal(terse_session_prefill(session, tokens + first, n, NULL, &error), TERSE_E_INTERRUPTED);
    assert_int_equal(terse_session_length(session), first);
    must_decode(session, tokens + first, 3);
    must_decode(other, tokens + first, 3);
    check_same_logits(session, other);
    terse_session_free(session);
    terse_session_free(other);
}

struct alike_sessions must_begin_alike(struct terse_engine *engine, const char *method, const int32_t *tokens, size_t kept,
                                       size_t alike, size_t n, uint32_t vocabulary) {
    const struct terse_session_options options = short_session_options(method, 32);
    struct terse_session *first = must_open(engine, &options);
    struct alike_sessions sessions = {.fresh = must_open(engine, &options)};
    int32_t *text = malloc(n * sizeof *text);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++) text[i] = i < alike ? tokens[i] : (tokens[i] + 5) % (int32_t)vocabulary;
    must_prefill(first, tokens, kept);
    must_keep_prefix(engine, first);
    sessions.session = must_open_with_prefix(engine, &options, text, n, &sessions.held);
    must_prefill(sessions.session, text + sessions.held, n - sessions.held);
    must_prefill(sessions.fresh, text, n);
    terse_session_free(first);
    terse_engine_drop_prefixes(engine);
    free(text);
    return sessions;
}

void alike_free(struct alike_sessions *sessions) {
    terse_session_free(sessions->session);
    terse_session_free(sessions->fresh);
}
