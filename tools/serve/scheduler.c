#include "scheduler.h"

#include "admission.h"
#include "saved_prefix.h"
#include "scheduler_state.h"
#include "slot_work.h"
#include "step.h"
#include "task_end.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- The thread */

/* Sleeps while there is nothing to do, and adds the tasks and actions that have arrived to theirs. Returns false when the server stops and all is done. */
static bool wait_for_work(struct scheduler *s) {
    struct task *arrived;
    struct slot_action *actions, **end = &s->actions;
    bool busy = s->queue.first || s->actions || s->slot_left || s->saving || slots_taken(&s->slots);
    bool only_saves = s->saving && !slots_running(&s->slots) && !s->slot_left;
    bool goes_on = inbox_wait(&s->inbox, busy, only_saves, &arrived, &actions);
    while (*end) end = &(*end)->next;
    *end = actions;
    queue_add(&s->queue, arrived);
    return goes_on;
}

static void *scheduler_thread(void *scheduler) {
    struct scheduler *s = scheduler;
    while (wait_for_work(s)) {
        finish_saved_generations(s);
        cancel_abandoned_tasks(s);
        s->slot_left = false;
        work_on_slots(s);
        admit_tasks(s);
        size_t n = choose_tokens(s);
        slot_views_write(&s->views, &s->slots, s->options.engine);
        compute_step(s, n);
    }
    return NULL;
}

/* Wakes the scheduler. The saver calls it on its thread when a session has come back. */
static void wake(void *scheduler) {
    struct scheduler *s = scheduler;
    inbox_wake(&s->inbox);
}

/* ---- Beginning and end */

static void free_memory(struct scheduler *s) {
    saver_stop(s->saver);
    saver_stop(s->slot_saver);
    inbox_destroy(&s->inbox);
    slot_views_free(&s->views);
    slots_free(&s->slots);
    free(s->items);
    free(s);
}

static struct scheduler *new_scheduler(const struct scheduler_options *options) {
    struct scheduler *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->options = *options;
    inbox_init(&s->inbox, options->queue);
    bool ready = slot_views_init(&s->views, options->slots);
    ready = slots_init(&s->slots, options->slots) && ready;
    s->items = calloc(options->slots, sizeof *s->items);
    if (options->store) s->saver = saver_start(options->store, wake, s);
    if (options->saves_slots) s->slot_saver = saver_start(NULL, wake, s);
    ready = ready && (s->saver || !options->store) && (s->slot_saver || !options->saves_slots);
    if (ready && s->items) return s;
    free_memory(s);
    return NULL;
}

enum terse_status scheduler_start(const struct scheduler_options *options, struct scheduler **scheduler,
                                  struct terse_error *error) {
    struct terse_session *session;
    *scheduler = NULL;
    /* A session is made once, so that options that are impossible for any session are found before the first request. */
    enum terse_status status = terse_session_new(options->engine, &options->session, &session, error);
    if (status) return status;
    terse_session_free(session);
    struct scheduler *s = new_scheduler(options);
    if (s && pthread_create(&s->thread, NULL, scheduler_thread, s) == 0) {
        *scheduler = s;
        return TERSE_OK;
    }
    if (s) free_memory(s);
    *error = (struct terse_error){.code = TERSE_E_MEMORY, .offset = TERSE_NO_OFFSET, .message = "no memory for the scheduler"};
    return TERSE_E_MEMORY;
}

void scheduler_wait(struct scheduler *s) { pthread_join(s->thread, NULL); }

void scheduler_free(struct scheduler *s) {
    if (s) free_memory(s);
}

/* ---- Any thread */

enum scheduler_answer scheduler_submit(struct scheduler *s, struct task *task) { return inbox_submit(&s->inbox, task); }

enum scheduler_answer scheduler_submit_action(struct scheduler *s, struct slot_action *action) {
    return inbox_submit_action(&s->inbox, action);
}

void scheduler_stop(struct scheduler *s) { inbox_stop(&s->inbox); }

bool scheduler_idle(struct scheduler *s) { return inbox_idle(&s->inbox); }

void scheduler_look(struct scheduler *s, struct slot_view *views, struct metrics_state *state) {
    *state = (struct metrics_state){.slots = s->options.slots, .waiting = inbox_waiting(&s->inbox)};
    state->kv_bytes = slot_views_read(&s->views, views);
}
