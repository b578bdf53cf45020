/* A thread pool's work runs on its own driver thread with its own number of threads; calls and progress reports come back to the thread that
 * waits, and no other threads change. */
#include "base/parallel.h"
#include "base/thread_pool.h"

#include <omp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

struct seen {
    pthread_t work, call;
    int most, pool;
    uint64_t reports;
    bool signals_blocked;
    struct terse_progress progress;
    bool went_on;
};

static struct thread_pool *new_thread_pool(uint32_t threads) {
    struct thread_pool *pool;
    struct terse_error error;
    if (thread_pool_new(threads, &pool, &error)) fail_msg("%s", error.message);
    return pool;
}

static void note_caller(void *user) {
    struct seen *seen = user;
    seen->call = pthread_self();
}

static void look_around(void *user) {
    struct seen *seen = user;
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    seen->signals_blocked = sigismember(&blocked, SIGINT) == 1;
    seen->work = pthread_self();
    seen->most = omp_get_max_threads();
#pragma omp parallel
#pragma omp single
    seen->pool = omp_get_num_threads();
    thread_pool_call(note_caller, seen);
}

static void work_runs_on_the_teams_threads(void **state) {
    (void)state;
    int before = omp_get_max_threads();
    for (uint32_t threads = 1; threads <= 3; threads++) {
        struct thread_pool *pool = new_thread_pool(threads);
        struct seen seen = {0};
        assert_int_equal(thread_pool_threads(pool), threads);
        for (int round = 0; round < 3; round++) thread_pool_run(pool, look_around, &seen);
        assert_int_equal(seen.most, threads);
        assert_int_equal(seen.pool, threads);
        assert_false(pthread_equal(seen.work, pthread_self()));
        assert_true(pthread_equal(seen.call, pthread_self()));
        assert_true(seen.signals_blocked);
        thread_pool_free(pool);
    }
    assert_int_equal(omp_get_max_threads(), before);
}

static bool stop_at_three(void *user, const char *what, uint64_t done, uint64_t total) {
    struct seen *seen = user;
    assert_string_equal(what, "work");
    assert_int_equal(total, 10);
    assert_true(pthread_equal(seen->call, pthread_self()));
    seen->reports++;
    return done < 3;
}

static void report_until_stopped(void *user) {
    struct seen *seen = user;
    uint64_t done = 0;
    while (seen->progress.report(seen->progress.user, "work", done, 10)) done++;
    seen->went_on = done > 3;
}

static void progress_comes_back_to_the_caller(void **state) {
    (void)state;
    struct thread_pool *pool = new_thread_pool(2);
    struct seen seen = {.call = pthread_self()};
    const struct terse_progress progress = {stop_at_three, &seen};
    seen.progress = thread_pool_progress(&progress);
    thread_pool_run(pool, report_until_stopped, &seen);
    assert_int_equal(seen.reports, 4);
    assert_false(seen.went_on);
    thread_pool_free(pool);
    report_until_stopped(&seen); /* without a thread pool the report is a plain call */
    assert_int_equal(seen.reports, 8);
    assert_null(thread_pool_progress(&(struct terse_progress){0}).report);
}

struct relay {
    struct thread_pool *pool;
    struct seen *seen;
};

static void *run_there(void *user) {
    struct relay *relay = user;
    thread_pool_run(relay->pool, look_around, relay->seen);
    return NULL;
}

static void any_thread_may_give_work(void **state) {
    (void)state;
    struct seen seen = {0};
    struct relay relay = {new_thread_pool(2), &seen};
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, run_there, &relay), 0);
    pthread_join(other, NULL);
    pthread_t driver = seen.work;
    assert_true(pthread_equal(seen.call, other));
    thread_pool_run(relay.pool, look_around, &seen);
    assert_true(pthread_equal(seen.work, driver));
    assert_true(pthread_equal(seen.call, pthread_self()));
    thread_pool_free(relay.pool);
}

/* ---- Work that all threads share */

enum { THREADS = 4, ITEMS = 37, ROUNDS = 4000 };

struct sharing {
    uint32_t threads, ran[THREADS], width;
    size_t items[ITEMS]; /* how often each was done */
    _Atomic uint32_t before, early;
    uint32_t nested;
};

static void nested(void *user) {
    struct sharing *s = user;
    if (parallel_threads() == 1 && parallel_thread() == 0) s->nested++;
}

