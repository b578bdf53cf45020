#include "support/thread_ranks.h"

#include <pthread.h>
#include <string.h>

/* The threads of a job share this. */
static pthread_barrier_t barrier;
static const void *given[THREAD_RANKS_MOST];
static struct collective_outcome outcomes[THREAD_RANKS_MOST][THREAD_RANKS_MOST]; /* of each rank its own */

static enum terse_status gather(const struct collective *ranks, const void *own, size_t bytes, void *all,
                                struct terse_error *error) {
    (void)error;
    given[ranks->rank] = own;
    pthread_barrier_wait(&barrier);
    for (uint32_t rank = 0; rank < ranks->ranks; rank++) memcpy((char *)all + rank * bytes, given[rank], bytes);
    pthread_barrier_wait(&barrier);
    return TERSE_OK;
}

static enum terse_status broadcast(const struct collective *ranks, void *data, size_t bytes, struct terse_error *error) {
    (void)error;
    given[ranks->rank] = data;
    pthread_barrier_wait(&barrier);
    if (ranks->rank) memcpy(data, given[0], bytes);
    pthread_barrier_wait(&barrier);
    return TERSE_OK;
}

static const struct collective_ops threads = {"threads", gather, broadcast, NULL};

struct rank_thread {
    struct collective ranks;
    void (*run)(struct collective *ranks, void *user);
    void *user;
};

static void *run_rank(void *user) {
    struct rank_thread *r = user;
    r->run(&r->ranks, r->user);
    return NULL;
}

void thread_ranks_run(uint32_t n, void (*run)(struct collective *ranks, void *user), void *user) {
    struct rank_thread ranks[THREAD_RANKS_MOST];
    pthread_t started[THREAD_RANKS_MOST];
    pthread_barrier_init(&barrier, NULL, n);
    for (uint32_t rank = 0; rank < n; rank++) {
        ranks[rank] = (struct rank_thread){{.ops = &threads, .rank = rank, .ranks = n, .outcomes = outcomes[rank]}, run, user};
        pthread_create(&started[rank], NULL, run_rank, &ranks[rank]);
    }
    for (uint32_t rank = 0; rank < n; rank++) pthread_join(started[rank], NULL);
    pthread_barrier_destroy(&barrier);
}
