/* Preempts replies: where the KV budget has no room for the next pages of all, the newest give theirs back, stay in their slots, and read their
 * tokens again when another has ended. */
#ifndef TERSE_SERVE_PREEMPTION_H
#define TERSE_SERVE_PREEMPTION_H

#include "scheduler_state.h"

enum terse_status preempt(struct scheduler *s, struct generation *g, struct terse_error *error);

/* Returns whether pages may become free for a reply that does not fit now, because other replies run or are being saved. */
bool room_may_come(const struct scheduler *s);
/* Preempts the newest reply that runs, to make room for the older ones. Returns false if it is the only one, which has all the room already. */
bool preempt_newest(struct scheduler *s);

/* Resumes preempted replies, the oldest first, as far as there is room. A reply that does not fit although no other runs never
 * will, so it ends. */
void resume_preempted(struct scheduler *s);

#endif
