#include "task.h"

#include "console.h"
#include "generation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

static void name_task(struct task *task) {
    static const char *const kinds[] = {"chatcmpl-", "cmpl-", "completion-", "infill-", "resp_"};
    unsigned char random[12] = {0};
    if (getrandom(random, sizeof random, 0) != sizeof random) random[0] = 1;
    int n = snprintf(task->id, sizeof task->id, "%s", kinds[task->request.api]);
    for (size_t i = 0; i < sizeof random; i++) n += snprintf(task->id + n, sizeof task->id - (size_t)n, "%02x", random[i]);
}

const char *task_number(const struct task *task) { return task->id + strcspn(task->id, "-_") + 1; }

struct task *task_new(struct request *request, struct exchange *exchange, const struct request_limits *limits, const char *model,
                      uint64_t client) {
    size_t n = request->n_prompts * (size_t)request->best_of;
    struct task *task = calloc(1, sizeof *task);
    if (!task || !(task->generations = calloc(n, sizeof *task->generations))) {
        free(task);
        return NULL;
    }
    task->request = *request;
    *request = (struct request){0};
    task->exchange = exchange;
    task->limits = limits;
    task->model = model;
    task->client = client;
    task->created = (int64_t)time(NULL);
    task->arrived = console_seconds();
    task->n_generations = n;
    for (size_t i = 0; i < n; i++) {
        size_t choice = i % (size_t)task->request.best_of;
        task->generations[i] = (struct generation){.task = task, .index = i, .choice = choice};
        task->generations[i].prompt = &task->request.prompts[i / (size_t)task->request.best_of];
    }
    name_task(task);
    return task;
}

/* Returns the mean log probability of a reply's tokens; 0 where it has none. */
static double mean_logprob(const struct generation *g) { return g->judged ? g->logprobs / (double)g->judged : 0; }

static int compare_replies(const void *a, const void *b) {
    const struct generation *x = a, *y = b;
    double of_x = mean_logprob(x), of_y = mean_logprob(y);
    return of_x > of_y ? -1 : of_x < of_y ? 1 : (x->choice > y->choice) - (x->choice < y->choice);
}

void task_choose_best(struct task *task) {
    const size_t n = (size_t)task->request.n, written = (size_t)task->request.best_of;
    if (n == written) return;
    for (size_t prompt = 0; prompt < task->request.n_prompts; prompt++) {
        struct generation *first = &task->generations[prompt * written];
        qsort(first, written, sizeof *first, compare_replies);
        for (size_t i = 0; i < written; i++) {
            first[i].choice = i;
            first[i].index = prompt * n + i;
        }
    }
}

void task_free(struct task *task) {
    if (!task) return;
    for (size_t i = 0; i < task->n_generations; i++) generation_free(&task->generations[i]);
    free(task->generations);
    request_free(&task->request);
    exchange_close(task->exchange);
    exchange_release(task->exchange);
    free(task);
}
