/* Keeps the states of recurrent layers. */
#include "kv/recurrent.h"

#include <stdlib.h>
#include <string.h>

#define LEVELS 4   /* of distances between kept states */
#define WIDENING 8 /* from one level to the next */

static const char what[] = "the states of recurrent layers";

/* ---- Which states are kept */

/* Returns whether a level above this one keeps that state, `tokens` and `length` both counted from the exact tokens' end. */
static bool is_kept_above(uint64_t tokens, int level, uint64_t length) {
    uint64_t distance = PAGE_TOKENS;
    for (int at = 0; at < LEVELS; at++, distance *= WIDENING)
        if (at > level && tokens % distance == 0 && length - tokens < 2 * distance) return true;
    return false;
}

/* Returns whether a sequence of `length` tokens keeps its state after `tokens` of them, which are whole pages behind `exact` ones:
 * whether it is one of the two newest of a level. */
static bool is_kept(uint64_t tokens, uint64_t exact, uint64_t length) { return is_kept_above(tokens - exact, -1, length - exact); }

/* Returns the first end of a page after `tokens` tokens. */
static uint64_t next_end(uint64_t exact, uint64_t tokens) {
    return tokens < exact ? exact + PAGE_TOKENS : tokens + PAGE_TOKENS - (tokens - exact) % PAGE_TOKENS;
}

uint64_t recurrent_count(uint64_t exact, uint64_t tokens) {
    const uint64_t behind = tokens > exact ? tokens - exact : 0;
    uint64_t n = tokens > 0, distance = PAGE_TOKENS;
    for (int level = 0; level < LEVELS; level++, distance *= WIDENING)
        for (uint64_t i = behind / distance, newest = 2; i && newest; i--, newest--)
            n += !is_kept_above(i * distance, level, behind);
    return n;
}

/* ---- Memory */

static void let_go(struct cache_base *base, struct recurrent_state **state) {
    if (*state && !--(*state)->holders) {
        budget_free(base->budget, (*state)->layers, recurrent_bytes(&base->shape));
        free(*state);
    }
    *state = NULL;
}

static void hold(struct recurrent_state **to, struct recurrent_state *state) {
    *to = state;
    if (state) state->holders++;
}

/* Makes a state after so many tokens, as `from` is; NULL: of zeros. */
static enum terse_status new_state(struct cache_base *base, uint64_t tokens, const struct recurrent_state *from,
                                   struct recurrent_state **state, struct terse_error *error) {
    const uint64_t bytes = recurrent_bytes(&base->shape);
    struct recurrent_state *s = calloc(1, sizeof *s);
    *state = NULL;
    if (!s) return status_no_memory(error, sizeof *s, what);
    *s = (struct recurrent_state){tokens, 1, budget_array(base->budget, 1, bytes, what, error)};
    if (!s->layers) {
        free(s);
        return TERSE_E_MEMORY;
    }
    if (from)
        memcpy(s->layers, from->layers, bytes);
    else
        memset(s->layers, 0, bytes);
    *state = s;
    return TERSE_OK;
}

static void drop_coming(struct cache_base *base) {
    struct recurrent_states *r = &base->recurrent;
    while (r->n_coming) let_go(base, &r->coming[--r->n_coming]);
}

uint64_t recurrent_held_bytes(const struct cache_base *base) {
    const struct recurrent_states *r = &base->recurrent;
    return ((r->now != NULL) + r->n_kept + r->n_coming) * recurrent_bytes(&base->shape);
}

void recurrent_forget(struct cache_base *base) {
    struct recurrent_states *r = &base->recurrent;
    drop_coming(base);
    while (r->n_kept) let_go(base, &r->kept[--r->n_kept]);
    let_go(base, &r->now);
}

/* ---- Steps */

/* Makes memory for the states that the step will keep. */
static enum terse_status expect(struct cache_base *base, struct terse_error *error) {
    struct recurrent_states *r = &base->recurrent;
    const uint64_t exact = base->method.parameters.exact, length = base->plan.after.length;
    enum terse_status status = TERSE_OK;
    for (uint64_t end = next_end(exact, base->plan.before.length); end <= length && !status; end += PAGE_TOKENS) {
        if (!is_kept(end, exact, length)) continue;
        status = new_state(base, end, NULL, &r->coming[r->n_coming], error);
        r->n_coming += !status;
    }
    return status;
}

enum terse_status recurrent_begin_step(struct cache_base *base, struct terse_error *error) {
    struct recurrent_states *r = &base->recurrent;
    struct recurrent_state *own;
    if (!recurrent_bytes(&base->shape)) return TERSE_OK;
    drop_coming(base);
    enum terse_status status = expect(base, error);
    if (!status && (!r->now || r->now->holders > 1)) {
        status = new_state(base, base->extent.length, r->now, &own, error);
        if (!status) {
            let_go(base, &r->now);
            r->now = own;
        }
    }
    if (status) drop_coming(base);
    return status;
}

void recurrent_end_step(struct cache_base *base) {
    struct recurrent_states *r = &base->recurrent;
    const uint64_t length = base->plan.after.length;
    struct recurrent_state *all[2 * RECURRENT_KEPT_MOST];
    size_t n = 0;
    if (!r->now) return;
    r->now->tokens = length;
    while (r->n_coming) all[n++] = r->coming[--r->n_coming];
    for (size_t i = 0; i < r->n_kept; i++) all[n++] = r->kept[i];
    r->n_kept = 0;
    for (size_t i = 0; i < n; i++)
        if (is_kept(all[i]->tokens, base->method.parameters.exact, length))
            r->kept[r->n_kept++] = all[i];
        else
            let_go(base, &all[i]);
}

