#include "step.h"

#include "preemption.h"
#include "saved_prefix.h"
#include "task_end.h"

/* ---- Replies begin when their prompt has been read */

static bool waits_for(const struct generation *g, const struct generation *reader) {
    return g != reader && g->prompt == reader->prompt && g->state == GENERATION_READING && !g->session;
}

/* Begins one more reply to the prompt that `reader` has read, in a fork of its session. */
static enum terse_status begin_fork(struct generation *g, const struct generation *reader, struct terse_error *error) {
    enum terse_status status = terse_session_fork(reader->session, &g->session, error);
    if (!status) status = generation_copy_logs(g, reader, error);
    if (status) return status;
    g->cached = reader->cached;
    g->read = reader->read;
    return TERSE_OK;
}

/* Begins all replies to the prompt that `reader` has read; those for which there is no room yet are preempted. */
static enum terse_status begin_replies(struct scheduler *s, struct generation *reader, struct terse_error *error) {
    struct task *task = reader->task;
    for (size_t i = 0; i < task->n_generations; i++) {
        struct generation *g = &task->generations[i];
        if (!waits_for(g, reader)) continue;
        enum terse_status status = begin_fork(g, reader, error);
        if (!status)
            status = generation_start(g, error);
        else if (status == TERSE_E_MEMORY)
            status = preempt(s, g, error);
        if (status) return status;
    }
    return generation_start(reader, error);
}

/* Sends what the replies to a prompt begin with: an echoed prompt, or the end where no token is wanted. */
static void send_beginnings(struct scheduler *s, struct task *task, struct generation *first) {
    size_t n = (size_t)task->request.best_of, left = task->n_generations - task->done;
    for (size_t i = 0; i < n && left; i++) { /* the task is freed with the last one */
        struct generation *g = &first[i];
        if (g->state != GENERATION_WRITING || g->tokens) continue;
        if (g->finish) {
            left--;
            end_generation(s, g);
        } else if (g->text.n) {
            reply_piece(g);
        }
    }
}

/* Begins the replies to a prompt that was read. The prompt is kept as a prefix as it is now, for other questions about the same text: when the reply
 * is written, the tokens before it may have left the window. */
static void start_writing(struct scheduler *s, struct generation *reader) {
    struct task *task = reader->task;
    struct terse_error error;
    if (task->request.use_prefix) (void)keep_prefix(s, reader, &error);
    if (begin_replies(s, reader, &error))
        fail_task_with(s, task, &error);
    else
        send_beginnings(s, task, reader - reader->choice);
}

/* ---- Before the step */

static void count_token(struct scheduler *s, const struct generation *g) {
    struct metrics *m = s->options.metrics;
    metrics_add(m, &m->written_tokens, 1);
    if (g->waited > 0)
        metrics_observe(m, METRICS_NEXT_TOKEN, g->waited);
    else
        metrics_observe(m, METRICS_FIRST_TOKEN, g->first_token - g->task->arrived);
}

static void choose_token(struct scheduler *s, struct generation *g) {
    struct terse_error error;
    if (generation_next(g, &error)) {
        fail_task_with(s, g->task, &error);
        return;
    }
    count_token(s, g);
    if (g->finish)
        end_generation(s, g);
    else
        reply_piece(g);
}

size_t choose_tokens(struct scheduler *s) {
    size_t n = 0;
    for (uint32_t i = 0; i < s->slots.n; i++) {
        struct generation *g = s->slots.of[i];
        if (g && g->state == GENERATION_WRITING && !g->chosen) choose_token(s, g);
    }
    for (uint32_t i = 0; i < s->slots.n; i++) { /* after all of them, since a failed task takes other slots with it */
        struct generation *g = s->slots.of[i];
        if (!generation_runs(g)) continue;
        s->items[n] = (struct terse_step_item){.session = g->session};
        if (g->state == GENERATION_WRITING) {
            s->items[n].tokens = &g->next;
            s->items[n].n = 1;
            g->chosen = false;
        }
        n++;
    }
    return n;
}

/* ---- The step */

/* Takes the items out of the step whose replies have ended or were preempted. Returns how many are left. */
static size_t without_ended(struct scheduler *s, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (generation_runs(slots_with_session(&s->slots, s->items[i].session))) s->items[kept++] = s->items[i];
    return kept;
}

/* Keeps the prompt as it is now as a prefix, for the conversation's next turn, and reads the rest of it. */
static void read_on(struct scheduler *s, struct generation *g) {
    struct terse_error error;
    (void)terse_engine_keep_prefix(s->options.engine, g->session, &error);
    if (generation_read_on(g, &error)) fail_task_with(s, g->task, &error);
}

/* Notes how far a step has read a prompt, and begins the replies to one that it has read to the end. `error` is the item's where it has a status. */
static void note_prompt(struct scheduler *s, const struct terse_step_item *item, const struct terse_error *error) {
    struct generation *g = slots_with_session(&s->slots, item->session); /* NULL: its task ended with another's prompt */
    struct terse_error own;
    uint64_t done, total;
    if (!g || g->state != GENERATION_READING) return;
    if (item->status) {
        if (item->status != TERSE_E_MEMORY || !room_may_come(s) || preempt(s, g, &own))
            end_generation_at_fault(s, g, item->status, error);
        return;
    }
    terse_session_prompt(g->session, &done, &total);
    g->read = g->prompt->n;
    if (total) g->read = g->cached + (size_t)((double)(g->prompt->n - g->cached) * (double)done / (double)total);
    if (!generation_started(g)) reply_progress(g);
    if (total) return;
    if (generation_reads_on(g)) {
        read_on(s, g);
        return;
    }
    if (generation_started(g))
        g->state = GENERATION_WRITING;
    else
        start_writing(s, g);
}

/* Returns the generation whose item made the step fail; where no item did, the newest. */
static struct generation *at_fault(const struct scheduler *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (s->items[i].status) return slots_with_session(&s->slots, s->items[i].session);
    return slots_newest_running(&s->slots);
}

void compute_step(struct scheduler *s, size_t n) {
    struct terse_error error;
    while (n && terse_engine_step(s->options.engine, s->items, n, &error)) {
        struct generation *g = at_fault(s, n);
        if (error.code != TERSE_E_MEMORY || !preempt_newest(s)) end_generation_at_fault(s, g, error.code, &error);
        n = without_ended(s, n);
    }
    for (size_t i = 0; i < n; i++) note_prompt(s, &s->items[i], &error);
}
