#include "saved_prefix.h"

#include "task_end.h"

#include <stdlib.h>

/* Gives the session away to be saved, and the slot to others. Returns false if it is not to be saved, or cannot be for want of memory. */
static bool save(struct scheduler *s, struct generation *g) {
    size_t n;
    const int32_t *tokens = terse_session_tokens(g->session, &n);
    if (!s->options.store || !store_takes(n)) return false;
    struct saving *saving = malloc(sizeof *saving);
    if (!saving) return false;
    terse_session_allow_any_text(g->session); /* the JSON text that it was bound to is over, and cannot be saved */
    *saving = (struct saving){.session = g->session, .tokens = tokens, .n = n, .owner = g};
    leave_slot(s, g);
    g->session = NULL;
    g->saving = saving;
    g->state = GENERATION_SAVING;
    s->saving++;
    saver_give(s->saver, saving);
    return true;
}

enum terse_status keep_prefix(struct scheduler *s, const struct generation *g, struct terse_error *error) {
    size_t n;
    const int32_t *tokens = terse_session_tokens(g->session, &n);
    enum terse_status status = terse_engine_keep_prefix(s->options.engine, g->session, error);
    if (!status) slots_remember(&s->slots, slots_find(&s->slots, g), tokens, n);
    return status;
}

void end_generation(struct scheduler *s, struct generation *g) {
    struct terse_error error;
    reply_piece(g);
    if (g->task->request.use_prefix && g->choice == 0) {
        (void)keep_prefix(s, g, &error); /* what there is no memory to keep is read again */
        if (save(s, g)) return;
    }
    finish_generation(s, g);
}

void end_generation_at_fault(struct scheduler *s, struct generation *g, enum terse_status status, const struct terse_error *error) {
    if ((status != TERSE_E_CONTEXT && status != TERSE_E_MEMORY) || !generation_started(g)) {
        fail_task_with(s, g->task, error);
        return;
    }
    generation_sent(g); /* its newest token was */
    generation_finish(g, FINISH_LENGTH);
    end_generation(s, g);
}

/* Answers a client that wanted a slot saved. */
static void finish_action(struct saving *saving) {
    if (saving->status)
        slot_action_fail(saving->action, http_status_of(saving->status), saving->error.message);
    else
        slot_action_done(saving->action, saving->n, saving->bytes);
}

void finish_saved_generations(struct scheduler *s) {
    struct saving *saving;
    while (s->saving && ((saving = saver_take(s->saver)) || (saving = saver_take(s->slot_saver)))) {
        struct generation *g = saving->owner;
        s->saving--;
        s->blocked = false; /* its pages are free */
        if (saving->action) finish_action(saving);
        terse_session_free(saving->session);
        free(saving);
        if (!g) continue; /* its task has ended meanwhile */
        g->saving = NULL;
        finish_generation(s, g);
    }
}
