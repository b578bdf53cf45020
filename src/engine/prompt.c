/* Reads prompts: the steps of a prefill mode, one after another, each by pieces beside the steps of other sessions (chunked
 * prefill). The engine's backend computes, on the engine's driver thread. */
#include "engine/prompt.h"

#include "base/clock.h"
#include "base/memory.h"

#include <string.h>

static struct led led_of(const struct terse_session *s) { return engine_led(s->engine); }

static struct step step_of(const struct prompt *p) { return (struct step){&p->part, 1}; }

/* ---- Beginning */

static enum terse_status check_prompt(const struct terse_session *s, const int32_t *tokens, size_t n, struct terse_error *error) {
    const struct terse_session_options *o = &s->options;
    size_t together = o->prefill == TERSE_PREFILL_COMPRESSED && n > o->batch ? o->batch : n;
    enum terse_status status = reading_check(s, tokens, n, error);
    if (!status) status = session_check_room(s, n, together, error);
    return status ? status : session_admit(s, n, error);
}

/* Makes a prompt whose tokens lie where session_add_tokens will have them. */
static enum terse_status new_prompt(struct terse_session *s, const int32_t *tokens, size_t n, const struct terse_logits_sink *sink,
                                    struct terse_error *error) {
    enum terse_status status = session_reserve_tokens(s, n, error);
    if (status) return status;
    struct prompt *p = memory_zeros(1, sizeof *p);
    if (!p) return status_no_memory(error, sizeof *p, "a prompt");
    memcpy(s->tokens + s->n_tokens, tokens, n * sizeof *tokens);
    if (sink) p->sink = *sink;
    p->reading = (struct reading){.session = s, .tokens = s->tokens + s->n_tokens, .n = n, .sink = sink ? &p->sink : NULL};
    s->prompt = p;
    return TERSE_OK;
}

enum cache_step_kind prompt_step_kind(enum terse_prefill mode) {
    switch (mode) {
    case TERSE_PREFILL_COMPRESSED: return CACHE_STEP_CHUNK;
    case TERSE_PREFILL_PAPER: return CACHE_STEP_PAPER;
    default: return CACHE_STEP_PREFILL;
    }
}

/* Makes the next step one of so many tokens. */
static void set_step(struct prompt *p, size_t count) {
    struct reading *r = &p->reading;
    p->count = count;
    r->ends = count == r->n - r->first;
    p->part = reading_part(r, prompt_step_kind(r->session->options.prefill), count);
}

/* Makes the step the shortest one, where memory is short and tokens wait in the window in half precision to be fitted to or sealed: while these are
 * there, a long one would leave the budget less room than there is after it, and prefixes would be dropped and pages lowered for nothing. */
static bool shorten_step(struct prompt *p, enum terse_status status) {
    const struct terse_session *s = p->reading.session;
    if (status != TERSE_E_MEMORY || s->options.prefill != TERSE_PREFILL_EXACT) return false;
    const size_t shortest = cache_shortest_part(s->cache, p->count);
    if (shortest == p->count) return false;
    set_step(p, shortest);
    return true;
}

/* Returns whether the budget has room for what a step's tokens take in half precision and for the pages that they become, beside each other. */
static bool has_room(const struct terse_session *s, size_t n) {
    const struct kv_budget *budget = &s->engine->budget;
    const struct cache_shape shape = engine_cache_shape(s->engine, s->options.context);
    const uint64_t length = cache_length(s->cache) + n;
    struct terse_cache_report now, step, next;
    if (budget->most == UINT64_MAX) return true;
    parts_report(s->cache, &now);
    parts_predict(kv_of(s)->storage, &shape, &s->method, length, &step);
    parts_predict(kv_of(s)->storage, &shape, &s->method, length + 1, &next);
    while (step.resident + next.resident > now.resident + (budget->most - budget->used))
        if (!engine_drops_prefix(s->engine, TERSE_E_MEMORY, false)) return false;
    return true;
}

/* Returns how many of the next n tokens of an exact prefill are a step. */
static size_t exact_part(const struct terse_session *s, size_t n) {
    const size_t part = cache_prompt_part(s->cache, n), shortest = cache_shortest_part(s->cache, part);
    return shortest == part || has_room(s, part) ? part : shortest;
}

