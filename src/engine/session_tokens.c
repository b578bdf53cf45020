/* Allocates the memory of a session's tokens and logits. */
#include "base/memory.h"
#include "engine/session.h"

#include <string.h>

/* ---- Tokens */

enum terse_status session_reserve_tokens(struct terse_session *s, size_t n, struct terse_error *error) {
    if (n <= s->token_capacity - s->n_tokens) return TERSE_OK;
    size_t capacity = memory_round_up(s->n_tokens + n + s->n_tokens / 2, 1024);
    int32_t *tokens = memory_array(capacity, sizeof *tokens);
    if (!tokens) return status_no_memory(error, capacity * sizeof *tokens, "the session's tokens");
    if (s->n_tokens) memcpy(tokens, s->tokens, s->n_tokens * sizeof *tokens);
    memory_free(s->tokens);
    s->tokens = tokens;
    s->token_capacity = capacity;
    return TERSE_OK;
}

void session_add_tokens(struct terse_session *s, const int32_t *tokens, size_t n) {
    for (size_t i = 0; i < n; i++) {
        s->tokens[s->n_tokens++] = tokens ? tokens[i] : SESSION_NO_TOKEN;
        if (tokens) sampler_add(&s->sampler, tokens[i]);
    }
}

void session_remember_tokens(struct terse_session *s) {
    sampler_forget(&s->sampler);
    for (size_t i = s->n_tokens > SAMPLE_HISTORY ? s->n_tokens - SAMPLE_HISTORY : 0; i < s->n_tokens; i++)
        if (s->tokens[i] != SESSION_NO_TOKEN) sampler_add(&s->sampler, s->tokens[i]);
}

/* ---- Logits */

enum terse_status session_make_logits(struct terse_session *s, struct terse_error *error) {
    uint32_t vocabulary = model_of(s)->vocabulary;
    s->logits = memory_array(vocabulary, sizeof *s->logits);
    s->next_logits = memory_array(vocabulary, sizeof *s->logits);
    if (!s->logits || !s->next_logits) return status_no_memory(error, 2 * vocabulary * sizeof *s->logits, "logits");
    const struct executor_ops *ops = s->engine->backend.executor;
    enum terse_status status = ops->hold ? ops->hold(s->engine->executor, &s->held, error) : TERSE_OK;
    return status || !ops->hold ? status : ops->hold(s->engine->executor, &s->next_held, error);
}

void session_free_logits(struct terse_session *s) {
    const struct executor_ops *ops = s->engine->backend.executor;
    memory_free(s->logits);
    memory_free(s->next_logits);
    if (!ops->release) return;
    ops->release(s->engine->executor, &s->held);
    ops->release(s->engine->executor, &s->next_held);
}

enum terse_status session_fetch_logits(const struct terse_session *session, struct terse_error *error) {
    struct terse_session *s = (struct terse_session *)session;
    const struct terse_engine *engine = s->engine;
    if (!s->has_logits || !s->logits_held) return TERSE_OK;
    enum terse_status status = engine->backend.executor->fetch(engine->executor, &s->held, s->logits, error);
    s->logits_held = status != TERSE_OK;
    return status;
}
