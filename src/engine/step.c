/* Reading tokens: prompts, and decoding steps of one session or of many. Owns the limits of a sequence (context, token ids) and the choice of step
 * kinds; the engine's backend computes, on the engine's driver thread, and callbacks run on the caller's. */
#include "base/clock.h"
#include "base/memory.h"
#include "engine/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- What may be read */

static enum terse_status check_tokens(const struct terse_session *s, const int32_t *tokens, size_t n, struct terse_error *error) {
    if (!n) return status_fail(error, TERSE_E_ARGUMENT, "no tokens: a step needs at least one");
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= model_of(s)->vocabulary)
            return status_fail(error, TERSE_E_ARGUMENT, "token %" PRId32 " at %zu is outside the vocabulary of %u", tokens[i], i,
                               model_of(s)->vocabulary);
    return TERSE_OK;
}

enum terse_status session_check_room(const struct terse_session *s, size_t n, size_t together, struct terse_error *error) {
    uint64_t length = kv_of(s)->length(s->cache), budget = s->method.parameters.budget, context = s->options.context;
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

/* ---- A call into the engine */

/* What a session reads in one call. */
struct reading {
    struct terse_session *session;
    const int32_t *tokens;
    size_t n;
    const struct terse_logits_sink *sink; /* or NULL */
    struct terse_progress progress;
    size_t first; /* of the step in progress: the call's token that is its first */
    bool ends;    /* with it the call ends */
};

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
    team_call(hand_over_rows, &(struct rows){user, first, count, logits});
}

/* The call's tokens from r->first on, `count` of them. */
static struct step_part part_of(struct reading *r, enum cache_step_kind kind, size_t count) {
    const struct terse_logits_sink *sink = r->sink;
    bool wanted = sink && sink->first < r->first + count;
    return (struct step_part){.cache = r->session->cache,
                              .kind = kind,
                              .tokens = r->tokens + r->first,
                              .n = count,
                              .last_logits = r->ends ? r->session->next_logits : NULL,
                              .rows = wanted ? put_rows : NULL,
                              .first_row = wanted && sink->first > r->first ? sink->first - r->first : 0,
                              .user = r};
}

/* ---- Calls that may be broken off: they leave the sessions as they were */

/* The caches as they are, for give_back(). */
static enum terse_status keep_caches(struct reading *readings, size_t n, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    for (size_t i = 0; i < n; i++) readings[i].session->before = NULL;
    for (size_t i = 0; i < n && !status; i++) {
        struct terse_session *s = readings[i].session;
        if (kv_of(s)->length(s->cache)) status = kv_of(s)->fork(s->cache, &s->before, error);
    }
    return status;
}

/* Puts the caches back when the call has failed, and releases what is not needed any more. */
static void give_back(struct reading *readings, size_t n, bool failed) {
    for (size_t i = 0; i < n; i++) {
        struct terse_session *s = readings[i].session;
        struct cache *unwanted = failed && s->before ? s->cache : s->before;
        if (failed && s->before) s->cache = s->before;
        if (failed && !s->before && !s->n_tokens) kv_of(s)->reset(s->cache);
        kv_of(s)->destroy(unwanted);
        s->before = NULL;
    }
}

/* The first session that was cancelled, which is forgotten by that; n: none. */
static size_t find_cancelled(struct reading *readings, size_t n) {
    size_t i = 0;
    while (i < n && !atomic_exchange(&readings[i].session->cancelled, false)) i++;
    return i;
}

static enum terse_status check_cancelled(struct reading *readings, size_t n, size_t *failed, struct terse_error *error) {
    size_t i = find_cancelled(readings, n);
    if (i == n) return TERSE_OK;
    *failed = i;
    return status_fail(error, TERSE_E_INTERRUPTED, "cancelled");
}

/* What it is that a step reads, and whether it may be broken off. */
struct course {
    struct reading *readings;
    size_t n;
    bool may_stop;
    const struct terse_progress *progress;
};

/* Readings are in the order of the step's parts. *failed: the part at fault, step->n where it is none of them. */
static enum terse_status run_parts(struct terse_engine *engine, const struct step *step, const struct course *course,
                                   size_t *failed, struct terse_error *error) {
    const struct executor_ops *ops = engine->backend.executor;
    const struct terse_progress *progress = course->progress;
    struct pass *pass = NULL;
    *failed = step->n;
    enum terse_status status = check_cancelled(course->readings, course->n, failed, error);
    if (!status) status = ops->begin(engine->executor, step, &pass, failed, error);
    struct step_progress at = {0, 1};
    while (!status && at.done < at.total) {
        if ((status = ops->advance(pass, error))) break;
        at = ops->progress(pass);
        if (at.done == at.total || !course->may_stop) continue;
        if ((status = check_cancelled(course->readings, course->n, failed, error))) break;
        if (progress && progress->report && !progress->report(progress->user, "prompt", at.done, at.total))
            status = status_fail(error, TERSE_E_INTERRUPTED, "interrupted while reading %zu tokens", step->parts->n);
    }
    if (!status && progress && progress->report) progress->report(progress->user, "prompt", at.done, at.total);
    ops->end(pass);
    return status;
}

