/* Saves, restores and erases what slots have left. */
#ifndef TERSE_SERVE_SLOT_WORK_H
#define TERSE_SERVE_SLOT_WORK_H

#include "scheduler_state.h"

/* Begins the actions whose slots are free, in their order; the others wait for their slots' replies. A sequence is saved by the saver, while replies go
 * on, and read back here, as its pages are only mapped. */
void work_on_slots(struct scheduler *s);

#endif
