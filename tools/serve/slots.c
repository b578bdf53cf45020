#include "slots.h"

#include "console.h"

#include <stdlib.h>
#include <string.h>

bool slots_init(struct slots *slots, uint32_t n) {
    *slots = (struct slots){.n = n, .of = calloc(n, sizeof *slots->of), .left = calloc(n, sizeof *slots->left)};
    return slots->of && slots->left;
}

void slots_free(struct slots *slots) {
    for (uint32_t i = 0; slots->left && i < slots->n; i++) free(slots->left[i].tokens);
    free(slots->of);
    free(slots->left);
}

uint32_t slots_find(const struct slots *slots, const struct generation *g) {
    uint32_t i = 0;
    while (slots->of[i] != g) i++;
    return i;
}

void slots_take(struct slots *slots, struct generation *first, size_t n) {
    for (uint32_t i = 0; n && i < slots->n; i++) {
        if (slots->of[i]) continue;
        slots->of[i] = first;
        slots_remember(slots, i, NULL, 0);
        first->state = GENERATION_READING;
        first->began = console_seconds();
        first->task->slots_taken++;
        first++;
        n--;
    }
}

void slots_remember(struct slots *slots, uint32_t slot, const int32_t *tokens, size_t n) {
    struct slot_sequence *left = &slots->left[slot];
    free(left->tokens);
    left->tokens = n ? malloc((n + 1) * sizeof *tokens) : NULL;
    left->n = left->tokens ? n : 0;
    if (left->n) memcpy(left->tokens, tokens, n * sizeof *tokens);
}

void slots_leave(struct slots *slots, struct generation *g) {
    slots->of[slots_find(slots, g)] = NULL;
    g->task->slots_taken--;
}

uint32_t slots_taken(const struct slots *slots) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < slots->n; i++) n += slots->of[i] != NULL;
    return n;
}

uint32_t slots_taken_by(const struct slots *slots, uint64_t client) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < slots->n; i++) n += slots->of[i] && slots->of[i]->task->client == client;
    return n;
}

bool generation_runs(const struct generation *g) {
    return g && g->session && (g->state == GENERATION_READING || g->state == GENERATION_WRITING);
}

uint32_t slots_running(const struct slots *slots) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < slots->n; i++) n += generation_runs(slots->of[i]);
    return n;
}

static bool is_newer(const struct generation *a, const struct generation *b) {
    return a->began > b->began || (a->began == b->began && a->index > b->index);
}

struct generation *slots_newest_running(const struct slots *slots) {
    struct generation *newest = NULL;
    for (uint32_t i = 0; i < slots->n; i++) {
        struct generation *g = slots->of[i];
        if (generation_runs(g) && (!newest || is_newer(g, newest))) newest = g;
    }
    return newest;
}

struct generation *slots_oldest_preempted(const struct slots *slots) {
    struct generation *oldest = NULL;
    for (uint32_t i = 0; i < slots->n; i++) {
        struct generation *g = slots->of[i];
        if (g && g->state == GENERATION_PREEMPTED && (!oldest || is_newer(oldest, g))) oldest = g;
    }
    return oldest;
}

struct generation *slots_with_session(const struct slots *slots, const struct terse_session *session) {
    for (uint32_t i = 0; i < slots->n; i++)
        if (slots->of[i] && slots->of[i]->session == session) return slots->of[i];
    return NULL;
}