static enum terse_status begin_step(struct prompt *p, struct terse_error *error) {
    const struct reading *r = &p->reading;
    const struct terse_session_options *o = &r->session->options;
    size_t left = r->n - r->first, count = o->prefill == TERSE_PREFILL_COMPRESSED && left > o->batch ? o->batch : left, failed;
    if (o->prefill == TERSE_PREFILL_EXACT) count = exact_part(r->session, left);
    set_step(p, count);
    struct terse_engine *engine = r->session->engine;
    const struct led led = led_of(r->session);
    const struct step step = step_of(p);
    enum terse_status status;
    do status = lead_begin(&led, &step, false, &p->pass, &failed, error);
    while (engine_drops_prefix(engine, status, false) || shorten_step(p, status) || engine_makes_room(engine, status, PREFIX_NOW));
    return status;
}

/* ---- Ending */

static void end_prompt(struct terse_session *s, bool failed) {
    struct prompt *p = s->prompt;
    const struct led led = led_of(s);
    const struct step step = step_of(p);
    lead_end(&led, &step, p->pass);
    reading_end(&p->reading, failed);
    if (!failed) {
        bool first = !s->n_tokens && s->options.prefill == TERSE_PREFILL_EXACT;
        reading_take(&p->reading);
        if (first) s->first_prompt = p->reading.n;
        s->counters.prefill_tokens += p->reading.n;
    }
    parts_counters(s->cache, &(struct cache_counters){0}, true);
    memory_free(p);
    s->prompt = NULL;
}

static enum terse_status drop(void *user, struct terse_error *error) {
    (void)error;
    end_prompt(user, true);
    return TERSE_OK;
}

void session_drop_prompt(struct terse_session *s) {
    if (!s->prompt) return;
    engine_run(s->engine, drop, s, NULL);
    atomic_store(&s->cancelled, false); /* a cancellation that comes now means this prompt */
}

/* ---- Going on */

static enum terse_status begin(void *user, struct terse_error *error) {
    struct terse_session *s = user;
    double start = clock_now();
    enum terse_status status;
    do status = reading_keep_cache(&s->prompt->reading, error);
    while (engine_makes_room(s->engine, status, PREFIX_NOW));
    if (!status) status = begin_step(s->prompt, error);
    if (status) end_prompt(s, true);
    s->counters.prefill_seconds += clock_now() - start;
    return status;
}

static enum terse_status advance(struct prompt *p, struct terse_error *error) {
    const struct led led = led_of(p->reading.session);
    const struct step step = step_of(p);
    enum terse_status status = reading_check_cancelled(&p->reading, error);
    if (!status && !p->pass) status = begin_step(p, error);
    if (!status) status = lead_advance(&led, &step, p->pass, error);
    if (status) return status;
    struct step_progress at = led.ops->progress(p->pass);
    if (at.done < at.total) return TERSE_OK;
    lead_end(&led, &step, p->pass);
    p->pass = NULL;
    p->reading.first += p->count;
    return TERSE_OK;
}

enum terse_status prompt_advance(struct terse_session *s, struct terse_error *error) {
    double start = clock_now();
    enum terse_status status = advance(s->prompt, error);
    if (status || s->prompt->reading.first == s->prompt->reading.n) end_prompt(s, status != TERSE_OK);
    s->counters.prefill_seconds += clock_now() - start;
    return status;
}

enum terse_status terse_session_begin_prompt(struct terse_session *session, const int32_t *tokens, size_t n,
                                             const struct terse_logits_sink *sink, struct terse_error *error) {
    enum terse_status status = check_prompt(session, tokens, n, error);
    if (!status) status = new_prompt(session, tokens, n, sink, error);
    return status ? status : engine_run(session->engine, begin, session, error);
}

/* ---- To the end at once */

static enum terse_status prefill(void *user, struct terse_error *error) {
    struct terse_session *s = user;
    const struct terse_progress progress = thread_pool_progress(&s->options.progress);
    uint64_t n = s->prompt->reading.n, total = n * model_of(s)->layers, done = 0, all;
    enum terse_status status = begin(s, error);
    while (!status && s->prompt) {
        status = prompt_advance(s, error);
        terse_session_prompt(s, &done, &all);
        bool goes_on = status || !progress.report || progress.report(progress.user, "prompt", s->prompt ? done : total, total);
        if (goes_on || !s->prompt) continue;
        end_prompt(s, true);
        status = status_fail(error, TERSE_E_INTERRUPTED, "interrupted while reading %zu tokens", (size_t)n);
    }
    return status;
}

enum terse_status terse_session_prefill(struct terse_session *session, const int32_t *tokens, size_t n,
                                        const struct terse_logits_sink *sink, struct terse_error *error) {
    enum terse_status status = check_prompt(session, tokens, n, error);
    if (!status) status = new_prompt(session, tokens, n, sink, error);
    return status ? status : engine_run(session->engine, prefill, session, error);
}
