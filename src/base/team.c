/* The driver thread, its mailbox, and the way back to the caller. */
#include "base/team.h"

#include "base/parallel.h"
#include "base/thread.h"

#include <omp.h>
#include <stdlib.h>

struct call {
    void (*function)(void *user); /* NULL: none */
    void *user;
};

struct team {
    uint32_t threads;
    struct parallel *parallel;
    pthread_t driver;
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t to_driver, to_caller;
    struct call work; /* cleared by the driver when it is done */
    struct call back; /* cleared by the caller when it is done */
    bool stop;
};

static _Thread_local struct team *driven; /* the team whose driver this thread is */

static void *drive(void *user) {
    struct team *team = user;
    driven = team;
    omp_set_num_threads((int)team->threads);
    parallel_drive(team->parallel);
    pthread_mutex_lock(&team->mutex);
    for (;;) {
        while (!team->work.function && !team->stop) pthread_cond_wait(&team->to_driver, &team->mutex);
        if (!team->work.function) break;
        struct call work = team->work;
        pthread_mutex_unlock(&team->mutex);
        work.function(work.user);
        pthread_mutex_lock(&team->mutex);
        team->work = (struct call){0};
        pthread_cond_signal(&team->to_caller);
    }
    pthread_mutex_unlock(&team->mutex);
    return NULL;
}

static void destroy(struct team *team) {
    parallel_free(team->parallel);
    pthread_mutex_destroy(&team->mutex);
    pthread_cond_destroy(&team->to_driver);
    pthread_cond_destroy(&team->to_caller);
    free(team);
}

enum terse_status team_new(uint32_t threads, struct team **team, struct terse_error *error) {
    *team = NULL;
    if (threads > TEAM_THREADS_MAX)
        return status_fail(error, TERSE_E_ARGUMENT, "%u threads are more than the %d that terse can use", threads,
                           TEAM_THREADS_MAX);
    struct team *t = calloc(1, sizeof *t);
    if (!t) return status_no_memory(error, sizeof *t, "a team of threads");
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
    *team = t;
    return TERSE_OK;
}

void team_free(struct team *team) {
    if (!team) return;
    pthread_mutex_lock(&team->mutex);
    team->stop = true;
    pthread_cond_signal(&team->to_driver);
    pthread_mutex_unlock(&team->mutex);
    pthread_join(team->driver, NULL);
    destroy(team);
}

uint32_t team_threads(const struct team *team) { return team->threads; }

void team_run(struct team *team, void (*work)(void *user), void *user) {
    pthread_mutex_lock(&team->mutex);
    team->work = (struct call){work, user};
    pthread_cond_signal(&team->to_driver);
    while (team->work.function) {
        if (!team->back.function) {
            pthread_cond_wait(&team->to_caller, &team->mutex);
            continue;
        }
        struct call back = team->back;
        pthread_mutex_unlock(&team->mutex);
        back.function(back.user);
        pthread_mutex_lock(&team->mutex);
        team->back = (struct call){0};
        pthread_cond_signal(&team->to_driver);
    }
    pthread_mutex_unlock(&team->mutex);
}

void team_call(void (*call)(void *user), void *user) {
    struct team *team = driven;
    if (!team) {
        call(user);
        return;
    }
    pthread_mutex_lock(&team->mutex);
    team->back = (struct call){call, user};
    pthread_cond_signal(&team->to_caller);
    while (team->back.function) pthread_cond_wait(&team->to_driver, &team->mutex);
    pthread_mutex_unlock(&team->mutex);
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
    team_call(report_here, &r);
    return r.goes_on;
}

struct terse_progress team_progress(const struct terse_progress *progress) {
    if (!progress || !progress->report) return (struct terse_progress){0};
    return (struct terse_progress){report_there, (void *)(uintptr_t)progress};
}
