/* Implements a session's life: makes it and answers what is asked of it. */
#include "engine/session.h"
#include "backend/plugin.h"
#include "base/memory.h"
#include "base/options.h"
#include "terse_calibrate.h"
#include "text/chat_reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct terse_session_options terse_session_options_defaults(void) {
    return (struct terse_session_options){.size = sizeof(struct terse_session_options),
                                          .prefill = TERSE_PREFILL_EXACT,
                                          .batch = 512,
                                          .cache = terse_cache_options_defaults()};
}

static enum terse_status resolve_method(const struct terse_model *m, const struct terse_cache_options *options,
                                        struct method *method, struct terse_error *error) {
    enum terse_status status = method_resolve(options, m->head_dim, method, error);
    return status || !m->latent.rank ? status : method_for_latents(method, m->rope.n_rot, m->latent.rank, error);
}

static enum terse_status check_codebook(const struct terse_model *m, struct method *method, struct terse_error *error) {
    return method_check_codebook(method, (uint64_t[]){m->fingerprint, m->norms_fingerprint}, model_kv_layers(m), m->kv_heads,
                                 m->head_dim, error);
}

/* Refuses methods that move tokens where positions are learned: these went into the keys with the embeddings, so a token cannot
 * move to another position. */
static enum terse_status check_positions(const struct terse_model *m, const struct method *method, struct terse_error *error) {
    if (!m->positions.data || !method->policy->positions_by_index) return TERSE_OK;
    return status_fail(error, TERSE_E_UNSUPPORTED,
                       "%s moves tokens to other positions, which a model with learned ones (position_embd) does not allow: use "
                       "another --kv",
                       method->name);
}

enum terse_status terse_cache_bytes(const struct terse_model *model, const char *device, const struct terse_cache_options *options,
                                    uint64_t tokens, struct terse_cache_report *report, struct terse_error *error) {
    struct method method;
    const struct backend *backend;
    struct cache_shape shape = cache_shape_of(model, model->context);
    enum terse_status status = OPTIONS_CHECK(options, terse_cache_options, error);
    if (!status) status = resolve_method(model, options, &method, error);
    if (!status) method.of_weights = method_needs_weights(&method);
    if (!status && method.learned) status = check_codebook(model, &method, error);
    if (!status) status = backend_for(model, device, &backend, error);
    if (!status) status = parts_supports(backend->kv->storage, &shape, &method, error);
    if (!status) status = check_positions(model, &method, error);
    if (!status) parts_predict(backend->kv->storage, &shape, &method, tokens, report);
    return status;
}

/* Replaces options that are 0 by their defaults and refuses those that are out of range. */
static enum terse_status check_options(struct terse_session *s, struct terse_error *error) {
    struct terse_session_options *o = &s->options;
    bool evicts = s->method.policy->positions_by_index;
    const struct matrix *positions = &model_of(s)->positions;
    enum terse_status status = check_positions(model_of(s), &s->method, error);
    if (status) return status;
    if (!o->context) o->context = model_of(s)->context;
    if (positions->data && o->context > positions->rows)
        return status_fail(error, TERSE_E_CONTEXT,
                           "a context of %u tokens is longer than the %u positions that the model has learned: use -c %u",
                           o->context, positions->rows, positions->rows);
    if (o->context > model_of(s)->context && !o->allow_longer_context)
        return status_fail(error, TERSE_E_ARGUMENT,
                           "a context of %u tokens is longer than the %u the model was trained for: use -c %u, or "
                           "--allow-longer-context to try it all the same",
                           o->context, model_of(s)->context, model_of(s)->context);
    if (evicts && s->method.parameters.budget >= o->context)
        return status_fail(error, TERSE_E_ARGUMENT,
                           "%s leaves no room for the next token in a context of %u: use a smaller number, or raise -c",
                           s->method.name, o->context);
    if (policy_evicts(s->method.policy) && o->prefill == TERSE_PREFILL_PAPER)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "%s evicts tokens while it reads, which --paper, where every token reads all before it, cannot "
                           "measure: omit --paper",
                           s->method.name);
    if (o->prefill == TERSE_PREFILL_COMPRESSED && policy_chooses_tokens(s->method.policy, &s->method.parameters))
        return status_fail(
            error, TERSE_E_UNSUPPORTED,
            "%s chooses tokens of a prompt that stay exact, which takes an exact prefill: omit --prefill compressed%s",
            s->method.name, s->method.policy->keep_selected_only ? "" : ", or keep none with --anchors 0");
    if ((unsigned)o->prefill > TERSE_PREFILL_PAPER)
        return status_fail(error, TERSE_E_ARGUMENT, "there is no prefill mode %d", (int)o->prefill);
    if (!o->batch) return status_fail(error, TERSE_E_ARGUMENT, "a batch of 0 tokens reads nothing: use -b 1 or more");
    return TERSE_OK;
}

