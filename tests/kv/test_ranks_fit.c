/* Ranks share the fits of a sequence's transforms: each fits a part of the records, all have those of one process in the end, and what fails on one of
 * them, whenever it does, fails on all, which can then try again. The ranks are threads, and a fit is a pattern. */
#include "dist/collective.h"
#include "kv/fit_records.h"
#include "support/backend_under_test.h"
#include "support/fit_sample.h"
#include "support/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RECORDS = 2 * SETS, RECORD_MOST = TRANSFORM_RECORD_STRIDE(HEAD_DIM_MOST) };

enum failure {
    NOTHING,
    BEFORE_IT, /* the rank comes to no fit */
    READY,     /* it comes with a failure */
    FIT,
    LAYOUTS /* when all have all records */
};

/* A rank notes here what it has seen of a fit. */
struct seen {
    enum terse_status status;
    struct terse_error error;
    uint32_t fits[RECORDS];
    bool fitted, kept; /* kept: there are records */
    uint8_t records[RECORDS][RECORD_MOST];
};

struct job {
    const struct method *method;
    enum failure failure;
    uint32_t failing;                     /* the rank that fails */
    struct seen first[THREAD_RANKS_MOST]; /* of a fit that fails */
    struct seen seen[THREAD_RANKS_MOST];  /* and of one that does not */
};

/* A rank in a fit. */
struct fitting {
    const struct job *job;
    struct collective *ranks;
    struct seen *seen;
    bool fails; /* where the job says so */
};

static _Thread_local const struct fitting *fitting_here;

static enum terse_status refuse(struct terse_error *error) { return status_fail(error, TERSE_E_MEMORY, "nothing left"); }

static bool fails_at(const struct fitting *f, enum failure failure) {
    return f->fails && f->job->failure == failure && f->job->failing == f->ranks->rank;
}

static enum terse_status fit(void *user, size_t thread, uint32_t layer, uint32_t head, enum codec_side side, void *record,
                             struct terse_error *error) {
    const struct fitting *f = user;
    const uint32_t i = (layer * HEADS + head) * 2 + side, hd = (uint32_t)HEAD_DIM;
    float *floats = record;
    (void)thread;
    if (fails_at(f, FIT)) return refuse(error);
#pragma omp atomic
    f->seen->fits[i]++;
    for (size_t c = 0; c < 4 * (size_t)hd; c++) floats[c] = (float)(i + 1);
    float *size = floats + (transform_fitted_at(record, hd).size - floats);
    for (size_t c = 0; c < hd; c++) size[c] = (float)(i + 1) / (float)(c + 1);
    memset((uint8_t *)record + TRANSFORM_RECORD_BYTES(hd) - 2 * hd, (int)i + 1, 2 * hd); /* the end of the basis */
    return TERSE_OK;
}

static enum terse_status layouts_changed(struct cache *cache, struct terse_error *error) {
    if (cache_base_of(cache)->fitted.layouts && fails_at(fitting_here, LAYOUTS)) return refuse(error);
    return sample_kv()->storage->layouts_changed(cache, error);
}

static void fit_together(const struct job *job, struct collective *ranks, struct cache *cache, bool fails, struct seen *seen) {
    const struct fitting f = {job, ranks, seen, fails};
    const uint64_t refusals = ranks->refusals;
    const struct fitted *fitted = &cache_base_of(cache)->fitted;
    fitting_here = &f;
    memset(seen, 0, sizeof *seen);
    if (fails_at(&f, BEFORE_IT)) {
        seen->status = refuse(&seen->error);
    } else {
        const enum terse_status ready = fails_at(&f, READY) ? refuse(&seen->error) : TERSE_OK;
        seen->status = fit_records(cache, ready, fit, (void *)(uintptr_t)&f, &seen->error);
    }
    seen->status = collective_conclude(ranks, refusals, seen->status, &seen->error);
    seen->fitted = fitted->layouts != NULL && cache_base_of(cache)->method.layouts == fitted->layouts;
    seen->kept = fitted->records != NULL;
    for (size_t i = 0; i < RECORDS && seen->kept; i++)
        memcpy(seen->records[i], fitted->records + i * fitted->record_bytes, fitted->record_bytes);
}

