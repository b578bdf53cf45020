#include "admission.h"

#include "preemption.h"
#include "task_end.h"

/* Puts generations back into the queue, because the budget has no room for them while others run. */
static void put_back(struct scheduler *s, struct generation *first, size_t n) {
    for (size_t i = 0; i < n; i++) {
        leave_slot(s, &first[i]);
        terse_session_free(first[i].session);
        first[i].session = NULL;
        first[i].cached = first[i].read = 0;
        first[i].state = GENERATION_QUEUED;
    }
    s->blocked = true;
}

static void count_prompt(struct scheduler *s, const struct generation *g) {
    struct metrics *m = s->options.metrics;
    metrics_add(m, &m->prompts, 1);
    metrics_add(m, &m->prefix_hits, g->cached > 0);
    metrics_add(m, &m->prompt_tokens, g->prompt->n);
    metrics_add(m, &m->cached_tokens, g->cached);
}

/* Notes that the next prompt of the task has begun: the task leaves the queue with the last one, and waits no longer after the first. */
static void note_begun(struct scheduler *s, struct task *task, const struct generation *first) {
    if (task->next_prompt + 1 == task->request.n_prompts) queue_remove(&s->queue, task);
    if (task->next_prompt++ > 0) return;
    inbox_task_left(&s->inbox);
    metrics_observe(s->options.metrics, METRICS_QUEUE, first->began - task->arrived);
}

/* Begins the next prompt of the task. Returns false if nothing more can begin now. */
static bool begin_prompt(struct scheduler *s, struct task *task) {
    size_t n = (size_t)task->request.best_of, free_slots = s->slots.n - slots_taken(&s->slots);
    struct generation *first = &task->generations[task->next_prompt * n];
    struct terse_error error;
    if (free_slots < n) return false;
    queue_take_turn(&s->queue, task->client);
    slots_take(&s->slots, first, n);
    s->views.stale = true;
    enum terse_status status = generation_begin_prompt(first, s->options.engine, &s->options.session, &error);
    if (status == TERSE_E_MEMORY && slots_taken(&s->slots) > n) {
        put_back(s, first, n);
        return false;
    }
    note_begun(s, task, first);
    if (status) {
        fail_task_with(s, task, &error);
        return true;
    }
    count_prompt(s, first);
    slot_views_write(&s->views, &s->slots,
                     s->options.engine); /* a client that has read that the reply begins may look for its slot */
    for (size_t i = 0; i < n; i++) reply_begin(&first[i]);
    return true;
}

static void refuse_queued(struct scheduler *s) {
    for (struct task *task = s->queue.first, *next; task; task = next) {
        next = task->next;
        if (!task->next_prompt) fail_task(s, task, 503, "the server is stopping");
    }
}

void admit_tasks(struct scheduler *s) {
    if (inbox_stopping(&s->inbox)) refuse_queued(s);
    resume_preempted(s);
    while (!s->blocked) {
        struct task *task = queue_next(&s->queue, &s->slots);
        if (!task || !begin_prompt(s, task)) return;
    }
}
