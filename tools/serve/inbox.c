#include "inbox.h"

void inbox_init(struct inbox *inbox, uint32_t limit) {
    *inbox = (struct inbox){.limit = limit};
    pthread_mutex_init(&inbox->lock, NULL);
    pthread_cond_init(&inbox->changed, NULL);
}

void inbox_destroy(struct inbox *inbox) {
    pthread_mutex_destroy(&inbox->lock);
    pthread_cond_destroy(&inbox->changed);
}

/* Lets the scheduler see what was added, with the lock held. */
static void tell(struct inbox *inbox) {
    inbox->idle = false;
    pthread_cond_signal(&inbox->changed);
}

enum scheduler_answer inbox_submit(struct inbox *inbox, struct task *task) {
    enum scheduler_answer answer = SCHEDULER_TAKEN;
    pthread_mutex_lock(&inbox->lock);
    if (inbox->stopping) {
        answer = SCHEDULER_STOPPING;
    } else if (inbox->waiting >= inbox->limit) {
        answer = SCHEDULER_FULL;
    } else {
        inbox->waiting++;
        if (inbox->first)
            inbox->newest->next = task;
        else
            inbox->first = task;
        inbox->newest = task;
        tell(inbox);
    }
    pthread_mutex_unlock(&inbox->lock);
    return answer;
}

enum scheduler_answer inbox_submit_action(struct inbox *inbox, struct slot_action *action) {
    pthread_mutex_lock(&inbox->lock);
    bool stopping = inbox->stopping;
    if (!stopping) {
        if (inbox->actions)
            inbox->newest_action->next = action;
        else
            inbox->actions = action;
        inbox->newest_action = action;
        tell(inbox);
    }
    pthread_mutex_unlock(&inbox->lock);
    return stopping ? SCHEDULER_STOPPING : SCHEDULER_TAKEN;
}

void inbox_stop(struct inbox *inbox) {
    pthread_mutex_lock(&inbox->lock);
    inbox->stopping = true;
    pthread_cond_signal(&inbox->changed);
    pthread_mutex_unlock(&inbox->lock);
}

void inbox_wake(struct inbox *inbox) {
    pthread_mutex_lock(&inbox->lock);
    inbox->woken = true;
    pthread_cond_signal(&inbox->changed);
    pthread_mutex_unlock(&inbox->lock);
}

bool inbox_idle(struct inbox *inbox) {
    pthread_mutex_lock(&inbox->lock);
    bool idle = inbox->idle;
    pthread_mutex_unlock(&inbox->lock);
    return idle;
}

uint32_t inbox_waiting(struct inbox *inbox) {
    pthread_mutex_lock(&inbox->lock);
    uint32_t waiting = inbox->waiting;
    pthread_mutex_unlock(&inbox->lock);
    return waiting;
}

/* Returns whether something was submitted. */
static bool has_more(const struct inbox *inbox) { return inbox->first || inbox->actions; }

bool inbox_wait(struct inbox *inbox, bool busy, bool only_saves, struct task **tasks, struct slot_action **actions) {
    pthread_mutex_lock(&inbox->lock);
    while (only_saves ? !inbox->woken && !has_more(inbox) : !busy && !has_more(inbox) && !inbox->stopping) {
        inbox->idle = !busy;
        pthread_cond_wait(&inbox->changed, &inbox->lock);
    }
    inbox->woken = false;
    *tasks = inbox->first;
    *actions = inbox->actions;
    inbox->first = inbox->newest = NULL;
    inbox->actions = inbox->newest_action = NULL;
    inbox->idle = inbox->stopping && !*tasks && !*actions && !busy && !only_saves;
    bool goes_on = !inbox->idle;
    pthread_mutex_unlock(&inbox->lock);
    return goes_on;
}

bool inbox_stopping(struct inbox *inbox) {
    pthread_mutex_lock(&inbox->lock);
    bool stopping = inbox->stopping;
    pthread_mutex_unlock(&inbox->lock);
    return stopping;
}

void inbox_task_left(struct inbox *inbox) {
    pthread_mutex_lock(&inbox->lock);
    inbox->waiting--;
    pthread_mutex_unlock(&inbox->lock);
}
