/* The one thread that computes: it owns the engine and all sessions. Tasks wait in a queue; as many replies as there are slots are written at
 * the same time, each step of the engine a token of each (continuous batching); where the KV budget is spent the newest is preempted. */
#ifndef TERSE_SERVE_SCHEDULER_H
#define TERSE_SERVE_SCHEDULER_H

#include "metrics.h"
#include "reply.h"
#include "saver.h"

struct scheduler;

struct scheduler_options {
    struct terse_engine *engine;
    struct terse_session_options session; /* of every session */
    uint32_t slots;
    uint32_t queue;          /* tasks that may wait */
    struct store *store;     /* where what is kept is saved; NULL: nowhere */
    struct metrics *metrics; /* to add to */
};

/* Starts the scheduler's thread. The objects that the options point to must outlive it. */
enum terse_status scheduler_start(const struct scheduler_options *options, struct scheduler **scheduler, struct terse_error *error);

enum scheduler_answer { SCHEDULER_TAKEN, SCHEDULER_FULL, SCHEDULER_STOPPING };
/* Hands over a task, from any thread. It belongs to the scheduler only if the answer is SCHEDULER_TAKEN. */
enum scheduler_answer scheduler_submit(struct scheduler *scheduler, struct task *task);

/* From here on nothing is taken, and what has not begun is refused; replies that are being written go on. */
void scheduler_stop(struct scheduler *scheduler);
bool scheduler_idle(struct scheduler *scheduler);
/* After scheduler_stop: waits for the last reply. What other threads submit later is refused. */
void scheduler_wait(struct scheduler *scheduler);
/* After that, when no other thread asks any more. Accepts NULL. */
void scheduler_free(struct scheduler *scheduler);

enum { SLOT_PARTS = 96 }; /* in which a slot's tokens are shown */

/* The state of a slot; after a reply, the state that the reply left. */
struct slot_view {
    enum generation_state state;
    char task[48];                 /* the reply's id, "" before the first */
    uint64_t prompt, read, cached; /* tokens of the prompt */
    int64_t tokens;                /* written */
    struct terse_cache_report cache;
    struct terse_token_share parts[SLOT_PARTS];
};

/* views[options.slots], and of *state the slots, what waits and the engine's bytes. Any thread. */
void scheduler_look(struct scheduler *scheduler, struct slot_view *views, struct metrics_state *state);

#endif
