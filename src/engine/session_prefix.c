/* Lets sessions begin where others have been: the engine keeps prefixes and finds them by their tokens. */
#include "base/memory.h"
#include "engine/session.h"

#include <string.h>

static struct prefix_kind kind_of(const struct terse_session *s) {
    struct prefix_kind kind = {.codebook = session_codebook_hash(s), .prefill = s->options.prefill};
    session_identity(s, kind.method);
    kind.least_rate = s->method.least_rate;
    return kind;
}

/* ---- Keeping */

struct keeping {
    const struct terse_session *session;
    struct prefix *prefix;
};

static enum terse_status fork_to_prefix(void *user, struct terse_error *error) {
    const struct keeping *k = user;
    return lead_fork(k->session->engine->lead, k->session->cache, &k->prefix->cache, error);
}

static enum terse_status make_prefix(const struct terse_session *s, struct prefix *prefix, struct terse_error *error) {
    *prefix = (struct prefix){.kind = kind_of(s), .n = s->n_tokens, .first_prompt = s->first_prompt, .session = s->number};
    if (!(prefix->tokens = memory_array(s->n_tokens, sizeof *prefix->tokens)))
        return status_no_memory(error, s->n_tokens * sizeof *prefix->tokens, "the tokens of a prefix");
    memcpy(prefix->tokens, s->tokens, s->n_tokens * sizeof *prefix->tokens);
    prefix->cache = s->cache;
    prefix_index_expect(&s->engine->prefixes, prefix);
    prefix->cache = NULL;
    const uint64_t due = prefix_index_due(&s->engine->prefixes, prefix);
    enum terse_status status;
    do status = engine_run(s->engine, fork_to_prefix, &(struct keeping){s, prefix}, error);
    while (engine_asks_for_room(s->engine, status, due));
    return status;
}

enum terse_status terse_engine_keep_prefix(struct terse_engine *engine, const struct terse_session *session,
                                           struct terse_error *error) {
    struct prefix prefix;
    if (session->engine != engine)
        return status_fail(error, TERSE_E_ARGUMENT,
                           "the session is another engine's: give it to terse_engine_keep_prefix of its own");
    enum terse_status status = session_check_idle(session, error);
    if (status || !session->n_tokens || !engine->most_prefixes) return status;
    status = prefix_index_reserve(&engine->prefixes, engine->most_prefixes, error);
    if (status) return status;
    status = make_prefix(session, &prefix, error);
    if (prefix.tokens) prefix_index_keep(&engine->prefixes, &prefix); /* without a cache it is remembered */
    return status;
}

void terse_engine_drop_prefixes(struct terse_engine *engine) { prefix_index_clear(&engine->prefixes); }

size_t terse_engine_drop_prefix(struct terse_engine *engine, const int32_t *tokens, size_t n) {
    return prefix_index_drop(&engine->prefixes, tokens, n);
}

/* ---- Beginning */

struct beginning {
    struct terse_session *session;
    const struct prefix *prefix;
    size_t held;
};

/* Makes the session's cache a fork of the prefix's. */
static enum terse_status begin_cache(void *user, struct terse_error *error) {
    const struct beginning *b = user;
    struct lead *lead = b->session->engine->lead;
    struct cache *cache;
    enum terse_status status = lead_fork(lead, b->prefix->cache, &cache, error);
    if (status) return status;
    lead_destroy(lead, b->session->cache);
    b->session->cache = cache;
    return lead_truncate(lead, cache, b->held, error);
}

static enum terse_status begin_with(struct terse_session *s, const struct prefix *prefix, const int32_t *tokens, size_t held,
                                    struct terse_error *error) {
    enum terse_status status = session_reserve_tokens(s, held, error);
    if (!status) status = engine_run(s->engine, begin_cache, &(struct beginning){s, prefix, held}, error);
    if (status) return status;
    session_add_tokens(s, tokens, held);
    s->first_prompt = prefix->first_prompt < held ? prefix->first_prompt : held;
    return TERSE_OK;
}

static enum terse_status new_with_prefix(struct terse_engine *engine, const struct terse_session_options *options,
                                         const int32_t *tokens, size_t n, struct terse_session **session, size_t *held,
                                         struct terse_error *error) {
    const struct prefix *prefix = NULL;
    struct terse_session *s;
    *held = 0;
    enum terse_status status = terse_session_new(engine, options, session, error);
    if (status) return status;
    s = *session;
    if (n && engine->prefixes.n) {
        const struct prefix_kind kind = kind_of(s);
        prefix = prefix_index_find(&engine->prefixes, &kind, tokens, n, held);
    }
    if (prefix) status = begin_with(s, prefix, tokens, *held, error);
    if (!status) return TERSE_OK;
    terse_session_free(s);
    *session = NULL;
    *held = 0;
    return status;
}

enum terse_status terse_session_new_with_prefix(struct terse_engine *engine, const struct terse_session_options *options,
                                                const int32_t *tokens, size_t n, struct terse_session **session, size_t *held,
                                                struct terse_error *error) {
    enum terse_status status;
    do status = new_with_prefix(engine, options, tokens, n, session, held, error);
    while (engine_asks_for_room(engine, status, PREFIX_NOW));
    return status;
}
