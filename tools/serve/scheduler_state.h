/* Declares the scheduler's state, for the files that together are the scheduler: task_end, saved_prefix, preemption, admission,
 * slot_work, step and scheduler.c, of which each calls those before it. All functions that take a struct scheduler there run on the
 * scheduler's thread. */
#ifndef TERSE_SERVE_SCHEDULER_STATE_H
#define TERSE_SERVE_SCHEDULER_STATE_H

#include "inbox.h"
#include "scheduler.h"
#include "task_queue.h"

struct scheduler {
    struct scheduler_options options;
    pthread_t thread;
    struct inbox inbox;      /* used by any thread, as its header says */
    struct slot_views views; /* the same */

    /* These members are the thread's own. */
    struct task_queue queue;
    struct slots slots;
    struct terse_step_item *items; /* [slots], of the step under way */
    struct saver *saver;           /* of replies' ends, to the store; NULL: there is none */
    struct saver *slot_saver; /* of slots, to files of their own, which replies' ends need not wait for; NULL: there is no folder */
    struct slot_action *actions; /* a list: those that wait for their slots */
    uint32_t saving;             /* sessions that are with them */
    bool slot_left;              /* since tasks and actions last had their turn to begin */
    bool blocked;                /* the queue's next task had no room in the budget; until a reply ends */
};

#endif
