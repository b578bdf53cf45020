#include "task_end.h"

#include "console.h"

void leave_slot(struct scheduler *s, struct generation *g) {
    slot_views_write_last(&s->views, &s->slots, g);
    slots_leave(&s->slots, g);
    s->blocked = false;
    s->slot_left = true;
}

/* Frees a task, whatever it is doing. A session of it that is being saved is freed when it comes back. */
static void drop_task(struct scheduler *s, struct task *task) {
    if (queue_has(&s->queue, task)) queue_remove(&s->queue, task);
    if (!task->next_prompt) inbox_task_left(&s->inbox);
    for (uint32_t i = 0; i < s->slots.n; i++)
        if (s->slots.of[i] && s->slots.of[i]->task == task) leave_slot(s, s->slots.of[i]);
    for (size_t i = 0; i < task->n_generations; i++)
        if (task->generations[i].saving) task->generations[i].saving->owner = NULL;
    task_free(task);
}

void fail_task(struct scheduler *s, struct task *task, int http_status, const char *message) {
    struct api_error error = {0};
    api_fail(&error, http_status, NULL, NULL, "%s", message);
    reply_fail(task, &error);
    drop_task(s, task);
}

int http_status_of(enum terse_status status) {
    switch (status) {
    case TERSE_E_ARGUMENT:
    case TERSE_E_CONTEXT:
    case TERSE_E_UNSUPPORTED: return 400;
    case TERSE_E_MEMORY: return 503;
    default: return 500;
    }
}

void fail_task_with(struct scheduler *s, struct task *task, const struct terse_error *error) {
    fail_task(s, task, http_status_of(error->code), error->message);
}

void finish_generation(struct scheduler *s, struct generation *g) {
    struct task *task = g->task;
    if (g->state != GENERATION_SAVING) leave_slot(s, g); /* which a saved one has left before */
    generation_stop(g);
    if (++task->done < task->n_generations) return;
    metrics_observe(s->options.metrics, METRICS_REQUEST, console_seconds() - task->arrived);
    task_choose_best(task);
    reply_end(task);
    drop_task(s, task);
}

static void cancel(struct scheduler *s, struct task *task) {
    metrics_add(s->options.metrics, &s->options.metrics->cancelled, 1);
    drop_task(s, task);
}

void cancel_abandoned_tasks(struct scheduler *s) {
    for (struct task *task = s->queue.first, *next; task; task = next) {
        next = task->next;
        if (exchange_gone(task->exchange)) cancel(s, task);
    }
    for (uint32_t i = 0; i < s->slots.n; i++)
        if (s->slots.of[i] && exchange_gone(s->slots.of[i]->task->exchange)) cancel(s, s->slots.of[i]->task);
}