static void run(struct collective *ranks, void *user) {
    struct job *job = user;
    struct cache_shape shape = sample_shape;
    struct cache *cache;
    if (ranks->ranks > 1) shape.ranks = ranks;
    if (parts_create(sample_kv()->storage, &shape, job->method, 2, &cache, NULL)) abort();
    struct kv_storage storage = *cache_base_of(cache)->storage;
    storage.layouts_changed = layouts_changed;
    cache_base(cache)->storage = &storage;
    if (job->failure) fit_together(job, ranks, cache, true, &job->first[ranks->rank]);
    fit_together(job, ranks, cache, false, &job->seen[ranks->rank]);
    parts_destroy(cache);
}

static struct job *job_of(const struct method *method) {
    struct job *job = calloc(1, sizeof *job);
    assert_non_null(job);
    job->method = method;
    return job;
}

/* Each record is fitted by one rank, and no rank fits more than its part. */
static void check_shares(const struct job *job, uint32_t n) {
    for (size_t i = 0; i < RECORDS; i++) {
        uint32_t fits = 0;
        for (uint32_t rank = 0; rank < n; rank++) fits += job->seen[rank].fits[i];
        assert_int_equal(fits, 1);
    }
    for (uint32_t rank = 0; rank < n; rank++) {
        uint32_t fits = 0;
        for (size_t i = 0; i < RECORDS; i++) fits += job->seen[rank].fits[i];
        assert_true(fits <= (RECORDS + n - 1) / n);
    }
}

static void check_fitted(const struct job *job, uint32_t n, const struct seen *alone) {
    for (uint32_t rank = 0; rank < n; rank++) {
        const struct seen *seen = &job->seen[rank];
        if (seen->status) fail_msg("rank %u of %u: %s", rank, n, seen->error.message);
        assert_true(seen->fitted && seen->kept);
        assert_memory_equal(seen->records, alone->records, sizeof alone->records);
    }
}

/* With five ranks there is one without a record. */
static void each_rank_fits_a_part_and_has_all(void **state) {
    (void)state;
    struct method method = make_method(NULL, NULL, true);
    struct job *job = job_of(&method);
    struct seen *alone = malloc(sizeof *alone);
    assert_non_null(alone);
    thread_ranks_run(1, run, job);
    *alone = job->seen[0];
    assert_int_equal(alone->records[RECORDS - 1][TRANSFORM_RECORD_BYTES(HEAD_DIM) - 1], RECORDS);
    for (uint32_t n = 1; n <= 5; n++) {
        thread_ranks_run(n, run, job);
        check_fitted(job, n, alone);
        check_shares(job, n);
    }
    free(alone);
    free(job);
    release_method(&method, NULL);
}

static void what_fails_on_one_fails_on_all(void **state) {
    (void)state;
    enum { RANKS = 3 };
    struct method method = make_method(NULL, NULL, true);
    struct job *job = job_of(&method);
    struct seen *alone = malloc(sizeof *alone);
    assert_non_null(alone);
    thread_ranks_run(1, run, job);
    *alone = job->seen[0];
    for (int failure = BEFORE_IT; failure <= LAYOUTS; failure++)
        for (uint32_t failing = 0; failing < RANKS; failing++) {
            char message[64];
            job->failure = (enum failure)failure;
            job->failing = failing;
            thread_ranks_run(RANKS, run, job);
            snprintf(message, sizeof message, "rank %u: nothing left", failing);
            for (uint32_t rank = 0; rank < RANKS; rank++) {
                const struct seen *seen = &job->first[rank];
                assert_int_equal(seen->status, TERSE_E_MEMORY);
                assert_string_equal(seen->error.message, rank == failing ? "nothing left" : message);
                assert_false(seen->fitted || seen->kept);
            }
            check_fitted(job, RANKS, alone);
        }
    free(alone);
    free(job);
    release_method(&method, NULL);
}

int main(int argc, char **argv) {
    if (!backend_begins(argc, argv)) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_rank_fits_a_part_and_has_all),
                                       cmocka_unit_test(what_fails_on_one_fails_on_all)};
    return cmocka_run_group_tests(tests, make_rows, free_rows);
}
