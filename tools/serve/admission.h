/* Admits tasks from the queue into slots, as far as there are slots and room in the KV budget. */
#ifndef TERSE_SERVE_ADMISSION_H
#define TERSE_SERVE_ADMISSION_H

#include "scheduler_state.h"

/* Begins the prompts whose turn it is. Preempted replies are resumed first, since they have waited longer. When the server stops, tasks that have
 * not begun are refused instead. */
void admit_tasks(struct scheduler *s);

#endif
