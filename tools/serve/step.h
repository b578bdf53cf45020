/* Computes one step of the engine for all replies (continuous batching): a token of each reply that is written, a piece of each
 * prompt that is read. */
#ifndef TERSE_SERVE_STEP_H
#define TERSE_SERVE_STEP_H

#include "scheduler_state.h"

/* Chooses a token for every reply that is being written, and fills the step's items with the replies that go on and the prompts that are being read.
 * Returns their number. */
size_t choose_tokens(struct scheduler *s);
/* Computes the step of items[n], and begins the replies whose prompts it has read to the end. Where the KV budget has no room, it preempts replies
 * until the others have. */
void compute_step(struct scheduler *s, size_t n);

#endif
