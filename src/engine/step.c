/* Implements steps of sessions: decoding, of one or of many together (continuous batching), and going on with prompts. Owns the
 * turns of prompts; the engine's backend computes, on the engine's driver thread, and callbacks run on the caller's. */
#include "base/clock.h"
#include "base/memory.h"
#include "engine/prompt.h"

#include <stdio.h>
#include <string.h>

/* ---- Items */

#define LONG_STEP 64 /* tokens beside one of each session, above which a step looks whether to stop: a shorter one is soon over */

struct batch {
    struct terse_engine *engine;
    struct terse_step_item *items;
    size_t n, failed;   /* the item at fault */
    size_t decoding;    /* items that bring tokens; the others go on with prompts */
    bool prompt_failed; /* one of them, which `error` tells of */
};

static bool decodes(const struct terse_step_item *item) { return item->n > 0; }

static enum terse_status check_item(const struct batch *b, size_t i, struct terse_error *error) {
    const struct terse_step_item *item = &b->items[i];
    struct terse_session *s = item->session;
    if (!s) return status_fail(error, TERSE_E_ARGUMENT, "no session");
    if (s->engine != b->engine)
        return status_fail(error, TERSE_E_ARGUMENT, "the session is another engine's: give it to terse_engine_step of its own");
    if (s->in_batch) return status_fail(error, TERSE_E_ARGUMENT, "the session has an item before: give it all tokens in one item");
    s->in_batch = true;
    if (!decodes(item))
        return s->prompt ? TERSE_OK
                         : status_fail(error, TERSE_E_ARGUMENT,
                                       "no tokens, and no prompt under way: a step needs at least one token, or a prompt that "
                                       "terse_session_begin_prompt has begun");
    enum terse_status status = reading_check(s, item->tokens, item->n, error);
    if (!status) status = session_check_room(s, item->n, item->n, error);
    return status ? status : session_reserve_tokens(s, item->n, error);
}

static enum terse_status check_items(struct batch *b, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    for (size_t i = 0; i < b->n; i++) b->items[i].status = TERSE_OK;
    for (size_t i = 0; i < b->n && !status; i++) {
        if ((status = check_item(b, i, error))) b->failed = i;
        b->decoding += decodes(&b->items[i]);
    }
    for (size_t i = 0; i < b->n; i++)
        if (b->items[i].session) b->items[i].session->in_batch = false;
    return status;
}

/* Adds to the message which item failed, where there are several. */
static enum terse_status blame(const struct batch *b, size_t item, enum terse_status status, struct terse_error *error) {
    char message[sizeof error->message];
    if (item >= b->n) return status;
    b->items[item].status = status;
    if (b->n == 1 || !error) return status;
    memcpy(message, error->message, sizeof message);
    snprintf(error->message, sizeof error->message, "item %zu of %zu: %.400s", item + 1, b->n, message);
    return status;
}

/* ---- Decoding */

/* Reserves memory for n items. */
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

static enum terse_status check_cancelled(const struct reading *readings, size_t n, size_t *failed, struct terse_error *error) {
    for (size_t i = 0; i < n; i++) {
        enum terse_status status = reading_check_cancelled(&readings[i], error);
        if (!status) continue;
        *failed = i;
        return status;
    }
    return TERSE_OK;
}

/* Computes a step of n parts, of as many readings. Sets *failed to the part at fault, or to n where no part is. */
static enum terse_status run_parts(struct terse_engine *engine, size_t n, bool may_stop, size_t *failed,
                                   struct terse_error *error) {
    const struct led led = engine_led(engine);
    const struct engine_batch *memory = &engine->batch;
    const struct step step = {memory->parts, n};
    struct pass *pass = NULL;
    struct step_progress at = {0, 1};
    *failed = n;
    enum terse_status status = check_cancelled(memory->readings, n, failed, error);
    if (!status) status = lead_begin(&led, &step, !may_stop, &pass, failed, error);
    while (!status && at.done < at.total) {
        if ((status = lead_advance(&led, &step, pass, error))) break;
        at = led.ops->progress(pass);
        if (may_stop && at.done < at.total) status = check_cancelled(memory->readings, n, failed, error);
    }
    lead_end(&led, &step, pass);
    return status;
}

/* Returns the item that brings the part-th tokens. */
static size_t item_of(const struct batch *b, size_t part) {
    size_t i = 0;
    while (i < b->n && (!decodes(&b->items[i]) || part--)) i++;
    return i;
}

/* Marks the sessions whose caches a step with numbers that are not finite has left half done. It is not known which of them brought
 * such numbers. */
static void mark_damaged(const struct reading *readings, size_t n, const struct terse_error *error) {
    for (size_t i = 0; i < n; i++) {
        readings[i].session->damaged = *error;
        readings[i].session->has_logits = false;
    }
}