static void share(void *user) {
    struct sharing *s = user;
    struct parallel_part part = parallel_part_of(ITEMS);
    uint32_t own = parallel_thread();
    if (own == 0) s->width = parallel_threads();
    s->ran[own]++;
    for (size_t i = part.begin; i < part.end; i++) s->items[i]++;
    atomic_fetch_add(&s->before, 1);
    parallel_barrier();
    if (atomic_load(&s->before) != parallel_threads()) atomic_fetch_add(&s->early, 1);
    parallel_barrier();
    if (own == parallel_threads() - 1) parallel_run(THREADS, nested, s);
}

static void share_many_times(void *user) {
    struct sharing *s = user;
    for (int round = 0; round < ROUNDS; round++) {
        atomic_store(&s->before, 0);
        parallel_run(s->threads, share, s);
    }
}

static void check_shared(const struct sharing *s, uint32_t width) {
    assert_int_equal(s->width, width);
    assert_int_equal(s->early, 0);
    assert_int_equal(s->nested, ROUNDS);
    for (uint32_t i = 0; i < THREADS; i++) assert_int_equal(s->ran[i], i < width ? ROUNDS : 0);
    for (size_t i = 0; i < ITEMS; i++) assert_int_equal(s->items[i], ROUNDS);
}

/* Uses more threads than processors, so that some of the waits are long. */
static void work_is_shared_and_barriers_hold(void **state) {
    (void)state;
    struct thread_pool *pool = new_thread_pool(THREADS);
    for (uint32_t threads = 1; threads <= THREADS + 1; threads++) {
        struct sharing s = {.threads = threads};
        thread_pool_run(pool, share_many_times, &s);
        check_shared(&s, threads < THREADS ? threads : THREADS);
    }
    thread_pool_free(pool);
}

static void without_a_team_openmp_shares_it(void **state) {
    (void)state;
    struct sharing s = {.threads = 2};
    for (int round = 0; round < ROUNDS; round++) {
        atomic_store(&s.before, 0);
        parallel_run(s.threads, share, &s);
    }
    check_shared(&s, 2);
}

/* Returns whether the system has put a thread of this process to sleep: the letter behind the name in brackets, which is this program's. */
static bool sleeps(pid_t thread) {
    char path[64], line[256] = "", *at = line;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    while (*at && *at != ')') at++;
    return at[0] && at[2] == 'S';
}

struct sleeping {
    _Atomic pid_t worker;
    bool slept;
};

static void keep_the_worker_waiting(void *user) {
    struct sleeping *s = user;
    if (parallel_thread() == 1) {
        atomic_store(&s->worker, (pid_t)syscall(SYS_gettid));
    } else {
        while (!atomic_load(&s->worker)) usleep(100);
        while (!sleeps(s->worker)) usleep(100);
        s->slept = true;
    }
    parallel_barrier();
}

static void give_two_something_to_wait_for(void *user) {
    struct sleeping *s = user;
    parallel_run(2, keep_the_worker_waiting, s);
    while (!sleeps(s->worker)) usleep(100); /* for the next work */
    parallel_run(2, keep_the_worker_waiting, s);
}

static void who_waits_long_sleeps_and_wakes(void **state) {
    (void)state;
    struct thread_pool *pool = new_thread_pool(2);
    struct sleeping s = {0};
    thread_pool_run(pool, give_two_something_to_wait_for, &s);
    assert_true(s.slept);
    thread_pool_free(pool);
}

static void limits(void **state) {
    (void)state;
    struct thread_pool *pool = NULL;
    struct terse_error error;
    assert_int_equal(thread_pool_new(TEAM_THREADS_MAX + 1, &pool, &error), TERSE_E_ARGUMENT);
    assert_null(pool);
    pool = new_thread_pool(0);
    assert_int_equal(thread_pool_threads(pool), omp_get_num_procs());
    thread_pool_free(pool);
    thread_pool_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(work_runs_on_the_teams_threads),
                                       cmocka_unit_test(progress_comes_back_to_the_caller),
                                       cmocka_unit_test(any_thread_may_give_work),
                                       cmocka_unit_test(work_is_shared_and_barriers_hold),
                                       cmocka_unit_test(without_a_team_openmp_shares_it),
                                       cmocka_unit_test(who_waits_long_sleeps_and_wakes),
                                       cmocka_unit_test(limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
