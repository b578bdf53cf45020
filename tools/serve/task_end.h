/* Ends tasks and their replies: finished, failed, cancelled. */
#ifndef TERSE_SERVE_TASK_END_H
#define TERSE_SERVE_TASK_END_H

#include "scheduler_state.h"

/* Takes a generation out of its slot, and notes that there may be room for others now. */
void leave_slot(struct scheduler *s, struct generation *g);

/* Returns HTTP's status for an error of the library. */
int http_status_of(enum terse_status status);
/* Tells the client an error and frees the task. */
void fail_task(struct scheduler *s, struct task *task, int http_status, const char *message);
/* Does the same with an error of the library, whose code decides HTTP's status. */
void fail_task_with(struct scheduler *s, struct task *task, const struct terse_error *error);

/* Ends a generation whose text has been sent, and takes it out of its slot unless it was saved; with the last one of its task, tells the client the end and frees the task. */
void finish_generation(struct scheduler *s, struct generation *g);

/* Frees the tasks whose clients have gone away. */
void cancel_abandoned_tasks(struct scheduler *s);

#endif