/* What a session reads has become part of it. */
static void take_tokens(struct reading *r) {
    struct terse_session *s = r->session;
    float *logits = s->next_logits;
    s->next_logits = s->logits;
    s->logits = logits;
    s->has_logits = true;
    session_add_tokens(s, r->tokens, r->n);
}

/* ---- Prompts */

static enum terse_status prefill_step(struct reading *r, enum cache_step_kind kind, size_t count,
                                      const struct terse_progress *progress, struct terse_error *error) {
    struct step_part part = part_of(r, kind, count);
    size_t failed;
    return run_parts(r->session->engine, &(struct step){&part, 1}, &(struct course){r, 1, true, progress}, &failed, error);
}

static enum terse_status prefill_in_chunks(struct reading *r, struct terse_error *error) {
    size_t batch = r->session->options.batch;
    enum terse_status status = TERSE_OK;
    for (r->first = 0; r->first < r->n && !status; r->first += batch) {
        size_t count = r->n - r->first < batch ? r->n - r->first : batch;
        r->ends = r->first + count == r->n;
        status = prefill_step(r, CACHE_STEP_CHUNK, count, NULL, error);
        bool goes_on = status || !r->progress.report || r->progress.report(r->progress.user, "prompt", r->first + count, r->n);
        if (!goes_on && !r->ends)
            status = status_fail(error, TERSE_E_INTERRUPTED, "interrupted after %zu of %zu tokens", r->first + count, r->n);
    }
    return status;
}

static enum terse_status prefill(void *user, struct terse_error *error) {
    struct reading *r = user;
    enum terse_prefill mode = r->session->options.prefill;
    enum cache_step_kind kind = mode == TERSE_PREFILL_PAPER ? CACHE_STEP_PAPER : CACHE_STEP_PREFILL;
    enum terse_status status = keep_caches(r, 1, error);
    if (!status)
        status = mode == TERSE_PREFILL_COMPRESSED ? prefill_in_chunks(r, error) : prefill_step(r, kind, r->n, &r->progress, error);
    give_back(r, 1, status != TERSE_OK);
    if (!status) take_tokens(r);
    if (!status && mode == TERSE_PREFILL_EXACT && r->session->n_tokens == r->n) r->session->first_prompt = r->n;
    return status;
}

enum terse_status terse_session_prefill(struct terse_session *session, const int32_t *tokens, size_t n,
                                        const struct terse_logits_sink *sink, struct terse_error *error) {
    const struct terse_session_options *o = &session->options;
    size_t together = o->prefill == TERSE_PREFILL_COMPRESSED && n > o->batch ? o->batch : n;
    enum terse_status status = check_tokens(session, tokens, n, error);
    if (!status) status = session_check_room(session, n, together, error);
    if (!status) status = session_admit(session, n, error);
    if (!status) status = session_reserve_tokens(session, n, error);
    if (status) return status;
    double start = clock_now();
    struct reading r = {session, tokens, n, sink, team_progress(&o->progress), 0, true};
    status = engine_run_in_budget(session->engine, prefill, &r, error);
    session->counters.prefill_seconds += clock_now() - start;
    if (!status) session->counters.prefill_tokens += n;
    kv_of(session)->counters(session->cache, &(struct cache_counters){0}, true);
    return status;
}

/* ---- Decoding */

#define LONG_STEP 64 /* tokens beside one of each session, above which a step looks whether to stop: a shorter one is soon over */

struct batch {
    struct terse_engine *engine;
    struct terse_step_item *items;
    size_t n, failed; /* the item at fault */
};

static enum terse_status check_item(const struct batch *b, size_t i, struct terse_error *error) {
    const struct terse_step_item *item = &b->items[i];
    struct terse_session *s = item->session;
    if (!s) return status_fail(error, TERSE_E_ARGUMENT, "no session");
    if (s->engine != b->engine)
        return status_fail(error, TERSE_E_ARGUMENT, "the session is another engine's: give it to terse_engine_step of its own");
    if (s->in_batch) return status_fail(error, TERSE_E_ARGUMENT, "the session has an item before: give it all tokens in one item");
    s->in_batch = true;
    enum terse_status status = check_tokens(s, item->tokens, item->n, error);
    if (!status) status = session_check_room(s, item->n, item->n, error);
    return status ? status : session_reserve_tokens(s, item->n, error);
}

