/* Checks that a session may read: that nothing else keeps it busy, and that it has room. */
#include "engine/prompt.h"
#include "kv/lower.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- Busy */

void terse_session_prompt(const struct terse_session *s, uint64_t *done, uint64_t *total) {
    const struct prompt *p = s->prompt;
    *done = *total = 0;
    if (!p) return;
    uint64_t layers = model_of(s)->layers;
    *total = p->reading.n * layers;
    *done = p->reading.first * layers + (p->pass ? s->engine->backend.executor->progress(p->pass).done : 0);
}

enum terse_status session_check_idle(const struct terse_session *s, struct terse_error *error) {
    uint64_t done, total;
    if (s->damaged.code) return status_fail(error, s->damaged.code, "%s", s->damaged.message);
    if (!s->prompt) return TERSE_OK;
    terse_session_prompt(s, &done, &total);
    return status_fail(error, TERSE_E_ARGUMENT,
                       "a prompt is under way in this session (%" PRIu64
                       " %% of it): go on with it by terse_engine_step, or reset the session",
                       100 * done / total);
}

/* ---- Room */

enum terse_status session_check_room(const struct terse_session *s, size_t n, size_t together, struct terse_error *error) {
    uint64_t length = cache_length(s->cache), budget = s->method.parameters.budget, context = s->options.context;
    if (!s->method.policy->positions_by_index) {
        if (n <= context && length <= context - n) return TERSE_OK;
        const struct matrix *positions = &model_of(s)->positions;
        const char *or_else = ", raise -c, or use --kv streaming-N to go on without end";
        if (positions->data) or_else = context < positions->rows ? " or raise -c" : ", the model has learned no more positions";
        return status_fail(error, TERSE_E_CONTEXT, "%" PRIu64 " tokens do not fit the context of %" PRIu64 ": shorten the text%s",
                           length + n, context, or_else);
    }
    uint64_t kept = length < budget ? length : budget;
    if (together <= context && kept <= context - together) return TERSE_OK;
    return status_fail(error, TERSE_E_CONTEXT,
                       "%zu tokens at once do not fit the context of %" PRIu64 " beside the %" PRIu64
                       " that %s keeps: read them in "
                       "smaller chunks (--prefill compressed -b N), or raise -c",
                       together, context, kept, s->method.name);
}

enum terse_status session_admit(const struct terse_session *s, size_t n, struct terse_error *error) {
    const struct kv_budget *budget = &s->engine->budget;
    struct cache_shape shape = engine_cache_shape(s->engine, s->options.context);
    const double least = s->method.least_rate;
    const struct method method = least > 0 ? method_at_rate(&s->method, least, NULL) : s->method;
    struct terse_cache_report now, then;
    if (budget->most == UINT64_MAX) return TERSE_OK;
    parts_report(s->cache, &now);
    parts_predict(kv_of(s)->storage, &shape, &method, s->n_tokens + n, &then);
    uint64_t more = then.resident > now.resident ? then.resident - now.resident : 0;
    do
        if (more <= budget->most - budget->used + lower_could_free(budget)) return TERSE_OK; /* the step lowers what it must */
    while (engine_drops_prefix(s->engine, TERSE_E_MEMORY, true));
    char what[64];
    snprintf(what, sizeof what, "a KV cache of %" PRIu64 " tokens", (uint64_t)s->n_tokens + n);
    return budget_refuse(budget, more, what, error);
}
