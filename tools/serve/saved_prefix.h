/* Keeps what a reply has read and written as a prefix for the next prompts, in the engine and in the store (prefix caching), before the reply ends. */
#ifndef TERSE_SERVE_SAVED_PREFIX_H
#define TERSE_SERVE_SAVED_PREFIX_H

#include "scheduler_state.h"

/* Keeps the generation's sequence as it is now as a prefix, which its slot leaves. */
enum terse_status keep_prefix(struct scheduler *s, const struct generation *g, struct terse_error *error);

/* Ends a generation that has written all: its sequence is kept as a prefix, because a chat's next turn begins with this one. Where
 * there is a store, the session goes to the saver, the slot is free, and the client is told the end when the session has come back: so a reply whose
 * end a client has seen is in the store even if the server is killed. */
void end_generation(struct scheduler *s, struct generation *g);
/* Ends a generation for which a call failed with `status`. Where its context is full, or memory is full of it alone, its text ends
 * there; otherwise its task fails. */
void end_generation_at_fault(struct scheduler *s, struct generation *g, enum terse_status status, const struct terse_error *error);

/* Finishes the generations, and answers the actions on slots, whose sessions have come back from the saver. */
void finish_saved_generations(struct scheduler *s);

#endif
