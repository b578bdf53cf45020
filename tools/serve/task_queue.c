#include "task_queue.h"

void queue_add(struct task_queue *queue, struct task *tasks) {
    struct task **end = &queue->first;
    while (*end) end = &(*end)->next;
    *end = tasks;
}

void queue_remove(struct task_queue *queue, struct task *task) {
    struct task **at = &queue->first;
    while (*at != task) at = &(*at)->next;
    *at = task->next;
    task->next = NULL;
}

bool queue_has(const struct task_queue *queue, const struct task *task) {
    for (const struct task *t = queue->first; t; t = t->next)
        if (t == task) return true;
    return false;
}

/* Returns the number of the client's newest turn, 0 if none is remembered. */
static uint64_t turn_of(const struct task_queue *queue, uint64_t client) {
    for (size_t i = 0; i < TURNS; i++)
        if (queue->turns[i].number && queue->turns[i].client == client) return queue->turns[i].number;
    return 0;
}

void queue_take_turn(struct task_queue *queue, uint64_t client) {
    size_t at = 0;
    for (size_t i = 0; i < TURNS; i++) {
        if (queue->turns[i].number < queue->turns[at].number) at = i;
        if (!queue->turns[i].number || queue->turns[i].client != client) continue;
        at = i;
        break;
    }
    queue->turns[at] = (struct turn){client, ++queue->newest_turn};
}

/* Returns whether task `a` goes before the older task `b`. */
static bool goes_before(const struct task_queue *queue, const struct slots *slots, const struct task *a, const struct task *b) {
    if (a->client == b->client) return a->slots_taken < b->slots_taken;
    uint32_t taken_a = slots_taken_by(slots, a->client), taken_b = slots_taken_by(slots, b->client);
    if (taken_a != taken_b) return taken_a < taken_b;
    return turn_of(queue, a->client) < turn_of(queue, b->client);
}

struct task *queue_next(const struct task_queue *queue, const struct slots *slots) {
    struct task *best = queue->first;
    for (struct task *task = best ? best->next : NULL; task; task = task->next)
        if (goes_before(queue, slots, task, best)) best = task;
    return best;
}
