/* Truncates and forks a session as a whole. Owns what that means for tokens, sampler and logits; the backend knows what it means
 * for the cache. */
#include "engine/session.h"

#include <stdlib.h>
#include <string.h>

/* ---- Truncating */

struct truncation {
    struct terse_session *session;
    uint64_t n;
};

static enum terse_status truncate_cache(void *user, struct terse_error *error) {
    const struct truncation *t = user;
    return parts_truncate(t->session->cache, t->n, error);
}

/* Replaces the cache by an empty one, and frees the old one's memory before the new one's counts, so that the budget cannot refuse
 * it. */
static enum terse_status empty_cache(void *user, struct terse_error *error) {
    struct terse_session *s = user;
    struct cache_shape shape = cache_shape_of(model_of(s), s->options.context);
    struct cache *cache;
    enum terse_status status =
        parts_create(kv_of(s)->storage, &shape, &s->method, thread_pool_threads(s->engine->pool), &cache, error);
    if (status) return status;
    parts_destroy(s->cache);
    s->cache = cache;
    return parts_limit(cache, &s->engine->budget, error);
}

enum terse_status terse_session_truncate(struct terse_session *s, uint64_t n, struct terse_error *error) {
    if (n && n < s->n_tokens && s->json.schema)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "a session that requires JSON cannot be cut: call terse_session_allow_any_text before");
    enum terse_status status = session_check_idle(s, error);
    if (status) return status;
    if (n)
        status = engine_run(s->engine, truncate_cache, &(struct truncation){s, n}, error);
    else
        status = engine_run(s->engine, empty_cache, s, error);
    if (status || n == s->n_tokens) return status;
    s->n_tokens = (size_t)n;
    if (s->first_prompt > n) s->first_prompt = (size_t)n;
    s->has_logits = false;
    session_remember_tokens(s);
    return TERSE_OK;
}

/* ---- Forking */

struct forking {
    const struct terse_session *from;
    struct terse_session *to;
};

static enum terse_status fork_cache(void *user, struct terse_error *error) {
    const struct forking *f = user;
    return parts_fork(f->from->cache, &f->to->cache, error);
}

enum terse_status terse_session_fork(const struct terse_session *session, struct terse_session **copy, struct terse_error *error) {
    *copy = NULL;
    enum terse_status status = session_check_idle(session, error);
    if (status) return status;
    struct terse_session *s = calloc(1, sizeof *s);
    if (!s) return status_no_memory(error, sizeof *s, "a session");
    s->engine = session->engine;
    s->options = session->options;
    s->method = session->method;
    status = engine_run_in_budget(s->engine, fork_cache, &(struct forking){session, s}, error);
    if (!status) status = sampler_fork(&session->sampler, &s->sampler, error);
    if (!status) status = session_make_logits(s, error);
    if (!status) status = session_reserve_tokens(s, session->n_tokens, error);
    if (!status) status = session_fetch_logits(session, error);
    if (status) {
        terse_session_free(s);
        return status;
    }
    if (session->has_logits) memcpy(s->logits, session->logits, model_of(s)->vocabulary * sizeof *s->logits);
    s->has_logits = session->has_logits;
    if (session->n_tokens) memcpy(s->tokens, session->tokens, session->n_tokens * sizeof *s->tokens);
    s->n_tokens = session->n_tokens;
    s->first_prompt = session->first_prompt;
    s->json = json_constraint_fork(&session->json);
    if (s->json.schema) s->sampler.json = &s->json;
    *copy = s;
    return TERSE_OK;
}