float *recurrent_layer(const struct cache_base *base, uint32_t layer) {
    return base->recurrent.now->layers + (size_t)layer * base->shape.recurrent_floats;
}

size_t recurrent_run(const struct cache_base *base, uint64_t token, size_t n) {
    const struct recurrent_states *r = &base->recurrent;
    for (size_t i = 0; i < r->n_coming; i++)
        if (r->coming[i]->tokens > token && r->coming[i]->tokens - token < n) return (size_t)(r->coming[i]->tokens - token);
    return n;
}

void recurrent_keep(const struct cache_base *base, uint32_t layer, uint64_t tokens) {
    const struct recurrent_states *r = &base->recurrent;
    const size_t floats = base->shape.recurrent_floats;
    for (size_t i = 0; i < r->n_coming; i++)
        if (r->coming[i]->tokens == tokens)
            memcpy(r->coming[i]->layers + layer * floats, recurrent_layer(base, layer), floats * sizeof(float));
}

/* ---- Between steps */

/* Returns the number of the kept state after exactly n tokens; n_kept: there is none. */
static size_t find(const struct recurrent_states *r, uint64_t n) {
    size_t i = 0;
    while (i < r->n_kept && r->kept[i]->tokens != n) i++;
    return i;
}

uint64_t recurrent_restorable(const struct cache_base *base, uint64_t n) {
    const struct recurrent_states *r = &base->recurrent;
    if (!recurrent_bytes(&base->shape) || n >= base->extent.length) return n;
    for (size_t i = 0; i < r->n_kept; i++)
        if (r->kept[i]->tokens <= n) return r->kept[i]->tokens;
    return 0;
}

void recurrent_restore(struct cache_base *base, uint64_t n) {
    struct recurrent_states *r = &base->recurrent;
    if (!r->now || n == r->now->tokens) return;
    struct recurrent_state *wanted = NULL;
    if (find(r, n) < r->n_kept) hold(&wanted, r->kept[find(r, n)]);
    let_go(base, &r->now);
    r->now = wanted;
    size_t newer = 0;
    while (newer < r->n_kept && r->kept[newer]->tokens > n) let_go(base, &r->kept[newer++]);
    memmove(r->kept, r->kept + newer, (r->n_kept - newer) * sizeof(struct recurrent_state *));
    r->n_kept -= newer;
}

void recurrent_share(struct cache_base *base, const struct cache_base *from) {
    struct recurrent_states *r = &base->recurrent;
    hold(&r->now, from->recurrent.now);
    for (size_t i = 0; i < from->recurrent.n_kept; i++) hold(&r->kept[r->n_kept++], from->recurrent.kept[i]);
}

/* ---- Saved states */

static void put(const struct recurrent_state *state, uint64_t bytes, struct state_writer *writer) {
    state_writer_put(writer, &state->tokens, sizeof state->tokens);
    state_writer_put(writer, state->layers, bytes);
}

void recurrent_save(const struct cache_base *base, struct state_writer *writer) {
    const struct recurrent_states *r = &base->recurrent;
    const uint64_t bytes = recurrent_bytes(&base->shape);
    if (!r->now) return;
    put(r->now, bytes, writer);
    for (size_t i = 0; i < r->n_kept; i++) put(r->kept[i], bytes, writer);
}

/* Takes a state of so many tokens over, unless it is none that the sequence keeps. */
static bool takes(struct cache_base *base, struct recurrent_state *state) {
    struct recurrent_states *r = &base->recurrent;
    const uint64_t exact = base->method.parameters.exact, length = base->extent.length;
    if (!r->now) {
        r->now = state;
        return state->tokens == length;
    }
    const bool falls = state->tokens < (r->n_kept ? r->kept[r->n_kept - 1]->tokens : length + 1);
    if (!falls || state->tokens <= exact || (state->tokens - exact) % PAGE_TOKENS || !is_kept(state->tokens, exact, length)) {
        let_go(base, &state);
        return false;
    }
    r->kept[r->n_kept++] = state;
    return true;
}

enum terse_status recurrent_load(struct cache_base *base, const struct state_file *file, const uint8_t *bytes, size_t n,
                                 struct terse_error *error) {
    const size_t state_bytes = (size_t)recurrent_bytes(&base->shape), each = sizeof(uint64_t) + state_bytes;
    const bool none = !state_bytes || !base->extent.length;
    if (none ? n > 0 : n < each || n % each) return state_file_refuse(file, STATE_CACHE, "it is of another size", error);
    for (; n; bytes += each, n -= each) {
        struct recurrent_state *state;
        uint64_t tokens;
        memcpy(&tokens, bytes, sizeof tokens);
        enum terse_status status = new_state(base, tokens, NULL, &state, error);
        if (status) return status;
        memcpy(state->layers, bytes + sizeof tokens, state_bytes);
        if (!takes(base, state))
            return state_file_refuse(file, STATE_CACHE, "its recurrent states are not those of its tokens", error);
    }
    return TERSE_OK;
}
