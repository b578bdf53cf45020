/* Brings tasks from HTTP's threads to the scheduler's thread, which sleeps here while it has nothing to do. */
#ifndef TERSE_SERVE_INBOX_H
#define TERSE_SERVE_INBOX_H

#include "slot_action.h"
#include "task.h"

#include <pthread.h>

enum scheduler_answer { SCHEDULER_TAKEN, SCHEDULER_FULL, SCHEDULER_STOPPING };

struct inbox {
    pthread_mutex_t lock; /* of what stands below */
    pthread_cond_t changed;
    struct task *first, *newest;                 /* a list: submitted, not yet taken by the scheduler's thread */
    struct slot_action *actions, *newest_action; /* the same of slots */
    uint32_t waiting, limit;                     /* tasks that have not begun, taken ones included; the most that there may be */
    bool stopping, idle, woken;
};

void inbox_init(struct inbox *inbox, uint32_t limit);
void inbox_destroy(struct inbox *inbox);

/* ---- Any thread */

/* Submits a task, which belongs to the scheduler only if the answer is SCHEDULER_TAKEN. */
enum scheduler_answer inbox_submit(struct inbox *inbox, struct task *task);
/* Does the same with an action on a slot; it never answers SCHEDULER_FULL. */
enum scheduler_answer inbox_submit_action(struct inbox *inbox, struct slot_action *action);
/* Refuses every later task with SCHEDULER_STOPPING. */
void inbox_stop(struct inbox *inbox);
/* Ends an inbox_wait that waits for a saved session. */
void inbox_wake(struct inbox *inbox);
/* Returns whether the scheduler has nothing to do. */
bool inbox_idle(struct inbox *inbox);
/* Returns how many tasks have not begun. */
uint32_t inbox_waiting(struct inbox *inbox);

/* ---- The scheduler's thread */

/* Takes all submitted tasks, in the order of arrival, into *tasks, and the actions into *actions (NULL: none). Unless the scheduler is `busy` with
 * tasks taken before, it sleeps until there is one of either; with `only_saves`, busy or not, until there is one or inbox_wake is called, because nothing else can go on. Returns false when
 * the server stops and nothing is left to do. */
bool inbox_wait(struct inbox *inbox, bool busy, bool only_saves, struct task **tasks, struct slot_action **actions);
bool inbox_stopping(struct inbox *inbox);
/* Notes that a task which was taken no longer waits: it has begun, or ended before it began. */
void inbox_task_left(struct inbox *inbox);

#endif
