/* Implements the driver thread, the mailbox that gives it work, and its calls back to the caller's thread. */
#include "base/thread_pool.h"

#include "base/parallel.h"
#include "base/thread.h"

#include <omp.h>
#include <stdlib.h>

struct call {
    void (*function)(void *user); /* NULL: none */
    void *user;
};

struct thread_pool {
    uint32_t threads;
    struct parallel *parallel;
    pthread_t driver;
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t to_driver, to_caller;
    struct call work; /* cleared by the driver when it is done */
    struct call back; /* cleared by the caller when it is done */
    bool stop;
};

static _Thread_local struct thread_pool *driven; /* the thread pool whose driver this thread is */

static void *drive(void *user) {
    struct thread_pool *pool = user;
    driven = pool;
    omp_set_num_threads((int)pool->threads);
    parallel_drive(pool->parallel);
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (!pool->work.function && !pool->stop) pthread_cond_wait(&pool->to_driver, &pool->mutex);
        if (!pool->work.function) break;
        struct call work = pool->work;
        pthread_mutex_unlock(&pool->mutex);
        work.function(work.user);
        pthread_mutex_lock(&pool->mutex);
        pool->work = (struct call){0};
        pthread_cond_signal(&pool->to_caller);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

static void destroy(struct thread_pool *pool) {
    parallel_free(pool->parallel);
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->to_driver);
    pthread_cond_destroy(&pool->to_caller);
    free(pool);
}

enum terse_status thread_pool_new(uint32_t threads, struct thread_pool **pool, struct terse_error *error) {
    *pool = NULL;
    if (threads > TEAM_THREADS_MAX)
        return status_fail(error, TERSE_E_ARGUMENT, "%u threads are more than the %d that terse can use", threads,
                           TEAM_THREADS_MAX);
    struct thread_pool *t = calloc(1, sizeof *t);
    if (!t) return status_no_memory(error, sizeof *t, "a thread pool");
    t->threads = threads ? threads : (uint32_t)omp_get_num_procs();
    enum terse_status status = parallel_new(t->threads, &t->parallel, error);
    if (status) {
        free(t);
        return status;
    }
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->to_driver, NULL);
    pthread_cond_init(&t->to_caller, NULL);
    if (thread_start(&t->driver, drive, t)) {
        destroy(t);
        return status_fail(error, TERSE_E_MEMORY, "the system refused a thread");
    }
    *pool = t;
    return TERSE_OK;
}

void thread_pool_free(struct thread_pool *pool) {
    if (!pool) return;
    pthread_mutex_lock(&pool->mutex);
    pool->stop = true;
    pthread_cond_signal(&pool->to_driver);
    pthread_mutex_unlock(&pool->mutex);
    pthread_join(pool->driver, NULL);
    destroy(pool);
}

uint32_t thread_pool_threads(const struct thread_pool *pool) { return pool->threads; }

void thread_pool_run(struct thread_pool *pool, void (*work)(void *user), void *user) {
    pthread_mutex_lock(&pool->mutex);
    pool->work = (struct call){work, user};
    pthread_cond_signal(&pool->to_driver);
    while (pool->work.function) {
        if (!pool->back.function) {
            pthread_cond_wait(&pool->to_caller, &pool->mutex);
            continue;
        }
        struct call back = pool->back;
        pthread_mutex_unlock(&pool->mutex);
        back.function(back.user);
        pthread_mutex_lock(&pool->mutex);
        pool->back = (struct call){0};
        pthread_cond_signal(&pool->to_driver);
    }
    pthread_mutex_unlock(&pool->mutex);
}

void thread_pool_call(void (*call)(void *user), void *user) {
    struct thread_pool *pool = driven;
    if (!pool) {
        call(user);
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->back = (struct call){call, user};
    pthread_cond_signal(&pool->to_caller);
    while (pool->back.function) pthread_cond_wait(&pool->to_driver, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

/* ---- Progress */

struct report {
    const struct terse_progress *progress;
    const char *what;
    uint64_t done, total;
    bool goes_on;
};

static void report_here(void *user) {
    struct report *r = user;
    r->goes_on = r->progress->report(r->progress->user, r->what, r->done, r->total);
}

static bool report_there(void *user, const char *what, uint64_t done, uint64_t total) {
    struct report r = {user, what, done, total, false};
    thread_pool_call(report_here, &r);
    return r.goes_on;
}

struct terse_progress thread_pool_progress(const struct terse_progress *progress) {
    if (!progress || !progress->report) return (struct terse_progress){0};
    return (struct terse_progress){report_there, (void *)(uintptr_t)progress};
}