static enum terse_status check_items(struct batch *b, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    for (size_t i = 0; i < b->n; i++) b->items[i].status = TERSE_OK;
    for (size_t i = 0; i < b->n && !status; i++)
        if ((status = check_item(b, i, error))) b->failed = i;
    for (size_t i = 0; i < b->n; i++)
        if (b->items[i].session) b->items[i].session->in_batch = false;
    return status;
}

/* Memory for n items. */
static enum terse_status reserve_batch(struct engine_batch *b, size_t n, struct terse_error *error) {
    if (n <= b->capacity) return TERSE_OK;
    struct reading *readings = memory_array(n, sizeof *readings);
    struct step_part *parts = memory_array(n, sizeof *parts);
    if (!readings || !parts) {
        memory_free(readings);
        memory_free(parts);
        return status_no_memory(error, n * (sizeof *readings + sizeof *parts), "a batch");
    }
    memory_free(b->readings);
    memory_free(b->parts);
    *b = (struct engine_batch){readings, parts, n};
    return TERSE_OK;
}

static enum terse_status decode(void *user, struct terse_error *error) {
    struct batch *b = user;
    struct engine_batch *memory = &b->engine->batch;
    enum terse_status status = reserve_batch(memory, b->n, error);
    if (status) return status;
    struct reading *readings = memory->readings;
    size_t tokens = 0;
    for (size_t i = 0; i < b->n; i++) {
        const struct terse_step_item *item = &b->items[i];
        readings[i] =
            (struct reading){.session = item->session, .tokens = item->tokens, .n = item->n, .sink = item->sink, .ends = true};
        memory->parts[i] = part_of(&readings[i], CACHE_STEP_DECODE, item->n);
        tokens += item->n;
    }
    bool may_stop = tokens > LONG_STEP + b->n;
    if (may_stop) status = keep_caches(readings, b->n, error);
    if (!status)
        status = run_parts(b->engine, &(struct step){memory->parts, b->n}, &(struct course){readings, b->n, may_stop, NULL},
                           &b->failed, error);
    if (may_stop) give_back(readings, b->n, status != TERSE_OK);
    for (size_t i = 0; i < b->n && !status; i++) take_tokens(&readings[i]);
    return status;
}

/* What a step of `seconds` leaves in the counters, and, if it has succeeded, in the sessions. */
static void finish_item(const struct terse_step_item *item, double seconds, bool good) {
    struct terse_session *s = item->session;
    struct cache_counters attention;
    kv_of(s)->counters(s->cache, &attention, true);
    s->counters.decode_seconds += seconds;
    s->counters.attention_seconds += attention.seconds;
    s->counters.attention_bytes += attention.bytes;
    if (!good) return;
    s->counters.decode_tokens += item->n;
    for (size_t i = 0; i < item->n && s->json.schema; i++) json_constraint_take(&s->json, item->tokens[i]);
}

/* Says which item the failure is of, where there are several. */
static enum terse_status blame(const struct batch *b, enum terse_status status, struct terse_error *error) {
    char message[sizeof error->message];
    if (b->failed >= b->n) return status;
    b->items[b->failed].status = status;
    if (b->n == 1 || !error) return status;
    memcpy(message, error->message, sizeof message);
    snprintf(error->message, sizeof error->message, "item %zu of %zu: %.400s", b->failed + 1, b->n, message);
    return status;
}

enum terse_status terse_engine_step(struct terse_engine *engine, struct terse_step_item *items, size_t n,
                                    struct terse_error *error) {
    struct batch b = {engine, items, n, n};
    if (!n) return status_fail(error, TERSE_E_ARGUMENT, "no items: a step needs at least one");
    enum terse_status status = check_items(&b, error);
    if (status) return blame(&b, status, error);
    double start = clock_now();
    status = engine_run_in_budget(engine, decode, &b, error);
    double seconds = clock_now() - start;
    for (size_t i = 0; i < n; i++) finish_item(&items[i], seconds, !status);
    return status ? blame(&b, status, error) : TERSE_OK;
}

enum terse_status terse_session_decode(struct terse_session *session, const int32_t *tokens, size_t n,
                                       const struct terse_logits_sink *sink, struct terse_error *error) {
    struct terse_step_item item = {.session = session, .tokens = tokens, .n = n, .sink = sink};
    return terse_engine_step(session->engine, &item, 1, error);
}