enum terse_status session_resolve_method(struct terse_engine *engine, const struct terse_cache_options *options,
                                         struct method *method, struct terse_error *error) {
    enum terse_status status = resolve_method(engine->model, options, method, error);
    if (status) return status;
    method->of_weights = method_needs_weights(method);
    if (method->of_weights) status = engine_weight_profile(engine, &method->learned, error);
    return status ? status : check_codebook(engine->model, method, error);
}

static enum terse_status make_cache(void *user, struct terse_error *error) {
    struct terse_session *s = user;
    const struct terse_codebook *codebook = s->method.of_weights ? NULL : s->method.learned;
    struct cache_shape shape = engine_cache_shape(s->engine, s->options.context);
    enum terse_status status =
        parts_create(kv_of(s)->storage, &shape, &s->method, thread_pool_threads(s->engine->pool), &s->cache, error);
    if (!status) status = parts_limit(s->cache, &s->engine->budget, error);
    return status ? status
                  : lead_create(s->engine->lead, &s->options, codebook, codebook ? codebook_hash(codebook) : 0, s->cache, error);
}

void session_identity(const struct terse_session *s, char text[METHOD_IDENTITY]) {
    const struct terse_model *m = model_of(s);
    method_identity(&s->method, text);
    size_t used = strlen(text);
    if (model_rope(m, s->options.context) != &m->rope)
        snprintf(text + used, METHOD_IDENTITY - used, ", rotated for contexts beyond %u", m->rope_context);
}

enum terse_status terse_session_new(struct terse_engine *engine, const struct terse_session_options *options,
                                    struct terse_session **session, struct terse_error *error) {
    *session = NULL;
    enum terse_status status = OPTIONS_CHECK(options, terse_session_options, error);
    if (!status) status = OPTIONS_CHECK(&options->cache, terse_cache_options, error);
    if (status) return status;
    const struct terse_model *model = engine->model;
    struct terse_session *s = calloc(1, sizeof *s);
    if (!s) return status_no_memory(error, sizeof *s, "a session");
    s->engine = engine;
    s->number = ++engine->sessions;
    s->options = *options;
    if ((status = session_resolve_method(engine, &options->cache, &s->method, error))) goto fail;
    if ((status = check_options(s, error))) goto fail;
    if ((status = engine_run(engine, make_cache, s, error))) goto fail;
    if ((status = sampler_init(&s->sampler, model->vocabulary, error))) goto fail;
    if ((status = session_make_logits(s, error))) goto fail;
    *session = s;
    return TERSE_OK;
fail:
    terse_session_free(s);
    return status;
}

void terse_session_free(struct terse_session *session) {
    if (!session) return;
    session_drop_prompt(session);
    lead_destroy(session->engine->lead, session->cache);
    sampler_destroy(&session->sampler);
    constraint_end(&session->constraint);
    session_free_logits(session);
    memory_free(session->tokens);
    free(session);
}

void terse_session_reset(struct terse_session *session) {
    session_drop_prompt(session);
    lead_reset(session->engine->lead, session->cache);
    sampler_forget(&session->sampler);
    session->has_logits = false;
    session->damaged.code = TERSE_OK;
    session->n_tokens = session->first_prompt = 0;
}

void terse_session_cancel(struct terse_session *session) { atomic_store(&session->cancelled, true); }

uint64_t terse_session_length(const struct terse_session *session) { return session->n_tokens; }

const int32_t *terse_session_tokens(const struct terse_session *session, size_t *n) {
    *n = session->n_tokens;
    return session->tokens;
}

/* ---- Random contents */

struct filling {
    struct terse_session *session;
    size_t n;
    uint64_t seed;
};

static enum terse_status fill(void *user, struct terse_error *error) {
    const struct filling *f = user;
    return lead_fill(f->session->engine->lead, kv_of(f->session), f->session->cache, f->n, f->seed, error);
}

