/* Implements readings: makes their tokens parts of steps, hands rows of logits to the caller's thread, and undoes what is broken
 * off. */
#include "engine/reading.h"

#include <inttypes.h>

enum terse_status reading_check(const struct terse_session *s, const int32_t *tokens, size_t n, struct terse_error *error) {
    enum terse_status status = session_check_idle(s, error);
    if (status) return status;
    if (!n) return status_fail(error, TERSE_E_ARGUMENT, "no tokens: a step needs at least one");
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= model_of(s)->vocabulary)
            return status_fail(error, TERSE_E_ARGUMENT, "token %" PRId32 " at %zu is outside the vocabulary of %u", tokens[i], i,
                               model_of(s)->vocabulary);
    return TERSE_OK;
}

/* ---- Steps */

struct rows {
    const struct reading *reading;
    size_t first, count;
    const float *logits;
};

static void hand_over_rows(void *user) {
    const struct rows *r = user;
    const struct terse_logits_sink *sink = r->reading->sink;
    uint32_t vocabulary = model_of(r->reading->session)->vocabulary;
    for (size_t i = 0; i < r->count; i++) sink->row(sink->user, r->reading->first + r->first + i, r->logits + i * vocabulary);
}

static void put_rows(void *user, size_t first, size_t count, const float *logits) {
    thread_pool_call(hand_over_rows, &(struct rows){user, first, count, logits});
}

struct step_part reading_part(struct reading *r, enum cache_step_kind kind, size_t count) {
    const struct terse_logits_sink *sink = r->sink;
    struct terse_session *s = r->session;
    bool wanted = sink && sink->first < r->first + count, few = r->ends && !s->logits_asked && sampler_needs_few(&s->sampler);
    if (r->ends) s->next_held.n = 0;
    return (struct step_part){.cache = s->cache,
                              .kind = kind,
                              .tokens = r->tokens + r->first,
                              .n = count,
                              .last_logits = r->ends ? s->next_logits : NULL,
                              .held = few && s->next_held.row ? &s->next_held : NULL,
                              .rows = wanted ? put_rows : NULL,
                              .first_row = wanted && sink->first > r->first ? sink->first - r->first : 0,
                              .user = r};
}

void reading_take(const struct reading *r) {
    struct terse_session *s = r->session;
    s->logits_held = s->next_held.n > 0;
    if (s->logits_held) {
        struct device_logits held = s->next_held;
        s->next_held = s->held;
        s->held = held;
    } else {
        float *logits = s->next_logits;
        s->next_logits = s->logits;
        s->logits = logits;
    }
    s->has_logits = true;
    s->logits_asked = false;
    session_add_tokens(s, r->tokens, r->n);
}

/* ---- Readings that may be broken off */

enum terse_status reading_keep_cache(const struct reading *r, struct terse_error *error) {
    struct terse_session *s = r->session;
    return s->n_tokens ? lead_fork(s->engine->lead, s->cache, &s->before, error) : TERSE_OK;
}

void reading_end(const struct reading *r, bool failed) {
    struct terse_session *s = r->session;
    struct cache *unwanted = failed && s->before ? s->cache : s->before;
    if (failed && s->before) s->cache = s->before;
    if (failed && !s->before && !s->n_tokens) lead_reset(s->engine->lead, s->cache);
    lead_destroy(s->engine->lead, unwanted);
    s->before = NULL;
}

enum terse_status reading_check_cancelled(const struct reading *r, struct terse_error *error) {
    if (!atomic_exchange(&r->session->cancelled, false)) return TERSE_OK;
    return status_fail(error, TERSE_E_INTERRUPTED, "cancelled");
}
