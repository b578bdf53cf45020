#include "saved_prefix.h"

#include "task_end.h"

#include <stdlib.h>
#include <string.h>

/* Returns the tokens that the session has read, NULL without memory. */
static int32_t *tokens_read(const struct generation *g, size_t n) {
    size_t n_prompt = g->prompt->n;
    int32_t *tokens = malloc(n * sizeof *tokens);
    if (!tokens) return NULL;
    memcpy(tokens, g->prompt->tokens, n_prompt * sizeof *tokens);
    if (n > n_prompt) memcpy(tokens + n_prompt, g->written.bytes, (n - n_prompt) * sizeof *tokens);
    return tokens;
}

/* Gives the session away to be saved. Returns false if it is not to be saved, or cannot be for want of memory. */
static bool save(struct scheduler *s, struct generation *g) {
    size_t n = terse_session_length(g->session), n_prompt = g->prompt->n;
    if (!s->saver || n < n_prompt || g->written.n < (n - n_prompt) * sizeof(int32_t)) return false;
    struct saving *saving = malloc(sizeof *saving);
    int32_t *tokens = tokens_read(g, n);
    if (!saving || !tokens) {
        free(saving);
        free(tokens);
        return false;
    }
    terse_session_allow_any_text(g->session); /* the JSON text that it was bound to is over, and cannot be saved */
    *saving = (struct saving){.session = g->session, .tokens = tokens, .n = n, .owner = g};
    slot_views_write_one(&s->views, &s->slots, g);
    g->session = NULL;
    g->saving = saving;
    g->state = GENERATION_SAVING;
    s->saving++;
    saver_give(s->saver, saving);
    return true;
}

void end_generation(struct scheduler *s, struct generation *g) {
    struct terse_error error;
    reply_piece(g);
    if (g->task->request.use_prefix && g->choice == 0) {
        (void)terse_engine_keep_prefix(s->options.engine, g->session, &error); /* what there is no memory to keep is read again */
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

void finish_saved_generations(struct scheduler *s) {
    struct saving *saving;
    while (s->saving && (saving = saver_take(s->saver))) {
        struct generation *g = saving->owner;
        s->saving--;
        s->blocked = false; /* its pages are free */
        terse_session_free(saving->session);
        free(saving->tokens);
        free(saving);
        if (!g) continue; /* its task has ended meanwhile */
        g->saving = NULL;
        finish_generation(s, g);
    }
}
