#include "preemption.h"

#include "saved_prefix.h"
#include "task_end.h"

enum terse_status preempt(struct scheduler *s, struct generation *g, struct terse_error *error) {
    enum terse_status status = generation_preempt(g, error);
    if (status) return status;
    s->blocked = true;
    s->views.stale = true;
    metrics_add(s->options.metrics, &s->options.metrics->preempted, 1);
    return TERSE_OK;
}

bool room_may_come(const struct scheduler *s) { return s->saving || slots_running(&s->slots) >= 2; }

bool preempt_newest(struct scheduler *s) {
    struct terse_error error;
    if (!room_may_come(s)) return false;
    struct generation *g = slots_newest_running(&s->slots);
    if (preempt(s, g, &error)) fail_task_with(s, g->task, &error);
    return true;
}

void resume_preempted(struct scheduler *s) {
    struct generation *g;
    if (!slots_running(&s->slots) && !s->saving) s->blocked = false;
    while (!s->blocked && (g = slots_oldest_preempted(&s->slots))) {
        struct terse_error error;
        enum terse_status status = generation_begin_prompt(g, s->options.engine, &s->options.session, &error);
        if (!status) {
            g->state = GENERATION_READING;
            s->views.stale = true;
        } else if (status == TERSE_E_MEMORY && (slots_running(&s->slots) || s->saving)) {
            if (!generation_started(g)) (void)generation_preempt(g, &error); /* the session that was opened */
            s->blocked = true;
        } else {
            end_generation_at_fault(s, g, status, &error);
        }
    }
}