enum terse_status terse_session_fill_random(struct terse_session *session, size_t n, uint64_t seed, struct terse_error *error) {
    enum terse_status status = session_check_idle(session, error);
    if (!status) status = session_check_room(session, n, 1, error);
    if (!status) status = session_reserve_tokens(session, n, error);
    if (status) return status;
    status = engine_run(session->engine, fill, &(struct filling){session, n, seed}, error);
    session_add_tokens(session, NULL, (size_t)cache_length(session->cache) - session->n_tokens);
    session->has_logits = false;
    return status;
}

/* ---- Reading the session */

static enum terse_status ask_for_logits(const struct terse_session *session, struct terse_error *error) {
    ((struct terse_session *)session)->logits_asked = true;
    return session_fetch_logits(session, error);
}

const float *terse_session_logits(const struct terse_session *session) {
    return session->has_logits && !ask_for_logits(session, NULL) ? session->logits : NULL;
}

enum terse_status terse_session_set_sampling(struct terse_session *session, const struct terse_sampling *sampling,
                                             struct terse_error *error) {
    enum terse_status status = OPTIONS_CHECK(sampling, terse_sampling, error);
    return status ? status : sampler_set(&session->sampler, sampling, error);
}

static enum terse_status choose(struct terse_session *session, int32_t *token, struct terse_error *error) {
    if (session->logits_held) {
        if (sampler_choose_top_logits(&session->sampler, session->held.top_logits, session->held.n, token)) return TERSE_OK;
        *token = -1;
        enum terse_status status = ask_for_logits(session, error);
        if (status) return status;
    }
    *token = sampler_choose(&session->sampler, session->logits);
    return TERSE_OK;
}

enum terse_status terse_session_sample(struct terse_session *session, int32_t *token, struct terse_error *error) {
    *token = -1;
    if (session->damaged.code) return status_fail(error, session->damaged.code, "%s", session->damaged.message);
    if (!session->has_logits)
        return status_fail(error, TERSE_E_ARGUMENT,
                           "nothing to sample from: no tokens have been read since the session was made, reset or filled");
    if (session->constraint.left)
        return status_fail(error, TERSE_E_ARGUMENT, "the tokens that were appended are not JSON text that the schema allows");
    enum terse_status status = choose(session, token, error);
    if (status) return status;
    return *token >= 0
               ? TERSE_OK
               : status_fail(error, TERSE_E_ARGUMENT, "no token of this vocabulary continues the JSON text that the schema allows");
}

enum terse_status terse_session_require_json(struct terse_session *session, const char *schema, struct terse_error *error) {
    enum terse_status status = constraint_begin_json(&session->constraint, model_of(session)->tokenizer, schema, error);
    if (!status) session->sampler.constraint = &session->constraint;
    return status;
}

enum terse_status terse_session_hold_calls(struct terse_session *session, const struct terse_chat_options *options,
                                           struct terse_error *error) {
    const struct tokenizer *tokenizer = model_of(session)->tokenizer;
    struct call_filter *calls;
    enum terse_status status = chat_filter_calls(tokenizer, options, &calls, error);
    if (status || !calls) return status;
    constraint_begin_reply(&session->constraint, tokenizer, calls);
    session->sampler.constraint = &session->constraint;
    return TERSE_OK;
}

void terse_session_allow_any_text(struct terse_session *session) {
    session->sampler.constraint = NULL;
    constraint_end(&session->constraint);
}

enum terse_status terse_session_logprobs(struct terse_session *session, int32_t token, float *logprob, struct terse_logprob *top,
                                         size_t n, struct terse_error *error) {
    uint32_t vocabulary = session->sampler.vocabulary;
    if (!session->has_logits)
        return status_fail(error, TERSE_E_ARGUMENT,
                           "there are no probabilities: no tokens have been read since the session was made, reset or filled");
    if (token < 0 || (uint32_t)token >= vocabulary || n > vocabulary)
        return status_fail(error, TERSE_E_ARGUMENT, "token %d or %zu likeliest tokens are asked for, the vocabulary has %u", token,
                           n, vocabulary);
    enum terse_status status = ask_for_logits(session, error);
    if (status) return status;
    sampler_logprobs(&session->sampler, session->logits, token, logprob, top, n);
    return TERSE_OK;
}

void terse_session_map(const struct terse_session *session, struct terse_token_share *shares, size_t n) {
    parts_map(session->cache, shares, n);
}

void terse_session_cache(const struct terse_session *session, struct terse_cache_report *report) {
    parts_report(session->cache, report);
}

void terse_session_counters(struct terse_session *session, struct terse_counters *counters, bool clear) {
    *counters = session->counters;
    if (clear) session->counters = (struct terse_counters){0};
}
