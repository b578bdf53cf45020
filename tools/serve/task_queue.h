/* A task_queue holds the tasks whose prompts have not all begun, and chooses fairly between clients which task begins next. Only
 * the scheduler's thread uses it. */
#ifndef TERSE_SERVE_TASK_QUEUE_H
#define TERSE_SERVE_TASK_QUEUE_H

#include "slots.h"

enum { TURNS = 64 };

struct task_queue {
    struct task *first; /* in the order of arrival */
    /* A turn says when a client last began a reply, so that clients take turns; the oldest turn is forgotten first. */
    struct turn {
        uint64_t client, number; /* number 0: none */
    } turns[TURNS];
    uint64_t newest_turn;
};

/* Adds a list of tasks at the end. */
void queue_add(struct task_queue *queue, struct task *tasks);
void queue_remove(struct task_queue *queue, struct task *task);
bool queue_has(const struct task_queue *queue, const struct task *task);

/* Returns the task whose turn it is, which stays in the queue; NULL if there is none. Clients whose replies have taken fewer slots go first, then
 * those who have not begun a reply for longer; of one client's tasks, the one that has taken fewer slots; else the older task. */
struct task *queue_next(const struct task_queue *queue, const struct slots *slots);
/* Notes that the client begins a reply now. */
void queue_take_turn(struct task_queue *queue, uint64_t client);

#endif
