/* The scheduler is the one thread that computes: it owns the engine and all sessions. Tasks wait in a queue; as many replies as
 * there are slots are written at the same time, each step of the engine a token of each (continuous batching); where the KV budget
 * is spent the newest is preempted. */
#ifndef TERSE_SERVE_SCHEDULER_H
#define TERSE_SERVE_SCHEDULER_H

#include "inbox.h"
#include "metrics.h"
#include "reply.h"
#include "saver.h"
#include "slot_view.h"

struct scheduler;

struct scheduler_options {
    struct terse_engine *engine;
    struct terse_session_options session; /* of every session */
    uint32_t slots;
    uint32_t queue;          /* tasks that may wait */
    struct store *store;     /* where what is kept is saved; NULL: nowhere */
    bool saves_slots;        /* actions may save what slots have left */
    struct metrics *metrics; /* to add to */
};

/* Starts the scheduler's thread. The objects that the options point to must outlive it. */
enum terse_status scheduler_start(const struct scheduler_options *options, struct scheduler **scheduler, struct terse_error *error);

/* Hands over a task, from any thread. It belongs to the scheduler only if the answer is SCHEDULER_TAKEN. */
enum scheduler_answer scheduler_submit(struct scheduler *scheduler, struct task *task);

/* Hands over an action on a slot in the same way; it never answers SCHEDULER_FULL. */
enum scheduler_answer scheduler_submit_action(struct scheduler *scheduler, struct slot_action *action);

/* Stops taking tasks, and refuses those that have not begun; replies that are being written go on. */
void scheduler_stop(struct scheduler *scheduler);
bool scheduler_idle(struct scheduler *scheduler);
/* Waits for the last reply, after scheduler_stop. Tasks that other threads submit later are refused. */
void scheduler_wait(struct scheduler *scheduler);
/* Frees the scheduler, after scheduler_wait, when no other thread uses it any more. Accepts NULL. */
void scheduler_free(struct scheduler *scheduler);

/* Copies the slots' views into views[options.slots], and into *state the slots, the waiting tasks and the engine's bytes. Any
 * thread may call it. */
void scheduler_look(struct scheduler *scheduler, struct slot_view *views, struct metrics_state *state);

#endif
