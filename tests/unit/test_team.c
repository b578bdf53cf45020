/* A team's work runs on its own driver thread with its own number of threads; calls and progress reports come back to the thread that
 * waits, and nobody else's threads change. */
#include "base/team.h"

#include <omp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct seen {
    pthread_t work, call;
    int most, team;
    uint64_t reports;
    bool signals_blocked;
    struct terse_progress progress;
    bool went_on;
};

static struct team *new_team(uint32_t threads) {
    struct team *team;
    struct terse_error error;
    if (team_new(threads, &team, &error)) fail_msg("%s", error.message);
    return team;
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
    seen->team = omp_get_num_threads();
    team_call(note_caller, seen);
}

static void work_runs_on_the_teams_threads(void **state) {
    (void)state;
    int before = omp_get_max_threads();
    for (uint32_t threads = 1; threads <= 3; threads++) {
        struct team *team = new_team(threads);
        struct seen seen = {0};
        assert_int_equal(team_threads(team), threads);
        for (int round = 0; round < 3; round++) team_run(team, look_around, &seen);
        assert_int_equal(seen.most, threads);
        assert_int_equal(seen.team, threads);
        assert_false(pthread_equal(seen.work, pthread_self()));
        assert_true(pthread_equal(seen.call, pthread_self()));
        assert_true(seen.signals_blocked);
        team_free(team);
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
    struct team *team = new_team(2);
    struct seen seen = {.call = pthread_self()};
    const struct terse_progress progress = {stop_at_three, &seen};
    seen.progress = team_progress(&progress);
    team_run(team, report_until_stopped, &seen);
    assert_int_equal(seen.reports, 4);
    assert_false(seen.went_on);
    team_free(team);
    report_until_stopped(&seen); /* without a team the report is a plain call */
    assert_int_equal(seen.reports, 8);
    assert_null(team_progress(&(struct terse_progress){0}).report);
}

struct relay {
    struct team *team;
    struct seen *seen;
};

static void *run_there(void *user) {
    struct relay *relay = user;
    team_run(relay->team, look_around, relay->seen);
    return NULL;
}

static void any_thread_may_give_work(void **state) {
    (void)state;
    struct seen seen = {0};
    struct relay relay = {new_team(2), &seen};
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, run_there, &relay), 0);
    pthread_join(other, NULL);
    pthread_t driver = seen.work;
    assert_true(pthread_equal(seen.call, other));
    team_run(relay.team, look_around, &seen);
    assert_true(pthread_equal(seen.work, driver));
    assert_true(pthread_equal(seen.call, pthread_self()));
    team_free(relay.team);
}

static void limits(void **state) {
    (void)state;
    struct team *team = NULL;
    struct terse_error error;
    assert_int_equal(team_new(TEAM_THREADS_MAX + 1, &team, &error), TERSE_E_ARGUMENT);
    assert_null(team);
    team = new_team(0);
    assert_int_equal(team_threads(team), omp_get_num_procs());
    team_free(team);
    team_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(work_runs_on_the_teams_threads),
                                       cmocka_unit_test(progress_comes_back_to_the_caller),
                                       cmocka_unit_test(any_thread_may_give_work), cmocka_unit_test(limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