static enum terse_status decode(struct batch *b, struct terse_error *error) {
    struct engine_batch *memory = &b->engine->batch;
    b->failed = b->n;
    enum terse_status status = reserve_batch(memory, b->decoding, error);
    if (status) return status;
    struct reading *readings = memory->readings;
    size_t tokens = 0, n = 0, failed;
    struct terse_error own;
    if (!error) error = &own;
    for (const struct terse_step_item *item = b->items; item < b->items + b->n; item++) {
        if (!decodes(item)) continue;
        readings[n] =
            (struct reading){.session = item->session, .tokens = item->tokens, .n = item->n, .sink = item->sink, .ends = true};
        memory->parts[n] = reading_part(&readings[n], CACHE_STEP_DECODE, item->n);
        tokens += item->n;
        n++;
    }
    bool may_stop = tokens > LONG_STEP + n;
    for (size_t i = 0; i < n && may_stop && !status; i++) status = reading_keep_cache(&readings[i], error);
    if (!status) {
        status = run_parts(b->engine, n, may_stop, &failed, error);
        if (status) b->failed = item_of(b, failed);
    }
    for (size_t i = 0; i < n && may_stop; i++) reading_end(&readings[i], status != TERSE_OK);
    if (status == TERSE_E_FORMAT && !may_stop) mark_damaged(readings, n, error);
    for (size_t i = 0; i < n && !status; i++) reading_take(&readings[i]);
    return status;
}

/* Adds a step to the counters, `seconds` being the item's share of its time, and, if it has succeeded, to the sessions. */
static void finish_item(const struct terse_step_item *item, double seconds, bool good) {
    struct terse_session *s = item->session;
    struct cache_counters attention;
    parts_counters(s->cache, &attention, true);
    s->counters.decode_seconds += seconds;
    s->counters.attention_seconds += attention.seconds;
    s->counters.attention_bytes += attention.bytes;
    if (!good) return;
    s->counters.decode_tokens += item->n;
    for (size_t i = 0; i < item->n && constraint_holds(&s->constraint); i++) constraint_take(&s->constraint, item->tokens[i]);
}

/* ---- Prompts */

/* Returns the item whose prompt has waited longest for its turn; NULL: there is none. */
static struct terse_step_item *next_prompt(const struct batch *b) {
    struct terse_step_item *next = NULL;
    for (struct terse_step_item *item = b->items; item < b->items + b->n; item++) {
        if (decodes(item) || !item->session->prompt) continue;
        if (!next || item->session->prompt->turn < next->session->prompt->turn) next = item;
    }
    return next;
}

/* Gives prompts turns of a piece each, until the engine's time for them is over. */
static void go_on_with_prompts(struct batch *b, struct terse_error *error) {
    double end = clock_now() + b->engine->prompt_seconds;
    struct terse_step_item *item = next_prompt(b);
    while (item) {
        item->session->prompt->turn = ++b->engine->turns;
        struct terse_error *own = b->prompt_failed ? NULL : error; /* the first failure is the one that is told */
        enum terse_status status = prompt_advance(item->session, own);
        if (status) {
            blame(b, (size_t)(item - b->items), status, own);
            b->prompt_failed = true;
        }
        item = clock_now() < end ? next_prompt(b) : NULL;
    }
}

/* ---- Steps */

static enum terse_status step(void *user, struct terse_error *error) {
    struct batch *b = user;
    double start = clock_now();
    enum terse_status status = b->decoding ? decode(b, error) : TERSE_OK;
    double seconds = clock_now() - start;
    for (size_t i = 0; i < b->n; i++)
        if (decodes(&b->items[i])) finish_item(&b->items[i], seconds / (double)b->decoding, !status);
    if (!status) go_on_with_prompts(b, error);
    return status;
}

enum terse_status terse_engine_step(struct terse_engine *engine, struct terse_step_item *items, size_t n,
                                    struct terse_error *error) {
    struct batch b = {.engine = engine, .items = items, .n = n};
    if (!n) return status_fail(error, TERSE_E_ARGUMENT, "no items: a step needs at least one");
    enum terse_status status = check_items(&b, error);
    if (!status) status = engine_run_in_budget(engine, step, &b, error);
    return status ? blame(&b, b.failed, status, error) : TERSE_OK;
}

enum terse_status terse_session_decode(struct terse_session *session, const int32_t *tokens, size_t n,
                                       const struct terse_logits_sink *sink, struct terse_error *error) {
    enum terse_status status = n ? TERSE_OK : reading_check(session, tokens, n, error);
    struct terse_step_item item = {.session = session, .tokens = tokens, .n = n, .sink = sink};
    return status ? status : terse_engine_step(session->engine, &item, 1, error);
}
