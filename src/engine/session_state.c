/* Truncates and forks a session as a whole. Owns what that means for tokens, sampler and logits; the backend knows what it means
 * for the cache. */
#include "engine/prompt.h"

#include <stdlib.h>
#include <string.h>

/* ---- Truncating */

struct truncation {
    struct terse_session *session;
    uint64_t n;
};

static enum terse_status truncate_cache(void *user, struct terse_error *error) {
    const struct truncation *t = user;
    return lead_truncate(t->session->engine->lead, t->session->cache, t->n, error);
}

/* ---- Reading again. A state of recurrent layers is kept at some lengths alone, so a sequence is cut at the one before, and reads the
 * tokens between them again: those of prompts, and the others as it has decoded them. */

static enum terse_status read_step(struct reading *r, enum cache_step_kind kind, size_t count, struct terse_error *error) {
    const struct terse_engine *engine = r->session->engine;
    const struct led led = engine_led(engine);
    const struct step_part part = reading_part(r, kind, count);
    const struct step step = {&part, 1};
    struct step_progress at = {0, 1};
    struct pass *pass = NULL;
    size_t failed;
    enum terse_status status = lead_begin(&led, &step, true, &pass, &failed, error);
    while (!status && at.done < at.total) {
        status = lead_advance(&led, &step, pass, error);
        at = led.ops->progress(pass);
    }
    lead_end(&led, &step, pass);
    r->first += count;
    return status;
}

/* Reads the tokens from the end of the cache to the n-th. */
static enum terse_status read_to(struct terse_session *s, uint64_t n, uint64_t prompt_end, struct terse_error *error) {
    const bool whole = !cache_length(s->cache) || s->options.prefill == TERSE_PREFILL_PAPER;
    const enum cache_step_kind kind = whole ? prompt_step_kind(s->options.prefill) : CACHE_STEP_CHUNK;
    struct reading r = {.session = s, .tokens = s->tokens, .n = (size_t)n, .first = (size_t)cache_length(s->cache)};
    enum terse_status status = TERSE_OK;
    while (r.first < n && !status) {
        const bool of_prompt = r.first < prompt_end;
        size_t count = (size_t)((of_prompt && prompt_end < n ? prompt_end : n) - r.first);
        if (!of_prompt && policy_evicts(s->method.policy)) count = 1; /* which tokens leave depends on the steps */
        if (of_prompt && kind == CACHE_STEP_PREFILL) count = cache_prompt_part(s->cache, count);
        status = read_step(&r, of_prompt ? kind : CACHE_STEP_DECODE, count, error);
    }
    return status;
}

/* Returns the first token from which on tokens are read again: where the method cannot go back to a state that is kept, the first of
 * all. */
static uint64_t first_again(struct terse_session *s, uint64_t n) {
    const uint64_t from = parts_restorable(s->cache, n);
    return parts_check_truncate(s->cache, from, NULL) ? 0 : from;
}

static enum terse_status read_again(void *user, struct terse_error *error) {
    const struct truncation *t = user;
    struct terse_session *s = t->session;
    const uint64_t prompt_end = cache_prompt_end(s->cache), from = first_again(s, t->n);
    for (uint64_t i = from; i < t->n; i++)
        if (s->tokens[i] == SESSION_NO_TOKEN)
            return status_fail(error, TERSE_E_UNSUPPORTED,
                               "the model's recurrent layers would have to read random tokens again: reset the session");
    const struct reading whole = {.session = s};
    enum terse_status status = reading_keep_cache(&whole, error);
    if (status) return status;
    status = lead_truncate(s->engine->lead, s->cache, from, error);
    if (!status) status = read_to(s, t->n, prompt_end, error);
    reading_end(&whole, status != TERSE_OK);
    parts_counters(s->cache, &(struct cache_counters){0}, true);
    if (!status && from && s->first_prompt > from) s->first_prompt = (size_t)from;
    return status;
}

/* ---- All of truncating */

/* Replaces the cache by an empty one, and frees the old one's memory before the new one's counts, so that the budget cannot refuse
 * it. */
static enum terse_status empty_cache(void *user, struct terse_error *error) {
    struct terse_session *s = user;
    struct cache_shape shape = engine_cache_shape(s->engine, s->options.context);
    struct cache *cache;
    enum terse_status status =
        parts_create(kv_of(s)->storage, &shape, &s->method, thread_pool_threads(s->engine->pool), &cache, error);
    if (!status) status = lead_renew(s->engine->lead, s->cache, cache, error);
    if (status) {
        parts_destroy(cache);
        return status;
    }
    parts_destroy(s->cache);
    s->cache = cache;
    return parts_limit(cache, &s->engine->budget, error);
}

enum terse_status terse_session_truncate(struct terse_session *s, uint64_t n, struct terse_error *error) {
    if (n && n < s->n_tokens && constraint_holds(&s->constraint))
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "a session that requires JSON or holds tool calls to their tools cannot be cut: call "
                           "terse_session_allow_any_text before");
    enum terse_status status = session_check_idle(s, error);
    if (status) return status;
    struct truncation truncation = {s, n};
    if (!n)
        status = engine_run(s->engine, empty_cache, s, error);
    else if (n > s->n_tokens || parts_restorable(s->cache, n) == n)
        status = engine_run(s->engine, truncate_cache, &truncation, error);
    else
        status = engine_run_in_budget(s->engine, read_again, &truncation, error);
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
    return lead_fork(f->from->engine->lead, f->from->cache, &f->to->cache, error);
}

enum terse_status terse_session_fork(const struct terse_session *session, struct terse_session **copy, struct terse_error *error) {
    *copy = NULL;
    enum terse_status status = session_check_idle(session, error);
    if (status) return status;
    struct terse_session *s = calloc(1, sizeof *s);
    if (!s) return status_no_memory(error, sizeof *s, "a session");
    s->engine = session->engine;
    s->number = ++s->engine->sessions;
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
    constraint_fork(&session->constraint, &s->constraint);
    if (constraint_holds(&s->constraint)) s->sampler.constraint = &s->constraint;
    *copy = s;
    return TERSE_OK;
}
